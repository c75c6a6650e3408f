"""Keys to what is known of them, wherever that lies."""

from __future__ import annotations

import pytest

from headrace.errors import CorruptRecord
from headrace.store.disk import Batch, Table
from tests.store.kit import make_bucket, reopened


@pytest.mark.parametrize("place", ["memory", "journal", "block"])
def test_a_key_is_found_where_it_is(place: str) -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    change = vbucket.store(b"\0a", b"value", flags=0xFFFF_FFFF, expiry=0xFFFF_FFFE, datatype=1)
    vbucket.delete(b"\0b", value=b"x", datatype=4, delete_time=5)
    if place == "block":
        bucket.seal()
    if place != "memory":
        bucket = reopened(bucket)
        vbucket = bucket.vbucket(0)
    meta = vbucket.meta(b"\0a")
    assert meta is not None
    assert meta == (change.seqno, change.rev, change.cas, 0xFFFF_FFFF, 0xFFFF_FFFE, 1, False, 5)
    item = vbucket.get(b"\0a")
    assert item is not None
    assert item == (
        b"\0a",
        b"value",
        *(change.seqno, change.rev, change.cas),
        0xFFFF_FFFF,
        0xFFFF_FFFE,
        1,
        False,
    )
    gone = vbucket.get(b"\0b")
    assert gone is not None
    assert (gone.value, gone.deleted, gone.expiry, gone.datatype) == (b"x", True, 5, 4)
    assert vbucket.get(b"\0c") is None
    assert vbucket.meta(b"\0c") is None
    assert vbucket.meta(b"k" * 300) is None
    assert bucket.vbucket(1).get(b"\0a") is None


def test_a_frame_that_is_gone_is_damage() -> None:
    bucket = make_bucket()
    bucket.vbucket(0).store(b"\0a", b"")
    bucket.seal()
    bucket = reopened(bucket)
    batch = Batch()
    batch.delete(Table.BLOCKS, bucket.core.blocks[0].blocks[0].key)
    bucket.core.disk.commit(batch)
    with pytest.raises(CorruptRecord, match="no frame for a known key"):
        bucket.vbucket(0).get(b"\0a")


def test_collections_are_counted_and_keys_picked() -> None:
    vbucket = make_bucket().vbucket(0)
    assert vbucket.random_key(5) is None
    for number in range(4):
        vbucket.store(b"\x08%d" % number, b"")
    vbucket.store(b"\0a", b"")
    vbucket.delete(b"\x083")
    assert [vbucket.collection_item_count(n) for n in (8, 0, 9)] == [3, 1, 0]
    assert {vbucket.random_key(n) for n in range(50)} == {b"\x080", b"\x081", b"\x082", b"\0a"}
    assert {vbucket.random_key(n, 0) for n in range(50)} == {b"\0a"}
    assert vbucket.random_key(1, 77) is None
