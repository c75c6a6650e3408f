"""What all parts of an open bucket share: tables, arena, blocks, cursors, locks, clock.

Two locks, always taken in this order: ``structure`` (commits, sealing, compaction, truncation: one
at a time, may wait for the disk) and ``lock`` (tables and arena: short, never waits for the disk,
except while a vbucket is truncated). A change takes only ``lock``.

Memory holds the newest part of the bucket's log: the arena with its items. A segment may be
dropped when everything in it is sealed into blocks and every cursor has passed it. Over its budget
the arena drops the cursors that hold it back, except those that may not be dropped.

Imports: errors, store.accept, store.arena, store.blocks, store.layout, store.native, store.output,
store.tables.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.errors import StoreError, StoreFull
from headrace.history import BRANCH_ID_BITS, BranchId
from headrace.store import layout as at
from headrace.store.accept import accept, supersede
from headrace.store.arena import Arena
from headrace.store.blocks import BlockList
from headrace.store.native import kernel
from headrace.store.output import BufferPool
from headrace.store.tables import MARKS_MAX, Tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.store.arena import Segment
    from headrace.store.disk import Disk
    from headrace.store.native import Words
    from headrace.store.settings import BucketSettings

RESERVE_AHEAD: Final = 1024
"""Changes the tables have room for after each growth."""
CURSORS_FIRST: Final = 64
COMMIT_SHARE: Final = 4
"""What a commit holds besides counts up to this part of the quota."""
ARENA_SHARE: Final = (2, 5)
"""The arena's part of what is left: tables grow by being copied, steps of sealing come on top."""
GROWTH_SHARE: Final = 8
"""The arena may exceed its part while a commit is under way, if this part of the quota is left."""
OUTPUTS_SHARE: Final = 8
"""Buffers for chunks may keep this part of the quota."""
OUTSIDE_SHARE: Final = 4
"""What an owner holds for readers counts up to this part of the quota."""
ARENA_SEGMENTS_MIN: Final = 4
"""Segments the arena may always have, whatever the quota leaves."""

# Columns of the cursor table.
C_VBUCKET: Final = 0
C_READ: Final = 1
C_STATE: Final = 2
C_COLUMNS: Final = 3
CURSOR_FREE: Final = 0
CURSOR_LIVE: Final = 1
CURSOR_PINNED: Final = 2
"""Live and not to be dropped."""
CURSOR_DROPPED: Final = 3


