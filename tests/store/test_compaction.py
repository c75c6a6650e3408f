"""Compaction: what may be forgotten, and that nothing else is."""

from __future__ import annotations

import pytest

from headrace.history import Seqno, SnapshotRange
from headrace.store import AT_REST
from headrace.wire.messages import Deletion
from headrace.wire.opcodes import VBucketState
from tests.store.kit import keys, make_bucket, read_disk, reopened, seqnos


def test_dead_versions_go_and_blocks_are_joined() -> None:
    bucket = make_bucket(rewind_seqnos=0)
    vbucket = bucket.vbucket(0)
    for round_number in range(10):
        for number in range(10):
            vbucket.store(b"\0%d" % number, b"%d" % round_number * 50)
        bucket.seal()
    assert len(bucket.core.blocks[0].blocks) == 10
    (report,) = bucket.compact(0)
    assert (report.frames_before, report.frames_after) == (100, 10)
    assert report.bytes_after < report.bytes_before
    assert len(bucket.core.blocks[0].blocks) == 1
    assert seqnos(read_disk(vbucket.backfill(after=0, transform=AT_REST))) == list(range(91, 101))
    (again,) = bucket.compact(0)
    assert again.frames_after == again.frames_before == 10


def test_the_rewind_window_keeps_versions() -> None:
    bucket = make_bucket(rewind_seqnos=3)
    vbucket = bucket.vbucket(0)
    for number in range(10):
        vbucket.store(b"\0a", b"%d" % number)
    bucket.compact()
    assert vbucket.rewind_seqno == 7
    with pytest.raises(ValueError, match=r"allowed 0 and 7\.\.10"):
        vbucket.failover(6)
    vbucket.failover(7)
    item = vbucket.get(b"\0a")
    assert item is not None
    assert item.value == b"6"


def test_old_tombstones_are_purged_and_young_ones_stay() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0old", b"1")
    vbucket.delete(b"\0old", delete_time=1000)
    vbucket.delete(b"\0young", delete_time=2000)
    vbucket.store(b"\0a", b"")
    (report,) = bucket.compact(0, purge_before=2000)
    assert (report.tombstones_purged, vbucket.purge_seqno, vbucket.tombstone_count) == (1, 2, 1)
    assert vbucket.meta(b"\0old") is None
    assert vbucket.meta(b"\0young") is not None
    bucket = reopened(bucket)
    vbucket = bucket.vbucket(0)
    assert vbucket.meta(b"\0old") is None, "a purged key does not rise from its older version"
    assert (vbucket.purge_seqno, vbucket.tombstone_count, vbucket.item_count) == (2, 1, 1)


def test_the_tombstone_at_the_high_seqno_is_kept() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"")
    vbucket.delete(b"\0a")
    bucket.compact(drop_deletes=True)
    assert (vbucket.purge_seqno, vbucket.tombstone_count) == (0, 1)
    vbucket.store(b"\0b", b"")
    bucket.compact(drop_deletes=True)
    assert (vbucket.purge_seqno, vbucket.tombstone_count) == (2, 0)


def test_purging_stops_at_a_given_seqno() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    for number in range(4):
        vbucket.delete(b"\0%d" % number)
    bucket.compact(purge_before_seqno=2, drop_deletes=True)
    assert (vbucket.purge_seqno, vbucket.tombstone_count) == (2, 2)


def test_a_key_that_comes_back_after_its_purge_continues_above_the_deleted_rev() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    for _ in range(4):
        vbucket.store(b"\0a", b"")
    assert vbucket.delete(b"\0a").rev == 5
    vbucket.store(b"\0b", b"")
    bucket.compact(drop_deletes=True)
    assert reopened(bucket).vbucket(0).store(b"\0a", b"").rev == 6


def test_a_prepare_in_flight_holds_purging_back() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.delete(b"\0a")
    vbucket.prepare(b"\0b", b"", level=1)
    vbucket.delete(b"\0c")
    vbucket.store(b"\0d", b"")
    bucket.compact(drop_deletes=True)
    assert vbucket.purge_seqno == 1


