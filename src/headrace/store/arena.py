"""The bucket-wide arena: frames in the order they were accepted, in segments of equal size.

A frame's place is a position that only grows. Position // segment size names a segment; a frame
that does not fit behind the last one starts a new segment, and a frame larger than a segment gets
one that spans several numbers. Bytes below the high position never change, so a committer may read
them while others append. Segments are dropped oldest first, by their owner's rules.

Imports: store.native.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.store.native import address_of

if TYPE_CHECKING:
    from headrace.store.native import Bytes, Words

POOL_SEGMENTS_MAX: Final = 2
"""Dropped segments kept for reuse: fresh pages cost a fault each."""
TABLE_FIRST: Final = 64


@dataclass(slots=True)
class Segment:
    """One piece of the arena; ``used`` bytes of it are filled."""

    number: int
    array: Bytes
    view: memoryview
    address: int
    base: int
    span: int
    used: int = 0

    @property
    def end(self) -> int:
        """The position behind its last byte."""
        return self.base + self.used


class Arena:
    """Segments from the oldest in memory to the one being filled."""

    def __init__(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.segments: list[Segment] = []
        self._by_number: dict[int, Segment] = {}
        self._pool: list[Bytes] = []
        self.bytes_allocated = 0
        """Bytes of all segments, pooled ones left out."""
        self.addresses: Words = np.zeros(TABLE_FIRST, np.int64)
        """For kernels: the address of each segment number, modulo the table's length."""
        self._open(0, 1)

    def _open(self, number: int, span: int) -> Segment:
        pooled = span == 1 and self._pool
        array = self._pool.pop() if pooled else np.empty(span * self.segment_bytes, np.uint8)
        segment = Segment(
            number=number,
            array=array,
            view=memoryview(array),  # type: ignore[arg-type]
            address=address_of(array),
            base=number * self.segment_bytes,
            span=span,
        )
        self.segments.append(segment)
        self.bytes_allocated += len(array)
        if number + span - self.segments[0].number > len(self.addresses):
            self._grow_table(number + span - self.segments[0].number)
        for offset in range(span):
            self._by_number[number + offset] = segment
        self._list(segment)
        self.current = segment
        return segment

    def _list(self, segment: Segment) -> None:
        mask = len(self.addresses) - 1
        for offset in range(segment.span):
            self.addresses[(segment.number + offset) & mask] = (
                segment.address + offset * self.segment_bytes
            )

    def _grow_table(self, needed: int) -> None:
        self.addresses = np.zeros(1 << needed.bit_length(), np.int64)
        for segment in self.segments:
            self._list(segment)

    def room(self, size: int) -> Segment:
        """The segment with room for ``size`` more bytes; its ``end`` is where they go.

        The caller fills them in and adds them to ``used``.
        """
        segment = self.current
        if segment.used + size <= len(segment.array):
            return segment
        span = -(-size // self.segment_bytes)
        return self._open(segment.number + segment.span, span)

    def has_room(self, size: int) -> bool:
        """Whether ``size`` bytes fit without a new segment."""
        return self.current.used + size <= len(self.current.array)

    @property
    def high(self) -> int:
        """The position behind the last byte."""
        return self.current.end

    @property
    def low(self) -> int:
        """The position of the oldest byte in memory."""
        return self.segments[0].base

    @property
    def bytes_pooled(self) -> int:
        """Bytes of dropped segments kept for reuse."""
        return len(self._pool) * self.segment_bytes

    def segment_at(self, position: int) -> Segment:
        """The segment that holds a position; KeyError when it was dropped."""
        return self._by_number[position // self.segment_bytes]

    def address(self, position: int) -> int:
        """Where the byte at a position lies in memory."""
        segment = self.segment_at(position)
        return segment.address + position - segment.base

    def view(self, position: int, size: int) -> memoryview:
        """The bytes at a position; they lie in one segment."""
        segment = self.segment_at(position)
        start = position - segment.base
        return segment.view[start : start + size]

    def runs(self, start: int, stop: int) -> list[tuple[Segment, int, int]]:
        """The filled bytes between two positions as (segment, offset, offset), oldest first."""
        found = []
        for segment in self.segments:
            first = max(start, segment.base) - segment.base
            last = min(stop, segment.end) - segment.base
            if first < last:
                found.append((segment, first, last))
        return found

    def drop_oldest(self) -> Segment:
        """Forget the oldest segment; it must not be the one being filled."""
        segment = self.segments.pop(0)
        self.bytes_allocated -= len(segment.array)
        for offset in range(segment.span):
            del self._by_number[segment.number + offset]
        if segment.span == 1 and len(self._pool) < POOL_SEGMENTS_MAX:
            self._pool.append(segment.array)
        return segment
