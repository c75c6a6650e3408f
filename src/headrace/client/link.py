"""Link: one blocking socket under one ConsumerConnection; bytes are read by the megabyte.

The socket is read into one buffer of `BUFFER_SIZE` until it is drained or `ENOUGH` bytes wait, then
the road (`headrace.client.bulk`) takes the whole frames; what is left of the last one moves to the
front. A frame larger than the buffer makes it grow, up to the largest frame there is.

Rules
- `pump` does not wait, the owner does, on all links at once; except for a few milliseconds when
  bytes pour in.
- Output is written as far as the socket takes it and kept otherwise; the owner waits for room.
- One thread at a time.

Imports: errors, client.bulk, client.dial, columns.block, protocol.consumer.
"""

from __future__ import annotations

import select
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from headrace.client.bulk import holds_frame
from headrace.client.dial import handshake_sentence
from headrace.columns.block import fresh_pages
from headrace.errors import ConnectionLost, HeadraceError, RemoteProtocolError
from headrace.wire.frame import BODY_SIZE_MAX, HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.client.address import NodeAddress
    from headrace.client.bulk import BulkRoad, ObjectRoad, Taken
    from headrace.protocol.consumer import ConsumerConnection

BUFFER_SIZE: Final = 4 << 20
ENOUGH: Final = 3 << 20
POURING: Final = 128 << 10
"""Bytes of one read from which on more are expected at once."""
GATHER_SIZE: Final = 1 << 20
"""Bytes that are worth waking up for while they pour in."""
GATHER_WAITS: Final = 4
GATHER_MILLISECONDS: Final = 2
FRAME_SIZE_MAX: Final = HEADER_SIZE + BODY_SIZE_MAX
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
        self._view = fresh_pages(BUFFER_SIZE).data
        self._at = 0
        self._filled = 0
        self._output = memoryview(b"")
        self._drained = True
        self._poured = False
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
        """Whether bytes may wait that a selector does not see: stopped early, or inside TLS."""
        return not self._drained

    def pump(self, *, now: float) -> Iterator[Taken]:
        """Read what is there and take it, then write; a loss is told in ``lost``, at last."""
        if self.lost is None:
            self._read()
        while holds_frame(self._view[self._at : self._filled]) or self._is_too_large():
            taken = self.road.take(self._view[self._at : self._filled], now=now)
            self._at += taken.consumed
            if taken.pieces or taken.consumed:
                yield taken
            if self.road.failure is not None:
                self._lose(self.road.failure)
                return
            if not taken.consumed:
                break
        self._make_room()
        self.flush()

    def _is_too_large(self) -> bool:
        """Whether the header at the front claims more than any frame may have."""
        if self._filled - self._at < HEADER_SIZE:
            return False
        body = int.from_bytes(self._view[self._at + 8 : self._at + 12], "big")
        return body > BODY_SIZE_MAX

    def flush(self) -> None:
        """Write as much of the output as the socket takes."""
        if self.lost is not None or not (self._output or self.connection.has_output):
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

    def _read(self) -> None:
        self._drained = False
        before = self._filled
        # A frame that is larger than ENOUGH needs all the room there is.
        limit = ENOUGH if self._filled < ENOUGH else len(self._view)
        try:
            while self._filled < limit:
                size = self.socket.recv_into(self._view[self._filled :])
                if size == 0:
                    self._lose(ConnectionLost(self._closed_sentence()))
                    self._drained = True
                    return
                self._filled += size
                self.received += size
        except _WOULD_BLOCK:
            self._drained = True
            if self._is_worth_waiting(before):
                self._read_more(limit)
        except OSError as error:
            self._drained = True
            self._lose(ConnectionLost(f"{self.node}: {error.strerror or error}"))

    def _is_worth_waiting(self, before: int) -> bool:
        """Whether bytes pour in, or did just now, faster than they are worth scanning one by one.

        Taking a buffer costs the same for a few frames as for many.
        """
        poured, self._poured = self._poured, self._filled - before >= POURING
        return (poured or self._poured) and before < self._filled < ENOUGH

    def _read_more(self, limit: int) -> None:
        """Wait a moment, at most `GATHER_WAITS` times, for more to come before it is taken."""
        self._wake_for(min(GATHER_SIZE, limit - self._filled))
        try:
            for _ in range(GATHER_WAITS):
                came = self._poll.poll(GATHER_MILLISECONDS)
                with suppress(*_WOULD_BLOCK):
                    while self._filled < limit:
                        size = self.socket.recv_into(self._view[self._filled :])
                        if size == 0:
                            return  # the next read finds it again
                        self._filled += size
                        self.received += size
                    self._drained = False
                    return
                if not came:
                    return
        except OSError:
            return
        finally:
            self._wake_for(1)

    def _wake_for(self, size: int) -> None:
        """Let the kernel wake us when so many bytes are there; not under TLS, which holds some."""
        if not isinstance(self.socket, ssl.SSLSocket):
            with suppress(OSError):
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

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
            grown = fresh_pages(min(2 * len(self._view), FRAME_SIZE_MAX)).data
            grown[: self._filled] = self._view
            self._view = grown

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
