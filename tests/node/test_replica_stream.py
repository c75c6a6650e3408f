"""One inbound stream: every state with every cause, ranges, prepares, states, the store's form."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

from headrace.history import FailoverLog, Seqno, SnapshotRange
from headrace.node.refusal import Refusal
from headrace.node.replica_stream import (
    REFUSALS,
    ROLLBACKS_MAX,
    TRANSITIONS,
    Cause,
    ReplicaStream,
    State,
)
from headrace.wire import messages as m
from headrace.wire.dialect import Dialect
from headrace.wire.opcodes import DurabilityLevel, MarkerFlag, Status, VBucketState
from tests.node.replica_kit import replica_host

if TYPE_CHECKING:
    from headrace.wire.message import Message, Request
    from tests.node.stream_kit import Host

LOG = (m.FailoverEntry(7, 3), m.FailoverEntry(5, 0))
MEMORY, DISK = int(MarkerFlag.MEMORY), int(MarkerFlag.DISK)


def make(host: Host | None = None, **more: object) -> ReplicaStream:
    host = host or replica_host(vbuckets=1)
    options: dict[str, object] = {
        "opaque": 9,
        "flags": 0,
        "asked_by": 1,
        "dialect": Dialect.DCP_7,
        "collections": True,
        "persisted": lambda _: None,
    }
    return ReplicaStream(host, host.bucket.vbucket(0), **(options | more))  # type: ignore[arg-type]


def standing(host: Host | None = None, **more: object) -> ReplicaStream:
    stream = make(host, **more)
    stream.request()
    stream.accepted(LOG)
    return stream


def marker(start: int, end: int, flags: int = MEMORY, **more: int) -> m.SnapshotMarker:
    return m.SnapshotMarker(start_seqno=start, end_seqno=end, flags=flags, opaque=9, **more)  # type: ignore[arg-type]


def mutation(seqno: int, key: bytes = b"\0k", value: bytes = b"v") -> m.Mutation:
    return m.Mutation(by_seqno=seqno, rev_seqno=seqno, cas=seqno << 16, key=key, value=value)


def prepare(seqno: int, level: int = 1, key: bytes = b"\0p") -> m.Prepare:
    return m.Prepare(
        by_seqno=seqno, rev_seqno=1, cas=1 << 16, durability=level, key=key, value=b"new"
    )


def status_of(stream: ReplicaStream, message: Request) -> Status:
    high = stream.vbucket.high_seqno
    with pytest.raises(Refusal) as caught:
        stream.receive(message)
    assert stream.vbucket.high_seqno == high, "a refused message changes nothing"
    return caught.value.status


@pytest.mark.parametrize(("state", "cause"), list(product(State, Cause)))
def test_every_state_answers_every_cause(state: State, cause: Cause) -> None:
    stream = make()
    stream.state = state
    after = TRANSITIONS.get((state, cause))
    if after is not None:
        stream.move(cause)
        assert stream.state is after
        return
    with pytest.raises(Refusal) as caught:
        stream.move(cause)
    assert caught.value.status == REFUSALS.get((state, cause), Status.KEY_ENOENT)
    assert stream.state is state


def test_the_table_is_the_drawing() -> None:
    """Spelled out once, so that a changed row is seen."""
    reachable = {(before.name, after.name) for (before, _), after in TRANSITIONS.items()}
    assert {pair for pair in reachable if pair[1] != "CLOSED" and pair[0] != pair[1]} == {
        ("WAITING", "ASKED"),
        ("ROLLING_BACK", "ASKED"),
        ("ASKED", "OPEN"),
        ("ASKED", "ROLLING_BACK"),
        ("OPEN", "RECEIVING"),
        ("RECEIVING", "OPEN"),
        ("OPEN", "TAKEN"),
        ("RECEIVING", "TAKEN"),
    }
    assert {before for before, _ in TRANSITIONS} == set(State)


# -- asking ------------------------------------------------------------------------------------


def asked(stream: ReplicaStream) -> tuple[int | None, ...]:
    request = stream.request()
    return (
        request.start_seqno,
        request.vb_uuid,
        request.snap_start_seqno,
        request.snap_end_seqno,
    )


def test_an_empty_vbucket_asks_for_everything_without_a_branch() -> None:
    assert asked(make()) == (0, 0, 0, 0)


def test_the_vbucket_itself_is_the_resume_token() -> None:
    host = replica_host(vbuckets=1)
    stream = standing(host)
    stream.receive(marker(1, 4))
    stream.receive(mutation(2))
    assert asked(make(host)) == (2, 7, 1, 4), "inside a snapshot it says so"
    stream.receive(mutation(4))
    assert asked(make(host)) == (4, 7, 4, 4), "at its end the snapshot is whole"
    stream.receive(marker(7, 9))
    assert asked(make(host)) == (4, 7, 4, 4), "a marker alone changes nothing"
    stream.receive(mutation(8))
    assert asked(make(host)) == (8, 7, 7, 9)


def test_the_draft_asks_with_the_seqno_of_the_branch() -> None:
    host = replica_host(vbuckets=1)
    host.bucket.vbucket(0).replace_failover_log(FailoverLog.of((7, 0)))
    request = make(host, dialect=Dialect.UPR_DRAFT).request()
    assert (request.snap_start_seqno, request.high_seqno) == (None, 0)


def test_on_rollback_to_zero_an_older_branch_is_tried_first() -> None:
    host = replica_host(vbuckets=1)
    stream = standing(host)
    stream.receive(marker(1, 3))
    stream.receive(mutation(3))
    again = make(host)
    assert asked(again) == (3, 7, 3, 3)
    assert again.told_to_roll_back(0) is None, "the newest branch began where we stand"
    assert asked(again) == (3, 5, 3, 3)
    assert again.told_to_roll_back(0) == 0, "once is enough"


def test_a_rollback_goes_below_where_we_stand() -> None:
    host = replica_host(vbuckets=1)
    stream = standing(host)
    for seqno in (1, 2):
        stream.receive(marker(seqno, seqno))
        stream.receive(mutation(seqno))
    again = make(host)
    again.request()
    assert again.told_to_roll_back(1) == 1
    again.request()
    assert again.told_to_roll_back(9) == 0, "a demand that changes nothing would come for ever"
    for _ in range(ROLLBACKS_MAX - 2):
        again.request()
        again.told_to_roll_back(1)
    again.request()
    with pytest.raises(Refusal):
        again.told_to_roll_back(1)
    empty = make()
    empty.request()
    with pytest.raises(Refusal) as caught:
        empty.told_to_roll_back(0)
    assert caught.value.status == Status.ROLLBACK, "nothing is left to give up"


def test_the_producers_log_becomes_ours() -> None:
    stream = standing()
    assert stream.vbucket.failover_log == FailoverLog.of((7, 3), (5, 0))
    broken = make()
    broken.request()
    with pytest.raises(Refusal):
        broken.accepted((m.FailoverEntry(0, 3),))
    assert broken.state is State.ASKED


# -- snapshots and items -----------------------------------------------------------------------


def test_items_rise_inside_their_marker() -> None:
    stream = standing()
    assert status_of(stream, mutation(1)) == Status.ERANGE, "no marker yet"
    stream.receive(marker(3, 6))
    for seqno in (2, 7):
        assert status_of(stream, mutation(seqno)) == Status.ERANGE
    stream.receive(mutation(4))
    assert status_of(stream, mutation(4)) == Status.ERANGE
    stream.receive(mutation(6))
    assert stream.state is State.OPEN
    assert status_of(stream, mutation(7)) == Status.ERANGE, "the snapshot is over"


@pytest.mark.parametrize(
    ("start", "end", "status"),
    [
        (1, 3, Status.ERANGE),
        (3, 3, Status.ERANGE),
        (5, 4, Status.EINVAL),
        (4, 2**63, Status.ERANGE),
    ],
)
def test_markers_that_cannot_be(start: int, end: int, status: Status) -> None:
    stream = standing()
    stream.receive(marker(1, 3))
    stream.receive(mutation(3))
    assert status_of(stream, marker(start, end)) == status
    before = stream.state
    stream.receive(marker(2, 4))  # one that reaches beyond us may begin below
    assert (before, stream.state) == (State.OPEN, State.RECEIVING)


def test_a_marker_is_answered_when_its_last_item_was_applied() -> None:
    stream = standing()
    assert stream.receive(marker(1, 2, MEMORY | MarkerFlag.ACK)) == []
    assert stream.receive(mutation(1)) == []
    assert stream.receive(mutation(2, b"\0l")) == [m.SnapshotMarkerReply(opaque=9)]
    assert stream.receive(marker(3, 3)) == []
    assert stream.receive(mutation(3)) == [], "nobody asked"


def test_a_seqno_without_an_item_ends_a_snapshot() -> None:
    stream = standing()
    stream.receive(marker(1, 5, MEMORY | MarkerFlag.ACK))
    stream.receive(mutation(1))
    assert stream.receive(m.SeqnoAdvanced(by_seqno=5)) == [m.SnapshotMarkerReply(opaque=9)]
    assert (stream.vbucket.high_seqno, stream.vbucket.complete_seqno) == (5, 5)


def test_the_purge_seqno_of_a_marker_is_the_replicas() -> None:
    stream = standing()
    stream.receive(marker(1, 5, DISK, purge_seqno=4))
    assert stream.vbucket.purge_seqno == 4


def test_the_drafts_markers_end_each_other() -> None:
    host = replica_host(vbuckets=1)
    stream = standing(host, dialect=Dialect.UPR_DRAFT, collections=False)
    empty = m.SnapshotMarker(opaque=9)
    stream.receive(empty)
    stream.receive(mutation(3, b"k"))
    assert stream.vbucket.complete_seqno == 0
    stream.receive(empty)
    assert stream.vbucket.complete_seqno == 3
    stream.receive(mutation(4, b"k"))
    stream.receive(m.StreamEnd(reason=0))
    assert stream.vbucket.complete_seqno == 4
    assert stream.vbucket.get(b"\0k") is not None


def test_flush_empties_the_vbucket_in_the_dialects_that_have_it() -> None:
    stream = standing(dialect=Dialect.UPR_2014)
    log = stream.vbucket.failover_log
    stream.receive(marker(1, 2))
    stream.receive(mutation(2))
    stream.receive(m.Flush())
    assert (stream.vbucket.high_seqno, stream.vbucket.item_count) == (0, 0)
    assert stream.vbucket.failover_log == log
    assert not stream.is_lost
    stream.receive(marker(3, 3))
    stream.receive(mutation(3))
    later = standing()
    assert status_of(later, m.Flush()) == Status.NOT_SUPPORTED


def test_an_item_the_store_refuses_is_einval() -> None:
    stream = standing()
    stream.receive(marker(1, 2))
    assert status_of(stream, mutation(1, b"\0" * 300)) == Status.EINVAL
    assert status_of(stream, m.SystemEvent(by_seqno=1, event=0, version=2)) == Status.EINVAL


def test_the_manifest_follows_system_events() -> None:
    stream = standing()
    stream.receive(marker(1, 4))
    uid = (4).to_bytes(8, "big")
    scope, collection = (8).to_bytes(4, "big"), (9).to_bytes(4, "big")
    stream.receive(m.SystemEvent(by_seqno=1, event=3, version=0, key=b"shop", value=uid + scope))
    value = uid + scope + collection + (60).to_bytes(4, "big")
    stream.receive(m.SystemEvent(by_seqno=2, event=0, version=1, key=b"fruit", value=value))
    assert stream.vbucket.manifest == {
        "uid": "4",
        "scopes": [
            {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]},
            {
                "name": "shop",
                "uid": "8",
                "collections": [{"name": "fruit", "uid": "9", "maxTTL": 60}],
            },
        ],
    }
    stream.receive(m.SystemEvent(by_seqno=3, event=1, version=0, value=value[:16]))
    stream.receive(m.SystemEvent(by_seqno=4, event=4, version=0, value=uid + scope))
    assert [one["name"] for one in stream.vbucket.manifest["scopes"]] == ["_default"]  # type: ignore[attr-defined]


# -- states ------------------------------------------------------------------------------------


def test_a_takeover_makes_the_vbucket_active_without_a_new_branch() -> None:
    stream = standing()
    log = stream.vbucket.failover_log
    answer: list[Message] = [m.SetVBucketStateReply(opaque=9)]
    assert stream.receive(m.SetVBucketState(state=VBucketState.PENDING, opaque=9)) == answer
    assert stream.vbucket.state is VBucketState.PENDING
    stream.receive(marker(1, 1))
    stream.receive(mutation(1))
    assert stream.receive(m.SetVBucketState(state=VBucketState.ACTIVE, opaque=9)) == answer
    assert (stream.vbucket.state, stream.vbucket.failover_log) == (VBucketState.ACTIVE, log)
    assert not stream.is_lost
    assert status_of(stream, marker(2, 2)) == Status.ERANGE, "it is ours now"
    assert status_of(stream, mutation(2)) == Status.ERANGE
    stream.receive(m.StreamEnd(reason=0))
    assert stream.state is State.CLOSED
    assert status_of(standing(), m.SetVBucketState(state=9)) == Status.EINVAL


def test_a_vbucket_that_changes_under_the_stream_is_lost_to_it() -> None:
    host = replica_host(vbuckets=1)
    stream = standing(host)
    lost = [stream.is_lost]
    for state in (VBucketState.ACTIVE, VBucketState.REPLICA):
        host.set_state(0, state)
        lost.append(stream.is_lost)
    host.bucket.delete_vbucket(0)
    assert [*lost, stream.is_lost] == [False, True, False, True]


# -- sync writes -------------------------------------------------------------------------------


def acknowledged(stream: ReplicaStream) -> int:
    found = stream.take_acknowledgement()
    return 0 if found is None else found.prepared_seqno


def test_a_majority_prepare_is_acknowledged_when_it_is_in_memory() -> None:
    stream = standing()
    stream.receive(marker(1, 4))
    stream.receive(prepare(1))
    assert acknowledged(stream) == 1
    assert acknowledged(stream) == 0, "once"
    stream.receive(m.Commit(prepared_seqno=1, commit_seqno=2, key=b"\0p"))
    item = stream.vbucket.get(b"\0p")
    assert item is not None
    assert (item.value, item.seqno) == (b"new", 2)
    stream.receive(prepare(3))
    stream.receive(m.Abort(prepared_seqno=3, abort_seqno=4, key=b"\0p"))
    assert not stream.vbucket.all_pending()


def test_a_persistent_prepare_holds_back_the_ones_after_it(tmp_path_factory: object) -> None:
    host = replica_host(tmp_path_factory.mktemp("replica") / "b", vbuckets=1)  # type: ignore[attr-defined]
    told: list[int] = []
    stream = standing(host, persisted=told.append)
    stream.receive(marker(1, 3))
    stream.receive(prepare(1, key=b"\0a"))
    stream.receive(prepare(2, DurabilityLevel.PERSIST_TO_MAJORITY, key=b"\0b"))
    stream.receive(prepare(3, key=b"\0c"))
    assert acknowledged(stream) == 1
    again = standing(host)
    assert acknowledged(again) == 1, "and so after a new beginning"
    host.bucket.commit()
    assert told == [0]
    assert acknowledged(stream) == 3
    assert acknowledged(again) == 3
    host.bucket.close()


def test_prepares_of_a_disk_snapshot_are_acknowledged_at_its_end() -> None:
    host = replica_host(vbuckets=1)
    stream = standing(host)
    stream.receive(marker(1, 5, DISK))
    stream.receive(prepare(2))
    assert acknowledged(stream) == 0
    stream.receive(mutation(5))
    assert acknowledged(stream) == 5, "the end is acknowledged, whatever it is"
    assert acknowledged(standing(host)) == 5, "again on the next stream"


def test_a_completion_needs_its_prepare_except_from_disk() -> None:
    commit = m.Commit(prepared_seqno=1, commit_seqno=2, key=b"\0p")
    abort = m.Abort(prepared_seqno=1, abort_seqno=2, key=b"\0p")
    stream = standing()
    stream.receive(marker(1, 2))
    assert status_of(stream, commit) == Status.KEY_ENOENT
    assert status_of(stream, abort) == Status.KEY_ENOENT
    disk = standing()
    disk.receive(marker(1, 2, DISK))
    assert status_of(disk, commit) == Status.KEY_ENOENT
    disk.receive(abort)
    assert disk.vbucket.high_seqno == 2


def test_what_a_disk_snapshot_leaves_out_of_sync_writes() -> None:
    stream = standing()
    stream.receive(marker(1, 3))
    for seqno, key in enumerate((b"\0a", b"\0b", b"\0c"), 1):
        stream.receive(prepare(seqno, key=key))
    stream.receive(marker(4, 9, DISK, high_completed_seqno=3))
    stream.receive(mutation(5, b"\0a"))  # committed, or what came after that
    stream.receive(prepare(7, key=b"\0b"))  # the first one was aborted
    assert [one.seqno for one in stream.vbucket.all_pending()] == [3, 7]
    stream.receive(m.SeqnoAdvanced(by_seqno=9))
    assert [one.seqno for one in stream.vbucket.all_pending()] == [7], "up to 3 all are done"


def test_a_deletion_without_a_time_gets_ours() -> None:
    stream = standing()
    stream.receive(marker(1, 2))
    stream.receive(m.Deletion(by_seqno=1, rev_seqno=1, cas=1, key=b"\0a"))
    stream.receive(m.Deletion(by_seqno=2, rev_seqno=1, cas=1, key=b"\0b", delete_time=5))
    first, second = stream.vbucket.meta(b"\0a"), stream.vbucket.meta(b"\0b")
    assert first is not None
    assert second is not None
    assert first.expiry > 1_700_000_000
    assert second.expiry == 5


def test_a_run_is_taken_only_inside_a_snapshot() -> None:
    from headrace.wire.codec import encode

    stream = standing()
    run = b"".join(
        encode(m.Mutation(by_seqno=n, rev_seqno=1, key=b"\0%d" % n, opaque=9), Dialect.DCP_7)
        for n in (1, 2, 3)
    )
    view = memoryview(run)
    assert stream.receive_run(view) == (0, 0)
    stream.receive(marker(1, 2, MEMORY | MarkerFlag.ACK))
    used, count = stream.receive_run(view)
    assert (used, count) == (len(run) * 2 // 3, 2), "3 lies outside"
    assert stream.applied() == [m.SnapshotMarkerReply(opaque=9)]
    assert stream.state is State.OPEN
    assert stream.vbucket.snapshot == SnapshotRange.at(Seqno(2))
