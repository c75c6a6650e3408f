"""Replicas between real nodes: made, fed, fed again, part of their chain once they are whole."""

from __future__ import annotations

import asyncio
import shutil
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

import pytest

from headrace.cluster import replication, stillness
from headrace.cluster.copies import Copy
from headrace.cluster.journal import Entry, Journal
from headrace.cluster.links import Link
from headrace.cluster.manager import Cluster
from headrace.cluster.planning import active_move, replicated
from headrace.cluster.proxy import StreamAdded, StreamEnded
from headrace.cluster.replication import (
    RETRY_SECONDS,
    RETRY_SECONDS_MAX,
    Feed,
    Replicator,
    adopt,
)
from headrace.errors import ClusterError, StatusError
from headrace.node.replica_losses import Losses
from headrace.wire import admin, kv
from headrace.wire.frame import FrameInfo
from headrace.wire.opcodes import Feature, FrameInfoId, VBucketState
from tests.cluster.kit import Nodes, key_of, move, run, running_nodes
from tests.node.client import Client

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from headrace.cluster.chains import Chain

S = VBucketState
KEYS: Final = range(30)
SECONDS_MAX: Final = 30.0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with running_nodes(tmp_path, replicas=1, flush=True) as found:
        found.put("a", 1, KEYS)
        yield found


def replicate(
    nodes: Nodes, work: Callable[[Replicator], Awaitable[None]] | None = None
) -> Replicator:
    """Replicate as the file wants, until everything has caught up, or while work is done."""

    async def main() -> Replicator:
        file = nodes.file
        cluster = Cluster(file, "default")
        try:
            await cluster.load()
            await cluster.adopt()

            def wanted() -> dict[int, Chain]:
                return replicated(cluster.chains, file.staying, file.replicas)

            replicator = Replicator(cluster, file.beside("moves.json"), wanted=wanted)
            if work is None:
                await asyncio.wait_for(replicator.run(once=True), SECONDS_MAX)
                return replicator
            task = asyncio.create_task(replicator.run(once=False))
            await asyncio.wait_for(work(replicator), SECONDS_MAX)
            task.cancel()
            return replicator
        finally:
            await cluster.close()

    return asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + SECONDS_MAX
    while not condition():
        assert time.monotonic() < limit
        await asyncio.sleep(0.05)


def test_replicas_are_made_fed_and_become_part_of_their_chains(nodes: Nodes) -> None:
    replicator = replicate(nodes)
    assert replicator.is_done
    assert replicator.lag == 0
    assert replicator.cluster.chains.rows == (("a", "b"),) * 4
    assert nodes.states(1) == {"a": S.ACTIVE, "b": S.REPLICA}
    assert nodes.log("a", 1) == nodes.log("b", 1)
    with nodes.link("a") as link:
        assert link.stats("vbucket-details 1")["vb_1:topology"] == '[["a", "b"]]'
        assert b'"vBucketMap":[[0,1],' in (link.cluster_map() or b"")


def test_writes_reach_the_replica_while_it_runs(nodes: Nodes) -> None:
    async def work(replicator: Replicator) -> None:
        await until(lambda: replicator.is_done)
        await asyncio.to_thread(nodes.put, "a", 1, range(100, 150))
        await until(lambda: replicator.feeds["a", "b", 1].held_seqno == 80)

    replicator = replicate(nodes, work)
    assert replicator.problems == []


def test_durable_writes_wait_for_the_replica_and_are_done(nodes: Nodes) -> None:
    async def work(replicator: Replicator) -> None:
        await until(lambda: replicator.is_done)
        await asyncio.to_thread(put_durably)

    def put_durably() -> None:
        infos = (FrameInfo(FrameInfoId.DURABILITY, b"\x01"),)
        with Client(nodes.running["a"].port) as client:
            client.hello(Feature.ALT_REQUEST, Feature.SYNC_REPLICATION)
            request = kv.Set(vbucket=1, key=key_of(1000), value=b"durable", frame_infos=infos)
            statuses.append(client.status(request))

    statuses: list[int] = []
    replicate(nodes, work)
    assert statuses == [0]


@pytest.mark.parametrize("victim", ["a", "b"])
def test_a_node_that_dies_is_fed_again_when_it_is_back(nodes: Nodes, victim: str) -> None:
    async def work(replicator: Replicator) -> None:
        await until(lambda: replicator.is_done)
        await asyncio.to_thread(nodes.running[victim].crash)
        await asyncio.to_thread(nodes.running[victim].restart)
        await asyncio.to_thread(nodes.put, "a", 1, range(100, 110))
        await until(lambda: replicator.feeds["a", "b", 1].held_seqno >= 40)
        await until(lambda: replicator.is_done)

    replicate(nodes, work)
    assert nodes.log("a", 1) == nodes.log("b", 1)


