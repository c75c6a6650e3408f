"""Streams: where markers begin and end, disk and memory, filters, ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.history import BranchId, Seqno, SnapshotRange
from headrace.node import producer
from headrace.store.backfill import Backfill
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.messages import (
    BufferAck,
    Mutation,
    StreamEnd,
    SystemEvent,
)
from headrace.wire.opcodes import Feature, OpenFlag, StreamFlag, VBucketState
from tests.node.stream_kit import Host, Peer, disk_host, kinds, make_host, only, put, restarted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.store.model import Chunk


LATEST = StreamFlag.TO_LATEST
TIMES = OpenFlag.INCLUDE_DELETE_TIMES
COLLECTIONS = {"features": [Feature.COLLECTIONS], "controls": {"enable_noop": "true"}}
SHOP = {
    "uid": "1",
    "scopes": [
        {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]},
        {
            "name": "shop",
            "uid": "8",
            "collections": [{"name": "fruit", "uid": "9"}, {"name": "veg", "uid": "a"}],
        },
    ],
}
SHOP_WITHOUT_FRUIT = {
    "uid": "2",
    "scopes": [
        {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]},
        {"name": "shop", "uid": "8", "collections": [{"name": "veg", "uid": "a"}]},
    ],
}
NO_SHOP = {
    "uid": "3",
    "scopes": [{"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]}],
}


@pytest.fixture(params=["memory", "lmdb"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    made = make_host(tmp_path / "bucket" if request.param == "lmdb" else None)
    yield made
    made.bucket.close()


# -- memory ----------------------------------------------------------------------------------------


def test_a_live_stream_begins_at_the_requested_start_and_goes_on_item_by_item(host: Host) -> None:
    vbucket = host.bucket.vbucket(1)
    peer = Peer(host)
    peer.stream(1)
    got = []
    for names in (("a",), ("b", "c"), ("d", "b")):
        put(vbucket, *names)
        got += kinds(peer.drain())
    assert got == [
        "marker 0-1 05",
        "mutation 1",
        "marker 2-3 01",
        "mutation 2",
        "mutation 3",
        "marker 4-5 01",
        "mutation 4",
        "mutation 5",
    ]


def test_an_overwritten_item_is_sent_once_at_its_last_seqno(host: Host) -> None:
    vbucket = host.bucket.vbucket(0)
    put(vbucket, "a", "b", "a", "a")
    peer = Peer(host)
    peer.stream(0)
    assert kinds(peer.drain()) == ["marker 0-4 05", "mutation 2", "mutation 4"]


def test_a_new_checkpoint_begins_where_it_began(host: Host) -> None:
    vbucket = host.bucket.vbucket(0)
    peer = Peer(host)
    peer.stream(0)
    put(vbucket, "a")
    peer.drain()
    vbucket.close_checkpoint()
    put(vbucket, "b", "c", "b")
    assert kinds(peer.drain()) == ["marker 2-4 05", "mutation 3", "mutation 4"]
    put(vbucket, "d", "e", "d")
    assert kinds(peer.drain()) == ["marker 6-7 01", "mutation 6", "mutation 7"]


@pytest.mark.parametrize(
    ("start", "snapshot", "marker"),
    [(20, (20, 20), "marker 20-40 05"), (22, (20, 40), "marker 20-40 05")],
)
def test_the_first_marker_starts_at_the_requested_snapshot(
    host: Host, start: int, snapshot: tuple[int, int], marker: str
) -> None:
    put(host.bucket.vbucket(0), *(f"k{number}" for number in range(40)))
    peer = Peer(host)
    peer.stream(0, start, uuid=peer.uuid(), snapshot=snapshot, flags=LATEST)
    got = kinds(peer.drain())
    assert got[0] == marker
    assert got[1:] == [*(f"mutation {seqno}" for seqno in range(start + 1, 41)), "end 0"]


def test_a_client_at_the_high_seqno_is_told_the_end_at_once(host: Host) -> None:
    put(host.bucket.vbucket(0), "a", "b")
    peer = Peer(host)
    peer.stream(0, 2, uuid=peer.uuid(), flags=LATEST)
    assert kinds(peer.drain()) == ["end 0"]


def test_start_equal_to_end_ends_at_once_without_a_marker(host: Host) -> None:
    put(host.bucket.vbucket(0), "a", "b")
    peer = Peer(host)
    peer.stream(0, 0, end=0)
    assert kinds(peer.drain()) == ["end 0"]


def test_an_end_inside_a_snapshot_does_not_cut_it(host: Host) -> None:
    put(host.bucket.vbucket(0), *"abcdef")
    peer = Peer(host)
    peer.stream(0, 0, end=3)
    assert kinds(peer.drain())[-1] == "end 0"
    assert len(only(peer.drain(), Mutation)) == 0


def test_an_end_beyond_the_high_seqno_waits_for_it(host: Host) -> None:
    vbucket = host.bucket.vbucket(0)
    put(vbucket, "a", "b")
    peer = Peer(host)
    peer.stream(0, 0, end=4)
    assert only(peer.drain(), StreamEnd) == []
    put(vbucket, "c")
    assert only(peer.drain(), StreamEnd) == []
    put(vbucket, "d", "e")
    assert kinds(peer.drain()) == ["marker 4-5 01", "mutation 4", "mutation 5", "end 0"]


def test_what_is_overwritten_while_it_is_sent_stays_in_its_snapshot(host: Host) -> None:
    vbucket = host.bucket.vbucket(0)
    put(vbucket, *(f"k{number}" for number in range(50)))
    peer = Peer(host)
    peer.stream(0)
    first = peer.pull(100)
    put(vbucket, *(f"k{number}" for number in range(50)))
    got = kinds(first) + kinds(peer.drain())
    assert got[0] == "marker 0-50 05"
    assert got[1:51] == [f"mutation {seqno}" for seqno in range(1, 51)]
    assert got[51:] == ["marker 51-100 01", *(f"mutation {seqno}" for seqno in range(51, 101))]


# -- disk ------------------------------------------------------------------------------------------


def test_a_backfill_is_one_disk_snapshot_to_the_end_of_the_disk(tmp_path: Path) -> None:
    host = disk_host(tmp_path, "a", "b", "a", "c", "b")
    peer = Peer(host)
    peer.stream(0, flags=LATEST)
    assert kinds(peer.drain()) == [
        "marker 0-5 06",
        "mutation 3",
        "mutation 4",
        "mutation 5",
        "end 0",
    ]
    host.bucket.close()


def test_memory_follows_a_backfill_with_the_checkpoint_flag(tmp_path: Path) -> None:
    host = disk_host(tmp_path, "a", "b")
    peer = Peer(host)
    peer.stream(0)
    assert kinds(peer.drain()) == ["marker 0-2 06", "mutation 1", "mutation 2"]
    put(host.bucket.vbucket(0), "c")
    assert kinds(peer.drain()) == ["marker 3-3 05", "mutation 3"]
    put(host.bucket.vbucket(0), "d")
    assert kinds(peer.drain()) == ["marker 4-4 01", "mutation 4"]
    host.bucket.close()


def test_a_backfill_from_inside_a_snapshot_starts_at_its_start(tmp_path: Path) -> None:
    host = disk_host(tmp_path, *(f"k{number}" for number in range(40)))
    peer = Peer(host)
    peer.stream(0, 10, uuid=peer.uuid(), snapshot=(0, 20), flags=LATEST)
    got = kinds(peer.drain())
    assert got[:2] == ["marker 0-40 06", "mutation 11"]
    assert got[-1] == "end 0"
    host.bucket.close()


@pytest.mark.parametrize("end", [7, 3])
def test_a_backfill_ignores_an_end_inside_its_snapshot(tmp_path: Path, end: int) -> None:
    host = disk_host(tmp_path, *(f"k{number}" for number in range(22)))
    peer = Peer(host)
    peer.stream(0, 0, end=end)
    assert kinds(peer.drain()) == [
        "marker 0-22 06",
        *(f"mutation {seqno}" for seqno in range(1, 23)),
        "end 0",
    ]
    host.bucket.close()


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The limit of each read of a view of the disk from now on."""
    reads: list[int] = []
    read = Backfill.read

    def counted(view: Backfill, limit_bytes: int) -> Chunk | None:
        reads.append(limit_bytes)
        return read(view, limit_bytes)

    monkeypatch.setattr(Backfill, "read", counted)
    return reads


