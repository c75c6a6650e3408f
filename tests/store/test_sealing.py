"""Packing what was planned, while others go on."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest

from headrace.history import Seqno, SnapshotRange
from headrace.store import AT_REST, Bucket, VBucket
from headrace.store import layout as at
from headrace.store.core import seek_item
from headrace.store.native import address_of, bytes_at
from headrace.store.records import BLOCK_HEADER, check_block
from headrace.wire.opcodes import VBucketState
from tests.store.kit import make_bucket, read_disk, reopened, seqnos

if TYPE_CHECKING:
    from headrace.store.sealing import Plan, Sealed


def plan_of(bucket: Bucket, vbucket: VBucket, floor: int = 0) -> Plan:
    return bucket.journal.packer.plan(vbucket, bucket.core.arena.high, floor=floor)


def packed_seqnos(sealed: Sealed) -> list[int]:
    return [
        packed.block.first + int(row[0]) for packed in sealed.blocks for row in packed.block.rows
    ]


def fill(vbucket: VBucket, count: int, size: int = 100) -> None:
    for number in range(count):
        vbucket.store(b"\0%d" % number, b"v" * size)


def test_a_plan_is_packed_as_it_was_made_whatever_came_since() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    fill(vbucket, 50)
    plan = plan_of(bucket, vbucket)
    for number in range(3000):  # the tables of items and of segments grow under the plan
        bucket.vbucket(number % 4).store(b"\0%d" % number, b"w" * 100)
    sealed = bucket.journal.packer.pack(plan)
    assert packed_seqnos(sealed) == list(range(1, 51))
    assert sealed.seqno == 50
    assert plan.size == sum(packed.block.size for packed in sealed.blocks)


def test_every_block_has_a_sound_header_and_its_frames() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(1)
    fill(vbucket, 200)
    sealed = bucket.journal.packer.pack(plan_of(bucket, vbucket))
    assert len(sealed.blocks) > 3
    for packed in sealed.blocks:
        count, stamp, first, last = check_block(packed.block.key, packed.value, path="here")
        assert (count, stamp) == (len(packed.block.rows), packed.block.stamp)
        assert (first, last) == (packed.block.first, packed.block.last)
        assert len(packed.value) == BLOCK_HEADER.size + packed.block.size


def test_a_version_superseded_while_its_block_is_written_is_marked_and_left_out_for_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    fill(vbucket, 20)
    commit = bucket.core.disk.commit

    def meanwhile(batch: object) -> None:
        monkeypatch.undo()
        vbucket.store(b"\x003", b"newer")
        commit(batch)  # type: ignore[arg-type]

    bucket.commit()
    monkeypatch.setattr(bucket.core.disk, "commit", meanwhile)
    bucket.journal.seal()
    assert vbucket.high_seqno == 21
    bucket.commit()
    rows = [row for block in bucket.core.blocks[0].blocks for row in block.rows.tolist()]
    assert [row[2] for row in rows][3] == 21 - 4, "the distance from seqno 4 to 21"
    assert seqnos(read_disk(vbucket.backfill(after=0, transform=AT_REST))) == [
        seqno for seqno in range(1, 22) if seqno != 4
    ]


@pytest.mark.parametrize("seed", range(4))
def test_sealing_begins_behind_what_was_sealed_last(seed: int) -> None:
    generator = random.Random(seed)
    bucket = make_bucket(segment_bytes=64 * 1024)
    for _ in range(60):
        vbucket = bucket.vbucket(generator.randrange(4))
        for _ in range(generator.randrange(60)):
            key = b"\0%d" % generator.randrange(300)
            vbucket.store(key, b"v" * generator.randrange(400))
        if generator.random() < 0.3:
            bucket.journal.seal()
        if generator.random() < 0.1:
            vbucket.rollback(vbucket.high_seqno - generator.randrange(20))
        items = bucket.core.tables.items
        for one in bucket.vbuckets:
            found = plan_of(bucket, one).ordinal
            wanted = seek_item(items, int(one.row[at.V_FIRST]), int(one.row[at.V_SEALED]))
            assert found == (wanted if one.high_seqno > one.row[at.V_SEALED] else 0), seed


def test_memory_for_blocks_is_counted_and_let_go_when_nothing_waits() -> None:
    bucket = make_bucket(state=VBucketState.ACTIVE, memory_quota=64 << 20)
    vbucket = bucket.vbucket(0)
    fill(vbucket, 100)
    packer = bucket.journal.packer
    before = bucket.core.memory_used()
    plan = plan_of(bucket, vbucket)
    packer.begin(plan.size)
    assert bucket.core.memory_used() - before == bucket.core.packing_bytes == 2 << 20
    first = [address_of(bytes_at(packed.value)) for packed in packer.pack(plan).blocks]
    packer.begin(plan.size)
    again = [address_of(bytes_at(packed.value)) for packed in packer.pack(plan).blocks]
    assert first == again, "the same memory"
    assert len(set(first)) == len(first) > 1
    packer.let_go()
    assert bucket.core.memory_used() == before


def test_a_frame_larger_than_a_block_gets_its_own() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    for size in (10, 20_000, 10, 70_000, 10):
        vbucket.store(b"\0%d" % size, b"v" * size)
    bucket.journal.seal()
    assert len(bucket.core.blocks[0].blocks) == 5
    again = reopened(bucket).vbucket(0)
    sizes = [len(again.get(b"\0%d" % size).value) for size in (10, 20_000, 70_000)]  # type: ignore[union-attr]
    assert sizes == [10, 20_000, 70_000]


def test_writers_and_the_thread_that_commits_do_not_disturb_each_other() -> None:
    bucket = make_bucket(memory_quota=32 << 20, journal_bytes_max=64 * 1024)
    stop = threading.Event()

    def commit() -> None:
        while not stop.is_set():
            bucket.commit()

    committer = threading.Thread(target=commit)
    committer.start()
    twin: dict[bytes, bytes] = {}
    generator = random.Random(5)
    for number in range(20_000):
        key, value = b"\0%d" % generator.randrange(2000), b"%d" % number * 20
        bucket.vbucket(int(key[1:]) % 4).store(key, value)
        twin[key] = value
    stop.set()
    committer.join()
    bucket.journal.seal()
    again = reopened(bucket)
    for key, value in twin.items():
        item = again.vbucket(int(key[1:]) % 4).get(key)
        assert item is not None
        assert item.value == value


def test_disk_snapshots_are_packed_as_they_are_received() -> None:
    bucket = make_bucket(state=VBucketState.REPLICA, memory_quota=64 << 20)
    vbucket = bucket.vbucket(0)
    snapshot = SnapshotRange(Seqno(1), Seqno(40))
    vbucket.receive_snapshot(snapshot, new_checkpoint=True, from_disk=True)
    for number in range(1, 31):
        vbucket.store(b"\0%d" % number, b"v" * 500, seqno=number, cas=number, rev=1)
    plan = plan_of(bucket, vbucket)
    for number in range(31, 41):
        vbucket.store(b"\0%d" % number, b"v" * 500, seqno=number, cas=number, rev=1)
    assert packed_seqnos(bucket.journal.packer.pack(plan)) == list(range(1, 31))