class Core:
    """The state behind a `Bucket`; see the module."""

    def __init__(
        self,
        settings: BucketSettings,
        disk: Disk,
        clock: Callable[[], int],
        entropy: Callable[[int], bytes],
    ) -> None:
        self.settings = settings
        self.disk = disk
        self.clock = clock
        self.entropy = entropy
        self.structure = threading.RLock()
        self.lock = threading.RLock()
        self.tables = Tables(settings, int.from_bytes(entropy(8), "big", signed=True))
        self.arena = Arena(settings.segment_bytes)
        self.blocks = [BlockList() for _ in range(settings.vbuckets)]
        self.cursors: Words = np.zeros((CURSORS_FIRST, C_COLUMNS), np.int64)
        self._free_cursors = list(range(CURSORS_FIRST - 1, -1, -1))
        self.told = [False] * settings.vbuckets
        """Whether the listener knows that a vbucket has news no cursor has looked at."""
        self.listener: Callable[[int], None] | None = None
        self.wake = threading.Event()
        """Set when something waits to be committed."""
        self.received_changed: set[int] = set()
        """Vbuckets that were told of a snapshot since the last commit."""
        self.waited_for: set[int] = set()
        """Vbuckets with callbacks that wait for durability."""
        self.committed_position = 0
        self.sealed_position = 0
        self.make_room: Callable[[int], None] = lambda _size: None
        self.commit_now: Callable[[], None] = lambda: None
        self.truncate: Callable[[int, int, Callable[[], None], Callable[[], None] | None], None] = (
            lambda *_: None
        )
        self.next_stamp = 1
        """Given to each block that is written, so that no two with one key are taken for
        another."""
        self.closed = False
        self.outputs = BufferPool(settings.memory_quota // OUTPUTS_SHARE)
        """Buffers for large chunks of frames on their way to readers."""
        self.packing_bytes = 0
        """Bytes kept to pack blocks into."""
        self.outside_bytes = 0
        """Bytes the owner holds for readers of this bucket; see `memory_used`."""
        self._budget = 0

    # -- changes --------------------------------------------------------------------------------

    def ensure_room(self, size: int) -> None:
        """Call before a change, without the lock: StoreFull when ``size`` bytes cannot be had."""
        if self.closed:
            raise StoreError(f"{self.disk.path} is closed")
        if not self.arena.has_room(size):
            self.make_room(size)

    def append(
        self, segment: Segment, size: int, *, seqno: int, cas: int, rev: int
    ) -> tuple[int, int, int, int]:
        """Accept the frame of ``size`` bytes laid down behind ``segment.used``; lock held.

        Returns its ordinal, seqno, CAS and rev. ValueError for a seqno that does not rise.
        """
        self._budget -= 1
        if self._budget < 0:
            self.reserve(RESERVE_AHEAD)
        tables, offset = self.tables, segment.used
        accepted = accept(
            tables.slots,
            tables.entries,
            tables.items,
            tables.vbuckets,
            tables.marks,
            tables.state,
            segment.address + offset,
            segment.base + offset,
            seqno,
            cas,
            rev,
            self.clock(),
        )
        if accepted[0] < 0:
            raise ValueError(f"seqno {seqno} does not rise above {accepted[1]}")
        segment.used = offset + size
        return accepted

    def supersede(self, vbucket: int, old_seqno: int, old_ordinal: int, new_seqno: int) -> None:
        """Mark a version that `accept` does not know of as superseded; lock held."""
        self._budget -= 1
        if self._budget < 0:
            self.reserve(RESERVE_AHEAD)
        tables = self.tables
        supersede(
            tables.vbuckets,
            tables.items,
            tables.marks,
            tables.state,
            vbucket,
            old_seqno,
            old_ordinal,
            new_seqno,
        )

    def stamp(self) -> int:
        """The stamp of a block that is about to be written; structure lock held."""
        self.next_stamp = (self.next_stamp + 1) & 0xFFFF_FFFF
        return self.next_stamp

    def new_branch(self) -> BranchId:
        """A random uuid that is not 0."""
        while True:
            uuid = int.from_bytes(self.entropy(BRANCH_ID_BITS // 8), "big")
            if uuid:
                return BranchId(uuid)

    def append_control(self, frame: bytes) -> None:
        """Keep a control frame in the journal; it is no item. Lock held."""
        segment = self.arena.room(len(frame))
        segment.view[segment.used : segment.used + len(frame)] = frame
        segment.used += len(frame)
        self.wake.set()

    def announce(self, vbucket: int) -> None:
        """Tell committer and listener of a change; call without the lock."""
        if not self.wake.is_set():
            self.wake.set()
        if not self.told[vbucket]:
            self.told[vbucket] = True
            if self.listener is not None:
                self.listener(vbucket)

    def reserve(self, count: int) -> None:
        """Make room in every table for ``count`` more changes; lock held."""
        tables = self.tables
        if int(tables.state[at.S_MARKS]) + count > MARKS_MAX:
            self.flush_marks()
        tables.reserve_keys(count, 0xFF * count)
        tables.reserve_items(count)
        tables.reserve_marks(count)
        self._budget = count - 1

    def reserve_is_used(self) -> None:
        """Who reserved room for a run has used what it needed; lock held."""
        self._budget = 0

    def flush_marks(self) -> None:
        """Write the gathered marks into the blocks' rows; lock held."""
        tables = self.tables
        count = int(tables.state[at.S_MARKS])
        if not count:
            return
        marks = tables.marks[:count]
        order = np.argsort(marks[:, at.M_VBUCKET], kind="stable")
        ordered = marks[order]
        numbers, starts = np.unique(ordered[:, at.M_VBUCKET], return_index=True)
        stops = [*starts[1:].tolist(), count]
        for vbucket, start, stop in zip(numbers.tolist(), starts.tolist(), stops, strict=True):
            part = ordered[start:stop]
            self.blocks[vbucket].mark(part[:, at.M_OLD], part[:, at.M_NEW])
        tables.state[at.S_MARKS] = 0

    # -- memory ---------------------------------------------------------------------------------

    def memory_used(self) -> int:
        """Bytes of arena, tables, block rows and output, and of the disk if that is memory, too.

        What the next commit will hold besides (its entries, and the disk's copy of them) counts,
        and what the owner holds for readers: each up to a share of the quota, because neither a
        disk that does not write nor readers that do not read must make a bucket look full.
        """
        rows = sum(blocks.bytes_in_memory for blocks in self.blocks)
        arena = self.arena.bytes_allocated + self.arena.bytes_pooled
        if self.disk.durable:
            uncommitted = self.arena.high - self.committed_position
            disk = min(2 * uncommitted, self.settings.memory_quota // COMMIT_SHARE)
        else:
            disk = self.disk.bytes_used()
        outside = min(self.outside_bytes, self.settings.memory_quota // OUTSIDE_SHARE)
        output = outside + self.outputs.bytes_kept + self.packing_bytes
        return arena + self.tables.bytes_used() + rows + disk + output

    @property
    def arena_budget(self) -> int:
        """Bytes the arena may take: a share of what everything else leaves of the quota."""
        others = self.memory_used() - self.arena.bytes_allocated - self.arena.bytes_pooled
        floor = ARENA_SEGMENTS_MIN * self.settings.segment_bytes
        whole, parts = ARENA_SHARE
        return max(floor, (self.settings.memory_quota - others) * whole // parts)

    def release(self, *, force: bool, spare: int = 0) -> bool:
        """Drop old segments until the arena and ``spare`` bytes fit its budget; whether they do.

        ``force`` drops the cursors that are in the way, too. Lock held.
        """
        if self.arena.bytes_allocated + spare <= ARENA_SEGMENTS_MIN * self.settings.segment_bytes:
            return True
        budget = self.arena_budget - spare
        while self.arena.bytes_allocated > budget:
            if not self._drop_segment(force=force):
                return False
        return True

    def _drop_segment(self, *, force: bool) -> bool:
        oldest = self.arena.segments[0]
        if oldest is self.arena.current or oldest.end > self.sealed_position:
            return False
        tables = self.tables
        position = oldest.base + len(oldest.array)
        cursors = self.cursors
        states = cursors[:, C_STATE]
        held = (states == CURSOR_LIVE) | (states == CURSOR_PINNED)
        if held.any():
            memory = tables.vbuckets[:, at.V_MEMORY].copy()
            memory_after(tables.items, tables.state, position, memory)
            held &= cursors[:, C_READ] < memory[cursors[:, C_VBUCKET]]
        if held.any():
            if not force or (held & (states == CURSOR_PINNED)).any():
                return False
            cursors[held, C_STATE] = CURSOR_DROPPED
            for vbucket in np.unique(cursors[held, C_VBUCKET]).tolist():
                self.told[vbucket] = False
                self.announce(vbucket)
        drop_items(tables.items, tables.vbuckets, tables.state, position)
        self.arena.drop_oldest()
        return True

    def room_or_refuse(self, size: int) -> None:
        """StoreFull when memory with ``size`` more bytes would exceed the quota; lock held."""
        needed, quota = max(size, self.settings.segment_bytes), self.settings.memory_quota
        if self.memory_used() + needed > quota:
            self.release(force=True, spare=needed)
            used = self.memory_used()
            if used + needed > quota:
                raise StoreFull(f"memory quota of {quota} bytes is used up: {used} in use")

    def unlink(self, vbucket: int) -> None:
        """Forget the vbucket's items in memory: readers go to the disk. Lock held."""
        tables = self.tables
        unlink_items(tables.items, tables.vbuckets, vbucket)
        tables.vbuckets[vbucket, at.V_MEMORY] = tables.vbuckets[vbucket, at.V_HIGH]

    # -- cursors --------------------------------------------------------------------------------

    def add_cursor(self, vbucket: int, read: int, *, droppable: bool) -> int:
        """A row in the cursor table; lock held."""
        if not self._free_cursors:
            size = len(self.cursors)
            grown = np.zeros((2 * size, C_COLUMNS), np.int64)
            grown[:size] = self.cursors
            self.cursors = grown
            self._free_cursors = list(range(2 * size - 1, size - 1, -1))
        row = self._free_cursors.pop()
        self.cursors[row] = (vbucket, read, CURSOR_LIVE if droppable else CURSOR_PINNED)
        return row

    def remove_cursor(self, row: int) -> None:
        """Give a row back; lock held."""
        self.cursors[row, C_STATE] = CURSOR_FREE
        self._free_cursors.append(row)

    def drop_cursors(self, vbucket: int) -> int:
        """Drop every cursor of a vbucket; how many there were. Lock held."""
        cursors = self.cursors
        states = cursors[:, C_STATE]
        held = (cursors[:, C_VBUCKET] == vbucket) & (
            (states == CURSOR_LIVE) | (states == CURSOR_PINNED)
        )
        cursors[held, C_STATE] = CURSOR_DROPPED
        return int(held.sum())


@kernel
def memory_after(items: Words, state: Words, position: int, memory: Words) -> None:
    """What each vbucket's V_MEMORY would be without the items below an arena position."""
    for ordinal in range(state[at.S_LOW], state[at.S_HIGH] + 1):
        row = ordinal & (len(items) - 1)
        if items[row, at.I_POSITION] >= position:
            break
        tag = items[row, at.I_TAG]
        if tag >= 0:
            vbucket = tag & 0xFFFF
            memory[vbucket] = max(memory[vbucket], items[row, at.I_SEQNO])


@kernel
def drop_items(items: Words, vbuckets: Words, state: Words, position: int) -> None:
    """Forget the items below an arena position."""
    ordinal = state[at.S_LOW]
    while ordinal <= state[at.S_HIGH]:
        row = ordinal & (len(items) - 1)
        if items[row, at.I_POSITION] >= position:
            break
        tag = items[row, at.I_TAG]
        if tag >= 0:
            vbucket = tag & 0xFFFF
            vbuckets[vbucket, at.V_FIRST] = items[row, at.I_NEXT]
            if items[row, at.I_NEXT] == 0:
                vbuckets[vbucket, at.V_LAST] = 0
            seqno = items[row, at.I_SEQNO]
            vbuckets[vbucket, at.V_MEMORY] = max(vbuckets[vbucket, at.V_MEMORY], seqno)
        ordinal += 1
    state[at.S_LOW] = ordinal


@kernel
def unlink_items(items: Words, vbuckets: Words, vbucket: int) -> None:
    """Take a vbucket's items out of its list."""
    ordinal = vbuckets[vbucket, at.V_FIRST]
    while ordinal:
        row = ordinal & (len(items) - 1)
        items[row, at.I_TAG] = -1
        ordinal = items[row, at.I_NEXT]
    vbuckets[vbucket, at.V_FIRST] = 0
    vbuckets[vbucket, at.V_LAST] = 0


@kernel
def seek_item(items: Words, ordinal: int, after: int) -> int:
    """The first item above a seqno, from an ordinal on; 0 if there is none."""
    while ordinal and items[ordinal & (len(items) - 1), at.I_SEQNO] <= after:
        ordinal = items[ordinal & (len(items) - 1), at.I_NEXT]
    return ordinal


@kernel
def checkpoint_last(items: Words, ordinal: int, newest: int) -> int:
    """The last item in memory of the checkpoint an item belongs to.

    ``newest`` is the vbucket's last item: mostly it is of that checkpoint, and nobody has to walk.
    """
    tag = items[ordinal & (len(items) - 1), at.I_TAG]
    if items[newest & (len(items) - 1), at.I_TAG] == tag:
        return newest
    last = ordinal
    while ordinal and items[ordinal & (len(items) - 1), at.I_TAG] == tag:
        last = ordinal
        ordinal = items[ordinal & (len(items) - 1), at.I_NEXT]
    return last
