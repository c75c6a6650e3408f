"""Runs of received frames: the kernel enters what the plain way enters, and stops where it must."""

from __future__ import annotations

import random

import pytest

from headrace.errors import StoreFull
from headrace.history import Seqno, SnapshotRange
from headrace.store import Transform, VBucket
from headrace.store import layout as at
from headrace.wire import messages as m
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.opcodes import VBucketState
from headrace.wire.values import join_collection
from tests.store.kit import make_bucket, read_disk, reopened

OPAQUE = 77
RANGE = SnapshotRange(Seqno(1), Seqno(1000))


def replica(segment_bytes: int = 1 << 16) -> VBucket:
    """An empty replica inside a snapshot."""
    bucket = make_bucket(state=VBucketState.REPLICA, segment_bytes=segment_bytes)
    vbucket = bucket.vbucket(0)
    vbucket.receive_snapshot(RANGE, new_checkpoint=True, from_disk=False)
    return vbucket


def frames(*messages: m.Mutation | m.Deletion | m.Expiration, old: bool = False) -> bytes:
    dialect = Dialect.DCP_5 if old else Dialect.DCP_7
    return b"".join(encode(message, dialect) for message in messages)


def mutation(seqno: int, key: bytes = b"\0k", **more: object) -> m.Mutation:
    fields: dict[str, object] = {
        "by_seqno": seqno,
        "rev_seqno": seqno + 5,
        "cas": seqno << 20,
        "key": key,
        "opaque": OPAQUE,
    }
    return m.Mutation(**(fields | more))  # type: ignore[arg-type]


def take(vbucket: VBucket, run: bytes, *, collections: bool = True) -> tuple[int, int]:
    return vbucket.receive_run(
        memoryview(run), opaque=OPAQUE, snapshot=RANGE, collections=collections
    )


def some_messages(
    generator: random.Random, count: int, prefix: bytes
) -> list[m.Mutation | m.Deletion | m.Expiration]:
    seqno, made = 0, []
    for _ in range(count):
        seqno += generator.choice((1, 1, 2, 7))
        key = prefix + b"key%d" % generator.randrange(12)
        common: dict[str, object] = {
            "by_seqno": seqno,
            "rev_seqno": generator.randrange(1, 2**64),
            "cas": generator.randrange(1, 2**64),
            "key": key,
            "opaque": OPAQUE,
            "datatype": generator.choice((0, 1)),
        }
        kind = generator.random()
        if kind < 0.6:
            value = generator.randbytes(generator.choice((0, 10, 300)))
            extra = {
                "flags": generator.randrange(2**32),
                "expiration": generator.randrange(2**32),
                "nru": generator.randrange(256),
                "value": value,
            }
            made.append(m.Mutation(**common, **extra))  # type: ignore[arg-type]
        else:
            other = m.Deletion if kind < 0.8 else m.Expiration
            made.append(other(**common, delete_time=generator.randrange(2**32)))  # type: ignore[arg-type]
    return made  # type: ignore[return-value]


