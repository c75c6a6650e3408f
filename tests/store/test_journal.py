"""Group commits and sealing: death and failure at every commit."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import StoreFull
from headrace.history import Seqno, SnapshotRange
from headrace.store import AT_REST, Bucket, journal
from headrace.store.disk import Table
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.messages import Mutation
from headrace.wire.opcodes import VBucketState
from tests.store.crash_disk import CrashDisk, Died
from tests.store.kit import SMALL, make_bucket, read_disk, reopened, seqnos
from tests.store.walk import Walk

ROOT = Path(__file__).resolve().parents[2]
STEPS = 160


def lived(seed: int, *, die_at: int = -1, applied: bool = False, fail_at: int = -1) -> int:
    """Walk with trouble at one commit; the number of commits until then."""
    walk = Walk(seed)
    walk.disk.die_at, walk.disk.applied, walk.disk.fail_at = die_at, applied, fail_at
    first = walk.disk
    walk.add_receivers()
    for _ in range(STEPS):
        walk.step()
    walk.check()
    walk.drain()
    return first.commits


@pytest.mark.parametrize("applied", [False, True], ids=["lost", "applied"])
@pytest.mark.parametrize("seed", range(3))
def test_a_death_at_any_commit_loses_nothing_that_was_promised(seed: int, applied: bool) -> None:
    """The walk asserts: what was reported durable is found, as a prefix of what was accepted."""
    at = 1
    while lived(seed, die_at=at, applied=applied) > at:
        at += 1
    assert at > 5


@pytest.mark.parametrize("seed", range(3))
def test_a_commit_that_fails_loses_nothing_at_all(seed: int) -> None:
    at = 1
    while lived(seed, fail_at=at) > at:
        at += 1
    assert at > 5


@pytest.mark.parametrize("applied", [False, True], ids=["lost", "applied"])
def test_a_death_between_the_steps_of_a_sealing_round(
    applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "STEP_BYTES", 1)
    for die_at in range(1, 20):
        disk = CrashDisk()
        disk.applied = applied
        bucket = make_bucket(disk)
        for number in range(40):
            bucket.vbucket(number % 4).store(b"\0%d" % (number % 9), b"%d" % number)
        bucket.commit()
        start = disk.commits
        disk.die_at = start + die_at
        try:
            bucket.seal()
            bucket.vbucket(0).store(b"\0later", b"")
            bucket.seal()
        except Died:
            pass
        else:
            assert disk.commits > start + 4, "the round took one step per vbucket"
            break
        bucket.abandon()
        again = Bucket.open(None, disk=disk.reborn())
        for vbucket in again.vbuckets:
            numbers = range(vbucket.id, 40, 4)
            expected = {b"\0%d" % (number % 9): b"%d" % number for number in numbers}
            messages = read_disk(vbucket.backfill(after=0, transform=AT_REST))
            found = {m.key: m.value for m in messages if m.key != b"\0later"}  # type: ignore[attr-defined]
            assert found == expected
        again.seal()
        assert reopened(again).vbucket(0).item_count in (9, 10)


def test_a_group_is_one_journal_entry() -> None:
    bucket = make_bucket()
    disk: CrashDisk = bucket.core.disk  # type: ignore[assignment]
    before = disk.commits
    for number in range(50):
        bucket.vbucket(number % 4).store(b"\0%d" % number, b"value")
    report = bucket.commit()
    assert report.frames == 50
    assert disk.commits == before + 1
    ((_, entry),) = disk.tables()[Table.JOURNAL].items()
    assert len(entry) == report.bytes_journalled
    assert bucket.commit().frames == 0
    assert disk.commits == before + 1, "nothing new writes nothing"


def test_sealing_moves_the_journal_into_blocks_in_seqno_order() -> None:
    bucket = make_bucket()
    disk: CrashDisk = bucket.core.disk  # type: ignore[assignment]
    for number in range(300):
        bucket.vbucket(number % 4).store(b"\0%d" % number, b"x" * 100)
        if number % 50 == 0:
            bucket.commit()
    moved = bucket.seal()
    tables = disk.tables()
    assert tables[Table.JOURNAL] == {}
    assert sum(map(len, tables[Table.BLOCKS].values())) == moved
    for vbucket in bucket.vbuckets:
        view = vbucket.backfill(after=0, transform=AT_REST)
        assert seqnos(read_disk(view)) == list(range(1, 76))


def test_sealing_leaves_out_what_no_one_can_ask_for() -> None:
    bucket = make_bucket(rewind_seqnos=2)
    vbucket = bucket.vbucket(0)
    for number in range(10):
        vbucket.store(b"\0a", b"%d" % number)
    bucket.seal()
    assert seqnos(read_disk(vbucket.backfill(after=0, transform=AT_REST, all_versions=True))) == [
        8,
        9,
        10,
    ]
    assert vbucket.rewind_seqno == 8


def test_an_open_view_keeps_what_it_can_see() -> None:
    bucket = make_bucket(rewind_seqnos=0)
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"1")
    bucket.commit()
    view = vbucket.backfill(after=0, transform=AT_REST)
    vbucket.store(b"\0a", b"2")
    vbucket.store(b"\0a", b"3")
    bucket.seal()
    assert seqnos(read_disk(view)) == [1]


def test_the_journal_is_sealed_when_it_exceeds_its_limit() -> None:
    bucket = make_bucket(journal_bytes_max=64 * 1024)
    for number in range(200):
        bucket.vbucket(0).store(b"\0%d" % number, b"x" * 1000)
        bucket.commit()
    assert bucket.statistics()["journal_bytes"] < 70_000
    assert bucket.statistics()["blocks"] > 10


@pytest.fixture
def small_bulk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes of a disk snapshot are as much as megabytes are."""
    monkeypatch.setattr(journal, "BULK_BYTES_MIN", 8 * 1024)
    monkeypatch.setattr(journal, "BULK_RECORD_BYTES", 64)


