"""A replica fed by an active vbucket: snapshots, half ones, promotions."""

from __future__ import annotations

import random

import pytest

from headrace.history import FailoverLog, Seqno, SnapshotRange
from headrace.store import AT_REST, Bucket, Transform, VBucket
from headrace.store.plain import split_frame
from headrace.store.replica import UNSETTLED_MAX, Received, Unsettled, event_subject, over_frame
from headrace.wire.opcodes import VBucketState
from tests.store.kit import make_bucket, read_disk, reopened

REPLICATION = Transform(opaque=77, commits=True)


def snapshot(start: int, end: int) -> SnapshotRange:
    """A range of seqnos."""
    return SnapshotRange(Seqno(start), Seqno(end))


def state_of(vbucket: VBucket) -> list[tuple[object, ...]]:
    """Everything a reader of the disk sees."""
    return [
        (type(message).__name__, message.by_seqno, message.cas, message.rev_seqno, message.key)  # type: ignore[attr-defined]
        for message in read_disk(vbucket.backfill(after=0, transform=Transform(sync_writes=False)))
    ]


@pytest.mark.parametrize("seed", range(10))
def test_a_replica_becomes_equal_to_its_source(seed: int) -> None:
    generator = random.Random(seed)
    source_bucket = make_bucket()
    source = source_bucket.vbucket(0)
    replica_bucket = make_bucket(state=VBucketState.REPLICA)
    replica = replica_bucket.vbucket(0)
    for _ in range(30):
        for _ in range(generator.randrange(1, 12)):
            key = b"\0%d" % generator.randrange(6)
            if source.pending(key) is not None:
                done = generator.choice((source.commit_prepare, source.abort_prepare))
                done(key)
            elif generator.random() < 0.2:
                source.prepare(key, b"p", level=1, deleted=generator.random() < 0.3)
            elif generator.random() < 0.3:
                source.delete(key)
            else:
                source.store(key, generator.randbytes(10), expiry=generator.randrange(9))
        source_bucket.commit()
        cursor = source.open_cursor("replication", after=replica.high_seqno)
        while (marker := cursor.snapshot(REPLICATION)) is not None:
            replica.receive_snapshot(
                snapshot(marker.first, marker.end),
                new_checkpoint=marker.new_checkpoint,
                from_disk=False,
            )
            while (chunk := cursor.take(generator.choice((1, 10_000)), REPLICATION)) is not None:
                replica.apply_frames(chunk.data)
                if generator.random() < 0.1:
                    replica_bucket.commit()
                if generator.random() < 0.05:
                    replica_bucket = reopened(replica_bucket)
                    replica = replica_bucket.vbucket(0)
        cursor.close()
        assert replica.high_seqno == source.high_seqno
        assert replica.complete_seqno == source.high_seqno
    replica_bucket.commit()
    assert state_of(replica) == state_of(source)
    assert replica.all_pending() == source.all_pending()
    assert replica.max_cas == source.max_cas
    assert replica.high_completed_seqno == source.high_completed_seqno


