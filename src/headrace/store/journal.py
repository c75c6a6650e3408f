"""Group commits and sealing: how what was accepted becomes durable, and then moves into blocks.

A commit writes the arena's bytes since the last one, all vbuckets together, as one journal entry
(one per segment they touch), with the records that changed, in one batch: one sync. When the
journal exceeds its limit a sealing round begins: step by step, each riding on a commit, the frames
of some vbuckets are copied into blocks; when all are, the journal entries below the round's start
are deleted and the arena may drop those bytes. A vbucket's record says below
which commit its frames are sealed, so a crash between steps neither loses nor repeats a frame.

What a replica gets in disk snapshots holds each key once, so waiting in the journal would not make
it less. When enough of it has come together for large blocks it is sealed at once, in the commit
that makes it durable, and written once instead of twice.

Rules. What a commit captures is captured under the lock, at once: positions, high seqnos, records.
Bytes below the captured position never change, so they are copied into blocks
(`headrace.store.sealing`), checksummed and written outside the lock. A frame may be left out of its
block only if the version that superseded it is durable, no open view can see it, and it is older
than the rewind window (and no history is kept).

Imports: store.blocks, store.core, store.disk, store.layout, store.model, store.records,
store.restore, store.sealing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.store import layout as at
from headrace.store.blocks import refresh_rows
from headrace.store.core import COMMIT_SHARE
from headrace.store.disk import Batch, Table
from headrace.store.model import CommitReport
from headrace.store.records import JOURNAL_KEY, pack_journal, pack_meta, vbucket_key
from headrace.store.restore import record_of
from headrace.store.sealing import STEP_BYTES, STEP_SHARE, Packer

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.store.core import Core
    from headrace.store.native import Words
    from headrace.store.replica import Received
    from headrace.store.sealing import Plan, Sealed
    from headrace.store.vbucket import VBucket

BULK_BYTES_MIN: Final = 2 * 1024 * 1024
"""Bytes of disk snapshots that are sealed without having been in the journal: at least these,"""
BULK_BYTES_MAX: Final = 32 * 1024 * 1024
"""and at most these, or the same part of the quota as a commit may hold besides, halved:"""
BULK_SHARE: Final = 2 * COMMIT_SHARE
"""they are held as blocks and as the disk's copy of them."""
BULK_RECORD_BYTES: Final = 64 * 1024
"""Bytes per record that has to be written with them: else the records cost more than they save."""


@dataclass(slots=True)
class Round:
    """A sealing round: everything below a position, up to and including a commit."""

    position: int
    commit: int
    remaining: list[int]


@dataclass(slots=True)
class Capture:
    """The state one commit makes durable."""

    number: int
    position: int
    ordinal: int
    highs: Words
    received: dict[int, Received | None]
    changed: list[VBucket]
    records: dict[int, bytes]
    planned: list[tuple[Plan, dict[str, object]]] = field(default_factory=list)
    """What is sealed with it, and the record each vbucket will have but for that."""
    sealed: list[Sealed] = field(default_factory=list)
    round_begins: bool = False
    round_ends: bool = False


