"""What a bucket does now and then: expiry, choosing what to compact, numbers for people.

Imports: store.index, store.layout, wire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.errors import HeadraceError
from headrace.store import core as inside
from headrace.store import layout as at
from headrace.store.index import rows_due
from headrace.wire.opcodes import VBucketState
from headrace.wire.values import inflate, join_xattrs, split_xattrs

if TYPE_CHECKING:
    from headrace.store.core import Core
    from headrace.store.model import Item
    from headrace.store.vbucket import VBucket

WASTE_SHARE: Final = 0.6
"""Share of dead frames above which a vbucket's blocks are worth rewriting: it bounds write
amplification by compaction to (1 - share) / share of the bytes accepted."""
WASTE_BYTES_MIN: Final = 1024 * 1024
BLOCKS_SMALL_MIN: Final = 64
"""Number of blocks below a quarter of their size that are worth joining."""


class Upkeep:
    """Upkeep of one bucket."""

    def __init__(self, core: Core, vbuckets: dict[int, VBucket]) -> None:
        self._core = core
        self._vbuckets = vbuckets
        self._expiry_row = 0

    def expire_due(self, now: int, limit: int) -> int:
        """Expire up to ``limit`` keys whose time has come; how many were."""
        core, tables = self._core, self._core.tables
        rows = np.zeros(limit, np.int64)
        with core.lock:
            count, _ = rows_due(
                tables.entries,
                tables.vbuckets,
                tables.state,
                now,
                int(VBucketState.ACTIVE),
                0,
                rows,
            )
            due = [self._key(row) for row in rows[:count].tolist()]
        expired = 0
        for number, key in due:
            vbucket = self._vbuckets.get(number)
            if vbucket is not None and vbucket.expire_if_due(key, now):
                expired += 1
        return expired

    def _key(self, row: int) -> tuple[int, bytes]:
        tables = self._core.tables
        key = int(tables.entries[row, at.E_KEY])
        start, size = key >> 8, key & 0xFF
        return int(tables.entries[row, at.E_WORD]) >> 48, bytes(tables.heap[start : start + size])

    def most_wasteful(self) -> VBucket | None:
        """The vbucket whose blocks hold the most dead bytes, if that is worth a rewrite."""
        best, worst = None, WASTE_BYTES_MIN
        with self._core.lock:
            self._core.flush_marks()
            for vbucket in self._vbuckets.values():
                blocks = self._core.blocks[vbucket.id].blocks
                frames = sum(len(block.rows) for block in blocks)
                dead = sum(int(np.count_nonzero(block.rows[:, 2])) for block in blocks)
                if not frames:
                    continue
                wasted = self._core.blocks[vbucket.id].bytes_on_disk * dead // frames
                if dead >= WASTE_SHARE * frames and wasted > worst:
                    best, worst = vbucket, wasted
        return best

    def statistics(self) -> dict[str, int]:
        """Numbers of the whole bucket; lock held."""
        core = self._core
        rows = core.tables.vbuckets
        states = core.cursors[:, inside.C_STATE]
        return {
            "items": int(rows[:, at.V_LIVE].sum()),
            "tombstones": int(rows[:, at.V_TOMBSTONES].sum()),
            "vbuckets": len(self._vbuckets),
            "memory_used": core.memory_used(),
            "arena_bytes": core.arena.bytes_allocated,
            "index_bytes": core.tables.bytes_used(),
            "recent_items": int(core.tables.state[at.S_HIGH] - core.tables.state[at.S_LOW] + 1),
            "uncommitted_bytes": core.arena.high - core.committed_position,
            "disk_bytes": core.disk.bytes_used(),
            "block_bytes": sum(blocks.bytes_on_disk for blocks in core.blocks),
            "blocks": sum(len(blocks.blocks) for blocks in core.blocks),
            "cursors": int((states != inside.CURSOR_FREE).sum()),
            "cursors_dropped": int((states == inside.CURSOR_DROPPED).sum()),
        }


def value_after_expiry(item: Item) -> tuple[bytes, int]:
    """What a tombstone keeps of an item: its system xattrs, and their datatype."""
    if not item.datatype & at.DATATYPE_XATTR:
        return b"", 0
    try:
        value = inflate(item.value) if item.datatype & at.DATATYPE_SNAPPY else item.value
        pairs, _ = split_xattrs(value)
    except HeadraceError:
        return b"", 0  # a value whose xattrs cannot be read has none to keep
    system = {name: content for name, content in pairs.items() if name.startswith("_")}
    return (join_xattrs(system, b""), at.DATATYPE_XATTR) if system else (b"", 0)
