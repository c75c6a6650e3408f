"""One run: a small cluster, a few seconds of life and harm, then peace, in which all must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cluster.chains import Chains
from headrace.cluster.steps import Ending
from headrace.wire.opcodes import VBucketState
from tests.sim.world.acts import Acts
from tests.sim.world.consumer import SimConsumer
from tests.sim.world.core import START_SECONDS, Violation, World
from tests.sim.world.manager import SimManager, place_of
from tests.sim.world.network import Network
from tests.sim.world.node import CHECKPOINT_ITEMS, SimNode
from tests.sim.world.truth import Truth
from tests.sim.world.writer import SimWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.store import VBucket

VBUCKETS = 2
NAMES = ("ada", "bob", "cyd")
LIFE_SECONDS = 4.0
PEACE_SECONDS = 2.0
PEACE_ROUNDS = 40


class Scenario:
    """A seed's world."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.vbuckets = VBUCKETS
        self.truth = Truth(VBUCKETS)
        self.network = Network(self.world)
        random = self.world.random
        names = NAMES[: random.choice((2, 2, 3))]
        items = random.choice(CHECKPOINT_ITEMS)
        self.nodes = {
            name: SimNode(self.world, self.truth, name, 1001 + place, checkpoint_items=items)
            for place, name in enumerate(names)
        }
        self.is_harming = True
        self._begin()
        self.writers = [SimWriter(self, f"writer{number}") for number in range(2)]
        self.consumers = [SimConsumer(self, f"reader{number}") for number in range(2)]
        self.acts = Acts(self, harm=random.choice((0.3, 1.0, 2.0)))
        self.world.checks.append(self.check_owners)

    def _begin(self) -> None:
        random, names = self.world.random, tuple(self.nodes)
        rows = []
        for vbucket in range(VBUCKETS):
            owner = names[vbucket % len(names)]
            others = [name for name in names if name != owner]
            chain = (owner, random.choice(others)) if random.random() < 0.85 else (owner,)
            rows.append(chain)
        for node in self.nodes.values():
            node.start()
        for vbucket, chain in enumerate(rows):
            host = self.nodes[chain[0]].host
            assert host is not None
            host.set_state(vbucket, VBucketState.ACTIVE)
            self.nodes[chain[0]].observe()
        chains = Chains(
            bucket="default",
            rows=tuple(rows),
            places=tuple(place_of(node) for node in self.nodes.values()),
        )
        self.manager = SimManager(self, chains)
        self.manager.publish()

    def node_at(self, port: int) -> SimNode | None:
        return next((node for node in self.nodes.values() if node.port == port), None)

    # -- the run ---------------------------------------------------------------------------------

    def run(self) -> None:
        """Live, then make peace and compare everything."""
        world = self.world
        for consumer in self.consumers:
            consumer.start()
        end = START_SECONDS + LIFE_SECONDS
        self._repeat(self._write, (0.005, 0.02, 0.08), end)
        self._repeat(self.acts.one, (0.05, 0.15), end)
        replicate = self.manager.replication.keep_up
        self._repeat(replicate, (0.1, 0.3), end + PEACE_ROUNDS * PEACE_SECONDS)
        world.run_until(end)
        self.is_harming = False
        world.say("world", "peace")
        for _ in range(PEACE_ROUNDS):
            self._heal()
            world.run_until(world.now + PEACE_SECONDS)
            if self._is_quiet():
                break
        self._heal()
        self.check_end()

    def _repeat(self, act: Callable[[], None], delays: tuple[float, ...], end: float) -> None:
        def again() -> None:
            if self.world.now < end:
                act()
                self.world.at(self.world.random.choice(delays), again)

        self.world.at(0.0, again)

    def _write(self) -> None:
        self.world.random.choice(self.writers).write()

    # -- peace -----------------------------------------------------------------------------------

    def _heal(self) -> None:
        self.network.heal()
        self.manager.revive()
        for node in self.nodes.values():
            if not node.is_up:
                node.start()
        for node in self.nodes.values():
            if node.is_failed_over:
                self.manager.recover(node.name)
            if node.bucket is not None and not node.bucket.persistence:
                node.bucket.start_persistence()
        self.manager.resume()
        self.manager.publish()
        for consumer in self.consumers:
            consumer.revive()

    def _is_quiet(self) -> bool:
        """Whether nothing is left to do: then everything must agree."""
        if self.manager.journal or self.manager.runs:
            return False
        if not all(node.is_up and not node.is_failed_over for node in self.nodes.values()):
            return False
        for vbucket in range(VBUCKETS):
            owners = self._owners(vbucket)
            if len(owners) != 1:
                return False
            assert owners[0].bucket is not None
            active = owners[0].bucket.vbucket(vbucket)
            wanted = (int(active.failover_log.newest.uuid), active.high_seqno)
            if not all(self._is_at(one, vbucket, wanted) for one in self.consumers):
                return False
            reached = []
            for name in self.manager.chains.rows[vbucket][1:]:
                copy = self.copy(name, vbucket)
                if copy is None:
                    return False
                reached.append((int(copy.failover_log.newest.uuid), copy.high_seqno))
            if not all(_agree(place, wanted) for place in reached):
                return False
        return True

    def _is_at(self, consumer: SimConsumer, vbucket: int, wanted: tuple[int, int]) -> bool:
        """Whether a consumer has everything: a replica's reader hears of a branch with its items.

        A branch without an item changes nothing, and the end of the one before it is its beginning.
        """
        branch, seqno = consumer.position(vbucket)
        belongs = self.truth[vbucket].branch_of(wanted[0], seqno) == branch
        return _agree((wanted[0] if belongs else branch, seqno), wanted)

    def copy(self, name: str | None, vbucket: int) -> VBucket | None:
        """A node's copy of a vbucket, as it is; None: the node is down or has none."""
        bucket = None if name is None else self.nodes[name].bucket
        return None if bucket is None else bucket.find(vbucket)

    def _owners(self, vbucket: int) -> list[SimNode]:
        return [
            node
            for node in self.nodes.values()
            if node.bucket is not None
            and not node.is_failed_over
            and (found := node.bucket.find(vbucket)) is not None
            and found.state is VBucketState.ACTIVE
        ]

    # -- checks ----------------------------------------------------------------------------------

    def check_owners(self) -> None:
        """Never two owners."""
        for vbucket in range(VBUCKETS):
            owners = self._owners(vbucket)
            if len(owners) > 1:
                names = " and ".join(node.name for node in owners)
                raise Violation(f"vbucket {vbucket} is active on {names}")

    def check_end(self) -> None:
        """After peace everybody has the same, and nothing persisted is lost."""
        manager = self.manager
        pending = [(str(m), e.value, t) for m, e, t in manager.endings if e is Ending.PENDING]
        if manager.journal or manager.runs:
            raise Violation(
                f"moves did not end: {[str(one) for one in manager.journal.values()]}, pending "
                f"before: {pending[-3:]}"
            )
        for vbucket in range(VBUCKETS):
            self._check_vbucket(vbucket)

    def _check_vbucket(self, vbucket: int) -> None:
        truth, manager = self.truth[vbucket], self.manager
        owners = self._owners(vbucket)
        if len(owners) != 1:
            copies = {name: self.copy(name, vbucket) for name in self.nodes}
            states = {name: copy and copy.state.name for name, copy in copies.items()}
            raise Violation(f"vbucket {vbucket} has {len(owners)} owners in peace: {states}")
        (owner,) = owners
        if manager.chains.rows[vbucket][0] != owner.name:
            raise Violation(
                f"vbucket {vbucket} is active on {owner.name}, the map says "
                f"{manager.chains.rows[vbucket]}"
            )
        assert owner.bucket is not None
        active = owner.bucket.vbucket(vbucket)
        branch, high = int(active.failover_log.newest.uuid), active.high_seqno
        truth.expect(branch, high, owner.contents(vbucket), owner.name)
        truth.check_kept(branch, high)
        for consumer in self.consumers:
            reached = consumer.position(vbucket)
            if not self._is_at(consumer, vbucket, (branch, high)):
                raise Violation(
                    f"{consumer.name} stands at seqno {reached[1]} of branch {reached[0]:x} of "
                    f"vbucket {vbucket}, the owner {owner.name} at {high} of {branch:x}"
                )
            truth.expect(branch, high, consumer.application.state(vbucket), consumer.name)
        for name in manager.chains.rows[vbucket][1:]:
            assert name is not None
            self._check_replica(vbucket, self.nodes[name], branch, high)

    def _check_replica(self, vbucket: int, node: SimNode, branch: int, high: int) -> None:
        assert node.bucket is not None
        copy = node.bucket.find(vbucket)
        if copy is None or copy.high_seqno != high or int(copy.failover_log.newest.uuid) != branch:
            said = "nothing" if copy is None else f"seqno {copy.high_seqno} {copy.failover_log}"
            raise Violation(
                f"the replica of vbucket {vbucket} on {node.name} has {said}, the owner {high} of "
                f"branch {branch:x}"
            )
        self.truth[vbucket].expect(branch, high, node.contents(vbucket), f"{node.name} (replica)")


def _agree(place: tuple[int, int], wanted: tuple[int, int]) -> bool:
    """Whether two copies stand at the same place; at 0 the branch means nothing."""
    return place == wanted or place[1] == wanted[1] == 0
