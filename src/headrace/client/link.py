"""Link: one blocking socket under one ConsumerConnection; bytes are read by the megabyte.

The socket is read into one buffer of `BUFFER_SIZE` until it is drained or `ENOUGH` bytes wait, then
the road (`headrace.client.bulk`) takes the whole frames; what is left of the last one moves to the
front. A frame larger than the buffer makes it grow, up to the largest frame there is.

While bytes pour in on a socket without TLS, the road receives them itself, a piece at a time, and
scans each piece where it lies (`headrace.columns.gather`): one batch of up to `TURN_SIZE` bytes.

Rules
- `pump` does not wait, the owner does, on all links at once; except for a few milliseconds while
  bytes pour in: then the kernel is asked to wake us for megabytes (SO_RCVLOWAT), but for no more
  than half of what the flow control window still lets the producer send.
- Output is written as far as the socket takes it and kept otherwise; the owner waits for room.
- One thread at a time.

Imports: errors, client.bulk, client.dial, columns.block, protocol.consumer.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import ssl
from typing import TYPE_CHECKING, Final

from headrace.client.bulk import BulkRoad, holds_frame
from headrace.client.dial import handshake_sentence
from headrace.columns.block import fresh_pages
from headrace.errors import ConnectionLost, HeadraceError, RemoteProtocolError
from headrace.wire.frame import BODY_SIZE_MAX, HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.client.address import NodeAddress
    from headrace.client.bulk import ObjectRoad, Taken
    from headrace.protocol.consumer import ConsumerConnection

BUFFER_SIZE: Final = 4 << 20
ENOUGH: Final = 3 << 20
POURING: Final = 128 << 10
"""Bytes of one read from which on more are expected at once."""
GATHER_SIZE: Final = 3 << 20
"""Bytes that are worth waking up for while they pour in; a system's buffers hold few more."""
GATHER_WAITS: Final = 3
TURN_SIZE: Final = 6 << 20
"""Bytes that become one batch while they pour in: a turn costs the same for few as for many, some
hundred microseconds, because a scan leaves nothing of the interpreter in the caches."""
TURN_WAITS: Final = 8
GATHER_MILLISECONDS: Final = 8
FRAME_SIZE_MAX: Final = HEADER_SIZE + BODY_SIZE_MAX
_LATER: Final = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR})
_WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Link:
    """A connected socket, what is spoken on it, and the bytes in between."""

    def __init__(
        self,
        link: socket.socket,
        node: NodeAddress,
        road: BulkRoad | ObjectRoad,
        *,
        opened_at: float,
    ) -> None:
        """Take a connected socket; from here on it does not block."""
        link.setblocking(False)
        self.socket = link
        self.node = node
        self.road = road
        self.opened_at = opened_at
        self.lost: HeadraceError | None = None
        self.received = 0
        self._memory = fresh_pages(BUFFER_SIZE)
        self._view = self._memory.data
        self._at = 0
        self._filled = 0
        self._output = memoryview(b"")
        self._drained = True
        self._poured = False
        self._wakes_for = 1
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)

    @property
    def connection(self) -> ConsumerConnection:
        """What is spoken on it."""
        return self.road.connection

    @property
    def wants_write(self) -> bool:
        """Whether output waits for room in the socket."""
        return len(self._output) > 0

    @property
    def has_more(self) -> bool:
        """Whether to pump without waiting first: bytes may be there that a selector does not see
        (stopped early, or inside TLS), or they pour in and `pump` waits for them itself."""
        return not self._drained or self._poured

    def pump(self, *, now: float) -> Iterator[Taken]:
        """Read what is there and take it, then write; a loss is told in ``lost``, at last."""
        taken = self._read(now) if self.lost is None else None
        if taken is not None and (taken.pieces or taken.consumed):
            yield taken
        if self.road.failure is not None and self._fails():
            return
        # A road that reads the socket itself leaves nothing, as a rule.
        while self._at < self._filled and (
            holds_frame(self._view[self._at : self._filled]) or self._is_too_large()
        ):
            taken = self.road.take(self._view[self._at : self._filled], now=now)
            self._at += taken.consumed
            if taken.pieces or taken.consumed:
                yield taken
            if self._fails():
                return
            if not taken.consumed:
                break
        self._make_room()
        self.flush()

    def _fails(self) -> bool:
        """Whether the road takes nothing more: then the link is lost."""
        failure = self.road.failure
        if failure is not None:
            self._lose(failure)
        return failure is not None

    def _is_too_large(self) -> bool:
        """Whether the header at the front claims more than any frame may have."""
        if self._filled - self._at < HEADER_SIZE:
            return False
        body = int.from_bytes(self._view[self._at + 8 : self._at + 12], "big")
        return body > BODY_SIZE_MAX

    def flush(self) -> None:
        """Write as much of the output as the socket takes."""
        if self.lost is not None or not (self._output or self.road.connection.has_output):
            return
        if not self._output:
            self._output = memoryview(self.connection.take_output())
        try:
            while self._output:
                self._output = self._output[self.socket.send(self._output) :]
                if not self._output:
                    self._output = memoryview(self.connection.take_output())
        except _WOULD_BLOCK:
            return
        except OSError as error:
            self._lose(ConnectionLost(f"{self.node}: {error.strerror or error}"))

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()

    def _read(self, now: float) -> Taken | None:
        before = self.received
        # A frame that is larger than ENOUGH needs all the room there is.
        limit = ENOUGH if self._filled < ENOUGH else len(self._view)
        taken = None
        if not self._poured:
            self._receive(limit)
        elif self._takes_pieces():
            taken = self._gather_rows(now)
        else:
            self._gather(limit)
        self._poured = self.received - before >= POURING and self.lost is None
        return taken

    def _takes_pieces(self) -> bool:
        """Whether the road can read the socket itself; what is there already must be little."""
        return (
            isinstance(self.road, BulkRoad)
            and self.road.can_receive
            and self._filled < POURING
            and not isinstance(self.socket, ssl.SSLSocket)
        )

    def _gather(self, limit: int) -> None:
        """Read, and wait for more as long as it pours in, `GATHER_WAITS` times at most."""
        wanted = min(limit, self._filled + self._worth_gathering(GATHER_SIZE))
        for _ in range(GATHER_WAITS):
            had = self._filled
            self._wake_for(wanted - had)
            # What TLS holds already, a poll does not see.
            came = (not self._drained and self._wakes_for == 1) or self._comes()
            if self._receive(limit) or self.lost is not None or self._filled >= wanted:
                break
            if not came and self._filled - had < POURING:
                break
        # An owner who sleeps on the socket all the same must wake for the next byte.
        self._wake_for(1)

    def _gather_rows(self, now: float) -> Taken:
        """The same, each piece scanned while it is in the cache (`headrace.columns.gather`)."""
        road, descriptor = self.road, self.socket.fileno()
        assert isinstance(road, BulkRoad)
        wanted = self._worth_gathering(TURN_SIZE)
        road.begin(self._memory, self._at, self._filled)
        total, said = 0, None
        for _ in range(TURN_WAITS):
            # Always for the same where the window allows so much more: one call less.
            is_ample = wanted == TURN_SIZE
            self._wake_for(GATHER_SIZE if is_ample else min(GATHER_SIZE, wanted - total))
            came, had = self._comes(), total
            total, said = road.receive(descriptor, wanted)
            if said not in _LATER or total >= wanted or (not came and total - had < POURING):
                break
        if total < POURING:
            # An owner who sleeps on the socket now must wake for the next byte.
            self._wake_for(1)
        taken, self._at, self._filled = road.finish(self._view, now=now)
        self.received += total
        self._drained = said is not None
        if said == 0:
            self._lose(ConnectionLost(self._closed_sentence()))
        elif said is not None and said not in _LATER:
            self._lose(ConnectionLost(f"{self.node}: {os.strerror(said)}"))
        return taken

    def _comes(self) -> bool:
        """Wait a moment for as many bytes as are worth waking up for."""
        return bool(self._poll.poll(GATHER_MILLISECONDS))

    def _worth_gathering(self, size: int) -> int:
        """Bytes to wait for: without hope for more than the producer may send it is idle time."""
        window = self.connection.window
        if not window.window:
            return size
        return min(size, max(1, (window.window - window.held - window.freed) // 2))

    def _receive(self, limit: int) -> bool:
        """Read until ``limit`` bytes wait; False: the socket is drained, or gone."""
        self._drained = True
        try:
            while self._filled < limit:
                size = self.socket.recv_into(self._view[self._filled :])
                if size == 0:
                    self._lose(ConnectionLost(self._closed_sentence()))
                    return False
                self._filled += size
                self.received += size
        except _WOULD_BLOCK:
            return False
        except OSError as error:
            self._lose(ConnectionLost(f"{self.node}: {error.strerror or error}"))
            return False
        self._drained = False
        return True

    def _wake_for(self, size: int) -> None:
        """Let the kernel wake us when so many bytes are there; not under TLS, which holds some."""
        if size == self._wakes_for or isinstance(self.socket, ssl.SSLSocket):
            return
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
        except OSError:
            return
        self._wakes_for = size

    def _make_room(self) -> None:
        """Move the beginning of a frame to the front; grow for one larger than the buffer."""
        if self._at:
            rest = self._filled - self._at
            self._view[:rest] = bytes(self._view[self._at : self._filled])
            self._at, self._filled = 0, rest
        elif self._filled == len(self._view):
            if len(self._view) >= FRAME_SIZE_MAX:
                self._lose(RemoteProtocolError(f"frame of more than {FRAME_SIZE_MAX} bytes"))
                return
            grown = fresh_pages(min(2 * len(self._view), FRAME_SIZE_MAX))
            grown.data[: self._filled] = self._view
            self._memory, self._view = grown, grown.data

    def _lose(self, error: HeadraceError) -> None:
        if self.lost is None:
            self.lost = error

    def _closed_sentence(self) -> str:
        if self.connection.connected is not None:
            return f"{self.node} closed the connection"
        return handshake_sentence(
            self.node,
            said=bytes(self._view[: min(self._filled, 256)]),
            encrypted=isinstance(self.socket, ssl.SSLSocket),
            what="closed the connection during the handshake",
            probe=False,
        )
