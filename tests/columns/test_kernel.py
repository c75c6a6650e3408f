"""The walk: the common mutation at every edge, broken headers, limits, and bounds of memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import numpy as np
import pytest

import headrace
from headrace.columns import block as b
from headrace.columns.block import BlockPool
from headrace.columns.scan import Scanner
from headrace.columns.schema import COLUMNS
from headrace.wire.frame import HEADER_SIZE
from tests.columns.makers import frame, marker, mutation

SIZES: Final = (0, 1, 31, 32, 33, 63, 64, 65, 66, 127, 128, 500)


@pytest.mark.parametrize("behind", [0, 1, 63, 64, 65, 200])
def test_payloads_of_every_size_come_out_whole_whatever_follows(behind: int) -> None:
    """Near the end of the buffer copies are exact, before it they are done in whole vectors."""
    filler = frame(0x5C, b"", b"", b"n" * (behind - 24)) if behind >= 24 else b"\x80" * behind
    for key_size in (size for size in SIZES if 0 < size < 400):
        for value_size in SIZES:
            key, value = bytes([1]) * key_size, bytes([2]) * value_size
            data = mutation(1, key=key, value=value) + mutation(2, key=b"x", value=b"y") + filler
            batch = Scanner().scan(data).batch
            assert batch.column("key").to_pylist() == [key, b"x"]
            assert batch.column("value").to_pylist() == [value, b"y"]


def test_a_one_byte_prefix_may_be_the_whole_key() -> None:
    (row,) = Scanner(collections=True).scan(mutation(1, key=b"\x08")).batch.to_pylist()
    assert (row["collection_id"], row["key"]) == (8, b"")


def test_a_frame_is_taken_when_its_last_byte_is_there() -> None:
    data = (
        marker(1, 9) + mutation(1) + frame(0x58, bytes(21), b"k", magic=0x08, framing=b"\x22\0\7")
    )
    ends = [len(marker(1, 9)), len(marker(1, 9)) + len(mutation(1)), len(data)]
    for size in range(len(data) + 1):
        result = Scanner().scan(data[:size])
        assert result.error is None
        assert result.consumed == max([0, *(end for end in ends if end <= size)]), size


BROKEN: Final = {
    "magic": (b"\x42" + bytes(30), "magic 42", 0),
    "magic, one byte": (b"\x42", "magic 42", 0),
    "body": (mutation(1)[:8] + b"\x7f\xff\xff\xff" + bytes(12), "limit 31457280", 8),
    "lengths": (frame(0x57, bytes(31), b"k")[:11] + b"\x1f" + bytes(60), "31+1 bytes", 8),
    "lengths of a flexible frame": (
        b"\x08\x57\xff\xff\xff" + frame(0x57)[5:11] + b"\x01" + bytes(60),
        "255+255+255 bytes",
        8,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_header_ends_the_scan_at_its_place_and_for_ever(name: str) -> None:
    broken, text, offset = BROKEN[name]
    good = mutation(1)
    scanner = Scanner()
    scanner.scan(good)
    result = scanner.scan(good + broken)
    assert result.consumed == len(good)
    assert result.batch.num_rows == 1
    assert result.error is not None
    assert result.error.fatal
    assert text in str(result.error)
    assert result.error.offset == 2 * len(good) + offset
    again = scanner.scan(good)
    assert again.error is result.error
    assert (again.consumed, again.batch.num_rows) == (0, 0)


def test_a_body_of_exactly_the_limit_is_taken_and_one_more_is_not() -> None:
    data = mutation(1, value=b"v" * 100)
    size = len(data) - HEADER_SIZE
    assert Scanner(body_size_max=size).scan(data).consumed == len(data)
    error = Scanner(body_size_max=size - 1).scan(data).error
    assert error is not None
    assert error.status == 0x03


def test_a_full_batch_ends_the_scan_and_the_next_goes_on() -> None:
    data = b"".join(mutation(seqno) for seqno in range(1, 8))
    scanner = Scanner(rows_max=3)
    found = []
    while (result := scanner.scan(data)).consumed:
        data = data[result.consumed :]
        found.append(result.batch.column("seqno").to_pylist())
    assert found == [[1, 2, 3], [4, 5, 6], [7]]


def test_a_full_list_of_others_ends_the_scan_and_the_next_goes_on() -> None:
    data = mutation(1) + 5 * frame(0x5C) + mutation(2)
    scanner = Scanner(others_max=2)
    found = []
    while (result := scanner.scan(data)).consumed:
        data = data[result.consumed :]
        found.append((len(result.others), result.batch.num_rows))
    assert found == [(2, 1), (2, 0), (1, 1)]


MIXED: Final = (
    frame(0x57, bytes(31), b"k"),
    frame(0x57, bytes(28), b"k", vbucket=6),
    frame(0x58, bytes(21), b"k"),
    frame(0x60, bytes(31), b"k", vbucket=7),
    frame(0x62, bytes(16), b"k"),
    frame(0x5F, bytes(13)),
    frame(0x64, bytes(8), magic=0x08, framing=b"\x22\0\7"),
)


def test_nothing_is_written_between_the_arrays_or_into_the_zeros() -> None:
    """A full batch of mixed rows stays within the array of every column."""
    pool = BlockPool()
    many = b.ROWS_MAX // len(MIXED) + 1
    data = marker(1, 9) + marker(1, 9, vbucket=7) + b"".join(MIXED) * many
    block = pool.lend(len(data))
    edges = sorted([*b.PLACES.values(), b.PAYLOAD])
    for place in edges[1:]:
        block.memory[place - 64 : place] = 0xA5
    pool.give_back(block)
    result = Scanner(pool=pool, others_max=1).scan(data)
    assert result.batch.num_rows == b.ROWS_MAX
    assert result.batch.column("seqno").buffers()[1].address == block.address + b.PLACES["seqno"]
    for place in edges[1:]:
        assert (block.memory[place - 64 : place] == 0xA5).all(), place
    zeros = b.PLACES["zeros"]
    assert not block.memory[zeros : zeros + 8 * b.ROWS_MAX].any()
    result.batch.validate(full=True)


def test_a_block_used_before_shows_nothing_of_its_past() -> None:
    """Sparse columns are cleared for the first row that needs them."""
    data = b"".join(MIXED) * 2000
    pool = BlockPool()
    block = pool.lend(len(data))
    block.memory[b.BODY : b.PLACES["zeros"]] = 0xFF
    pool.give_back(block)
    batch = Scanner(pool=pool).scan(data).batch
    assert batch.column("seqno").buffers()[1].address == block.address + b.PLACES["seqno"]
    for column in COLUMNS:
        if column.is_binary or column.presence is None:
            continue
        array = batch.column(column.name)
        numbers = np.frombuffer(array.buffers()[1], dtype=f"u{column.width}")[: len(array)]
        null = array.is_null().to_numpy(zero_copy_only=False)
        assert not numbers[null].any(), column.name


GUARDED: Final = """
import ctypes, mmap, sys
from random import Random
sys.path[:0] = {paths!r}
import numpy as np
from headrace.columns.scan import Scanner
from tests.columns.makers import mutation
from tests.fuzz.conversations import conversation
PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
SIZE = 64 * PAGE
area = mmap.mmap(-1, SIZE + PAGE)
address = ctypes.addressof(ctypes.c_char.from_buffer(area))
end = address + SIZE
assert libc.mprotect(ctypes.c_void_p(end), PAGE, 0) == 0, ctypes.get_errno()
view = np.frombuffer(area, dtype=np.uint8)[:SIZE]
def scan(data):
    view[SIZE - len(data):] = np.frombuffer(data, dtype=np.uint8)
    Scanner(collections=len(data) % 2 == 0, stream_ids=True).scan(view[SIZE - len(data):])
for seed in range(150):
    scan(conversation(Random(seed), 10)[: SIZE - 1])
for size in range(1, 80):
    data = mutation(1, key=b"k" * size, value=b"v" * size)
    for cut in range(max(1, len(data) - 100), len(data) + 1):
        scan(data[:cut])
sys.stdout.write("survived")
sys.stdout.flush()
import os
os._exit(0)  # the area cannot be unmapped while it is exported
"""


def test_nothing_is_read_behind_the_buffer() -> None:
    """The byte behind every buffer lies in a page that nobody may touch."""
    source = Path(headrace.__file__).parent.parent
    tests = Path(__file__).parent.parent.parent
    script = GUARDED.format(paths=[str(source), str(tests)])
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=110
    )
    assert (done.returncode, done.stdout) == (0, "survived"), done.stderr
