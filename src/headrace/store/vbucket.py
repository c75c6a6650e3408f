"""One vbucket: its items, its history, its readers.

Numbers live in the vbucket's row of the shared table, where the kernels keep them; what changes
rarely (failover log, purge seqno, received snapshot, prepares in flight) lives here. A change lays
its frame into the arena and has `accept` give it its seqno, CAS and rev, all under the bucket's
lock; it is announced after the lock is let go.

Imports: errors, history, store, wire.opcodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import StoreError
from headrace.history import FailoverLog, Seqno, SnapshotRange
from headrace.store import layout as at
from headrace.store.accept import open_checkpoint
from headrace.store.backfill import Backfill
from headrace.store.changes import Changes, signed
from headrace.store.collection_seqnos import CollectionSeqnos
from headrace.store.cursor import Cursor
from headrace.store.lookup import UNSIGNED
from headrace.store.receive import receive_run
from headrace.store.replica import Received, Unsettled, apply_frames, apply_parts, over_frame
from headrace.store.view import checkpoints_of, last_passing
from headrace.store.waiting import Waiting
from headrace.wire.opcodes import VBucketState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.store.core import Core
    from headrace.store.lookup import Lookup
    from headrace.store.model import CheckpointView, Item, Meta, Pending
    from headrace.store.plain import Parts
    from headrace.store.transform import Transform


class VBucket(Changes):
    """One vbucket of a bucket.

    Writes refuse keys and values over their limits, and seqnos that do not rise, with a ValueError,
    and raise StoreFull when memory or disk have no room; nothing is changed then.
    """

    def __init__(self, core: Core, lookup: Lookup, vbucket: int, log: FailoverLog) -> None:
        """The vbucket with that number; its row in the shared table is filled in by the bucket."""
        super().__init__(core, lookup, vbucket)
        self.failover_log = log
        """Branches, newest first; changed by `set_state`, `replace_failover_log`, `failover`."""
        self.purge_seqno = 0
        """Highest seqno of a tombstone that compaction removed."""
        self.rewind_seqno = 0
        """The lowest seqno whose state can be rebuilt; `failover` accepts it and above, and 0."""
        self.history_floor = 0
        """Superseded versions at or below this seqno may be gone."""
        self.received: Received | None = None
        self.persisted_received: Received | None = None
        self.unsettled = Unsettled()
        """Where no boundary lies, because snapshots were received there."""
        self.completed_floor = 0
        """Prepares at or below are done, as the last disk snapshot told."""
        self.settled_prepared = 0
        """The end of the last disk snapshot: every prepare up to it is here."""
        self.collections = CollectionSeqnos(core, vbucket)
        self.waiting = Waiting()
        self.views: set[Backfill] = set()
        self.disk_checkpoints: set[int] = set()
        """Checkpoints that hold a snapshot from a producer's disk."""
        self.checkpoint_ends: dict[int, int] = {}
        """Where closed checkpoints end whose last seqno has no item."""
        self.manifest: dict[str, object] = {}
        """Collections manifest as JSON; see `set_manifest`."""
        self.sealed_commit = 0
        """Frames of this vbucket in journal entries below this commit are in blocks or gone."""
        self.sealed_ordinal = 0
        """Ordinal of the item that was sealed last."""
        self.generation = 0
        """Grows when the vbucket is truncated, flushed or deleted: before and after."""
        self.record_changed = False

    # -- what it is -----------------------------------------------------------------------------

    @property
    def state(self) -> VBucketState:
        """Active, replica, pending or dead."""
        return VBucketState(int(self.row[at.V_STATE]))

    @property
    def persisted_seqno(self) -> int:
        """The last seqno that is durable."""
        return int(self.row[at.V_PERSISTED])

    @property
    def max_visible_seqno(self) -> int:
        """The last seqno that is no prepare and no abort."""
        return int(self.row[at.V_VISIBLE])

    @property
    def high_prepared_seqno(self) -> int:
        """The seqno of the last prepare."""
        return self.prepares.high_prepared

    @property
    def high_completed_seqno(self) -> int:
        """Every prepare at or below this seqno was committed or aborted."""
        return self.high_completed_at(self.high_seqno)

    def high_completed_at(self, end: int) -> int:
        """The same for a view that ends at ``end``: what is in flight there lies above."""
        told = self.received.high_completed if self.received else 0
        oldest, completed = self.prepares.oldest, max(told, self.prepares.completed_at(end))
        return completed if oldest is None else min(completed, oldest.seqno - 1)

    @property
    def max_cas(self) -> int:
        """The greatest CAS given or seen."""
        return int(self.row[at.V_MAX_CAS]) & UNSIGNED

    @property
    def max_deleted_rev(self) -> int:
        """The greatest rev of a tombstone, purged ones included."""
        return int(self.row[at.V_DELETED_REV]) & UNSIGNED

    @property
    def item_count(self) -> int:
        """Number of living keys."""
        return int(self.row[at.V_LIVE])

    @property
    def tombstone_count(self) -> int:
        """Number of deleted keys that are still remembered."""
        return int(self.row[at.V_TOMBSTONES])

    @property
    def checkpoint_id(self) -> int:
        """Id of the open checkpoint."""
        return int(self.row[at.V_CHECKPOINT])

    @property
    def checkpoints(self) -> tuple[CheckpointView, ...]:
        """The checkpoints that have items in memory, and the open one."""
        with self.core.lock:
            return checkpoints_of(self)

    @property
    def memory_seqno(self) -> int:
        """Every item above this seqno is in memory."""
        return int(self.row[at.V_MEMORY])

    @property
    def disk_bytes(self) -> int:
        """Bytes of sealed blocks."""
        return self.core.blocks[self.id].bytes_on_disk

    @property
    def history_start_seqno(self) -> int:
        """All versions from this seqno on are kept; 0 when the bucket retains no history."""
        return self.history_floor + 1 if self.core.settings.keeps_history else 0

    @property
    def snapshot(self) -> SnapshotRange:
        """The last snapshot received (replica), else [high, high]; complete when its end <=
        high."""
        return _range(self.received, self.high_seqno)

    @property
    def persisted_snapshot(self) -> SnapshotRange:
        """The snapshot as it is on disk."""
        return _range(self.persisted_received, self.persisted_seqno)

    @property
    def complete_seqno(self) -> int:
        """The end of the last snapshot that is here whole; the high seqno on an active vbucket."""
        if self.received is None or self.received.end <= self.high_seqno:
            return self.high_seqno
        return self.received.complete_before

    @property
    def receives_disk(self) -> bool:
        """Whether the last marker announced a snapshot from its producer's disk."""
        return self.received is not None and self.received.from_disk

    @property
    def initial_disk_snapshot(self) -> bool:
        """Whether the first disk snapshot into an empty replica has not ended: not a source yet."""
        told = self.received
        return bool(
            told and told.from_disk and told.complete_before == 0 and self.high_seqno < told.end
        )

    # -- reading keys ---------------------------------------------------------------------------

    def meta(self, key: bytes) -> Meta | None:
        """What is known of a key, tombstones included; None if it was never seen or was purged."""
        return self.lookup.meta(self.id, key)

    def get(self, key: bytes) -> Item | None:
        """The newest version of a key, tombstones included, with its value (memory or disk)."""
        return self.lookup.item(self.id, key)

    def pending(self, key: bytes) -> Pending | None:
        """The key's prepare in flight."""
        return self.prepares.get(key)

    def all_pending(self) -> list[Pending]:
        """Every prepare in flight, by seqno."""
        return self.prepares.all()

    def collection_high_seqno(self, collections: Iterable[int]) -> int:
        """Highest seqno of a visible item or of an event of these collections; 0 if none."""
        with self.core.lock:
            return self.collections.high(frozenset(collections))

    def collection_item_count(self, collection: int) -> int:
        """Number of living keys in a collection (a scan of the index)."""
        return self.lookup.count_collection(self.id, collection)

    def random_key(self, choice: int, collection: int | None = None) -> bytes | None:
        """Some living key, picked by the number ``choice``; None if there is none."""
        return self.lookup.random_key(self.id, choice, collection)

    # -- replicas -------------------------------------------------------------------------------

    def receive_snapshot(
        self,
        snapshot: SnapshotRange,
        *,
        new_checkpoint: bool,
        from_disk: bool,
        high_completed_seqno: int = 0,
        max_visible_seqno: int = 0,
        purge_seqno: int = 0,
    ) -> None:
        """The range of the items to come, persisted with them.

        A new checkpoint is opened when asked or on a change memory <-> disk; else the open one is
        extended. A marker that comes inside a snapshot continues it, whatever it asks: a reader
        that stands in it is told anew where it ends.
        """
        with self.core.lock:
            self.check_exists()
            before = self.received
            told = Received(
                snapshot.start,
                snapshot.end,
                from_disk,
                self.complete_seqno,
                high_completed_seqno,
                max_visible_seqno,
            )
            if before is not None and self.high_seqno < before.end:
                self._continue_snapshot(before.continued(told), before)
            else:
                self.received = told
                changed = before is None or before.from_disk != from_disk
                if new_checkpoint or changed:
                    self.close_checkpoint(start=snapshot.start)
            received = self.received
            assert received is not None
            if received.from_disk:
                self.disk_checkpoints.add(self.checkpoint_id)
            self.unsettled.add(received.complete_before, received.end)
            if purge_seqno > self.purge_seqno:
                self.purge_seqno = purge_seqno
                self.record_changed = True
            self._keep_told(received)

    def _keep_told(self, received: Received) -> None:
        """Put what was told into the journal; lock held."""
        self.row[at.V_RECEIVING] = at.RECEIVING_TOLD
        self.core.append_control(received.to_frame(self.id))
        self.core.received_changed.add(self.id)

    def _continue_snapshot(self, whole: Received, before: Received) -> None:
        self.received = whole
        if whole.end != before.end or whole.from_disk != before.from_disk:
            # Readers were promised an end that is none: they come back by the disk.
            self.core.drop_cursors(self.id)
            self.core.told[self.id] = False

    def finish_snapshot(self) -> None:
        """The snapshot ends where we stand (a marker without a range was followed by the next)."""
        with self.core.lock:
            told = self.received
            if told is not None and self.high_seqno < told.end:
                told.end = self.high_seqno
                self.unsettled.over(self.high_seqno)
                self._keep_told(told)
        self.core.announce(self.id)

    def snapshot_reached(self) -> None:
        """Call after items were applied: draws the conclusions of a snapshot that is now whole."""
        told = self.received
        if told is None or not told.from_disk or self.high_seqno < told.end:
            return
        with self.core.lock:
            self.settled_prepared = max(self.settled_prepared, told.end)
            if told.high_completed > self.completed_floor:
                self.completed_floor = told.high_completed
                self.record_changed = True
                self.prepares.completed_up_to(told.high_completed, told.end)
                self.note_prepares()

    def receive_run(
        self, frames: memoryview, *, opaque: int, snapshot: SnapshotRange, collections: bool
    ) -> tuple[int, int]:
        """Apply the longest prefix of plain data frames with this opaque: (bytes, frames).

        Plain: 57, 58 and 59 of this vbucket with magic 80, whole, in order, inside ``snapshot`` and
        free of extended metadata. Stops before the first other frame; the owner looks at that one.
        Without ``collections`` keys get the default collection's prefix. StoreFull when there is no
        room for the first frame.
        """
        if len(self.prepares):
            return 0, 0
        done = receive_run(self, frames, opaque=opaque, snapshot=snapshot, collections=collections)
        if done[1]:
            self.snapshot_reached()
        return done

    def apply_parts(self, parts: Parts) -> None:
        """Apply one received item that its owner has checked; see `apply_frames`."""
        apply_parts(self, parts)
        self.snapshot_reached()

    def apply_frames(self, frames: bytes | memoryview) -> int:
        """Apply whole dcp-7 data frames (57 58 59 5f 60 62 63 64) as received; the number applied.

        Seqno, rev, CAS and expiry of the frames are kept. All are checked before any is applied:
        a seqno that does not rise or lies outside the received snapshot is a ValueError.
        """
        return apply_frames(self, frames)

    # -- streaming ------------------------------------------------------------------------------

    def open_cursor(self, name: str, *, after: int, droppable: bool = True) -> Cursor:
        """Register a reader that has everything up to ``after``; see ``Cursor.gap_end``."""
        with self.core.lock:
            self.check_exists()
            return Cursor(self, name, after=after, droppable=droppable)

    def backfill(
        self,
        *,
        after: int,
        transform: Transform,
        last: int | None = None,
        all_versions: bool = False,
        forgiven_purge: int = 0,
    ) -> Backfill:
        """Open a consistent view of what is persisted above ``after``.

        ``last`` leaves out items above it (still as seen at the view's end). ``all_versions``
        yields superseded versions too, as far as they are kept (`history_start_seqno`). A purge
        seqno above ``after`` (and ``after`` > 0) gives a view whose outcome is PURGED at once,
        unless it is at most ``forgiven_purge``, the one the reader was accepted with.
        """
        with self.core.lock:
            self.check_exists()
            return Backfill(
                self,
                after=after,
                transform=transform,
                last=last,
                all_versions=all_versions,
                forgiven_purge=forgiven_purge,
            )

    def close_checkpoint(self, *, start: int | None = None) -> int:
        """Close the open checkpoint if it has items; the id of the one now open."""
        with self.core.lock:
            begins = self.high_seqno + 1 if start is None else start
            if self.row[at.V_CHECKPOINT_ITEMS]:
                self._remember_checkpoint()
                open_checkpoint(self.core.tables.vbuckets, self.id, begins)
            else:
                self.row[at.V_CHECKPOINT_START] = begins
            return self.checkpoint_id

    def _remember_checkpoint(self) -> None:
        """Keep what the items of the checkpoint that closes do not tell; lock held."""
        tables, last, first = self.core.tables, self.row[at.V_LAST], self.row[at.V_FIRST]
        if last and tables.items[tables.item_row(last), at.I_SEQNO] < self.high_seqno:
            self.checkpoint_ends[self.checkpoint_id] = self.high_seqno
        oldest = int(tables.items[tables.item_row(first), at.I_TAG]) >> 16 if first else 0
        if self.disk_checkpoints and min(self.disk_checkpoints) < oldest:
            self.disk_checkpoints = {one for one in self.disk_checkpoints if one >= oldest}
        if self.checkpoint_ends and min(self.checkpoint_ends) < oldest:
            kept = {one: end for one, end in self.checkpoint_ends.items() if one >= oldest}
            self.checkpoint_ends = kept

    def consistent_end(self, checkpoint: int, first: int, last: int) -> int:
        """Where a reader of memory is consistent again; ``first``..``last`` is there now.

        0: it must wait, because what it would be sent may be left out later.
        """
        told = self.received
        if checkpoint != self.checkpoint_id:
            return self.checkpoint_ends.get(checkpoint, last)
        if told is None or last >= told.end:
            return last
        if first <= told.complete_before:
            return told.complete_before
        return 0 if told.joined and self.high_seqno < told.end else told.end

    def disk_end(self, after: int) -> int:
        """Where a view of the disk for a reader at ``after`` ends: at the end of the last snapshot
        that is persisted whole, if it can still be shown, else at the persisted seqno."""
        told, persisted = self.persisted_received, self.persisted_seqno
        if told is None or persisted >= told.end:
            return persisted
        whole = told.complete_before
        if after < whole and self.rewind_seqno <= whole:
            return whole
        received = self.received
        joined = received is not None and received.joined and self.high_seqno < received.end
        return after if joined and whole <= after and self.memory_seqno <= after else persisted

    def consistent_disk_end(self, end: int) -> int:
        """Where a reader of the disk is consistent whose view ends at ``end``."""
        told = self.persisted_received
        return told.end if told is not None and told.complete_before < end < told.end else end

    def last_passing(self, transform: Transform, end: int) -> int:
        """The last seqno up to ``end`` that a reader of the disk gets; 0 if none."""
        return last_passing(self, transform, end)

    def on_persisted(self, seqno: int, callback: Callable[[bool], None]) -> None:
        """Call back once: True when ``seqno`` is durable, False when it never will be (rolled
        back, deleted, closed). Called at once when it already is; else on the committing thread."""
        with self.core.lock:
            if seqno > self.persisted_seqno and self.exists and not self.core.closed:
                self.waiting.add(seqno, callback)
                self.core.waited_for.add(self.id)
                return
        callback(seqno <= self.persisted_seqno)

    # -- history --------------------------------------------------------------------------------

    def set_state(self, state: VBucketState, *, takeover: bool = False) -> None:
        """Change the state, durably; becoming active without takeover begins a new branch."""
        with self.core.structure:
            with self.core.lock:
                self.check_exists()
                promoted = state is VBucketState.ACTIVE and self.state is not VBucketState.ACTIVE
                if promoted and not takeover:
                    self.begin_branch(
                        self.failover_log.promoted(
                            self.core.new_branch(), complete_end=Seqno(self.complete_seqno)
                        )
                    )
                if promoted:
                    self._stop_receiving()
                self.row[at.V_STATE] = int(state)
                self.record_changed = True
            self.core.commit_now()
        self.core.announce(self.id)

    def _stop_receiving(self) -> None:
        """What is here is the truth from now on; lock held."""
        if self.received is not None:
            self.core.append_control(over_frame(self.id, self.high_seqno))
        self.received = None
        self.unsettled.over(self.high_seqno)
        self.core.received_changed.add(self.id)
        self.row[at.V_RECEIVING] = 0
        self.close_checkpoint()

    def begin_branch(self, log: FailoverLog) -> None:
        """Take a log; durable with the next commit. Lock held."""
        self.failover_log = log
        self.row[at.V_BRANCH] = signed(log.newest.uuid)
        self.record_changed = True

    def replace_failover_log(self, log: FailoverLog, *, durably: bool = True) -> None:
        """Take the producer's log as our own (a replica's stream was accepted).

        It is durable afterwards, or with the next commit: never later than an item that follows.
        """
        if not durably:
            with self.core.lock:
                self.check_exists()
                self.begin_branch(self.failover_log.replaced_by(log))
            self.core.wake.set()
            return
        with self.core.structure:
            with self.core.lock:
                self.check_exists()
                self.begin_branch(self.failover_log.replaced_by(log))
            self.core.commit_now()

    def set_manifest(self, manifest: dict[str, object]) -> None:
        """Keep the collections manifest, durable with the next commit."""
        with self.core.lock:
            self.check_exists()
            self.manifest = manifest
            self.record_changed = True
        self.core.wake.set()

    def rollback(
        self, to: int, *, as_replica: bool = False, unless: Callable[[], bool] | None = None
    ) -> int:
        """Forget everything above ``to`` (replicas), durably; the high seqno reached.

        That is the greatest boundary at or below ``to`` when its state can still be rebuilt, else
        0: the vbucket is empty and has a new history. Cursors are dropped, open views end as
        ROLLED_BACK, waiting callbacks get False. ``as_replica``: StoreError when it is active; a
        copy may be promoted while its rollback waits for a thread, and then it is the truth.
        ``unless`` is asked when the wait is over, and again when no change can come in between any
        more; StoreError when nobody wants it any longer.
        """
        wanted = to

        def check() -> None:
            if unless is not None and unless():
                raise StoreError(
                    f"the rollback of vbucket {self.id} to {wanted} is no longer wanted"
                )

        with self.core.structure:
            self.check_exists()
            check()
            if as_replica and self.state is VBucketState.ACTIVE:
                raise StoreError(f"vbucket {self.id} is active; only a replica rolls back")
            to = self.unsettled.boundary(min(to, self.high_seqno))
            if to >= self.high_seqno:
                return self.high_seqno
            reached = to if to >= self.rewind_seqno else 0
            log = self.failover_log.rolled_back(Seqno(reached), uuid=self.core.new_branch())
            self.core.truncate(self.id, reached, lambda: self.begin_branch(log), check)
        self.core.announce(self.id)
        return reached

    def failover(self, seqno: int) -> FailoverLog:
        """Lose everything above ``seqno`` on purpose and begin a new branch there, durably.

        ValueError when the state at ``seqno`` can no longer be rebuilt (see ``rewind_seqno``).
        """
        with self.core.structure:
            self.check_exists()
            known = 0 <= seqno <= self.high_seqno and self.unsettled.boundary(seqno) == seqno
            if not known or 0 < seqno < self.rewind_seqno:
                raise ValueError(
                    f"vbucket {self.id} cannot fail over to seqno {seqno}, allowed 0 and "
                    f"{self.rewind_seqno}..{self.high_seqno}"
                )
            log = self.failover_log.promoted(self.core.new_branch(), complete_end=Seqno(seqno))
            self.core.truncate(self.id, seqno, lambda: self.begin_branch(log), None)
        self.core.announce(self.id)
        return log


def _range(received: Received | None, high: int) -> SnapshotRange:
    if received is None or received.end <= high:
        return SnapshotRange.at(Seqno(high))
    return SnapshotRange(Seqno(received.start), Seqno(received.end))
