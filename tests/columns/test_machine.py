"""Memory through LLVM: every width, both orders."""

from __future__ import annotations

import sys

import numpy as np

from headrace.columns import machine
from headrace.columns.machine import compiled


@compiled
def read_all(at: int) -> tuple[int, ...]:
    return (
        machine.wire8(at),
        machine.wire16(at),
        machine.wire32(at),
        machine.wire64(at),
        machine.host16(at),
        machine.host32(at),
        machine.host64(at),
    )


@compiled
def write_all(at: int, number: int) -> None:
    machine.store8(at, number)
    machine.store16(at + 8, number)
    machine.store32(at + 16, number)
    machine.store64(at + 24, number)


@compiled
def move_all(target: int, source: int) -> None:
    machine.move32(target, source)
    machine.move64(target + 64, source)
    machine.copy(target + 128, source, 5)
    machine.zero(target + 136, 3)
    machine.prefetch(source)
    machine.prefetch_to_write(0)


def memory(data: bytes) -> tuple[np.ndarray[tuple[int], np.dtype[np.uint8]], int]:
    # One byte off, so that nothing is aligned.
    held = np.frombuffer(b"\0" + data, dtype=np.uint8).copy()
    return held, int(held.ctypes.data) + 1


def test_numbers_are_read_in_the_order_they_are_said_to_have() -> None:
    data = bytes([0xF1, 2, 3, 4, 5, 6, 7, 0xF8])
    _held, at = memory(data)
    found = read_all(at)
    big = [int.from_bytes(data[:size], "big") for size in (1, 2, 4)]
    assert found[:3] == (*big,)
    assert found[3] == int.from_bytes(data, "big", signed=True)
    host = [int.from_bytes(data[:size], sys.byteorder) for size in (2, 4)]
    assert found[4:6] == (*host,)
    assert found[6] == int.from_bytes(data, sys.byteorder, signed=True)


def test_a_store_writes_its_width_and_no_more() -> None:
    held, at = memory(b"\xee" * 32)
    write_all(at, -2)
    written = held[1:].tobytes()
    low = (-2 & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, sys.byteorder)
    for place, size in ((0, 1), (8, 2), (16, 4), (24, 8)):
        expected = low[:size] if sys.byteorder == "little" else low[8 - size :]
        assert written[place : place + 8] == expected + b"\xee" * (8 - size)


def test_copies_copy_what_they_say() -> None:
    source = bytes(range(64))
    _kept, source_at = memory(source)
    held, at = memory(b"\xee" * 160)
    move_all(at, source_at)
    written = held[1:].tobytes()
    assert written[:64] == source[:32] + b"\xee" * 32
    assert written[64:128] == source
    assert written[128:144] == source[:5] + b"\xee" * 3 + b"\0" * 3 + b"\xee" * 5