def test_the_end_of_a_backfill_is_known_with_its_last_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = disk_host(tmp_path, *(f"k{number}" for number in range(40)))
    peer = Peer(host)
    peer.stream(0, flags=LATEST)
    reads = counted_reads(monkeypatch)
    assert kinds(peer.drain())[-2:] == ["mutation 40", "end 0"]
    assert len(reads) == 1
    host.bucket.close()


def test_the_few_bytes_a_chunk_leaves_of_a_pull_are_not_read_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk read ahead leaves room for a marker that most of its pulls do not send."""
    monkeypatch.setattr(producer, "TURN_BYTES", 64 * 1024)
    host = disk_host(tmp_path, *(f"k{number}" for number in range(2000)))
    peer = Peer(host)
    peer.stream(0, flags=LATEST)
    peer.producer.pull(1, peer.now)
    reads = counted_reads(monkeypatch)
    for pulls in range(1, 3):
        assert peer.producer.look_ahead() is None
        assert peer.producer.look_ahead(at_least=1) is not None
        assert len(peer.producer.pull(64 * 1024, peer.now)) < 64 * 1024
        assert len(reads) == pulls
    host.bucket.close()


def test_a_disk_only_stream_ends_with_what_is_persisted(host: Host) -> None:
    vbucket = host.bucket.vbucket(0)
    put(vbucket, "a", "b")
    host.bucket.commit()
    put(vbucket, "c")
    peer = Peer(host)
    peer.stream(0, flags=StreamFlag.DISK_ONLY)
    assert kinds(peer.drain()) == ["marker 0-2 06", "mutation 1", "mutation 2", "end 0"]


def test_a_disk_only_stream_of_nothing_ends_at_once(host: Host) -> None:
    peer = Peer(host)
    peer.stream(0, flags=StreamFlag.DISK_ONLY)
    assert kinds(peer.drain()) == ["end 0"]


def test_backfills_beyond_the_limit_wait_their_turn(tmp_path: Path) -> None:
    path = tmp_path / "many"
    host = make_host(path, vbuckets=6)
    for vbucket in host.bucket.vbuckets:
        put(vbucket, "a", "b", "c")
    host = restarted(host, path)
    peer = Peer(host, controls={"backfill_order": "sequential"})
    for number in range(6):
        peer.stream(number, flags=LATEST)
    got = peer.drain(budget=60)
    order = [message.vbucket for message in only(got, Mutation)]
    assert order == sorted(order)
    assert len(only(got, StreamEnd)) == 6
    assert peer.producer.schedule.backfills == 0
    host.bucket.close()


# -- states ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [VBucketState.DEAD, VBucketState.REPLICA, VBucketState.PENDING])
def test_a_change_of_state_ends_the_stream(host: Host, state: VBucketState) -> None:
    put(host.bucket.vbucket(0), "a")
    peer = Peer(host)
    peer.stream(0)
    peer.drain()
    host.bucket.vbucket(0).set_state(state)
    host.feed.tell(0)
    assert kinds(peer.drain()) == ["end 2"]


def test_a_deleted_vbucket_ends_the_stream(host: Host) -> None:
    peer = Peer(host)
    peer.stream(0)
    peer.drain()
    host.bucket.delete_vbucket(0)
    host.feed.tell(0)
    assert kinds(peer.drain()) == ["end 2"]


def test_a_failover_ends_the_stream_and_rolls_its_reader_back(host: Host) -> None:
    put(host.bucket.vbucket(0), "a", "b", "c", "d")
    peer = Peer(host)
    uuid = peer.stream(0).failover_log[0].uuid
    peer.drain()
    host.bucket.vbucket(0).failover(2)
    host.feed.tell(0)
    assert kinds(peer.drain()) == ["end 2"]
    reply = peer.request(0, 4, uuid=uuid)
    assert getattr(reply, "rollback_seqno", None) == 2


def test_a_flush_ends_every_stream(host: Host) -> None:
    put(host.bucket.vbucket(0), "a")
    peer = Peer(host)
    peer.stream(0)
    peer.stream(1)
    peer.drain()
    host.bucket.flush()
    host.feed.tell_all()
    assert kinds(peer.drain()) == ["end 2", "end 2"]


# -- collections -----------------------------------------------------------------------------------


def test_a_collections_client_sees_keys_with_ids_and_events(host: Host) -> None:
    host.set_manifest(SHOP)
    vbucket = host.bucket.vbucket(0)
    put(vbucket, "apple", collection=b"\x09")
    peer = Peer(host, flags=TIMES, **COLLECTIONS)  # type: ignore[arg-type]
    peer.stream(0, flags=LATEST)
    messages = peer.drain()
    assert kinds(messages) == [
        "marker 0-4 05",
        "event 3 1",
        "event 0 2",
        "event 0 3",
        "mutation 4",
        "end 0",
    ]
    assert only(messages, Mutation)[0].key == b"\x09apple"
    assert [event.key for event in only(messages, SystemEvent)] == [b"shop", b"fruit", b"veg"]


def test_a_legacy_client_sees_the_default_collection_alone(host: Host) -> None:
    vbucket = host.bucket.vbucket(0)
    host.set_manifest(SHOP)
    peer = Peer(host)
    peer.stream(0)
    assert peer.drain() == []
    put(vbucket, "pear", collection=b"\x09")
    put(vbucket, "plain")
    put(vbucket, "plum", collection=b"\x09")
    messages = peer.drain()
    assert kinds(messages) == ["marker 0-5 05", "mutation 5"]
    assert only(messages, Mutation)[0].key == b"plain"
    put(vbucket, "fig", collection=b"\x09")
    assert peer.drain() == []
    put(vbucket, "more")
    assert kinds(peer.drain()) == ["marker 8-8 01", "mutation 8"]


def test_a_legacy_stream_whose_last_seqno_is_hidden_ends(tmp_path: Path) -> None:
    path = tmp_path / "hidden"
    host = make_host(path)
    host.set_manifest(SHOP)
    put(host.bucket.vbucket(0), "plain")
    put(host.bucket.vbucket(0), "pear", collection=b"\x09")
    for one in (host, restarted(host, path)):
        if one is host:
            continue
        peer = Peer(one)
        peer.stream(0, flags=LATEST)
        assert kinds(peer.drain()) == ["marker 0-4 06", "mutation 4", "end 0"]
        peer.stream(1, flags=LATEST)
        assert kinds(peer.drain()) == ["end 0"]
        peer.stream(2, flags=StreamFlag.DISK_ONLY)
        assert kinds(peer.drain()) == ["end 0"]
        one.bucket.close()


def test_a_filtered_stream_is_told_of_the_seqno_it_has_reached(host: Host) -> None:
    host.set_manifest(SHOP)
    vbucket = host.bucket.vbucket(0)
    put(vbucket, "pear", collection=b"\x09")
    put(vbucket, "kale", collection=b"\x0a")
    peer = Peer(host, flags=TIMES, **COLLECTIONS)  # type: ignore[arg-type]
    peer.stream(0, value=b'{"collections":["9"]}')
    assert kinds(peer.drain()) == ["marker 0-5 05", "event 0 2", "mutation 4", "advanced 5"]
    put(vbucket, "leek", collection=b"\x0a")
    assert kinds(peer.drain()) == ["marker 6-6 01", "advanced 6"]


def test_a_filtered_backfill_is_told_of_its_end(tmp_path: Path) -> None:
    path = tmp_path / "filtered"
    host = make_host(path)
    host.set_manifest(SHOP)
    put(host.bucket.vbucket(0), "pear", collection=b"\x09")
    put(host.bucket.vbucket(0), "kale", collection=b"\x0a")
    host = restarted(host, path)
    peer = Peer(host, flags=TIMES, **COLLECTIONS)  # type: ignore[arg-type]
    peer.stream(0, value=b'{"collections":["9"]}', flags=LATEST)
    assert kinds(peer.drain()) == [
        "marker 0-5 06",
        "event 0 2",
        "mutation 4",
        "advanced 5",
        "end 0",
    ]
    host.bucket.close()


def test_a_filter_that_runs_empty_ends_the_stream(host: Host) -> None:
    host.set_manifest(SHOP)
    peer = Peer(host, flags=TIMES, **COLLECTIONS)  # type: ignore[arg-type]
    peer.stream(0, 3, uuid=peer.uuid(), value=b'{"collections":["9"]}')
    peer.drain()
    host.set_manifest(SHOP_WITHOUT_FRUIT)
    assert kinds(peer.drain()) == ["marker 3-4 05", "event 1 4", "end 7"]


def test_a_scope_filter_follows_its_scope(host: Host) -> None:
    peer = Peer(host, flags=TIMES, **COLLECTIONS)  # type: ignore[arg-type]
    host.set_manifest(SHOP_WITHOUT_FRUIT)
    peer.stream(0, value=b'{"scope":"8"}')
    peer.drain()
    with_fruit = {**SHOP, "uid": "3"}
    host.set_manifest(with_fruit)
    put(host.bucket.vbucket(0), "pear", collection=b"\x09")
    put(host.bucket.vbucket(0), "plain")
    assert kinds(peer.drain()) == ["marker 3-5 01", "event 0 3", "mutation 4", "advanced 5"]
    host.set_manifest({**NO_SHOP, "uid": "4"})
    got = kinds(peer.drain())
    assert got[-1] == "end 7"
    assert "event 4 8" in got


def test_events_come_as_tables_to_those_who_asked(host: Host) -> None:
    host.set_manifest(SHOP)
    controls = {"enable_noop": "true", "flatbuffers_system_events": "true"}
    peer = Peer(host, flags=TIMES, features=[Feature.COLLECTIONS], controls=controls)
    peer.stream(0)
    events = only(peer.drain(), SystemEvent)
    assert [event.version for event in events] == [2, 2, 2]


# -- replicas --------------------------------------------------------------------------------------


def replica(host: Host, seqno: int, name: str) -> None:
    host.bucket.vbucket(0).apply_frames(
        encode(Mutation(key=b"\0" + name.encode(), value=b"v", by_seqno=seqno), Dialect.DCP_7)
    )


def receive(host: Host, start: int, end: int, *, disk: bool = False) -> None:
    host.bucket.vbucket(0).receive_snapshot(
        SnapshotRange(start, end),  # type: ignore[arg-type]
        new_checkpoint=disk,
        from_disk=disk,
    )


def test_a_replica_that_holds_half_a_snapshot_sends_the_rest_when_it_has_it(host: Host) -> None:
    host.bucket.vbucket(0).set_state(VBucketState.REPLICA)
    receive(host, 0, 2)
    replica(host, 1, "a")
    replica(host, 2, "b")
    receive(host, 3, 6)
    replica(host, 4, "c")
    peer = Peer(host)
    peer.stream(0)
    got = kinds(peer.drain())
    assert got[-1] == "mutation 4"
    assert any(one.startswith("marker") and "-6 " in one for one in got)
    replica(host, 6, "d")
    host.feed.tell(0)
    assert kinds(peer.drain()) == ["mutation 6"]


def test_a_replica_that_follows_another_branch_ends_the_streams_it_sends(host: Host) -> None:
    vbucket = host.bucket.vbucket(0)
    vbucket.set_state(VBucketState.REPLICA)
    receive(host, 0, 1)
    replica(host, 1, "a")
    peer = Peer(host)
    peer.stream(0)
    assert kinds(peer.drain())[-1] == "mutation 1"
    old = vbucket.failover_log
    vbucket.replace_failover_log(old.promoted(BranchId(77), complete_end=Seqno(1)))
    receive(host, 2, 2)
    replica(host, 2, "of another branch")
    host.feed.tell(0)
    assert kinds(peer.drain()) == ["end 2"]


def test_a_replicas_disk_that_ends_inside_a_snapshot_is_continued_from_memory(
    tmp_path: Path,
) -> None:
    path = tmp_path / "replica"
    host = make_host(path)
    host.bucket.vbucket(0).set_state(VBucketState.REPLICA)
    receive(host, 0, 6, disk=False)
    replica(host, 2, "a")
    replica(host, 3, "b")
    host = restarted(host, path)
    peer = Peer(host)
    peer.stream(0, end=3)
    assert kinds(peer.drain()) == ["marker 0-6 06", "mutation 2", "mutation 3"]
    replica(host, 6, "c")
    host.feed.tell(0)
    assert kinds(peer.drain()) == ["mutation 6", "end 0"]
    host.bucket.close()


# -- slow readers ----------------------------------------------------------------------------------


def test_a_dropped_cursor_goes_back_to_disk_and_returns(tmp_path: Path) -> None:
    host = make_host(tmp_path / "slow", memory_quota=8 << 20, segment_bytes=64 << 10)
    vbucket = host.bucket.vbucket(0)
    peer = Peer(host, flags=OpenFlag.NO_VALUE, controls={"connection_buffer_size": "1500"})
    peer.stream(0)
    put(vbucket, *(f"first-{number}" for number in range(5)))
    got = kinds(peer.drain(ack=True))
    peer.control("connection_buffer_size", "1500")
    for number in range(3000):
        vbucket.store(b"\0k%04d" % number, b"x" * 10_000)
        if number % 50 == 0:
            got += kinds(peer.drain())
            host.bucket.commit()
            host.bucket.maintain()
    for _ in range(10_000):
        peer.tell(BufferAck(ack_bytes=peer.producer.window.outstanding))
        more = kinds(peer.drain())
        got += more
        if not more:
            break
    put(vbucket, "last")
    got += kinds(peer.drain(ack=True))
    flags = [one.split()[2] for one in got if one.startswith("marker")]
    assert "06" in flags
    assert flags[-1] in ("01", "05")
    seqnos = [int(one.split()[1]) for one in got if one.startswith("mutation")]
    assert seqnos == list(range(1, 3007))
    host.bucket.close()