@pytest.mark.parametrize("collections", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_a_run_enters_as_one_by_one(seed: int, collections: bool) -> None:
    generator = random.Random(seed)
    messages = some_messages(generator, 200, b"\0" if collections else b"")
    run = frames(*messages)
    fast, slow = replica(), replica()
    assert take(fast, run, collections=collections) == (len(run), 200)
    whole = some_messages(random.Random(seed), 200, b"\0")
    slow.apply_frames(frames(*whole))
    for vbucket in (fast, slow):
        vbucket.advance(1000)
    fast_bucket, slow_bucket = reopened_both(fast, slow)
    assert items_of(fast_bucket) == items_of(slow_bucket)
    assert items_of(fast_bucket)


def items_of(vbucket: VBucket) -> list[object]:
    return list(read_disk(vbucket.backfill(after=0, transform=Transform(opaque=1))))


def reopened_both(fast: VBucket, slow: VBucket) -> tuple[VBucket, VBucket]:
    """The same after everything went through journal and blocks."""
    found = []
    for vbucket in (fast, slow):
        assert vbucket.meta(b"\0key3") is not None
        core = vbucket.core
        core.commit_now()
        found.append(vbucket)
    for number in range(12):
        key = b"\0key%d" % number
        assert fast.get(key) == slow.get(key)
    assert fast.item_count == slow.item_count
    assert fast.tombstone_count == slow.tombstone_count
    assert (fast.max_cas, fast.max_deleted_rev) == (slow.max_cas, slow.max_deleted_rev)
    return found[0], found[1]


@pytest.mark.parametrize("seed", range(4))
def test_the_high_seqnos_of_collections_are_those_of_the_plain_way(seed: int) -> None:
    generator = random.Random(seed)
    fast, plain = replica(), replica()
    seqno = 0
    for _ in range(12):
        batch = []
        choice = generator.choice(([0], [8], [300], [0, 8, 300]))
        for _ in range(generator.randrange(1, 30)):
            seqno += 1
            key = join_collection(generator.choice(choice), b"%d" % seqno)
            batch.append(mutation(seqno, key))
        run = frames(*batch)
        assert take(fast, run) == (len(run), len(batch))
        plain.apply_frames(run)
        if generator.random() < 0.3:
            assert fast.collection_high_seqno([8]) == plain.collection_high_seqno([8]), seed
    for collection in (0, 8, 300, 9):
        wanted = plain.collection_high_seqno([collection])
        assert fast.collection_high_seqno([collection]) == wanted, seed


def test_a_key_that_comes_twice_is_entered_once_and_its_older_version_marked() -> None:
    """A producer that sends one in a disk snapshot breaks its promise; the newer one wins."""
    fast, plain = replica(), replica()
    keys = [b"\0a", b"\0b", b"\0a", b"\0c", b"\0a", b"\0b"]
    run = frames(*(mutation(seqno, key) for seqno, key in enumerate(keys, 1)))
    assert take(fast, run) == (len(run), len(keys))
    plain.apply_frames(run)
    assert fast.item_count == plain.item_count == 3
    assert [fast.get(key) for key in set(keys)] == [plain.get(key) for key in set(keys)]
    for vbucket in (fast, plain):
        marks = vbucket.core.tables.items[1:7, at.I_SUPERSEDED].tolist()
        assert marks == [3, 6, 5, 0, 0, 0]


def test_a_deletion_without_a_time_gets_ours() -> None:
    vbucket = replica()
    run = encode(
        m.Deletion(by_seqno=1, rev_seqno=2, cas=3, key=b"k", value=b"xattrs", opaque=OPAQUE),
        Dialect.DCP_3,
    )
    assert run[4] == 18
    assert take(vbucket, run, collections=False) == (len(run), 1)
    item = vbucket.get(b"\0k")
    assert item is not None
    assert (item.value, item.rev, item.cas, item.deleted) == (b"xattrs", 2, 3, True)
    assert item.expiry == 1_700_000_000, "the time of the bucket's clock"


def patched(frame: bytes, at: int, *bytes_: int) -> bytes:
    return frame[:at] + bytes(bytes_) + frame[at + len(bytes_) :]


GOOD = frames(mutation(5))
NOT_PLAIN = {
    "half a header": GOOD[:20],
    "half a frame": GOOD[:-1],
    "a reply": patched(GOOD, 0, 0x81),
    "a frame with a stream id": patched(GOOD, 0, 0x08),
    "another opcode": patched(GOOD, 1, 0x60),
    "other extras": patched(GOOD, 4, 30),
    "another vbucket": patched(GOOD, 7, 1),
    "another opaque": patched(GOOD, 15, 78),
    "a body shorter than its parts": patched(GOOD, 8, 0, 0, 0, 20),
    "a key longer than the body": patched(GOOD, 2, 0xFF, 0xFF),
    "extended metadata": patched(GOOD, 53, 4),
    "a seqno that does not rise": frames(mutation(4)),
    "a seqno above the snapshot": frames(mutation(1001)),
    "a seqno of 64 bits": patched(GOOD, 24, 0xFF),
    "a key without a name": frames(mutation(5, b"\0")),
    "a collection id without an end": frames(mutation(5, b"\x80" * 8)),
    "a key that is too long": frames(mutation(5, b"\0" + b"k" * 255)),
    "extended metadata of a deletion": patched(
        encode(m.Deletion(by_seqno=5, key=b"\0k", opaque=OPAQUE), Dialect.DCP_3), 41, 1
    ),
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_a_run_stops_before(name: str) -> None:
    vbucket = replica()
    start = frames(mutation(4, b"\0before"))
    assert take(vbucket, start + NOT_PLAIN[name]) == (len(start), 1)
    assert take(vbucket, NOT_PLAIN[name]) == (0, 0)
    assert vbucket.high_seqno == 4
    assert take(vbucket, GOOD) == (len(GOOD), 1)


def test_a_run_goes_on_where_tables_and_segments_end() -> None:
    vbucket = replica(segment_bytes=1 << 16)
    wide = SnapshotRange(Seqno(1), Seqno(10**6))
    vbucket.receive_snapshot(wide, new_checkpoint=False, from_disk=False)
    run = frames(*(mutation(n, b"\0%d" % n, value=bytes(200)) for n in range(1, 5001)))
    used, count = vbucket.receive_run(
        memoryview(run), opaque=OPAQUE, snapshot=wide, collections=True
    )
    assert (used, count) == (len(run), 5000)
    assert vbucket.item_count == 5000
    large = frames(mutation(5001, value=bytes(1 << 18)))
    assert vbucket.receive_run(
        memoryview(large), opaque=OPAQUE, snapshot=wide, collections=True
    ) == (len(large), 1)


def test_a_full_store_takes_what_fits_and_then_nothing() -> None:
    bucket = make_bucket(state=VBucketState.REPLICA, memory_quota=16 << 20, segment_bytes=1 << 20)
    vbucket = bucket.vbucket(0)
    bucket.stop_persistence()
    wide = SnapshotRange(Seqno(1), Seqno(10**6))
    vbucket.receive_snapshot(wide, new_checkpoint=True, from_disk=False)
    run = frames(*(mutation(n, b"\0%d" % n, value=bytes(100_000)) for n in range(1, 400)))

    def offer(data: bytes) -> tuple[int, int]:
        return vbucket.receive_run(memoryview(data), opaque=OPAQUE, snapshot=wide, collections=True)

    used, count = offer(run)
    assert 0 < count < 399
    with pytest.raises(StoreFull):
        offer(run[used:])
    assert vbucket.high_seqno == count


def test_with_a_prepare_in_flight_nothing_is_taken_in_bulk() -> None:
    vbucket = replica()
    vbucket.prepare(b"\0p", b"", level=1, seqno=1, cas=1, rev=1)
    assert take(vbucket, GOOD) == (0, 0)
    vbucket.apply_frames(frames(mutation(3, b"\0p")))
    assert not vbucket.all_pending()
    assert take(vbucket, GOOD) == (len(GOOD), 1)
    again = reopened_vbucket(vbucket)
    assert not again.all_pending(), "also after a restart"


def reopened_vbucket(vbucket: VBucket) -> VBucket:
    bucket = make_bucket(state=VBucketState.REPLICA)
    other = bucket.vbucket(0)
    other.receive_snapshot(RANGE, new_checkpoint=True, from_disk=False)
    other.prepare(b"\0p", b"", level=1, seqno=1, cas=1, rev=1)
    other.apply_frames(frames(mutation(3, b"\0p")))
    assert other.all_pending() == vbucket.all_pending()
    return reopened(bucket).vbucket(0)


def test_a_run_that_ends_a_disk_snapshot_completes_its_prepares() -> None:
    vbucket = make_bucket(state=VBucketState.REPLICA).vbucket(0)
    vbucket.receive_snapshot(RANGE, new_checkpoint=True, from_disk=True)
    run = frames(mutation(1000))
    assert take(vbucket, run) == (len(run), 1)
    assert vbucket.settled_prepared == 1000
