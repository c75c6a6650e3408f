"""Runner: the blocking skin. Links to nodes, one intake, one application that asks for the next.

The application's thread does the work: it reads the sockets while it waits for something to come.
While it is busy with what it got, a keeper thread looks after the links every `KEEP_SECONDS`: it
reads what the window lets the producer send, answers NOOPs, and acknowledges nothing. So a slow
application holds at most a window per node in memory, the producer waits, and the link lives.

Rules
- Links are opened by helper threads: a node that does not answer delays nobody else.
- Everything else happens under one lock, in the application's thread or the keeper's.
- A lost link is opened again after the courses' delay, for ever or as long as they have patience.

Imports: errors, client.*.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from headrace.client.dial import dial
from headrace.client.link import Link
from headrace.errors import ConnectionLost, HeadraceError, RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.client.access import Access
    from headrace.client.address import NodeAddress
    from headrace.client.intake import Given
    from headrace.client.steering import Steering

KEEP_SECONDS: Final = 1.0


class Opening:
    """One attempt to open a link, in a thread of its own."""

    def __init__(self, node: NodeAddress, access: Access, wake: Callable[[], None]) -> None:
        """Start it; ``wake`` is called when it is over."""
        self.node = node
        self.link: socket.socket | None = None
        self.error: HeadraceError | None = None
        self._access = access
        self._wake = wake
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name=f"headrace open {node}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.link = dial(self.node, self._access)
        except HeadraceError as error:
            self.error = error
        if self._abandoned and self.link is not None:
            self.link.close()
        self._wake()

    @property
    def is_over(self) -> bool:
        """Whether there is a link or an error."""
        return self.link is not None or self.error is not None

    def abandon(self) -> None:
        """Close the link, also if it comes about only later."""
        self._abandoned = True
        if self.link is not None:
            self.link.close()


class Runner:
    """Links, courses and the intake, driven by whoever asks for the next thing."""

    def __init__(self, steering: Steering, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is opened before the first `next`."""
        self.steering = steering
        self.links: dict[NodeAddress, Link] = {}
        self._intake = steering.intake
        self._lock = threading.Lock()
        self._clock = clock
        self._openings: dict[NodeAddress, Opening] = {}
        self._selector = selectors.DefaultSelector()
        self._waker, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._wakes, selectors.EVENT_READ)
        self._closed = threading.Event()
        self._pumped_at = clock()
        self._keeper: threading.Thread | None = None
        self._failure: HeadraceError | None = None

    # -- the application's side -----------------------------------------------------------------

    def next(self) -> Given | None:
        """The next thing for the application, None at the end of a read that has one."""
        with self._lock:
            if self._keeper is None and not self._closed.is_set():
                self._start_keeper()
            while not self._closed.is_set():
                now = self._clock()
                given = self._intake.next(now=now)
                if given is not None or self._is_over():
                    self._flush()
                    return given
                if not self._ask_gate(now):
                    self._intake.release(now=now)
                    self._turn(wait=True)
        return None

    def close(self) -> None:
        """Close every link and forget what waits; the tokens stay."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._wake()
        with self._lock:
            for link in self.links.values():
                link.close()
            self.links.clear()
            for opening in self._openings.values():
                opening.abandon()
            self._openings.clear()
            self._intake.close()
            self._selector.close()
            self._waker.close()
            self._wakes.close()
        if self._keeper is not None and self._keeper is not threading.current_thread():
            self._keeper.join(timeout=2 * KEEP_SECONDS)

    def _is_over(self) -> bool:
        if self._failure is not None:
            raise self._failure
        self.steering.raise_if_stuck()
        return self.steering.is_over

    def _ask_gate(self, now: float) -> bool:
        """Whether the nodes were asked how far they are on disk: then look again."""
        question, gate = self.steering.gate_question(), self._intake.gate
        if not question or gate is None:
            return False
        try:
            return gate.ask(question, now=now)
        except ConnectionLost as error:
            self.steering.gate_failed(error)
            return False

    # -- the keeper's side ----------------------------------------------------------------------

    def _start_keeper(self) -> None:
        self._keeper = threading.Thread(target=self._keep, name="headrace keeper", daemon=True)
        self._keeper.start()

    def _keep(self) -> None:
        while not self._closed.wait(KEEP_SECONDS):
            self.keep()

    def keep(self) -> None:
        """Look after the links once, unless the application is doing so right now."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if not self._closed.is_set() and self._clock() - self._pumped_at >= KEEP_SECONDS / 2:
                self._turn(wait=False)
        finally:
            self._lock.release()

    def _turn(self, *, wait: bool) -> None:
        """Pump once; what fails here and is no link's fault (a full disk) ends the reading.

        Positions have moved by then: to go on would lose what could not be kept.
        """
        try:
            self._pump(wait=wait)
        except HeadraceError as error:
            self._failure = error

    # -- the pump -------------------------------------------------------------------------------

    def _pump(self, *, wait: bool) -> None:
        steering = self.steering
        now = self._pumped_at = self._clock()
        self._open_links(now)
        has_more = False
        for node, link in self.links.items():
            steering.ask(node, link.connection, now=now)
            link.flush()
            has_more = has_more or link.has_more
        steering.tell_troubles()
        # A link that has more is not waited for, and all are read in any case.
        if not has_more:
            connections = [link.connection for link in self.links.values()]
            self._select(steering.wait_seconds(connections, now=now) if wait else 0.0)
            now = self._clock()
        for link in list(self.links.values()):
            self._pump_link(link, now)
        steering.tell_troubles()

    def _select(self, seconds: float) -> None:
        for link in self.links.values():
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.wants_write else 0)
            if self._selector.get_key(link.socket).events != wanted:
                self._selector.modify(link.socket, wanted)
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._wakes:
                with suppress(BlockingIOError):
                    self._wakes.recv(4096)

    def _pump_link(self, link: Link, now: float) -> None:
        steering, connection = self.steering, link.connection
        try:
            for taken in link.pump(now=now):
                steering.take(taken, link.node, connection, now=now)
        except RemoteProtocolError as error:
            link.lost = link.lost or error
        if link.lost is None:
            link.lost = steering.watch(link.node, connection, opened_at=link.opened_at, now=now)
            link.flush()
        if link.lost is not None:
            del self.links[link.node]
            self._selector.unregister(link.socket)
            link.close()
            steering.lost(link.node, connection, link.lost, now=now)

    def _open_links(self, now: float) -> None:
        if not self._openings and not self.steering.courses.nodes_changed:
            return
        for node, opening in list(self._openings.items()):
            if opening.is_over:
                del self._openings[node]
                self._opened(opening, now)
        for node in self.steering.nodes_to_open({*self.links, *self._openings}, now=now):
            self._openings[node] = Opening(node, self.steering.access, self._wake)

    def _opened(self, opening: Opening, now: float) -> None:
        if opening.link is None:
            assert opening.error is not None
            self.steering.lost(opening.node, None, opening.error, now=now)
            return
        link = Link(opening.link, opening.node, self.steering.road(now=now), opened_at=now)
        self.links[opening.node] = link
        self._selector.register(link.socket, selectors.EVENT_READ)
        link.flush()

    def _flush(self) -> None:
        for link in self.links.values():
            link.flush()

    def _wake(self) -> None:
        with suppress(OSError):
            self._waker.send(b"\0")
