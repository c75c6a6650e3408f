"""Links of the simulation: the two connections of a proxy, as `headrace.cluster.links` has them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from headrace.cluster.links import EndHandshake
from headrace.cluster.proxy import MarkerAcknowledged, MarkerSeen, Proxy, Side
from headrace.protocol.handshake import ConsumerSettings
from headrace.wire.codec import decode, encode
from headrace.wire.frame import HEADER_SIZE, body_lengths, cut
from headrace.wire.message import Reply
from headrace.wire.opcodes import MarkerFlag
from tests.sim.world.core import Situation, Violation
from tests.sim.world.node import is_inside

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.cluster.proxy import ProxyEvent
    from tests.sim.world.network import End, Network
    from tests.sim.world.node import SimNode


class LinkEnd:
    """One connection of a link: its handshake, then the proxy."""

    def __init__(self, link: SimLink, side: Side, end: End, name: str) -> None:
        self.link, self.side, self.end = link, side, end
        settings = ConsumerSettings(name=link.name, bucket="default", xattrs=True, window=0)
        consumer = name if side is Side.CONSUMER else None
        self.script = EndHandshake(settings, without=frozenset(), consumer=consumer)
        self.held = bytearray()
        end.owner = self
        self._ask()

    def _ask(self) -> None:
        if self.script.request is not None:
            self.end.send(encode(self.script.request, self.script.dialect))

    def on_bytes(self, data: bytes) -> None:
        self.held += data
        while self.script.request is not None and len(self.held) >= HEADER_SIZE:
            parts = body_lengths(self.held)
            size = HEADER_SIZE + parts[3]
            if len(self.held) < size:
                return
            reply = decode(cut(bytes(self.held), 0, parts), self.script.dialect)
            del self.held[:size]
            assert isinstance(reply, Reply)
            self.script.receive(reply)
            self._ask()
        if self.script.request is None:
            self.link.arrived(self)

    def on_lost(self, reason: str) -> None:
        self.link.lose(reason)


class SimLink:
    """Two connections and the proxy between them."""

    def __init__(self, network: Network, producer: SimNode, consumer: SimNode, suffix: str) -> None:
        self.name = f"replication:{producer.name}->{consumer.name}:default{suffix}"
        self.proxy = Proxy()
        self.is_lost = False
        self.is_open = False
        self.is_streaming = False
        self.on_open: Callable[[], None] = lambda: None
        self.on_event: Callable[[ProxyEvent], None] = lambda _event: None
        self.on_lost: Callable[[str], None] = lambda _reason: None
        self.ends: dict[Side, LinkEnd] = {}
        self.consumer, self.life = consumer, consumer.life
        self._announced: dict[int, deque[int]] = {}
        """Vbucket -> ends of the markers that wait for an answer."""
        for side, node in ((Side.CONSUMER, consumer), (Side.PRODUCER, producer)):
            connection = network.connect(f"{self.name} ({side.value})")
            node.accept(connection.ends[1], f"{self.name} ({side.value})")
            self.ends[side] = LinkEnd(self, side, connection.ends[0], node.name)

    def arrived(self, end: LinkEnd) -> None:
        if self.is_lost:
            return
        if not self.is_open and all(one.script.request is None for one in self.ends.values()):
            self.is_open = True
            self.on_open()
        if self.is_open:
            for one in self.ends.values():
                if one.held and (one is end or one.held):
                    data, one.held = bytes(one.held), bytearray()
                    self.proxy.receive(one.side, data)
            self._pass()

    def _pass(self) -> None:
        events = self.proxy.take_events()
        self.flush()
        for event in events:
            self._check_acknowledged(event)
            self.on_event(event)

    def _check_acknowledged(self, event: ProxyEvent) -> None:
        """Who acknowledges a marker has applied everything it announced."""
        if isinstance(event, MarkerSeen) and event.end_seqno > event.start_seqno:
            self.consumer.world.count(Situation.LONG_SNAPSHOT)
        if isinstance(event, MarkerSeen) and event.flags & MarkerFlag.ACK:
            self._announced.setdefault(event.vbucket, deque()).append(event.end_seqno)
        elif isinstance(event, MarkerAcknowledged) and self._announced.get(event.vbucket):
            end = self._announced[event.vbucket].popleft()
            bucket = self.consumer.bucket
            copy = None if bucket is None else bucket.find(event.vbucket)
            if copy is not None and self.consumer.life == self.life and copy.high_seqno < end:
                raise Violation(
                    f"{self.consumer.name} acknowledged a marker up to {end} of vb "
                    f"{event.vbucket} and stands at {copy.high_seqno}"
                )

    def flush(self) -> None:
        for side, end in self.ends.items():
            for data in self.proxy.take_output(side):
                end.end.send(bytes(data))

    def lose(self, reason: str) -> None:
        if not self.is_lost:
            copies = [] if self.consumer.bucket is None else self.consumer.bucket.vbuckets
            if any(is_inside(copy) for copy in copies):
                self.consumer.world.count(Situation.REPLICA_CUT_INSIDE)
            self.close()
            self.on_lost(reason)

    def close(self) -> None:
        self.is_lost = True
        for end in self.ends.values():
            end.end.close()
