"""What may be forgotten: dead versions and old tombstones.

Blocks are rewritten run by run without the frames nobody can ask for any more: versions superseded
at or below the floor (durable, seen by no open view, older than the rewind window, outside of
retained history), and tombstones and aborts older than the purge age, except the item at the high
seqno. The highest tombstone removed becomes the purge seqno, in the same batch. A run whose frames
all stay and whose blocks are not small is left alone.

A tombstone may only go when every older version of its key is gone, or a restart would find that
version alive. So the highest seqno to be purged is found first, all versions superseded at or below
it go too, and runs are rewritten from the oldest on.

Imports: store.blocks, store.disk, store.journal, store.layout, store.model, store.native,
store.records, store.restore.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.errors import CorruptRecord
from headrace.store import layout as at
from headrace.store.blocks import FRAME_BYTES_MIN, Block, copy_rows
from headrace.store.disk import Batch, Table
from headrace.store.index import find_key, key_hash
from headrace.store.model import CompactionReport
from headrace.store.native import address_of, bytes_at, kernel, load8, load16, load32, load64
from headrace.store.records import BLOCK_HEADER, fill_block_header, pack_meta, vbucket_key
from headrace.store.restore import record_of

if TYPE_CHECKING:
    from headrace.store.disk import Reader
    from headrace.store.journal import Journal
    from headrace.store.native import Bytes, Halves, Words
    from headrace.store.vbucket import VBucket

RUN_BYTES: Final = 16 * 1024 * 1024
"""Frames rewritten by one batch."""
SMALL_SHARE: Final = 4
"""Two neighbours below block size / SMALL_SHARE are worth joining."""

# Places in the numbers the kernels work with.
N_FLOOR: Final = 0
"""Versions superseded at or below this seqno may go."""
N_HISTORY: Final = 1
"""Versions at or above this seqno are retained history."""
N_PURGE_TIME: Final = 2
N_PURGE_SEQNO: Final = 3
"""Tombstones above this seqno stay, whatever their age."""
N_PURGED: Final = 4
N_REWIND: Final = 5
N_DROPPED: Final = 6
N_TOMBSTONES: Final = 7
N_COLUMNS: Final = 8


@kernel
def may_purge(frame: int, seqno: int, numbers: Words) -> bool:
    """Whether a living frame is a tombstone or an abort that is old enough to go."""
    if seqno > numbers[N_PURGE_SEQNO]:
        return False
    opcode = load8(frame + at.OPCODE_AT)
    if opcode in (at.DELETION, at.EXPIRATION):
        return bool(load32(frame + at.DELETE_TIME_AT) < numbers[N_PURGE_TIME])
    return bool(opcode == at.ABORT and load32(frame + at.OPAQUE_AT) < numbers[N_PURGE_TIME])


@kernel
def last_purgeable(source: int, rows: Halves, first: int, numbers: Words) -> int:
    """The last seqno in a block that may be purged; 0 if none."""
    row = len(rows) - 1
    while row >= 0:
        seqno = first + rows[row, 0]
        if rows[row, 2] == 0 and may_purge(source + rows[row, 1], seqno, numbers):
            return int(seqno)
        row -= 1
    return 0


@kernel
def choose_rows(
    source: int, rows: Halves, first: int, numbers: Words, keep: Words, purged: Words, count: int
) -> int:
    """Decide which frames of a block stay; ``purged`` gets the seqnos of tombstones that go.

    Returns how many purged tombstones are noted now.
    """
    for row in range(len(rows)):
        seqno = first + rows[row, 0]
        superseded = rows[row, 2]
        keep[row] = 1
        if superseded:
            if seqno + superseded <= numbers[N_FLOOR] and seqno < numbers[N_HISTORY]:
                keep[row] = 0
                numbers[N_REWIND] = max(numbers[N_REWIND], seqno + superseded)
                numbers[N_DROPPED] = max(numbers[N_DROPPED], seqno)
        elif may_purge(source + rows[row, 1], seqno, numbers):
            keep[row] = 0
            numbers[N_PURGED] = max(numbers[N_PURGED], seqno)
            numbers[N_TOMBSTONES] += 1
            purged[count] = seqno
            count += 1
    return count


@kernel
def forget_purged(
    slots: Words,
    entries: Words,
    state: Words,
    vbucket: int,
    source: int,
    rows: Halves,
    keep: Words,
    found_rows: Words,
    count: int,
) -> int:
    """Note the index rows of purged tombstones that are still their key's newest version."""
    for row in range(len(rows)):
        if keep[row] or rows[row, 2]:
            continue
        frame = source + rows[row, 1]
        if load8(frame + at.OPCODE_AT) == at.ABORT:
            continue
        key = frame + at.HEADER + load8(frame + at.EXTRAS_SIZE_AT)
        size = load16(frame + at.KEY_SIZE_AT)
        entry = find_key(
            slots, entries, state, vbucket, key, size, key_hash(state, vbucket, key, size)
        )
        if entry >= 0 and entries[entry, at.E_SEQNO] == load64(frame + at.SEQNO_AT):
            found_rows[count] = entry
            count += 1
    return count


