"""One run: a small cluster, a few seconds of life and harm, then peace, in which all must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cluster.chains import Chains
from headrace.cluster.steps import Ending
from headrace.wire.opcodes import VBucketState
from tests.sim.world.consumer import SimConsumer
from tests.sim.world.core import START_SECONDS, Violation, World
from tests.sim.world.manager import SimManager, place_of
from tests.sim.world.network import Network
from tests.sim.world.node import SimNode
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
        self.nodes = {
            name: SimNode(self.world, self.truth, name, 1001 + place, VBUCKETS)
            for place, name in enumerate(names)
        }
        self.is_harming = True
        self._harm_share = random.choice((0.3, 1.0, 2.0))
        self._begin()
        self.writers = [SimWriter(self, f"writer{number}") for number in range(2)]
        self.consumers = [SimConsumer(self, f"reader{number}") for number in range(2)]
        self.world.checks.append(self.check_owners)

    def _begin(self) -> None:
        random, names = self.world.random, tuple(self.nodes)
        rows = []
        for vbucket in range(VBUCKETS):
            owner = names[vbucket % len(names)]
            others = [name for name in names if name != owner]
            chain = (owner, random.choice(others)) if random.random() < 0.7 else (owner,)
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
        self._repeat(self._live, (0.05, 0.15), end)
        self._repeat(self.manager.replicate, (0.1, 0.3), end + PEACE_ROUNDS * PEACE_SECONDS)
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

    def _live(self) -> None:
        """Do one thing that happens in a cluster's life."""
        acts: list[tuple[float, Callable[[], None]]] = [
            (2.0, self._move),
            (1.0, self._upkeep),
            (0.5, self._close_checkpoint),
            (1.0 * self._harm_share, self._break_connection),
            (0.5 * self._harm_share, self._pause_connection),
            (0.8 * self._harm_share, self._crash_node),
            (0.3 * self._harm_share, self._crash_in_commit),
            (0.3, self._restart_node),
            (2.0, self._bring_back),
            (0.6 * self._harm_share, self._fail_over),
            (0.8 * self._harm_share, self._kill_consumer),
            (0.5 * self._harm_share, self._kill_manager),
            (0.2, self._step_clock),
            (0.3, self._persistence),
        ]
        chosen = self.world.random.choices(acts, weights=[weight for weight, _ in acts])[0]
        chosen[1]()

    def _some_node(self, *, up: bool = True) -> SimNode | None:
        found = [node for node in self.nodes.values() if node.is_up == up]
        return self.world.random.choice(found) if found else None

    def _move(self) -> None:
        vbucket = self.world.random.randrange(VBUCKETS)
        self.manager.move(vbucket, self.world.random.choice(list(self.nodes)))

    def _upkeep(self) -> None:
        node = self._some_node()
        if node is not None and node.bucket is not None:
            bucket = node.bucket
            purge = self.world.chance(0.5)
            self.world.say(node.name, "compacts" + (" and purges" if purge else ""))

            def work() -> None:
                bucket.compact(drop_deletes=purge, purge_before=0)

            node.guarded(work)

    def _close_checkpoint(self) -> None:
        node = self._some_node()
        if node is not None and node.bucket is not None:
            for vbucket in node.bucket.vbuckets:
                if vbucket.state is VBucketState.ACTIVE:
                    vbucket.close_checkpoint()

    def _break_connection(self) -> None:
        found = self.network.open_connections()
        if found:
            one = self.world.random.choice(found)
            self.world.say("network", f"{one.name} breaks")
            one.break_off("the network broke it")

    def _pause_connection(self) -> None:
        found = self.network.open_connections()
        if found:
            self.world.random.choice(found).pause(self.world.random.uniform(0.05, 1.0))

    def _crash_node(self) -> None:
        node = self._some_node()
        if node is not None:
            node.crash()

    def _crash_in_commit(self) -> None:
        node = self._some_node()
        if node is not None:
            node.dies_at_commit = self.world.random.choice(("before", "after"))

    def _restart_node(self) -> None:
        node = self._some_node()
        if node is not None:
            node.stop()

    def _bring_back(self) -> None:
        node = self._some_node(up=False)
        if node is not None:
            node.start()
            if node.is_failed_over:
                self.manager.recover(node.name)

    def _fail_over(self) -> None:
        node = self._some_node(up=False)
        if node is not None:
            self.manager.fail_over(node.name)

    def _kill_consumer(self) -> None:
        consumer = self.world.random.choice(self.consumers)
        consumer.die()
        self.world.at(self.world.delay(0.01, 0.5), lambda: self._revive(consumer))

    def _revive(self, consumer: SimConsumer) -> None:
        if not consumer.is_alive:
            consumer.start()

    def _kill_manager(self) -> None:
        if self.manager.is_alive:
            self.manager.die()
            self.world.at(self.world.delay(0.05, 1.0), self._revive_manager)

    def _revive_manager(self) -> None:
        if not self.manager.is_alive:
            self.manager.start()

    def _step_clock(self) -> None:
        node = self._some_node()
        if node is not None:
            node.clock_skew += self.world.random.choice((-5_000_000_000, 5_000_000_000))

    def _persistence(self) -> None:
        node = self._some_node()
        if node is not None and node.bucket is not None:
            if node.bucket.persistence:
                node.bucket.stop_persistence()
            else:
                node.bucket.start_persistence()

    # -- peace -----------------------------------------------------------------------------------

    def _heal(self) -> None:
        if not self.manager.is_alive:
            self.manager.start()
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
            self._revive(consumer)

    def _is_quiet(self) -> bool:
        """Whether nothing is left to do: then everything must agree."""
        if self.manager.journal or self.manager.runs:
            return False
        for vbucket in range(VBUCKETS):
            owners = self._owners(vbucket)
            if len(owners) != 1:
                return False
            assert owners[0].bucket is not None
            active = owners[0].bucket.vbucket(vbucket)
            wanted = (int(active.failover_log.newest.uuid), active.high_seqno)
            reached = [consumer.position(vbucket) for consumer in self.consumers]
            for name in self.manager.chains.rows[vbucket][1:]:
                copy = self._copy(name, vbucket)
                if copy is None:
                    return False
                reached.append((int(copy.failover_log.newest.uuid), copy.high_seqno))
            if not all(_agree(place, wanted) for place in reached):
                return False
        return True

    def _copy(self, name: str | None, vbucket: int) -> VBucket | None:
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
            copies = {name: self._copy(name, vbucket) for name in self.nodes}
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
            if not _agree(reached, (branch, high)):
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
