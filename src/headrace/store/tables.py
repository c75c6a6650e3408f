"""The memory of a bucket: integer tables shared by Python and the kernels, and their growth.

One row per vbucket, per recent item, per key and per mark; see `headrace.store.layout` for the
columns. The kernels never allocate: whoever calls one makes room first. Invariants:

* the number of keys never exceeds 3/4 of the slots, so that a probe ends;
* ordinals in memory are S_LOW..S_HIGH and there are at most as many as rows of ``items``;
* a key's bytes lie in the heap; removed keys leave garbage that `Tables.tidy` sweeps out.

Imports: store.layout, store.native, store.settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.store import layout as at
from headrace.store.index import rebuild_slots, repack_heap
from headrace.store.native import address_of

if TYPE_CHECKING:
    from headrace.store.native import Bytes, Words
    from headrace.store.settings import BucketSettings

KEYS_FIRST: Final = 1 << 10
ITEMS_FIRST: Final = 1 << 10
MARKS_MAX: Final = 1 << 14
"""Marks kept before they are written into the blocks' arrays."""
HEAP_FIRST: Final = 1 << 16
GARBAGE_MIN: Final = 1 << 20
"""Bytes of dead keys in the heap that are not worth sweeping."""


class Tables:
    """Every table of one bucket."""

    def __init__(self, settings: BucketSettings, seed: int) -> None:
        self.vbuckets: Words = np.zeros((settings.vbuckets, at.V_COLUMNS), np.int64)
        self.items: Words = np.zeros((ITEMS_FIRST, at.I_COLUMNS), np.int64)
        self.marks: Words = np.zeros((MARKS_MAX + 1, at.M_COLUMNS), np.int64)
        self.state: Words = np.zeros(at.S_COLUMNS, np.int64)
        self.state[at.S_SEED] = seed
        self.state[at.S_LOW] = 1
        self.state[at.S_SEGMENT_BYTES] = settings.segment_bytes
        self.state[at.S_CHECKPOINT_ITEMS] = settings.checkpoint_items_max
        self.state[at.S_CHECKPOINT_BYTES] = settings.checkpoint_bytes_max
        self.state[at.S_CHECKPOINT_SECONDS] = settings.checkpoint_seconds_max
        self._clear_keys()

    def _clear_keys(self) -> None:
        self.slots: Words = np.zeros(2 * KEYS_FIRST, np.int64)
        self.entries: Words = np.empty((KEYS_FIRST, at.E_COLUMNS), np.int64)
        self.heap: Bytes = np.empty(HEAP_FIRST, np.uint8)
        for column in (at.S_ENTRIES, at.S_FREE, at.S_KEYS, at.S_HEAP_USED, at.S_HEAP_GARBAGE):
            self.state[column] = 0
        self.state[at.S_HEAP_ADDRESS] = address_of(self.heap)

    # -- room -----------------------------------------------------------------------------------

    def reserve_keys(self, count: int, key_bytes: int) -> None:
        """Make room for ``count`` more keys with ``key_bytes`` bytes in all."""
        state = self.state
        needed = int(state[at.S_ENTRIES]) + count
        if needed > len(self.entries):
            grown = np.empty((_grown(len(self.entries), needed), at.E_COLUMNS), np.int64)
            used = int(state[at.S_ENTRIES])
            grown[:used] = self.entries[:used]
            self.entries = grown
        if 4 * (int(state[at.S_KEYS]) + count) > 3 * len(self.slots):
            size = len(self.slots)
            while 4 * (int(state[at.S_KEYS]) + count) > 2 * size:
                size *= 2
            self.slots = np.zeros(size, np.int64)
            rebuild_slots(self.slots, self.entries, state)
        used = int(state[at.S_HEAP_USED])
        if used + key_bytes > len(self.heap):
            heap = np.empty(_grown(len(self.heap), used + key_bytes), np.uint8)
            heap[:used] = self.heap[:used]
            self.heap = heap
            state[at.S_HEAP_ADDRESS] = address_of(heap)

    def reserve_items(self, count: int) -> None:
        """Make room for ``count`` more recent items."""
        low, high = int(self.state[at.S_LOW]), int(self.state[at.S_HIGH])
        needed = high + 1 - low + count
        if needed <= len(self.items):
            return
        grown = np.zeros((_power(needed), at.I_COLUMNS), np.int64)
        ordinal = low
        while ordinal <= high:  # in runs that neither table cuts: three at most
            source, target = ordinal & (len(self.items) - 1), ordinal & (len(grown) - 1)
            count = min(high + 1 - ordinal, len(self.items) - source, len(grown) - target)
            grown[target : target + count] = self.items[source : source + count]
            ordinal += count
        self.items = grown

    def reserve_marks(self, count: int) -> None:
        """Make room for ``count`` more marks (only a bulk load needs more than MARKS_MAX)."""
        used = int(self.state[at.S_MARKS])
        if used + count > len(self.marks):
            grown = np.zeros((_power(used + count), at.M_COLUMNS), np.int64)
            grown[:used] = self.marks[:used]
            self.marks = grown

    def tidy(self) -> None:
        """Sweep dead keys out of the heap where that pays."""
        garbage, used = int(self.state[at.S_HEAP_GARBAGE]), int(self.state[at.S_HEAP_USED])
        if garbage < GARBAGE_MIN or 2 * garbage < used:
            return
        heap = np.empty(max(HEAP_FIRST, (used - garbage) * 5 // 4), np.uint8)
        repack_heap(self.entries, self.state, address_of(heap))
        self.heap = heap
        self.state[at.S_HEAP_ADDRESS] = address_of(heap)

    def bytes_used(self) -> int:
        """Bytes of these tables that are in use."""
        state = self.state
        return int(
            self.slots.nbytes
            + int(state[at.S_ENTRIES]) * at.E_COLUMNS * 8
            + int(state[at.S_HEAP_USED])
            + self.items.nbytes
            + self.marks.nbytes
            + self.vbuckets.nbytes
        )

    def item_row(self, ordinal: int) -> int:
        """The row of an item in memory."""
        return ordinal & (len(self.items) - 1)

    def in_memory(self, ordinal: int) -> bool:
        """Whether that item is still in memory."""
        return bool(self.state[at.S_LOW] <= ordinal <= self.state[at.S_HIGH])


def _grown(size: int, needed: int) -> int:
    return max(needed, size * 3 // 2)


def _power(needed: int) -> int:
    return 1 << max(needed - 1, 1).bit_length()
