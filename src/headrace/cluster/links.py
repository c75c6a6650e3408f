"""Links: the two connections of a proxy, on an event loop; bytes move in bulk.

    Link.open -> both ends greeted, logged in, in the bucket, opened under one name -> Proxy

Rules
- Both ends speak the same features: what one does not grant the other is not asked for.
- A side is not read while more than `QUEUE_SIZE_MAX` bytes wait for the other.
- A gate, which tests set, sees events before the frames that caused them are sent on, and may hold
  both there.
- Either connection's end is the link's end; it is told once.

Imports: errors, wire, protocol, cluster.proxy.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import TYPE_CHECKING, Final, cast

from headrace.client.dial import connect_sentence
from headrace.cluster.proxy import QUEUE_SIZE_MAX, Proxy, ProxyEvent, Side
from headrace.errors import CannotConnect, ConnectionLost, HeadraceError, RemoteProtocolError
from headrace.protocol.handshake import ConsumerSettings, Handshake, refusal, wanted_flags
from headrace.wire import admin
from headrace.wire import messages as m
from headrace.wire.codec import decode, encode
from headrace.wire.frame import BODY_SIZE_MAX, HEADER_SIZE, body_lengths, cut, lengths_error
from headrace.wire.message import ErrorReply, Reply
from headrace.wire.opcodes import Datatype, Feature, OpenFlag

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from headrace.cluster.cluster_file import ClusterNode
    from headrace.protocol.events import RefusedControl
    from headrace.wire.frame import Frame
    from headrace.wire.message import Request

RECEIVE_SIZE: Final = 1 << 20
FEATURES: Final = (
    Feature.TCP_NODELAY,
    Feature.XATTR,
    Feature.XERROR,
    Feature.SELECT_BUCKET,
    Feature.SNAPPY,
    Feature.JSON,
    Feature.SYNC_REPLICATION,
    Feature.COLLECTIONS,
)
SHARED: Final = frozenset({Feature.SNAPPY, Feature.SYNC_REPLICATION, Feature.COLLECTIONS})
"""Features that change what frames look like: both ends have them, or neither."""
AGENT: Final = "headrace-manager"


class EndHandshake(Handshake):
    """The way to an open end: as a consumer's, but the nodes settle controls among themselves."""

    def __init__(
        self, settings: ConsumerSettings, *, without: frozenset[int], consumer: str | None
    ) -> None:
        """Stand before the first request.

        ``without`` are features the other end lacks, ``consumer`` is the node's name in chains if
        it is to consume, None if it is to produce.
        """
        self._without = without
        self._consumer = consumer
        super().__init__(settings, nonce=secrets.token_urlsafe(24))

    def _hello(self, settings: ConsumerSettings) -> Generator[Request, Reply, frozenset[int]]:
        wanted = tuple(int(one) for one in FEATURES if one not in self._without)
        reply = yield admin.Hello(
            opaque=self._number(), key=settings.agent.encode(), features=wanted
        )
        self._granted = (
            frozenset(reply.features) if isinstance(reply, admin.HelloReply) else frozenset[int]()
        )
        return self._granted

    def _open(self, settings: ConsumerSettings) -> Generator[Request, Reply, None]:
        flags = wanted_flags(settings, self.dialect)
        value, datatype = b"", Datatype.RAW
        if self._consumer is not None:
            flags &= ~OpenFlag.PRODUCER
            if Feature.SYNC_REPLICATION in self._granted:
                value = json.dumps({"consumer_name": self._consumer}).encode()
                datatype = Datatype.JSON
        reply = yield m.Open(
            opaque=self._number(),
            flags=flags,
            key=settings.name.encode(),
            value=value,
            datatype=datatype,
        )
        if isinstance(reply, ErrorReply):
            raise refusal(reply, f"connection {settings.name!r} was refused")

    def _set_controls(
        self, settings: ConsumerSettings, features: frozenset[int]
    ) -> Generator[Request, Reply, tuple[tuple[tuple[str, str], ...], tuple[RefusedControl, ...]]]:
        del settings, features
        yield from ()
        return (), ()


