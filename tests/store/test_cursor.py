"""Cursors: what a reader of memory is sent, and when it is sent back to the disk."""

from __future__ import annotations

import pytest

from headrace.errors import StoreFull
from headrace.history import Seqno, SnapshotRange
from headrace.store import AT_REST, Transform
from headrace.wire.messages import Commit, Mutation, Prepare
from headrace.wire.opcodes import VBucketState
from tests.store.frames import check_chunk
from tests.store.kit import keys, make_bucket, read_memory, seqnos


def test_a_cursor_reads_the_newest_version_of_each_key() -> None:
    vbucket = make_bucket().vbucket(0)
    for value in (b"1", b"2", b"3"):
        vbucket.store(b"\0a", value)
        vbucket.store(b"\0" + value, value)
    messages = read_memory(vbucket.open_cursor("c", after=0))
    assert keys(messages) == [b"\x001", b"\x002", b"\0a", b"\x003"]
    assert seqnos(messages) == [2, 4, 5, 6]


def test_a_snapshot_ends_where_it_was_when_it_began() -> None:
    """What is superseded after the marker was sent must still be sent."""
    vbucket = make_bucket().vbucket(0)
    vbucket.store(b"\0a", b"old")
    vbucket.store(b"\0b", b"1")
    cursor = vbucket.open_cursor("c", after=0)
    snapshot = cursor.snapshot(AT_REST)
    assert snapshot is not None
    assert (snapshot.first, snapshot.end, snapshot.new_checkpoint) == (1, 2, True)
    vbucket.store(b"\0a", b"new")
    chunk = cursor.take(1 << 20, AT_REST)
    assert chunk is not None
    assert seqnos(check_chunk(chunk)) == [1, 2]
    assert cursor.at_end
    assert seqnos(read_memory(cursor)) == [3]


def test_a_chunk_stops_after_the_frame_that_reaches_the_limit() -> None:
    vbucket = make_bucket().vbucket(0)
    for number in range(5):
        vbucket.store(b"\0%d" % number, b"x" * 100)
    cursor = vbucket.open_cursor("c", after=0)
    cursor.snapshot(AT_REST)
    frame = 24 + 31 + 2 + 100
    sizes = [
        len(chunk.data)
        for limit in (1, frame, frame + 1, 9999)
        if (chunk := cursor.take(limit, AT_REST))
    ]
    assert sizes == [frame, frame, 2 * frame, frame]


def test_a_frame_larger_than_any_buffer_is_taken_whole() -> None:
    vbucket = make_bucket().vbucket(0)
    value = bytes(range(256)) * 1024
    vbucket.store(b"\0a", b"small")
    vbucket.store(b"\0b", value)
    (_, message) = read_memory(vbucket.open_cursor("c", after=0))
    assert isinstance(message, Mutation)
    assert message.value == value


def test_each_checkpoint_is_a_snapshot_of_its_own() -> None:
    vbucket = make_bucket(checkpoint_items_max=2).vbucket(0)
    for number in range(5):
        vbucket.store(b"\0%d" % number, b"")
    cursor = vbucket.open_cursor("c", after=0)
    seen = []
    while (snapshot := cursor.snapshot(AT_REST)) is not None:
        cursor.take(1 << 20, AT_REST)
        seen.append((snapshot.checkpoint_start, snapshot.end, snapshot.new_checkpoint))
    assert seen == [(1, 2, True), (3, 4, True), (5, 5, True)]
    vbucket.store(b"\0next", b"")
    snapshot = cursor.snapshot(AT_REST)
    assert snapshot is not None
    assert (snapshot.checkpoint_start, snapshot.first, snapshot.new_checkpoint) == (5, 6, False)


def test_an_old_checkpoint_closes_with_the_next_change() -> None:
    bucket = make_bucket(checkpoint_seconds_max=60)
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"")
    bucket.core.clock.now += 61 * 1_000_000_000  # type: ignore[attr-defined]
    vbucket.store(b"\0a", b"")
    assert [(c.start, c.end, c.open) for c in vbucket.checkpoints] == [(1, 1, False), (2, 2, True)]


def test_a_cursor_may_start_in_the_middle() -> None:
    vbucket = make_bucket().vbucket(0)
    for number in range(4):
        vbucket.store(b"\0%d" % number, b"")
    cursor = vbucket.open_cursor("c", after=2)
    assert (cursor.gap_end, cursor.remaining) == (0, 2)
    assert seqnos(read_memory(cursor)) == [3, 4]
    assert cursor.remaining == 0
    end = vbucket.open_cursor("c", after=4)
    assert end.snapshot(AT_REST) is None
    vbucket.store(b"\0x", b"")
    assert seqnos(read_memory(end)) == [5]


