"""Losing the end of a vbucket on purpose."""

from __future__ import annotations

from threading import Thread

import pytest

from headrace.errors import StoreError, StoreFull
from headrace.store import AT_REST
from headrace.wire.opcodes import VBucketState
from tests.store.crash_disk import CrashDisk
from tests.store.kit import keys, make_bucket, read_disk, read_memory, reopened, seqnos


@pytest.mark.parametrize("sealed_at", [0, 3, 6])
@pytest.mark.parametrize("clean", [True, False])
def test_a_failover_leaves_the_state_at_its_seqno(sealed_at: int, clean: bool) -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    for number in range(1, 7):
        vbucket.store(b"\0a", b"%d" % number)
        if number == sealed_at:
            bucket.seal()
    old = vbucket.failover_log
    log = vbucket.failover(4)
    assert (log.newest.seqno, log.entries[1:]) == (4, old.entries)
    for owner in (bucket, reopened(bucket, clean=clean)):
        vbucket = owner.vbucket(0)
        assert (vbucket.high_seqno, vbucket.persisted_seqno) == (4, 4)
        item = vbucket.get(b"\0a")
        assert item is not None
        assert (item.value, item.seqno, item.rev) == (b"4", 4, 4)
        assert seqnos(read_disk(vbucket.backfill(after=0, transform=AT_REST))) == [4]
    assert vbucket.store(b"\0a", b"new").seqno == 5
    assert vbucket.failover_log.entries[-2:] == log.entries


def test_deleted_keys_live_again_and_new_ones_never_were() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"")
    vbucket.delete(b"\0a")
    vbucket.store(b"\0b", b"")
    vbucket.failover(1)
    assert (vbucket.item_count, vbucket.tombstone_count) == (1, 0)
    assert vbucket.get(b"\0b") is None
    assert keys(read_disk(vbucket.backfill(after=0, transform=AT_REST))) == [b"\0a"]


def test_sync_writes_and_collections_are_as_they_were() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\x09a", b"")
    vbucket.prepare(b"\0p", b"1", level=1)
    vbucket.system_event(1, version=0, subject=9, key=b"", value=b"")
    vbucket.commit_prepare(b"\0p")
    vbucket.failover(3)
    assert [pending.seqno for pending in vbucket.all_pending()] == [2]
    assert vbucket.get(b"\x09a") is None
    assert vbucket.collection_high_seqno((9,)) == 3
    vbucket.failover(2)
    assert vbucket.get(b"\x09a") is not None
    assert (vbucket.max_visible_seqno, vbucket.collection_high_seqno((9,))) == (1, 1)
    vbucket.failover(1)
    assert vbucket.all_pending() == []


def test_other_vbuckets_are_left_alone() -> None:
    bucket = make_bucket()
    for number in range(8):
        bucket.vbucket(number % 2).store(b"\0%d" % number, b"")
    bucket.vbucket(0).failover(1)
    assert bucket.vbucket(1).item_count == 4
    bucket = reopened(bucket, clean=False)
    assert [vbucket.high_seqno for vbucket in bucket.vbuckets] == [1, 4, 0, 0]


def test_waiting_callbacks_hear_what_happened_to_their_seqno() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    heard: list[tuple[int, bool]] = []
    bucket.stop_persistence()
    for number in (1, 2, 3):
        vbucket.store(b"\0%d" % number, b"")
    vbucket.on_persisted(9, lambda durable: heard.append((9, durable)))
    vbucket.failover(2)
    assert heard == [(9, False)]


def test_cursors_are_dropped_and_memory_starts_again() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"")
    vbucket.store(b"\0b", b"")
    cursor = vbucket.open_cursor("c", after=0)
    vbucket.failover(1)
    assert cursor.dropped
    fresh = vbucket.open_cursor("c", after=1)
    assert fresh.gap_end == 0
    vbucket.store(b"\0c", b"")
    assert seqnos(read_memory(fresh)) == [2]
    assert vbucket.open_cursor("c", after=0).gap_end == 1