class End(asyncio.BufferedProtocol):
    """One connection: held bytes during its handshake, then whatever its owner says."""

    def __init__(self, node: ClusterNode) -> None:
        """Not connected yet."""
        self.node = node
        self.features: frozenset[int] = frozenset()
        self.lost: ConnectionLost | None = None
        self.on_data: Callable[[memoryview], None] | None = None
        self.on_lost: Callable[[ConnectionLost], None] | None = None
        self.on_room: Callable[[bool], None] | None = None
        self._buffer = memoryview(bytearray(RECEIVE_SIZE))
        self._held = bytearray()
        self._arrived = asyncio.Event()
        self._transport: asyncio.Transport | None = None

    # -- what asyncio calls ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and let it hold no more than a queue."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=QUEUE_SIZE_MAX)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Where the next bytes go."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Hand on what came."""
        if self.on_data is not None:
            self.on_data(self._buffer[:nbytes])
            return
        self._held += self._buffer[:nbytes]
        self._arrived.set()

    def pause_writing(self) -> None:
        """Too much waits for this node."""
        if self.on_room is not None:
            self.on_room(False)

    def resume_writing(self) -> None:
        """It has taken enough."""
        if self.on_room is not None:
            self.on_room(True)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell it once."""
        why = getattr(exc, "strerror", None) or "closed the connection"
        self.lost = ConnectionLost(f"{self.node.name} ({self.node.address}): {why}")
        self._arrived.set()
        if self.on_lost is not None:
            self.on_lost(self.lost)

    # -- what a link uses ------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send."""
        if self._transport is not None:
            self._transport.write(data)

    def read(self, wanted: bool) -> None:
        """Take in what comes, or leave it to the sender."""
        if self._transport is None or self._transport.is_closing():
            return
        if wanted and not self._transport.is_reading():
            self._transport.resume_reading()
        elif not wanted and self._transport.is_reading():
            self._transport.pause_reading()

    def close(self) -> None:
        """Close at once, what is not sent is not sent."""
        self.on_data = self.on_lost = self.on_room = None
        if self._transport is not None:
            self._transport.abort()

    def take_held(self) -> bytes:
        """What came behind the last frame of the handshake."""
        held, self._held = bytes(self._held), bytearray()
        return held

    async def frame(self) -> Frame:
        """The next frame of the handshake."""
        while True:
            if len(self._held) >= HEADER_SIZE:
                parts = body_lengths(self._held)
                if parts[3] > BODY_SIZE_MAX or sum(parts[:3]) > parts[3]:
                    raise lengths_error(parts, "a reply", BODY_SIZE_MAX)
                if len(self._held) >= HEADER_SIZE + parts[3]:
                    frame = cut(self._held, 0, parts)
                    del self._held[: HEADER_SIZE + parts[3]]
                    return frame
            if self.lost is not None:
                raise self.lost
            self._arrived.clear()
            await self._arrived.wait()

    async def greet(self, script: EndHandshake) -> None:
        """Run the script to its end."""
        while script.request is not None:
            self.write(encode(script.request, script.dialect))
            reply = decode(await self.frame(), script.dialect)
            if not isinstance(reply, Reply) or reply.opaque != script.request.opaque:
                raise RemoteProtocolError(
                    f"{self.node.name} sent {type(reply).__name__} where a reply belongs"
                )
            script.receive(reply)
        assert script.connected is not None
        self.features = script.connected.features


async def open_end(
    node: ClusterNode, bucket: str, name: str, *, side: Side, without: frozenset[int]
) -> tuple[End, EndHandshake]:
    """Connect to a node and open one end, or say why not."""
    access = node.access
    end = End(node)
    settings = ConsumerSettings(
        name=name,
        user=access.user,
        password=access.password,
        bucket=bucket,
        encrypted=node.is_encrypted,
        dialect=access.dialect,
        agent=AGENT,
        xattrs=True,
        window=0,
    )
    consumer = node.name if side is Side.CONSUMER else None
    script = EndHandshake(settings, without=without, consumer=consumer)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(access.connect_seconds):
            await loop.create_connection(
                lambda: end,
                node.address.host,
                node.address.port,
                ssl=access.tls,
                server_hostname=node.address.host if access.tls is not None else None,
            )
            await end.greet(script)
    except OSError as error:  # a timeout is one of them
        end.close()
        raise CannotConnect(
            connect_sentence(node.address, error, access.connect_seconds)
        ) from error
    except BaseException:
        end.close()
        raise
    return end, script


