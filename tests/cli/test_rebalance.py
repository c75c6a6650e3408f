"""headrace rebalance: even at the end, legal in between, and nothing lost."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from headrace.cli.exits import Exit
from headrace.wire.opcodes import VBucketState
from tests.cli.node_for_commands import call
from tests.cluster.kit import Nodes, running_nodes
from tests.cluster.processes import process, wait_paused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

S = VBucketState
KEYS: Final = range(20)
VBUCKETS: Final = 6


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with running_nodes(tmp_path, "abc", vbuckets=VBUCKETS, replicas=1) as found:
        for vbucket in range(VBUCKETS):
            found.put("a", vbucket, KEYS)
        yield found


def counted(nodes: Nodes, state: VBucketState) -> Counter[str]:
    return Counter(
        name
        for vbucket in range(VBUCKETS)
        for name, found in nodes.states(vbucket).items()
        if found is state
    )


def check_whole(nodes: Nodes) -> None:
    for vbucket in range(VBUCKETS):
        states = nodes.states(vbucket)
        (owner,) = [name for name, state in states.items() if state is S.ACTIVE]
        assert nodes.held(owner, vbucket, KEYS) == set(KEYS)


def test_vbuckets_and_replicas_are_spread_and_then_nothing_is_left_to_do(nodes: Nodes) -> None:
    said = call("rebalance", str(nodes.path), "--at-once", "3")
    assert "done" in said.output
    assert counted(nodes, S.ACTIVE) == {"a": 2, "b": 2, "c": 2}
    assert counted(nodes, S.REPLICA) == {"a": 2, "b": 2, "c": 2}
    check_whole(nodes)
    assert "0 moves" in call("rebalance", str(nodes.path), "--dry-run").output


def test_a_node_that_leaves_is_emptied(nodes: Nodes) -> None:
    call("rebalance", str(nodes.path))
    nodes.write_file(replicas=1, leaving="a")
    call("rebalance", str(nodes.path))
    assert counted(nodes, S.ACTIVE) == {"b": 3, "c": 3}
    assert counted(nodes, S.REPLICA) == {"b": 3, "c": 3}
    assert {nodes.state("a", vbucket) for vbucket in range(VBUCKETS)} == {None}
    check_whole(nodes)


def test_a_dry_run_says_the_moves_and_changes_nothing(nodes: Nodes) -> None:
    said = call("rebalance", str(nodes.path), "--dry-run", "--json")
    moves = json.loads(said.stdout)["moves"]
    assert Counter(move["kind"] for move in moves)["active"] == 4
    assert counted(nodes, S.ACTIVE)["a"] == VBUCKETS


def test_moves_that_were_interrupted_are_finished_first(nodes: Nodes) -> None:
    with process(
        nodes.path, "--vbuckets", "0", "--to", "b", "--pause-at", "active-sent"
    ) as running:
        wait_paused(running, "active-sent")
        running.kill()
        running.wait(60)
    assert len(json.loads(nodes.file.beside("moves.json").read_bytes())["moves"]) == 1
    plan = call("rebalance", str(nodes.path), "--dry-run")
    assert plan.stdout.splitlines() == ["vb 0 active: a -> b", "1 moves"]
    call("rebalance", str(nodes.path))
    assert counted(nodes, S.ACTIVE) == {"a": 2, "b": 2, "c": 2}
    check_whole(nodes)


def test_more_replicas_than_nodes_is_one_sentence(nodes: Nodes) -> None:
    nodes.write_file(replicas=3)
    said = call("rebalance", str(nodes.path), code=Exit.FAILED)
    assert "wants 3 replicas on 3 nodes" in said.stderr
