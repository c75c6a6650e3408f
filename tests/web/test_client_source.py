"""A source somewhere, as a page sees it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from headrace.client.bucket import connect
from headrace.errors import HeadraceError
from headrace.testing import running_node
from headrace.web.client_source import (
    ClientSource,
    Following,
    Statistics,
    ask_statistics,
    read_peers,
    read_vbuckets,
)
from headrace.web.picture import NOBODY, STATES
from headrace.web.source import Unknown
from tests.node.fault_kit import Consumer, fill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.testing import RunningNode

WAIT_SECONDS = 90


@pytest.fixture
def node() -> Iterator[RunningNode]:
    with running_node(vbuckets=4) as started:
        yield started


def url_of(node: RunningNode) -> str:
    return f"{node.connection_string}/default"


def test_statistics_are_read_line_by_line() -> None:
    told = Statistics()
    read_vbuckets([("vb_3", "replica"), ("vb_3:high_seqno", "17"), ("other", "1")], told)
    assert told.vbuckets == {3: {"state": "replica", "high_seqno": "17"}}
    assert (told.seqno(3, "high_seqno"), told.seqno(3, "state"), told.seqno(9, "x")) == (17, 0, 0)
    lines = {
        "eq_dcpq:sync:a:b:type": "producer",
        "eq_dcpq:sync:a:b:unacked_bytes": "70",
        "eq_dcpq:sync:a:b:stream_12_state": "in-memory",
        "eq_dcpq:sync:a:b:stream_12_last_sent_seqno": "5",
        "eq_dcpq:sync:a:b:stream_13_sid4_last_read_seqno": "6",
        "ep_dcp_count": "1",
    }
    read_peers(lines.items(), told)
    peer = told.peers["sync:a:b"]
    assert (peer.number("unacked_bytes"), peer.number("type")) == (70, 0)
    assert (peer.streams[12].state, peer.streams[12].sent, peer.streams[13].read) == (
        "in-memory",
        5,
        6,
    )


def test_a_picture_from_outside_agrees_with_the_node(node: RunningNode) -> None:
    fill(node.port, 25, vbucket=2)

    async def main() -> None:
        consumer = Consumer(node.port, name="a-reader", vbucket=2)
        with connect(url_of(node)) as bucket, consumer:
            consumer.stream()
            async with ClientSource(bucket, title="t") as source:
                assert source.buckets() == ["default"]
                shown = await source.look("default")
                assert shown.columns["high"] == [0, 0, 25, 0]
                assert shown.columns["state"] == [STATES.index("active")] * 4
                assert shown.columns["lag"][0] == NOBODY
                assert shown.columns["lag"][2] >= 0
                assert [one.name for one in shown.connections] == ["a-reader"]
                detail = await source.vbucket("default", 2)
                assert (detail["high"], detail["state"]) == (25, "active")
                assert detail["stream_count"] == 1
                assert detail["own"] is None
                told = await source.connection("default", "a-reader")
                assert told["stream_count"] == 1

    asyncio.run(main())


def test_a_failover_is_seen_at_the_next_look(node: RunningNode) -> None:
    fill(node.port, 25, vbucket=2)

    async def main() -> None:
        with connect(url_of(node)) as bucket:
            async with ClientSource(bucket, title="t") as source:
                before = await source.look("default")
                await asyncio.to_thread(node.faults.failover, vbucket=2, lose=5)
                after = await source.look("default")
                assert before.branches[2] != after.branches[2]
                assert (after.columns["began"][2], after.columns["high"][2]) == (20, 20)
                detail = await source.vbucket("default", 2)
                assert isinstance(detail["log"], list)
                assert [one["seqno"] for one in detail["log"]] == [20, 0]

    asyncio.run(main())


def test_our_own_consumer_is_shown_by_its_health(node: RunningNode) -> None:
    async def main() -> None:
        with connect(url_of(node)) as bucket:
            reader = bucket.changes(
                since="now", name="own", no_value=True, whole=False, on_rollback=lambda _: None
            )
            following = Following(reader, "own")
            following.start()
            try:
                async with ClientSource(bucket, title="t", following=following) as source:
                    fill(node.port, 40, vbucket=1)
                    deadline = time.monotonic() + WAIT_SECONDS
                    while True:
                        shown = await source.look("default")
                        own = [one for one in shown.connections if one.name == "own"]
                        if own and own[0].streams == 4 and own[0].lag == 0:
                            detail = await source.vbucket("default", 1)
                            assert isinstance(detail["own"], dict)
                            if detail["own"]["seqno"] == 40:
                                break
                        assert time.monotonic() < deadline, shown.connections
                        await asyncio.sleep(0.05)
                    assert len(own) == 1
                    assert shown.columns["lag"] == [0, 0, 0, 0]
            finally:
                following.stop()
            assert following.health() == {}

    asyncio.run(main())


def test_a_source_that_went_away_is_an_error_and_not_a_picture() -> None:
    async def main() -> None:
        with running_node(vbuckets=2) as node, connect(url_of(node)) as bucket:
            async with ClientSource(bucket, title="t") as source:
                await source.look("default")
                await asyncio.to_thread(node.stop)
                with pytest.raises(HeadraceError):
                    await source.look("default")

    asyncio.run(main())


def test_what_is_unknown_is_said(node: RunningNode) -> None:
    async def main() -> None:
        with connect(url_of(node)) as bucket:
            async with ClientSource(bucket, title="t") as source:
                for work in (
                    source.look("gone"),
                    source.vbucket("default", 4),
                    source.connection("default", "nobody"),
                ):
                    with pytest.raises(Unknown):
                        await work

    asyncio.run(main())


def test_asking_takes_producers_alone(node: RunningNode) -> None:
    with connect(url_of(node)) as bucket, Consumer(node.port, name="one"):
        told = ask_statistics(bucket)
        assert set(told.peers) == {"one"}
        assert told.refused == ""
