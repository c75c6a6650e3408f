"""Frames through a transport that pauses, slows, cuts and counts; without a socket."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from headrace.node.config import OUTPUT_HIGH
from headrace.node.fault_transport import FaultTransport, frames_in
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.messages import Mutation, SnapshotMarker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class Pipe(asyncio.Transport):
    """The transport behind: keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.reading = True
        self.closed = ""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed, "written after the end"
        self.sent += bytes(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return bool(self.closed)

    def close(self) -> None:
        self.closed = self.closed or "closed"

    def abort(self) -> None:
        self.closed = self.closed or "aborted"


class Writer:
    """The connection's part."""

    def __init__(self) -> None:
        self.pipe = Pipe()
        self.transport = FaultTransport(self.pipe, self)
        self.held_back = False

    def pause_writing(self) -> None:
        self.held_back = True

    def resume_writing(self) -> None:
        self.held_back = False

    def finish(self, reason: str) -> None:
        assert reason == "cut on demand"
        self.transport.close()

    def end(self, reason: str) -> None:
        assert reason == "cut on demand"
        self.transport.abort()


def mutation(seqno: int, size: int = 10) -> bytes:
    message = Mutation(by_seqno=seqno, rev_seqno=1, key=b"k%04d" % seqno, value=b"v" * size)
    return encode(message, Dialect.DCP_7)


MARKER = encode(SnapshotMarker(start_seqno=1, end_seqno=9, flags=1), Dialect.DCP_7)


def on_a_loop(check: Callable[[], Coroutine[object, object, None]]) -> None:
    asyncio.run(check())


def test_without_a_fault_everything_passes() -> None:
    async def check() -> None:
        writer = Writer()
        writer.transport.writelines([MARKER, mutation(1)])
        assert writer.pipe.sent == MARKER + mutation(1)
        assert writer.transport.get_write_buffer_size() == 0

    on_a_loop(check)


def test_a_pause_holds_both_directions_in_order_and_within_a_limit() -> None:
    async def check() -> None:
        writer = Writer()
        writer.transport.pause(None)
        writer.transport.write(mutation(1))
        writer.transport.write(mutation(2, OUTPUT_HIGH))
        assert writer.pipe.sent == b""
        seen = [(writer.pipe.reading, writer.held_back)]
        writer.transport.pause_reading()
        writer.transport.resume_reading()
        seen.append((writer.pipe.reading, writer.held_back))
        writer.transport.resume()
        seen.append((writer.pipe.reading, writer.held_back))
        assert writer.pipe.sent == mutation(1) + mutation(2, OUTPUT_HIGH)
        assert seen == [(False, True), (False, True), (True, False)]

    on_a_loop(check)


def test_what_is_held_does_not_change_with_the_writers_memory() -> None:
    async def check() -> None:
        writer = Writer()
        writer.transport.pause(None)
        memory = bytearray(mutation(1))
        writer.transport.write(memory)
        memory[:] = bytes(len(memory))
        writer.transport.resume()
        assert writer.pipe.sent == mutation(1)

    on_a_loop(check)


def test_a_slow_transport_sends_slices_and_stays_in_order() -> None:
    async def check() -> None:
        writer = Writer()
        writer.transport.slow(1_000_000)
        whole = b"".join(mutation(number, 2_000) for number in range(1, 40))
        writer.transport.write(whole)
        assert writer.pipe.sent == b""
        while len(writer.pipe.sent) < len(whole):
            assert whole.startswith(writer.pipe.sent)
            await asyncio.sleep(0.01)
        assert writer.pipe.sent == whole

    on_a_loop(check)


@pytest.mark.parametrize("after", [0, 1, 60, len(mutation(1)), len(mutation(1)) + 5])
def test_a_cut_lets_so_many_bytes_through(after: int) -> None:
    async def check() -> None:
        writer = Writer()
        writer.transport.cut(after, middle=False)
        for number in (1, 2, 3):
            writer.transport.write(mutation(number))
        assert writer.pipe.sent == (mutation(1) + mutation(2))[:after]
        assert writer.pipe.closed == ("aborted" if after == 0 else "closed")

    on_a_loop(check)


@pytest.mark.parametrize("after", [0, 10, len(mutation(1)), len(mutation(1)) + 1])
def test_a_cut_in_the_middle_is_inside_the_frame_then_due(after: int) -> None:
    async def check() -> None:
        writer = Writer()
        writer.transport.cut(after, middle=True)
        writer.transport.write(mutation(1) + mutation(2))
        whole, size = mutation(1) + mutation(2), len(mutation(1))
        expected = size // 2 if after < size else size + size // 2
        assert writer.pipe.sent == whole[:expected]
        assert writer.pipe.closed == "closed"

    on_a_loop(check)


def test_a_cut_that_is_taken_back_does_not_come() -> None:
    async def check() -> None:
        writer = Writer()
        writer.transport.cut(10, middle=False)
        writer.transport.spare()
        writer.transport.write(mutation(1))
        assert writer.pipe.sent == mutation(1)

    on_a_loop(check)


def test_mutations_are_counted_to_the_frame() -> None:
    async def check() -> None:
        writer = Writer()
        sizes: list[int] = []
        writer.transport.count_mutations(2, lambda: sizes.append(len(writer.pipe.sent)))
        writer.transport.count_mutations(3, lambda: sizes.append(len(writer.pipe.sent)))
        writer.transport.write(MARKER + mutation(1))
        assert sizes == []
        writer.transport.write(mutation(2) + mutation(3) + mutation(4))
        two = len(MARKER + mutation(1) + mutation(2))
        assert sizes == [two, two + len(mutation(3))]
        assert writer.pipe.sent == MARKER + b"".join(mutation(number) for number in (1, 2, 3, 4))

    on_a_loop(check)


def test_frames_are_told_apart() -> None:
    data = memoryview(MARKER + mutation(1))
    assert list(frames_in(data)) == [(0, len(MARKER)), (len(MARKER), len(data))]
