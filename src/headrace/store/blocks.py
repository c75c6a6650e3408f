"""Sealed blocks: a vbucket's frames in seqno order on disk, and what memory knows of them.

A block's value never changes on disk. In memory each of its frames has a row of three 32-bit
numbers: seqno - first seqno, byte offset, and the distance to the seqno that superseded it (0:
none has). Rows let a reader skip dead frames without looking at them and a `get` find its frame
without a scan. Marks made by `accept` for sealed versions are gathered and written into the rows
before anybody reads them.

Imports: store.layout, store.native, store.records.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.store import layout as at
from headrace.store.accept import seqno_at
from headrace.store.native import address_of, copy_bytes, kernel, load8, load32, load64
from headrace.store.records import BLOCK_HEADER, BLOCK_KEY, block_stamp
from headrace.store.rewrite import address_at

if TYPE_CHECKING:
    from headrace.store.native import Halves, Words

DISTANCE_MAX: Final = 0xFFFF_FFFF
"""A superseding seqno further away than this counts as this far."""
FRAME_BYTES_MIN: Final = at.HEADER + at.ABORT_EXTRAS
"""The smallest frame a block holds (an abort without a key); gives the most rows a block can
need."""


@dataclass(slots=True, eq=False)
class Block:
    """One sealed block as memory knows it; ``size`` counts its frames without the header.

    ``checked``: this process has verified the checksum.
    """

    vbucket: int
    first: int
    last: int
    size: int
    stamp: int
    rows: Halves
    checked: bool
    ends_for: set[bool] = field(init=False, repr=False, default_factory=set)
    """Readers without collections who are known to get its last frame: those with sync writes
    (True), those without."""
    rows_address: int = field(init=False, repr=False)
    """Where the rows lie: asking numpy for it costs more than looking up the block."""

    def __post_init__(self) -> None:
        """Note where the rows lie; kernels step through them without gaps."""
        assert self.rows.flags.c_contiguous
        self.rows_address = address_of(self.rows)

    @property
    def key(self) -> bytes:
        """Its key on disk."""
        return BLOCK_KEY.pack(self.vbucket, self.first)

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of its value."""
        return BLOCK_HEADER.size + self.size

    def matches(self, value: memoryview | None) -> bool:
        """Whether a value read from disk is this block and not one that took its key since."""
        return (
            value is not None
            and len(value) == self.bytes_on_disk
            and block_stamp(value) == self.stamp
        )

    def row_of(self, seqno: int) -> int:
        """The row of the frame with that seqno, -1 if it holds none."""
        return find_row(self.rows, seqno - self.first)

    def extent(self, row: int) -> tuple[int, int]:
        """Where a row's frame begins and ends among the frames."""
        start = int(self.rows[row, 1])
        return start, int(self.rows[row + 1, 1]) if row + 1 < len(self.rows) else self.size


