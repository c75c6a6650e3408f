"""Keys to what is known of them, and to their frames, wherever those lie.

Imports: errors, store.blocks, store.core, store.disk, store.index, store.layout, store.model,
store.native, store.plain, store.records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.errors import CorruptRecord
from headrace.store import layout as at
from headrace.store.disk import Table
from headrace.store.index import (
    find_key,
    key_hash,
    living_row,
    remove_row,
    rows_of_collection,
)
from headrace.store.model import KEY_SIZE_MAX, Item, Meta
from headrace.store.native import address_of, kernel
from headrace.store.plain import split_frame
from headrace.store.records import BLOCK_HEADER, check_block

if TYPE_CHECKING:
    from headrace.store.core import Core
    from headrace.store.native import Bytes, Words

UNSIGNED: Final = 0xFFFF_FFFF_FFFF_FFFF
LOW_HALF: Final = 0xFFFF_FFFF
READ_TRIES_MAX: Final = 8
"""Times a read starts again because compaction replaced the block it wanted."""

NO_ROWS: Final = np.zeros(0, np.int64)


@kernel
def lookup_key(
    slots: Words, entries: Words, state: Words, vbucket: int, address: int, size: int
) -> int:
    """The row of a key, -1 if it is unknown."""
    found = key_hash(state, vbucket, address, size)
    return find_key(slots, entries, state, vbucket, address, size, found)


class Lookup:
    """Finds keys of one bucket; its methods take the core's lock themselves."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._scratch: Bytes = np.zeros(KEY_SIZE_MAX + 1, np.uint8)
        self._view = memoryview(self._scratch)  # type: ignore[arg-type]
        self._address = address_of(self._scratch)

    def row(self, vbucket: int, key: bytes) -> int:
        """The key's row in the index, -1 if it is unknown; lock held."""
        size = len(key)
        if size > KEY_SIZE_MAX:
            return -1
        self._view[:size] = key
        tables = self._core.tables
        return lookup_key(tables.slots, tables.entries, tables.state, vbucket, self._address, size)

    def meta(self, vbucket: int, key: bytes) -> Meta | None:
        """What the index knows of a key."""
        core = self._core
        with core.lock:
            row = self.row(vbucket, key)
            if row < 0:
                return None
            entry = core.tables.entries[row].tolist()
        flags, word = entry[at.E_FLAGS], entry[at.E_WORD]
        return Meta(
            entry[at.E_SEQNO],
            entry[at.E_REV] & UNSIGNED,
            entry[at.E_CAS] & UNSIGNED,
            (flags >> 32) & LOW_HALF,
            flags & LOW_HALF,
            (word >> 40) & 0xFF,
            bool(word & at.WORD_DELETED),
            word & LOW_HALF,
        )

    def item(self, vbucket: int, key: bytes) -> Item | None:
        """The newest version of a key, read from memory or disk."""
        core = self._core
        for _ in range(READ_TRIES_MAX):
            with core.lock:
                row = self.row(vbucket, key)
                if row < 0:
                    return None
                entry = core.tables.entries[row].tolist()
                if core.tables.in_memory(entry[at.E_ORDINAL]):
                    return item_of(self._frame_in_memory(entry[at.E_ORDINAL]), entry)
            frame = self.frame_on_disk(vbucket, entry[at.E_SEQNO])
            if frame is not None:
                return item_of(frame, entry)
            # The block is being replaced by another: wait until that is done.
            with core.structure:
                pass
        path = core.disk.path
        raise CorruptRecord(f"{path}: vbucket {vbucket} has no frame for a known key", path=path)

    def _frame_in_memory(self, ordinal: int) -> memoryview:
        tables = self._core.tables
        item = tables.items[tables.item_row(ordinal)]
        size = int(item[at.I_INFO]) >> at.INFO_SIZE_SHIFT
        return self._core.arena.view(int(item[at.I_POSITION]), size)

    def frame_on_disk(self, vbucket: int, seqno: int) -> bytes | None:
        """The sealed frame at a seqno; None when its block is missing or was replaced."""
        core = self._core
        with core.lock:
            block = core.blocks[vbucket].holding(seqno)
            row = -1 if block is None else block.row_of(seqno)
        if block is None or row < 0:
            return None
        with core.disk.read() as reader:
            value = reader.get(Table.BLOCKS, block.key)
            if value is None or not block.matches(value):
                return None
            if not block.checked:
                check_block(block.key, value, path=core.disk.path)
                block.checked = True
            start, stop = block.extent(row)
            return bytes(value[BLOCK_HEADER.size + start : BLOCK_HEADER.size + stop])

    # -- whole collections ----------------------------------------------------------------------

    def count_collection(self, vbucket: int, collection: int) -> int:
        """Number of living keys of a collection."""
        tables = self._core.tables
        with self._core.lock:
            return rows_of_collection(
                tables.entries, tables.state, vbucket, collection, True, NO_ROWS
            )

    def has_keys(self, vbucket: int, collection: int) -> bool:
        """Whether a collection has keys, tombstones included; lock held."""
        tables = self._core.tables
        entries, state = tables.entries, tables.state
        return rows_of_collection(entries, state, vbucket, collection, False, NO_ROWS) > 0

    def random_key(self, vbucket: int, choice: int, collection: int | None) -> bytes | None:
        """Some living key of a vbucket, the ``choice``-th modulo their number."""
        tables = self._core.tables
        with self._core.lock:
            wanted = -1 if collection is None else collection
            count = living_row(tables.entries, tables.state, vbucket, wanted, -1)
            if not count:
                return None
            row = living_row(tables.entries, tables.state, vbucket, wanted, choice % count)
            key = int(tables.entries[row, at.E_KEY])
            return bytes(tables.heap[key >> 8 : (key >> 8) + (key & 0xFF)])

    def forget_collection(self, vbucket: int, collection: int, seqno: int) -> None:
        """A collection ended at a seqno: its keys up to there are superseded; lock held."""
        core, tables = self._core, self._core.tables
        count = rows_of_collection(
            tables.entries, tables.state, vbucket, collection, False, NO_ROWS
        )
        rows = np.zeros(count, np.int64)
        rows_of_collection(tables.entries, tables.state, vbucket, collection, False, rows)
        for row in rows.tolist():
            entry = tables.entries[row].tolist()
            if entry[at.E_SEQNO] < seqno:
                core.supersede(vbucket, entry[at.E_SEQNO], entry[at.E_ORDINAL], seqno)
                self.forget_row(vbucket, row)

    def forget_row(self, vbucket: int, row: int) -> None:
        """Take a key out of the index; lock held."""
        tables = self._core.tables
        dead = int(tables.entries[row, at.E_WORD]) & at.WORD_DELETED
        tables.vbuckets[vbucket, at.V_TOMBSTONES if dead else at.V_LIVE] -= 1
        remove_row(tables.slots, tables.entries, tables.state, row)


def item_of(frame: bytes | memoryview, entry: list[int]) -> Item:
    """A data frame at rest and its index row as an item."""
    parts = split_frame(frame)
    flags, word = entry[at.E_FLAGS], entry[at.E_WORD]
    return Item(
        parts.key,
        parts.value,
        entry[at.E_SEQNO],
        entry[at.E_REV] & UNSIGNED,
        parts.cas,
        (flags >> 32) & LOW_HALF,
        flags & LOW_HALF,
        parts.datatype,
        bool(word & at.WORD_DELETED),
    )
