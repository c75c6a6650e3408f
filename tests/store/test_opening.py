"""Opening: everything is checked before the first byte is written."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import CorruptRecord
from headrace.store import Bucket
from headrace.store.disk import Table
from headrace.store.records import BUCKET_KEY, CLEAN_KEY, pack_meta, unpack_meta, vbucket_key
from headrace.wire.opcodes import VBucketState
from tests.store.crash_disk import CrashDisk
from tests.store.kit import make_bucket, reopened


def spoiled(key: bytes, change: Any) -> CrashDisk:  # noqa: ANN401
    """A store one of whose records was written otherwise."""
    disk = CrashDisk()
    bucket = make_bucket(disk)
    bucket.vbucket(0).store(b"\0a", b"")
    bucket.seal()
    bucket.close()
    tables = disk.tables()
    record: Any = unpack_meta(key, tables[Table.META][key], path="")
    tables[Table.META][key] = pack_meta(key, change(record))
    return CrashDisk(tables)


@pytest.mark.parametrize(
    ("key", "change"),
    [
        (BUCKET_KEY, lambda record: [record]),
        (BUCKET_KEY, lambda record: {**record, "format": "1"}),
        (BUCKET_KEY, lambda record: {**record, "settings": {"vbuckets": 0}}),
        (BUCKET_KEY, lambda _record: {"format": 1}),
        (vbucket_key(0), lambda record: {**record, "log": []}),
        (vbucket_key(0), lambda record: {**record, "log": [[0, 0]]}),
        (vbucket_key(0), lambda _record: {"state": 1}),
        (vbucket_key(0), lambda record: {**record, "state": 0}),
        (vbucket_key(0), lambda record: {**record, "sealed": 0}),
        (vbucket_key(0), lambda record: {**record, "max_cas": -1}),
    ],
)
def test_records_that_make_no_sense_are_damage(key: bytes, change: Any) -> None:  # noqa: ANN401
    disk = spoiled(key, change)
    with pytest.raises(CorruptRecord):
        Bucket.open(None, disk=disk)
    assert disk.commits == 0


def test_a_record_of_a_vbucket_that_cannot_be_and_one_nobody_knows() -> None:
    for key in (vbucket_key(99), b"strange"):
        disk = spoiled(CLEAN_KEY, lambda record: record)
        tables = disk.tables()
        tables[Table.META][key] = pack_meta(key, {"state": 0, "sealed_commit": 0})
        with pytest.raises(CorruptRecord):
            Bucket.open(None, disk=CrashDisk(tables))


def test_blocks_that_overlap_are_damage() -> None:
    disk = CrashDisk()
    bucket = make_bucket(disk)
    for number in range(100):
        bucket.vbucket(0).store(b"\0%d" % number, b"x" * 100)
    bucket.seal()
    bucket.close()
    tables = disk.tables()
    # The second block twice: once at its key, once pretending to begin where the first one ends.
    keys = sorted(tables[Table.BLOCKS])
    shifted = keys[1][:-1] + bytes([keys[1][-1] - 1])
    tables[Table.BLOCKS][shifted] = tables[Table.BLOCKS][keys[1]]
    with pytest.raises(CorruptRecord):
        Bucket.open(None, disk=CrashDisk(tables))


def test_only_active_vbuckets_begin_a_branch_after_a_crash() -> None:
    bucket = make_bucket()
    for vbucket, state in zip(bucket.vbuckets, VBucketState, strict=True):
        vbucket.set_state(state)
    before = [len(vbucket.failover_log) for vbucket in bucket.vbuckets]
    bucket = reopened(bucket, clean=False)
    after = [len(vbucket.failover_log) for vbucket in bucket.vbuckets]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 0, 0, 0]
    bucket = reopened(bucket)
    assert [len(vbucket.failover_log) for vbucket in bucket.vbuckets] == after


def test_a_crash_while_opening_leaves_the_stop_unclean() -> None:
    disk = CrashDisk()
    make_bucket(disk).abandon()
    second = disk.reborn()
    Bucket.open(None, disk=second).abandon()
    third = Bucket.open(None, disk=second.reborn())
    assert third.was_unclean
    assert len(third.vbucket(0).failover_log) == 3
