"""A bucket beside the dumb model, and everything that can be wrong when one is opened."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

from headrace.errors import ConfigError, CorruptRecord, StoreError, StoreLocked, StoreVersion
from headrace.store import AT_REST, Bucket, BucketSettings, CommitReport
from headrace.store.disk import Batch, Table
from headrace.store.records import BUCKET_KEY, pack_meta
from headrace.wire.opcodes import VBucketState
from tests.store.crash_disk import CrashDisk
from tests.store.kit import SMALL, keys, make_bucket, read_disk, reopened
from tests.store.walk import Walk

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("seed", range(40))
def test_every_reader_has_what_the_model_says_at_every_snapshot_end(seed: int) -> None:
    """Random changes, commits, restarts, crashes, compactions, failovers, with readers beside."""
    walk = Walk(seed)
    walk.add_receivers()
    for _ in range(400):
        walk.step()
    walk.check()
    walk.drain()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1003))
def test_a_long_life(seed: int) -> None:
    walk = Walk(seed)
    walk.add_receivers()
    for _ in range(5000):
        walk.step()
    walk.check()
    walk.drain()


# -- opening ----------------------------------------------------------------------------------


def test_a_bucket_on_files_comes_back_as_it_was(tmp_path: Path) -> None:
    with Bucket.open(tmp_path / "bucket", SMALL) as bucket:
        uuid = bucket.uuid
        bucket.create_vbuckets(VBucketState.ACTIVE)
        bucket.vbucket(2).store(b"\0key", b"value", flags=7, expiry=2**31)
        log = bucket.vbucket(2).failover_log
        bucket.set_property("name", {"a": [1]})
    with Bucket.open(tmp_path / "bucket") as bucket:
        assert (bucket.uuid, bucket.settings, bucket.was_unclean) == (uuid, SMALL, False)
        item = bucket.vbucket(2).get(b"\0key")
        assert item is not None
        assert (item.value, item.flags, item.expiry) == (b"value", 7, 2**31)
        assert bucket.vbucket(2).failover_log == log
        assert bucket.get_property("name") == {"a": [1]}
        assert bucket.get_property("other") is None


def test_a_bucket_that_was_not_closed_begins_new_branches(tmp_path: Path) -> None:
    bucket = Bucket.open(tmp_path / "bucket", SMALL)
    bucket.create_vbuckets(VBucketState.ACTIVE)
    bucket.vbucket(3).set_state(VBucketState.REPLICA)
    bucket.vbucket(0).store(b"\0a", b"1")
    bucket.commit()
    bucket.vbucket(0).store(b"\0b", b"1")
    logs = [vbucket.failover_log for vbucket in bucket.vbuckets]
    bucket.abandon()
    with Bucket.open(tmp_path / "bucket") as bucket:
        assert bucket.was_unclean
        first = bucket.vbucket(0)
        assert (first.high_seqno, first.get(b"\0b")) == (1, None)
        assert len(first.failover_log) == 2
        assert first.failover_log.newest.seqno == 1
        assert bucket.vbucket(3).failover_log == logs[3], "only active ones begin a branch"


def test_a_locked_bucket_says_so(tmp_path: Path) -> None:
    with Bucket.open(tmp_path, SMALL), pytest.raises(StoreLocked, match="another process"):
        Bucket.open(tmp_path, SMALL)
    Bucket.open(tmp_path, SMALL).close()


def test_a_newer_format_is_refused_and_nothing_is_touched() -> None:
    disk = CrashDisk()
    make_bucket(disk).close()
    batch = Batch()
    batch.put(Table.META, BUCKET_KEY, pack_meta(BUCKET_KEY, {"format": 2}))
    disk.commit(batch)
    before = disk.tables()
    with pytest.raises(StoreVersion, match="format 2, this release reads up to 1"):
        Bucket.open(None, disk=disk)
    assert disk.tables() == before


def test_the_number_of_vbuckets_cannot_change() -> None:
    disk = CrashDisk()
    make_bucket(disk).close()
    with pytest.raises(ConfigError, match="4 vbuckets, 64 were asked for"):
        Bucket.open(None, BucketSettings(), disk=disk)


def test_other_settings_can_change() -> None:
    disk = CrashDisk()
    make_bucket(disk).close()
    changed = BucketSettings(**{**SMALL.to_json(), "purge_age_seconds": 5})
    with Bucket.open(None, changed, disk=disk.reborn()) as bucket:
        assert bucket.settings.purge_age_seconds == 5
        disk = bucket.core.disk  # type: ignore[assignment]
    assert Bucket.open(None, disk=disk.reborn()).settings == changed


def small_store() -> CrashDisk:
    """A store with something in every table."""
    disk = CrashDisk()
    bucket = make_bucket(disk)
    bucket.vbucket(0).store(b"\0sealed", b"value")
    bucket.vbucket(1).delete(b"\0gone")
    bucket.seal()
    bucket.vbucket(0).store(b"\0journalled", b"value")
    bucket.vbucket(0).prepare(b"\0prepared", b"value", level=1)
    bucket.set_property("p", 1)
    bucket.close()
    return disk


def test_a_changed_byte_anywhere_is_noticed_and_nothing_is_touched() -> None:
    """Junk sweep over every byte of every value and key."""
    tables = small_store().tables()
    generator = random.Random(3)
    checked = 0
    for table, rows in tables.items():
        for key, value in rows.items():
            for place in range(len(key) + len(value)):
                junk = bytearray(key + value)
                junk[place] ^= generator.randrange(1, 256)
                damaged = {name: dict(others) for name, others in tables.items()}
                del damaged[table][key]
                damaged[table][bytes(junk[: len(key)])] = bytes(junk[len(key) :])
                disk = CrashDisk(damaged)
                with pytest.raises(CorruptRecord):
                    Bucket.open(None, disk=disk)
                assert disk.commits == 0
                checked += 1
    assert checked > 1000


@pytest.mark.parametrize("size", [0, 1, 20])
def test_a_value_cut_short_is_noticed(size: int) -> None:
    tables = small_store().tables()
    for table, rows in tables.items():
        for key, value in rows.items():
            damaged = {name: dict(others) for name, others in tables.items()}
            damaged[table][key] = value[: min(size, len(value) - 1)]
            with pytest.raises(CorruptRecord):
                Bucket.open(None, disk=CrashDisk(damaged))


def test_data_without_a_bucket_record_is_not_taken_for_a_new_bucket() -> None:
    tables = small_store().tables()
    del tables[Table.META][BUCKET_KEY]
    with pytest.raises(CorruptRecord, match="no bucket record"):
        Bucket.open(None, disk=CrashDisk(tables))


def test_the_store_that_was_swept_is_sound() -> None:
    bucket = Bucket.open(None, disk=small_store())
    assert [len(read_disk(v.backfill(after=0, transform=AT_REST))) for v in bucket.vbuckets] == [
        3,
        1,
        0,
        0,
    ]


# -- vbuckets ---------------------------------------------------------------------------------


def test_vbuckets_are_created_found_and_deleted() -> None:
    bucket = Bucket.open(None, SMALL, disk=CrashDisk())
    assert bucket.vbuckets == []
    assert bucket.find(1) is None
    with pytest.raises(KeyError):
        bucket.vbucket(1)
    created = bucket.create_vbucket(1, VBucketState.PENDING)
    assert (created.state, len(created.failover_log)) == (VBucketState.PENDING, 1)
    with pytest.raises(ValueError, match="exists"):
        bucket.create_vbucket(1, VBucketState.ACTIVE)
    with pytest.raises(ValueError, match=r"allowed 0\.\.3"):
        bucket.create_vbucket(4, VBucketState.ACTIVE)
    created.store(b"\0a", b"")
    bucket.delete_vbucket(1)
    assert bucket.find(1) is None
    with pytest.raises(StoreError, match="was deleted"):
        created.store(b"\0a", b"")


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("sealed", [True, False])
def test_a_vbucket_that_was_deleted_and_made_again_is_empty(clean: bool, sealed: bool) -> None:
    bucket = make_bucket()
    bucket.vbucket(1).store(b"\0old", b"")
    bucket.vbucket(0).store(b"\0other", b"")
    if sealed:
        bucket.seal()
    bucket.delete_vbucket(1)
    bucket = reopened(bucket, clean=clean)
    assert [vbucket.id for vbucket in bucket.vbuckets] == [0, 2, 3]
    again = bucket.create_vbucket(1, VBucketState.ACTIVE)
    again.store(b"\0new", b"")
    bucket.commit()
    bucket = reopened(bucket, clean=clean)
    again = bucket.vbucket(1)
    assert (again.high_seqno, again.item_count, again.get(b"\0old")) == (1, 1, None)
    assert bucket.vbucket(0).item_count == 1


def test_a_flush_empties_everything_and_forgets_all_branches() -> None:
    bucket = make_bucket()
    for vbucket in bucket.vbuckets:
        vbucket.store(b"\0a", b"")
    logs = [vbucket.failover_log for vbucket in bucket.vbuckets]
    bucket.flush()
    for flushed in (bucket, reopened(bucket)):
        for vbucket, log in zip(flushed.vbuckets, logs, strict=True):
            assert (vbucket.high_seqno, vbucket.item_count, len(vbucket.failover_log)) == (0, 0, 1)
            assert vbucket.failover_log.newest.uuid != log.newest.uuid


# -- durability -------------------------------------------------------------------------------


def test_the_committer_makes_changes_durable_on_its_own() -> None:
    bucket = make_bucket()
    bucket.start_committer(delay_seconds=0.001)
    bucket.start_committer()
    done = threading.Event()
    heard: list[bool] = []
    change = bucket.vbucket(0).store(b"\0a", b"")

    def hear(durable: bool) -> None:
        heard.append(durable)
        done.set()

    bucket.vbucket(0).on_persisted(change.seqno, hear)
    assert done.wait(30)
    assert heard == [True]
    bucket.stop_committer()
    bucket.stop_committer()
    assert bucket.failure is None


def test_stopped_persistence_keeps_changes_in_memory() -> None:
    bucket = make_bucket()
    bucket.stop_persistence()
    assert not bucket.persistence
    bucket.vbucket(0).store(b"\0a", b"")
    assert bucket.commit() == CommitReport(frames=0, bytes_journalled=0, bytes_sealed=0)
    assert bucket.vbucket(0).persisted_seqno == 0
    bucket.start_persistence()
    assert bucket.commit().frames == 1
    assert bucket.vbucket(0).persisted_seqno == 1


def test_a_closed_bucket_refuses_and_tells_those_who_wait() -> None:
    bucket = make_bucket()
    heard: list[bool] = []
    bucket.stop_persistence()
    change = bucket.vbucket(0).store(b"\0a", b"")
    bucket.vbucket(0).on_persisted(change.seqno, heard.append)
    bucket.abandon()
    bucket.close()
    assert heard == [False]
    with pytest.raises(StoreError, match="is closed"):
        bucket.commit()
    with pytest.raises(StoreError, match="is closed"):
        bucket.vbucket(0).store(b"\0a", b"")
    bucket.vbucket(0).on_persisted(change.seqno, heard.append)
    assert heard == [False, False]


def test_a_bucket_in_memory_is_the_same_but_not_durable() -> None:
    with Bucket.open(None, SMALL) as bucket:
        assert not bucket.durable
        vbucket = bucket.create_vbucket(0, VBucketState.ACTIVE)
        vbucket.store(b"\0a", b"1")
        bucket.seal()
        assert vbucket.persisted_seqno == 1
        assert keys(read_disk(vbucket.backfill(after=0, transform=AT_REST))) == [b"\0a"]


def test_many_threads_may_use_one_bucket() -> None:
    bucket = make_bucket(memory_quota=64 << 20, rewind_seqnos=10)
    bucket.start_committer(delay_seconds=0.0005)
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for turn in range(300):
                bucket.vbucket(number).store(b"\0%d" % (turn % 50), b"x" * 500)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            errors.append(error)

    def read(number: int) -> None:
        try:
            for _ in range(40):
                found = read_disk(bucket.vbucket(number).backfill(after=0, transform=AT_REST), 9000)
                assert len(set(keys(found))) == len(found)
                bucket.vbucket(number).get(b"\x007")
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4) for work in (write, read)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        bucket.compact()
    for thread in threads:
        thread.join()
    bucket.stop_committer()
    assert errors == []
    assert bucket.failure is None
    bucket = reopened(bucket)
    assert [(v.high_seqno, v.item_count) for v in bucket.vbuckets] == [(300, 50)] * 4


def test_a_listener_hears_a_burst_once() -> None:
    bucket = make_bucket()
    heard: list[int] = []
    bucket.on_change(heard.append)
    vbucket = bucket.vbucket(2)
    for number in range(5):
        vbucket.store(b"\0%d" % number, b"")
    assert heard == [2]
    cursor = vbucket.open_cursor("c", after=0)
    cursor.snapshot(AT_REST)
    vbucket.store(b"\0x", b"")
    assert heard == [2, 2]
    bucket.on_change(None)
    cursor.take(1000, AT_REST)
    vbucket.store(b"\0y", b"")
    assert heard == [2, 2]


def test_the_statistics_count() -> None:
    bucket = make_bucket()
    bucket.vbucket(0).store(b"\0a", b"")
    bucket.vbucket(0).delete(b"\0b")
    numbers = bucket.statistics()
    assert (numbers["items"], numbers["tombstones"], numbers["vbuckets"]) == (1, 1, 4)
    assert numbers["uncommitted_bytes"] > 0
    bucket.commit()
    after: dict[str, Any] = bucket.statistics()
    assert after["uncommitted_bytes"] == 0
    assert after["journal_bytes"] > 0
    assert after["memory_used"] == bucket.memory_used > 0


def test_visible_seqnos_are_told_for_the_states_asked_for() -> None:
    bucket = make_bucket()
    bucket.vbucket(0).store(b"\0a", b"")
    bucket.vbucket(2).store(b"\0a", b"")
    bucket.vbucket(2).prepare(b"\0b", b"", level=1)
    bucket.vbucket(1).set_state(VBucketState.REPLICA)
    bucket.delete_vbucket(3)
    assert bucket.visible_seqnos({VBucketState.ACTIVE}) == [(0, 1), (2, 1)]
    assert bucket.visible_seqnos(set(VBucketState)) == [(0, 1), (1, 0), (2, 1)]
