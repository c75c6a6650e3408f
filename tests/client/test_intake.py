"""Intake: what is handed out, when it counts as done, what waits at the gate."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.client.address import NodeAddress
from headrace.client.bulk import Rows, Taken, Whole
from headrace.client.changes import Rollback
from headrace.client.courses import Courses, course_of
from headrace.client.gate import Gate
from headrace.client.intake import CHANGES_AT_ONCE, Intake
from headrace.client.objects import Several
from headrace.client.shelf import Shelf
from headrace.client.topology import ClusterMap
from headrace.history import Boundaries, BranchId, Seqno, SnapshotRange, VBucketId
from headrace.protocol import events as e
from headrace.protocol.consumer import ConsumerConnection
from headrace.protocol.handshake import ConsumerSettings
from headrace.protocol.talk import Position, StreamPlan
from headrace.wire.dialect import Dialect
from tests.client.test_courses import LOG, boundary
from tests.client.test_shelf import batch

NODE = NodeAddress("a", 1)


class Connection(ConsumerConnection):
    """Stands where it is told, and notes what is given back."""

    def __init__(self) -> None:
        super().__init__(ConsumerSettings(name="test"), now=0.0, nonce="n")
        self.given_back = 0
        self.at: dict[int, Position] = {}

    def position(self, vbucket: VBucketId, stream_id: int | None = None) -> Position:
        assert stream_id is None
        return self.at[vbucket]

    def processed(self, size: int, *, now: float) -> None:
        assert now >= 0
        self.given_back += size


def intake(*, gate: Gate | None = None, start: int = 0) -> Intake:
    courses = Courses(
        [course_of(0, boundary(start)), course_of(1, boundary(start))],
        ClusterMap(nodes=(NODE,), active=(0, 0)),
        plan=StreamPlan(vbucket=VBucketId(0)),
        random=lambda: 1.0,
    )
    return Intake(courses, Shelf(), gate=gate)


def give(
    found: Intake, connection: Connection, seqnos: list[int], *, whole: bool, size: int
) -> None:
    rows = batch(*((0, seqno) for seqno in seqnos))
    pieces: list[Rows | Whole | e.Event] = [Rows(rows, 0, len(seqnos), 0)]
    connection.at[0] = boundary(seqnos[-1])
    if whole:
        pieces.append(Whole(0, boundary(seqnos[-1])))
    found.take(Taken(1, pieces, size), connection, now=1.0)


def seqnos_of(given: object) -> list[int]:
    assert isinstance(given, pa.RecordBatch)
    found: list[int] = given.column("seqno").to_pylist()
    return found


def test_a_batch_is_done_with_when_the_next_is_asked_for() -> None:
    found, connection = intake(), Connection()
    give(found, connection, [1, 2], whole=True, size=100)
    assert seqnos_of(found.next(now=2.0)) == [1, 2]
    assert connection.given_back == 0, "the application still has it"
    assert found.delivered[0].token.seqno == 2
    assert found.next(now=3.0) is None
    assert connection.given_back == 100


def test_rows_that_wait_are_given_back_only_while_the_application_waits() -> None:
    found, connection = intake(), Connection()
    give(found, connection, [1, 2], whole=False, size=100)
    assert found.next(now=2.0) is None
    assert connection.given_back == 0
    found.release(now=2.0)
    assert connection.given_back == 100
    give(found, connection, [3], whole=True, size=50)
    assert seqnos_of(found.next(now=2.0)) == [1, 2]
    covered = found.is_covered
    assert not covered
    assert found.delivered == {}, "half a snapshot moves no token"
    assert seqnos_of(found.next(now=2.0)) == [3]
    assert found.is_covered
    assert found.next(now=2.0) is None
    assert connection.given_back == 150


def test_the_gate_holds_back_until_it_is_on_disk_and_what_is_rolled_back_is_never_seen() -> None:
    disk = {0: 0}
    gate = Gate(lambda branches: {vbucket: disk[vbucket] for vbucket in branches})
    found, connection = intake(gate=gate), Connection()
    give(found, connection, [1, 2, 3], whole=True, size=10)
    assert found.next(now=1.0) is None
    assert found.held_back == {0: 3}
    disk[0] = 3
    gate.ask({0: 1}, now=1.0)
    assert seqnos_of(found.next(now=1.0)) == [1, 2, 3]
    give(found, connection, [4, 5], whole=True, size=10)
    rolled = e.RolledBack(
        vbucket=VBucketId(0),
        from_seqno=Seqno(5),
        to_seqno=Seqno(3),
        dead_branch=BranchId(1),
        token=boundary(3).token,
    )
    found.take(Taken(1, [rolled]), connection, now=2.0)
    assert found.next(now=3.0) is None
    assert found.held_back == {}
    assert found.delivered[0].token.seqno == 3


def test_without_a_gate_the_rollback_follows_what_it_withdraws() -> None:
    found, connection = intake(), Connection()
    give(found, connection, [1, 2, 3], whole=True, size=10)
    rolled = e.RolledBack(
        vbucket=VBucketId(0),
        from_seqno=Seqno(3),
        to_seqno=Seqno(0),
        dead_branch=BranchId(1),
        token=boundary(0).token,
    )
    found.take(Taken(1, [rolled]), connection, now=2.0)
    assert seqnos_of(found.next(now=3.0)) == [1, 2, 3]
    told = found.next(now=3.0)
    assert isinstance(told, Rollback)
    assert (told.from_seqno, told.to_seqno) == (3, 0)
    assert found.delivered[0].token.seqno == 0


def test_closing_forgets_what_waits() -> None:
    found, connection = intake(), Connection()
    give(found, connection, [1, 2], whole=True, size=100)
    found.close()
    assert len(found) == 0
    with pytest.raises(KeyError):
        found.delivered[0]


def test_changes_move_the_positions_one_by_one_and_give_back_together() -> None:
    """As `follow` takes them: a few hundred rows become changes at a time."""
    found, connection = intake(), Connection()
    found.shelf = None
    found._whole = False
    opening = e.StreamOpened(
        vbucket=VBucketId(0),
        opaque=1,
        token=boundary(0).token,
        log=LOG,
        branch_changed=False,
    )
    connection.connected = e.Connected(
        dialect=Dialect.DCP_7, features=frozenset(), controls=(), refused=()
    )
    connection.at[0] = boundary(0)
    found.take(Taken(1, [opening], 0), connection, now=0.0)
    count = CHANGES_AT_ONCE + 10
    rows = batch(*((0, seqno) for seqno in range(1, count + 1)))
    span = SnapshotRange(Seqno(1), Seqno(count + 5))
    token = boundary(0).token.advanced(Seqno(count), span)
    connection.at[0] = Position(token, Boundaries())
    taken = Taken(1, [Rows(rows, 0, count, 0, 7, 9, token, span)], 10 * count)
    found.take(taken, connection, now=1.0)
    found.release(now=1.0)
    assert connection.given_back == 0
    several = found.next(now=1.0)
    assert isinstance(several, Several)
    assert found.take_moved() == {}, "nothing was handed out yet"
    for seqno in (1, 2):
        change = several.next()
        assert change is not None
        assert (change.seqno, found.delivered[0].token.seqno) == (seqno, seqno)
        assert found.take_moved()[0].token == change.token
    assert found.take_moved()[0].token.seqno == 2
    rest = found.next(now=1.0)
    assert isinstance(rest, Several)
    assert len(rest) == 10
    assert connection.given_back == 10 * CHANGES_AT_ONCE
    assert found.take_moved()[0].token.seqno == CHANGES_AT_ONCE
    assert found.next(now=1.0) is None
    assert connection.given_back == 10 * count
    assert found.take_moved()[0].token == token
    assert found.take_moved() == {}
