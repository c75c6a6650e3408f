"""One allocation per batch: places, pool, lease."""

from __future__ import annotations

import gc
from threading import Thread
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.columns import block as b
from headrace.columns.block import Block, BlockPool
from headrace.columns.schema import COLUMNS, SCHEMA

SIZES: Final = {
    **{column.name: column.width * (b.ROWS_MAX + 1) for column in COLUMNS},
    "zeros": 8 * b.ROWS_MAX,
    "presence": 2 * b.ROWS_MAX,
    "others": b.OTHER.itemsize * b.OTHERS_MAX,
    **{f"valid {group.name}": b.BITMAP_SIZE for group in b.PRESENCES},
}


def test_no_two_arrays_overlap_and_all_stand_before_the_payload() -> None:
    assert SIZES.keys() == b.PLACES.keys()
    end = b.BODY
    for name, place in sorted(b.PLACES.items(), key=lambda item: item[1]):
        assert place >= end, name
        assert place % 64 == 0, name
        end = place + SIZES[name]
    assert end <= b.PAYLOAD
    assert b.value_place(1000) >= b.PAYLOAD + 1000 + b.SLACK
    assert b.block_size(1000) >= b.value_place(1000) + 1000 + b.SLACK


def test_arrays_of_the_same_width_do_not_run_in_step_through_the_cache() -> None:
    starts = [b.PLACES[column.name] % 4096 for column in COLUMNS if column.width == 8]
    assert len(set(starts)) == len(starts)


def test_a_block_describes_a_batch_without_a_copy() -> None:
    """An untouched block is a batch of one row: the message its metadata was made from."""
    pool = BlockPool()
    block = Block(b.PAYLOAD_MIN)
    batch = pool.batch(block)
    assert batch.schema.equals(SCHEMA, check_metadata=True)
    assert batch.num_rows == 1


def test_the_kernel_knows_where_a_frame_handed_back_stands_among_rows() -> None:
    assert b.OTHER.names is not None
    places = {name: b.OTHER[name] for name in b.OTHER.names}
    assert sum(places[name].itemsize for name in ("offset", "size", "reason")) == b.OTHER_ROW


def test_a_block_begins_where_arrow_recommends() -> None:
    assert all(Block(payload).address % 64 == 0 for payload in (b.PAYLOAD_MIN, 1 << 20, 4 << 20))


def test_memory_comes_back_when_the_last_buffer_is_gone_and_not_before() -> None:
    pool = BlockPool()
    block = pool.lend(1000)
    address = block.address
    batch = pool.batch(block)
    del block
    column = batch.column("seqno")
    del batch
    gc.collect()
    assert pool._free == {}, "a column still points into the block"
    del column
    gc.collect()
    ((free,),) = pool._free.values()
    assert free.address == address
    assert pool.lend(1000) is free


def test_a_slice_keeps_the_block_as_well() -> None:
    pool = BlockPool()
    block = pool.lend(1000)
    part = pa.Table.from_batches([pool.batch(block)]).slice(0, 1).select(["seqno"])
    del block
    gc.collect()
    assert pool._free == {}
    assert part.num_rows == 1


def test_a_block_has_room_for_what_it_is_lent_for() -> None:
    pool = BlockPool()
    for size in (1, b.PAYLOAD_MIN, b.PAYLOAD_MIN + 1, 3 << 20):
        block = pool.lend(size)
        assert block.payload >= size
        assert block.memory.size == b.block_size(block.payload)


def test_the_pool_keeps_no_more_than_its_limit() -> None:
    pool = BlockPool(size_max=2 * 1000)
    blocks = [pool.lend(1) for _ in range(3)]
    for block in blocks:
        block.written = 1000
    addresses = [block.address for block in blocks]
    for block in blocks:
        pool.give_back(block)
    again = [pool.lend(1).address for _ in range(2)]
    assert sorted(again) == sorted(addresses[:2])


def test_blocks_come_back_from_any_thread() -> None:
    pool = BlockPool()
    batches = [pool.batch(pool.lend(1)) for _ in range(8)]
    threads = [Thread(target=batches.pop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert len(pool._free[b.PAYLOAD_MIN]) == 8


def test_the_list_of_others_is_a_copy() -> None:
    block = Block(b.PAYLOAD_MIN)
    place = b.PLACES["others"]
    block.memory[place : place + 16].view(np.uint32)[:] = (1, 2, 3, 4)
    others = block.others(1)
    block.memory[:] = 0
    assert others.tolist() == [(1, 2, 3, 4)]