@dataclass(slots=True)
class Purge:
    """Which tombstones may go: those deleted before a time and at or below a seqno."""

    before: int
    up_to_seqno: int


@dataclass(slots=True)
class _Run:
    """Neighbouring blocks that are rewritten together."""

    blocks: list[Block]
    values: list[memoryview]
    keeps: list[Words]


class Compaction:
    """Rewrites the blocks of one vbucket; the structure lock is held throughout."""

    def __init__(self, journal: Journal, vbucket: VBucket, purge: Purge) -> None:
        self._journal = journal
        self._vbucket = vbucket
        self._core = vbucket.core
        self._purge = purge
        self._purged: set[int] = set()

    def run(self) -> CompactionReport:
        """Compact the vbucket, run by run."""
        vbucket, core = self._vbucket, self._core
        blocks = core.blocks[vbucket.id]
        before = list(blocks.blocks)
        limits = self._limits()
        purged = place = 0
        while place < len(blocks.blocks):
            run = self._next_run(place)
            done, tombstones = self._rewrite(place, run, limits)
            place += done
            purged += tombstones
        after = blocks.blocks
        return CompactionReport(
            vbucket=vbucket.id,
            frames_before=sum(len(block.rows) for block in before),
            frames_after=sum(len(block.rows) for block in after),
            bytes_before=sum(block.bytes_on_disk for block in before),
            bytes_after=sum(block.bytes_on_disk for block in after),
            tombstones_purged=purged,
            purge_seqno=vbucket.purge_seqno,
        )

    def _limits(self) -> Words:
        """What may go, as of now. A view opened later sees nothing of it."""
        vbucket, core = self._vbucket, self._core
        with core.lock:
            core.flush_marks()
            persisted = vbucket.persisted_seqno
            # A reader from 0 was told what is purged; what it has not passed yet is kept for it: it
            # may be a replica, which answers for its own purge seqno.
            views = [view.end if view.after else view.read_seqno for view in vbucket.views]
            pending = [pending.seqno - 1 for pending in vbucket.all_pending()]
            numbers = np.zeros(N_COLUMNS, np.int64)
            numbers[N_FLOOR] = self._journal.floor_of(vbucket, persisted)
            numbers[N_HISTORY] = retained_from(vbucket)
            numbers[N_PURGE_TIME] = self._purge.before
            numbers[N_PURGE_SEQNO] = min(
                [
                    self._purge.up_to_seqno,
                    persisted,
                    vbucket.high_seqno - 1,
                    int(numbers[N_HISTORY]) - 1,
                    *views,
                    *pending,
                    *self._received(),
                ]
            )
            blocks = list(core.blocks[vbucket.id].blocks)
        with core.disk.read() as reader:
            for block in reversed(blocks):
                source = address_of(bytes_at(self._value(reader, block))) + BLOCK_HEADER.size
                last = last_purgeable(source, block.rows, block.first, numbers)
                if last:
                    numbers[N_FLOOR] = max(numbers[N_FLOOR], last)
                    break
        return numbers

    def _received(self) -> list[int]:
        """On a replica, tombstones of the open checkpoint stay: readers of memory may meet them."""
        row = self._vbucket.row
        return [int(row[at.V_CHECKPOINT_START]) - 1] if row[at.V_RECEIVING] else []

    def _value(self, reader: Reader, block: Block) -> memoryview:
        value = reader.get(Table.BLOCKS, block.key)
        if value is None or not block.matches(value):
            path = self._core.disk.path
            raise CorruptRecord(f"{path}: block {block.key.hex()} is gone", path=path)
        return value

    def _next_run(self, place: int) -> list[Block]:
        found: list[Block] = []
        size = 0
        for block in self._core.blocks[self._vbucket.id].blocks[place:]:
            if found and size + block.size > RUN_BYTES:
                break
            found.append(block)
            size += block.size
        return found

    def _rewrite(self, place: int, run: list[Block], limits: Words) -> tuple[int, int]:
        """Rewrite one run: (blocks there are now in its place, tombstones purged)."""
        core, vbucket = self._core, self._vbucket
        numbers = limits.copy()
        numbers[N_REWIND] = vbucket.rewind_seqno
        numbers[N_DROPPED] = vbucket.history_floor
        numbers[N_PURGED] = vbucket.purge_seqno
        with core.disk.read() as reader:
            with core.lock:
                core.flush_marks()
                chosen = self._choose(reader, run, numbers)
                gone_rows = self._find_purged(run, chosen)
            if not self._pays(run, chosen):
                return len(run), 0
            fresh = self._copy(run, chosen)
        batch = Batch()
        for block in run:
            batch.delete(Table.BLOCKS, block.key)
        for block, value in fresh:
            batch.put(Table.BLOCKS, block.key, value)
        with core.lock:
            record = record_of(
                vbucket,
                high=vbucket.persisted_seqno,
                purge=int(numbers[N_PURGED]),
                rewind=max(int(numbers[N_REWIND]), int(numbers[N_PURGED])),
                history_floor=int(numbers[N_DROPPED]),
            )
        key = vbucket_key(vbucket.id)
        batch.put(Table.META, key, pack_meta(key, record))
        core.disk.commit(batch)
        with core.lock:
            self._install(place, run, fresh, numbers, gone_rows)
        return len(fresh), int(numbers[N_TOMBSTONES])

    def _choose(self, reader: Reader, run: list[Block], numbers: Words) -> _Run:
        chosen = _Run(run, [], [])
        purged = np.zeros(sum(len(block.rows) for block in run), np.int64)
        count = 0
        for block in run:
            value = self._value(reader, block)
            keep = np.zeros(len(block.rows), np.int64)
            source = address_of(bytes_at(value)) + BLOCK_HEADER.size
            count = choose_rows(source, block.rows, block.first, numbers, keep, purged, count)
            chosen.values.append(value)
            chosen.keeps.append(keep)
        self._purged = set(purged[:count].tolist())
        return chosen

    def _find_purged(self, run: list[Block], chosen: _Run) -> list[tuple[int, int]]:
        """Index rows of purged tombstones, with the seqno they must still have; lock held."""
        tables = self._core.tables
        if not self._purged:
            return []
        rows = np.zeros(len(self._purged), np.int64)
        count = 0
        for block, value, keep in zip(run, chosen.values, chosen.keeps, strict=True):
            count = forget_purged(
                tables.slots,
                tables.entries,
                tables.state,
                self._vbucket.id,
                address_of(bytes_at(value)) + BLOCK_HEADER.size,
                block.rows,
                keep,
                rows,
                count,
            )
        return [(row, int(tables.entries[row, at.E_SEQNO])) for row in rows[:count].tolist()]

    def _pays(self, run: list[Block], chosen: _Run) -> bool:
        small = self._core.settings.block_bytes // SMALL_SHARE
        joinable = any(left.size + right.size < small for left, right in pairwise(run))
        return joinable or any(not keep.all() for keep in chosen.keeps)

    def _copy(self, run: list[Block], chosen: _Run) -> list[tuple[Block, memoryview]]:
        """The frames that stay, in new blocks."""
        fresh: list[tuple[Block, memoryview]] = []
        writer = _BlockWriter(self._core.settings.block_bytes)
        for block, value, keep in zip(run, chosen.values, chosen.keeps, strict=True):
            frames = bytes_at(value)
            source = address_of(frames) + BLOCK_HEADER.size
            row = 0
            while row < len(block.rows):
                row = writer.add(source, block, keep, row)
                if row < len(block.rows):
                    fresh.append(writer.finish(self._vbucket.id, self._core.stamp()))
        if writer.count:
            fresh.append(writer.finish(self._vbucket.id, self._core.stamp()))
        return fresh

    def _install(
        self,
        place: int,
        run: list[Block],
        fresh: list[tuple[Block, memoryview]],
        numbers: Words,
        gone_rows: list[tuple[int, int]],
    ) -> None:
        core, vbucket = self._core, self._vbucket
        # Marks made since the rows were copied lie in the old rows: carry them over.
        core.flush_marks()
        old_seqnos = np.concatenate([b.first + b.rows[:, 0].astype(np.int64) for b in run])
        old_marks = np.concatenate([b.rows[:, 2] for b in run])
        for block, _ in fresh:
            seqnos = block.first + block.rows[:, 0].astype(np.int64)
            block.rows[:, 2] = old_marks[np.searchsorted(old_seqnos, seqnos)]
        blocks = core.blocks[vbucket.id]
        everything = blocks.blocks
        blocks.replace(
            [*everything[:place], *(b for b, _ in fresh), *everything[place + len(run) :]]
        )
        vbucket.purge_seqno = int(numbers[N_PURGED])
        vbucket.rewind_seqno = max(int(numbers[N_REWIND]), vbucket.purge_seqno)
        vbucket.history_floor = int(numbers[N_DROPPED])
        entries = core.tables.entries
        for row, seqno in gone_rows:
            word = int(entries[row, at.E_WORD])
            if word != -1 and word >> 48 == vbucket.id and entries[row, at.E_SEQNO] == seqno:
                vbucket.lookup.forget_row(vbucket.id, row)
        if gone_rows and not vbucket.row[at.V_RECEIVING]:
            # The index forgot them: a key that comes back must not share their snapshot.
            vbucket.close_checkpoint()
        vbucket.prepares.forget_aborts(self._purged)
        core.tables.tidy()


