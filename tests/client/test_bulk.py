"""Two roads, one truth: any split of the bytes gives the same rows, tokens and failures."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING

import pytest

from headrace.client.bulk import BulkRoad, ObjectRoad, Rows, Whole, holds_frame
from headrace.errors import RemoteProtocolError
from headrace.history import VBucketId
from headrace.protocol import events as e
from headrace.protocol.consumer import ConsumerConnection
from headrace.protocol.handshake import ConsumerSettings
from headrace.protocol.talk import StreamPlan
from headrace.wire import admin
from headrace.wire import messages as m
from headrace.wire.codec import decode, encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import split_frames
from headrace.wire.message import Message, Reply, Request
from tests.client.producer import COLLECTIONS, LOG, accept, end, marker, mutation, mutations

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.client.bulk import Piece

DIALECT = Dialect.DCP_7


def connection_of(window: int = 1 << 20) -> ConsumerConnection:
    return ConsumerConnection(ConsumerSettings(name="test", window=window), now=0.0, nonce="nonce")


def shake_hands(road: BulkRoad | ObjectRoad) -> None:
    """Answer everything until the connection stands."""
    while road.connection.connected is None:
        (frame,) = split_frames(road.connection.take_output())
        request = decode(frame, DIALECT)
        reply: Reply
        if isinstance(request, admin.Hello):
            reply = admin.HelloReply(features=(COLLECTIONS,))
        elif isinstance(request, m.Open):
            reply = m.OpenReply()
        else:
            reply = m.ControlReply()
        road.take(
            memoryview(encode(dataclasses.replace(reply, opaque=frame.opaque), DIALECT)), now=0.0
        )
    assert road.failure is None


def streams(road: BulkRoad | ObjectRoad, vbuckets: int) -> dict[int, int]:
    """Request streams; vbucket -> opaque."""
    for vbucket in range(vbuckets):
        road.connection.request_stream(StreamPlan(vbucket=VBucketId(vbucket)))
    asked = [decode(frame, DIALECT) for frame in split_frames(road.connection.take_output())]
    return {one.vbucket: one.opaque for one in asked if isinstance(one, m.StreamRequest)}


def wire(opaques: dict[int, int], *said: tuple[int, Message]) -> bytes:
    parts = []
    for vbucket, message in said:
        named = dataclasses.replace(message, opaque=opaques[vbucket])
        if isinstance(named, Request):
            named = dataclasses.replace(named, vbucket=vbucket)
        parts.append(encode(named, DIALECT))
    return b"".join(parts)


def drain(road: BulkRoad | ObjectRoad, chunks: Iterable[bytes]) -> list[Piece]:
    """Give bytes as a link does; everything given back at once."""
    rest = b""
    found: list[Piece] = []
    for chunk in chunks:
        rest += chunk
        while holds_frame(memoryview(rest)):
            taken = road.take(memoryview(rest), now=1.0)
            rest = rest[taken.consumed :]
            found += taken.pieces
            road.connection.processed(taken.size, now=1.0)
            for piece in taken.pieces:
                if isinstance(piece, e.ItemReceived):
                    road.connection.processed(piece.size, now=1.0)
            if road.failure is not None:
                return found
            assert taken.consumed
    return found


def rows_of(pieces: list[Piece]) -> list[tuple[int, int]]:
    found = []
    for piece in pieces:
        if isinstance(piece, Rows):
            part = piece.batch.slice(piece.start, piece.stop - piece.start)
            assert set(part.column("vbucket").to_pylist()) == {piece.vbucket}
            found += [(piece.vbucket, seqno) for seqno in part.column("seqno").to_pylist()]
        elif isinstance(piece, e.ItemReceived):
            found.append((piece.vbucket, piece.seqno))
    return found


def conversation(seed: int) -> list[tuple[int, Message]]:
    """Three vbuckets taking turns with snapshots of random sizes, one of them ended."""
    chance = random.Random(seed)
    said: list[tuple[int, Message]] = [(v, accept()) for v in range(3)]
    seqnos = [0, 0, 0]
    for _ in range(40):
        vbucket = chance.randrange(3)
        first = seqnos[vbucket] + 1
        last = first + chance.randrange(0, 9)
        said.append((vbucket, marker(first, last, flags=chance.choice([1, 2, 9]))))
        said += [(vbucket, one) for one in mutations(first, last)]
        seqnos[vbucket] = last
        if chance.random() < 0.2:
            said.append((vbucket, m.Noop(opaque=1)))
    said.append((2, end()))
    return said


def chopped(data: bytes, chance: random.Random) -> Iterable[bytes]:
    at = 0
    while at < len(data):
        size = chance.choice([1, 7, 100, 5000])
        yield data[at : at + size]
        at += size


@pytest.mark.parametrize("seed", range(8))
def test_both_roads_give_the_same_whatever_the_split(seed: int) -> None:
    told = []
    for kind in (BulkRoad, ObjectRoad):
        for pieces in (1 << 30, None):
            road = kind(connection_of())
            shake_hands(road)
            data = wire(streams(road, 3), *conversation(seed))
            chunks = chopped(data, random.Random(seed)) if pieces is None else [data]
            found = drain(road, chunks)
            assert road.failure is None
            window = road.connection.window
            positions = road.connection.positions()
            told.append(
                (
                    sorted(rows_of(found)),
                    [r for r in rows_of(found) if r[0] == 1],
                    positions,
                    [one.position for one in found if isinstance(one, Whole) and one.vbucket == 0],
                    (window.held, window.freed + window.total_acknowledged),
                )
            )
    assert all(one == told[0] for one in told), f"seed {seed}"
    assert told[0][4][0] == 0, "everything was given back"


def test_a_noop_inside_the_data_is_answered() -> None:
    road = BulkRoad(connection_of())
    shake_hands(road)
    opaques = streams(road, 1)
    drain(road, [wire(opaques, (0, accept()), (0, marker(1, 2)), (0, mutation(1)))])
    drain(road, [encode(m.Noop(opaque=99), DIALECT)])
    (frame,) = split_frames(road.connection.take_output())
    assert decode(frame, DIALECT) == m.NoopReply(opaque=99)


def test_rows_the_stream_refuses_are_not_told() -> None:
    """They would come again after the reconnection: told twice is worse than told late."""
    road = BulkRoad(connection_of())
    shake_hands(road)
    opaques = streams(road, 1)
    good = [(0, accept()), (0, marker(1, 3)), *((0, one) for one in mutations(1, 3))]
    bad = [(0, marker(9, 10)), (0, mutation(11))]
    found = drain(road, [wire(opaques, *good, *bad)])
    assert rows_of(found) == [(0, 1), (0, 2), (0, 3)]
    assert isinstance(road.failure, RemoteProtocolError)
    assert road.connection.position(VBucketId(0)).token.seqno == 3


def test_seqnos_that_fall_inside_a_snapshot_are_refused() -> None:
    road = BulkRoad(connection_of())
    shake_hands(road)
    data = wire(
        streams(road, 1), (0, accept()), (0, marker(1, 5)), (0, mutation(3)), (0, mutation(2))
    )
    drain(road, [data])
    assert "item with seqno 2 of vbucket 0, must be above 3" in str(road.failure)


def test_rows_with_the_opaque_of_another_vbucket_are_refused() -> None:
    road = BulkRoad(connection_of())
    shake_hands(road)
    opaques = streams(road, 2)
    drain(road, [wire(opaques, (0, accept()), (1, accept()), (0, marker(1, 5)))])
    drain(road, [encode(dataclasses.replace(mutation(1), vbucket=1, opaque=opaques[0]), DIALECT)])
    assert "opaque of the stream of vbucket 0" in str(road.failure)


def test_rows_of_a_closed_stream_are_dropped_and_given_back() -> None:
    road = BulkRoad(connection_of())
    shake_hands(road)
    opaques = streams(road, 1)
    drain(road, [wire(opaques, (0, accept()), (0, marker(1, 5)), (0, mutation(1)))])
    road.connection.close_stream(VBucketId(0))
    found = drain(road, [wire(opaques, (0, mutation(2)), (0, mutation(3)))])
    assert rows_of(found) == []
    assert road.connection.window.held == 0


def test_a_wrong_magic_ends_the_road_after_what_came_before() -> None:
    for kind in (BulkRoad, ObjectRoad):
        road = kind(connection_of())
        shake_hands(road)
        data = wire(streams(road, 1), (0, accept()), (0, marker(1, 1)), (0, mutation(1)))
        found = drain(road, [data + b"HTTP/1.1 400"])
        assert rows_of(found) == [(0, 1)]
        assert "magic 48" in str(road.failure)


def test_out_of_order_rows_pass_in_an_out_of_order_snapshot() -> None:
    road = BulkRoad(connection_of())
    shake_hands(road)
    data = wire(
        streams(road, 1),
        (0, accept(LOG)),
        (0, m.OsoSnapshot(oso_flags=1)),
        (0, mutation(9)),
        (0, mutation(4)),
        (0, m.OsoSnapshot(oso_flags=2)),
    )
    found = drain(road, [data])
    assert road.failure is None
    assert rows_of(found) == [(0, 9), (0, 4)]
    (whole,) = [piece for piece in found if isinstance(piece, Whole)]
    assert whole.position.token.seqno == 9


def test_half_a_frame_is_no_frame() -> None:
    frame = encode(mutation(1), DIALECT)
    assert holds_frame(memoryview(frame))
    assert not any(holds_frame(memoryview(frame)[:size]) for size in range(len(frame)))
    assert holds_frame(memoryview(b"H")), "a wrong magic is told at its first byte"
