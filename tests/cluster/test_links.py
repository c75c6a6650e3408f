"""Links: both ends opened under one name, bytes across, and an end that is told once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from headrace.cluster.links import FEATURES, SHARED, EndHandshake, Link
from headrace.cluster.proxy import ProxyEvent, Side, StreamAdded, StreamAsked, StreamClosed
from headrace.errors import CannotConnect, HeadraceError, StatusError
from headrace.protocol.handshake import ConsumerSettings
from headrace.wire import admin
from headrace.wire import messages as m
from headrace.wire.opcodes import Datatype, Feature, OpenFlag, VBucketState
from tests.cluster.kit import Nodes, running_nodes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from headrace.wire.message import Request

NAME = "replication:a->b:default"


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with running_nodes(tmp_path) as found:
        found.put("a", 1, range(20))
        with found.link("b") as link:
            replica = admin.SetVBucket(vbucket=1, state=int(VBucketState.REPLICA))
            link.ask(replica, admin.SetVBucketReply)
        yield found


class Watched:
    """A link, what it told, and a way to wait for it."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.events: list[ProxyEvent] = []
        self.lost: list[HeadraceError] = []
        self._told = asyncio.Event()

    def start(self) -> None:
        self.link.start(self._on_event, self._on_lost)

    def _on_event(self, event: ProxyEvent) -> None:
        self.events.append(event)
        self._told.set()

    def _on_lost(self, error: HeadraceError) -> None:
        self.lost.append(error)
        self._told.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self._told.clear()
                await self._told.wait()

    def saw(self, kind: type[ProxyEvent]) -> bool:
        return any(isinstance(event, kind) for event in self.events)


def linked(nodes: Nodes, work: Callable[[Watched], Awaitable[None]]) -> None:
    async def main() -> None:
        file = nodes.file
        watched = Watched(await Link.open(file.node("a"), file.node("b"), "default"))
        try:
            watched.start()
            await work(watched)
        finally:
            watched.link.close()

    asyncio.run(main())


def connection_names(nodes: Nodes, name: str) -> set[str]:
    with nodes.link(name) as link:
        keys = link.stats("dcp")
    return {key.removeprefix("eq_dcpq:").rsplit(":", 1)[0] for key in keys if NAME in key}


def test_a_stream_is_added_carried_and_closed(nodes: Nodes) -> None:
    async def work(watched: Watched) -> None:
        watched.link.add_stream(1)
        await watched.until(lambda: watched.saw(StreamAdded))
        await watched.until(lambda: int(watched.link.proxy.seqnos[1]) == 20)
        watched.link.close_stream(1)
        await watched.until(lambda: watched.saw(StreamClosed))
        watched.link.add_stream(1)
        await watched.until(lambda: sum(isinstance(e, StreamAdded) for e in watched.events) == 2)

    linked(nodes, work)
    assert nodes.log("a", 1) == nodes.log("b", 1)


def test_both_ends_bear_the_same_name_and_a_second_link_ends_the_first(nodes: Nodes) -> None:
    async def work(watched: Watched) -> None:
        for name in nodes.running:
            assert connection_names(nodes, name) == {NAME}
        file = nodes.file
        second = await Link.open(file.node("a"), file.node("b"), "default")
        try:
            await watched.until(lambda: bool(watched.lost))
            assert "closed the connection" in str(watched.lost[0])
            assert watched.link.lost is watched.lost[0]
        finally:
            second.close()

    linked(nodes, work)


def test_the_end_of_either_node_is_told_once(nodes: Nodes) -> None:
    async def work(watched: Watched) -> None:
        watched.link.add_stream(1)
        await watched.until(lambda: watched.saw(StreamAdded))
        await asyncio.to_thread(nodes.running["b"].crash)
        await watched.until(lambda: bool(watched.lost))
        await asyncio.to_thread(nodes.running["a"].crash)
        await asyncio.sleep(0.05)
        assert len(watched.lost) == 1
        watched.link.add_stream(2)  # nowhere to send it; nothing breaks

    linked(nodes, work)


def test_what_a_gate_holds_passes_when_it_is_released(nodes: Nodes) -> None:
    async def work(watched: Watched) -> None:
        held: list[ProxyEvent] = []

        def gate(event: ProxyEvent) -> bool:
            if isinstance(event, StreamAsked) and not held:
                held.append(event)
                return True
            return False

        watched.link.gate = gate
        watched.link.add_stream(1)
        async with asyncio.timeout(20):
            while not held:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert not watched.saw(StreamAsked)
        assert not watched.saw(StreamAdded)
        watched.link.release()
        await watched.until(lambda: watched.saw(StreamAdded))

    linked(nodes, work)


def test_a_node_that_does_not_listen_is_named(nodes: Nodes) -> None:
    async def main() -> None:
        file = nodes.file
        await asyncio.to_thread(nodes.running["b"].crash)
        with pytest.raises(CannotConnect, match="nothing listens at"):
            await Link.open(file.node("a"), file.node("b"), "default")

    asyncio.run(main())
    assert connection_names(nodes, "a") == set(), "no end is left open"


def test_a_bucket_that_is_not_there_is_refused(nodes: Nodes) -> None:
    async def main() -> None:
        file = nodes.file
        with pytest.raises(StatusError, match="bucket 'nothing' was refused"):
            await Link.open(file.node("a"), file.node("b"), "nothing")

    asyncio.run(main())


# -- the script of an end --------------------------------------------------------------------------


def opening(*, consumer: str | None, features: tuple[int, ...]) -> m.Open:
    settings = ConsumerSettings(name=NAME, xattrs=True)
    script = EndHandshake(settings, without=frozenset({Feature.SNAPPY}), consumer=consumer)
    hello = script.request
    assert isinstance(hello, admin.Hello)
    assert set(hello.features) == set(FEATURES) - {Feature.SNAPPY}
    script.receive(admin.HelloReply(features=features))
    request: Request | None = script.request
    assert isinstance(request, m.Open)
    script.receive(m.OpenReply())
    assert script.connected is not None
    return request


def test_a_producer_end_asks_for_xattrs_and_delete_times() -> None:
    asked = opening(consumer=None, features=tuple(SHARED))
    wanted = OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES
    assert (asked.flags, asked.value, asked.key) == (wanted, b"", NAME.encode())


def test_a_consumer_end_is_told_its_name_where_sync_writes_are_known() -> None:
    asked = opening(consumer="b", features=tuple(SHARED))
    assert asked.flags == OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES
    assert (asked.value, asked.datatype) == (b'{"consumer_name": "b"}', Datatype.JSON)
    older = opening(consumer="b", features=(Feature.XATTR,))
    assert (older.value, older.datatype) == (b"", Datatype.RAW)


def test_the_side_across_is_the_other_one() -> None:
    assert (Side.PRODUCER.other, Side.CONSUMER.other) == (Side.CONSUMER, Side.PRODUCER)