class _BlockWriter:
    """A block in the making."""

    def __init__(self, capacity: int) -> None:
        self._usual = capacity
        self._begin(capacity)

    def _begin(self, capacity: int) -> None:
        self._capacity = capacity
        self._value: Bytes = np.empty(BLOCK_HEADER.size + capacity, np.uint8)
        self._rows: Halves = np.empty((capacity // FRAME_BYTES_MIN + 1, 3), np.uint32)
        self.count = 0
        self._used = 0
        self._first = 0

    def add(self, source: int, block: Block, keep: Words, row: int) -> int:
        """Copy kept frames of a block from a row on, as many as fit; the row to go on at."""
        while True:
            self.count, self._used, self._first, row, too_large = copy_rows(
                source,
                block.size,
                block.first,
                block.rows,
                keep,
                row,
                address_of(self._value) + BLOCK_HEADER.size,
                self._capacity,
                self._rows,
                self.count,
                self._used,
                self._first,
            )
            if not too_large:
                return row
            self._begin(too_large)

    def finish(self, vbucket: int, stamp: int) -> tuple[Block, memoryview]:
        """The block as it is now; the next one is begun."""
        rows = self._rows[: self.count].copy()
        last = self._first + int(rows[-1, 0])
        block = Block(vbucket, self._first, last, self._used, stamp, rows, checked=False)
        value = memoryview(self._value)[: BLOCK_HEADER.size + self._used]  # type: ignore[arg-type]
        fill_block_header(value, count=len(rows), stamp=stamp, first=block.first, last=last)
        self._begin(self._usual)
        return block, value


def retained_from(vbucket: VBucket) -> int:
    """Dead versions from this seqno on are history to keep; lock held.

    By bytes: each vbucket has its share of the bucket's limit. By time: seqnos are as old as the
    CAS of the block's frames says, block by block.
    """
    core, settings = vbucket.core, vbucket.core.settings
    nothing = vbucket.high_seqno + 1
    if not settings.keeps_history:
        return nothing
    start = nothing
    share = settings.history_bytes // settings.vbuckets
    kept = 0
    oldest = core.clock() // 1_000_000_000 - settings.history_seconds
    for block in reversed(core.blocks[vbucket.id].blocks):
        kept += block.size
        too_much = settings.history_bytes and kept > share
        too_old = settings.history_seconds and _newest_second(vbucket, block) < oldest
        if too_much or too_old:
            break
        start = block.first
    return start


def _newest_second(vbucket: VBucket, block: Block) -> int:
    """When a block's last data frame was written, by its CAS; 0 if it has none."""
    with vbucket.core.disk.read() as reader:
        value = reader.get(Table.BLOCKS, block.key)
        if value is None or not block.matches(value):
            return 0
        for row in range(len(block.rows) - 1, -1, -1):
            start, _ = block.extent(row)
            place = BLOCK_HEADER.size + start + at.CAS_AT
            cas = int.from_bytes(value[place : place + 8], "big")
            if cas:
                return cas // 1_000_000_000
    return 0
