"""What a vbucket accepts and what it refuses."""

from __future__ import annotations

import pytest

from headrace.store import AT_REST, Pending
from headrace.store.changes import signed
from headrace.wire.messages import Abort, Deletion, Expiration, Mutation, Prepare
from headrace.wire.values import join_xattrs
from tests.store.kit import make_bucket, read_disk, read_memory, reopened


@pytest.mark.parametrize(
    ("key", "value"), [(b"", b""), (b"k" * 256, b""), (b"\0k", b"x" * (21 * 1024 * 1024 + 1))]
)
def test_keys_and_values_have_limits(key: bytes, value: bytes) -> None:
    vbucket = make_bucket(memory_quota=64 << 20).vbucket(0)
    allowed = r"allowed 1\.\.255"
    with pytest.raises(ValueError, match=allowed):
        vbucket.store(key, value)
    with pytest.raises(ValueError, match=allowed):
        vbucket.delete(key, value=value)
    with pytest.raises(ValueError, match=allowed):
        vbucket.prepare(key, value, level=1)
    assert vbucket.high_seqno == 0


def test_the_longest_key_and_a_large_value_are_kept() -> None:
    bucket = make_bucket(memory_quota=64 << 20)
    vbucket = bucket.vbucket(0)
    value = bytes(range(256)) * 4096
    vbucket.store(b"k" * 255, value)
    bucket.commit()
    item = reopened(bucket).vbucket(0).get(b"k" * 255)
    assert item is not None
    assert item.value == value


def test_each_kind_of_change_is_its_own_message() -> None:
    vbucket = make_bucket().vbucket(0)
    vbucket.store(b"\0a", b"1", flags=1, expiry=2, datatype=1, nru=3)
    vbucket.delete(b"\0b", value=join_xattrs({"_s": b"1"}, b""), datatype=4, delete_time=77)
    vbucket.expire(b"\0c", delete_time=78)
    vbucket.prepare(b"\0d", b"p", level=2, flags=4, expiry=5, deleted=True)
    vbucket.prepare(b"\0e", b"", level=1)
    vbucket.abort_prepare(b"\0e")
    found = read_memory(vbucket.open_cursor("c", after=0))
    assert [type(m) for m in found] == [Mutation, Deletion, Expiration, Prepare, Prepare, Abort]
    mutation, deletion, expiration, prepare = found[:4]
    assert isinstance(mutation, Mutation)
    assert (mutation.flags, mutation.expiration, mutation.datatype, mutation.nru) == (1, 2, 1, 3)
    assert isinstance(deletion, Deletion)
    assert (deletion.delete_time, deletion.datatype) == (77, 4)
    assert isinstance(expiration, Expiration)
    assert expiration.delete_time == 78
    assert isinstance(prepare, Prepare)
    assert (prepare.durability, prepare.flags, prepare.expiration, prepare.deleted) == (2, 4, 5, 1)


def test_a_delete_notes_its_time() -> None:
    bucket = make_bucket()
    bucket.vbucket(0).delete(b"\0a")
    meta = bucket.vbucket(0).meta(b"\0a")
    assert meta is not None
    assert meta.expiry == bucket.core.clock() // 1_000_000_000
    assert meta.deleted


@pytest.mark.parametrize("sealed", [False, True])
def test_a_touch_changes_the_expiry_and_nothing_else(sealed: bool) -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    before = vbucket.store(b"\0a", b"value", flags=9, datatype=1)
    if sealed:
        bucket = reopened(bucket)
        vbucket = bucket.vbucket(0)
    after = vbucket.touch(b"\0a", 5000)
    assert after is not None
    assert (after.seqno, after.rev) == (2, 2)
    assert after.cas > before.cas
    item = vbucket.get(b"\0a")
    assert item is not None
    assert (item.value, item.flags, item.datatype, item.expiry) == (b"value", 9, 1, 5000)
    assert vbucket.touch(b"\0nobody", 1) is None
    vbucket.delete(b"\0a")
    assert vbucket.touch(b"\0a", 1) is None