def test_a_cursor_below_what_memory_holds_knows_its_gap() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    cursor = vbucket.open_cursor("pinned elsewhere", after=0)
    cursor.close()
    value = b"x" * 8000
    for number in range(120):
        vbucket.store(b"\0%d" % number, value)
        bucket.commit()
    bucket.seal()
    late = vbucket.open_cursor("late", after=0)
    assert 0 < late.gap_end == vbucket.memory_seqno < vbucket.high_seqno
    with pytest.raises(ValueError, match="must first backfill"):
        late.snapshot(AT_REST)
    late.seek(late.gap_end)
    assert seqnos(read_memory(late)) == list(range(vbucket.memory_seqno + 1, 121))


def test_a_slow_cursor_is_dropped_when_memory_runs_out_and_is_told() -> None:
    bucket = make_bucket()
    told: list[int] = []
    vbucket = bucket.vbucket(1)
    cursor = vbucket.open_cursor("slow", after=0)
    vbucket.store(b"\0first", b"")
    bucket.on_change(told.append)
    value = b"x" * 8000
    for number in range(300):
        bucket.vbucket(2).store(b"\0%d" % number, value)
        if number % 10 == 9:
            bucket.commit()
    assert cursor.dropped
    assert cursor.snapshot(AT_REST) is None
    assert cursor.take(100, AT_REST) is None
    assert 1 in told
    assert bucket.memory_used <= bucket.settings.memory_quota
    assert vbucket.open_cursor("again", after=0).gap_end == 1


def test_a_cursor_that_may_not_be_dropped_holds_memory_until_the_quota() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(1)
    cursor = vbucket.open_cursor("replication", after=0, droppable=False)
    vbucket.store(b"\0first", b"")

    def write_much() -> None:
        for number in range(1000):
            bucket.vbucket(2).store(b"\0%d" % number, b"x" * 8000)
            bucket.commit()

    with pytest.raises(StoreFull, match="memory quota"):
        write_much()
    assert not cursor.dropped
    assert seqnos(read_memory(cursor)) == [1]
    bucket.vbucket(2).store(b"\0room again", b"x" * 8000)


def test_a_snapshot_must_be_read_before_the_next_begins() -> None:
    vbucket = make_bucket().vbucket(0)
    vbucket.store(b"\0a", b"")
    vbucket.store(b"\0b", b"")
    cursor = vbucket.open_cursor("c", after=0)
    cursor.snapshot(AT_REST)
    cursor.take(1, AT_REST)
    with pytest.raises(ValueError, match="read to 1 only"):
        cursor.snapshot(AT_REST)
    with pytest.raises(ValueError, match="cannot move back"):
        cursor.seek(0)


def test_the_visible_end_is_what_the_reader_really_gets() -> None:
    vbucket = make_bucket().vbucket(0)
    vbucket.store(b"\0a", b"")
    vbucket.store(b"\x09b", b"")
    vbucket.prepare(b"\0c", b"", level=1)
    for transform, expected in (
        (AT_REST, 3),
        (Transform(sync_writes=False), 2),
        (Transform(sync_writes=False, collections=False), 1),
        (Transform(only_collections=frozenset((5,))), 0),
    ):
        snapshot = vbucket.open_cursor("c", after=0).snapshot(transform)
        assert snapshot is not None
        assert (snapshot.end, snapshot.visible_end) == (3, expected)


@pytest.mark.parametrize(
    "transform",
    [
        AT_REST,
        Transform(sync_writes=False),
        Transform(sync_writes=False, collections=False),
        Transform(only_collections=frozenset((9,))),
    ],
)
def test_the_visible_end_of_every_checkpoint_is_its_last_item_sent(transform: Transform) -> None:
    vbucket = make_bucket(checkpoint_items_max=3).vbucket(0)
    for key in (b"\0a", b"\0b", b"\x09c", b"\x09d", b"\0a", b"\0b", b"\x09c", b"\0e"):
        vbucket.store(key, b"")
    vbucket.prepare(b"\0f", b"", level=1)
    cursor = vbucket.open_cursor("c", after=0)
    ends = []
    while (snapshot := cursor.snapshot(transform)) is not None:
        chunk = cursor.take(1 << 20, transform)
        assert chunk is not None
        assert snapshot.visible_end == chunk.last_seqno
        ends.append((snapshot.end, snapshot.max_visible_seqno))
    assert ends == [(3, 3), (6, 6), (9, 8)]