class BlockList:
    """The blocks of one vbucket, by seqno; they do not overlap."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._firsts: list[int] = []
        self.bytes_on_disk = 0
        """Bytes of all values."""
        self.bytes_in_memory = 0
        """Bytes of all rows."""

    def append(self, block: Block) -> None:
        """Add a block behind the last one."""
        assert not self.blocks or self.blocks[-1].last < block.first
        self.blocks.append(block)
        self._firsts.append(block.first)
        self.bytes_on_disk += block.bytes_on_disk
        self.bytes_in_memory += block.rows.nbytes

    def replace(self, blocks: list[Block]) -> None:
        """Take these blocks instead."""
        self.blocks = list(blocks)
        self._firsts = [block.first for block in blocks]
        self.bytes_on_disk = sum(block.bytes_on_disk for block in blocks)
        self.bytes_in_memory = sum(block.rows.nbytes for block in blocks)

    def holding(self, seqno: int) -> Block | None:
        """The block whose range holds a seqno."""
        place = bisect_right(self._firsts, seqno) - 1
        if place >= 0 and seqno <= self.blocks[place].last:
            return self.blocks[place]
        return None

    def after(self, seqno: int) -> Block | None:
        """The first block with a frame above a seqno."""
        place = max(0, bisect_right(self._firsts, seqno) - 1)
        while place < len(self.blocks):
            if self.blocks[place].last > seqno:
                return self.blocks[place]
            place += 1
        return None

    def mark(self, old: Words, new: Words) -> None:
        """Write marks: the version at each old seqno was superseded at the new one."""
        places = np.searchsorted(np.array(self._firsts, np.int64), old, side="right") - 1
        for place in np.unique(places):
            if place >= 0:
                chosen = places == place
                block = self.blocks[place]
                mark_rows(block.rows, block.first, old[chosen], new[chosen])


@kernel
def lower_row(rows: Halves, offset: int) -> int:
    """The first row at or above a seqno offset."""
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        if rows[middle, 0] < offset:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def find_row(rows: Halves, offset: int) -> int:
    """The row with that seqno offset, -1 if there is none."""
    row = lower_row(rows, offset)
    return row if row < len(rows) and rows[row, 0] == offset else -1


@kernel
def mark_rows(rows: Halves, first: int, old: Words, new: Words) -> None:
    """Note which versions were superseded, and by how far."""
    for place in range(len(old)):
        row = find_row(rows, old[place] - first)
        if row >= 0:
            rows[row, 2] = min(new[place] - old[place], DISTANCE_MAX)


@kernel
def scan_frames(source: int, size: int, first: int, rows: Halves) -> int:
    """Fill the rows of a block read from disk; the number of frames, -1 if they do not add up."""
    count = 0
    offset = 0
    before = first - 1
    while offset < size:
        if offset + at.HEADER > size or count == len(rows):
            return -1
        frame = source + offset
        stop = offset + at.HEADER + load32(frame + at.BODY_SIZE_AT)
        place = seqno_at(load8(frame + at.OPCODE_AT))
        if stop > size or offset + place + 8 > stop:
            return -1
        seqno = load64(frame + place)
        if seqno <= before or seqno - first > DISTANCE_MAX:
            return -1
        rows[count, 0] = seqno - first
        rows[count, 1] = offset
        rows[count, 2] = 0
        before = seqno
        offset = stop
        count += 1
    return count


@kernel
def pack_items(
    items: Words,
    state: Words,
    addresses: Words,
    ordinal: int,
    ordinal_max: int,
    position_max: int,
    floor: int,
    target: int,
    capacity: int,
    rows: Halves,
    numbers: Words,
) -> tuple[int, int, int]:
    """Copy a vbucket's items, from an ordinal on, into one block: (frames, bytes, next ordinal).

    Takes items up to ``ordinal_max`` that lie below ``position_max`` in the arena. Versions
    superseded at or below ``floor`` are left out, but not sync writes and system events: a prepare
    in an older block may need its end, and only compaction sees both. ``numbers`` gets: first
    seqno, last seqno, highest seqno that superseded a frame that was left out, last seqno passed,
    ordinal of that.
    """
    count = 0
    used = 0
    while ordinal and ordinal <= ordinal_max:
        row = ordinal & (len(items) - 1)
        if items[row, at.I_POSITION] >= position_max:
            break
        seqno = items[row, at.I_SEQNO]
        superseded = items[row, at.I_SUPERSEDED]
        info = items[row, at.I_INFO]
        plain = info & (0xFF | at.INFO_COMMITTED) in (at.MUTATION, at.DELETION, at.EXPIRATION)
        if superseded and superseded <= floor and plain:
            numbers[2] = max(numbers[2], superseded)
        else:
            size = info >> at.INFO_SIZE_SHIFT
            if count == 0:
                numbers[0] = seqno
                if size > capacity:
                    return -1, size, ordinal
            if used + size > capacity or count == len(rows) or seqno - numbers[0] > DISTANCE_MAX:
                break
            copy_bytes(target + used, address_at(addresses, state, items[row, at.I_POSITION]), size)
            rows[count, 0] = seqno - numbers[0]
            rows[count, 1] = used
            rows[count, 2] = min(superseded - seqno, DISTANCE_MAX) if superseded else 0
            used += size
            count += 1
            numbers[1] = seqno
        numbers[3] = seqno
        numbers[4] = ordinal
        ordinal = items[row, at.I_NEXT]
    return count, used, ordinal


@kernel
def refresh_rows(items: Words, ordinal: int, first: int, rows: Halves) -> None:
    """Bring a block's marks up to date with what happened to its items since it was packed."""
    count = 0
    while ordinal and count < len(rows):
        row = ordinal & (len(items) - 1)
        seqno = items[row, at.I_SEQNO]
        if seqno - first == rows[count, 0]:
            superseded = items[row, at.I_SUPERSEDED]
            if superseded:
                rows[count, 2] = min(superseded - seqno, DISTANCE_MAX)
            count += 1
        ordinal = items[row, at.I_NEXT]


@kernel
def copy_rows(
    source: int,
    source_size: int,
    source_first: int,
    rows: Halves,
    keep: Words,
    start: int,
    target: int,
    capacity: int,
    new_rows: Halves,
    new_count: int,
    new_used: int,
    new_first: int,
) -> tuple[int, int, int, int, int]:
    """Copy the kept frames of a block behind others into a new one.

    Returns (rows now, bytes now, first seqno, row to go on at, size of a frame that alone exceeds
    the capacity or 0).
    """
    row = start
    while row < len(rows):
        if keep[row]:
            seqno = source_first + rows[row, 0]
            offset = rows[row, 1]
            stop = rows[row + 1, 1] if row + 1 < len(rows) else source_size
            size = stop - offset
            if new_count == 0:
                new_first = seqno
                if size > capacity:
                    return new_count, new_used, new_first, row, size
            if (
                new_used + size > capacity
                or new_count == len(new_rows)
                or seqno - new_first > DISTANCE_MAX
            ):
                break
            copy_bytes(target + new_used, source + offset, size)
            new_rows[new_count, 0] = seqno - new_first
            new_rows[new_count, 1] = new_used
            new_rows[new_count, 2] = rows[row, 2]
            new_used += size
            new_count += 1
        row += 1
    return new_count, new_used, new_first, row, 0