def test_aborts_are_purged_like_tombstones() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.prepare(b"\0a", b"", level=1)
    vbucket.abort_prepare(b"\0a")
    vbucket.store(b"\0b", b"")
    bucket.compact(drop_deletes=True)
    assert vbucket.purge_seqno == 2
    assert keys(read_disk(vbucket.backfill(after=0, transform=AT_REST))) == [b"\0b"]
    bucket = reopened(bucket)
    assert bucket.vbucket(0).all_pending() == []
    bucket.vbucket(0).prepare(b"\0a", b"", level=1)


def test_a_replica_keeps_the_tombstones_of_its_open_checkpoint() -> None:
    bucket = make_bucket(state=VBucketState.REPLICA)
    vbucket = bucket.vbucket(0)
    for start in (1, 11):
        snapshot = SnapshotRange(Seqno(start), Seqno(start + 9))
        vbucket.receive_snapshot(snapshot, new_checkpoint=True, from_disk=False)
        vbucket.delete(b"\0%d" % start, seqno=start, cas=1, rev=1)
        vbucket.store(b"\0x", b"", seqno=start + 9, cas=1, rev=1)
    bucket.compact(drop_deletes=True)
    assert (vbucket.purge_seqno, vbucket.tombstone_count) == (1, 1)


def test_retained_history_keeps_every_version() -> None:
    bucket = make_bucket(rewind_seqnos=0, history_bytes=1 << 20)
    vbucket = bucket.vbucket(0)
    for number in range(6):
        vbucket.store(b"\0a", b"%d" % number)
    vbucket.delete(b"\0a")
    vbucket.store(b"\0b", b"")
    bucket.compact(drop_deletes=True)
    assert vbucket.history_start_seqno == 1
    view = vbucket.backfill(after=0, transform=AT_REST, all_versions=True)
    assert seqnos(read_disk(view)) == list(range(1, 9))
    latest = read_disk(vbucket.backfill(after=0, transform=AT_REST))
    assert seqnos(latest) == [7, 8]
    assert isinstance(latest[0], Deletion)


def test_history_ends_at_its_share_of_bytes() -> None:
    bucket = make_bucket(rewind_seqnos=0, history_bytes=4 * 10_000)
    vbucket = bucket.vbucket(0)
    for _ in range(100):
        vbucket.store(b"\0a", b"x" * 940)
    bucket.compact()
    kept = seqnos(read_disk(vbucket.backfill(after=0, transform=AT_REST, all_versions=True)))
    assert kept == list(range(vbucket.history_start_seqno, 101))
    assert 4 <= len(kept) <= 10


def test_history_ends_with_time() -> None:
    bucket = make_bucket(rewind_seqnos=0, history_seconds=100)
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"old")
    bucket.seal()
    bucket.core.clock.now += 200 * 1_000_000_000  # type: ignore[attr-defined]
    vbucket.store(b"\0a", b"new")
    vbucket.store(b"\0a", b"newer")
    bucket.compact()
    assert vbucket.history_start_seqno == 2
    view = vbucket.backfill(after=0, transform=AT_REST, all_versions=True)
    assert seqnos(read_disk(view)) == [2, 3]


def test_maintenance_compacts_only_where_it_pays() -> None:
    bucket = make_bucket(
        rewind_seqnos=0,
        block_bytes=256 * 1024,
        segment_bytes=4 << 20,
        memory_quota=64 << 20,
        journal_bytes_max=64 << 20,
    )
    vbucket = bucket.vbucket(0)
    for _ in range(3):
        for number in range(100):
            vbucket.store(b"\0%d" % number, b"x" * 10_000)
        # Kept by a view, so that sealing does not drop them at once.
        bucket.commit()
        view = vbucket.backfill(after=0, transform=AT_REST)
        bucket.seal()
        view.close()
    before = vbucket.disk_bytes
    while bucket.maintain():
        pass
    assert vbucket.disk_bytes < before / 2
    assert not bucket.maintain()