def test_frames_are_checked_before_any_is_applied() -> None:
    source = make_bucket().vbucket(0)
    source.store(b"\0a", b"")
    source.store(b"\0b", b"")
    cursor = source.open_cursor("c", after=0)
    cursor.snapshot(AT_REST)
    chunk = cursor.take(1000, AT_REST)
    assert chunk is not None
    frames = bytes(chunk.data)
    replica = make_bucket(state=VBucketState.REPLICA).vbucket(0)
    replica.receive_snapshot(snapshot(1, 1), new_checkpoint=True, from_disk=False)
    with pytest.raises(ValueError, match=r"seqno 2 after 1 in snapshot 1\.\.1"):
        replica.apply_frames(frames)
    assert replica.high_seqno == 0
    for junk, reason in (
        (frames[:-1], "not a whole request frame"),
        (b"\x81" + frames[1:], "not a whole request frame"),
        (frames[:1] + b"\x01" + frames[2:], "not a data frame"),
        (frames[:7] + b"\x01" + frames[8:], "frame of vbucket 1"),
    ):
        with pytest.raises(ValueError, match=reason):
            replica.apply_frames(junk)
    replica.receive_snapshot(snapshot(1, 2), new_checkpoint=False, from_disk=False)
    assert replica.apply_frames(frames) == 2


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("sealed", [True, False])
def test_a_half_received_snapshot_is_known_after_a_restart(clean: bool, sealed: bool) -> None:
    bucket = make_bucket(state=VBucketState.REPLICA)
    replica = bucket.vbucket(0)
    log = FailoverLog.of((5, 3), (4, 0))
    replica.replace_failover_log(log)
    replica.receive_snapshot(snapshot(1, 3), new_checkpoint=True, from_disk=False)
    replica.store(b"\0a", b"", seqno=3, cas=1, rev=1)
    replica.receive_snapshot(snapshot(4, 9), new_checkpoint=True, from_disk=False)
    replica.store(b"\0b", b"", seqno=6, cas=1, rev=1)
    assert (replica.snapshot, replica.complete_seqno) == (snapshot(4, 9), 3)
    assert replica.persisted_snapshot == snapshot(0, 0)
    bucket.commit()
    bucket.vbucket(1).receive_snapshot(snapshot(1, 5), new_checkpoint=True, from_disk=True)
    if sealed:
        bucket.seal()
    else:
        bucket.commit()
    bucket = reopened(bucket, clean=clean)
    replica = bucket.vbucket(0)
    assert replica.failover_log == log
    assert (replica.snapshot, replica.persisted_snapshot) == (snapshot(4, 9), snapshot(4, 9))
    assert (replica.high_seqno, replica.complete_seqno) == (6, 3)
    assert bucket.vbucket(1).snapshot == snapshot(1, 5)
    assert bucket.vbucket(1).initial_disk_snapshot
    replica.set_state(VBucketState.ACTIVE)
    assert replica.failover_log.newest.seqno == 3, "the branch begins at the last whole snapshot"
    assert (replica.snapshot, replica.high_seqno) == (snapshot(6, 6), 6)
    assert replica.store(b"\0c", b"").seqno == 7


def test_a_takeover_continues_the_branch() -> None:
    bucket = make_bucket(state=VBucketState.PENDING)
    vbucket = bucket.vbucket(0)
    log = vbucket.failover_log
    vbucket.set_state(VBucketState.ACTIVE, takeover=True)
    assert vbucket.failover_log == log
    vbucket.set_state(VBucketState.DEAD)
    vbucket.set_state(VBucketState.ACTIVE)
    assert len(vbucket.failover_log) == 2
    assert reopened(bucket).vbucket(0).state is VBucketState.ACTIVE


def test_the_first_disk_snapshot_into_an_empty_replica() -> None:
    vbucket = make_bucket(state=VBucketState.REPLICA).vbucket(0)
    seen = [vbucket.initial_disk_snapshot]
    vbucket.receive_snapshot(snapshot(0, 5), new_checkpoint=True, from_disk=True)
    vbucket.store(b"\0a", b"", seqno=2, cas=1, rev=1)
    seen.append(vbucket.initial_disk_snapshot)
    vbucket.advance(5)
    seen.append(vbucket.initial_disk_snapshot)
    vbucket.receive_snapshot(snapshot(6, 9), new_checkpoint=True, from_disk=True)
    seen.append(vbucket.initial_disk_snapshot)
    assert seen == [False, True, False, False]


@pytest.mark.parametrize("sealed", [True, False])
def test_a_seqno_without_an_item_survives(sealed: bool) -> None:
    bucket = make_bucket(state=VBucketState.REPLICA)
    vbucket = bucket.vbucket(0)
    vbucket.receive_snapshot(snapshot(1, 8), new_checkpoint=True, from_disk=True)
    vbucket.store(b"\0a", b"", seqno=2, cas=1, rev=1)
    vbucket.advance(8)
    with pytest.raises(ValueError, match="does not rise above 8"):
        vbucket.advance(8)
    if sealed:
        bucket.seal()
    bucket.commit()
    vbucket = reopened(bucket, clean=False).vbucket(0)
    assert (vbucket.high_seqno, vbucket.complete_seqno) == (8, 8)


def test_what_was_received_is_kept_in_both_forms() -> None:
    received = Received(3, 9, True, 2, 4, 5)
    assert Received.from_json(received.to_json()) == received
    assert Received.from_parts(split_frame(received.to_frame(7))) == received
    assert split_frame(received.to_frame(7)).vbucket == 7


def test_the_subject_of_an_event_is_in_its_value() -> None:
    value = bytes(8) + (8).to_bytes(4, "big") + (9).to_bytes(4, "big")
    assert event_subject(0, 0, value) == 9
    assert event_subject(3, 0, value[:12]) == 8
    with pytest.raises(ValueError, match="version 2"):
        event_subject(0, 2, value)


