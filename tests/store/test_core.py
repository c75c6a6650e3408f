"""Memory under a quota: what may be dropped, and when writing must stop."""

from __future__ import annotations

import pytest

from headrace.errors import StoreFull
from headrace.store import AT_REST, Bucket, VBucket
from headrace.store.core import OUTSIDE_SHARE
from headrace.wire.opcodes import VBucketState
from tests.store.kit import SMALL, make_bucket, read_disk, seqnos


def write_much(vbucket: VBucket) -> None:
    """Store 12 MB."""
    for number in range(600):
        vbucket.store(b"\0%d" % number, b"x" * 20_000)


def test_memory_stays_inside_its_quota_however_much_is_written() -> None:
    bucket = make_bucket()
    for number in range(600):
        bucket.vbucket(number % 4).store(b"\0%d" % number, b"x" * 20_000)
        assert bucket.memory_used <= bucket.settings.memory_quota
    bucket.commit()
    assert sum(vbucket.item_count for vbucket in bucket.vbuckets) == 600
    item = bucket.vbucket(0).get(b"\x000")
    assert item is not None
    assert item.value == b"x" * 20_000
    found = read_disk(bucket.vbucket(1).backfill(after=0, transform=AT_REST))
    assert seqnos(found) == list(range(1, 151))


def test_with_persistence_stopped_the_quota_is_the_end() -> None:
    bucket = make_bucket()
    bucket.stop_persistence()
    with pytest.raises(StoreFull, match="memory quota of 2097152 bytes is used up"):
        write_much(bucket.vbucket(0))
    high = bucket.vbucket(0).high_seqno
    assert high > 30
    bucket.start_persistence()
    bucket.vbucket(0).store(b"\0more", b"x" * 20_000)
    assert bucket.vbucket(0).high_seqno == high + 1


def test_a_bucket_in_memory_alone_is_full_at_its_quota() -> None:
    """Its blocks are memory, too."""
    with Bucket.open(None, SMALL) as bucket:
        vbucket = bucket.create_vbucket(0, VBucketState.ACTIVE)
        with pytest.raises(StoreFull, match="memory quota"):
            write_much(vbucket)
        assert bucket.memory_used <= bucket.settings.memory_quota + 200_000


def test_what_is_held_for_readers_counts_up_to_its_share() -> None:
    with make_bucket() as bucket:
        quota, before = bucket.settings.memory_quota, bucket.memory_used
        assert bucket.hold_outside(1000) == 1000
        assert bucket.memory_used == before + 1000
        bucket.hold_outside(10 * quota)
        assert bucket.memory_used == before + quota // OUTSIDE_SHARE
        assert bucket.hold_outside(-10 * quota - 1000) == 0
        assert bucket.memory_used == before


def test_marks_wait_and_are_then_written() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    for number in range(10):
        vbucket.store(b"\0%d" % number, b"")
    bucket.seal()
    for number in range(5):
        vbucket.store(b"\0%d" % number, b"")
    (block,) = bucket.core.blocks[0].blocks
    assert block.rows[:, 2].tolist() == [0] * 10
    with bucket.core.lock:
        bucket.core.flush_marks()
        bucket.core.flush_marks()
    assert block.rows[:, 2].tolist() == [10] * 5 + [0] * 5


def test_more_marks_than_are_kept() -> None:
    bucket = make_bucket(memory_quota=64 << 20, rewind_seqnos=0)
    vbucket = bucket.vbucket(0)
    for _ in range(2):
        for number in range(20_000):
            vbucket.store(b"\0%d" % number, b"")
        bucket.seal()
    assert seqnos(read_disk(vbucket.backfill(after=0, transform=AT_REST))) == list(
        range(20_001, 40_001)
    )


def test_new_branches_are_48_bits_and_never_zero() -> None:
    bucket = make_bucket()
    answers = iter((bytes(6), bytes(6), b"\0\0\0\0\0\x07"))
    bucket.core.entropy = lambda _size: next(answers)
    assert bucket.core.new_branch() == 7
