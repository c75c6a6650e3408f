"""Moves between real nodes, and whatever dies in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from unittest.mock import MagicMock

import pytest

from headrace.client.changes import Change
from headrace.cluster.journal import read_entries
from headrace.cluster.mover import Mover
from headrace.cluster.planning import active_move
from headrace.cluster.proxy import (
    Proxy,
    Side,
    StateAnswered,
    StateSent,
    StreamAdded,
    StreamEnded,
)
from headrace.cluster.runner import Runner, place_of_event
from headrace.cluster.steps import Ending
from headrace.wire import admin
from headrace.wire import messages as m
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.opcodes import VBucketState
from tests.cluster.kit import (
    Nodes,
    Reader,
    key_of,
    move,
    move_chain,
    resume,
    run,
    running_nodes,
)
from tests.cluster.test_replication import replicate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

S = VBucketState
KEYS: Final = range(40)
PLACES: Final = (
    "writing",
    "linking",
    "inspecting",
    "preparing",
    "adding",
    "catching-up",
    "closing",
    "taking-over",
    "pending-sent",
    "pending-answered",
    "active-sent",
    "active-answered",
    "ended",
    "arming",
    "publishing",
    "dropping",
    "forgetting",
)
"""Every place of a move that goes well, in its order."""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with running_nodes(tmp_path) as found:
        found.put("a", 1, KEYS)
        yield found


def check_moved(nodes: Nodes, vbucket: int = 1) -> None:
    """Node b owns the vbucket, has everything, and everyone knows."""
    assert nodes.states(vbucket) == {"a": None, "b": S.ACTIVE}
    assert nodes.held("b", vbucket, KEYS) == set(KEYS)
    assert read_entries(nodes.file.beside("moves.json")) == ()
    for name in nodes.running:
        with nodes.link(name) as link:
            told = link.cluster_map()
        assert told is not None
        assert b'"name":"b"' in told


def test_a_vbucket_moves_with_its_history(nodes: Nodes) -> None:
    before = nodes.log("a", 1)
    (mover,) = run(move(nodes, "1", "b"))
    assert mover.ending is Ending.DONE
    check_moved(nodes)
    assert nodes.log("b", 1) == before, "the history goes on: no branch begins"
    assert nodes.state("a", 0) is S.ACTIVE
    nodes.put("b", 1, range(100, 110))


def test_many_vbuckets_move_and_move_back(nodes: Nodes) -> None:
    assert {one.ending for one in run(move(nodes, "all", "b"))} == {Ending.DONE}
    assert {one.ending for one in run(move(nodes, "0,1", "a"))} == {Ending.DONE}
    assert nodes.states(1) == {"a": S.ACTIVE, "b": None}
    assert nodes.states(2) == {"a": None, "b": S.ACTIVE}
    assert nodes.held("a", 1, KEYS) == set(KEYS)


# -- kill -9 at every place ------------------------------------------------------------------------


def finished(nodes: Nodes, movers: list[Mover]) -> None:
    """One owner, or a declared pending state that resuming finishes."""
    if any(mover.ending is not Ending.DONE for mover in movers):
        assert {mover.ending for mover in movers} == {Ending.PENDING}
        assert read_entries(nodes.file.beside("moves.json"))
        movers = run(resume(nodes))
    assert {mover.ending for mover in movers} <= {Ending.DONE}, movers[0].text
    check_moved(nodes)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("victim", ["a", "b"])
def test_a_node_that_dies_at_any_place_loses_nothing(nodes: Nodes, victim: str, place: str) -> None:
    async def kill(_mover: Mover, _place: str) -> None:
        await asyncio.to_thread(nodes.running[victim].crash)
        await asyncio.to_thread(nodes.running[victim].restart)

    finished(nodes, run(move(nodes, "1", "b", place=place, pause=kill)))


@pytest.mark.parametrize("place", ["catching-up", "arming", "dropping"])
@pytest.mark.parametrize("victim", ["owner", "new", "old"])
def test_a_replica_moves_whoever_dies(tmp_path: Path, victim: str, place: str) -> None:
    with running_nodes(tmp_path, "abc", replicas=1) as nodes:
        nodes.put("a", 1, KEYS)
        chains = replicate(nodes).cluster.chains
        (old,) = chains.replicas(1)
        new = "c" if old == "b" else "b"
        name = {"owner": "a", "new": new, "old": old}[victim]

        async def kill(_mover: Mover, _place: str) -> None:
            await asyncio.to_thread(nodes.running[name].crash)
            await asyncio.to_thread(nodes.running[name].restart)

        movers = run(move_chain(nodes, 1, ("a", new), place=place, pause=kill))
        if movers[0].ending is not Ending.DONE:
            assert movers[0].ending is Ending.PENDING
            movers = run(resume(nodes))
        assert [mover.ending for mover in movers] == [Ending.DONE], movers[0].text
        assert nodes.states(1) == {"a": S.ACTIVE, new: S.REPLICA, old: None}
        assert nodes.held("a", 1, KEYS) == set(KEYS)
        assert read_entries(nodes.file.beside("moves.json")) == ()
        replicate(nodes)
        assert nodes.log("a", 1) == nodes.log(new, 1)


def test_places_are_named_by_what_went_by() -> None:
    assert place_of_event(StateSent(vbucket=1, state=S.PENDING)) == "pending-sent"
    assert place_of_event(StateAnswered(vbucket=1, state=S.ACTIVE, status=0)) == "active-answered"
    assert place_of_event(StreamEnded(vbucket=1, reason=0)) == "ended"
    assert place_of_event(StreamEnded(vbucket=1, reason=1)) == ""
    assert place_of_event(StreamAdded(vbucket=1)) == ""


def test_backing_out_leaves_everything_as_it_was(nodes: Nodes) -> None:
    runners: list[Runner] = []

    async def interrupt(_mover: Mover, _place: str) -> None:
        runners[0].back_out()

    movers = run(move(nodes, "0,1", "b", place="adding", pause=interrupt, runner_of=runners.append))
    assert {mover.ending for mover in movers} == {Ending.BACKED_OUT}
    assert nodes.states(1) == {"a": S.ACTIVE, "b": None}
    assert nodes.held("a", 1, KEYS) == set(KEYS)
    assert read_entries(nodes.file.beside("moves.json")) == ()


@pytest.mark.parametrize(
    ("victim", "place", "owners"),
    [
        ("a", "catching-up", set()),
        ("b", "catching-up", {"a"}),
        ("a", "pending-answered", set()),
        ("b", "pending-answered", set()),
        ("a", "active-sent", {"b"}),
        ("b", "active-sent", set()),
        ("a", "active-answered", {"b"}),
        ("b", "active-answered", set()),
        ("a", "publishing", {"b"}),
    ],
)
def test_a_node_that_stays_away_leaves_a_pending_state_that_resuming_finishes(
    nodes: Nodes,
    victim: str,
    place: str,
    owners: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.cluster.mover.WAIT_SECONDS", 0.01)

    async def kill(_mover: Mover, _place: str) -> None:
        await asyncio.to_thread(nodes.running[victim].crash)

    (mover,) = run(move(nodes, "1", "b", place=place, pause=kill))
    assert mover.ending is Ending.PENDING
    assert [entry.move for entry in read_entries(nodes.file.beside("moves.json"))] == [mover.move]
    other = "b" if victim == "a" else "a"
    alive = {other} if nodes.state(other, 1) is S.ACTIVE else set()
    assert alive == owners, "who is alive owns it only if it is sure to be the only one"
    nodes.running[victim].restart()
    active = [name for name, state in nodes.states(1).items() if state is S.ACTIVE]
    assert len(active) <= 1
    (mover,) = run(resume(nodes))
    assert mover.ending is Ending.DONE, mover.text
    check_moved(nodes)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize(
    "place", ["closing", "pending-sent", "pending-answered", "active-sent", "active-answered"]
)
def test_a_consumer_goes_on_without_rollback_even_if_it_is_cut_off_in_the_middle(
    nodes: Nodes, place: str, cut: bool
) -> None:
    reader = Reader(nodes.url)

    async def meanwhile(_mover: Mover, _place: str) -> None:
        if cut:
            await asyncio.to_thread(lambda: nodes.running["a"].faults.cut(connection="headrace:*"))
            cuts.append(place)

    cuts: list[str] = []
    try:
        reader.wait(40)
        movers = run(move(nodes, "1", "b", place=place, pause=meanwhile))
        assert [mover.ending for mover in movers] == [Ending.DONE]
        nodes.put("b", 1, range(100, 105))
        reader.wait(45)
    finally:
        reader.close()
    changes = [one for one in reader.told if isinstance(one, Change)]
    assert cuts == [place] * cut
    assert reader.told == changes, "no rollback"
    assert [one.seqno for one in changes] == [*range(1, 46)]
    assert [one.key for one in changes[40:]] == [key_of(number) for number in range(100, 105)]


@pytest.mark.parametrize("place", ["catching-up", "closing"])
def test_a_copy_that_is_replaced_under_its_stream_is_whole_in_the_end(
    nodes: Nodes, place: str
) -> None:
    def replace_copy() -> None:
        with nodes.link("b") as link:
            for state in (S.DEAD, S.REPLICA):
                link.ask(admin.SetVBucket(vbucket=1, state=int(state)), admin.SetVBucketReply)
                if state is S.DEAD:
                    gone = admin.DelVBucket(vbucket=1, value=b"async=0")
                    link.ask(gone, admin.DelVBucketReply)

    async def pause(_mover: Mover, _where: str) -> None:
        await asyncio.to_thread(replace_copy)

    nodes.put("a", 1, range(1000, 1200))
    (mover,) = run(move(nodes, "1", "b", place=place, pause=pause))
    assert mover.ending is Ending.DONE
    assert nodes.states(1) == {"a": None, "b": S.ACTIVE}
    assert nodes.held("b", 1, range(1200)) == {*KEYS, *range(1000, 1200)}


def test_what_goes_over_the_link_for_other_moves_is_counted() -> None:
    proxy = Proxy()
    for vbucket, seqno in ((1, 1), (1, 2), (2, 1)):
        item = m.Mutation(vbucket=vbucket, by_seqno=seqno, key=b"k", opaque=9)
        proxy.receive(Side.PRODUCER, encode(item, Dialect.DCP_7))
    runner = Runner(MagicMock(), MagicMock())
    runner._links["a", "b"] = MagicMock(lost=None, proxy=proxy)
    movers = [Mover(active_move(vbucket, ("a",), "b")) for vbucket in (1, 2, 3)]
    assert [runner._passed(mover) for mover in movers] == [1, 2, 3]
    assert runner._passed(Mover(active_move(1, ("a",), "c"))) == 0