def test_a_rollback_goes_to_zero_when_the_state_is_gone() -> None:
    bucket = make_bucket(rewind_seqnos=2, state=VBucketState.REPLICA)
    vbucket = bucket.vbucket(0)
    for number in range(1, 11):
        vbucket.store(b"\0a", b"", seqno=number, cas=number, rev=number)
    bucket.seal()
    before = vbucket.failover_log
    assert vbucket.rollback(20) == 10
    assert vbucket.rollback(9) == 9
    assert vbucket.failover_log == before
    assert vbucket.rollback(3) == 0
    assert (vbucket.high_seqno, vbucket.item_count, vbucket.rewind_seqno) == (0, 0, 0)
    assert vbucket.failover_log.newest.uuid != before.newest.uuid
    assert reopened(bucket).vbucket(0).high_seqno == 0


def test_a_rollback_nobody_wants_any_longer_changes_nothing() -> None:
    vbucket = make_bucket(state=VBucketState.REPLICA).vbucket(0)
    for number in (1, 2):
        vbucket.store(b"\0a", b"", seqno=number, cas=number, rev=number)
    with pytest.raises(StoreError, match="to 1 is no longer wanted"):
        vbucket.rollback(1, unless=lambda: True)
    assert (vbucket.high_seqno, vbucket.generation) == (2, 0)
    assert vbucket.rollback(1, unless=lambda: False) == 1


def test_whether_a_rollback_is_still_wanted_is_asked_when_nothing_can_come_in_between() -> None:
    """Between the first question and the lock a new stream may begin to stand."""
    vbucket = make_bucket(state=VBucketState.REPLICA).vbucket(0)
    for number in (1, 2):
        vbucket.store(b"\0a", b"", seqno=number, cas=number, rev=number)
    was_free: list[bool] = []

    def is_over() -> bool:
        def try_lock() -> None:
            was_free.append(vbucket.core.lock.acquire(blocking=False))
            if was_free[-1]:
                vbucket.core.lock.release()

        other = Thread(target=try_lock)
        other.start()
        other.join()
        return not was_free[-1]

    with pytest.raises(StoreError, match="to 1 is no longer wanted"):
        vbucket.rollback(1, unless=is_over)
    assert was_free == [True, False], "the last answer holds until the rollback is done"
    assert (vbucket.high_seqno, vbucket.generation) == (2, 0)
    assert len(vbucket.failover_log) == 1


def test_who_looks_while_a_vbucket_is_truncated_sees_that_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream that is made in between must not take what it saw for the vbucket as it is."""
    vbucket = make_bucket(state=VBucketState.REPLICA).vbucket(0)
    for number in (1, 2):
        vbucket.store(b"\0a", b"", seqno=number, cas=number, rev=number)
    opened: list[tuple[int, int]] = []
    unlink = vbucket.core.unlink

    def look(number: int) -> None:
        opened.append((vbucket.generation, vbucket.high_seqno))
        unlink(number)

    monkeypatch.setattr(vbucket.core, "unlink", look)
    vbucket.rollback(1)
    assert opened[0][1] == 2, "half of it was the old one"
    assert opened[0][0] != vbucket.generation


def test_a_truncation_the_disk_refuses_changes_nothing() -> None:
    disk = CrashDisk()
    bucket = make_bucket(disk)
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"")
    vbucket.store(b"\0b", b"")
    bucket.commit()
    log = vbucket.failover_log
    disk.fail_at = disk.commits
    with pytest.raises(StoreFull):
        vbucket.failover(1)
    assert (vbucket.high_seqno, vbucket.failover_log, vbucket.item_count) == (2, log, 2)
    vbucket.failover(1)
    assert vbucket.item_count == 1


def test_a_failover_between_the_steps_of_a_sealing_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.store.journal.STEP_BYTES", 1)
    bucket = make_bucket()
    for number in range(12):
        bucket.vbucket(number % 4).store(b"\0%d" % number, b"")
    bucket.journal.commit(seal=True)
    assert bucket.journal.is_sealing
    for vbucket in bucket.vbuckets:
        vbucket.failover(2)
        vbucket.store(b"\0new", b"")
    bucket.seal()
    for owner in (bucket, reopened(bucket, clean=False)):
        for vbucket in owner.vbuckets:
            assert (vbucket.high_seqno, vbucket.item_count) == (3, 3)


def test_a_deleted_vbucket_is_gone_for_its_readers() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(1)
    vbucket.store(b"\0a", b"")
    bucket.commit()
    heard: list[bool] = []
    vbucket.on_persisted(5, heard.append)
    view = vbucket.backfill(after=0, transform=AT_REST)
    cursor = vbucket.open_cursor("c", after=0)
    bucket.delete_vbucket(1)
    assert view.read(100) is None
    assert cursor.dropped
    assert heard == [False]
