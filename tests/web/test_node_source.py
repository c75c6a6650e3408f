"""A node as a page sees it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

import pytest

from headrace.web.node_source import NodeSource
from headrace.web.picture import NOBODY, STATES
from headrace.web.source import Unknown
from headrace.wire.opcodes import VBucketState
from tests.node.fault_kit import Consumer, fill
from tests.web.page_kit import running_page

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from headrace.web.picture import Picture
    from tests.web.page_kit import RunningPage

T = TypeVar("T")
WAIT_SECONDS = 90


@pytest.fixture
def page() -> Iterator[RunningPage]:
    with running_page() as own:
        yield own


def on_loop(page: RunningPage, work: Coroutine[object, object, T]) -> T:
    return asyncio.run_coroutine_threadsafe(work, page.loop).result(30)


def look(page: RunningPage) -> Picture:
    return on_loop(page, NodeSource(page.node).look("default"))


def test_states_have_the_numbers_of_the_wire() -> None:
    assert {state.value: state.name.lower() for state in VBucketState} == dict(
        enumerate(STATES[1:], 1)
    )


def test_a_picture_holds_what_the_store_knows(page: RunningPage) -> None:
    fill(page.node.port, 20, vbucket=1)
    shown = look(page)
    assert shown.columns["high"] == [0, 20, 0, 0]
    assert shown.columns["state"] == [1, 1, 1, 1]
    assert shown.columns["lag"] == [NOBODY] * 4
    assert shown.columns["persisted"] == [0] * 4
    assert all(len(branch) == 16 for branch in shown.branches)
    assert shown.items == 20
    assert shown.connections == ()
    assert "memory" in shown.notes[0]


def test_a_consumer_is_shown_with_its_window_and_its_lag(page: RunningPage) -> None:
    fill(page.node.port, 200, vbucket=1, size=400)
    controls = {"connection_buffer_size": "4096"}
    with Consumer(page.node.port, name="slow", vbucket=1, controls=controls) as consumer:
        consumer.stream()
        shown = look(page)
        deadline = time.monotonic() + WAIT_SECONDS
        while shown.connections[0].condition != "full":
            assert time.monotonic() < deadline, shown.connections
            shown = look(page)
        (one,) = shown.connections
        assert (one.name, one.streams, one.condition) == ("slow", 1, "full")
        assert one.window == 4096
        assert one.outstanding >= 4096
        assert (one.worst_vbucket, one.lag) == (1, shown.columns["lag"][1])
        assert 0 < one.lag < 200
        assert shown.columns["streams"] == [0, 1, 0, 0]
        detail = on_loop(page, NodeSource(page.node).vbucket("default", 1))
        assert detail["stream_count"] == 1
        assert isinstance(detail["streams"], list)
        assert detail["streams"][0]["snapshot"][1] == 200


def test_a_paused_and_a_slowed_connection_say_so(page: RunningPage) -> None:
    with Consumer(page.node.port, name="victim") as consumer:
        consumer.stream()
        assert page.node.faults is not None
        page.node.faults.slow(connection="victim", rate=1234)
        (one,) = look(page).connections
        assert (one.condition, one.limit) == ("slowed", 1234)
        page.node.faults.pause(connection="victim")
        assert look(page).connections[0].condition == "paused"
        page.node.faults.resume(connection="victim")
        assert look(page).connections[0].condition == "level"


def test_a_connection_without_streams_is_idle(page: RunningPage) -> None:
    with Consumer(page.node.port, name="new"):
        assert [one.condition for one in look(page).connections] == ["idle"]


def test_a_failover_is_another_branch(page: RunningPage) -> None:
    fill(page.node.port, 20, vbucket=1)
    before = look(page)
    assert page.node.faults is not None
    page.node.faults.failover(vbucket=1, lose=5)
    after = look(page)
    assert [a == b for a, b in zip(before.branches, after.branches, strict=True)] == [
        True,
        False,
        True,
        True,
    ]
    assert after.columns["began"][1] == 15


def test_what_is_unknown_is_said(page: RunningPage) -> None:
    source = NodeSource(page.node)
    with pytest.raises(Unknown, match="there are: default"):
        on_loop(page, source.look("gone"))
    with pytest.raises(Unknown):
        on_loop(page, source.vbucket("default", 4))
    with pytest.raises(Unknown):
        on_loop(page, source.connection("default", "7"))
    assert source.title == f"127.0.0.1:{page.node.port}"
    assert source.buckets() == ["default"]
