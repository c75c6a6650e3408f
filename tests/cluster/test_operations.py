"""What people ask of a cluster: plans of moves, of balance and of failover, and a failover done."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from headrace.client.changes import Change, Rollback
from headrace.cluster.chains import Chain, Chains
from headrace.cluster.copies import Copy
from headrace.cluster.manager import Cluster
from headrace.cluster.operations import (
    Promotion,
    fail_over,
    most_complete,
    parse_vbuckets,
    plan_failover,
    plan_move,
    plan_rebalance,
)
from headrace.cluster.planning import Kind
from headrace.cluster.steps import Ending
from headrace.errors import ClusterError, ConfigError
from headrace.history import BranchId, FailoverEntry, FailoverLog, Seqno
from headrace.wire.opcodes import VBucketState
from tests.cluster.kit import Nodes, Reader, key_of, managing, move, run, running_nodes
from tests.cluster.test_replication import replicate, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.cluster.replication import Replicator

S = VBucketState
KEYS: Final = range(30)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("all", (0, 1, 2, 3)), ("2", (2,)), ("0-1,3", (0, 1, 3)), (" 1 , 1-2", (1, 2))],
)
def test_lists_of_vbuckets_are_numbers_and_ranges(text: str, expected: tuple[int, ...]) -> None:
    assert parse_vbuckets(text, 4) == expected


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "2-1", "4", "0-4", "1,,2"])
def test_a_list_that_is_wrong_says_which_part(text: str) -> None:
    with pytest.raises(ConfigError, match=r"vbuckets '.*'; allowed"):
        parse_vbuckets(text, 4)


def chains(*rows: Chain) -> Chains:
    return Chains(bucket="default", rows=rows, places=())


def test_what_is_at_its_target_already_does_not_move() -> None:
    moves = plan_move(chains(("a",), ("b",)), (0, 1), source=None, target="b")
    assert [move.vbucket for move in moves] == [0]


def test_what_nobody_serves_cannot_move() -> None:
    with pytest.raises(ClusterError, match="vbucket 0 has no active copy"):
        plan_move(chains((None,)), (0,), source=None, target="b")


def test_what_may_be_lost_is_what_is_known_and_not_kept() -> None:
    one = Promotion(
        vbucket=1, before=("a", "b"), after=("b",), promoted="b", known_seqno=10, kept_seqno=7
    )
    assert (one.owner_changes, one.may_be_lost) == (True, 3)


OLD: Final = FailoverEntry(BranchId(7), Seqno(0))
NEW: Final = FailoverEntry(BranchId(8), Seqno(30))


def replica(node: str, high: int, *log: FailoverEntry, end: int = 0, boundary: int = 0) -> Copy:
    return Copy(
        node=node,
        vbucket=1,
        state=S.REPLICA,
        high_seqno=high,
        snapshot_end=max(high, end),
        boundary=boundary,
        log=FailoverLog(log),
    )


@pytest.mark.parametrize(
    ("copies", "promoted"),
    [
        ([replica("b", 35, OLD), replica("c", 40, OLD)], "c"),
        ([replica("b", 35, OLD), replica("c", 40, OLD, end=50, boundary=20)], "b"),
        ([replica("b", 35, NEW, OLD), replica("c", 40, OLD)], "b"),
        ([replica("c", 40, OLD), replica("d", 41, OLD), replica("b", 35, NEW, OLD)], "b"),
        ([replica("b", 35, NEW, OLD), replace(replica("c", 20, OLD), state=S.ACTIVE)], "c"),
    ],
    ids=["most", "most that is whole", "latest branch", "latest of three", "an owner"],
)
def test_the_most_complete_copy_is_promoted(copies: list[Copy], promoted: str) -> None:
    for order in itertools.permutations(copies):
        best = most_complete(order)
        assert best is not None
        assert best.node == promoted


def test_without_a_copy_nobody_is_promoted() -> None:
    assert most_complete([]) is None


# -- with nodes ------------------------------------------------------------------------------------


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with running_nodes(tmp_path, replicas=1) as found:
        found.put("a", 1, KEYS)
        replicate(found)
        yield found


def failed_over(nodes: Nodes, dead: str, *, force: bool = False) -> list[Promotion]:
    async def main() -> list[Promotion]:
        with managing(nodes) as (cluster, _):
            try:
                await cluster.load(tolerant=True)
                plan = await plan_failover(cluster, dead, force=force)
                assert await fail_over(cluster, dead, plan) == ()
                return plan
            finally:
                await cluster.close()

    return asyncio.run(main())


def planned(nodes: Nodes, dead: str, *, force: bool = False) -> list[Promotion]:
    async def main() -> list[Promotion]:
        cluster = Cluster(nodes.file, "default")
        try:
            await cluster.load(tolerant=True)
            return await plan_failover(cluster, dead, force=force)
        finally:
            await cluster.close()

    return asyncio.run(main())


def test_replicas_of_a_dead_node_are_promoted_on_a_new_branch(nodes: Nodes) -> None:
    ((uuid, _),) = nodes.log("b", 1)
    nodes.running["a"].crash()
    plan = failed_over(nodes, "a")
    assert [(one.promoted, one.after, one.may_be_lost) for one in plan] == [("b", ("b",), 0)] * 4
    assert nodes.state("b", 1) is S.ACTIVE
    assert nodes.held("b", 1, KEYS) == set(KEYS)
    (new, seqno), old = nodes.log("b", 1)
    assert (seqno, old) == (30, (uuid, 0))
    assert new != uuid
    nodes.put("b", 1, range(100, 105))


def test_a_failover_that_broke_off_before_the_map_is_finished_by_the_next(nodes: Nodes) -> None:
    ((old, _),) = nodes.log("b", 1)
    nodes.running["a"].crash()

    async def break_off() -> None:
        cluster = Cluster(nodes.file, "default")
        try:
            await cluster.load(tolerant=True)
            await cluster.nodes["b"].set_state(1, S.ACTIVE, ("b",))
        finally:
            await cluster.close()

    asyncio.run(break_off())
    nodes.put("b", 1, range(100, 105))
    plan = failed_over(nodes, "a")
    assert [one.promoted for one in plan] == ["b"] * 4
    assert nodes.held("b", 1, range(200)) == {*KEYS, *range(100, 105)}
    assert [uuid for uuid, _ in nodes.log("b", 1)][1:] == [old], "one branch, not two"


def test_a_node_that_was_failed_over_and_is_back_serves_no_longer(nodes: Nodes) -> None:
    nodes.running["a"].crash()
    failed_over(nodes, "a")
    nodes.put("b", 1, range(100, 105))
    nodes.running["a"].restart()
    assert nodes.states(1) == {"a": S.ACTIVE, "b": S.ACTIVE}, "it does not know yet"

    async def main() -> None:
        cluster = Cluster(nodes.file, "default")
        try:
            await cluster.load()
            assert cluster.stale == ("a",)
            await cluster.adopt()
        finally:
            await cluster.close()

    asyncio.run(main())
    assert nodes.states(1) == {"a": S.DEAD, "b": S.ACTIVE}
    replicate(nodes)
    assert nodes.states(1) == {"a": S.REPLICA, "b": S.ACTIVE}
    assert nodes.log("a", 1) == nodes.log("b", 1)


def test_a_node_that_is_back_becomes_a_replica_while_replication_runs_and_gives_up_what_only_it_has(
    nodes: Nodes,
) -> None:
    async def work(replicator: Replicator) -> None:
        await until(lambda: replicator.is_done)
        await asyncio.to_thread(lose)
        await until(lambda: replicator.cluster.chains.rows == (("b",),) * 4)
        await asyncio.to_thread(nodes.running["a"].restart)
        await until(lambda: replicator.cluster.chains.rows == (("b", "a"),) * 4)
        await until(lambda: replicator.is_done and replicator.problems == [])

    def lose() -> None:
        nodes.running["b"].crash()  # so that nobody else gets these
        nodes.put("a", 1, range(100, 110), b"lost")
        nodes.running["a"].crash()
        nodes.running["b"].restart()
        failed_over(nodes, "a")
        nodes.put("b", 1, range(200, 205))

    replicate(nodes, work)
    assert nodes.states(1) == {"a": S.REPLICA, "b": S.ACTIVE}
    assert nodes.log("a", 1) == nodes.log("b", 1)
    assert [mover.ending for mover in run(move(nodes, "1", "a"))] == [Ending.DONE]
    assert nodes.held("a", 1, range(100, 110)) == set()
    assert nodes.held("a", 1, range(300)) == {*KEYS, *range(200, 205)}


def test_a_node_that_answers_is_not_failed_over_unasked(nodes: Nodes) -> None:
    with pytest.raises(ClusterError, match="node a answers; move its vbuckets away"):
        planned(nodes, "a")
    plan = failed_over(nodes, "a", force=True)
    assert len(plan) == 4
    assert nodes.states(1) == {"a": S.DEAD, "b": S.ACTIVE}, "one owner"


def test_a_replica_that_is_gone_leaves_its_chain(nodes: Nodes) -> None:
    nodes.running["b"].crash()
    plan = failed_over(nodes, "b")
    assert {(one.after, one.owner_changes) for one in plan} == {(("a",), False)}
    with nodes.link("a") as link:
        assert link.stats("vbucket-details 1")["vb_1:topology"] == '[["a"]]'


def test_vbuckets_without_a_replica_are_lost_only_when_that_is_said(tmp_path: Path) -> None:
    with running_nodes(tmp_path) as nodes:
        nodes.put("a", 1, KEYS)

        async def form() -> None:
            with managing(nodes) as (cluster, _):
                await cluster.load()
                await cluster.adopt()
                await cluster.close()

        asyncio.run(form())
        nodes.running["a"].crash()
        with pytest.raises(ClusterError, match="4 vbuckets have no replica on a living node"):
            planned(nodes, "a")
        assert {one.promoted for one in planned(nodes, "a", force=True)} == {None}


def test_a_consumer_ahead_of_the_replica_is_rolled_back_to_its_seqno_and_branch(
    nodes: Nodes,
) -> None:
    reader = Reader(nodes.url)
    try:
        reader.wait(30)
        nodes.put("a", 1, range(100, 110), b"lost")  # replication has stopped: only a has these
        reader.wait(40)
        nodes.running["a"].crash()
        failed_over(nodes, "a")
        nodes.put("b", 1, range(200, 203), b"new")
        reader.wait(44)
    finally:
        reader.close()
    rollback, *rest = reader.told[40:]
    assert isinstance(rollback, Rollback)
    assert (rollback.from_seqno, rollback.to_seqno) == (40, 30)
    ((new, seqno), *_) = nodes.log("b", 1)
    assert seqno == 30
    assert rollback.token.log is not None
    assert rollback.token.log.newest.uuid == new
    assert [(one.key, one.seqno) for one in rest if isinstance(one, Change)] == [
        (key_of(200 + number), 31 + number) for number in range(3)
    ]


def test_what_was_seen_of_a_dead_owner_is_told_as_lost(nodes: Nodes) -> None:
    nodes.put("a", 1, range(100, 110))

    async def see() -> None:
        cluster = Cluster(nodes.file, "default")
        cluster.remember({1: 40, 2: 0})
        cluster.remember({1: 35})

    asyncio.run(see())
    nodes.running["a"].crash()
    plan = {one.vbucket: one for one in failed_over(nodes, "a")}
    assert (plan[1].known_seqno, plan[1].kept_seqno, plan[1].may_be_lost) == (40, 30, 10)
    assert plan[2].may_be_lost == 0


def test_balance_is_planned_from_the_file(nodes: Nodes) -> None:
    async def main() -> list[tuple[Kind, str]]:
        cluster = Cluster(nodes.file, "default")
        try:
            await cluster.load()
            return [(move.kind, move.target) for move in plan_rebalance(cluster)]
        finally:
            await cluster.close()

    assert asyncio.run(main()) == [(Kind.ACTIVE, "b")] * 2, "no copy is made: owners change"
