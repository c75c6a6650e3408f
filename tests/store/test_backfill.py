"""Backfills: a consistent view of what is persisted, whatever happens meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.errors import CorruptRecord
from headrace.history import Seqno, SnapshotRange
from headrace.store import AT_REST, BackfillOutcome, SystemEventView, Transform
from headrace.store.disk import Batch, Table
from headrace.wire.messages import Mutation
from headrace.wire.opcodes import SystemEventId, VBucketState
from tests.store.frames import check_chunk
from tests.store.kit import keys, make_bucket, read_disk, reopened, seqnos


def test_a_view_shows_what_was_persisted_when_it_was_opened() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"1")
    bucket.commit()
    vbucket.store(b"\0a", b"2")
    view = vbucket.backfill(after=0, transform=AT_REST)
    bucket.commit()
    assert (view.end, view.snapshot_end, view.visible_end) == (1, 1, 1)
    (message,) = read_disk(view)
    assert isinstance(message, Mutation)
    assert message.value == b"1"
    assert view.outcome is BackfillOutcome.COMPLETE


@pytest.mark.parametrize("sealed", [False, True])
def test_versions_superseded_at_the_end_are_left_out(sealed: bool) -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    for value in (b"1", b"2"):
        vbucket.store(b"\0a", value)
        vbucket.store(b"\0b" + value, value)
    bucket.commit()
    if sealed:
        bucket.seal()
    assert seqnos(read_disk(vbucket.backfill(after=0, transform=AT_REST))) == [2, 3, 4]
    everything = vbucket.backfill(after=0, transform=AT_REST, all_versions=True)
    assert seqnos(read_disk(everything)) == [1, 2, 3, 4]
    part = vbucket.backfill(after=1, transform=AT_REST, last=3)
    assert seqnos(read_disk(part)) == [2, 3]


def test_a_view_survives_sealing_and_compaction_between_its_reads() -> None:
    bucket = make_bucket(rewind_seqnos=0)
    vbucket = bucket.vbucket(0)
    for number in range(200):
        vbucket.store(b"\0%03d" % number, b"x" * 100)
    bucket.commit()
    view = vbucket.backfill(after=0, transform=AT_REST)
    found = check_chunk(view.read(1000))  # type: ignore[arg-type]
    bucket.seal()
    found += check_chunk(view.read(1000))  # type: ignore[arg-type]
    for number in range(200):
        vbucket.store(b"\0%03d" % number, b"later")
    bucket.compact()
    found += read_disk(view, 5000)
    assert seqnos(found) == list(range(1, 201))
    assert all(message.value == b"x" * 100 for message in found)  # type: ignore[attr-defined]
    bucket.compact()
    again = read_disk(vbucket.backfill(after=0, transform=AT_REST))
    assert seqnos(again) == list(range(201, 401))


def test_a_purge_the_reader_has_not_passed_ends_its_view() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"")
    vbucket.store(b"\0b", b"x" * 2000)
    vbucket.store(b"\0c", b"x" * 2000)
    vbucket.delete(b"\0a")
    vbucket.store(b"\0d", b"")
    bucket.commit()
    resumed = vbucket.backfill(after=1, transform=AT_REST)
    assert resumed.read(1) is not None
    bucket.compact(drop_deletes=True)
    assert vbucket.purge_seqno == 4
    assert resumed.read(1) is None
    assert resumed.outcome is BackfillOutcome.PURGED
    fresh = vbucket.backfill(after=0, transform=AT_REST)
    assert keys(read_disk(fresh)) == [b"\0b", b"\0c", b"\0d"], (
        "a reader of everything needs no grave"
    )
    at_once = vbucket.backfill(after=3, transform=AT_REST)
    assert at_once.outcome is BackfillOutcome.PURGED
    assert at_once.read(1) is None


def test_a_reader_may_forgive_the_purge_that_was() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    for number in range(3):
        vbucket.delete(b"\0%d" % number)
        vbucket.store(b"\0x%d" % number, b"x" * 2000)
    bucket.commit()
    bucket.compact(purge_before_seqno=3, drop_deletes=True)
    assert vbucket.purge_seqno == 3
    view = vbucket.backfill(after=1, transform=AT_REST, forgiven_purge=3)
    assert seqnos(read_disk(view)) == [2, 4, 5, 6]
    again = vbucket.backfill(after=1, transform=AT_REST, forgiven_purge=3)
    assert again.read(1) is not None
    bucket.compact(drop_deletes=True)
    assert vbucket.purge_seqno == 5
    assert again.read(1) is None
    assert again.outcome is BackfillOutcome.PURGED, "but not a later one"
    late = vbucket.backfill(after=1, transform=AT_REST, forgiven_purge=3)
    assert late.outcome is BackfillOutcome.PURGED, "even if it came before the view was opened"


def test_a_purge_waits_for_readers_from_0() -> None:
    """One may be a replica: it was told the purge seqno before it read, and answers for it."""
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    for key in (b"\0a", b"\0b"):
        vbucket.delete(key)
        vbucket.store(key + b"x", b"x" * 2000)
    bucket.commit()
    view = vbucket.backfill(after=0, transform=AT_REST)
    assert view.read(1) is not None
    bucket.compact(drop_deletes=True)
    assert vbucket.purge_seqno == 1, "what it has passed may go"
    assert keys(read_disk(view)) == [b"\0ax", b"\0b", b"\0bx"]
    bucket.compact(drop_deletes=True)
    assert vbucket.purge_seqno == 3


def test_a_truncation_ends_every_view() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"")
    vbucket.store(b"\0b", b"")
    bucket.commit()
    view = vbucket.backfill(after=0, transform=AT_REST)
    vbucket.failover(1)
    assert view.read(100) is None
    assert view.outcome is BackfillOutcome.ROLLED_BACK


def test_an_empty_view_is_complete_at_once() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    view = vbucket.backfill(after=0, transform=AT_REST)
    assert (view.end, view.outcome, view.visible_end) == (0, BackfillOutcome.COMPLETE, 0)
    assert view.read(100) is None
    vbucket.store(b"\0a", b"")
    bucket.commit()
    assert vbucket.backfill(after=1, transform=AT_REST).outcome is BackfillOutcome.COMPLETE


def test_chunks_hold_whole_frames_and_overshoot_by_one() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    for number in range(50):
        vbucket.store(b"\0%02d" % number, b"x" * 943)
    bucket.seal()
    frame = 24 + 31 + 3 + 943
    view = vbucket.backfill(after=0, transform=AT_REST)
    sizes = []
    while (chunk := view.read(10 * frame - 5)) is not None:
        check_chunk(chunk)
        sizes.append(len(chunk.data))
    assert set(sizes) == {10 * frame}


def test_a_frame_larger_than_a_block_has_a_block_of_its_own() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    big = bytes(range(256)) * 100
    for key, value in ((b"\0a", b"1"), (b"\0b", big), (b"\0c", b"2")):
        vbucket.store(key, value)
    bucket.seal()
    bucket.compact()
    values = [m.value for m in read_disk(vbucket.backfill(after=0, transform=AT_REST), 100)]  # type: ignore[attr-defined]
    assert values == [b"1", big, b"2"]
    item = vbucket.get(b"\0b")
    assert item is not None
    assert item.value == big


def test_the_visible_end_of_a_view() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"")
    vbucket.store(b"\x09b", b"")
    vbucket.prepare(b"\0c", b"", level=1)
    cases = (
        (AT_REST, 3),
        (Transform(sync_writes=False), 2),
        (Transform(collections=False, sync_writes=False), 1),
        (Transform(only_collections=frozenset((9,))), 2),
        (Transform(only_collections=frozenset((5,))), 0),
    )
    bucket.commit()
    vbucket.store(b"\0later", b"")
    vbucket.store(b"\x09later", b"")
    for _ in range(2):
        for transform, expected in cases:
            view = vbucket.backfill(after=0, transform=transform)
            assert (view.end, view.visible_end) == (3, expected)
        # The second time round everything comes from blocks.
        vbucket.failover(3)
        bucket.seal()


def test_a_dropped_default_collection_leaves_nothing_visible() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"")
    vbucket.system_event(SystemEventId.END_COLLECTION, version=0, subject=0, key=b"", value=b"")
    bucket.seal()
    view = vbucket.backfill(after=0, transform=Transform(collections=False))
    assert view.visible_end == 0
    assert read_disk(view) == []


def test_a_replica_view_reaches_to_the_end_of_the_snapshot_it_holds_half_of() -> None:
    bucket = make_bucket(state=VBucketState.REPLICA)
    vbucket = bucket.vbucket(0)
    vbucket.receive_snapshot(SnapshotRange(Seqno(1), Seqno(9)), new_checkpoint=True, from_disk=True)
    vbucket.store(b"\0a", b"", seqno=4)
    bucket.commit()
    view = vbucket.backfill(after=0, transform=AT_REST)
    assert (view.end, view.snapshot_end) == (4, 9)
    assert reopened(bucket).vbucket(0).backfill(after=0, transform=AT_REST).snapshot_end == 9


def test_damaged_bytes_are_noticed_when_they_are_read() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"value")
    bucket.seal()
    disk: Any = bucket.core.disk
    ((key, value),) = disk.tables()[Table.BLOCKS].items()
    batch = Batch()
    batch.put(Table.BLOCKS, key, value[:-1] + b"?")
    disk.commit(batch)
    with pytest.raises(CorruptRecord, match="fails its checksum"):
        vbucket.backfill(after=0, transform=AT_REST).read(100)
    batch.delete(Table.BLOCKS, key)
    disk.commit(batch)
    with pytest.raises(CorruptRecord, match="gone"):
        vbucket.backfill(after=0, transform=AT_REST).read(100)


def test_slow_frames_and_system_events_come_in_their_place() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"1")
    vbucket.system_event(SystemEventId.BEGIN_COLLECTION, version=0, subject=9, key=b"n", value=b"v")
    vbucket.store(b"\x09b", b"1")
    vbucket.system_event(SystemEventId.CREATE_SCOPE, version=0, subject=9, key=b"s", value=b"v")
    shown: list[SystemEventView] = []

    def choose(event: SystemEventView) -> tuple[int, bytes, bytes] | None:
        if event.event != SystemEventId.BEGIN_COLLECTION:
            return None
        shown.append(event)
        return 1, b"x", b"y" * 20

    transform = Transform(opaque=3, system_event=choose)
    bucket.commit()
    for _ in range(2):
        messages = read_disk(vbucket.backfill(after=0, transform=transform))
        assert keys(messages) == [b"\0a", b"x", b"\x09b"]
        bucket.seal()
    assert [(event.seqno, event.subject, event.key, event.value) for event in shown] == [
        (2, 9, b"n", b"v")
    ] * 2
    legacy = replace(transform, collections=False)
    assert keys(read_disk(vbucket.backfill(after=0, transform=legacy))) == [b"a"]


def test_closing_a_view_ends_it() -> None:
    bucket = make_bucket()
    vbucket = bucket.vbucket(0)
    vbucket.store(b"\0a", b"1")
    bucket.commit()
    view = vbucket.backfill(after=0, transform=AT_REST)
    assert vbucket.views == {view}
    view.close()
    view.close()
    assert vbucket.views == set()
    assert view.read(100) is None
    assert view.outcome is BackfillOutcome.CLOSED
