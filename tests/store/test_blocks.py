"""Blocks as memory knows them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headrace.store.blocks import (
    DISTANCE_MAX,
    Block,
    BlockList,
    find_row,
    lower_row,
    mark_rows,
    scan_frames,
)
from headrace.store.native import address_of, bytes_at
from tests.store.test_rewrite import mutations


def block(first: int, last: int) -> Block:
    """A block with every second seqno."""
    rows = np.zeros(((last - first) // 2 + 1, 3), np.uint32)
    rows[:, 0] = np.arange(0, last - first + 1, 2)
    rows[:, 1] = np.arange(len(rows)) * 50
    return Block(0, first, last, 50 * len(rows), 1, rows, checked=True)


def test_rows_are_found_by_seqno() -> None:
    one = block(10, 20)
    assert [one.row_of(seqno) for seqno in (10, 12, 20)] == [0, 1, 5]
    assert [one.row_of(seqno) for seqno in (11, 9, 21)] == [-1, -1, -1]
    assert [lower_row(one.rows, offset) for offset in (0, 1, 2, 10, 11)] == [0, 1, 1, 5, 6]
    assert find_row(one.rows, 1) == -1
    assert (one.extent(0), one.extent(5)) == ((0, 50), (250, 300))


def test_a_list_finds_the_block_that_holds_or_follows_a_seqno() -> None:
    blocks = BlockList()
    for first in (10, 30, 50):
        blocks.append(block(first, first + 8))
    held = [getattr(blocks.holding(seqno), "first", None) for seqno in (9, 10, 18, 19, 30, 58, 59)]
    assert held == [None, 10, 10, None, 30, 50, None]
    following = [getattr(blocks.after(s), "first", None) for s in (0, 9, 10, 17, 18, 29, 49, 58)]
    assert following == [10, 10, 10, 10, 30, 30, 50, None]
    assert blocks.bytes_on_disk == 3 * (5 * 50 + 32)
    blocks.replace([block(1, 3)])
    assert blocks.bytes_in_memory == 2 * 12


def test_marks_reach_their_rows_and_no_others() -> None:
    blocks = BlockList()
    blocks.append(block(10, 18))
    blocks.append(block(30, 38))
    old = np.array([12, 30, 38, 20, 31, 5], np.int64)
    new = np.array([15, 40, 38 + 2**40, 50, 60, 70], np.int64)
    blocks.mark(old, new)
    assert blocks.blocks[0].rows[:, 2].tolist() == [0, 3, 0, 0, 0]
    assert blocks.blocks[1].rows[:, 2].tolist() == [10, 0, 0, 0, DISTANCE_MAX]


def test_marks_are_written_in_any_order() -> None:
    generator = random.Random(4)
    one = block(1, 401)
    old = np.array(generator.sample(range(1, 402, 2), 50), np.int64)
    mark_rows(one.rows, 1, old, old + 7)
    marked = {1 + int(row[0]) for row in one.rows if row[2] == 7}
    assert marked == set(old.tolist())


def test_frames_are_scanned_into_rows() -> None:
    frames = mutations(5)
    data = b"".join(frames)
    rows = np.zeros((5, 3), np.uint32)
    assert scan_frames(address_of(bytes_at(data)), len(data), 1, rows) == 5
    assert rows[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert rows[:, 1].tolist() == [sum(map(len, frames[:n])) for n in range(5)]


@pytest.mark.parametrize(
    "data",
    [
        b"".join(mutations(2))[:-1],
        b"".join(reversed(mutations(2))),
        b"".join(mutations(6)),
        mutations(1)[0] + b"\x80",
        bytes(24),
    ],
    ids=["cut", "falling", "too many", "a rest", "no seqno"],
)
def test_frames_that_do_not_add_up_are_refused(data: bytes) -> None:
    rows = np.zeros((5, 3), np.uint32)
    assert scan_frames(address_of(bytes_at(data)), len(data), 1, rows) == -1


def test_a_value_is_known_by_size_and_stamp() -> None:
    one = block(1, 3)
    assert not one.matches(None)
    assert not one.matches(memoryview(bytes(one.bytes_on_disk)))
    value = bytearray(one.bytes_on_disk)
    value[15] = 1
    assert one.matches(memoryview(value))
    assert not one.matches(memoryview(value + b"?"))