class Link:
    """Two open ends and the proxy between them."""

    def __init__(self, name: str, proxy: Proxy, producer: End, consumer: End) -> None:
        """Take two ends that are open; `start` lets bytes pass."""
        self.name = name
        self.proxy = proxy
        self.lost: HeadraceError | None = None
        self.gate: Callable[[ProxyEvent], bool] | None = None
        """Asked about every event; True holds it and all frames until `release`."""
        self._events: list[ProxyEvent] = []
        self._ends = {Side.PRODUCER: producer, Side.CONSUMER: consumer}
        self._on_event: Callable[[ProxyEvent], None] = lambda _event: None
        self._on_lost: Callable[[HeadraceError], None] = lambda _error: None
        self._is_held = False

    @classmethod
    async def open(
        cls, producer: ClusterNode, consumer: ClusterNode, bucket: str, *, suffix: str = ""
    ) -> Link:
        """Open both ends under one name: whoever had the name at either node is ended."""
        name = f"replication:{producer.name}->{consumer.name}:{bucket}{suffix}"
        without: frozenset[int] = frozenset()
        for _ in range(len(SHARED) + 1):
            far, far_script = await open_end(
                consumer, bucket, name, side=Side.CONSUMER, without=without
            )
            try:
                near, near_script = await open_end(
                    producer, bucket, name, side=Side.PRODUCER, without=without
                )
            except BaseException:
                far.close()
                raise
            lacking = (far.features ^ near.features) & SHARED
            if not lacking:
                return cls(name, Proxy(dialect=near_script.dialect), near, far)
            del far_script
            far.close()
            near.close()
            without |= lacking
        raise AssertionError("every round leaves out one feature more")

    def start(
        self,
        on_event: Callable[[ProxyEvent], None],
        on_lost: Callable[[HeadraceError], None],
    ) -> None:
        """Let bytes pass from now on."""
        self._on_event, self._on_lost = on_event, on_lost
        for side, end in self._ends.items():
            end.on_lost = self._lose
            end.on_room = lambda room, side=side: self._room(side, room)
            if end.lost is not None:
                self._lose(end.lost)
                return
        for side, end in self._ends.items():
            self._receive(side, memoryview(end.take_held()))
            end.on_data = lambda data, side=side: self._receive(side, data)

    def add_stream(self, vbucket: int, flags: int = 0) -> None:
        """ADD_STREAM to the consumer node."""
        self.proxy.add_stream(vbucket, flags)
        self._flush()

    def close_stream(self, vbucket: int) -> None:
        """CLOSE_STREAM to the consumer node, then to the producer node."""
        self.proxy.close_stream(vbucket)
        self._flush()

    def close(self) -> None:
        """Close both ends; nothing is told."""
        self._on_event, self._on_lost = (lambda _event: None), (lambda _error: None)
        if self.lost is None:
            self.lost = ConnectionLost(f"{self.name} was closed")
        for end in self._ends.values():
            end.close()

    def release(self) -> None:
        """Let go of what the gate held."""
        self._is_held = False
        for end in self._ends.values():
            end.read(True)
        self._flush()
        self._tell()

    def _receive(self, side: Side, data: memoryview) -> None:
        if not data or self.lost is not None:
            return
        try:
            self.proxy.receive(side, data)
        except RemoteProtocolError as error:
            self._lose(error)
            return
        events = self.proxy.take_events()
        gate = self.gate
        if gate is not None and any(gate(event) for event in events):
            self._is_held = True
            for end in self._ends.values():
                end.read(False)
        self._flush()
        self._events += events
        self._tell()

    def _tell(self) -> None:
        while self._events and not self._is_held:
            self._on_event(self._events.pop(0))

    def _flush(self) -> None:
        if self._is_held or self.lost is not None:
            return
        for side, end in self._ends.items():
            for data in self.proxy.take_output(side):
                end.write(data)

    def _room(self, side: Side, room: bool) -> None:
        if not self._is_held:
            self._ends[side.other].read(room)

    def _lose(self, error: HeadraceError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        for end in self._ends.values():
            end.close()
        self._on_lost(error)