def test_a_prepare_is_invisible_until_it_is_committed() -> None:
    vbucket = make_bucket().vbucket(0)
    vbucket.store(b"\0a", b"old")
    prepared = vbucket.prepare(b"\0a", b"new", level=3, flags=6)
    pending = Pending(b"\0a", b"new", *prepared, 6, 0, 0, False, 3)
    assert vbucket.pending(b"\0a") == pending
    assert vbucket.get(b"\0a").value == b"old"  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="in flight at seqno 2"):
        vbucket.prepare(b"\0a", b"x", level=1)
    committed = vbucket.commit_prepare(b"\0a")
    assert (committed.seqno, committed.cas, committed.rev) == (3, prepared.cas, prepared.rev)
    item = vbucket.get(b"\0a")
    assert item is not None
    assert (item.value, item.flags) == (b"new", 6)
    assert (vbucket.high_prepared_seqno, vbucket.high_completed_seqno) == (2, 2)
    with pytest.raises(ValueError, match="no prepare in flight"):
        vbucket.commit_prepare(b"\0a")
    with pytest.raises(ValueError, match="no prepare in flight"):
        vbucket.abort_prepare(b"\0a")


def test_a_prepared_delete_deletes_when_it_is_committed() -> None:
    vbucket = make_bucket().vbucket(0)
    vbucket.store(b"\0a", b"old")
    vbucket.prepare(b"\0a", b"", level=1, deleted=True)
    vbucket.commit_prepare(b"\0a")
    assert vbucket.item_count == 0


def test_prepares_survive_a_restart() -> None:
    bucket = make_bucket()
    for key in (b"\0a", b"\0b", b"\0c"):
        bucket.vbucket(0).prepare(key, b"v", level=1)
    bucket.vbucket(0).commit_prepare(b"\0a")
    bucket.vbucket(0).abort_prepare(b"\0b")
    pending = bucket.vbucket(0).all_pending()
    assert [one.key for one in pending] == [b"\0c"]
    for seal in (False, True):
        if seal:
            bucket.seal()
        bucket = reopened(bucket)
        assert bucket.vbucket(0).all_pending() == pending
        assert bucket.vbucket(0).high_prepared_seqno == 3
    found = read_disk(bucket.vbucket(0).backfill(after=0, transform=AT_REST))
    assert [type(m) for m in found] == [Prepare, Mutation, Abort]


def test_a_collection_that_ends_takes_its_keys_along() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\x08a", b"")
    vbucket.delete(b"\x08b")
    vbucket.store(b"\x09a", b"")
    vbucket.system_event(1, version=0, subject=8, key=b"", value=b"")
    assert (vbucket.item_count, vbucket.tombstone_count) == (1, 0)
    assert vbucket.meta(b"\x08a") is None
    bucket.seal()
    bucket = reopened(bucket)
    assert bucket.vbucket(0).item_count == 1
    found = read_disk(bucket.vbucket(0).backfill(after=0, transform=AT_REST))
    assert [m.by_seqno for m in found] == [3, 4]  # type: ignore[attr-defined]


def test_an_expiry_that_is_due_keeps_the_system_xattrs() -> None:
    vbucket = make_bucket().vbucket(0)
    value = join_xattrs({"_sync": b"1", "mine": b"2"}, b"doc")
    vbucket.store(b"\0a", value, expiry=100, datatype=4)
    assert not vbucket.expire_if_due(b"\0a", 99)
    assert vbucket.expire_if_due(b"\0a", 100)
    assert not vbucket.expire_if_due(b"\0a", 100)
    assert not vbucket.expire_if_due(b"\0nobody", 100)
    item = vbucket.get(b"\0a")
    assert item is not None
    assert (item.deleted, item.value) == (True, join_xattrs({"_sync": b"1"}, b""))
    vbucket.store(b"\0b", b"", expiry=100)
    vbucket.prepare(b"\0b", b"", level=1)
    assert not vbucket.expire_if_due(b"\0b", 100), "its prepare decides about it"


def test_numbers_are_64_bits() -> None:
    assert signed(2**64 - 1) == -1
    assert signed(2**63 - 1) == 2**63 - 1
    for number in (-1, 2**64):
        with pytest.raises(ValueError, match="allowed 0"):
            signed(number)