def receive(
    bucket: Bucket, number: int, seqnos: range, *, end: int, from_disk: bool = True
) -> None:
    """Some items of a snapshot that ends at ``end``, as a stream brings them."""
    vbucket, snapshot = bucket.vbucket(number), SnapshotRange(Seqno(0), Seqno(end))
    if seqnos.start == 1:
        vbucket.receive_snapshot(snapshot, new_checkpoint=True, from_disk=from_disk)
    messages = (
        Mutation(vbucket=number, opaque=1, by_seqno=one, key=b"\0%d" % one, value=b"x" * 100)
        for one in seqnos
    )
    run = b"".join(encode(message, Dialect.DCP_7) for message in messages)
    used, _ = vbucket.receive_run(memoryview(run), opaque=1, snapshot=snapshot, collections=True)
    assert used == len(run)


@pytest.mark.usefixtures("small_bulk")
def test_a_disk_snapshot_is_sealed_in_the_commit_that_makes_it_durable() -> None:
    bucket = make_bucket(state=VBucketState.REPLICA)
    disk: CrashDisk = bucket.core.disk  # type: ignore[assignment]
    before = disk.commits
    receive(bucket, 0, range(1, 101), end=200)
    report = bucket.commit()
    assert disk.commits == before + 1
    assert disk.tables()[Table.JOURNAL] == {}
    assert report.bytes_journalled == 0
    assert report.bytes_sealed > 100 * 100
    assert bucket.vbucket(0).persisted_seqno == 100
    receive(bucket, 0, range(101, 201), end=200)
    bucket.commit()
    again = reopened(bucket).vbucket(0)
    assert seqnos(read_disk(again.backfill(after=0, transform=AT_REST))) == list(range(1, 201))
    assert again.complete_seqno == 200


@pytest.mark.usefixtures("small_bulk")
@pytest.mark.parametrize(
    ("state", "count", "from_disk"),
    [
        pytest.param(VBucketState.REPLICA, 100, False, id="from the producer's memory"),
        pytest.param(VBucketState.REPLICA, 5, True, id="too little for a block"),
        pytest.param(VBucketState.ACTIVE, 100, True, id="beside what a client writes"),
    ],
)
def test_anything_else_goes_through_the_journal(
    state: VBucketState, count: int, from_disk: bool
) -> None:
    bucket = make_bucket(state=VBucketState.REPLICA)
    receive(bucket, 0, range(1, count + 1), end=count, from_disk=from_disk)
    if state is VBucketState.ACTIVE:
        bucket.vbucket(1).set_state(state)
        bucket.vbucket(1).store(b"\0k", b"value")
        receive(bucket, 2, range(1, count + 1), end=count)
    report = bucket.commit()
    assert report.bytes_sealed == 0
    assert report.bytes_journalled > 0


@pytest.mark.usefixtures("small_bulk")
@pytest.mark.parametrize("applied", [False, True], ids=["lost", "applied"])
def test_a_death_while_disk_snapshots_are_sealed_at_once(applied: bool) -> None:
    deaths = 0
    for die_at in range(20):
        disk = CrashDisk()
        disk.applied = applied
        bucket = make_bucket(disk, state=VBucketState.REPLICA)
        disk.die_at = disk.commits + die_at
        promised = dict.fromkeys(range(3), 0)
        try:
            for first in range(1, 300, 50):
                for number in promised:
                    receive(bucket, number, range(first, first + 50), end=300)
                bucket.commit()
                promised = {number: bucket.vbucket(number).persisted_seqno for number in promised}
        except Died:
            deaths += 1
        else:
            break
        bucket.abandon()
        again = Bucket.open(None, disk=disk.reborn())
        for number, durable in promised.items():
            vbucket = again.vbucket(number)
            found = seqnos(read_disk(vbucket.backfill(after=0, transform=AT_REST)))
            assert found == list(range(1, vbucket.high_seqno + 1)), "a prefix, each frame once"
            assert vbucket.high_seqno >= durable
            assert vbucket.high_seqno in (durable, durable + 50)
            assert vbucket.snapshot.end in (vbucket.high_seqno, 300)
    assert deaths == 6, "one for each commit"


