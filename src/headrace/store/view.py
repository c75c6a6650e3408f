"""Questions about a vbucket's items that need a look at them: checkpoints, last visible seqno.

Imports: store.layout, store.model, store.native, store.records, store.rewrite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.errors import CorruptRecord
from headrace.store import layout as at
from headrace.store import rewrite as by
from headrace.store.core import seek_item
from headrace.store.disk import Table
from headrace.store.lookup import READ_TRIES_MAX
from headrace.store.model import CheckpointView
from headrace.store.native import address_of, bytes_at, kernel
from headrace.store.records import BLOCK_HEADER

if TYPE_CHECKING:
    from headrace.store.blocks import Block
    from headrace.store.native import Words
    from headrace.store.transform import Transform
    from headrace.store.vbucket import VBucket

CHECKPOINTS_SHOWN_MAX: Final = 64


@kernel
def list_checkpoints(items: Words, ordinal: int, found: Words) -> int:
    """Fill rows of (id, start, last seqno, items) for the checkpoints in memory, oldest first."""
    count = 0
    tag = -1
    while ordinal:
        row = ordinal & (len(items) - 1)
        if items[row, at.I_TAG] != tag:
            if count == len(found):
                break
            tag = items[row, at.I_TAG]
            found[count, 0] = tag >> 16
            found[count, 1] = items[row, at.I_CHECKPOINT_START]
            found[count, 3] = 0
            count += 1
        found[count - 1, 2] = items[row, at.I_SEQNO]
        found[count - 1, 3] += 1
        ordinal = items[row, at.I_NEXT]
    return count


def checkpoints_of(vbucket: VBucket) -> tuple[CheckpointView, ...]:
    """The checkpoints with items in memory, and the open one; lock held."""
    found = np.zeros((CHECKPOINTS_SHOWN_MAX, 4), np.int64)
    count = list_checkpoints(vbucket.core.tables.items, int(vbucket.row[at.V_FIRST]), found)
    rows = found[:count].tolist()
    current = vbucket.checkpoint_id
    if not rows or rows[-1][0] != current:
        rows.append([current, int(vbucket.row[at.V_CHECKPOINT_START]), vbucket.high_seqno, 0])
    return tuple(
        CheckpointView(
            id=number,
            start=start,
            end=end,
            items=items,
            open=number == current,
            from_disk=number in vbucket.disk_checkpoints,
        )
        for number, start, end, items in rows
    )


def last_passing(vbucket: VBucket, transform: Transform, end: int) -> int:
    """The last seqno up to ``end`` that a reader of persisted items gets; 0 if none.

    The kept high seqnos answer it when they lie at or below the end; else items and blocks are
    looked through from the newest back.
    """
    core = vbucket.core
    for _ in range(READ_TRIES_MAX):
        with core.lock:
            if _is_got_at(vbucket, transform, end):
                return end
            core.flush_marks()
            known = _known_high(vbucket, transform)
            if known is not None and known <= end:
                return known
            tables = core.tables
            found = by.last_passing(
                tables.items,
                tables.state,
                core.arena.addresses,
                transform.options,
                transform.wanted,
                # What is sealed is read from its block, where purged tombstones are gone.
                seek_item(
                    tables.items, int(vbucket.row[at.V_FIRST]), int(vbucket.row[at.V_SEALED])
                ),
                int(vbucket.row[at.V_LAST]),
                end,
            )
            blocks = [
                block
                for block in core.blocks[vbucket.id].blocks
                if found < block.last and block.first <= end
            ]
        last = _last_in_blocks(vbucket, blocks, transform, end)
        if last is not None:
            return max(found, last)
        # Other blocks are taking the place of one we wanted: wait until that is done.
        with core.structure:
            pass
    raise CorruptRecord(f"{core.disk.path}: a block is gone", path=core.disk.path)


def _last_in_blocks(
    vbucket: VBucket, blocks: list[Block], transform: Transform, end: int
) -> int | None:
    """The last seqno a reader gets of these blocks, 0 if none; None when one was replaced."""
    if not blocks:
        return 0
    with vbucket.core.disk.read() as reader:
        for block in reversed(blocks):
            value = reader.get(Table.BLOCKS, block.key)
            if value is None or not block.matches(value):
                return None
            frames = bytes_at(value)
            last = by.last_in_block(
                address_of(frames) + BLOCK_HEADER.size,
                block.rows,
                block.first,
                transform.options,
                transform.wanted,
                end,
            )
            if last:
                if last == block.last and not transform.collections:
                    block.ends_for.add(transform.sync_writes)
                return last
    return 0


def _is_got_at(vbucket: VBucket, transform: Transform, end: int) -> bool:
    """Whether a reader without collections is known to get the frame at ``end``; lock held.

    Nothing up to the end can have superseded it, so what a look at the block has found stays true
    as long as the block.
    """
    if transform.collections:
        return False
    block = vbucket.core.blocks[vbucket.id].holding(end)
    return block is not None and block.last == end and transform.sync_writes in block.ends_for


def _known_high(vbucket: VBucket, transform: Transform) -> int | None:
    """The answer as of now from the numbers that are kept; None when they cannot tell."""
    if transform.only_collections is None and transform.collections:
        return vbucket.high_seqno if transform.sync_writes else vbucket.max_visible_seqno
    wanted = transform.only_collections if transform.collections else frozenset((0,))
    assert wanted is not None
    high = vbucket.collections.high(wanted)
    # A purged tombstone, or a dropped default collection, leaves a number without an item.
    return high if high > vbucket.purge_seqno and transform.collections else None