def test_a_vbucket_that_is_being_moved_is_left_alone(nodes: Nodes) -> None:
    replicate(nodes)
    with Journal(nodes.file.beside("moves.json")) as journal:
        journal.note(Entry(bucket="default", move=active_move(1, ("a", "b"), "b")))

        async def work(replicator: Replicator) -> None:
            await until(lambda: len(replicator.feeds) == 3)
            await until(lambda: all(one.state == "streaming" for one in replicator.feeds.values()))
            journal.forget("default", 1)
            await until(lambda: len(replicator.feeds) == 4)

        replicate(nodes, work)


def test_a_vbucket_moves_to_its_replica_while_replication_runs(nodes: Nodes) -> None:
    async def work(replicator: Replicator) -> None:
        await until(lambda: replicator.is_done)
        movers = await asyncio.to_thread(lambda: run(move(nodes, "1", "b")))
        assert [mover.ending.value for mover in movers if mover.ending] == ["done"]
        assert replicator.cluster.chains.vbuckets == 4
        await until(lambda: ("b", "a", 1) in replicator.feeds)
        await until(lambda: replicator.is_done)

    replicator = replicate(nodes, work)
    assert replicator.cluster.chains.rows[1] == ("b", "a")
    assert nodes.states(1) == {"a": S.REPLICA, "b": S.ACTIVE}
    assert nodes.held("b", 1, KEYS) == set(KEYS)


def test_a_copy_that_is_active_with_documents_is_never_made_a_replica(nodes: Nodes) -> None:
    replicate(nodes)
    with nodes.link("b") as link:
        link.ask(admin.SetVBucket(vbucket=1, state=int(S.ACTIVE)), admin.SetVBucketReply)
        link.ask(kv.Set(vbucket=1, key=key_of(1), value=b"2"), kv.SetReply)

    async def work(replicator: Replicator) -> None:
        await until(lambda: any("active, with documents" in one for one in replicator.problems))

    replicate(nodes, work)
    assert nodes.states(1) == {"a": S.ACTIVE, "b": S.ACTIVE}


def high_seqno(nodes: Nodes, name: str, vbucket: int) -> int:
    with nodes.link(name) as link:
        return int(link.stats(f"vbucket-seqno {vbucket}")[f"vb_{vbucket}:abs_high_seqno"])


def wipe(nodes: Nodes, name: str) -> None:
    """The node starts again, with an empty disk."""
    nodes.running[name].crash()
    shutil.rmtree(nodes.path.parent / name)
    nodes.running[name].restart()


def test_a_replica_that_lost_its_disk_is_made_anew(nodes: Nodes) -> None:
    async def work(replicator: Replicator) -> None:
        await until(lambda: replicator.is_done)
        await asyncio.to_thread(wipe, nodes, "b")
        await until(lambda: nodes.state("b", 1) is S.REPLICA)
        await until(lambda: high_seqno(nodes, "b", 1) == 30)

    replicate(nodes, work)
    assert nodes.states(1) == {"a": S.ACTIVE, "b": S.REPLICA}
    assert nodes.log("a", 1) == nodes.log("b", 1)


def test_an_owner_that_lost_its_disk_does_not_empty_its_replicas(nodes: Nodes) -> None:
    async def work(replicator: Replicator) -> None:
        await until(lambda: replicator.is_done)
        await asyncio.to_thread(wipe, nodes, "a")
        await until(lambda: any("fail it over" in one for one in replicator.problems))
        await until(lambda: not replicator.feeds)

    replicate(nodes, work)
    assert high_seqno(nodes, "b", 1) == 30
    with pytest.raises(ClusterError, match=r"node a has lost .* fail it over"):
        replicate(nodes)


def test_while_another_manager_is_at_work_nobody_is_brought_up_to_date(nodes: Nodes) -> None:
    path = nodes.file.beside("moves.json")

    async def adopted() -> bool:
        cluster = Cluster(nodes.file, "default")
        try:
            await cluster.load()
            return await adopt(cluster, path)
        finally:
            await cluster.close()

    with Journal(path):
        assert not asyncio.run(adopted())
    assert nodes.states(1) == {"a": S.ACTIVE, "b": S.ACTIVE}
    assert asyncio.run(adopted())
    assert nodes.states(1) == {"a": S.ACTIVE, "b": None}


