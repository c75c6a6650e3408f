"""Replication in the simulation: every replica of the map follows its owner, by a link of its own.

The link can be made slow, so that its replica is behind and is sent snapshots of many items, or
held, so that the replica stays where it is, for example inside one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cluster.proxy import Side, StreamAdded, StreamEnded, StreamLost, StreamRefused
from headrace.cluster.steps import Step
from headrace.wire.opcodes import StreamEndReason, VBucketState
from tests.sim.world.core import Situation, Violation
from tests.sim.world.links import SimLink
from tests.sim.world.orders import deletion, set_vbucket

if TYPE_CHECKING:
    from headrace.cluster.proxy import ProxyEvent
    from tests.sim.world.manager import SimManager
    from tests.sim.world.node import SimNode

SLOW_LINKS = 0.3
"""Share of replicas that are fed slowly from the beginning."""


class Replication:
    """The links of a manager's replicas."""

    def __init__(self, manager: SimManager) -> None:
        self.manager, self.scenario, self.world = manager, manager.scenario, manager.world
        self.links: dict[int, SimLink] = {}

    def keep_up(self) -> None:
        """Have every replica of the map follow its owner."""
        manager = self.manager
        if not manager.is_alive:
            return
        for vbucket, chain in enumerate(manager.chains.rows):
            if vbucket in manager.journal or vbucket in manager.runs or len(chain) < 2:
                continue
            link = self.links.get(vbucket)
            if link is not None and not link.is_lost:
                continue
            assert chain[0] is not None
            assert chain[1] is not None
            producer, consumer = self.scenario.nodes[chain[0]], self.scenario.nodes[chain[1]]
            if manager.reaches(producer) and manager.reaches(consumer):
                self._follow(vbucket, producer, consumer)

    def _follow(self, vbucket: int, producer: SimNode, consumer: SimNode) -> None:
        manager = self.manager
        active = manager.copy(producer.name, vbucket)
        held = manager.copy(consumer.name, vbucket)
        if active is None or held is None or active.state is not VBucketState.ACTIVE:
            return
        if held.state is VBucketState.ACTIVE:
            raise Violation(f"vb {vbucket} is active on {producer.name} and on {consumer.name}")
        if held.state is not VBucketState.REPLICA:
            manager.ask(consumer.name, set_vbucket(vbucket, VBucketState.REPLICA))
        if not (manager.reaches(producer) and manager.reaches(consumer)):
            return
        link = self.links[vbucket] = SimLink(
            self.scenario.network, producer, consumer, f":{vbucket}"
        )

        def opened() -> None:
            link.proxy.add_stream(vbucket, 0)
            link.flush()

        def heard(event: ProxyEvent) -> None:
            if isinstance(event, StreamAdded):
                link.is_streaming = True
                if self.world.chance(SLOW_LINKS) and self.scenario.is_harming:
                    self.slow_down(vbucket)
                self.world.say("manager", f"vb {vbucket}: {consumer.name} follows {producer.name}")
            elif isinstance(event, StreamLost):
                self.world.count(Situation.COPY_REPLACED)
                self.world.say("manager", f"vb {vbucket}: {consumer.name} gave its stream up")
                opened()
            elif isinstance(event, StreamEnded) and event.reason == StreamEndReason.CLOSED:
                raise Violation(f"vb {vbucket}: the end of a stream that was closed is told")
            elif isinstance(event, StreamRefused | StreamEnded):
                self.world.say("manager", f"vb {vbucket}: replication ends, {event}")
                link.close()

        link.on_open, link.on_event = opened, heard

    def stop(self, vbucket: int) -> None:
        """Let a vbucket's replica follow nobody for now."""
        link = self.links.pop(vbucket, None)
        if link is not None:
            link.close()

    def drop(self, vbucket: int) -> None:
        """Delete the first replica, so that it is copied anew."""
        manager = self.manager
        name = manager.chains.rows[vbucket][1]
        assert name is not None
        copy = self.scenario.copy(name, vbucket)
        if not manager.is_alive or copy is None or copy.state is not VBucketState.REPLICA:
            return
        if manager.failing or any(vbucket == move.vbucket for move in manager.moves()):
            return  # it may be all that is left
        self.stop(vbucket)
        self.world.say("manager", f"has vb {vbucket} copied to {name} anew")
        for order in deletion(vbucket):
            manager.ask(name, order)

    def replace(self, vbucket: int) -> None:
        """Empty the first replica while it is fed: somebody who knows nothing of managers does it.

        The copy of a move is replaced while it catches up; until then the source is the owner.
        """
        manager = self.manager
        run = manager.runs.get(vbucket)
        if run is not None:
            name = run.mover.move.target if run.mover.step is Step.CATCHING_UP else None
        else:
            chain = manager.chains.rows[vbucket]
            name = chain[1] if len(chain) > 1 and vbucket not in manager.journal else None
        copy = self.scenario.copy(name, vbucket)
        if name is None or copy is None or copy.state is not VBucketState.REPLICA:
            return
        if manager.failing:
            return  # it may be all that is left
        self.world.say("somebody", f"replaces vb {vbucket} of {name}")
        for order in (*deletion(vbucket), set_vbucket(vbucket, VBucketState.REPLICA)):
            manager.ask(name, order)

    def hold(self, vbucket: int, seconds: float) -> None:
        """Let nothing reach a replica for so long."""
        link = self.links.get(vbucket)
        if link is not None:
            link.ends[Side.CONSUMER].end.pause(seconds)

    def slow_down(self, vbucket: int) -> None:
        """Let a replica's owner send slowly."""
        link = self.links.get(vbucket)
        if link is not None and link.is_streaming:
            link.ends[Side.PRODUCER].end.slow_down()
