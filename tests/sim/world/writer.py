"""A writer of the simulation: documents to whoever owns their vbucket, singly or in bursts.

It knows nothing of moves: it follows the map it is given with a refusal, and asks again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.client.topology import ClusterMap, read_map
from headrace.wire import kv
from headrace.wire.codec import decode, encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import FrameBuffer
from headrace.wire.message import ErrorReply
from headrace.wire.opcodes import Status
from tests.sim.world.consumer import address_of
from tests.sim.world.node import keys_of

if TYPE_CHECKING:
    from headrace.wire.message import Request
    from tests.sim.world.network import End
    from tests.sim.world.node import SimNode
    from tests.sim.world.scenario import Scenario

DELETES = 0.25
PATIENCE_SECONDS = 2.0
BURST_MAX = 12


class SimWriter:
    """Writes to random keys as long as it is let."""

    def __init__(self, scenario: Scenario, name: str) -> None:
        self.scenario, self.world, self.name = scenario, scenario.world, name
        self.map: ClusterMap | None = None
        self.written = 0
        self.acknowledged = 0
        self._version = 0
        self._links: dict[int, WriterLink] = {}

    def write(self) -> None:
        """Begin one write, unless one is under way at its node."""
        self._send(self.world.random.randrange(self.scenario.vbuckets), under_way_max=1)

    def burst(self, vbucket: int) -> None:
        """Begin several at once: the same keys come again before anybody was sent the first."""
        for _ in range(self.world.random.randint(2, BURST_MAX)):
            self._send(vbucket, under_way_max=BURST_MAX)

    def _send(self, vbucket: int, under_way_max: int) -> None:
        key = self.world.random.choice(keys_of(vbucket))
        self._version += 1
        request: Request
        if self.world.chance(DELETES):
            request = kv.Delete(key=key, vbucket=vbucket)
        else:
            value = b"%s:%d" % (self.name.encode(), self._version)
            request = kv.Set(key=key, value=value, vbucket=vbucket)
        node = self._owner(vbucket)
        if node is None or not node.is_up or node.is_failed_over:
            self.map = None
            return
        link = self._links.get(node.port)
        if link is None or not link.end.is_open:
            link = self._links[node.port] = WriterLink(self, node)
        link.send(request, under_way_max)

    def _owner(self, vbucket: int) -> SimNode | None:
        if self.map is None:
            up = [
                node
                for node in self.scenario.nodes.values()
                if node.process is not None and not node.is_failed_over
            ]
            if not up:
                return None
            node = self.world.random.choice(up)
            assert node.process is not None
            said = node.process.map_of(node.host, "127.0.0.1")
            self.map = read_map(said, connected=address_of(node))
        address = self.map.node_of(vbucket)
        return None if address is None else self.scenario.node_at(address.port)

    def answered(self, node: SimNode, reply: object) -> None:
        """Count it, or follow the map that came with a refusal."""
        if not isinstance(reply, ErrorReply):
            self.acknowledged += 1
        elif reply.status == Status.NOT_MY_VBUCKET:
            self.map = read_map(reply.value, connected=address_of(node)) if reply.value else None


class WriterLink:
    """A connection to one node."""

    def __init__(self, writer: SimWriter, node: SimNode) -> None:
        self.writer, self.node = writer, node
        connection = writer.scenario.network.connect(f"{writer.name}->{node.name}")
        node.accept(connection.ends[1], writer.name)
        self.end: End = connection.ends[0]
        self.end.owner = self
        self._frames = FrameBuffer()
        self._under_way = 0
        self._sent_at = 0.0

    def send(self, request: Request, under_way_max: int) -> None:
        now = self.writer.world.now
        if self._under_way and now - self._sent_at > PATIENCE_SECONDS:
            self.end.close()
            self.writer.map = None
        if self._under_way >= under_way_max:
            return
        if not self._under_way:
            self._sent_at = now
        self._under_way += 1
        self.writer.written += 1
        self.end.send(encode(request, Dialect.DCP_7))

    def on_bytes(self, data: bytes) -> None:
        self._frames.feed(data)
        for frame in self._frames:
            if frame.is_reply:
                self._under_way -= 1
                self.writer.answered(self.node, decode(frame, Dialect.DCP_7))

    def on_lost(self, reason: str) -> None:
        del reason
        self.writer.map = None