def test_where_no_boundary_lies() -> None:
    unsettled = Unsettled()
    unsettled.add(0, 4)
    unsettled.add(4, 5)  # one seqno: nothing between
    unsettled.add(5, 9)
    assert unsettled.ranges == [(0, 4), (5, 9)]
    found = [unsettled.boundary(seqno) for seqno in range(12)]
    assert found == [0, 0, 0, 0, 4, 5, 5, 5, 5, 9, 10, 11]
    unsettled.add(5, 12)  # the same snapshot, continued
    assert unsettled.ranges == [(0, 4), (5, 12)]
    unsettled.add_again(0, 4)  # a journal tells what a record knew already
    unsettled.over(3)
    assert unsettled.ranges == [(0, 4), (5, 12)]
    unsettled.over(8)
    assert unsettled.ranges == [(0, 4), (5, 8)]
    unsettled.cut(5)
    assert unsettled.ranges == [(0, 4)]


def test_boundaries_are_given_up_but_never_invented() -> None:
    generator = random.Random(4)
    unsettled, end, true = Unsettled(), 0, {0}
    for _ in range(10 * UNSETTLED_MAX):
        before, end = end, end + generator.choice((1, 2, 5, 100))
        unsettled.add(before, end)
        true.add(end)
        assert len(unsettled.ranges) <= UNSETTLED_MAX
    for seqno in range(end + 1):
        assert unsettled.boundary(seqno) in true
    near = [seqno for seqno in sorted(true) if seqno > end - 100]
    assert [unsettled.boundary(seqno) for seqno in near] == near, "dense where rollbacks go"


def half_received_bucket() -> Bucket:
    """A bucket whose vbucket 0 has 1..3 whole and 4..9 received to 6."""
    bucket = make_bucket(state=VBucketState.REPLICA)
    replica = bucket.vbucket(0)
    replica.receive_snapshot(snapshot(1, 3), new_checkpoint=True, from_disk=False)
    replica.store(b"\0a", b"1", seqno=3, cas=1, rev=1)
    replica.receive_snapshot(snapshot(4, 9), new_checkpoint=True, from_disk=False)
    replica.store(b"\0b", b"1", seqno=6, cas=1, rev=1)
    return bucket


def half_received() -> VBucket:
    """That vbucket."""
    return half_received_bucket().vbucket(0)


def test_a_marker_inside_a_snapshot_continues_it() -> None:
    replica = half_received()
    checkpoint = replica.checkpoint_id
    cursor = replica.open_cursor("reader", after=3)
    promised = cursor.snapshot(AT_REST)
    assert promised is not None
    assert promised.end == 9
    replica.receive_snapshot(snapshot(6, 12), new_checkpoint=True, from_disk=True)
    assert replica.checkpoint_id == checkpoint, "6 is no boundary"
    assert (replica.snapshot, replica.complete_seqno) == (snapshot(4, 12), 3)
    assert cursor.dropped, "its reader was promised an end at 9"
    assert replica.receives_disk, "part of it is from disk"
    replica.receive_snapshot(snapshot(7, 10), new_checkpoint=True, from_disk=False)
    assert replica.snapshot == snapshot(4, 12), "an earlier end is none"
    reader = replica.open_cursor("reader", after=3)
    assert reader.snapshot(AT_REST) is None, "a key may come again: readers wait"
    replica.core.commit_now()
    assert replica.backfill(after=3, transform=AT_REST).end == 3
    replica.store(b"\0b", b"2", seqno=12, cas=2, rev=2)
    whole = reader.snapshot(AT_REST)
    assert whole is not None
    assert (whole.end, whole.from_disk) == (12, True)
    chunk = reader.take(1000, AT_REST)
    assert chunk is not None
    assert (chunk.count, chunk.last_seqno) == (1, 12), "each key once"


def test_the_same_end_again_leaves_readers_alone() -> None:
    replica = half_received()
    cursor = replica.open_cursor("reader", after=3)
    cursor.snapshot(AT_REST)
    replica.receive_snapshot(snapshot(4, 9), new_checkpoint=False, from_disk=False)
    assert not cursor.dropped


@pytest.mark.parametrize(("to", "reached"), [(9, 3), (5, 3), (3, 3), (2, 0), (0, 0)])
def test_a_rollback_ends_at_a_boundary(to: int, reached: int) -> None:
    replica = half_received()
    assert replica.rollback(to) == reached
    assert replica.high_seqno == replica.complete_seqno == reached
    assert (replica.meta(b"\0a") is not None) == (reached == 3)
    assert replica.meta(b"\0b") is None
    assert replica.unsettled.ranges == ([(0, 3)] if reached else [])


