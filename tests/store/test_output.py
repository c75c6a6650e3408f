"""A chunk in the making."""

from __future__ import annotations

from headrace.store import Transform
from headrace.store import rewrite as by
from headrace.store.output import SLACK, Output
from headrace.store.plain import rewrite_frame
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
