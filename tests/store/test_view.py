"""Checkpoints as they are shown, and the last seqno a reader gets."""

from __future__ import annotations

import pytest

from headrace.history import Seqno, SnapshotRange
from headrace.store import AT_REST, Transform, view
from headrace.wire.opcodes import VBucketState
from tests.store.kit import make_bucket, reopened


def test_checkpoints_are_shown_oldest_first_and_not_without_end() -> None:
    bucket = make_bucket(checkpoint_items_max=1)
    vbucket = bucket.vbucket(0)
    for number in range(view.CHECKPOINTS_SHOWN_MAX + 10):
        vbucket.store(b"\0%d" % number, b"")
    shown = vbucket.checkpoints
    assert len(shown) == view.CHECKPOINTS_SHOWN_MAX + 1
    assert [c.id for c in shown] == sorted(c.id for c in shown)
    assert [c.open for c in shown] == [False] * view.CHECKPOINTS_SHOWN_MAX + [True]


def test_a_checkpoint_that_holds_a_disk_snapshot_says_so() -> None:
    vbucket = make_bucket(state=VBucketState.REPLICA).vbucket(0)
    for start, from_disk in ((1, True), (5, False)):
        snapshot = SnapshotRange(Seqno(start), Seqno(start + 3))
        vbucket.receive_snapshot(snapshot, new_checkpoint=True, from_disk=from_disk)
        vbucket.store(b"\0a", b"", seqno=start, cas=1, rev=1)
        vbucket.advance(start + 3)
    assert [(c.start, c.from_disk) for c in vbucket.checkpoints] == [(1, True), (5, False)]


LEGACY = Transform(collections=False, sync_writes=False)


@pytest.mark.parametrize("sealed", [0, 2, 4])
def test_the_last_seqno_for_a_legacy_reader(sealed: int) -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    for number, key in enumerate((b"\0a", b"\0b", b"\x08c", b"\x08d"), 1):
        vbucket.store(key, b"")
        if number == sealed:
            bucket.seal()
    bucket.commit()
    for owner in (bucket, reopened(bucket)):
        vbucket = owner.vbucket(0)
        assert [vbucket.last_passing(LEGACY, end) for end in (0, 1, 2, 3, 4)] == [0, 1, 2, 2, 2]
        assert [vbucket.last_passing(AT_REST, end) for end in (0, 1, 4)] == [0, 1, 4]


def test_a_purged_tombstone_is_no_last_seqno() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"")
    vbucket.delete(b"\0b")
    vbucket.store(b"\x08c", b"")
    assert vbucket.last_passing(LEGACY, 3) == 2
    bucket.compact(drop_deletes=True)
    assert vbucket.last_passing(LEGACY, 3) == 1
    only = Transform(only_collections=frozenset((0,)))
    assert vbucket.last_passing(only, 3) == 1


@pytest.mark.parametrize("sync_writes", [False, True])
def test_a_last_frame_that_was_looked_at_is_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, sync_writes: bool
) -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    for key in (b"\0a", b"\0b", b"\0b"):
        vbucket.store(key, b"")
    bucket.seal()
    reader = Transform(collections=False, sync_writes=sync_writes)
    assert vbucket.last_passing(reader, 3) == 3
    monkeypatch.setattr(view, "_last_in_blocks", lambda *_: pytest.fail("the disk was read"))
    assert vbucket.last_passing(reader, 3) == 3
    vbucket.store(b"\0b", b"")
    assert vbucket.last_passing(reader, 3) == 3, "superseded above the end only"


def test_what_was_found_of_a_block_does_not_outlive_it() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"")
    vbucket.delete(b"\0b")
    bucket.seal()
    assert [vbucket.last_passing(LEGACY, end) for end in (2, 2, 1)] == [2, 2, 1]
    vbucket.store(b"\x08c", b"")
    bucket.compact(drop_deletes=True)
    assert vbucket.last_passing(LEGACY, 2) == 1


@pytest.mark.parametrize("key", [b"\0b", b"\x08b"])
def test_a_last_frame_is_known_to_those_alone_who_get_it(key: bytes) -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"")
    vbucket.prepare(key, b"", level=1)
    bucket.seal()
    taking = Transform(collections=False)
    for _ in range(2):
        got = 2 if key[0] == 0 else 1
        assert (vbucket.last_passing(taking, 2), vbucket.last_passing(LEGACY, 2)) == (got, 1)
