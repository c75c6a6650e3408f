"""A consumer of the simulation: the client's own steering, and an application that keeps rows.

The application keeps every row it was given and obeys rollbacks. Now and then it saves rows and
tokens together, as a careful one does; when it dies, it goes on from what it saved. At the end of
every snapshot what it holds must be what really happened up to there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.client.access import Access
from headrace.client.address import NodeAddress
from headrace.client.changes import Change, Kind, Rollback
from headrace.client.courses import Courses, course_of
from headrace.client.intake import Intake
from headrace.client.objects import Several
from headrace.client.steering import Steering
from headrace.client.tokens import BEGINNING
from headrace.client.topology import NOBODY, read_map
from headrace.errors import ConnectionLost, HeadraceError
from headrace.history import VBucketId
from headrace.protocol.handshake import ConsumerSettings
from headrace.protocol.talk import Position, StreamPlan
from headrace.wire.opcodes import StreamFlag
from tests.sim.world.core import Situation, Violation

if TYPE_CHECKING:
    from headrace.client.bulk import BulkRoad, ObjectRoad
    from headrace.client.topology import ClusterMap
    from tests.sim.world.network import Connection, End
    from tests.sim.world.node import SimNode
    from tests.sim.world.scenario import Scenario

WINDOWS = (0, 4096, 16384)
REPLICA_READERS = 0.25
ROLLBACKS_MAX = 500
"""Rollbacks of one vbucket in one run: they must end."""

Row = tuple[int, bytes, bytes | None]


class Application:
    """Rows by vbucket, in the order of their seqnos."""

    def __init__(self, vbuckets: int) -> None:
        self.rows: dict[int, list[Row]] = {number: [] for number in range(vbuckets)}
        self.positions: dict[int, Position] = {}

    def copied(self) -> Application:
        """As it is now; rows and positions themselves never change."""
        made = Application(0)
        made.rows = {vbucket: list(rows) for vbucket, rows in self.rows.items()}
        made.positions = dict(self.positions)
        return made

    def take(self, given: Change | Rollback, who: str) -> None:
        rows = self.rows[given.vbucket]
        if isinstance(given, Rollback):
            self.rows[given.vbucket] = [row for row in rows if row[0] <= given.to_seqno]
            return
        if rows and given.seqno <= rows[-1][0]:
            raise Violation(
                f"{who}: seqno {given.seqno} of vbucket {given.vbucket} after {rows[-1][0]}, and "
                "no rollback between them"
            )
        if given.kind is Kind.MUTATION:
            rows.append((given.seqno, given.key, given.value))
        elif given.kind in (Kind.DELETION, Kind.EXPIRATION):
            rows.append((given.seqno, given.key, None))

    def state(self, vbucket: int) -> dict[bytes, bytes]:
        state: dict[bytes, bytes] = {}
        for _, key, value in self.rows[vbucket]:
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
        return state


class Channel:
    """A link of a consumer: bytes and the road they take."""

    def __init__(self, consumer: SimConsumer, node: NodeAddress, end: End) -> None:
        self.consumer, self.node, self.end = consumer, node, end
        self.road: BulkRoad | ObjectRoad = consumer.steering.road(now=consumer.world.now)
        self.opened_at = consumer.world.now
        self.held = bytearray()
        end.owner = self

    def on_bytes(self, data: bytes) -> None:
        self.held += data
        self.consumer.received(self)

    def on_lost(self, reason: str) -> None:
        self.consumer.lost(self, ConnectionLost(reason))


class SimConsumer:
    """One consumer and its lives."""

    def __init__(self, scenario: Scenario, name: str) -> None:
        self.scenario, self.world, self.name = scenario, scenario.world, name
        self.application = Application(scenario.vbuckets)
        self.saved = self.application.copied()
        self.channels: dict[NodeAddress, Channel] = {}
        self.rollbacks = 0
        self.is_alive = False
        self._life = 0
        self._scheduled = False

    # -- life ------------------------------------------------------------------------------------

    def start(self, *, reads_replicas: bool = False) -> None:
        """Begin where the saved tokens say, with the rows saved beside them."""
        told = self._first_map()
        if told is None:
            self.world.at(0.2, self.revive)
            return
        self._life += 1
        self.is_alive = True
        self.application = self.saved.copied()
        held = self.application.positions
        # Some readers spare the owners and read replicas, until one refuses.
        reads_replicas = reads_replicas or self.world.chance(REPLICA_READERS)
        told = with_replicas(told) if reads_replicas else told
        active_only = not reads_replicas and self.world.chance(0.5)
        courses = Courses(
            [
                course_of(number, held.get(number, BEGINNING))
                for number in range(self.scenario.vbuckets)
            ],
            told,
            # Others take what replicas give them, too: a map may be old.
            plan=StreamPlan(
                vbucket=VBucketId(0),
                flags=StreamFlag.ACTIVE_ONLY if active_only else StreamFlag(0),
            ),
            random=self.world.random.random,
        )
        self.intake = Intake(courses, None)
        settings = ConsumerSettings(
            name=f"{self.name}:{self._life}",
            bucket="default",
            window=self.world.random.choice(WINDOWS),
            purge_seqnos=self.world.chance(0.5),
            clustermap_push=not reads_replicas,
        )
        self.steering = Steering(self.intake, Access(connect_seconds=5), settings, bulk=False)
        self.world.say(self.name, f"starts at {self._where(held)}")
        if any(not one.token.is_boundary for one in held.values()):
            self.world.count(Situation.CONSUMER_RESTARTED_INSIDE)
        self.wake()

    def revive(self) -> None:
        """Begin again, unless it is there."""
        if not self.is_alive:
            self.start()

    def _first_map(self) -> ClusterMap | None:
        maps = [
            read_map(node.process.map_of(node.host, "127.0.0.1"), connected=address_of(node))
            for node in self.scenario.nodes.values()
            if node.process is not None and not node.is_failed_over
        ]
        return max(maps, key=lambda one: one.age, default=None)

    @staticmethod
    def _where(positions: dict[int, Position]) -> str:
        return ", ".join(f"{v}:{one.token.seqno}" for v, one in sorted(positions.items())) or "0"

    def die(self) -> None:
        """Lose everything that was not saved."""
        if not self.is_alive:
            return
        self.world.say(self.name, "dies")
        self.is_alive = False
        self._life += 1
        for channel in self.channels.values():
            channel.end.close()
        self.channels.clear()

    @property
    def is_inside(self) -> bool:
        """Whether the application was given items of a snapshot that is not whole."""
        held = self.intake.delivered.values() if self.is_alive else ()
        return any(not position.token.is_boundary for position in held)

    def slow_down(self) -> None:
        """Let every node reach it slowly."""
        for channel in self.channels.values():
            channel.end.slow_down()

    def save(self) -> None:
        """Keep rows and tokens together."""
        if self.is_alive and self.intake.is_covered:
            self.application.positions.update(self.intake.delivered)
            self.saved = self.application.copied()

    # -- links -----------------------------------------------------------------------------------

    def wake(self, delay: float = 0.0) -> None:
        if not self._scheduled:
            self._scheduled = True
            life = self._life
            self.world.at(delay, lambda: self._work(life))

    def _work(self, life: int) -> None:
        self._scheduled = False
        if life != self._life or not self.is_alive:
            if self.is_alive:
                self.wake()
            return
        now, steering = self.world.now, self.steering
        for node in sorted(steering.nodes_to_open(self.channels, now=now), key=str):
            self._open(node)
        for channel in list(self.channels.values()):
            steering.ask(channel.node, channel.road.connection, now=now)
            self._flush(channel)
            lost = steering.watch(
                channel.node, channel.road.connection, opened_at=channel.opened_at, now=now
            )
            if lost is not None:
                self.lost(channel, lost)
        steering.tell_troubles()
        steering.raise_if_stuck()
        self._give()
        connections = [channel.road.connection for channel in self.channels.values()]
        self.wake(steering.wait_seconds(connections, now=now))

    def _open(self, address: NodeAddress) -> None:
        node = self.scenario.node_at(address.port)
        if node is None or not node.is_up or node.is_failed_over:
            self.steering.lost(address, None, ConnectionLost("nobody listens"), now=self.world.now)
            return
        connection: Connection = self.scenario.network.connect(f"{self.name}->{node.name}")
        node.accept(connection.ends[1], self.name)
        channel = Channel(self, address, connection.ends[0])
        self.channels[address] = channel
        self._flush(channel)

    def _flush(self, channel: Channel) -> None:
        channel.end.send(channel.road.connection.take_output())

    def lost(self, channel: Channel, error: HeadraceError) -> None:
        if self.channels.get(channel.node) is channel:
            if self.is_inside:
                self.world.count(Situation.CONSUMER_CUT_INSIDE)
            del self.channels[channel.node]
            channel.end.close()
            self.steering.lost(channel.node, channel.road.connection, error, now=self.world.now)
            self.wake()

    def received(self, channel: Channel) -> None:
        if self.channels.get(channel.node) is not channel:
            return
        now = self.world.now
        taken = channel.road.take(memoryview(bytes(channel.held)), now=now)
        del channel.held[: taken.consumed]
        self.steering.take(taken, channel.node, channel.road.connection, now=now)
        self._flush(channel)
        if channel.road.failure is not None:
            # Our nodes never give a consumer a reason to call them broken.
            raise Violation(f"{self.name}: {channel.road.failure}")
        self._give()
        self.wake()

    # -- the application -------------------------------------------------------------------------

    def _give(self) -> None:
        while (given := self.intake.next(now=self.world.now)) is not None:
            if isinstance(given, Several):
                while (change := given.next()) is not None:
                    self.application.take(change, self.name)
                continue
            assert isinstance(given, Change | Rollback), given
            self.application.take(given, self.name)
            if isinstance(given, Rollback):
                self._rolled_back(given)
        self.intake.release(now=self.world.now)
        for channel in self.channels.values():
            self._flush(channel)
        self._check()
        if self.world.chance(0.3):
            self.save()

    def _rolled_back(self, given: Rollback) -> None:
        self.rollbacks += 1
        self.world.count(Situation.CONSUMER_ROLLED_BACK)
        self.world.say(self.name, f"is rolled back: {given}")
        if self.rollbacks > ROLLBACKS_MAX:
            raise Violation(f"{self.name} was rolled back {self.rollbacks} times")

    def _check(self) -> None:
        """At the end of a snapshot the rows are the truth."""
        for vbucket, position in self.intake.delivered.items():
            token = position.token
            if token.is_boundary and not len(self.intake):
                found = self.application.state(vbucket)
                truth = self.scenario.truth[vbucket]
                truth.expect(int(token.branch), int(token.seqno), found, self.name)

    def position(self, vbucket: int) -> tuple[int, int]:
        """The branch and seqno reached."""
        token = self.steering.courses.by_vbucket[vbucket].position.token
        return int(token.branch), int(token.seqno)


def with_replicas(told: ClusterMap) -> ClusterMap:
    """A map that names the first replica of each vbucket, where there is one, as its owner."""
    rows = zip(told.copies, told.active, strict=True)
    return replace(
        told,
        active=tuple(row[1] if len(row) > 1 and row[1] != NOBODY else owner for row, owner in rows),
    )


def address_of(node: SimNode) -> NodeAddress:
    """Where clients find a node."""
    return NodeAddress("127.0.0.1", node.port)
