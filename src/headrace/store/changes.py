"""The changes a vbucket accepts: mutations, tombstones, sync writes, system events.

A change lays its frame into the arena and has `accept` give it its seqno, CAS and rev, under the
bucket's lock; it is announced after the lock is let go. Room is made before the lock is taken,
because making room may wait for the disk. No rule about conflicts lives here: the owner has
decided before it calls.

Imports: errors, store.core, store.events, store.layout, store.lookup, store.model, store.plain,
store.prepares, store.replica, wire.opcodes.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.errors import StoreError
from headrace.store import layout as at
from headrace.store.accept import open_checkpoint
from headrace.store.events import Events
from headrace.store.lookup import READ_TRIES_MAX, UNSIGNED
from headrace.store.model import (
    KEY_SIZE_MAX,
    SEQNO_LIMIT,
    VALUE_SIZE_MAX,
    Change,
    Pending,
)
from headrace.store.plain import (
    ABORT_FIELDS,
    DELETION_FIELDS,
    EVENT_FIELDS,
    EXPIRATION_FIELDS,
    PREPARE_FIELDS,
    build_frame,
)
from headrace.store.prepares import Prepares
from headrace.store.replica import advanced_frame
from headrace.store.upkeep import value_after_expiry
from headrace.wire.opcodes import SystemEventId

if TYPE_CHECKING:
    from headrace.store.core import Core
    from headrace.store.lookup import Lookup
    from headrace.store.model import Item

MUTATION_HEAD: Final = Struct(">BBHBBHIIQQQIIIHB")
"""Header and extras of a mutation at rest."""
FRAME_OVERHEAD_MAX: Final = at.HEADER + at.MUTATION_EXTRAS
"""Bytes of a frame at rest besides key and value, at most."""


class Changes:
    """The writing half of a `headrace.store.vbucket.VBucket`."""

    def __init__(self, core: Core, lookup: Lookup, vbucket: int) -> None:
        self.id = vbucket
        self.core = core
        self.lookup = lookup
        self.row = core.tables.vbuckets[vbucket]
        """This vbucket's numbers, shared with the kernels."""
        self.prepares = Prepares(self._supersede)
        self.events = Events(self._supersede)
        self.exists = True
        self._held = 0

    @property
    def high_seqno(self) -> int:
        """The last seqno given."""
        return int(self.row[at.V_HIGH])

    def store(
        self,
        key: bytes,
        value: bytes,
        *,
        flags: int = 0,
        expiry: int = 0,
        datatype: int = 0,
        cas: int | None = None,
        rev: int | None = None,
        seqno: int | None = None,
        nru: int = 0,
        committed: int | None = None,
    ) -> Change:
        """A mutation; None lets the store choose (next seqno, clock CAS, rev by semantics 1).

        ``seqno`` is given for replicas only. ``committed`` is the seqno of the prepare this
        mutation commits (use `commit_prepare` on an active vbucket).
        """
        self.core.ensure_room(FRAME_OVERHEAD_MAX + len(key) + len(value))
        with self.core.lock:
            note = 0 if committed is None else self._commit_note(committed, seqno)
            change = self._store(key, value, flags, expiry, datatype, cas, rev, seqno, nru, note)
        self.core.announce(self.id)
        return change

    def _store(
        self,
        key: bytes,
        value: bytes,
        flags: int,
        expiry: int,
        datatype: int,
        cas: int | None,
        rev: int | None,
        seqno: int | None,
        nru: int,
        note: int,
    ) -> Change:
        """Lay down and accept a mutation; the fast road of `_add`. Lock held."""
        key_size = len(key)
        if not 0 < key_size <= KEY_SIZE_MAX or len(value) > VALUE_SIZE_MAX:
            raise _too_large(key, value)
        self.check_exists()
        body = at.MUTATION_EXTRAS + key_size + len(value)
        segment = self.core.arena.room(at.HEADER + body)
        view, offset = segment.view, segment.used
        MUTATION_HEAD.pack_into(
            view,
            offset,
            at.MAGIC,
            at.MUTATION,
            key_size,
            at.MUTATION_EXTRAS,
            datatype,
            self.id,
            body,
            note,
            0,
            0,
            0,
            flags,
            expiry,
            0,
            0,
            nru,
        )
        start = offset + MUTATION_HEAD.size
        view[start : start + key_size] = key
        view[start + key_size : offset + at.HEADER + body] = value
        change = self._append(at.HEADER + body, seqno, cas, rev)[1]
        if note:
            self._completed(key, change)
        return change

    def delete(
        self,
        key: bytes,
        *,
        value: bytes = b"",
        datatype: int = 0,
        cas: int | None = None,
        rev: int | None = None,
        seqno: int | None = None,
        delete_time: int | None = None,
        committed: int | None = None,
    ) -> Change:
        """A tombstone; the value may hold xattrs. The key need not exist. delete_time None: now."""
        extras = DELETION_FIELDS.pack(0, 0, self._seconds(delete_time), 0)
        return self._tombstone(
            at.DELETION, extras, key, value, datatype, cas, rev, seqno, committed
        )

    def expire(
        self,
        key: bytes,
        *,
        value: bytes = b"",
        datatype: int = 0,
        cas: int | None = None,
        rev: int | None = None,
        seqno: int | None = None,
        delete_time: int | None = None,
    ) -> Change:
        """A tombstone made by expiry (its own opcode)."""
        extras = EXPIRATION_FIELDS.pack(0, 0, self._seconds(delete_time))
        return self._tombstone(at.EXPIRATION, extras, key, value, datatype, cas, rev, seqno, None)

    def _tombstone(
        self,
        opcode: int,
        extras: bytes,
        key: bytes,
        value: bytes,
        datatype: int,
        cas: int | None,
        rev: int | None,
        seqno: int | None,
        committed: int | None,
    ) -> Change:
        self.core.ensure_room(FRAME_OVERHEAD_MAX + len(key) + len(value))
        with self.core.lock:
            note = 0 if committed is None else self._commit_note(committed, seqno)
            change = self._add(
                opcode,
                extras,
                key,
                value,
                datatype=datatype,
                note=note,
                cas=cas,
                rev=rev,
                seqno=seqno,
            )[1]
            if note:
                self._completed(key, change)
        self.core.announce(self.id)
        return change

    def _completed(self, key: bytes, change: Change) -> None:
        self.prepares.committed(key, change.seqno)
        self.note_prepares()

    def touch(self, key: bytes, expiry: int) -> Change | None:
        """The same value with a new expiry, seqno, CAS and rev; None if the key does not live."""
        for _ in range(READ_TRIES_MAX):
            item = self.lookup.item(self.id, key)
            if item is None or item.deleted:
                return None
            self.core.ensure_room(FRAME_OVERHEAD_MAX + len(key) + len(item.value))
            with self.core.lock:
                if not self._is_still(key, item):
                    continue
                change = self._store(
                    key, item.value, item.flags, expiry, item.datatype, None, None, None, 0, 0
                )
            self.core.announce(self.id)
            return change
        raise StoreError(f"a key of vbucket {self.id} changes faster than it can be read")

    def _is_still(self, key: bytes, item: Item) -> bool:
        """Whether nobody changed a key while its value was read from the disk; lock held."""
        meta = self.lookup.meta(self.id, key)
        return meta is not None and meta.seqno == item.seqno

    def expire_if_due(self, key: bytes, now: int) -> bool:
        """Expire a living key whose expiry is at or before ``now`` (unix seconds); whether it was.

        System xattrs stay in the tombstone's value.
        """
        item = self.lookup.item(self.id, key)
        if item is None or item.deleted or not 0 < item.expiry <= now:
            return False
        value, datatype = value_after_expiry(item)
        self.core.ensure_room(FRAME_OVERHEAD_MAX + len(key) + len(value))
        with self.core.lock:
            # Not if it was changed meanwhile, nor under a prepare: that decides about the key.
            if not self._is_still(key, item) or self.prepares.get(key) is not None:
                return False
            extras = EXPIRATION_FIELDS.pack(0, 0, self._seconds(None))
            self._add(at.EXPIRATION, extras, key, value, datatype=datatype)
        self.core.announce(self.id)
        return True

    def hold_bulk(self, held: int) -> None:
        """Keep `Bucket.serve_requests` away from this vbucket while ``held`` is not 0 (locks)."""
        with self.core.lock:
            self._held = held
            self.note_prepares()

    def prepare(
        self,
        key: bytes,
        value: bytes,
        *,
        level: int,
        flags: int = 0,
        expiry: int = 0,
        datatype: int = 0,
        deleted: bool = False,
        cas: int | None = None,
        rev: int | None = None,
        seqno: int | None = None,
        replaces: bool = False,
    ) -> Change:
        """A prepare, invisible until it is committed; one may be in flight per key (ValueError).

        ``replaces``: it takes the place of one in flight whose completion was never told, because a
        disk snapshot left it out.
        """
        extras = PREPARE_FIELDS.pack(0, 0, flags, expiry, 0, 0, int(deleted), level)
        self.core.ensure_room(FRAME_OVERHEAD_MAX + len(key) + len(value))
        with self.core.lock:
            before = self.prepares.get(key)
            if before is not None and not replaces:
                raise ValueError(f"key has a prepare in flight at seqno {before.seqno}")
            ordinal, change = self._add(
                at.PREPARE,
                extras,
                key,
                value,
                datatype=datatype,
                cas=cas,
                rev=rev,
                seqno=seqno,
            )
            pending = Pending(
                key, value, *change, flags, expiry, datatype, deleted=deleted, level=level
            )
            self.prepares.prepared(pending, ordinal)
            self.note_prepares()
        self.core.announce(self.id)
        return change

    def commit_prepare(self, key: bytes, *, seqno: int | None = None) -> Change:
        """The key's prepare becomes its newest version, at a new seqno, with the prepare's CAS."""
        pending = self._in_flight(key)
        if pending.deleted:
            return self.delete(
                key,
                value=pending.value,
                datatype=pending.datatype,
                cas=pending.cas,
                rev=pending.rev,
                seqno=seqno,
                committed=pending.seqno,
            )
        return self.store(
            key,
            pending.value,
            flags=pending.flags,
            expiry=pending.expiry,
            datatype=pending.datatype,
            cas=pending.cas,
            rev=pending.rev,
            seqno=seqno,
            committed=pending.seqno,
        )

    def abort_prepare(
        self, key: bytes, *, seqno: int | None = None, prepared: int | None = None
    ) -> Change:
        """The key's prepare is given up; an ABORT takes a seqno.

        ``prepared``: the seqno of a prepare that a disk snapshot may have left out.
        """
        self.core.ensure_room(at.HEADER + at.ABORT_EXTRAS + len(key))
        with self.core.lock:
            if prepared is None:
                prepared = self._in_flight(key).seqno
            ordinal, change = self._add(
                at.ABORT,
                ABORT_FIELDS.pack(prepared, 0),
                key,
                b"",
                note=self._seconds(None),
                seqno=seqno,
            )
            self.prepares.aborted(key, change.seqno, ordinal)
            self.note_prepares()
        self.core.announce(self.id)
        return change

    def complete_prepare(self, key: bytes, seqno: int) -> None:
        """A version of the key came after its prepare, if it has one: that is done (replicas)."""
        with self.core.lock:
            self.prepares.committed(key, seqno)
            self.note_prepares()

    def complete_known_prepares(self) -> None:
        """Complete every prepare whose key has a later version: what loading cannot tell."""
        with self.core.lock:
            for pending in self.prepares.all():
                meta = self.lookup.meta(self.id, pending.key)
                if meta is not None and meta.seqno > pending.seqno:
                    self.prepares.committed(pending.key, meta.seqno)
            self.note_prepares()

    def _in_flight(self, key: bytes) -> Pending:
        pending = self.prepares.get(key)
        if pending is None:
            raise ValueError("key has no prepare in flight")
        return pending

    def system_event(
        self,
        event: int,
        *,
        version: int,
        subject: int,
        key: bytes,
        value: bytes,
        seqno: int | None = None,
    ) -> Change:
        """A system event; ``subject`` is the collection id (events 0, 1, 5) or scope id (3, 4).

        END_COLLECTION (and BEGIN_COLLECTION, which is also a flush) forgets every key of the
        collection up to its seqno.
        """
        extras = EVENT_FIELDS.pack(0, event, version)
        self.core.ensure_room(FRAME_OVERHEAD_MAX + len(key) + len(value))
        with self.core.lock:
            clears = event in (SystemEventId.BEGIN_COLLECTION, SystemEventId.END_COLLECTION)
            if clears and self.lookup.has_keys(self.id, subject):
                # A key may come back after a new beginning: not into the same snapshot.
                self._split_checkpoint()
            ordinal, change = self._add(
                at.SYSTEM_EVENT, extras, key, value, note=subject, seqno=seqno, key_size_min=0
            )
            self.events.happened(event, subject, change.seqno, ordinal)
            if clears:
                self.lookup.forget_collection(self.id, subject, change.seqno)
        self.core.announce(self.id)
        return change

    def _split_checkpoint(self) -> None:
        if self.row[at.V_CHECKPOINT_ITEMS] and not self.row[at.V_RECEIVING]:
            open_checkpoint(self.core.tables.vbuckets, self.id, self.high_seqno + 1)

    def advance(self, seqno: int) -> None:
        """A seqno without an item (a replica was told SEQNO_ADVANCED)."""
        self.core.ensure_room(at.HEADER + at.ADVANCED_EXTRAS)
        with self.core.lock:
            if not self.high_seqno < seqno <= SEQNO_LIMIT:
                raise ValueError(f"seqno {seqno} does not rise above {self.high_seqno}")
            self.core.append_control(advanced_frame(self.id, seqno))
            self.row[at.V_HIGH] = self.row[at.V_VISIBLE] = seqno
        self.core.announce(self.id)

    def _add(
        self,
        opcode: int,
        extras: bytes,
        key: bytes,
        value: bytes,
        *,
        datatype: int = 0,
        note: int = 0,
        cas: int | None = None,
        rev: int | None = None,
        seqno: int | None = None,
        key_size_min: int = 1,
    ) -> tuple[int, Change]:
        """Lay down and accept a frame of any kind; its ordinal and its numbers. Lock held."""
        if not key_size_min <= len(key) <= KEY_SIZE_MAX or len(value) > VALUE_SIZE_MAX:
            raise _too_large(key, value)
        self.check_exists()
        frame = build_frame(
            opcode,
            vbucket=self.id,
            extras=extras,
            key=key,
            value=value,
            datatype=datatype,
            note=note,
        )
        segment = self.core.arena.room(len(frame))
        segment.view[segment.used : segment.used + len(frame)] = frame
        return self._append(len(frame), seqno, cas, rev)

    def _append(
        self, size: int, seqno: int | None, cas: int | None, rev: int | None
    ) -> tuple[int, Change]:
        if seqno is not None and not 0 < seqno <= SEQNO_LIMIT:
            raise ValueError(f"seqno {seqno}, allowed 1..{SEQNO_LIMIT}")
        core = self.core
        ordinal, given, new_cas, new_rev = core.append(
            core.arena.current,
            size,
            seqno=seqno or 0,
            cas=signed(cas or 0),
            rev=signed(rev or 0),
        )
        return ordinal, Change(given, new_cas & UNSIGNED, new_rev & UNSIGNED)

    def _supersede(self, old_seqno: int, old_ordinal: int, new_seqno: int) -> None:
        self.core.supersede(self.id, old_seqno, old_ordinal, new_seqno)

    def _commit_note(self, prepared: int, seqno: int | None) -> int:
        """What a committed frame keeps of its prepare."""
        distance = (seqno or self.high_seqno + 1) - prepared
        if not 0 < distance <= at.COMMIT_DISTANCE_MAX:
            raise ValueError(f"prepare at seqno {prepared} is {distance} before its commit")
        return at.COMMITTED | distance

    def note_prepares(self) -> None:
        """Tell the kernels whether bulk service must keep away; lock held."""
        self.row[at.V_SLOW] = len(self.prepares) + self._held

    def _seconds(self, given: int | None) -> int:
        return self.core.clock() // 1_000_000_000 if given is None else given

    def check_exists(self) -> None:
        """StoreError when the vbucket was deleted."""
        if not self.exists:
            raise StoreError(f"vbucket {self.id} was deleted")


def signed(number: int) -> int:
    """The same 64 bits as a signed number."""
    if not 0 <= number <= UNSIGNED:
        raise ValueError(f"number {number}, allowed 0..{UNSIGNED}")
    return number - (number >> 63 << 64)


def _too_large(key: bytes, value: bytes) -> ValueError:
    return ValueError(
        f"key of {len(key)} bytes and value of {len(value)}, allowed 1..{KEY_SIZE_MAX} and "
        f"{VALUE_SIZE_MAX}"
    )
