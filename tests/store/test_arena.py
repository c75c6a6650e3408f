"""The arena: positions, segments, runs."""

from __future__ import annotations

import pytest

from headrace.store.arena import POOL_SEGMENTS_MAX, Arena

SEGMENT = 1000


def fill(arena: Arena, data: bytes) -> int:
    """Append bytes; their position."""
    segment = arena.room(len(data))
    position = segment.end
    segment.view[segment.used : segment.used + len(data)] = data
    segment.used += len(data)
    return position


def test_bytes_are_found_at_their_position() -> None:
    arena = Arena(SEGMENT)
    places = [(fill(arena, bytes([n]) * (n * 37 % 400 + 1)), n) for n in range(200)]
    for position, n in places:
        size = n * 37 % 400 + 1
        assert bytes(arena.view(position, size)) == bytes([n]) * size
        number = position // SEGMENT
        address = int(arena.addresses[number & (len(arena.addresses) - 1)])
        assert arena.address(position) == address + position - number * SEGMENT
    assert [position for position, _ in places] == sorted(position for position, _ in places)


def test_a_run_never_crosses_a_segment() -> None:
    arena = Arena(SEGMENT)
    first = fill(arena, b"a" * 600)
    second = fill(arena, b"b" * 600)
    third = fill(arena, b"c" * 2500)
    last = fill(arena, b"d" * 10)
    assert (first, second, third, last) == (0, 1000, 2000, 4500)
    assert not arena.has_room(500)
    runs = [bytes(s.view[a:b]) for s, a, b in arena.runs(300, arena.high)]
    assert runs == [b"a" * 300, b"b" * 600, b"c" * 2500 + b"d" * 10]
    assert [bytes(s.view[a:b]) for s, a, b in arena.runs(1000, 1600)] == [b"b" * 600]
    assert arena.runs(arena.high, arena.high) == []


def test_dropped_segments_are_used_again() -> None:
    arena = Arena(SEGMENT)
    for _ in range(10):
        fill(arena, b"x" * SEGMENT)
    assert arena.bytes_allocated == 10 * SEGMENT
    for _ in range(5):
        arena.drop_oldest()
    assert (arena.bytes_allocated, arena.low) == (5 * SEGMENT, 5 * SEGMENT)
    assert arena.bytes_pooled == POOL_SEGMENTS_MAX * SEGMENT
    with pytest.raises(KeyError):
        arena.view(0, 1)
    position = fill(arena, b"y" * SEGMENT)
    assert bytes(arena.view(position, 3)) == b"yyy"
    assert arena.bytes_pooled == (POOL_SEGMENTS_MAX - 1) * SEGMENT


def test_the_address_table_grows_with_the_arena() -> None:
    arena = Arena(SEGMENT)
    positions = [fill(arena, bytes([n % 256]) * SEGMENT) for n in range(200)]
    mask = len(arena.addresses) - 1
    assert mask >= 199
    assert len({int(arena.addresses[position // SEGMENT & mask]) for position in positions}) == 200
