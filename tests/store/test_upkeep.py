"""Expiry by the pager, and what a tombstone keeps."""

from __future__ import annotations

from headrace.store import AT_REST, Item
from headrace.store.upkeep import value_after_expiry
from headrace.wire.messages import Expiration
from headrace.wire.opcodes import VBucketState
from headrace.wire.values import deflate, join_xattrs
from tests.store.kit import make_bucket, read_memory, reopened


def item(value: bytes, datatype: int) -> Item:
    """A living item."""
    return Item(b"\0k", value, 1, 1, 1, 0, 5, datatype, False)


def test_the_pager_expires_what_is_due_in_active_vbuckets() -> None:
    bucket = make_bucket()
    for vbucket in bucket.vbuckets:
        vbucket.store(b"\0due", b"", expiry=100)
        vbucket.store(b"\0later", b"", expiry=101)
        vbucket.store(b"\0never", b"")
    bucket.vbucket(3).set_state(VBucketState.REPLICA)
    bucket = reopened(bucket)
    assert bucket.expire_due(99) == 0
    assert bucket.expire_due(100) == 3
    assert bucket.expire_due(100) == 0
    cursor = bucket.vbucket(0).open_cursor("c", after=3)
    (message,) = read_memory(cursor, AT_REST)
    assert isinstance(message, Expiration)
    assert (message.key, message.rev_seqno) == (b"\0due", 2)
    assert bucket.vbucket(3).item_count == 3, "a replica never expires"


def test_the_pager_works_in_portions() -> None:
    bucket = make_bucket()
    for number in range(25):
        bucket.vbucket(0).store(b"\0%d" % number, b"", expiry=5)
    assert [bucket.expire_due(5, limit=10) for _ in range(4)] == [10, 10, 5, 0]


def test_a_tombstone_keeps_system_xattrs_only() -> None:
    both = join_xattrs({"_sys": b"1", "user": b"2"}, b"doc")
    kept = (join_xattrs({"_sys": b"1"}, b""), 4)
    assert value_after_expiry(item(both, 4)) == kept
    assert value_after_expiry(item(deflate(both), 6)) == kept
    assert value_after_expiry(item(join_xattrs({"user": b"2"}, b"doc"), 4)) == (b"", 0)
    assert value_after_expiry(item(b"doc", 1)) == (b"", 0)
    assert value_after_expiry(item(b"\xff" * 9, 4)) == (b"", 0), "xattrs that cannot be read"
