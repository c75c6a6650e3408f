"""Rows as changes: the same as one message at a time, with the same tokens."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from headrace.client.bulk import BulkRoad, ObjectRoad, Rows
from headrace.client.changes import Change, Stretch, change_of
from headrace.client.objects import HIDDEN, RowReader, Several
from headrace.history import Boundaries
from headrace.protocol import events as e
from headrace.wire import messages as m
from headrace.wire.opcodes import Datatype, OsoFlag
from headrace.wire.values import deflate
from tests.client.producer import accept, end, marker, mutation
from tests.client.test_bulk import chopped, connection_of, drain, shake_hands, streams, wire

if TYPE_CHECKING:
    from headrace.client.bulk import Piece
    from headrace.wire.message import Message

XATTRS = bytes.fromhex("0000000a 00000006 5f6100 7b7d 00".replace(" ", ""))
VALUES = (
    (b"", 0),
    (b'{"a":1}', Datatype.JSON),
    (deflate(b"abc" * 99), Datatype.SNAPPY),
    (b"\xff\xff\xff no snappy", Datatype.SNAPPY),
    (b"", Datatype.SNAPPY),
    (XATTRS + b"{}", Datatype.XATTR | Datatype.JSON),
    (deflate(XATTRS + b"{}"), Datatype.XATTR | Datatype.SNAPPY),
    (b"\0\0", Datatype.XATTR),
)
KEYS = (b"\0key", b"\x08another", b"\xff\xff\xff\xff\xff\xff no collection", b"\0" + b"k" * 200)


def item(seqno: int, chance: random.Random) -> Message:
    value, datatype = chance.choice(VALUES)
    key = chance.choice(KEYS)
    return chance.choice(
        (
            m.Mutation(
                by_seqno=seqno,
                rev_seqno=1 << 63,
                cas=1 << 63 | seqno,
                key=key,
                value=value,
                datatype=int(datatype),
                flags=7,
                expiration=9,
            ),
            m.Deletion(by_seqno=seqno, rev_seqno=3, key=key, cas=seqno, delete_time=77),
            m.Expiration(by_seqno=seqno, rev_seqno=4, key=key, cas=seqno, delete_time=78),
            m.SeqnoAdvanced(by_seqno=seqno),
            m.SystemEvent(by_seqno=seqno, event=0, version=0, key=b"name", value=bytes(16)),
            m.Commit(prepared_seqno=seqno - 1, commit_seqno=seqno, key=key),
        )
    )


def conversation(seed: int) -> list[tuple[int, Message]]:
    chance = random.Random(seed)
    said: list[tuple[int, Message]] = [(v, accept()) for v in range(2)]
    seqnos, whole = [0, 0], [True, True]
    for _ in range(30):
        vbucket = chance.randrange(2)
        first = seqnos[vbucket] + 1
        last = first + chance.randrange(12)
        missing = chance.choice([0, 0, 3])
        items = [(vbucket, item(seqno, chance)) for seqno in range(first, last + 1)]
        if whole[vbucket] and chance.random() < 0.2:
            missing = 0
            chance.shuffle(items)
            oso = [m.OsoSnapshot(oso_flags=int(flag)) for flag in (OsoFlag.START, OsoFlag.END)]
            said += [(vbucket, oso[0]), *items, (vbucket, oso[1])]
        else:
            # The snapshot may go on in the next marker: the token is then inside of both.
            said += [(vbucket, marker(first, last + missing)), *items]
        seqnos[vbucket], whole[vbucket] = last + missing, missing == 0
    said.append((1, end()))
    return said


def changes_of(pieces: list[Piece], at_once: int) -> list[Change]:
    found: list[Change] = []
    for piece in pieces:
        if isinstance(piece, e.ItemReceived):
            change = change_of(piece.message, piece.token, collections=True)
            found += [] if change.kind in HIDDEN else [change]
        elif isinstance(piece, Rows):
            reader = RowReader(piece.batch)
            assert piece.token is not None
            for start in range(piece.start, piece.stop, at_once):
                stop = min(start + at_once, piece.stop)
                found += reader.changes(
                    start, stop, piece.vbucket, Stretch(piece.token, piece.span)
                )
    return found


@pytest.mark.parametrize("seed", range(25))
def test_rows_give_the_changes_that_messages_give(seed: int) -> None:
    told = []
    for road, at_once in (
        (ObjectRoad(connection_of()), 1),
        (BulkRoad(connection_of(), objects=True), 1),
        (BulkRoad(connection_of(), objects=True), 5),
    ):
        shake_hands(road)
        data = wire(streams(road, 2), *conversation(seed))
        found = drain(road, chopped(data, random.Random(seed)))
        assert road.failure is None, (seed, road.failure)
        told.append(changes_of(found, at_once))
    assert told[0]
    for changes in told[1:]:
        for one, other in zip(told[0], changes, strict=True):
            assert one == other, seed


def test_what_several_deliver_is_what_was_handed_out() -> None:
    road = BulkRoad(connection_of(), objects=True)
    shake_hands(road)
    said = [(0, accept()), (0, marker(1, 3)), *((0, mutation(seqno)) for seqno in (1, 2, 3))]
    (rows,) = (
        piece for piece in drain(road, [wire(streams(road, 1), *said)]) if isinstance(piece, Rows)
    )
    assert rows.token is not None
    changes = RowReader(rows.batch).changes(
        rows.start, rows.stop, 0, Stretch(rows.token, rows.span)
    )
    several = Several(changes, 0, Boundaries())
    assert (len(several), several.delivered) == (3, {})
    for seqno in (1, 2, 3):
        change = several.next()
        assert change is not None
        assert several.delivered[0].token == change.token
        assert (change.seqno, change.token.seqno, change.token.is_boundary) == (
            seqno,
            seqno,
            seqno == 3,
        )
    assert (several.next(), len(several)) == (None, 0)
    assert several.delivered[0].token.seqno == 3
