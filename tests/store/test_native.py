"""Loads, stores and copies at addresses."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headrace.store.native import (
    address_of,
    bytes_at,
    copy_bytes,
    fetch_line,
    halves_at,
    hash_bytes,
    kernel,
    load8,
    load16,
    load32,
    load64,
    same_bytes,
    store8,
    store16,
    store32,
    store64,
)


@kernel
def load_all(address: int) -> tuple[int, int, int, int]:
    """One load of each size."""
    return load8(address), load16(address), load32(address), load64(address)


@kernel
def store_all(address: int, value: int) -> None:
    """One store of each size, side by side."""
    store8(address, value)
    store16(address + 1, value)
    store32(address + 3, value)
    store64(address + 7, value)


@kernel
def copy(target: int, source: int, size: int) -> None:
    """A copy."""
    copy_bytes(target, source, size)


@kernel
def sum_of_rows(address: int, count: int) -> tuple[int, int]:
    """The length of the rows at an address, and the sum of their last column."""
    rows = halves_at(address, count)
    total = 0
    for row in range(len(rows)):
        total += rows[row, 2]
    return len(rows), total


def test_rows_at_an_address_are_those_of_the_array_there() -> None:
    rows = np.arange(12, dtype=np.uint32).reshape(4, 3)
    rows[3, 2] = 0xFFFF_FFFF
    assert sum_of_rows(address_of(rows), 4) == (4, 2 + 5 + 8 + 0xFFFF_FFFF)
    assert sum_of_rows(address_of(rows), 0) == (0, 0)


@kernel
def fetch(address: int) -> None:
    """A line asked for."""
    fetch_line(address)


def test_a_line_may_be_asked_for_at_any_address() -> None:
    data = bytes_at(bytes(range(200)))
    for address in (address_of(data), address_of(data) + 63, 0, -1, 2**62):
        fetch(address)
    assert bytes(data) == bytes(range(200))


def test_numbers_are_big_endian_at_any_alignment() -> None:
    data = bytes_at(bytes(range(1, 20)))
    for offset in range(8):
        first = offset + 1
        expected = tuple(
            int.from_bytes(bytes(range(first, first + size)), "big") for size in (1, 2, 4, 8)
        )
        assert load_all(address_of(data) + offset) == expected


def test_the_bits_of_large_numbers_are_kept() -> None:
    data = bytes_at(b"\xff" * 8)
    assert load_all(address_of(data)) == (0xFF, 0xFFFF, 0xFFFF_FFFF, -1)


def test_stores_take_the_low_bits() -> None:
    target = np.zeros(15, np.uint8)
    store_all(address_of(target), 0x1122334455667788)
    assert bytes(target).hex() == "887788556677881122334455667788"


def test_a_copy_takes_exactly_its_size() -> None:
    source, target = bytes_at(bytes(range(50))), np.full(50, 255, np.uint8)
    copy(address_of(target) + 3, address_of(source) + 1, 40)
    assert bytes(target) == b"\xff" * 3 + bytes(range(1, 41)) + b"\xff" * 7
    copy(address_of(target), address_of(source), 0)
    assert target[0] == 255


@pytest.mark.parametrize("size", range(20))
def test_bytes_are_equal_only_if_all_are(size: int) -> None:
    left = bytearray(range(size))
    one = bytes_at(left)
    for place in range(size):
        right = bytearray(left)
        right[place] ^= 1
        other = bytes_at(right)
        assert not same_bytes(address_of(one), address_of(other), size)
    twin = bytes_at(bytearray(left) + b"?")
    assert same_bytes(address_of(one) if size else 0, address_of(twin), size)


def test_hashes_spread_and_depend_on_every_byte_and_the_seed() -> None:
    generator = random.Random(1)
    seen = set()
    for _ in range(2000):
        data = bytes_at(generator.randbytes(generator.randrange(1, 40)))
        seen.add(hash_bytes(address_of(data), len(data), 7))
    assert len(seen) > 1990
    keys = [bytes_at(b"key-%05d" % number) for number in range(20_000)]
    numbers = np.array([hash_bytes(address_of(key), len(key), 7) for key in keys])
    for shift in (0, 20, 40, 54):
        counts = np.bincount((numbers >> shift) & 0x3FF, minlength=1024)
        assert counts.max() < 60, "no slot gets thrice its share"
    key = keys[0]
    assert hash_bytes(address_of(key), 9, 7) != hash_bytes(address_of(key), 9, 8)
    assert hash_bytes(address_of(key), 8, 7) != hash_bytes(address_of(key), 9, 7)
