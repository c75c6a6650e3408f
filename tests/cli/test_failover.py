"""headrace failover: what it says, what it does, and what it refuses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest

from headrace.cli.exits import Exit
from headrace.cluster.journal import Entry, Journal, read_entries
from headrace.cluster.planning import active_move
from headrace.wire.opcodes import VBucketState
from tests.cli.node_for_commands import call
from tests.cluster.kit import Nodes, running_nodes
from tests.cluster.test_replication import wipe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

S = VBucketState
KEYS: Final = range(20)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with running_nodes(tmp_path, replicas=1) as found:
        found.put("a", 1, KEYS)
        call("replicate", str(found.path), "--once")
        yield found


def test_the_replicas_of_a_dead_node_take_over(nodes: Nodes) -> None:
    nodes.running["a"].crash()
    dry = call("failover", str(nodes.path), "a", "--dry-run")
    assert "4 vbuckets would be promoted, 0 lose a replica; 0 seqnos" in dry.output
    assert nodes.state("b", 1) is S.REPLICA
    said = call("failover", str(nodes.path), "a")
    assert "4 vbuckets promoted, 0 lose a replica; 0 seqnos" in said.output
    assert nodes.held("b", 1, KEYS) == set(KEYS)
    again = call("failover", str(nodes.path), "a")
    assert "0 vbuckets promoted" in again.output


def test_what_may_be_lost_is_said_per_vbucket(nodes: Nodes) -> None:
    nodes.put("a", 1, range(100, 110))
    seqnos = nodes.file.beside("default.seqnos.json")
    seqnos.write_text(json.dumps({"1": 30}))
    nodes.running["a"].crash()
    said = call("failover", str(nodes.path), "a", "--dry-run")
    assert "vb 1: b, up to seqno 20; 30 is known" in said.output
    assert "10 seqnos known to have existed" in said.output
    rows = json.loads(call("failover", str(nodes.path), "a", "--json").stdout)["vbuckets"]
    assert [(row["known_seqno"], row["kept_seqno"]) for row in rows if row["vbucket"] == 1] == [
        (30, 20)
    ]


def test_a_node_that_answers_or_is_unknown_is_refused(nodes: Nodes) -> None:
    said = call("failover", str(nodes.path), "a", code=Exit.FAILED)
    assert "node a answers" in said.stderr
    assert "node 'z' is not in" in call("failover", str(nodes.path), "z", code=1).stderr


def test_an_owner_that_lost_its_disk_is_refused_failed_over_and_joins_again(nodes: Nodes) -> None:
    wipe(nodes, "a")
    for words in (
        ("replicate", "--once"),
        ("move", "--vbuckets", "1", "--to", "b"),
        ("rebalance",),
    ):
        said = call(words[0], str(nodes.path), *words[1:], code=Exit.FAILED)
        assert "node a has lost its map" in said.stderr
        assert f"headrace failover {nodes.path} a --force" in said.stderr
        assert said.stderr.count("\n") == 1
    assert nodes.state("b", 1) is S.REPLICA
    call("failover", str(nodes.path), "a", "--force")
    assert nodes.held("b", 1, KEYS) == set(KEYS)
    call("replicate", str(nodes.path), "--once")
    assert nodes.states(1) == {"a": S.REPLICA, "b": S.ACTIVE}
    assert nodes.log("a", 1) == nodes.log("b", 1)


def test_a_move_of_the_dead_node_is_no_longer_under_way(nodes: Nodes) -> None:
    path = nodes.file.beside("moves.json")
    with Journal(path) as journal:
        journal.note(Entry(bucket="default", move=active_move(1, ("a", "b"), "b")))
    nodes.running["a"].crash()
    call("failover", str(nodes.path), "a")
    assert read_entries(path) == ()
    assert nodes.state("b", 1) is S.ACTIVE


def test_a_pending_copy_outside_the_chain_is_promoted_only_by_force(tmp_path: Path) -> None:
    """A move broke between the two states and its source never came back."""
    with running_nodes(tmp_path) as nodes:
        nodes.put("a", 1, KEYS)
        call("move", str(nodes.path), "--vbuckets", "0", "--to", "b")
        with nodes.link("b") as link:
            from headrace.wire import admin

            pending = admin.SetVBucket(vbucket=1, state=int(S.PENDING))
            link.ask(pending, admin.SetVBucketReply)
        nodes.running["a"].crash()
        said = call("failover", str(nodes.path), "a", code=Exit.FAILED)
        assert "have no replica on a living node" in said.stderr
        call("failover", str(nodes.path), "a", "--force")
        assert nodes.state("b", 1) is S.ACTIVE