def test_a_replica_with_as_many_seqnos_on_another_branch_has_not_caught_up(nodes: Nodes) -> None:
    """The owner lost what was not on its disk, and gave those seqnos to other documents."""

    async def work(replicator: Replicator) -> None:
        await until(lambda: replicator.is_done)
        nodes.running["a"].faults.stop_persistence()
        with nodes.link("a") as link:
            link.ask_all([kv.Set(vbucket=1, key=key_of(n), value=b"1") for n in range(100, 110)])
        await until(lambda: replicator.feeds["a", "b", 1].held_seqno == 40)

    replicate(nodes, work)
    nodes.running["a"].crash()
    nodes.running["a"].restart()
    nodes.put("a", 1, range(200, 210))
    assert high_seqno(nodes, "a", 1) == high_seqno(nodes, "b", 1) == 40
    replicate(nodes)
    assert nodes.log("a", 1) == nodes.log("b", 1)
    run(move(nodes, "1", "b"))
    assert nodes.held("b", 1, range(300)) == {*KEYS, *range(200, 210)}


async def write_after_a_boundary(nodes: Nodes, replicator: Replicator) -> None:
    """The replica has a snapshot that ends at seqno 30 and another behind it."""
    await until(lambda: replicator.is_done)
    await asyncio.to_thread(nodes.put, "a", 1, range(50, 62))
    await until(lambda: replicator.feeds["a", "b", 1].held_seqno == 42)
    await until(lambda: replicator.is_done)


def flushed(nodes: Nodes) -> None:
    with nodes.link("b") as link:
        link.ask(admin.FlushAll(), admin.FlushAllReply)


def failed_over(nodes: Nodes) -> None:
    nodes.running["b"].faults.failover(vbucket=1, seqno=30)


def made_anew(nodes: Nodes) -> None:
    with nodes.link("b") as link:
        link.ask(admin.SetVBucket(vbucket=1, state=int(S.DEAD)), admin.SetVBucketReply)
        with suppress(StatusError):  # it was made a replica again already
            link.ask(admin.DelVBucket(vbucket=1, value=b"async=0"), admin.DelVBucketReply)


@pytest.mark.parametrize("change", [flushed, failed_over, made_anew])
def test_a_copy_that_others_change_is_fed_again(
    nodes: Nodes, change: Callable[[Nodes], None]
) -> None:
    """The source is silent: nothing ever comes that would show that the copy is another one."""

    async def work(replicator: Replicator) -> None:
        await write_after_a_boundary(nodes, replicator)
        await asyncio.to_thread(change, nodes)
        await until(lambda: has_notices(replicator))
        await until(lambda: nodes.state("b", 1) is S.REPLICA)
        await until(lambda: high_seqno(nodes, "b", 1) == 42)
        await until(lambda: replicator.is_done)
        await asyncio.to_thread(nodes.put, "a", 1, range(100, 110))
        await until(lambda: high_seqno(nodes, "b", 1) == 52)

    def has_notices(replicator: Replicator) -> bool:
        notices.extend(replicator.take_notices())
        return bool(notices)

    notices: list[str] = []
    replicator = replicate(nodes, work)
    notices += replicator.take_notices()
    text = "the copy was changed by others; its stream is opened again"
    assert {one.partition(": ")[2] for one in notices} == {text}
    assert all(one.startswith("a -> b, vb ") for one in notices)
    assert nodes.log("a", 1) == nodes.log("b", 1)
    assert replicator.problems == []


