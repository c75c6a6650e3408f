"""One socket: bytes in, frames to the session, joined replies and stream data out.

Rules:

* All connections of a node share one receive buffer: it is filled, read and free again within one
  call. What is left of it (half a frame, or requests that must wait) is held by the connection.
* Requests stay in order. Replies to what came together leave together, in slices.
* A run of plain reads and writes is answered by the store in one call; anything else frame by
  frame.
* A connection stops taking input when its peer does not read (unsent replies over a limit), while
  an answer is still to come, and after so many requests in one turn: others get theirs.
* Stream data is pulled in slices between looks at the input, while the peer reads: a long backfill
  never keeps a request waiting.
* What waits for a peer that does not read counts in its bucket's quota. When such peers hold their
  share of it together, everyone's slices are small and nothing is read ahead.
* A frame that cannot be found the end of closes the connection; the reason is logged.

Imports: errors, wire, node.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar, cast

from headrace.errors import RemoteProtocolError
from headrace.node import config as limits
from headrace.node.config import is_loopback
from headrace.node.logs import LOGGER, note
from headrace.node.replica import BULK_OPCODES
from headrace.node.replies import Later
from headrace.node.session import Session
from headrace.node.tls import common_name
from headrace.node.users import Role
from headrace.wire.frame import (
    BODY_SIZE_MAX,
    HEADER_SIZE,
    body_lengths,
    cut,
    lengths_error,
    opcode_name,
)
from headrace.wire.opcodes import Feature, Magic, Opcode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.node.link import Timer
    from headrace.node.replies import Answer
    from headrace.node.server import Node
    from headrace.store import Bucket
    from headrace.wire.frame import Frame

FAST_OPCODES: Final = frozenset(
    {Opcode.GET, Opcode.GETQ, Opcode.GETK, Opcode.GETKQ, Opcode.SET, Opcode.SETQ}
)
Around = TypeVar("Around", bound=asyncio.Transport)
_REQUEST: Final = int(Magic.REQUEST)
_MAGICS: Final = frozenset(int(magic) for magic in Magic)


def joined(parts: list[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Small parts together, large ones as they are: a chunk of a backfill is not copied again."""
    small: list[bytes | memoryview] = []
    for part in parts:
        if len(part) < limits.JOIN_SIZE_MAX:
            small.append(part)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield part
    if small:
        yield b"".join(small)


