"""Courses: what happens to a vbucket's stream, and what is done about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from headrace.client.address import NodeAddress
from headrace.client.courses import DELAY_SECONDS_MAX, Course, Courses, Phase, course_of
from headrace.client.tokens import BEGINNING
from headrace.client.topology import ClusterMap
from headrace.errors import LocalProtocolError
from headrace.history import (
    SEQNO_MAX,
    Boundaries,
    BranchId,
    FailoverLog,
    ResumeToken,
    Seqno,
    SnapshotRange,
    VBucketId,
)
from headrace.protocol import events as e
from headrace.protocol.talk import Position, StreamPlan
from headrace.wire.opcodes import Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.client.changes import Rollback
    from headrace.protocol.consumer import ConsumerConnection

A, B = NodeAddress("a", 1), NodeAddress("b", 1)
LOG = FailoverLog.of((0xAAAA, 0))
V0 = VBucketId(0)


class Connection:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.plans: list[StreamPlan] = []
        self.closed: list[int] = []
        self.at: dict[tuple[int, int | None], Position] = {}

    def request_stream(self, plan: StreamPlan) -> None:
        self.plans.append(plan)

    def close_stream(self, vbucket: VBucketId, stream_id: int | None = None) -> None:
        assert stream_id is None
        self.closed.append(vbucket)

    def positions(self) -> dict[tuple[int, int | None], Position]:
        return self.at

    def position(self, vbucket: int, stream_id: int | None = None) -> Position:
        return self.at[vbucket, stream_id]


def boundary(seqno: int) -> Position:
    token = ResumeToken.at_boundary(BranchId(0xAAAA), Seqno(seqno), LOG)
    return Position(token, Boundaries().recorded(Seqno(seqno), BranchId(0xAAAA)))


def made(
    *courses: Course, active: tuple[int, ...] = (0,), patience: float | None = None, most: int = 16
) -> Courses:
    cluster_map = ClusterMap(nodes=(A, B), active=active, revision=1)
    return Courses(
        courses,
        cluster_map,
        plan=StreamPlan(vbucket=V0),
        random=lambda: 1.0,
        patience_seconds=patience,
        backfills_max=most,
    )


def asked(courses: Courses, node: NodeAddress = A, now: float = 0.0) -> Connection:
    connection = Connection()
    courses.ask(node, as_connection(connection), now=now)
    return connection


def as_connection(connection: Connection) -> ConsumerConnection:
    return cast("ConsumerConnection", connection)


def take(
    courses: Courses, event: e.Event, connection: Connection, now: float = 0.0
) -> Rollback | None:
    return courses.take(event, as_connection(connection), now=now)


def opened(position: Position) -> e.StreamOpened:
    return e.StreamOpened(vbucket=V0, opaque=1, token=position.token, log=LOG, branch_changed=False)


def ended(reason: int, advice: e.Advice, token: ResumeToken) -> e.StreamEnded:
    return e.StreamEnded(vbucket=V0, reason=reason, advice=advice, token=token)


def test_a_course_is_asked_for_on_the_node_that_has_it() -> None:
    courses = made(course_of(0, BEGINNING), course_of(1, BEGINNING), active=(0, 1))
    assert courses.nodes() == {A, B}
    assert [plan.vbucket for plan in asked(courses, A).plans] == [0]
    assert [course.phase for course in courses.by_vbucket.values()] == [Phase.ASKED, Phase.WAITING]


def test_an_empty_course_of_an_empty_vbucket_is_done_without_a_question() -> None:
    courses = made(course_of(0, BEGINNING, end_seqno=0, high_seqno=0))
    assert courses.is_over
    assert asked(courses).plans == []


@pytest.mark.parametrize("end", [0, 4, 9])
def test_a_course_at_its_end_or_beyond_asks_whether_its_history_is_still_true(end: int) -> None:
    """The source may have lost what we hold and be anywhere on a new branch."""
    courses = made(course_of(0, boundary(9), end_seqno=end, high_seqno=end))
    assert not courses.is_over
    (plan,) = asked(courses).plans
    assert (plan.token.seqno, plan.end_seqno) == (9, 9)


def test_a_token_at_a_boundary_without_marks_stands_on_one() -> None:
    token = ResumeToken.at_boundary(BranchId(0xAAAA), Seqno(5), LOG)
    course = course_of(0, Position(token, Boundaries()))
    assert course.position.boundaries.greatest(Seqno(9)) == 5


def test_backfills_take_turns() -> None:
    courses = made(
        *(course_of(v, BEGINNING, high_seqno=10) for v in range(3)), active=(0, 0, 0), most=2
    )
    connection = asked(courses)
    assert [plan.vbucket for plan in connection.plans] == [0, 1]
    assert courses.next_at(now=0.0) is None, "the third does not wait for a time"
    courses.moved(0, boundary(10), now=1.0)
    assert [plan.vbucket for plan in asked(courses, now=1.0).plans] == [2]


def test_large_backfills_run_two_at_a_time_and_small_ones_many() -> None:
    """Unfinished snapshots are what has to be held: few items of many vbuckets are no burden."""
    for high, running in ((1_000_000, 2), (12_000, 3), (10, 8)):
        courses = made(
            *(course_of(v, BEGINNING, high_seqno=high) for v in range(20)),
            active=(0,) * 20,
            most=8,
        )
        assert len(asked(courses).plans) == running, high


def test_asking_looks_at_those_that_are_due_and_at_no_others() -> None:
    courses = made(
        *(course_of(v, BEGINNING, high_seqno=10) for v in range(900)), active=(0,) * 900, most=1
    )
    assert [plan.vbucket for plan in asked(courses).plans] == [0]
    looked: list[int] = []
    node_of = courses.cluster_map.node_of
    object.__setattr__(courses, "cluster_map", _Watched(node_of, looked))
    courses.moved(0, boundary(10), now=1.0)
    assert [plan.vbucket for plan in asked(courses, now=1.0).plans] == [1]
    assert looked == []


class _Watched:
    """A map that notes for which vbuckets it is asked."""

    def __init__(self, node_of: Callable[[int], NodeAddress | None], looked: list[int]) -> None:
        self._node_of = node_of
        self._looked = looked

    def node_of(self, vbucket: int) -> NodeAddress | None:
        self._looked.append(vbucket)
        return self._node_of(vbucket)


def test_what_is_past_its_start_needs_no_turn() -> None:
    courses = made(*(course_of(v, boundary(5)) for v in range(3)), active=(0, 0, 0), most=1)
    assert len(asked(courses).plans) == 3


def test_a_lost_link_sends_its_courses_back_with_what_they_had_reached() -> None:
    courses = made(course_of(0, BEGINNING))
    connection = asked(courses)
    connection.at[0, None] = boundary(7)
    courses.lost(A, as_connection(connection), "it went", now=1.0)
    course = courses.by_vbucket[0]
    assert (course.phase, course.position, course.reason) == (Phase.WAITING, boundary(7), "it went")
    assert courses.troubles[0].vbuckets == (0,)
    assert courses.wants_map
    assert asked(courses, now=1.0).plans == [], "not at once"
    (plan,) = asked(courses, now=1.1).plans
    assert plan.token == boundary(7).token


def test_a_node_that_goes_takes_no_stream_with_it_that_another_still_serves() -> None:
    courses = made(course_of(0, BEGINNING))
    connection = asked(courses)
    take(courses, opened(BEGINNING), connection)
    courses.take_map(ClusterMap(nodes=(A, B), active=(1,), revision=2))
    assert courses.lost(B, None, "nobody listens", now=1.0) > 1.0, "it is not tried in a loop"
    assert courses.by_vbucket[0].phase is Phase.STREAMING
    courses.take_map(ClusterMap(nodes=(A, B), active=(0,), revision=3))
    courses.ask(A, as_connection(connection), now=9.0)
    assert len(connection.plans) == 1, "a connection refuses to ask twice"


def test_delays_grow_to_a_limit_and_movement_forgets_them() -> None:
    courses = made(course_of(0, BEGINNING))
    delays = []
    for _ in range(12):
        courses.lost(A, None, "no", now=0.0)
        delays.append(courses.by_vbucket[0].retry_at)
    assert delays == sorted(delays)
    assert delays[-1] == DELAY_SECONDS_MAX
    courses.moved(0, boundary(1), now=5.0)
    course = courses.by_vbucket[0]
    assert (course.attempts, course.troubled_at, course.reason) == (0, None, "")


def test_patience_ends_with_the_reason() -> None:
    courses = made(course_of(0, BEGINNING), patience=2.0)
    courses.lost(A, None, "nobody there", now=0.0)
    assert courses.stuck == []
    courses.lost(A, None, "nobody there", now=2.0)
    (course,) = courses.stuck
    assert course.reason == "nobody there; nothing moved for 2 s"
    assert courses.is_over
    assert [one.retry_seconds for one in courses.troubles] == [0.05, None]


def test_a_moved_vbucket_waits_for_a_new_map_and_goes_there() -> None:
    courses = made(course_of(0, BEGINNING), active=(0,))
    connection = asked(courses)
    take(courses, e.NotMyVBucket(vbucket=V0, cluster_map=b"", token=BEGINNING.token), connection)
    assert courses.wants_map
    assert asked(courses, A, now=9.0).plans != [], "the old map is believed until there is another"
    moved = made(course_of(0, BEGINNING), active=(0,))
    moved.take_map(ClusterMap(nodes=(A, B), active=(1,), revision=2))
    moved.take_map(ClusterMap(nodes=(A, B), active=(0,), revision=1))
    assert asked(moved, A).plans == []
    assert len(asked(moved, B).plans) == 1, "an older map changes nothing"


def test_a_vbucket_that_nobody_has_is_a_trouble_and_no_loop() -> None:
    courses = made(course_of(0, BEGINNING), active=(-1,))
    asked(courses)
    assert "no node has it active" in str(courses.troubles[0])
    assert courses.wants_map
    assert courses.by_vbucket[0].retry_at > 0


@pytest.mark.parametrize(
    ("status", "temporary", "phase"),
    [
        (Status.ETMPFAIL, True, Phase.WAITING),
        (Status.EACCESS, False, Phase.STUCK),
        (Status.UNKNOWN_COLLECTION, False, Phase.STUCK),
    ],
)
def test_a_refusal_is_tried_again_unless_it_will_not_change(
    status: Status, temporary: bool, phase: Phase
) -> None:
    courses = made(course_of(0, BEGINNING))
    refused = e.StreamRefused(
        vbucket=V0, status=status, reason="so", temporary=temporary, token=BEGINNING.token
    )
    take(courses, refused, asked(courses))
    assert courses.by_vbucket[0].phase is phase


def test_the_ends_of_a_stream() -> None:
    for advice, inside, phase in (
        (e.Advice.DONE, False, Phase.DONE),
        (e.Advice.ASK_AGAIN, False, Phase.WAITING),
        (e.Advice.GONE, False, Phase.STUCK),
        (e.Advice.DONE, True, Phase.WAITING),
    ):
        courses = made(course_of(0, BEGINNING, end_seqno=5))
        connection = asked(courses)
        take(courses, opened(BEGINNING), connection)
        position = boundary(5)
        if inside:
            snapshot = SnapshotRange(Seqno(1), Seqno(9))
            token = ResumeToken(BranchId(0xAAAA), Seqno(5), snapshot, log=LOG)
            position = Position(token, Boundaries())
        connection.at[0, None] = position
        take(courses, ended(0, advice, position.token), connection)
        course = courses.by_vbucket[0]
        assert course.phase is phase
        assert course.end_seqno == (9 if inside else 5), "the rest of the snapshot is asked for"


def test_a_rollback_of_what_was_handed_out_is_told_once() -> None:
    courses = made(course_of(0, boundary(9)))
    connection = asked(courses)
    rolled = e.RolledBack(
        vbucket=V0,
        from_seqno=Seqno(9),
        to_seqno=Seqno(5),
        dead_branch=BranchId(0xAAAA),
        token=boundary(5).token,
    )
    told = take(courses, rolled, connection)
    assert told is not None
    assert (told.from_seqno, told.to_seqno) == (9, 5)
    assert take(courses, rolled, connection) is None


def test_an_end_beyond_the_new_history_is_brought_down() -> None:
    courses = made(course_of(0, boundary(9), end_seqno=20))
    connection = asked(courses)
    rolled = e.RolledBack(
        vbucket=V0,
        from_seqno=Seqno(9),
        to_seqno=Seqno(5),
        dead_branch=BranchId(0xAAAA),
        token=boundary(5).token,
    )
    take(courses, rolled, connection)
    take(courses, opened(boundary(5)), connection)
    assert courses.wants_seqnos
    courses.take_seqnos({0: 7}, as_connection(connection))
    assert connection.closed == [], "two more are to come"
    courses.moved(0, boundary(7), now=1.0)
    courses.take_seqnos({0: 7}, as_connection(connection))
    assert connection.closed == [0]
    assert courses.is_over
    assert not courses.wants_seqnos


def test_an_end_that_a_failover_above_our_position_took_away_is_brought_down() -> None:
    """Nobody is rolled back who stands below the new branch: the log alone tells of it."""
    courses = made(course_of(0, boundary(5), end_seqno=9, high_seqno=9))
    connection = asked(courses)
    take(courses, opened(boundary(5)), connection)
    assert courses.wants_seqnos
    courses.take_seqnos({0: 5}, as_connection(connection))
    assert connection.closed == [0]
    assert courses.is_over


def test_an_end_that_is_there_is_not_in_doubt() -> None:
    courses = made(course_of(0, boundary(5), end_seqno=9, high_seqno=9))
    connection = asked(courses)
    take(courses, opened(boundary(5)), connection)
    courses.take_seqnos({0: 9}, as_connection(connection))
    assert not courses.wants_seqnos
    assert not courses.is_over


def test_an_endless_course_has_no_doubtful_end() -> None:
    assert course_of(0, BEGINNING).end_seqno == SEQNO_MAX
    with pytest.raises(LocalProtocolError, match="end seqno -1"):
        course_of(0, BEGINNING, end_seqno=-1)
