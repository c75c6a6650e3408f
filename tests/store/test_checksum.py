"""The crc32 of records is zlib's, however it is come by."""

from __future__ import annotations

import random
import zlib

import pytest

from headrace.store import checksum
from headrace.store.checksum import FOLDED_MIN, LANE_SIZE, STRIDE, crc32


@pytest.mark.parametrize("small", [False, True], ids=["folded", "too small to fold"])
@pytest.mark.parametrize("tail", range(STRIDE + LANE_SIZE))
def test_any_size_gives_what_zlib_gives(tail: int, small: bool) -> None:
    generator = random.Random(tail)
    data = generator.randbytes(tail if small else FOLDED_MIN + tail)
    value = generator.randrange(2**32)
    assert crc32(data) == zlib.crc32(data)
    assert crc32(data, value) == zlib.crc32(data, value), "a crc may go on from another"


def test_a_buffer_may_begin_anywhere() -> None:
    data = random.Random(1).randbytes(2 * FOLDED_MIN)
    for start in range(STRIDE):
        part = memoryview(data)[start:]
        assert crc32(part) == zlib.crc32(part)
        assert crc32(bytearray(part)) == zlib.crc32(part)


@pytest.mark.parametrize("data", [bytes(1 << 16), b"\xff" * (1 << 16), bytes(range(256)) * 999])
def test_runs_of_equal_bits_are_told_apart(data: bytes) -> None:
    assert crc32(data) == zlib.crc32(data)
    assert crc32(data) != crc32(data[:-1])


def test_every_flipped_bit_is_noticed() -> None:
    data = bytearray(random.Random(2).randbytes(FOLDED_MIN + 5))
    whole = crc32(data)
    for bit in range(0, 8 * len(data), 7):
        data[bit // 8] ^= 1 << bit % 8
        assert crc32(data) != whole
        data[bit // 8] ^= 1 << bit % 8
    assert crc32(data) == whole


def test_a_machine_without_the_instruction_uses_zlib(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> tuple[int, int]:
        raise AssertionError("this machine cannot")

    monkeypatch.setattr(checksum, "can_fold", lambda: False)
    monkeypatch.setattr(checksum, "folded", refuse)
    data = random.Random(3).randbytes(1 << 16)
    assert crc32(data, 7) == zlib.crc32(data, 7)