def test_a_failover_to_a_seqno_that_was_never_whole_is_refused() -> None:
    replica = half_received()
    replica.set_state(VBucketState.ACTIVE)
    replica.store(b"\0c", b"")
    with pytest.raises(ValueError, match="cannot fail over to seqno 5"):
        replica.failover(5)
    assert replica.failover(6).newest.seqno == 6


@pytest.mark.parametrize("clean", [True, False])
def test_a_promotion_is_not_forgotten_with_the_journal(clean: bool) -> None:
    """The record says that nothing is received; the journal still holds the old marker."""
    bucket = half_received_bucket()
    replica = bucket.vbucket(0)
    replica.set_state(VBucketState.ACTIVE)
    replica.store(b"\0c", b"")
    bucket.commit()
    again = reopened(bucket, clean=clean).vbucket(0)
    assert (again.received, again.high_seqno, again.complete_seqno) == (None, 7, 7)
    assert again.unsettled.ranges == [(0, 3), (3, 6)]
    assert again.failover_log.entries[-2].seqno == 3
    if not clean:
        assert again.failover_log.newest.seqno == 7


def test_boundaries_survive_a_restart() -> None:
    for sealed in (False, True):
        bucket = half_received_bucket()
        if sealed:
            bucket.seal()
        bucket.commit()
        again = reopened(bucket, clean=False).vbucket(0)
        assert again.unsettled.ranges == [(0, 3), (3, 9)]
        assert again.rollback(5) == 3


def test_what_the_disk_shows_ends_at_the_last_whole_snapshot() -> None:
    replica = half_received()
    replica.core.commit_now()
    view = replica.backfill(after=0, transform=AT_REST)
    assert (view.end, view.snapshot_end) == (3, 3)
    later = replica.backfill(after=3, transform=AT_REST)
    assert (later.end, later.snapshot_end) == (6, 9), "the rest comes under the same marker"


def test_a_checkpoint_that_ends_without_an_item_keeps_its_end() -> None:
    replica = make_bucket(state=VBucketState.REPLICA).vbucket(0)
    replica.receive_snapshot(snapshot(1, 5), new_checkpoint=True, from_disk=True)
    replica.store(b"\0a", b"", seqno=3, cas=1, rev=1)
    replica.advance(5)
    replica.receive_snapshot(snapshot(6, 6), new_checkpoint=True, from_disk=False)
    replica.store(b"\0a", b"", seqno=6, cas=2, rev=2)
    cursor = replica.open_cursor("reader", after=0)
    ends = []
    while (found := cursor.snapshot(AT_REST)) is not None:
        ends.append(found.end)
        while not cursor.at_end:
            cursor.take(1000, AT_REST)
    assert ends == [5, 6]


def test_a_purge_seqno_that_was_told_is_kept() -> None:
    bucket = make_bucket(state=VBucketState.REPLICA)
    replica = bucket.vbucket(0)
    replica.receive_snapshot(snapshot(1, 9), new_checkpoint=True, from_disk=True, purge_seqno=4)
    replica.receive_snapshot(snapshot(1, 9), new_checkpoint=True, from_disk=True, purge_seqno=2)
    assert replica.purge_seqno == 4
    bucket.commit()
    assert reopened(bucket, clean=False).vbucket(0).purge_seqno == 4


def test_the_end_of_receiving_is_a_frame() -> None:
    assert Received.from_parts(split_frame(over_frame(3, 8))) is None


def test_completed_prepares_stay_completed() -> None:
    """A disk snapshot said that they are done, not how: no frame tells it."""
    bucket = make_bucket(state=VBucketState.REPLICA)
    replica = bucket.vbucket(0)
    replica.receive_snapshot(snapshot(1, 2), new_checkpoint=True, from_disk=False)
    for seqno in (1, 2):
        replica.prepare(b"\0%d" % seqno, b"", level=1, seqno=seqno, cas=1, rev=1)
    replica.receive_snapshot(
        snapshot(3, 4), new_checkpoint=True, from_disk=True, high_completed_seqno=1
    )
    replica.advance(4)
    replica.snapshot_reached()
    assert [one.seqno for one in replica.all_pending()] == [2]
    assert replica.high_completed_seqno == 1
    bucket.commit()
    again = reopened(bucket, clean=False).vbucket(0)
    assert [one.seqno for one in again.all_pending()] == [2]