def test_a_replica_that_stands_still_gets_a_new_stream(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node of another make may not tell that it lost a stream."""
    monkeypatch.setattr(Losses, "vbucket_changed", lambda _self, _vbucket: None)
    monkeypatch.setattr(stillness, "STILL_SECONDS", 0.5)

    async def work(replicator: Replicator) -> None:
        await write_after_a_boundary(nodes, replicator)
        await asyncio.to_thread(failed_over, nodes)
        await until(lambda: high_seqno(nodes, "b", 1) == 42)
        await until(lambda: replicator.is_done)
        notices.extend(replicator.take_notices())

    notices: list[str] = []
    replicate(nodes, work)
    assert len(notices) == 1
    assert notices[0].startswith("a -> b, vb 1: the replica stood at seqno 30 for ")
    assert notices[0].endswith(" s, the active copy has 42; its stream is opened again")
    assert nodes.log("a", 1) == nodes.log("b", 1)


@pytest.mark.parametrize("swallowed", [("add_stream",), ("add_stream", "close_stream")])
def test_a_node_that_does_not_answer_is_asked_again(
    nodes: Nodes, swallowed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "ANSWER_SECONDS_MAX", 1.0)
    for name in swallowed:
        monkeypatch.setattr(Link, name, once_without_effect(getattr(Link, name)))

    async def work(replicator: Replicator) -> None:
        await until(lambda: replicator.is_done)
        notices.extend(replicator.take_notices())

    notices: list[str] = []
    replicate(nodes, work)
    text = "no stream was added for 1 s; its stream is opened again"
    assert notices == [f"a -> b, vb 1: {text}"]


def once_without_effect(true: Callable[..., None]) -> Callable[..., None]:
    """A request of vbucket 1 that gets lost the first time."""
    left = [1]

    def request(link: Link, vbucket: int, *rest: int) -> None:
        if vbucket in left:
            left.remove(vbucket)
        else:
            true(link, vbucket, *rest)

    return request


def test_the_end_of_a_stream_may_overtake_the_answer_that_it_stands(nodes: Nodes) -> None:
    async def work(replicator: Replicator) -> None:
        await until(lambda: replicator.is_done)
        feed = replicator.feeds["a", "b", 1]
        feed.state = "adding"
        for event in (StreamEnded(vbucket=1, reason=2), StreamAdded(vbucket=1)):
            replicator._on_event(feed.pair, event)
        assert feed.state == "waiting"

    replicate(nodes, work)


def test_an_empty_copy_that_was_promoted_is_not_taken_for_one_a_node_started_with(
    nodes: Nodes,
) -> None:
    """Failover holds the journal from the first promotion until the map is told."""
    replicate(nodes)
    with nodes.link("b") as link:
        link.ask(admin.SetVBucket(vbucket=2, state=int(S.ACTIVE)), admin.SetVBucketReply)

    async def work(replicator: Replicator) -> None:
        await until(lambda: any(one.startswith("vb 2: ") for one in replicator.problems))
        await asyncio.sleep(RETRY_SECONDS * 3)
        assert nodes.state("b", 2) is S.ACTIVE
        manager.close()
        await until(lambda: nodes.state("b", 2) is S.REPLICA)

    with ExitStack() as manager:
        manager.enter_context(Journal(nodes.file.beside("moves.json")))
        replicate(nodes, work)


def standing(**more: int) -> Feed:
    feed = Feed(1, "a", "b", state="streaming", source_seqno=10, is_whole=True)
    feed.observe(copy_at(more.get("held", 7)), 0.0, 0)
    return feed


def copy_at(seqno: int) -> Copy:
    return Copy(node="b", vbucket=1, state=S.REPLICA, high_seqno=seqno)


def test_a_feed_is_still_when_it_lacks_something_and_does_not_move() -> None:
    feed = standing()
    feed.observe(copy_at(7), stillness.STILL_SECONDS - 1, 0)
    assert feed.still_seconds == 0
    feed.observe(copy_at(7), stillness.STILL_SECONDS, 0)
    assert feed.still_seconds == stillness.STILL_SECONDS
    feed.observe(copy_at(8), stillness.STILL_SECONDS + 1, 0)
    assert feed.still_seconds == 0


def test_a_feed_whose_source_has_nothing_newer_may_be_silent() -> None:
    feed = standing(held=10)
    for now in (100.0, 200.0, 1000.0):
        feed.observe(copy_at(10), now, 0)
        assert feed.still_seconds == 0
    feed.source_seqno = 11
    feed.observe(copy_at(10), 1001.0, 0)
    assert feed.still_seconds == 0, "what came just now has its time"
    feed.observe(copy_at(10), 1001.0 + stillness.STILL_SECONDS, 0)
    assert feed.still_seconds


def test_attempts_begin_anew_when_a_stream_brought_something() -> None:
    """A stream that stands and brings nothing must not be added again and again at once."""
    feed = Feed(1, "a", "b", state="streaming", source_seqno=10, attempts=5, held_seqno=7)
    feed.observe(copy_at(7), 1.0, 0)
    assert feed.attempts == 5
    feed.observe(copy_at(8), 2.0, 0)
    assert feed.attempts == 0


def test_attempts_are_further_and_further_apart() -> None:
    feed = Feed(1, "a", "b")
    waits = []
    for _ in range(12):
        feed.fail("refused", 100.0)
        waits.append(feed.retry_at - 100.0)
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (RETRY_SECONDS, RETRY_SECONDS_MAX)
    assert feed.problem == "refused"


def test_what_a_replica_lacks_is_its_lag() -> None:
    feed = Feed(1, "a", "b", source_seqno=10, held_seqno=7, is_whole=True)
    assert (feed.lag, feed.is_caught_up) == (3, False)
    feed.held_seqno = 11
    assert (feed.lag, feed.is_caught_up) == (0, True)
