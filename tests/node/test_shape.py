"""What messages look like: sync writes, deletes, values, markers, dialects."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headrace.history import Seqno, SnapshotRange
from headrace.node.controls import Controls
from headrace.node.filters import LEGACY, PASS_ALL, EventGate
from headrace.node.opening import OpenOptions
from headrace.node.producer_context import ProducerSettings
from headrace.node.shape import Shape, Terms
from headrace.store.model import MemorySnapshot
from headrace.store.transform import Compression
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.messages import (
    Deletion,
    Expiration,
    Mutation,
    Prepare,
    SnapshotMarker,
)
from headrace.wire.opcodes import (
    Datatype,
    Feature,
    MarkerFlag,
    OpenFlag,
    StreamEndReason,
    StreamFlag,
)
from headrace.wire.values import deflate, inflate, join_xattrs, split_xattrs
from tests.node.replica_kit import replica_host
from tests.node.stream_kit import Host, Peer, disk_host, kinds, make_host, only, put, restarted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.store import VBucket

LATEST = StreamFlag.TO_LATEST
TIMES = OpenFlag.INCLUDE_DELETE_TIMES
COLLECTIONS = {"features": [Feature.COLLECTIONS], "controls": {"enable_noop": "true"}}
SYNC = {"enable_sync_writes": "true", "consumer_name": "node-b"}


@pytest.fixture(params=["memory", "lmdb"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    made = make_host(tmp_path / "bucket" if request.param == "lmdb" else None)
    yield made
    made.bucket.close()


# -- sync writes -----------------------------------------------------------------------------------


def durable_writes(vbucket: VBucket) -> None:
    """Prepare and commit, prepare and abort, prepare: seqnos 1 to 5."""
    vbucket.prepare(b"\0a", b"1", level=1)
    vbucket.commit_prepare(b"\0a")
    vbucket.prepare(b"\0b", b"2", level=1)
    vbucket.abort_prepare(b"\0b")
    vbucket.prepare(b"\0c", b"3", level=1)


def test_prepares_and_aborts_are_for_those_who_asked(host: Host) -> None:
    durable_writes(host.bucket.vbucket(0))
    plain = Peer(host)
    plain.stream(0, flags=LATEST)
    messages = plain.drain()
    assert (
        [describe for describe in kinds(messages) if describe.startswith("marker")][-1]
        .split()[1]
        .endswith("-2")
    )
    assert [one.by_seqno for one in only(messages, Mutation)] == [2]
    assert only(messages, Prepare) == []
    assert kinds(messages)[-1] == "end 0"


def test_a_sync_replica_gets_commits_and_v2_markers(host: Host) -> None:
    durable_writes(host.bucket.vbucket(0))
    peer = Peer(host, controls=SYNC)
    peer.stream(0)
    messages = peer.drain()
    items = [one for one in kinds(messages) if not one.startswith("marker")]
    assert items == ["prepare 1", "commit 2", "prepare 3", "abort 4", "prepare 5"]
    markers = only(messages, SnapshotMarker)
    assert all(marker.max_visible_seqno is not None for marker in markers)
    assert markers[-1].max_visible_seqno == 2


def test_sync_writes_without_a_name_give_mutations_and_v1_markers(host: Host) -> None:
    durable_writes(host.bucket.vbucket(0))
    peer = Peer(host, controls={"enable_sync_writes": "true"})
    peer.stream(0)
    messages = peer.drain()
    items = [one for one in kinds(messages) if not one.startswith("marker")]
    assert items == ["prepare 1", "mutation 2", "prepare 3", "abort 4", "prepare 5"]
    assert all(marker.max_visible_seqno is None for marker in only(messages, SnapshotMarker))


def test_a_disk_snapshot_has_mutations_for_commits(tmp_path: Path) -> None:
    path = tmp_path / "sync"
    host = make_host(path)
    durable_writes(host.bucket.vbucket(0))
    host = restarted(host, path)
    peer = Peer(host, controls=SYNC)
    peer.stream(0, flags=LATEST)
    messages = peer.drain()
    assert [one.by_seqno for one in only(messages, Mutation)] == [2]
    (marker,) = only(messages, SnapshotMarker)
    assert (marker.flags, marker.end_seqno) == (6, 5)
    assert (marker.max_visible_seqno, marker.high_completed_seqno) == (2, 3)
    host.bucket.close()


# -- deletes and expiry ----------------------------------------------------------------------------


def deletes(vbucket: VBucket) -> None:
    put(vbucket, "a", "b")
    vbucket.delete(b"\0a", delete_time=1_600_000_000)
    vbucket.expire(b"\0b", delete_time=1_600_000_001)


def test_delete_times_and_expirations_are_for_those_who_asked(host: Host) -> None:
    deletes(host.bucket.vbucket(0))
    full = Peer(host, flags=TIMES, controls={"enable_expiry_opcode": "true"})
    full.stream(0)
    messages = full.drain()
    (deletion,) = only(messages, Deletion)
    (expiration,) = only(messages, Expiration)
    assert (deletion.delete_time, deletion.nmeta) == (1_600_000_000, None)
    assert expiration.delete_time == 1_600_000_001
    times = Peer(host, flags=TIMES)
    times.stream(0)
    assert [one.delete_time for one in only(times.drain(), Deletion)] == [
        1_600_000_000,
        1_600_000_001,
    ]
    plain = Peer(host, controls={"enable_expiry_opcode": "true"})
    plain.stream(0)
    assert [one.nmeta for one in only(plain.drain(), Deletion)] == [0, 0]


def test_deletes_can_be_left_out_of_the_first_backfill(tmp_path: Path) -> None:
    path = tmp_path / "skip"
    host = make_host(path)
    put(host.bucket.vbucket(0), "c")
    deletes(host.bucket.vbucket(0))
    host = restarted(host, path)
    flags = TIMES | OpenFlag.SKIP_DELETES_IN_BACKFILL
    peer = Peer(host, flags=flags, **COLLECTIONS)  # type: ignore[arg-type]
    peer.stream(0)
    assert kinds(peer.drain()) == ["marker 0-5 06", "mutation 1", "advanced 5"]
    host.bucket.vbucket(0).delete(b"\0c")
    assert kinds(peer.drain()) == ["marker 6-6 05", "deletion 6"]
    host.bucket.close()


# -- dialects --------------------------------------------------------------------------------------


def test_the_draft_has_empty_markers_and_short_mutations(host: Host) -> None:
    deletes(host.bucket.vbucket(0))
    put(host.bucket.vbucket(0), "c")
    peer = Peer(host, dialect=Dialect.UPR_DRAFT)
    peer.stream(0, end=5)
    messages = peer.drain()
    assert kinds(messages) == ["marker", "deletion 3", "deletion 4", "mutation 5", "end 0"]
    (mutation,) = only(messages, Mutation)
    assert mutation.nru is None
    assert len(encode(mutation, Dialect.UPR_DRAFT)) == 24 + 30 + len(b"c") + len(b"v-c")


def test_upr_2014_enumerates_memory_and_disk(tmp_path: Path) -> None:
    host = disk_host(tmp_path, "a")
    peer = Peer(host, dialect=Dialect.UPR_2014)
    peer.stream(0)
    got = kinds(peer.drain())
    put(host.bucket.vbucket(0), "b")
    got += kinds(peer.drain())
    assert got == ["marker 0-1 02", "mutation 1", "marker 2-2 01", "mutation 2"]
    host.bucket.close()


@pytest.mark.parametrize("dialect", [Dialect.DCP_3, Dialect.DCP_5])
def test_older_dialects_have_no_checkpoint_flag_on_disk(tmp_path: Path, dialect: Dialect) -> None:
    host = disk_host(tmp_path, "a")
    peer = Peer(host, dialect=dialect)
    peer.stream(0)
    got = kinds(peer.drain())
    put(host.bucket.vbucket(0), "b")
    got += kinds(peer.drain())
    assert got == ["marker 0-1 02", "mutation 1", "marker 2-2 05", "mutation 2"]
    host.bucket.close()


# -- values ----------------------------------------------------------------------------------------

JSON, SNAPPY, XATTR = int(Datatype.JSON), int(Datatype.SNAPPY), int(Datatype.XATTR)
DOCUMENT = b'{"n":"' + b"x" * 200 + b'"}'
PAIRS = {"_sync": b"1", "user": b"2"}


def documents(vbucket: VBucket) -> None:
    """A document with xattrs, a plain one, a deleted one whose xattrs outlive it."""
    vbucket.store(b"\0x", join_xattrs(PAIRS, DOCUMENT), datatype=JSON | XATTR)
    vbucket.store(b"\0p", DOCUMENT, datatype=JSON)
    vbucket.delete(b"\0d", value=join_xattrs(PAIRS, b""), datatype=XATTR)


# Open flags -> datatype of the document with xattrs, of the plain one, of the deleted one.
VARIANTS = [
    (0x05, (5, 1, 4)),
    (0x01, (1, 1, 0)),
    (0x09, (0, 0, 0)),
    (0x0D, (4, 0, 4)),
    (0x41, (5, 1, 4)),
    (0x45, (5, 1, 4)),
]


@pytest.mark.parametrize(("flags", "datatypes"), VARIANTS)
def test_open_flags_choose_what_is_left_of_a_value(
    host: Host, flags: int, datatypes: tuple[int, int, int]
) -> None:
    documents(host.bucket.vbucket(0))
    peer = Peer(host, flags=flags, controls={"enable_noop": "true"})
    peer.stream(0)
    messages = peer.drain()
    with_xattrs, plain = only(messages, Mutation)
    (deleted,) = only(messages, Deletion)
    assert (with_xattrs.datatype, plain.datatype, deleted.datatype) == datatypes
    keeps_value = not flags & 0x48
    assert plain.value == (DOCUMENT if keeps_value else b"")
    if flags & OpenFlag.INCLUDE_XATTRS:
        pairs, document = split_xattrs(with_xattrs.value)
        assert pairs == PAIRS
        assert document == (DOCUMENT if keeps_value else b"")
        assert split_xattrs(deleted.value) == ({"_sync": b"1"}, b"")
    else:
        assert with_xattrs.value == plain.value
        assert deleted.value == b""


def test_user_xattrs_of_deletes_are_for_those_who_asked(host: Host) -> None:
    documents(host.bucket.vbucket(0))
    peer = Peer(host, flags=0x105, controls={"enable_noop": "true"})
    peer.stream(0)
    (deleted,) = only(peer.drain(), Deletion)
    assert split_xattrs(deleted.value) == (PAIRS, b"")


def test_snappy_is_sent_as_stored_forced_or_inflated(host: Host) -> None:
    vbucket = host.bucket.vbucket(0)
    vbucket.store(b"\0s", deflate(DOCUMENT), datatype=JSON | SNAPPY)
    vbucket.store(b"\0p", DOCUMENT, datatype=JSON)
    cases = (
        (Peer(host, features=[Feature.SNAPPY]), (3, 1)),
        (
            Peer(
                host,
                features=[Feature.SNAPPY],
                controls={"force_value_compression": "true"},
            ),
            (3, 3),
        ),
        (Peer(host), (1, 1)),
    )
    for peer, datatypes in cases:
        peer.stream(0)
        mutations = only(peer.drain(), Mutation)
        assert tuple(one.datatype for one in mutations) == datatypes
        for one in mutations:
            value = inflate(one.value) if one.datatype & SNAPPY else one.value
            assert value == DOCUMENT


# -- markers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("long_markers", [False, True])
def test_a_copy_of_a_disk_snapshot_tells_from_memory_what_was_purged(long_markers: bool) -> None:
    host = replica_host()
    copy = host.bucket.vbucket(0)
    copy.receive_snapshot(
        SnapshotRange(Seqno(0), Seqno(5)), new_checkpoint=True, from_disk=True, purge_seqno=4
    )
    copy.store(b"\0a", b"", seqno=5, cas=1, rev=1)
    copy.snapshot_reached()
    peer = Peer(
        host,
        features=[Feature.COLLECTIONS],
        flags=TIMES,
        controls={"enable_noop": "true", "max_marker_version": "2.2"},
        settings=ProducerSettings(long_markers=long_markers),
    )
    peer.stream(0)
    (marker,) = only(peer.drain(), SnapshotMarker)
    assert (marker.flags, marker.end_seqno, marker.purge_seqno) == (6, 5, 4)
    assert marker.high_prepared_seqno == (0 if long_markers else None)


@pytest.mark.parametrize("long_markers", [False, True])
def test_a_disk_marker_tells_the_purge_seqno_to_those_who_asked(
    tmp_path: Path, long_markers: bool
) -> None:
    host = disk_host(tmp_path, "a", "b")
    controls = {"enable_noop": "true", "max_marker_version": "2.2"}
    peer = Peer(
        host,
        features=[Feature.COLLECTIONS],
        flags=TIMES,
        controls=controls,
        settings=ProducerSettings(long_markers=long_markers),
    )
    peer.stream(0)
    (disk,) = only(peer.drain(), SnapshotMarker)
    assert (disk.purge_seqno, disk.max_visible_seqno, disk.high_completed_seqno) == (0, 2, 0)
    assert disk.high_prepared_seqno == (0 if long_markers else None)
    assert len(encode(disk, Dialect.DCP_7)) == 24 + 1 + (52 if long_markers else 44)
    put(host.bucket.vbucket(0), "c")
    (memory,) = only(peer.drain(), SnapshotMarker)
    assert (memory.purge_seqno, memory.max_visible_seqno) == (None, None)
    host.bucket.close()


# -- the shape itself ------------------------------------------------------------------------------


def shape(dialect: Dialect = Dialect.DCP_7, *, collections: bool = False, flags: int = 0) -> Shape:
    options = OpenOptions(name="n", producer=True, delete_times=bool(flags & TIMES), flags=flags)
    terms = Terms(
        dialect=dialect,
        features=frozenset(),
        collections=collections,
        options=options,
        controls=Controls(expiry_opcode=True),
    )
    filter_ = PASS_ALL if collections else LEGACY
    return Shape.of(terms, vbucket=3, opaque=7, filter_=filter_, only=None, gate=EventGate(filter_))


def test_expirations_need_delete_times() -> None:
    assert not shape().disk.expiry_opcode
    assert shape(flags=TIMES).disk.expiry_opcode


def test_without_snappy_values_are_inflated() -> None:
    assert shape().disk.compression is Compression.INFLATE


REASONS = [
    (Dialect.DCP_7, True, StreamEndReason.FILTER_EMPTY, StreamEndReason.FILTER_EMPTY),
    (Dialect.DCP_7, False, StreamEndReason.FILTER_EMPTY, StreamEndReason.FINISHED),
    (Dialect.DCP_7, False, StreamEndReason.LOST_PRIVILEGES, StreamEndReason.FINISHED),
    (Dialect.DCP_7, True, StreamEndReason.ROLLBACK, StreamEndReason.STATE_CHANGED),
    (Dialect.DCP_7, False, StreamEndReason.TOO_SLOW, StreamEndReason.TOO_SLOW),
    (Dialect.UPR_DRAFT, False, StreamEndReason.CLOSED, StreamEndReason.FINISHED),
    (Dialect.UPR_DRAFT, False, StreamEndReason.ROLLBACK, StreamEndReason.STATE_CHANGED),
]


@pytest.mark.parametrize(("dialect", "collections", "reason", "sent"), REASONS)
def test_a_stream_end_is_said_in_words_the_reader_knows(
    dialect: Dialect, collections: bool, reason: StreamEndReason, sent: StreamEndReason
) -> None:
    made = shape(dialect, collections=collections)
    assert made.stream_end(reason) == made.stream_end(sent)
    number = 1 if dialect is Dialect.UPR_DRAFT and sent else int(sent)
    assert made.stream_end(reason)[-4:] == number.to_bytes(4, "big")


@pytest.mark.parametrize(
    ("dialect", "stream_id"),
    [
        *((one, None) for one in Dialect if one is not Dialect.UPR_DRAFT),
        (Dialect.DCP_7, 5),
    ],
)
def test_a_short_marker_is_what_the_codec_makes(dialect: Dialect, stream_id: int | None) -> None:
    """Its head is made once per stream; nobody must see that."""
    terms = Terms(
        dialect=dialect,
        features=frozenset(),
        collections=stream_id is not None,
        options=OpenOptions(name="x", producer=True),
        controls=Controls(),
    )
    filter_ = PASS_ALL if stream_id is None else replace(PASS_ALL, stream_id=stream_id)
    for vbucket, opaque in ((3, 7), (4, 7), (3, 8)):
        shape = Shape.of(
            terms,
            vbucket=vbucket,
            opaque=opaque,
            filter_=filter_,
            only=None,
            gate=EventGate(filter_),
        )
        for start, end in ((0, 1), (2**40, 2**63)):
            snapshot = MemorySnapshot(
                first=start,
                end=end,
                visible_end=end,
                checkpoint_id=1,
                checkpoint_start=1,
                new_checkpoint=True,
                from_disk=False,
                high_completed_seqno=0,
                max_visible_seqno=end,
            )
            made = shape.memory_marker(snapshot, start=start, end=end, checkpoint=False)
            marker = SnapshotMarker(
                vbucket=vbucket,
                opaque=opaque,
                frame_infos=shape.infos,
                start_seqno=start,
                end_seqno=end,
                flags=MarkerFlag.MEMORY,
            )
            assert made == encode(marker, dialect)
