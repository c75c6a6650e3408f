"""Losing the end of a vbucket on purpose: rollback, failover, flush, deletion.

Everything accepted is committed first; then one batch cuts the vbucket's blocks at the seqno,
seals what the journal holds up to it, and writes a record that makes its older journal entries
meaningless. After that its part of memory is rebuilt from its blocks. Readers notice: cursors are
dropped, views end, callbacks that wait for a lost seqno hear False.

Imports: errors, store.blocks, store.disk, store.index, store.layout, store.loading, store.records,
store.restore.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import CorruptRecord
from headrace.store import layout as at
from headrace.store.accept import open_checkpoint
from headrace.store.blocks import Block, lower_row
from headrace.store.core import seek_item
from headrace.store.disk import Batch, Table
from headrace.store.index import remove_vbucket
from headrace.store.loading import load_blocks
from headrace.store.records import BLOCK_HEADER, fill_block_header, pack_meta, vbucket_key
from headrace.store.restore import gone_record, record_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.store.journal import Journal
    from headrace.store.vbucket import VBucket


def truncate(
    journal: Journal,
    vbucket: VBucket,
    to: int,
    change_log: Callable[[], None],
    check: Callable[[], None] | None = None,
) -> None:
    """Forget everything above ``to``, durably; the structure lock is held.

    ``change_log`` gives the vbucket the failover log it shall have afterwards. ``check`` may raise:
    it is called when no change can come in between any more, and before anything is touched.
    """
    core = vbucket.core
    # Sealing could drop versions that the state at ``to`` needs.
    journal.commit(forced=True, seal=False)
    with core.lock:
        if check is not None:
            check()
        core.flush_marks()
        log = vbucket.failover_log
        batch = Batch()
        blocks = _cut_blocks(vbucket, to, batch) + _seal_items(journal, vbucket, to, batch)
        change_log()
        purge = min(vbucket.purge_seqno, to)
        record = record_of(
            vbucket,
            high=to,
            sealed=to,
            sealed_commit=journal.next_commit,
            purge=purge,
            rewind=min(vbucket.rewind_seqno, to),
            history_floor=min(vbucket.history_floor, to),
        )
        record["received"] = None
        for name in ("completed_floor", "high_prepared", "high_completed"):
            record[name] = min(int(str(record[name])), to)
        record["unsettled"] = [list(one) for one in vbucket.unsettled.ranges if one[0] < to]
        record["collections"] = []
        key = vbucket_key(vbucket.id)
        batch.put(Table.META, key, pack_meta(key, record))
        try:
            core.disk.commit(batch)
        except BaseException:
            vbucket.failover_log = log
            raise
        _rebuild(journal, vbucket, blocks, to)
        vbucket.purge_seqno = purge
        vbucket.record_changed = False
        # Whoever looked while this was under way saw parts of both histories.
        vbucket.generation += 1
        lost = vbucket.waiting.above(to)
    for callback in lost:
        callback(False)


def _cut_blocks(vbucket: VBucket, to: int, batch: Batch) -> list[Block]:
    """The blocks that stay; the one that straddles ``to`` is rewritten, later ones are deleted."""
    kept: list[Block] = []
    core = vbucket.core
    for block in core.blocks[vbucket.id].blocks:
        count = lower_row(block.rows, to + 1 - block.first) if block.first <= to else 0
        if count == 0:
            batch.delete(Table.BLOCKS, block.key)
        elif count == len(block.rows):
            kept.append(block)
        else:
            kept.append(_cut_block(vbucket, block, count, batch))
    return kept


def _cut_block(vbucket: VBucket, block: Block, count: int, batch: Batch) -> Block:
    core = vbucket.core
    size = int(block.rows[count, 1])
    with core.disk.read() as reader:
        value = reader.get(Table.BLOCKS, block.key)
        if value is None or not block.matches(value):
            raise CorruptRecord(
                f"{core.disk.path}: block {block.key.hex()} is gone", path=core.disk.path
            )
        shorter = bytearray(value[: BLOCK_HEADER.size + size])
    last = block.first + int(block.rows[count - 1, 0])
    cut = Block(
        vbucket.id,
        block.first,
        last,
        size,
        core.stamp(),
        block.rows[:count].copy(),
        checked=True,
    )
    fill_block_header(
        memoryview(shorter), count=count, stamp=cut.stamp, first=cut.first, last=cut.last
    )
    batch.put(Table.BLOCKS, cut.key, memoryview(shorter))
    return cut


def _seal_items(journal: Journal, vbucket: VBucket, to: int, batch: Batch) -> list[Block]:
    """New blocks with the items up to ``to`` that only the journal holds so far."""
    core, tables = vbucket.core, vbucket.core.tables
    first = int(vbucket.row[at.V_FIRST])
    beyond = seek_item(tables.items, first, to) if first else 0
    position = core.arena.high
    if beyond:
        position = int(tables.items[tables.item_row(beyond), at.I_POSITION])
    packer = journal.packer
    packer.begin(0)
    packed = packer.pack(packer.plan(vbucket, position, floor=0)).blocks if first else []
    for one in packed:
        batch.put(Table.BLOCKS, one.block.key, one.value)
    return [one.block for one in packed]


def _rebuild(journal: Journal, vbucket: VBucket, blocks: list[Block], to: int) -> None:
    """Bring memory in line with what is now on disk; lock held."""
    core, tables, row = vbucket.core, vbucket.core.tables, vbucket.row
    _forget(vbucket)
    for block in blocks:
        seqnos = block.first + block.rows[:, 0].astype(np.int64)
        lives_again = seqnos + block.rows[:, 2] > to
        block.rows[lives_again, 2] = 0
    core.blocks[vbucket.id].replace(blocks)
    row[at.V_HIGH] = row[at.V_PERSISTED] = row[at.V_SEALED] = row[at.V_MEMORY] = to
    row[at.V_VISIBLE] = 0
    row[at.V_RECEIVING] = 0
    vbucket.received = vbucket.persisted_received = None
    vbucket.unsettled.cut(to)
    vbucket.completed_floor = min(vbucket.completed_floor, to)
    vbucket.settled_prepared = min(vbucket.settled_prepared, to)
    vbucket.sealed_commit = journal.next_commit
    vbucket.rewind_seqno = min(vbucket.rewind_seqno, to)
    vbucket.history_floor = min(vbucket.history_floor, to)
    vbucket.collections.reset([], 0)
    with core.disk.read() as reader:
        load_blocks(vbucket, reader)
    vbucket.complete_known_prepares()
    vbucket.collections.reset(vbucket.collections.to_list(), to)
    open_checkpoint(tables.vbuckets, vbucket.id, to + 1)


def _forget(vbucket: VBucket) -> None:
    """Take the vbucket out of index, items, cursors and views; lock held."""
    core, tables = vbucket.core, vbucket.core.tables
    vbucket.generation += 1
    core.unlink(vbucket.id)
    core.drop_cursors(vbucket.id)
    for view in list(vbucket.views):
        view.rolled_back()
    remove_vbucket(tables.slots, tables.entries, tables.state, vbucket.id)
    tables.tidy()
    vbucket.row[at.V_LIVE] = vbucket.row[at.V_TOMBSTONES] = 0
    vbucket.prepares.clear()
    vbucket.events.clear()


def delete(journal: Journal, vbucket: VBucket) -> None:
    """Forget a vbucket altogether, durably; the structure lock is held."""
    core = vbucket.core
    journal.commit(forced=True)
    with core.lock:
        batch = Batch()
        for block in core.blocks[vbucket.id].blocks:
            batch.delete(Table.BLOCKS, block.key)
        key = vbucket_key(vbucket.id)
        batch.put(Table.META, key, pack_meta(key, gone_record(journal.next_commit)))
        core.disk.commit(batch)
        _forget(vbucket)
        core.blocks[vbucket.id].replace([])
        vbucket.row[:] = 0
        vbucket.exists = False
        lost = vbucket.waiting.above(0)
    for callback in lost:
        callback(False)
