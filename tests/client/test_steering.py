"""Steering: which links, when, and what counts as lost."""

from __future__ import annotations

import pytest

from headrace.client.access import Access
from headrace.client.address import NodeAddress
from headrace.client.bulk import BulkRoad
from headrace.client.courses import Courses, course_of
from headrace.client.intake import Intake
from headrace.client.shelf import Shelf
from headrace.client.steering import LOGIN_REFUSALS_MAX, WAIT_SECONDS_MAX, Steering, jitter
from headrace.client.tokens import BEGINNING
from headrace.client.topology import ClusterMap
from headrace.errors import ConnectionLost, StatusError
from headrace.history import VBucketId
from headrace.protocol.handshake import ConsumerSettings
from headrace.protocol.talk import StreamPlan
from headrace.wire.opcodes import Opcode, Status

A, B, C = NodeAddress("a", 1), NodeAddress("b", 2), NodeAddress("c", 3)


def steering(*, bulk: bool = True, patience: float | None = None) -> Steering:
    courses = Courses(
        [course_of(0, BEGINNING), course_of(1, BEGINNING)],
        ClusterMap(nodes=(A, B), active=(0, 1)),
        plan=StreamPlan(vbucket=VBucketId(0)),
        random=lambda: 1.0,
        patience_seconds=patience,
    )
    intake = Intake(courses, Shelf() if bulk else None)
    return Steering(intake, Access(connect_seconds=3), ConsumerSettings(name="test"), bulk=bulk)


def test_every_node_gets_one_link_and_a_lost_one_is_opened_later() -> None:
    one = steering()
    assert set(one.nodes_to_open([], now=0.0)) == {A, B}
    assert one.nodes_to_open([A, B], now=0.0) == []
    one.lost(A, None, ConnectionLost("gone"), now=1.0)
    assert one.nodes_to_open([B], now=1.0) == []
    assert one.nodes_to_open([B], now=1.1) == [A]
    assert one.nodes_to_open([A, B], now=1.1) == []


def test_a_login_refused_again_and_again_ends_it_and_another_refusal_does_not() -> None:
    refused = StatusError("refused", status=Status.AUTH_ERROR, opcode=Opcode.SASL_AUTH)
    one = steering()
    for _ in range(LOGIN_REFUSALS_MAX):
        one.raise_if_stuck()
        one.lost(A, None, ConnectionLost("gone"), now=1.0)
        one.lost(B, None, StatusError("no", status=Status.ETMPFAIL, opcode=Opcode.OPEN), now=1.0)
        one.raise_if_stuck()
        one.lost(A, None, refused, now=1.0)
    with pytest.raises(StatusError, match="refused"):
        one.raise_if_stuck()


def test_a_lost_node_that_nobody_needs_any_more_wakes_nobody() -> None:
    one = steering()
    assert set(one.nodes_to_open([], now=0.0)) == {A, B}
    one.lost(A, None, ConnectionLost("gone"), now=1.0)
    one.courses.take_map(ClusterMap(nodes=(A, B), active=(1, 1), revision=9))
    assert one.nodes_to_open([B], now=2.0) == []
    assert one.wait_seconds([], now=100.0) == WAIT_SECONDS_MAX


def test_where_the_vbuckets_of_a_node_that_is_gone_are_is_asked_elsewhere() -> None:
    one = steering()
    one.courses.take_map(ClusterMap(nodes=(A, B, C), active=(0, 0), revision=9))
    assert one.nodes_to_open([], now=0.0) == [A]
    one.lost(A, None, ConnectionLost("gone"), now=1.0)
    assert one.nodes_to_open([], now=1.0) == [B]
    one.lost(B, None, ConnectionLost("gone"), now=1.0)
    assert one.nodes_to_open([], now=1.0) == [], "not without pause"
    one.lost(A, None, ConnectionLost("gone"), now=2.5)
    assert one.nodes_to_open([], now=2.5) == [C], "and not always the same one"
    assert one.courses.wants_map


def test_a_handshake_that_does_not_end_counts_as_lost() -> None:
    one = steering()
    connection = one.road(now=0.0).connection
    assert one.watch(A, connection, opened_at=0.0, now=3.0) is None
    reason = one.watch(A, connection, opened_at=0.0, now=3.1)
    assert "did not finish the handshake within 3 s" in str(reason)


def test_the_road_is_the_one_that_was_chosen() -> None:
    assert isinstance(steering().road(now=0.0), BulkRoad)
    assert [steering(bulk=bulk).road(now=0.0)._objects for bulk in (True, False)] == [False, True]


def test_troubles_are_told_once() -> None:
    one = steering()
    told: list[object] = []
    one._on_trouble = told.append
    one.lost(A, None, ConnectionLost("gone"), now=1.0)
    one.tell_troubles()
    one.tell_troubles()
    assert len(told) == 1


def test_waiting_has_a_longest_and_a_shortest_time() -> None:
    one = steering()
    assert one.wait_seconds([], now=0.0) == 0.5
    one.lost(A, None, ConnectionLost("gone"), now=1.0)
    assert 0.001 <= one.wait_seconds([], now=1.0) <= 0.1
    assert 0.0 <= jitter() < 1.0
