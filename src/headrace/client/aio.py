"""AsyncRunner: the asyncio skin, the blocking one's twin over the same steering.

Each link is a BufferedProtocol that the loop fills; the road takes what came at once, so NOOPs are
answered whenever the loop turns, whatever the application does with its changes. Nothing is
acknowledged before the application asks for the next, so at most a window per node waits.

Imports: errors, client.*.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Final, cast

from headrace.client.dial import connect_sentence, tls_sentence
from headrace.errors import (
    CannotConnect,
    ConnectionLost,
    HeadraceError,
    ProtocolError,
    RemoteProtocolError,
)
from headrace.wire.frame import BODY_SIZE_MAX, HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.client.address import NodeAddress
    from headrace.client.bulk import BulkRoad
    from headrace.client.intake import Given
    from headrace.client.steering import Steering
    from headrace.protocol.consumer import ConsumerConnection

BUFFER_SIZE: Final = 1 << 20
FRAME_SIZE_MAX: Final = HEADER_SIZE + BODY_SIZE_MAX
TURN_EVERY: Final = 64
"""Changes handed out between two turns of the loop."""


class AsyncLink(asyncio.BufferedProtocol):
    """One connection of the loop under one ConsumerConnection."""

    def __init__(self, runner: AsyncRunner, node: NodeAddress, road: BulkRoad) -> None:
        """Stand before the first byte."""
        self.node = node
        self.road = road
        self.opened_at = runner.clock()
        self._runner = runner
        self._transport: asyncio.Transport | None = None
        self._view = memoryview(bytearray(BUFFER_SIZE))
        self._filled = 0
        self._lost = False

    @property
    def connection(self) -> ConsumerConnection:
        """What is spoken on it."""
        return self.road.connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello."""
        self._transport = cast("asyncio.Transport", transport)
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:
        """The room behind what waits; a frame larger than the buffer makes it grow."""
        del sizehint
        if self._filled == len(self._view):
            grown = memoryview(bytearray(min(2 * len(self._view), FRAME_SIZE_MAX + 1)))
            grown[: self._filled] = self._view
            self._view = grown
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take the whole frames."""
        self._filled += nbytes
        at, now = 0, self._runner.clock()
        try:
            while True:
                taken = self.road.take(self._view[at : self._filled], now=now)
                at += taken.consumed
                self._runner.steering.take(taken, self.node, self.connection, now=now)
                if self.road.failure is not None:
                    self.lose(self.road.failure)
                    return
                if not taken.consumed:
                    break
        except ProtocolError as error:
            self.lose(error)
            return
        except HeadraceError as error:
            self._runner.fail(error)
            return
        rest = self._filled - at
        if at:
            self._view[:rest] = bytes(self._view[at : self._filled])
        self._filled = rest
        if rest > FRAME_SIZE_MAX:
            self.lose(RemoteProtocolError(f"frame of more than {FRAME_SIZE_MAX} bytes"))
            return
        self.flush()
        self._runner.changed.set()

    def eof_received(self) -> bool:
        """The node closed; so do we."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The loop says that the link is gone."""
        reason = f": {exc}" if exc is not None else ""
        self.lose(ConnectionLost(f"{self.node} closed the connection{reason}"))

    def flush(self) -> None:
        """Send what the connection wants to say."""
        output = self.connection.take_output()
        if output and self._transport is not None and not self._transport.is_closing():
            self._transport.write(output)

    def lose(self, error: HeadraceError) -> None:
        """Close, and tell the runner why, once."""
        if not self._lost:
            self._lost = True
            self._runner.lost(self, error)
        self.close()

    def close(self) -> None:
        """Close at once, without telling."""
        self._lost = True
        if self._transport is not None:
            self._transport.abort()


class AsyncRunner:
    """Links, courses and the intake, driven by an event loop."""

    def __init__(self, steering: Steering, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is opened before the first `next`, which names the loop."""
        self.steering = steering
        self.clock = clock
        self.changed = asyncio.Event()
        self.links: dict[NodeAddress, AsyncLink] = {}
        self._intake = steering.intake
        self._openings: dict[NodeAddress, asyncio.Task[None]] = {}
        self._closed = False
        self._handed = 0
        self._failure: HeadraceError | None = None

    async def next(self) -> Given | None:
        """The next thing for the application, None at the end of a read that has one."""
        while not self._closed:
            now = self.clock()
            given = self._intake.next(now=now)
            if given is not None:
                await self.share()
                return given
            if self._failure is not None:
                raise self._failure
            self._turn(now)
            self.steering.raise_if_stuck()
            if self.steering.is_over:
                return None
            if await self._ask_gate(now):
                continue
            self._intake.release(now=now)
            await self._wait(now)
        return None

    async def share(self) -> None:
        """Let the loop turn now and then, although there is more to hand out: NOOPs wait there."""
        self._handed += 1
        if self._handed % TURN_EVERY == 0:
            self._turn(self.clock())
            await asyncio.sleep(0)

    def close(self) -> None:
        """Close every link and forget what waits; the tokens stay."""
        self._closed = True
        for link in self.links.values():
            link.close()
        self.links.clear()
        for opening in self._openings.values():
            opening.cancel()
        self._openings.clear()
        self._intake.close()
        self.changed.set()

    def lost(self, link: AsyncLink, error: HeadraceError) -> None:
        """A link is gone."""
        if self.links.get(link.node) is link:
            del self.links[link.node]
            self.steering.lost(link.node, link.connection, error, now=self.clock())
            self.changed.set()

    def fail(self, error: HeadraceError) -> None:
        """Something failed that is no link's fault: the reading ends with it."""
        self._failure = self._failure or error
        self.changed.set()

    def _turn(self, now: float) -> None:
        """Do everything that is due, without waiting."""
        for link in list(self.links.values()):
            reason = self.steering.watch(
                link.node, link.connection, opened_at=link.opened_at, now=now
            )
            if reason is not None:
                link.lose(reason)
                continue
            self.steering.ask(link.node, link.connection, now=now)
            link.flush()
        for node in self.steering.nodes_to_open({*self.links, *self._openings}, now=now):
            self._openings[node] = asyncio.get_running_loop().create_task(self._open(node))
        self.steering.tell_troubles()

    async def _wait(self, now: float) -> None:
        connections = [link.connection for link in self.links.values()]
        seconds = self.steering.wait_seconds(connections, now=now)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.changed.wait(), seconds)
        self.changed.clear()

    async def _open(self, node: NodeAddress) -> None:
        access = self.steering.access
        road = self.steering.road(now=self.clock())
        link = AsyncLink(self, node, road)
        try:
            async with asyncio.timeout(access.connect_seconds):
                await asyncio.get_running_loop().create_connection(
                    lambda: link, node.host, node.port, ssl=access.tls
                )
            self.links[node] = link
        except OSError as error:
            sentence = tls_sentence if access.tls is not None else connect_sentence
            reason = CannotConnect(sentence(node, error, access.connect_seconds))
            self.steering.lost(node, None, reason, now=self.clock())
        finally:
            self._openings.pop(node, None)
            self.changed.set()

    async def _ask_gate(self, now: float) -> bool:
        question, gate = self.steering.gate_question(), self._intake.gate
        if not question or gate is None:
            return False
        try:
            return await asyncio.to_thread(gate.ask, question, now=now)
        except ConnectionLost as error:
            self.steering.gate_failed(error)
            return False
