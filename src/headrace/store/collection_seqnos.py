"""The highest seqno of each collection of a vbucket, kept up to date when somebody asks.

Writing pays nothing for it: a kernel catches up over the items accepted since the last question.
Whoever drops items from memory or seals them catches up first. Prepares and aborts do not count.

Imports: store.index, store.layout, store.native, store.rewrite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.store import layout as at
from headrace.store.index import collection_of
from headrace.store.native import kernel, load8, load16, load32, load64
from headrace.store.rewrite import address_at

if TYPE_CHECKING:
    from headrace.store.core import Core
    from headrace.store.native import Words

ROWS_FIRST: Final = 8


class CollectionSeqnos:
    """Collection id -> highest seqno, for one vbucket."""

    def __init__(self, core: Core, vbucket: int) -> None:
        self._core = core
        self._vbucket = vbucket
        self._table: Words = np.zeros((ROWS_FIRST, 2), np.int64)
        self._count = 0
        self._passed = 0
        """Highest seqno that was looked at."""

    def catch_up(self) -> None:
        """Look at the items accepted since the last time; lock held."""
        tables = self._core.tables
        row = tables.vbuckets[self._vbucket]
        high = int(row[at.V_HIGH])
        ordinal = int(row[at.V_FIRST])
        while self._passed < high:
            count, ordinal = gather_items(
                tables.items,
                tables.state,
                self._core.arena.addresses,
                ordinal,
                self._passed,
                self._table,
                self._count,
            )
            self._count = count
            if ordinal == 0:
                self._passed = high
            else:
                self._grow()

    def received(self, collection: int, *, after: int) -> None:
        """All items above ``after`` are of one collection, as who took them has seen; lock held."""
        if self._passed != after:
            return  # older ones have to be looked at, and these with them
        high = int(self._core.tables.vbuckets[self._vbucket, at.V_HIGH])
        count = _note(self._table, self._count, collection, high)
        if count >= 0:
            self._count, self._passed = count, high

    def add_frames(self, source: int, size: int) -> None:
        """Look at frames at rest that are not in memory (a block that is loaded)."""
        offset = 0
        while offset < size:
            self._count, offset = gather_frames(source, size, offset, self._table, self._count)
            if offset < size:
                self._grow()

    def _grow(self) -> None:
        grown = np.zeros((2 * len(self._table), 2), np.int64)
        grown[: self._count] = self._table[: self._count]
        self._table = grown

    def high(self, collections: frozenset[int]) -> int:
        """The highest seqno of these collections; 0 if none has an item. Lock held."""
        self.catch_up()
        return max(
            (seqno for collection, seqno in self.to_list() if collection in collections), default=0
        )

    def to_list(self) -> list[list[int]]:
        """(collection, seqno) pairs as last looked at."""
        return [list(pair) for pair in self._table[: self._count].tolist()]

    def reset(self, pairs: list[list[int]], passed: int) -> None:
        """Start again from these pairs, true up to ``passed``."""
        self._table = np.zeros((max(ROWS_FIRST, 2 * len(pairs)), 2), np.int64)
        for place, pair in enumerate(pairs):
            self._table[place] = pair
        self._count = len(pairs)
        self._passed = passed


@kernel
def _note(table: Words, count: int, collection: int, seqno: int) -> int:
    """Enter a seqno; the number of rows now, -1 when one more is needed."""
    for row in range(count):
        if table[row, 0] == collection:
            table[row, 1] = max(table[row, 1], seqno)
            return count
    if count == len(table):
        return -1
    table[count, 0] = collection
    table[count, 1] = seqno
    return count + 1


@kernel
def _frame_collection(source: int, opcode: int) -> int:
    """The collection a frame counts for, -1 if for none."""
    if opcode in (at.MUTATION, at.DELETION, at.EXPIRATION):
        key = source + at.HEADER + load8(source + at.EXTRAS_SIZE_AT)
        return collection_of(key, load16(source + at.KEY_SIZE_AT))
    if opcode == at.SYSTEM_EVENT:
        event = load32(source + at.EVENT_AT)
        if event in (0, 1, 5):
            return load32(source + at.OPAQUE_AT)
    return -1


@kernel
def gather_items(
    items: Words,
    state: Words,
    addresses: Words,
    ordinal: int,
    passed: int,
    table: Words,
    count: int,
) -> tuple[int, int]:
    """Enter a vbucket's items above a seqno: (rows, ordinal where the table was full or 0)."""
    while ordinal:
        row = ordinal & (len(items) - 1)
        seqno = items[row, at.I_SEQNO]
        if seqno > passed:
            source = address_at(addresses, state, items[row, at.I_POSITION])
            collection = _frame_collection(source, items[row, at.I_INFO] & 0xFF)
            if collection >= 0:
                entered = _note(table, count, collection, seqno)
                if entered < 0:
                    return count, ordinal
                count = entered
        ordinal = items[row, at.I_NEXT]
    return count, 0


@kernel
def gather_frames(source: int, size: int, offset: int, table: Words, count: int) -> tuple[int, int]:
    """Enter frames that follow each other: (rows, offset where the table was full or the end)."""
    while offset < size:
        frame = source + offset
        opcode = load8(frame + at.OPCODE_AT)
        collection = _frame_collection(frame, opcode)
        if collection >= 0:
            entered = _note(table, count, collection, load64(frame + at.SEQNO_AT))
            if entered < 0:
                return count, offset
            count = entered
        offset += at.HEADER + load32(frame + at.BODY_SIZE_AT)
    return count, size