class Connection(asyncio.BufferedProtocol):
    """One peer's socket; the `Link` of its session."""

    def __init__(self, node: Node, *, encrypted: bool) -> None:
        """Made by the server for each socket it accepts."""
        self._node = node
        self._encrypted = encrypted
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._transport: asyncio.Transport | None = None
        self._held = bytearray()
        self._front = 0
        """Bytes of what is held that stand in the receive buffer, before what comes."""
        self._replies: list[bytes | memoryview] = []
        self._replies_size = 0
        self._waiting: Later | None = None
        self._waiting_frame: Frame | None = None
        self._write_paused = False
        self._reading = True
        self._turn_scheduled = False
        self._pump_scheduled = False
        self._tick: asyncio.TimerHandle | None = None
        self._tick_at = 0.0
        self._output_counted: tuple[Bucket, int] | None = None
        """What waits for this peer, and the bucket whose quota it counts in."""
        self._received_at = 0.0
        self._connected_at = 0.0
        self._closed = ""

    # -- what asyncio calls ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin a session, or end it at once when the node is full or stopping."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=limits.OUTPUT_HIGH, low=limits.OUTPUT_LOW)
        peer = transport.get_extra_info("peername")
        local = transport.get_extra_info("sockname")
        host = str(peer[0]) if peer else ""
        self.session = Session(
            self._node,
            self,
            number=self._node.next_connection_number(),
            peer=f"{host}:{peer[1]}" if peer else "unknown",
            address=str(local[0]) if local else self._node.config.host,
            encrypted=self._encrypted,
            loopback=is_loopback(host),
        )
        if self._encrypted:
            self.session.show_certificate(common_name(transport.get_extra_info("peercert")))
        self._connected_at = self._received_at = self._loop.time()
        note("connected", logging.DEBUG, connection=self.session.number, peer=self.session.peer)
        if not self._node.admit(self):
            self.end(f"the node has {limits.CONNECTIONS_MAX} connections or is stopping")

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """The node's one receive buffer, behind the half frame that is held if that is small.

        So that frame is whole where it is received, and goes with those that follow it.
        """
        self._front = 0
        buffer, held = self._node.receive_buffer, len(self._held)
        if held and held <= limits.FRONT_SIZE_MAX and not self._blocked():
            self._front = held
            buffer[:held] = self._held
        return buffer[self._front :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes came."""
        self._received_at = self._loop.time()
        self._node.counters.bytes_received += nbytes
        front, self._front = self._front, 0
        chunk = self._node.receive_buffer[: front + nbytes]
        if front:
            self._held.clear()
        elif self._held and not self._blocked():
            chunk = chunk[self._complete_held(chunk) :]
        if self._held or self._blocked():
            self._held += chunk
            self._turn()
            return
        used = self._answer_requests(chunk, len(chunk))
        if not self._closed:
            self._held += chunk[used:]
            self._after_turn()

    def eof_received(self) -> bool:
        """The peer sends no more: close when everything is sent."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything."""
        reason = self._closed or (f"the link broke: {exc}" if exc else "the peer closed it")
        self._closed = reason
        if self._waiting is not None:
            self._waiting.forget()
            self._waiting = None
        if self._tick is not None:
            self._tick.cancel()
        self._held.clear()
        self._node.dismiss(self)
        self._count_output(0)
        self.session.close()
        note("disconnected", logging.DEBUG, connection=self.session.number, reason=reason)

    def pause_writing(self) -> None:
        """The peer does not read: produce no more."""
        self._write_paused = True
        self._regulate()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self._write_paused = False
        self._count_output(0)
        self._schedule_turn()
        self._schedule_pump()

    @property
    def closed_reason(self) -> str:
        """Why it is closed; empty while it is open."""
        return self._closed

    @property
    def unsent_bytes(self) -> int:
        """Bytes the peer has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def held_bytes(self) -> int:
        """Bytes received that are not answered yet."""
        return len(self._held)

    @property
    def received_at(self) -> float:
        """When the last byte came, by the event loop's clock."""
        return self._received_at

    # -- the link of the session -----------------------------------------------------------------

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call on the event loop's thread; may be asked from any thread."""
        with suppress(RuntimeError):  # the loop closed meanwhile: nobody waits
            self._loop.call_soon_threadsafe(function)

    def call_later(self, seconds: float, function: Callable[[], None]) -> Timer:
        """Call on the event loop's thread after so many seconds."""
        return self._loop.call_later(seconds, function)

    def off_loop(self, function: Callable[[], object], then: Callable[[object], None]) -> None:
        """Call on a worker thread, then tell the event loop's thread what came of it."""
        self._node.off_loop(function, then)

    def wake(self) -> None:
        """The producer has something to pull; from any thread."""
        if self._pump_scheduled:
            return
        if threading.get_ident() == self._thread:
            self._schedule_pump()
        else:
            self.call_soon(self._schedule_pump)

    def send(self, data: bytes) -> None:
        """Send whole frames that answer nothing."""
        if self._transport is not None and not self._closed:
            self._node.counters.bytes_sent += len(data)
            self._transport.write(data)

    def end(self, reason: str) -> None:
        """Close at once, without waiting for the peer to read what is unsent."""
        if self._closed or self._transport is None:
            return
        self._closed = reason
        note("closing", connection=self.session.number, peer=self.session.peer, reason=reason)
        self._transport.abort()

    def finish(self, reason: str) -> None:
        """Close when everything is sent, or after a few seconds."""
        if self._closed or self._transport is None:
            return
        self._closed = reason
        note("closing", connection=self.session.number, peer=self.session.peer, reason=reason)
        self._transport.close()
        self._loop.call_later(limits.STOP_SECONDS, self._transport.abort)

    def divert(self, around: Callable[[asyncio.Transport], Around]) -> Around:
        """Send through a transport that stands around the one there is."""
        assert self._transport is not None
        diverted = self._transport = around(self._transport)
        return diverted

    def check_time(self, now: float) -> None:
        """Close a peer that leaves a frame unfinished, or never logs in where it must."""
        session = self.session
        if self._closed:
            return
        if (
            self._held
            and not self._blocked()
            and now - self._received_at > limits.HALF_FRAME_SECONDS_MAX
        ):
            self.end(f"half a frame for {limits.HALF_FRAME_SECONDS_MAX:.0f} seconds")
        elif session.role == Role.NONE and now - self._connected_at > limits.LOGIN_SECONDS_MAX:
            self.end(f"no login within {limits.LOGIN_SECONDS_MAX:.0f} seconds")

    # -- input -----------------------------------------------------------------------------------

    def _blocked(self) -> bool:
        """Whether input must wait."""
        if self._closed or self._waiting is not None or self._turn_scheduled:
            return True
        if not self._write_paused:
            return False
        if self.session.stream_end is None:
            return True
        # A change-stream peer that is slow to read must still be heard: it may close a stream.
        assert self._transport is not None
        return self._transport.get_write_buffer_size() > limits.OUTPUT_HELD_MAX

    def _complete_held(self, chunk: memoryview) -> int:
        """Answer the half frame that is held, with the bytes it lacks; how many those are.

        So that what follows is answered where it was received, and not copied behind it first.
        """
        held = len(self._held)
        head = bytes(self._held[:HEADER_SIZE]) + bytes(chunk[: max(0, HEADER_SIZE - held)])
        if len(head) < HEADER_SIZE:
            return 0
        lacking = HEADER_SIZE + int.from_bytes(head[8:12], "big") - held
        if not 0 < lacking <= len(chunk):
            return 0
        self._held += chunk[:lacking]
        self._answer_held()
        return lacking

    def _answer_held(self) -> None:
        with memoryview(self._held) as view:
            used = self._answer_requests(view, len(view))
        if used:
            del self._held[:used]

    def _turn(self) -> None:
        """Answer what is held, as far as it may be answered now."""
        if self._held and not self._blocked():
            self._answer_held()
        self._after_turn()

    def _after_turn(self) -> None:
        self._flush()
        if self.session.closing and self._waiting is None:
            self.finish(self.session.closing)
            return
        if self.session.stream_end is not None:
            self._schedule_pump()
        self._regulate()

    def _answer_requests(self, data: memoryview, end: int) -> int:
        """Answer the requests in ``data``; the number of bytes that are done with."""
        at = 0
        budget = limits.REQUESTS_PER_TURN
        while at < end:
            if self._blocked() or self.session.closing:
                break
            if budget == 0:
                self._schedule_turn()
                break
            served = self._serve_run(data, at, end)
            if served:
                at += served
                continue
            try:
                size = self._frame_size(data, at, end)
                if size == 0:
                    break
                frame = cut(data, at, body_lengths(data, at))
            except RemoteProtocolError as error:
                self._break(error)
                return end
            at += size
            budget -= 1
            self._take(frame)
            if self._pump_scheduled and self.session.producer is not None:
                budget = min(budget, limits.STREAM_REQUESTS_PER_TURN)
        return at

    def _serve_run(self, data: memoryview, at: int, end: int) -> int:
        """Let the store answer a run of plain requests; the number of bytes it answered."""
        if end - at < HEADER_SIZE or data[at] != _REQUEST:
            return 0
        session = self.session
        if data[at + 1] in BULK_OPCODES:
            whole = HEADER_SIZE + int.from_bytes(data[at + 8 : at + 12], "big") <= end - at
            return session.receive_bulk(data[at:end]) if whole else 0
        if data[at + 1] not in FAST_OPCODES or not self._is_plain():
            return 0
        host = session.host
        replies, used = host.bucket.serve_requests(
            data[at:end],
            now=session.now,
            collections=host.plain_collections if session.collections else None,
            held=host.locked_vbuckets(session.monotonic),
            mutation_tokens=session.has(Feature.MUTATION_SEQNO),
            datatypes=session.has(Feature.JSON),
        )
        if used:
            self._node.counters.bulk_bytes += used
            self._reply(replies)
        return used

    def _is_plain(self) -> bool:
        """Whether the store knows everything a plain request of this session needs."""
        session = self.session
        host = session.selected
        return (
            host is not None
            and self._node.serves_runs
            and session.role >= Role.WRITE
            and (session.collections or host.is_plain)
        )

    def _frame_size(self, data: memoryview, at: int, end: int) -> int:
        """Size of the frame at ``at``; 0 until it is whole. Raises what closes the connection."""
        if end - at < HEADER_SIZE:
            # A wrong magic is told at its first byte: a peer that speaks another protocol may wait.
            if data[at] not in _MAGICS:
                body_lengths(bytes(data[at : at + 1]) + bytes(HEADER_SIZE))
            return 0
        parts = framing, extras, key, body = body_lengths(data, at)
        limit = BODY_SIZE_MAX
        if self.session.role == Role.NONE:
            limit = limits.BODY_SIZE_MAX_BEFORE_LOGIN
        if body > limit or framing + extras + key > body:
            raise lengths_error(parts, opcode_name(data[at], data[at + 1]), limit)
        size = HEADER_SIZE + body
        return size if end - at >= size else 0

    def _take(self, frame: Frame) -> None:
        self._node.counters.requests[frame.opcode] += 1
        faults = self._node.faults
        if faults is not None and (answer := faults.answer(self, frame)) is not None:
            self._reply(answer)
            return
        outcome = self.session.receive(frame)
        if not isinstance(outcome, Later):
            self._reply(outcome)
            return
        self._waiting, self._waiting_frame = outcome, frame
        outcome.then(self._answered)

    def _answered(self, answer: Answer) -> None:
        """The answer everything else waited for is here."""
        frame = self._waiting_frame
        self._waiting = self._waiting_frame = None
        if frame is not None and not self._closed:
            self._reply(self.session.finish(frame, answer))
            self._schedule_turn()

    def _break(self, error: RemoteProtocolError) -> None:
        self._flush()
        note(
            "bad_frame",
            logging.WARNING,
            connection=self.session.number,
            peer=self.session.peer,
            reason=error,
        )
        self.finish(str(error))

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled and not self._closed:
            self._turn_scheduled = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_scheduled = False
        if not self._closed:
            self._turn()

    def _regulate(self) -> None:
        """Read the socket only while there is room for what comes."""
        if self._closed or self._transport is None:
            return
        full = self._blocked() and len(self._held) > limits.INPUT_HELD_MAX
        stuck = self._write_paused and self.session.stream_end is None
        wanted = not (full or stuck)
        if wanted and not self._reading:
            self._reading = True
            self._transport.resume_reading()
        elif not wanted and self._reading:
            self._reading = False
            self._transport.pause_reading()

    # -- output ----------------------------------------------------------------------------------

    def _reply(self, data: bytes | memoryview) -> None:
        if data:
            self._replies.append(data)
            self._replies_size += len(data)
            if self._replies_size >= limits.REPLY_SLICE:
                self._flush()

    def _flush(self) -> None:
        if self._replies and self._transport is not None:
            data = self._replies[0] if len(self._replies) == 1 else b"".join(self._replies)
            self._node.counters.bytes_sent += len(data)
            self._replies.clear()
            self._replies_size = 0
            self._transport.write(data)

    def _schedule_pump(self) -> None:
        if not self._pump_scheduled and not self._closed:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Send one slice of stream data, and come back for more after others had their turn."""
        self._pump_scheduled = False
        producer = self.session.stream_end
        if producer is None or self._closed or self._transport is None:
            return
        now = self.session.monotonic
        budget = self._slice_bytes()
        try:
            data = producer.tick(now)
            parts = [] if self._write_paused else producer.pull_parts(budget, now)
            ahead = producer.look_ahead(budget) if parts else None
        except Exception:  # noqa: BLE001 - a bug in one producer must not take the node down
            LOGGER.exception(
                "producer_failed", extra={"facts": {"connection": self.session.number}}
            )
            self.end("the producer failed; the log says how")
            return
        if data:
            self.send(data)
        if parts:
            if ahead is not None:
                self._node.aside.run(ahead)
            self._node.counters.bytes_sent += sum(map(len, parts))
            for part in joined(parts):
                if self._transport.is_closing():  # the link broke under the part before
                    break
                self._transport.write(part)
            if self._write_paused:
                read_ahead = 0 if ahead is None else budget
                self._count_output(self._transport.get_write_buffer_size() + read_ahead)
            if producer.has_more:
                self._schedule_pump()
        if producer.closed_reason is not None:
            self.finish(producer.closed_reason)
            return
        self._schedule_tick(producer.next_tick(now), now)

    def _count_output(self, size: int) -> None:
        """Let what waits for this peer count in its bucket's quota."""
        if self._output_counted is not None:
            bucket, before = self._output_counted
            bucket.hold_outside(-before)
            self._output_counted = None
        host = self.session.selected
        if size and host is not None:
            self._output_counted = host.bucket, size
            host.bucket.hold_outside(size)

    def _slice_bytes(self) -> int:
        """Bytes of stream data to send now: little once peers that do not read hold their share."""
        host = self.session.selected
        if host is None:
            return limits.PULL_SLICE
        bucket = host.bucket
        quota = bucket.settings.memory_quota
        if bucket.hold_outside(0) * limits.OUTPUT_SHARE > quota:
            return limits.PULL_SLICE_TIGHT
        return min(limits.PULL_SLICE, quota // limits.SLICE_SHARE)

    def _schedule_tick(self, at: float | None, now: float) -> None:
        """Look again at that time, or sooner: a look too many finds nothing due."""
        if self._tick is not None:
            if at is not None and self._tick_at <= at:
                return  # with every slice the time moves on; a timer need not move with it
            self._tick.cancel()
            self._tick = None
        if at is not None:
            self._tick_at = at
            self._tick = self._loop.call_later(max(0.0, at - now), self._ticked)

    def _ticked(self) -> None:
        self._tick = None
        self._schedule_pump()
