"""What happens in a cluster's life: work, repairs, and every kind of harm.

Most acts come at any time. Some wait for the moment at which they hurt most, the middle of a
snapshot: they slow down who sends it, have the same keys written again and again, so that versions
are left out of it, and look until somebody holds a part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.wire.opcodes import VBucketState
from tests.sim.world.node import is_inside

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.store import VBucket
    from tests.sim.world.node import SimNode
    from tests.sim.world.scenario import Scenario

SHARES = (0.02, 0.3, 1.0, 3.0)
"""How much more or less often than usual an act happens in a world."""
REPAIRS = 0.25
"""Acts that bring nodes back, in relation to all others: a cluster that is down has no life."""
DECLARED_SECONDS = (0.02, 0.1, 0.3)
"""When a node that was lost is declared dead: at once, or when that is possible."""
LOOK_SECONDS = 0.02
LOOKS_MAX = 50
"""Looks for the right moment before harm is done anyway."""
HELD_BACK = 0.7
TORN = 0.7
RESTARTED = 0.7
CLEAN_RESTARTS = 0.7
CLOCK_STEPS = (-5_000_000_000, 5_000_000_000)


class Acts:
    """The acts of one world, and how often each happens.

    Where everything happens, long stories do not: a failover waits for moves to end, a replica is
    dropped before it is far behind. So each world all but leaves out some acts and repeats others.
    """

    def __init__(self, scenario: Scenario, *, harm: float) -> None:
        self.scenario, self.world = scenario, scenario.world
        self.nodes, self.manager = scenario.nodes, scenario.manager
        acts: list[tuple[float, Callable[[], None]]] = [
            (2.0, self._move),
            (1.0, self._burst),
            (1.0, self._upkeep),
            (0.5, self._close_checkpoint),
            (1.0 * harm, self._break_connection),
            (0.5 * harm, self._pause_connection),
            (2.0 * harm, self._slow_connection),
            (0.8 * harm, self._crash_node),
            (0.3 * harm, self._crash_in_commit),
            (0.3, self._restart_node),
            (0.6 * harm, self._fail_over),
            (2.0 * harm, self._lose_owner),
            (0.8 * harm, self._kill_consumer),
            (0.5, self._purge_behind),
            (1.0, self._read_replica),
            (0.5 * harm, self._kill_manager),
            (1.0 * harm, self._replace_copy),
            (0.2, self._step_clock),
            (0.3, self._persistence),
        ]
        weights = [weight * self.world.random.choice(SHARES) for weight, _ in acts]
        repairs = sum(weights) * REPAIRS
        self._acts = [act for _, act in acts] + [self._bring_back, self._resume]
        self._weights = [*weights, repairs, repairs / 4]
        self._waiting = 0
        """Acts that wait for their moment."""

    def one(self) -> None:
        """Do one thing; seldom while another waits for its moment."""
        if self._waiting and self.world.chance(HELD_BACK):
            return
        self.world.random.choices(self._acts, weights=self._weights)[0]()

    def _some_node(self, *, up: bool = True) -> SimNode | None:
        found = [node for node in self.nodes.values() if node.is_up == up]
        return self.world.random.choice(found) if found else None

    def _some_vbucket(self) -> int:
        return self.world.random.randrange(self.scenario.vbuckets)

    # -- work ------------------------------------------------------------------------------------

    def _move(self) -> None:
        self.manager.move(self._some_vbucket(), self.world.random.choice(list(self.nodes)))

    def _resume(self) -> None:
        """Take up again what was declared pending."""
        if self.manager.is_alive:
            self.manager.resume()

    def _burst(self) -> None:
        self._write_much(self._some_vbucket())

    def _write_much(self, vbucket: int) -> None:
        self.world.random.choice(self.scenario.writers).burst(vbucket)

    def _upkeep(self) -> None:
        node = self._some_node()
        if node is not None:
            self._compact(node, purge=self.world.chance(0.5))

    def _compact(self, node: SimNode, *, purge: bool) -> None:
        bucket = node.bucket
        if bucket is not None:
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

    # -- harm at any time ------------------------------------------------------------------------

    def _break_connection(self) -> None:
        found = self.scenario.network.open_connections()
        if found:
            one = self.world.random.choice(found)
            self.world.say("network", f"{one.name} breaks")
            one.break_off("the network broke it")

    def _pause_connection(self) -> None:
        found = self.scenario.network.open_connections()
        if found:
            self.world.random.choice(found).pause(self.world.random.uniform(0.05, 1.0))

    def _slow_connection(self) -> None:
        found = self.scenario.network.open_connections()
        if found:
            self.world.random.choice(found).slow_down()

    def _crash_node(self) -> None:
        node = self._some_node()
        if node is not None:
            node.crash()

    def _crash_in_commit(self) -> None:
        node = self._some_node()
        if node is not None:
            node.dies_at_commit = self.world.random.choice(("before", "after"))

    def _fail_over(self) -> None:
        node = self._some_node(up=False)
        if node is not None:
            self.manager.fail_over(node.name)

    def _replace_copy(self) -> None:
        self.manager.replication.replace(self._some_vbucket())

    def _kill_manager(self) -> None:
        if self.manager.is_alive:
            self.manager.die()
            self.world.at(self.world.delay(0.05, 1.0), self.manager.revive)

    def _step_clock(self) -> None:
        node = self._some_node()
        if node is not None:
            node.clock_skew += self.world.random.choice(CLOCK_STEPS)

    def _persistence(self) -> None:
        node = self._some_node()
        if node is not None and node.bucket is not None:
            if node.bucket.persistence:
                node.bucket.stop_persistence()
            else:
                node.bucket.start_persistence()

    # -- harm at the worst moment ----------------------------------------------------------------

    def _kill_consumer(self) -> None:
        """A consumer dies; half of them die inside a snapshot, if that can be had."""
        consumer = self.world.random.choice(self.scenario.consumers)

        def kill() -> None:
            consumer.die()
            self.world.at(self.world.delay(0.01, 0.5), consumer.revive)

        if self.world.chance(0.5):
            kill()
            return
        consumer.slow_down()
        self._write_much(self._some_vbucket())

        def save_and_kill() -> None:
            if consumer.is_inside:
                consumer.save()
            kill()

        self._wait_for(lambda: consumer.is_inside, save_and_kill)

    def _purge_behind(self) -> None:
        """A consumer is away while keys are deleted and their tombstones are purged."""
        consumer = self.world.random.choice(self.scenario.consumers)
        consumer.die()
        self._write_much(self._some_vbucket())

        def purge() -> None:
            for node in self.nodes.values():
                self._compact(node, purge=True)
            consumer.revive()

        self.world.at(self.world.delay(0.1, 0.5), purge)

    def _lose_owner(self) -> None:
        """A node dies that can be done without, and somebody sees it and declares it dead.

        It dies while one of its replicas is inside a snapshot; that one may have to start again.
        """
        found = [node for node in self.nodes.values() if self.manager.can_lose(node.name)]
        if not found:
            return
        node = self.world.random.choice(found)

        def strike() -> None:
            if not self.manager.can_lose(node.name):
                return
            inside = self._inside(node.name)
            node.crash()
            if inside and self.world.chance(RESTARTED):
                self._restart_copy(inside[0])
            for delay in DECLARED_SECONDS:
                self.world.at(delay, lambda: self.manager.fail_over(node.name))

        self._when_inside(node.name, strike)

    def _read_replica(self) -> None:
        """A consumer begins to read replicas while one of them is inside a snapshot."""
        owners = [node for node in self.nodes.values() if node.is_up and self._copies(node.name)]
        if not owners:
            return
        owner = self.world.random.choice(owners)
        consumer = self.world.random.choice(self.scenario.consumers)

        def begin() -> None:
            for vbucket in self._inside(owner.name):
                self.manager.replication.hold(vbucket, self.world.random.uniform(0.3, 1.0))
            if self._inside(owner.name):
                consumer.die()
                consumer.start(reads_replicas=True)

        if self.world.chance(0.5):
            self._rebuild_copies(owner)
        self._when_inside(owner.name, begin)

    def _rebuild_copies(self, owner: SimNode) -> None:
        """Have a node's replicas copied anew, by an owner that has everything on its disk alone."""
        owner.stop()
        if not owner.is_up:
            owner.start()
        for vbucket in self._copies(owner.name):
            self.manager.replication.drop(vbucket)

    def _restart_copy(self, vbucket: int) -> None:
        name = self.manager.chains.rows[vbucket][1]
        assert name is not None
        node = self.nodes[name]
        if self.world.chance(CLEAN_RESTARTS):
            node.stop()
        else:
            node.crash()
        if not node.is_up:
            node.start()

    def _copies(self, owner: str) -> dict[int, VBucket]:
        """The first replicas of what a node owns."""
        found = {}
        for vbucket, chain in enumerate(self.manager.chains.rows):
            copy = self.scenario.copy(chain[1], vbucket) if len(chain) > 1 else None
            if chain[0] == owner and copy is not None:
                found[vbucket] = copy
        return found

    def _inside(self, owner: str) -> list[int]:
        """The vbuckets of a node whose replica is inside a snapshot."""
        return [vbucket for vbucket, copy in self._copies(owner).items() if is_inside(copy)]

    def _is_torn(self, vbucket: int) -> bool:
        """Whether the first replica lacks a version that its snapshot left out, and its successor.

        Only such a copy shows that it is not whole.
        """
        name = self.manager.chains.rows[vbucket][1]
        copy = self.scenario.copy(name, vbucket)
        assert name is not None
        assert copy is not None
        branch, truth = int(copy.failover_log.newest.uuid), self.scenario.truth[vbucket]
        return self.nodes[name].contents(vbucket) != truth.state(branch, copy.high_seqno)

    def _when_inside(self, owner: str, then: Callable[[], None]) -> None:
        """Slow an owner's replication down and wait for a replica inside a snapshot."""
        wants_torn = self.world.chance(TORN)

        def has_come() -> bool:
            for vbucket in self._copies(owner):
                self.manager.replication.slow_down(vbucket)
            inside = self._inside(owner)
            return any(self._is_torn(vbucket) for vbucket in inside) if wants_torn else bool(inside)

        for vbucket in self._copies(owner):
            self._write_much(vbucket)
        self._wait_for(has_come, then)

    def _wait_for(self, has_come: Callable[[], bool], then: Callable[[], None]) -> None:
        """Do something when its moment has come, or when it has been waited for long enough."""
        self._waiting += 1

        def look(left: int) -> None:
            if self.scenario.is_harming and left and not has_come():
                self.world.at(LOOK_SECONDS, lambda: look(left - 1))
                return
            self._waiting -= 1
            if self.scenario.is_harming:
                then()

        look(LOOKS_MAX)
