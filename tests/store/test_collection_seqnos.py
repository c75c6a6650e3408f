"""The highest seqno of each collection."""

from __future__ import annotations

import random

import pytest

from headrace.wire.values import join_collection
from tests.store.kit import make_bucket, reopened


def test_each_collection_has_its_own_high_seqno() -> None:
    vbucket = make_bucket().vbucket(0)
    vbucket.store(b"\x00a", b"")
    vbucket.store(b"\x08a", b"")
    vbucket.store(b"\x09a", b"")
    assert vbucket.collection_high_seqno((0,)) == 1
    vbucket.store(b"\x08b", b"")
    assert [vbucket.collection_high_seqno((n,)) for n in (0, 8, 9, 10)] == [1, 4, 3, 0]
    assert vbucket.collection_high_seqno((0, 9)) == 3
    assert vbucket.collection_high_seqno(()) == 0


def test_events_count_for_their_collection_and_sync_writes_do_not() -> None:
    vbucket = make_bucket().vbucket(0)
    vbucket.system_event(0, version=0, subject=8, key=b"n", value=b"")
    vbucket.system_event(3, version=0, subject=8, key=b"n", value=b"")
    vbucket.prepare(b"\x08a", b"", level=1)
    assert vbucket.collection_high_seqno((8,)) == 1
    vbucket.commit_prepare(b"\x08a")
    assert vbucket.collection_high_seqno((8,)) == 4


@pytest.mark.parametrize("seed", range(3))
def test_many_collections_through_sealing_and_restarts(seed: int) -> None:
    generator = random.Random(seed)
    bucket = make_bucket()
    highs: dict[int, int] = {}
    for number in range(300):
        collection = generator.choice((0, 8, 9, 200, 70_000, *range(1000, 1030)))
        key = join_collection(collection, b"%d" % generator.randrange(5))
        highs[collection] = bucket.vbucket(1).store(key, b"x" * 300).seqno
        if number % 40 == 0:
            bucket.seal()
        if number % 90 == 0:
            bucket.commit()
            bucket = reopened(bucket, clean=generator.random() < 0.5)
    found = {n: bucket.vbucket(1).collection_high_seqno((n,)) for n in highs}
    assert found == highs


def test_a_purged_tombstone_is_still_the_high_seqno_of_its_collection() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.delete(b"\x08a")
    vbucket.store(b"\0b", b"")
    bucket.compact(drop_deletes=True)
    assert vbucket.purge_seqno == 1
    assert reopened(bucket).vbucket(0).collection_high_seqno((8,)) == 1