def test_filtered_items_are_passed_without_being_sent() -> None:
    vbucket = make_bucket().vbucket(0)
    vbucket.store(b"\x09b", b"")
    cursor = vbucket.open_cursor("c", after=0)
    transform = Transform(only_collections=frozenset((5,)))
    cursor.snapshot(transform)
    chunk = cursor.take(100, transform)
    assert chunk is not None
    assert (chunk.count, chunk.read_seqno, chunk.last_seqno, cursor.at_end) == (0, 1, 0, True)


def test_sync_writes_are_never_left_out_of_memory() -> None:
    vbucket = make_bucket().vbucket(0)
    vbucket.prepare(b"\0a", b"1", level=1)
    vbucket.commit_prepare(b"\0a")
    vbucket.store(b"\0a", b"2")
    transform = Transform(commits=True)
    cursor = vbucket.open_cursor("c", after=0)
    kinds = [type(message) for message in read_memory(cursor, transform)]
    assert kinds == [Prepare, Commit, Mutation]
    assert [(c.start, c.end) for c in vbucket.checkpoints] == [(1, 2), (3, 3)]


def test_a_replica_is_consistent_only_at_the_end_of_what_it_received() -> None:
    vbucket = make_bucket(state=VBucketState.REPLICA).vbucket(0)
    vbucket.receive_snapshot(
        SnapshotRange(Seqno(1), Seqno(5)), new_checkpoint=True, from_disk=False
    )
    vbucket.store(b"\0a", b"", seqno=2)
    cursor = vbucket.open_cursor("c", after=0)
    snapshot = cursor.snapshot(AT_REST)
    assert snapshot is not None
    assert (snapshot.first, snapshot.end) == (2, 5)
    assert cursor.take(100, AT_REST) is not None
    assert cursor.take(100, AT_REST) is None
    assert not cursor.at_end
    vbucket.store(b"\0b", b"", seqno=5)
    assert cursor.take(100, AT_REST) is not None
    assert cursor.at_end


def test_a_replica_ends_a_received_snapshot_before_the_next_in_one_checkpoint() -> None:
    vbucket = make_bucket(state=VBucketState.REPLICA).vbucket(0)
    vbucket.receive_snapshot(
        SnapshotRange(Seqno(1), Seqno(3)), new_checkpoint=True, from_disk=False
    )
    vbucket.store(b"\0a", b"", seqno=3)
    vbucket.receive_snapshot(
        SnapshotRange(Seqno(4), Seqno(9)), new_checkpoint=False, from_disk=False
    )
    vbucket.store(b"\0a", b"", seqno=4)
    cursor = vbucket.open_cursor("c", after=0)
    first = cursor.snapshot(AT_REST)
    assert first is not None
    assert first.end == 3
    assert cursor.take(1000, AT_REST) is not None
    second = cursor.snapshot(AT_REST)
    assert second is not None
    assert (second.end, second.new_checkpoint) == (9, False)


def test_a_seqno_without_an_item_can_end_a_received_snapshot() -> None:
    vbucket = make_bucket(state=VBucketState.REPLICA).vbucket(0)
    vbucket.receive_snapshot(SnapshotRange(Seqno(1), Seqno(3)), new_checkpoint=True, from_disk=True)
    vbucket.store(b"\0a", b"", seqno=1)
    cursor = vbucket.open_cursor("c", after=0)
    snapshot = cursor.snapshot(AT_REST)
    assert snapshot is not None
    assert snapshot.from_disk
    cursor.take(100, AT_REST)
    vbucket.advance(3)
    chunk = cursor.take(100, AT_REST)
    assert chunk is not None
    assert (chunk.count, chunk.read_seqno) == (0, 3)
    assert cursor.at_end


def test_closing_is_idempotent_and_frees_the_place() -> None:
    bucket = make_bucket()
    cursor = bucket.vbucket(0).open_cursor("c", after=0)
    assert bucket.statistics()["cursors"] == 1
    cursor.close()
    cursor.close()
    assert bucket.statistics()["cursors"] == 0
    assert cursor.snapshot(AT_REST) is None
    assert not cursor.dropped
    many = [bucket.vbucket(0).open_cursor("c", after=0) for _ in range(100)]
    assert bucket.statistics()["cursors"] == len(many)
