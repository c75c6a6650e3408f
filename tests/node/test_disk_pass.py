"""Snapshots from disk that are not the usual one: out of order, with history, past a purge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.node.disk_pass import KeyOrder, OsoLimits, key_of, seqno_of, split_frames
from headrace.node.producer_context import ProducerSettings
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.message import stream_id_info
from headrace.wire.messages import Commit, Deletion, Mutation, SystemEvent
from headrace.wire.opcodes import Feature, OpenFlag, StreamFlag
from tests.node.stream_kit import Peer, describe, kinds, make_host, only, put, restarted

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.wire.message import Message
    from tests.node.stream_kit import Host

LATEST = StreamFlag.TO_LATEST
TIMES = OpenFlag.INCLUDE_DELETE_TIMES
SHOP = {
    "uid": "1",
    "scopes": [
        {
            "name": "_default",
            "uid": "0",
            "collections": [{"name": "_default", "uid": "0"}, {"name": "fruit", "uid": "9"}],
        }
    ],
}

FRAMES: list[Message] = [
    Mutation(key=b"\0b", value=b"v", by_seqno=4),
    Mutation(key=b"\0a", by_seqno=5, frame_infos=(stream_id_info(3),)),
    Commit(key=b"\0c", prepared_seqno=2, commit_seqno=6),
    SystemEvent(by_seqno=7, event=0, version=0, key=b"zz", value=b"x"),
    Deletion(key=b"\0d", by_seqno=8, nmeta=0),
]


def test_a_chunk_is_cut_at_its_frames() -> None:
    data = b"".join(encode(one, Dialect.DCP_7) for one in FRAMES)
    frames = list(split_frames(memoryview(data)))
    assert b"".join(frames) == data
    assert [seqno_of(frame) for frame in frames] == [4, 5, 6, 7, 8]
    assert [key_of(frame) for frame in frames] == [b"\0b", b"\0a", b"\0c", b"zz", b"\0d"]


def test_key_order_puts_events_first() -> None:
    frames = [memoryview(encode(one, Dialect.DCP_7)) for one in FRAMES]
    order = KeyOrder(frames, end=9)
    seqnos = []
    while (chunk := order.read(1)) is not None:
        seqnos += [seqno_of(frame) for frame in split_frames(chunk.data)]
        assert chunk.count == 1
    assert seqnos == [7, 5, 4, 6, 8]
    assert (order.highest, order.end) == (8, 9)


def shop(path: Path, *, fruit: tuple[str, ...], plain: int) -> Host:
    host = make_host(path)
    host.set_manifest(SHOP)
    vbucket = host.bucket.vbucket(0)
    put(vbucket, *fruit, collection=b"\x09")
    put(vbucket, *(f"p{number}" for number in range(plain)))
    return restarted(host, path)


OSO = {"enable_noop": "true", "enable_out_of_order_snapshots": "true"}
OSO_TOLD = {**OSO, "enable_out_of_order_snapshots": "true_with_seqno_advanced"}


@pytest.mark.parametrize(("controls", "told"), [(OSO, []), (OSO_TOLD, ["advanced 14"])])
def test_a_small_collection_comes_in_key_order(
    tmp_path: Path, controls: dict[str, str], told: list[str]
) -> None:
    host = shop(tmp_path / "b", fruit=("pear", "apple", "fig"), plain=10)
    peer = Peer(host, features=[Feature.COLLECTIONS], flags=TIMES, controls=controls)
    peer.stream(0, value=b'{"collections":["9"]}')
    messages = peer.drain(budget=40)
    assert kinds(messages) == [
        "oso 1",
        "event 0 1",
        "mutation 3",
        "mutation 4",
        "mutation 2",
        *told,
        "oso 2",
    ]
    assert [one.key for one in only(messages, Mutation)] == [b"\x09apple", b"\x09fig", b"\x09pear"]
    put(host.bucket.vbucket(0), "kiwi", collection=b"\x09")
    assert kinds(peer.drain()) == ["marker 15-15 05", "mutation 15"]
    host.bucket.close()


def test_a_large_collection_comes_in_seqno_order(tmp_path: Path) -> None:
    host = shop(tmp_path / "b", fruit=("pear", "apple", "fig"), plain=2)
    peer = Peer(host, features=[Feature.COLLECTIONS], flags=TIMES, controls=OSO)
    peer.stream(0, value=b'{"collections":["9"]}')
    assert kinds(peer.drain())[0] == "marker 0-6 06"
    host.bucket.close()


def test_a_resumed_stream_comes_in_seqno_order(tmp_path: Path) -> None:
    host = shop(tmp_path / "b", fruit=("pear", "apple", "fig"), plain=10)
    peer = Peer(host, features=[Feature.COLLECTIONS], flags=TIMES, controls=OSO)
    peer.stream(0, 2, uuid=peer.uuid(), value=b'{"collections":["9"]}')
    assert kinds(peer.drain())[0] == "marker 2-14 06"
    host.bucket.close()


def test_what_outgrows_the_limits_while_it_is_read_comes_in_seqno_order(tmp_path: Path) -> None:
    host = shop(tmp_path / "b", fruit=("pear", "apple", "fig"), plain=10)
    settings = ProducerSettings(oso=OsoLimits(bytes_max=100))
    peer = Peer(host, features=[Feature.COLLECTIONS], flags=TIMES, controls=OSO, settings=settings)
    peer.stream(0, value=b'{"collections":["9"]}')
    assert kinds(peer.drain())[0] == "marker 0-14 06"
    host.bucket.close()


# -- history ---------------------------------------------------------------------------------------


def test_a_change_stream_gets_every_version(tmp_path: Path) -> None:
    path = tmp_path / "h"
    host = make_host(path, history_bytes=1 << 30)
    put(host.bucket.vbucket(0), "a", "b", "a", "a")
    host = restarted(host, path)
    controls = {"change_streams": "true"}
    peer = Peer(host, controls=controls)
    peer.stream(0, flags=LATEST)
    got = kinds(peer.drain())
    assert got == [
        "marker 0-4 36",
        "mutation 1",
        "mutation 2",
        "mutation 3",
        "mutation 4",
        "end 0",
    ]
    plain = Peer(host)
    plain.stream(0, flags=LATEST)
    assert kinds(plain.drain()) == ["marker 0-4 06", "mutation 2", "mutation 4", "end 0"]
    host.bucket.close()


def test_a_change_stream_goes_on_with_every_commit(tmp_path: Path) -> None:
    host = make_host(tmp_path / "h", history_bytes=1 << 30)
    vbucket = host.bucket.vbucket(0)
    peer = Peer(host, controls={"change_streams": "true"})
    peer.stream(0)
    assert peer.drain() == []
    for first in (1, 4):
        wakes = peer.session.wakes
        put(vbucket, "a", "a", "b")
        assert peer.drain() == []
        wakes = peer.session.wakes
        host.bucket.commit()
        assert peer.session.wakes > wakes
        assert kinds(peer.drain()) == [
            f"marker {0 if first == 1 else first}-{first + 2} 36",
            f"mutation {first}",
            f"mutation {first + 1}",
            f"mutation {first + 2}",
        ]
    assert peer.producer.schedule.backfills == 0
    host.bucket.close()


# -- purges ----------------------------------------------------------------------------------------


def unpurged(path: Path) -> Host:
    host = make_host(path)
    vbucket = host.bucket.vbucket(0)
    put(vbucket, "a", "b", "c")
    vbucket.delete(b"\0a")
    vbucket.delete(b"\0b")
    put(vbucket, "d")
    return restarted(host, path)


def purged(path: Path) -> Host:
    host = unpurged(path)
    purge(host)
    return host


def purge(host: Host) -> None:
    host.bucket.compact(drop_deletes=True)
    assert host.bucket.vbucket(0).purge_seqno == 5


def test_a_reader_behind_the_purge_starts_again(tmp_path: Path) -> None:
    host = purged(tmp_path / "p")
    peer = Peer(host)
    reply = peer.request(0, 2, uuid=peer.uuid())
    assert getattr(reply, "rollback_seqno", None) == 0
    host.bucket.close()


EXEMPT = {
    "ignores it": (StreamFlag.IGNORE_PURGED_TOMBSTONES, b""),
    "knows it": (StreamFlag(0), b'{"purge_seqno":"5"}'),
}


@pytest.mark.parametrize("case", EXEMPT.values(), ids=EXEMPT)
def test_a_reader_behind_the_purge_that_does_not_mind_goes_on(
    tmp_path: Path, case: tuple[StreamFlag, bytes]
) -> None:
    host = purged(tmp_path / "p")
    flags, value = case
    features = [Feature.COLLECTIONS] if value else []
    peer = Peer(host, features=features, flags=TIMES, controls={"enable_noop": "true"})
    peer.stream(0, 1, uuid=peer.uuid(), flags=flags | LATEST, value=value)
    assert [describe(one) for one in peer.drain()] == [
        "marker 1-6 06",
        "mutation 3",
        "mutation 6",
        "end 0",
    ]
    host.bucket.close()


LATE = {
    "ignores it": (
        StreamFlag.IGNORE_PURGED_TOMBSTONES,
        ["marker 2-6 06", "mutation 3", "mutation 6", "end 0"],
    ),
    "minds": (StreamFlag(0), ["end 2"]),
}


@pytest.mark.parametrize("case", LATE.values(), ids=LATE)
def test_a_purge_between_the_request_and_the_first_read_is_not_forgiven_to_a_reader_that_minds(
    tmp_path: Path, case: tuple[StreamFlag, list[str]]
) -> None:
    """It stands at 2, holds "a" and "b", and would never hear that they were deleted."""
    flags, expected = case
    host = unpurged(tmp_path / "p")
    peer = Peer(host, flags=TIMES)
    peer.stream(0, 2, uuid=peer.uuid(), flags=flags | LATEST)
    purge(host)
    assert kinds(peer.drain()) == expected
    reply = peer.request(0, 2, uuid=peer.uuid(), flags=flags)
    assert getattr(reply, "rollback_seqno", None) == (None if flags else 0)
    host.bucket.close()