def test_while_a_commit_is_under_way_memory_may_be_taken_that_it_will_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = make_bucket(memory_quota=16 << 20)
    assert not bucket.journal.frees_soon(bucket.core.arena.high), "nobody commits"
    bucket.vbucket(0).store(b"\0a", b"v")
    commit, heard = bucket.core.disk.commit, list[bool]()

    def meanwhile(batch: object) -> None:
        reached, most = bucket.core.arena.high, (16 << 20) // journal.BULK_SHARE
        heard.append(bucket.journal.frees_soon(reached + most))
        heard.append(bucket.journal.frees_soon(reached + most + 1))
        commit(batch)  # type: ignore[arg-type]

    monkeypatch.setattr(bucket.core.disk, "commit", meanwhile)
    bucket.commit()
    assert heard == [True, False]
    assert not bucket.journal.frees_soon(bucket.core.arena.high)


def test_callbacks_hear_when_their_seqno_is_durable() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    heard: list[tuple[int, bool]] = []
    for number in range(3):
        change = vbucket.store(b"\0%d" % number, b"")

        def hear(durable: bool, seqno: int = change.seqno) -> None:
            heard.append((seqno, durable))

        vbucket.on_persisted(change.seqno, hear)
    assert heard == []
    bucket.commit()
    assert heard == [(1, True), (2, True), (3, True)]
    vbucket.on_persisted(2, lambda ok: heard.append((2, ok)))
    assert heard[3:] == [(2, True)]


def test_a_full_disk_is_reported_and_gets_over_it() -> None:
    disk = CrashDisk()
    bucket = make_bucket(disk)
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"")
    disk.fail_at = disk.commits
    with pytest.raises(StoreFull):
        bucket.commit()
    assert vbucket.persisted_seqno == 0
    assert vbucket.get(b"\0a") is not None
    bucket.commit()
    assert vbucket.persisted_seqno == 1


def test_a_round_that_fails_at_its_start_is_not_half_begun() -> None:
    disk = CrashDisk()
    bucket = make_bucket(disk)
    bucket.vbucket(0).store(b"\0a", b"1")
    disk.fail_at = disk.commits
    with pytest.raises(StoreFull):
        bucket.seal()
    bucket.vbucket(0).store(b"\0b", b"1")
    bucket.commit()
    bucket = reopened(bucket, clean=False)
    assert bucket.vbucket(0).item_count == 2
    assert SMALL.vbuckets == len(bucket.vbuckets)


WRITER = """
import sys
from pathlib import Path
from headrace.store import Bucket

bucket = Bucket.open(Path(sys.argv[1]))
bucket.start_committer(delay_seconds=0.0005)
vbucket = bucket.vbucket(0)
print("ready", vbucket.high_seqno, flush=True)
number = 0
while True:
    number += 1
    change = vbucket.store(b"\\0%d" % (number % 500), b"%d" % number * 50)
    if number % 20 == 0:
        print(vbucket.failover_log.newest.uuid, vbucket.persisted_seqno, flush=True)
"""


def test_a_process_that_is_killed_has_kept_what_it_reported(tmp_path: Path) -> None:
    """kill -9 under load, again and again, on real files."""
    path = tmp_path / "bucket"
    with Bucket.open(path, SMALL) as bucket:
        bucket.create_vbuckets(VBucketState.ACTIVE)
    generator = random.Random(11)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    for _ in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(generator.randrange(3, 120))]
            while lines[-1].split()[1] == "0":  # a slow disk: nothing is promised yet
                lines.append(process.stdout.readline())
            process.kill()
            lines += process.stdout.read().splitlines(keepends=True)
        # The last line may be torn by the kill.
        uuid, persisted = next(line for line in reversed(lines) if line.endswith("\n")).split()
        bucket = Bucket.open(path)
        vbucket = bucket.vbucket(0)
        assert bucket.was_unclean
        assert vbucket.high_seqno >= int(persisted)
        assert vbucket.failover_log.newest.seqno == vbucket.high_seqno
        assert vbucket.failover_log.entries[1].uuid == int(uuid)
        found = read_disk(vbucket.backfill(after=0, transform=AT_REST))
        assert len(found) == vbucket.item_count
        assert seqnos(found)[-1] == vbucket.high_seqno
        bucket.close()