class Journal:
    """Commits and seals for one bucket."""

    def __init__(self, core: Core, vbuckets: dict[int, VBucket]) -> None:
        self._core = core
        self._vbuckets = vbuckets
        self.packer = Packer(core)
        self.next_commit = 1
        self.entries: deque[tuple[bytes, int]] = deque()
        """Keys and sizes of the journal entries on disk."""
        self.bytes = 0
        self.enabled = True
        """False while persistence is stopped."""
        self._under_way: int | None = None
        """The position a commit on its way to the disk will reach."""
        self._round: Round | None = None
        self._committed_ordinal = 0
        self.add_more: Callable[[Batch], None] = lambda _batch: None
        """Adds what the bucket itself wants written with the next commit."""

    @property
    def is_sealing(self) -> bool:
        """Whether a sealing round is under way."""
        return self._round is not None

    def loaded(self, commit: int, key: bytes, size: int) -> None:
        """A journal entry was found when the bucket was opened."""
        self.entries.append((key, size))
        self.bytes += size
        self.next_commit = max(self.next_commit, commit + 1)

    def start(self) -> None:
        """Everything in the arena is in the journal already: loading is done."""
        self._core.committed_position = self._core.arena.high
        self._committed_ordinal = int(self._core.tables.state[at.S_HIGH])

    # -- committing -----------------------------------------------------------------------------

    def commit(self, *, seal: bool | None = None, forced: bool = False) -> CommitReport:
        """Make everything accepted durable.

        ``seal`` True begins a sealing round if none is on, False does no step of one, None goes by
        the journal's size. ``forced``: also while persistence is stopped (a vbucket is truncated or
        changes state).
        """
        core = self._core
        with core.structure:
            if not (self.enabled or forced):
                return CommitReport(frames=0, bytes_journalled=0, bytes_sealed=0)
            core.wake.clear()
            with core.lock:
                capture = self._capture(seal=seal)
            batch = Batch()
            self._under_way = capture.position
            try:
                self._pack(capture)
                entries = self._journal(batch, capture)
                sealed_bytes = self._blocks(batch, capture)
                for number, record in capture.records.items():
                    batch.put(Table.META, vbucket_key(number), record)
                self.add_more(batch)
                if len(batch):
                    core.disk.commit(batch)
            except BaseException:
                self._undo(capture)
                raise
            finally:
                self._under_way = None
            with core.lock:
                self._install(capture, entries)
                ready = self._ready()
            if self._round is None and not core.wake.is_set():
                self.packer.let_go()
        for callback in ready:
            callback(True)
        return CommitReport(
            frames=capture.ordinal - self._swap_ordinal(capture.ordinal),
            bytes_journalled=sum(size for _, size in entries),
            bytes_sealed=sealed_bytes,
        )

    def _swap_ordinal(self, ordinal: int) -> int:
        before, self._committed_ordinal = self._committed_ordinal, ordinal
        return before

    def _capture(self, *, seal: bool | None) -> Capture:
        core = self._core
        changed = [vbucket for vbucket in self._vbuckets.values() if vbucket.record_changed]
        capture = Capture(
            number=self.next_commit,
            position=core.arena.high,
            ordinal=int(core.tables.state[at.S_HIGH]),
            highs=core.tables.vbuckets[:, at.V_HIGH].copy(),
            received={
                number: self._vbuckets[number].received
                for number in core.received_changed
                if number in self._vbuckets
            },
            changed=changed,
            records={},
        )
        for vbucket in changed:
            vbucket.record_changed = False
            record = record_of(vbucket, high=int(capture.highs[vbucket.id]))
            capture.records[vbucket.id] = pack_meta(vbucket_key(vbucket.id), record)
        core.received_changed.clear()
        if seal is None:
            seal = self.is_sealing or self.bytes > core.settings.journal_bytes_max
            if not seal and self._is_bulk():
                self._seal_step(capture, None)
        if seal:
            self._seal_step(capture, min(STEP_BYTES, core.settings.memory_quota // STEP_SHARE))
        return capture

    def _is_bulk(self) -> bool:
        """Whether all that is not sealed came in disk snapshots, and makes large blocks."""
        core = self._core
        size = core.arena.high - core.sealed_position
        if not BULK_BYTES_MIN <= size <= self._bulk_bytes_max:
            return False
        waiting = self._waiting()
        if size < len(waiting) * BULK_RECORD_BYTES:
            return False
        rows = core.tables.vbuckets[waiting]
        news = waiting[rows[:, at.V_HIGH] > rows[:, at.V_SEALED]].tolist()
        return size >= len(news) * core.settings.block_bytes // 2 and all(
            self._vbuckets[number].receives_disk for number in news if number in self._vbuckets
        )

    @property
    def _bulk_bytes_max(self) -> int:
        return min(BULK_BYTES_MAX, self._core.settings.memory_quota // BULK_SHARE)

    def frees_soon(self, position: int) -> bool:
        """Whether a commit under way will let memory go before what comes after it, up to an arena
        position, is more than the next one seals at once."""
        reached = self._under_way
        return reached is not None and position - reached <= self._bulk_bytes_max

    def _waiting(self) -> Words:
        """The vbuckets a sealing round has to do with: also those without items, because what a
        replica was told lies in the journal, too."""
        rows = self._core.tables.vbuckets
        told = rows[:, at.V_RECEIVING] == at.RECEIVING_TOLD
        news = (rows[:, at.V_HIGH] > rows[:, at.V_SEALED]) | told
        return np.flatnonzero(news & (rows[:, at.V_STATE] > 0))

    def _pack(self, capture: Capture) -> None:
        """Copy what is to be sealed into blocks; no lock but the structure's is held."""
        if capture.planned:
            self.packer.begin(capture.position - self._core.sealed_position)
        for plan, record in capture.planned:
            sealed = self.packer.pack(plan)
            record["sealed"] = sealed.seqno
            record["rewind"] = sealed.rewind
            record["history_floor"] = sealed.history_floor
            key = vbucket_key(plan.vbucket.id)
            capture.records[plan.vbucket.id] = pack_meta(key, record)
            capture.sealed.append(sealed)

    def _journal(self, batch: Batch, capture: Capture) -> list[tuple[bytes, int]]:
        core, entries = self._core, []
        if capture.round_begins and capture.round_ends:
            return []  # the same batch holds every frame in a block
        runs = core.arena.runs(core.committed_position, capture.position)
        for part, (segment, start, stop) in enumerate(runs):
            key = JOURNAL_KEY.pack(capture.number, part)
            value = pack_journal(capture.number, part, segment.view[start:stop])
            batch.put(Table.JOURNAL, key, value)
            entries.append((key, len(value)))
        return entries

    def _blocks(self, batch: Batch, capture: Capture) -> int:
        written = 0
        for sealed in capture.sealed:
            for packed in sealed.blocks:
                batch.put(Table.BLOCKS, packed.block.key, packed.value)
                written += len(packed.value)
        if capture.round_ends and self._round is not None:
            last = JOURNAL_KEY.pack(self._round.commit + 1, 0)
            for key, _ in self.entries:
                if key < last:
                    batch.delete(Table.JOURNAL, key)
        return written

    def _undo(self, capture: Capture) -> None:
        core = self._core
        with core.lock:
            for vbucket in capture.changed:
                vbucket.record_changed = True
            core.received_changed.update(capture.received)
            for plan, _ in capture.planned:
                if plan.vbucket.row[at.V_RECEIVING]:
                    plan.vbucket.row[at.V_RECEIVING] = at.RECEIVING_TOLD
            if capture.round_begins:
                # Its frames will be journalled under a later number: the round's is not true.
                self._round = None
                self.next_commit = capture.number
            elif self._round is not None:
                self._round.remaining.extend(plan.vbucket.id for plan, _ in capture.planned)
        core.wake.set()

    def _install(self, capture: Capture, entries: list[tuple[bytes, int]]) -> None:
        core = self._core
        core.committed_position = capture.position
        core.tables.vbuckets[:, at.V_PERSISTED] = capture.highs
        for number, received in capture.received.items():
            if number in self._vbuckets:
                self._vbuckets[number].persisted_received = received
        self.entries.extend(entries)
        self.bytes += sum(size for _, size in entries)
        if entries:
            self.next_commit = capture.number + 1
        for sealed in capture.sealed:
            self._install_sealed(sealed)
        if capture.round_ends and self._round is not None:
            self._end_round(self._round)
        core.release(force=False)

    def _ready(self) -> list[Callable[[bool], None]]:
        core, ready = self._core, []
        for number in list(core.waited_for):
            vbucket = self._vbuckets.get(number)
            if vbucket is not None:
                ready.extend(vbucket.waiting.up_to(vbucket.persisted_seqno))
            if vbucket is None or not len(vbucket.waiting):
                core.waited_for.discard(number)
        return ready

    # -- sealing --------------------------------------------------------------------------------

    def seal(self) -> int:
        """Move every accepted frame into blocks now; bytes moved."""
        moved = self.commit(seal=True).bytes_sealed
        while self._round is not None and self.enabled:
            moved += self.commit().bytes_sealed
        return moved

    def _seal_step(self, capture: Capture, step: int | None) -> None:
        """Choose vbuckets to seal until ``step`` bytes are reached, or all that wait (None)."""
        core = self._core
        if self._round is None:
            self._round = Round(capture.position, capture.number, self._waiting().tolist())
            capture.round_begins = True
            # The round's own entry must have a number even if nothing is journalled with it.
            self.next_commit = capture.number + 1
        current, taken = self._round, 0
        core.flush_marks()
        while current.remaining and (step is None or taken < step):
            vbucket = self._vbuckets.get(current.remaining.pop())
            if vbucket is None:
                continue
            floor = 0
            if not core.settings.keeps_history:
                floor = self.floor_of(vbucket, int(capture.highs[vbucket.id]))
            plan = self.packer.plan(
                vbucket, current.position, floor=floor, measured=step is not None
            )
            taken += plan.size
            if vbucket.row[at.V_RECEIVING]:
                vbucket.row[at.V_RECEIVING] = at.RECEIVING_SEALED  # its record tells of it
            record = record_of(
                vbucket,
                high=int(capture.highs[vbucket.id]),
                sealed_commit=max(vbucket.sealed_commit, current.commit + 1),
            )
            capture.planned.append((plan, record))
        capture.round_ends = not current.remaining

    def floor_of(self, vbucket: VBucket, high: int) -> int:
        """Versions superseded at or below this seqno need not be kept."""
        floor = max(0, high - self._core.settings.rewind_seqnos)
        return min([floor, *(view.end for view in vbucket.views)])

    def _install_sealed(self, sealed: Sealed) -> None:
        vbucket, tables = sealed.vbucket, self._core.tables
        changed = vbucket.row[at.V_SUPERSEDED] != sealed.superseded
        for packed in sealed.blocks:
            if changed:
                refresh_rows(tables.items, packed.ordinal, packed.block.first, packed.block.rows)
            self._core.blocks[vbucket.id].append(packed.block)
        vbucket.row[at.V_SEALED] = sealed.seqno
        vbucket.sealed_ordinal = sealed.ordinal
        vbucket.rewind_seqno = sealed.rewind
        vbucket.history_floor = sealed.history_floor
        if self._round is not None:
            vbucket.sealed_commit = max(vbucket.sealed_commit, self._round.commit + 1)

    def _end_round(self, ended: Round) -> None:
        last = JOURNAL_KEY.pack(ended.commit + 1, 0)
        while self.entries and self.entries[0][0] < last:
            self.bytes -= self.entries.popleft()[1]
        self._core.sealed_position = ended.position
        self._round = None
