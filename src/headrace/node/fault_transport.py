"""A socket's sending end that can be paused, slowed, cut, and told to count what it sends.

It stands between a connection and its real transport, from the first fault on. The connection
always writes whole frames, so the frames of a write can be told apart: that is how a cut can come
exactly after a mutation, or in the middle of a frame.

Rules. Bytes stay in order. What is held back here counts as unsent: over the limit the connection
is told to produce no more, as the real transport would tell it. A paused connection is not read.
A cut sends what it promised to send and then ends the connection.

Imports: wire.frame, wire.opcodes, node.config.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headrace.node import config as limits
from headrace.wire.frame import HEADER_SIZE
from headrace.wire.opcodes import Magic, Opcode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

SLICE_SECONDS: Final = 0.02
"""How often a slowed connection sends."""
MUTATIONS: Final = frozenset({Opcode.MUTATION, Opcode.DELETION, Opcode.EXPIRATION})
_REQUESTS: Final = frozenset({Magic.REQUEST, Magic.ALT_REQUEST})


class Owner(Protocol):
    """The connection that writes."""

    def pause_writing(self) -> None:
        """Produce no more."""

    def resume_writing(self) -> None:
        """Produce again."""

    def finish(self, reason: str) -> None:
        """Close when everything is sent."""

    def end(self, reason: str) -> None:
        """Close at once."""


class Count(NamedTuple):
    """Someone who wants to know when so many mutations are sent."""

    left: int
    reached: Callable[[], None]


class FaultTransport(asyncio.Transport):
    """A transport around another; see the module."""

    def __init__(self, transport: asyncio.Transport, owner: Owner) -> None:
        """Let everything through."""
        super().__init__()
        self._real = transport
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._held: deque[memoryview] = deque()
        self._held_size = 0
        self._told_to_pause = False
        self._paused = False
        self._reading = True
        self._rate = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wake: asyncio.TimerHandle | None = None
        self._cut_after: int | None = None
        self._cut_middle = False
        self._counts: list[Count] = []
        self._ended = False

    # -- faults ----------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        """Whether nothing passes."""
        return self._paused

    @property
    def rate(self) -> int:
        """Bytes per second; 0: no limit."""
        return self._rate

    def pause(self, seconds: float | None) -> None:
        """Let nothing pass in either direction until `resume`, or for a time."""
        self._paused = True
        self._real.pause_reading()
        if self._wake is not None:
            self._wake.cancel()
        self._wake = None if seconds is None else self._loop.call_later(seconds, self.resume)

    def slow(self, rate: int) -> None:
        """Send at most so many bytes per second."""
        self._rate = rate
        self._schedule()

    def resume(self) -> None:
        """Undo `pause` and `slow`."""
        if self._wake is not None:
            self._wake.cancel()
        self._paused, self._rate, self._wake = False, 0, None
        if self._reading and not self._ended:
            self._real.resume_reading()
        self._release(self._held_size)

    def cut(self, after: int, *, middle: bool) -> None:
        """End the connection after so many more bytes, or in the middle of the frame then due."""
        self._cut_after, self._cut_middle = after, middle
        if after == 0 and not middle:
            self._ended = True
            self._owner.end("cut on demand")

    def spare(self) -> None:
        """Undo a `cut` that has not come yet."""
        self._cut_after, self._cut_middle = None, False

    def count_mutations(self, count: int, reached: Callable[[], None]) -> None:
        """Call ``reached`` when so many more mutations are sent and nothing after them."""
        self._counts.append(Count(count, reached))

    # -- the transport ---------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send whole frames, now or when they may pass."""
        view = memoryview(data)
        while self._counts and len(view) and not self._ended:
            size = self._count(view)
            self._cut_and_pass(view[:size])
            view = view[size:]
            self._tell_counts()
        if len(view):
            self._cut_and_pass(view)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send pieces that together are whole frames."""
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        """Unsent bytes, here and behind."""
        return self._held_size + self._real.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Of the transport behind."""
        self._real.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        """The connection wants no input."""
        self._reading = False
        self._real.pause_reading()

    def resume_reading(self) -> None:
        """The connection wants input again; a paused one waits."""
        self._reading = True
        if not self._paused:
            self._real.resume_reading()

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Of the transport behind."""
        return self._real.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Of the transport behind."""
        return self._real.is_closing()

    def abort(self) -> None:
        """Close at once."""
        self._stop()
        self._real.abort()

    def close(self) -> None:
        """Close after what was let through."""
        self._stop()
        self._real.close()

    def _stop(self) -> None:
        self._ended = True
        self._held.clear()
        self._held_size = 0
        for timer in (self._timer, self._wake):
            if timer is not None:
                timer.cancel()

    # -- passing ---------------------------------------------------------------------------------

    def _cut_and_pass(self, view: memoryview) -> None:
        if self._ended:
            return
        if self._cut_after is None:
            self._pass(view)
            return
        if len(view) <= self._cut_after and not (self._cut_middle and len(view) == self._cut_after):
            self._cut_after -= len(view)
            self._pass(view)
            if self._cut_after > 0 or self._cut_middle:
                return
            size = 0
        else:
            size = _inside(view, self._cut_after) if self._cut_middle else self._cut_after
        self._pass(view[:size])
        self._release(self._held_size)
        self._owner.finish("cut on demand")
        self._ended = True

    def _pass(self, view: memoryview) -> None:
        if not len(view):
            return
        if not (self._paused or self._rate or self._held):
            self._real.write(view)
            return
        # The caller may use its memory again: what is held must be our own.
        self._held.append(memoryview(bytes(view)))
        self._held_size += len(view)
        if self._held_size > limits.OUTPUT_HIGH:
            # Again each time: the transport behind may have let the connection go on.
            self._told_to_pause = True
            self._owner.pause_writing()
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is None and self._held and not self._paused and not self._ended:
            self._timer = self._loop.call_later(SLICE_SECONDS, self._slice)

    def _slice(self) -> None:
        self._timer = None
        if self._paused:
            return
        self._release(max(1, int(self._rate * SLICE_SECONDS)) if self._rate else self._held_size)
        self._schedule()

    def _release(self, size: int) -> None:
        while self._held and size > 0 and not self._real.is_closing():
            view = self._held.popleft()
            if len(view) > size:
                self._held.appendleft(view[size:])
                view = view[:size]
            size -= len(view)
            self._held_size -= len(view)
            self._real.write(view)
        if self._told_to_pause and self._held_size <= limits.OUTPUT_LOW:
            self._told_to_pause = False
            self._owner.resume_writing()

    # -- counting --------------------------------------------------------------------------------

    def _count(self, view: memoryview) -> int:
        """Count the mutations up to the first count that is reached; where that frame ends."""
        left = min(count.left for count in self._counts)
        seen = 0
        size = len(view)
        for start, end in frames_in(view):
            if view[start] in _REQUESTS and view[start + 1] in MUTATIONS:
                seen += 1
                if seen == left:
                    size = end
                    break
        self._counts = [count._replace(left=count.left - seen) for count in self._counts]
        return size

    def _tell_counts(self) -> None:
        reached = [count for count in self._counts if count.left <= 0]
        self._counts = [count for count in self._counts if count.left > 0]
        for count in reached:
            count.reached()


def frames_in(view: memoryview) -> Iterator[tuple[int, int]]:
    """Where each frame of whole frames begins and ends."""
    start = 0
    while start + HEADER_SIZE <= len(view):
        end = start + HEADER_SIZE + int.from_bytes(view[start + 8 : start + 12])
        yield start, end
        start = end


def _inside(view: memoryview, after: int) -> int:
    """A place inside the first frame that ends beyond ``after``."""
    for start, end in frames_in(view):
        if end > after:
            return start + (end - start) // 2
    return len(view)
