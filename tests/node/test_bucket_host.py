"""Locks, names and manifests of a served bucket, without a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.node import bucket_host
from headrace.node.bucket_host import BucketHost, Lock
from headrace.node.config import BucketConfig
from headrace.node.manifest import FIRST, from_json
from headrace.store import Bucket, BucketSettings
from headrace.wire.opcodes import VBucketState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from headrace.node.producer import Producer
    from headrace.node.replica import Replica

CONFIG = BucketConfig(settings=BucketSettings(vbuckets=2))
ONE_MORE: dict[str, object] = {
    "uid": "1",
    "scopes": [
        {
            "name": "_default",
            "uid": "0",
            "collections": [{"name": "_default", "uid": "0"}, {"name": "more", "uid": "8"}],
        }
    ],
}


class Watcher:
    """A change-stream connection that only remembers why it was closed."""

    producer: Producer | None = None
    replica: Replica | None = None

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def end(self, reason: str) -> None:
        self.reasons.append(reason)

    def stream_statistics(self) -> Iterable[tuple[str, str]]:
        return ()


@pytest.fixture
def host() -> Iterator[BucketHost]:
    """A bucket in memory with two active vbuckets."""
    with Bucket.open(None, CONFIG.settings) as bucket:
        bucket.create_vbuckets(VBucketState.ACTIVE)
        yield BucketHost(CONFIG, bucket)


def test_a_lock_belongs_to_one_version_of_a_document(host: BucketHost) -> None:
    lock = Lock(cas=9, document_cas=5, until=10.0)
    host.lock(0, b"k", lock)
    assert host.find_lock(0, b"k", 5) == lock
    assert host.find_lock(1, b"k", 5) is None
    assert host.find_lock(0, b"k", 6) is None, "the document changed"
    assert not host.has_locks


def test_the_oldest_lock_is_forgotten_when_there_are_too_many(
    host: BucketHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_host, "LOCKS_MAX", 2)
    for number in range(3):
        host.lock(0, b"%d" % number, Lock(9, 5, 10.0))
    assert host.find_lock(0, b"0", 5) is None
    assert host.find_lock(0, b"2", 5) is not None


def test_locks_that_ended_long_ago_are_swept(host: BucketHost) -> None:
    host.lock(0, b"old", Lock(9, 5, 10.0))
    host.lock(0, b"new", Lock(9, 5, 5_000.0))
    host.sweep_locks(4_000.0)
    assert host.find_lock(0, b"old", 5) is None
    assert host.find_lock(0, b"new", 5) is not None


def test_a_name_has_one_owner(host: BucketHost) -> None:
    first, second = Watcher(), Watcher()
    host.listen(b"name", first)
    host.listen(b"name", second)
    assert (len(first.reasons), second.reasons) == (1, [])
    host.unlisten(b"name", first)
    assert host.listeners == {b"name": second}, "the one who lost it cannot give it up"
    host.unlisten(b"name", second)
    assert host.listeners == {}


def test_a_state_change_raises_the_revision_and_wakes_who_waits(host: BucketHost) -> None:
    woken: list[int] = []
    assert host.block(1, lambda: woken.append(1))
    before = host.revision
    host.set_state(0, VBucketState.REPLICA)
    assert (woken, host.revision) == ([], before + 1)
    host.set_state(1, VBucketState.REPLICA)
    assert woken == [1]


def test_too_many_who_wait_are_refused(host: BucketHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_host, "BLOCKED_MAX", 1)
    assert host.block(0, lambda: None)
    assert not host.block(1, lambda: None)


def test_a_manifest_outlives_the_process(tmp_path: Path) -> None:
    for _ in range(2):
        with Bucket.open(tmp_path / "bucket", CONFIG.settings) as bucket:
            bucket.create_vbuckets(VBucketState.ACTIVE)
            host = BucketHost(CONFIG, bucket)
            host.apply_manifest(from_json(ONE_MORE))
            assert host.manifest.collection_named("_default.more") == 8
            assert bucket.vbucket(0).high_seqno == 1, "applied once"


def test_what_was_prepared_when_the_process_died_is_committed(tmp_path: Path) -> None:
    bucket = Bucket.open(tmp_path / "bucket", CONFIG.settings)
    bucket.create_vbuckets(VBucketState.ACTIVE)
    bucket.vbucket(0).prepare(b"\0k", b"v", level=3)
    bucket.commit()
    bucket.abandon()
    with Bucket.open(tmp_path / "bucket") as again:
        BucketHost(CONFIG, again)
        item = again.vbucket(0).get(b"\0k")
        assert item is not None
        assert item.value == b"v"
        assert again.vbucket(0).pending(b"\0k") is None


def test_plain_requests_need_the_host_only_for_locks_and_longest_ttls(host: BucketHost) -> None:
    assert host.is_plain
    assert host.locked_vbuckets(0.0) is None
    host.lock(0, b"k", Lock(9, 5, 10.0))
    held = host.locked_vbuckets(9.0)
    assert held is not None
    assert held.tolist()[:2] == [1, 0], "its own vbucket only"
    assert host.locked_vbuckets(10.0) is None, "while it is in force only"
    host.unlock(0, b"k")
    assert host.locked_vbuckets(0.0) is None


def test_a_vbucket_that_comes_with_collections_keeps_them(host: BucketHost) -> None:
    """A second beginning of a collection would empty it."""
    vbucket = host.bucket.vbucket(0)
    host.apply_manifest(from_json(ONE_MORE))
    vbucket.store(b"\x08key", b"1")
    moved = vbucket.manifest
    host.manifest = FIRST
    for one in host.bucket.vbuckets:
        one.set_manifest(moved if one is vbucket else {})
    host.apply_manifest(from_json(ONE_MORE))
    assert vbucket.meta(b"\x08key") is not None
    assert (vbucket.high_seqno, host.bucket.vbucket(1).high_seqno) == (2, 2)


def test_a_promoted_copy_gets_the_collections_it_missed(host: BucketHost) -> None:
    host.set_state(0, VBucketState.REPLICA)
    host.apply_manifest(from_json(ONE_MORE))
    assert host.bucket.vbucket(0).high_seqno == 0
    host.set_state(0, VBucketState.ACTIVE)
    assert host.bucket.vbucket(0).high_seqno == 1
    assert host.bucket.vbucket(0).manifest == host.manifest.to_json()
