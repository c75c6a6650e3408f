"""What a vbucket says of itself."""

from __future__ import annotations

from headrace.history import FailoverLog
from headrace.wire.opcodes import VBucketState
from tests.store.kit import make_bucket, reopened


def test_a_new_vbucket_is_empty_and_has_one_branch() -> None:
    vbucket = make_bucket().vbucket(0)
    assert (vbucket.high_seqno, vbucket.persisted_seqno, vbucket.purge_seqno) == (0, 0, 0)
    assert (vbucket.item_count, vbucket.max_cas, vbucket.max_deleted_rev) == (0, 0, 0)
    assert (len(vbucket.failover_log), vbucket.failover_log.newest.seqno) == (1, 0)
    assert vbucket.failover_log.newest.uuid < 2**48
    assert (vbucket.snapshot.start, vbucket.snapshot.end) == (0, 0)
    assert (vbucket.disk_bytes, vbucket.history_start_seqno, vbucket.rewind_seqno) == (0, 0, 0)
    assert vbucket.manifest == {}


def test_the_state_is_durable_at_once() -> None:
    bucket = make_bucket()
    bucket.vbucket(0).set_state(VBucketState.REPLICA)
    bucket.vbucket(1).set_state(VBucketState.DEAD)
    states = [vbucket.state for vbucket in reopened(bucket, clean=False).vbuckets]
    assert states == [
        VBucketState.REPLICA,
        VBucketState.DEAD,
        VBucketState.ACTIVE,
        VBucketState.ACTIVE,
    ]


def test_becoming_active_begins_a_branch_and_staying_active_does_not() -> None:
    vbucket = make_bucket().vbucket(0)
    vbucket.store(b"\0a", b"")
    vbucket.set_state(VBucketState.ACTIVE)
    assert len(vbucket.failover_log) == 1
    vbucket.set_state(VBucketState.REPLICA)
    vbucket.set_state(VBucketState.ACTIVE)
    assert [entry.seqno for entry in vbucket.failover_log] == [1, 0]


def test_the_failover_log_keeps_25_branches() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    for number in range(30):
        vbucket.store(b"\0%d" % number, b"")
        vbucket.failover(number + 1)
    assert [entry.seqno for entry in vbucket.failover_log] == list(range(30, 5, -1))
    assert reopened(bucket).vbucket(0).failover_log == vbucket.failover_log


def test_a_producers_log_is_taken_over_and_kept() -> None:
    bucket = make_bucket(state=VBucketState.REPLICA)
    log = FailoverLog.of((2**64 - 1, 4), (77, 0))
    bucket.vbucket(0).replace_failover_log(log)
    assert reopened(bucket, clean=False).vbucket(0).failover_log == log


def test_the_manifest_is_kept() -> None:
    bucket = make_bucket()
    bucket.vbucket(0).set_manifest({"uid": "1", "scopes": []})
    bucket.commit()
    assert reopened(bucket, clean=False).vbucket(0).manifest == {"uid": "1", "scopes": []}


def test_a_checkpoint_without_items_is_not_closed() -> None:
    vbucket = make_bucket().vbucket(0)
    first = vbucket.checkpoint_id
    assert vbucket.close_checkpoint() == first
    vbucket.store(b"\0a", b"")
    assert vbucket.close_checkpoint() == first + 1
    assert [(c.id, c.items, c.open) for c in vbucket.checkpoints] == [
        (first, 1, False),
        (first + 1, 0, True),
    ]


def test_numbers_survive_a_restart() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"")
    vbucket.store(b"\0a", b"")
    deleted = vbucket.delete(b"\0a")
    names = (
        "high_seqno",
        "max_cas",
        "max_deleted_rev",
        "item_count",
        "tombstone_count",
        "max_visible_seqno",
    )
    before = {name: getattr(vbucket, name) for name in names}
    assert before["max_deleted_rev"] == deleted.rev
    for seal in (False, True):
        if seal:
            bucket.seal()
        bucket = reopened(bucket)
        vbucket = bucket.vbucket(0)
        assert {name: getattr(vbucket, name) for name in names} == before
        assert vbucket.persisted_seqno == vbucket.memory_seqno == 3
    assert vbucket.disk_bytes > 0
