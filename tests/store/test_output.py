"""A chunk in the making."""

from __future__ import annotations

import pytest

from headrace.store import Transform
from headrace.store import layout as at
from headrace.store import rewrite as by
from headrace.store.model import Chunk
from headrace.store.native import address_of
from headrace.store.output import (
    POOL_BUFFERS_MAX,
    POOLED_BYTES_MIN,
    SLACK,
    BufferPool,
    Output,
    cut_chunk,
)
from headrace.store.plain import ABORT_FIELDS, PREPARE_FIELDS, build_frame, rewrite_frame
from tests.store.test_rewrite import mutations


def test_nothing_passed_is_no_chunk() -> None:
    assert Output(100).chunk() is None


def test_plain_frames_are_added_and_counted() -> None:
    transform = Transform(opaque=5)
    output = Output(10)
    frames = mutations(3)
    for seqno, frame in enumerate(frames, 1):
        output.add_plain(frame, seqno, transform)
    chunk = output.chunk()
    assert chunk is not None
    assert bytes(chunk.data) == b"".join(rewrite_frame(frame, transform) or b"" for frame in frames)
    assert (chunk.count, chunk.first_seqno, chunk.last_seqno, chunk.read_seqno) == (3, 1, 3, 3)
    assert output.is_full


def test_what_was_left_out_is_passed_all_the_same() -> None:
    output = Output(1000)
    output.add_plain(mutations(1)[0], 1, Transform(only_collections=frozenset((9,))))
    chunk = output.chunk()
    assert chunk is not None
    assert (chunk.count, chunk.read_seqno, len(chunk.data)) == (0, 1, 0)


def test_growing_keeps_what_is_there() -> None:
    output = Output(100)
    transform = Transform()
    frame = mutations(1)[0]
    output.add_plain(frame, 1, transform)
    output.grow(10 * SLACK)
    assert output.capacity >= 10 * SLACK + len(frame) + by.FRAME_GROWTH_MAX
    large = frame[:8] + (len(frame) - 24 + 50_000).to_bytes(4, "big") + frame[12:] + b"x" * 50_000
    output.add_plain(large, 2, transform)
    chunk = output.chunk()
    assert chunk is not None
    assert bytes(chunk.data) == frame + large


@pytest.mark.parametrize("collections", [True, False])
@pytest.mark.parametrize("stream_id", [None, 7])
def test_a_chunk_is_cut_behind_the_frame_that_reaches_the_limit(
    collections: bool, stream_id: int | None
) -> None:
    transform = Transform(collections=collections, stream_id=stream_id)
    output = Output(10_000)
    written = [rewrite_frame(frame, transform) or b"" for frame in mutations(5)]
    for seqno, frame in enumerate(mutations(5), 1):
        output.add_plain(frame, seqno, transform)
    chunk = output.chunk()
    assert chunk is not None
    for limit in range(1, len(chunk.data) + 2):
        first, rest = cut_chunk(chunk, limit)
        count = first.count
        assert len(b"".join(written[: count - 1])) < limit
        assert bytes(first.data) == b"".join(written[:count])
        assert (first.first_seqno, first.last_seqno) == (1, count)
        if rest is None:
            assert (first, count) == (chunk, 5)
        else:
            assert len(first.data) >= limit
            assert first.read_seqno == count
            assert bytes(rest.data) == b"".join(written[count:])
            seqnos = (rest.count, rest.first_seqno, rest.last_seqno, rest.read_seqno)
            assert seqnos == (5 - count, count + 1, 5, 5)


def test_prepares_are_counted_on_both_sides_of_a_cut() -> None:
    parts = [
        build_frame(kind, vbucket=0, extras=extras, key=b"\0k")
        for kind, extras in (
            (at.PREPARE, PREPARE_FIELDS.pack(1, 1, 0, 0, 0, 0, 0, 1)),
            (at.ABORT, ABORT_FIELDS.pack(1, 2)),
            (at.PREPARE, PREPARE_FIELDS.pack(3, 1, 0, 0, 0, 0, 0, 1)),
            (at.PREPARE, PREPARE_FIELDS.pack(4, 1, 0, 0, 0, 0, 0, 1)),
        )
    ]
    chunk = Chunk(
        data=memoryview(b"".join(parts)),
        count=4,
        first_seqno=1,
        last_seqno=4,
        read_seqno=9,
        prepares=3,
    )
    first, rest = cut_chunk(chunk, len(parts[0]) + 1)
    assert rest is not None
    assert (first.prepares, first.last_seqno) == (1, 2)
    assert (rest.prepares, rest.first_seqno, rest.read_seqno) == (2, 3, 9)


LARGE = 2 * POOLED_BYTES_MIN


def test_a_buffer_is_used_again_once_nobody_sees_its_bytes() -> None:
    pool = BufferPool(100 * LARGE)
    output = Output(LARGE, expect_bytes=LARGE, pool=pool)
    address = output.address
    output.add_plain(mutations(1)[0], 1, Transform())
    chunk = output.chunk()
    assert chunk is not None
    sent = chunk.data[3:10]
    del output, chunk
    other = Output(LARGE, expect_bytes=LARGE, pool=pool)
    assert other.address != address, "its bytes are still on their way"
    del sent
    assert Output(LARGE, expect_bytes=LARGE, pool=pool).address == address


def test_a_pool_keeps_few_buffers_and_no_small_ones() -> None:
    pool = BufferPool(100 * LARGE)
    held = [pool.take(LARGE) for _ in range(POOL_BUFFERS_MAX + 5)]
    assert len({address_of(buffer) for buffer in held}) == len(held)
    pool.take(POOLED_BYTES_MIN - 1)
    assert pool.bytes_kept == POOL_BUFFERS_MAX * LARGE


def test_a_buffer_that_became_too_small_makes_room_for_a_larger_one() -> None:
    pool = BufferPool(100 * LARGE)
    pool.take(LARGE)
    assert len(pool.take(2 * LARGE)) == 2 * LARGE
    assert pool.bytes_kept == 2 * LARGE


def test_a_pool_keeps_no_more_than_its_share() -> None:
    pool = BufferPool(LARGE)
    held = [pool.take(LARGE) for _ in range(3)]
    assert (len(held), pool.bytes_kept) == (3, LARGE)
