"""The walk over headers, against a plain reader of frames."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headrace.cluster.header_walk import NOTABLE_MAX, VBUCKETS, walk
from headrace.wire import messages as m
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import BODY_SIZE_MAX, HEADER_SIZE, Frame, FrameBuffer
from headrace.wire.opcodes import Magic, Opcode

ITEMS = {
    Opcode.MUTATION: 0,
    Opcode.DELETION: 0,
    Opcode.EXPIRATION: 0,
    Opcode.SYSTEM_EVENT: 0,
    Opcode.PREPARE: 0,
    Opcode.SEQNO_ADVANCED: 0,
    Opcode.COMMIT: 8,
    Opcode.ABORT: 8,
}
"""An item's opcode -> where its seqno stands in the extras."""


class Walked:
    """What one walk found."""

    def __init__(self, data: bytes, *, notable: int = NOTABLE_MAX) -> None:
        self.seqnos = np.zeros(VBUCKETS, np.uint64)
        self.items = np.zeros(VBUCKETS, np.uint64)
        places, found = np.zeros(notable, np.int64), np.zeros(3, np.int64)
        walk(np.frombuffer(data, np.uint8), self.seqnos, self.items, places, found)
        self.end, count, self.wrong = (int(number) for number in found)
        self.notable = places[:count].tolist()


def plain(data: bytes) -> tuple[int, list[int], dict[int, int], dict[int, int]]:
    """The slow and obvious version."""
    buffer, at = FrameBuffer(), 0
    notable: list[int] = []
    seqnos: dict[int, int] = {}
    items: dict[int, int] = {}
    buffer.feed(data)
    for frame in buffer:
        place = ITEMS.get(Opcode(frame.opcode)) if frame.opcode in set(Opcode) else None
        if not frame.is_reply and place is not None and len(frame.extras) >= place + 8:
            seqnos[frame.vbucket] = int.from_bytes(frame.extras[place : place + 8], "big")
            items[frame.vbucket] = items.get(frame.vbucket, 0) + 1
        else:
            notable.append(at)
        at += frame.size
    return at, notable, seqnos, items


def random_frame(random_: random.Random) -> bytes:
    magic = random_.choice([Magic.REQUEST] * 6 + [Magic.REPLY, Magic.ALT_REQUEST, Magic.ALT_REPLY])
    opcode = random_.choice([*ITEMS] * 3 + [*Opcode])
    framing = random_.randbytes(random_.choice([0, 3])) if magic.is_flexible else b""
    return Frame(
        magic=magic,
        opcode=opcode,
        vbucket=random_.choice([0, 1, 7, 0x3FF, 0xFFFF]),
        opaque=random_.getrandbits(32),
        framing=framing,
        extras=random_.randbytes(random_.choice([0, 4, 8, 16, 31])),
        key=random_.randbytes(random_.randint(0, 40)),
        value=random_.randbytes(random_.choice([0, 0, 5, 300])),
    ).to_bytes()


@pytest.mark.parametrize("seed", range(200))
def test_the_walk_finds_what_the_plain_reader_finds(seed: int) -> None:
    random_ = random.Random(seed)
    data = b"".join(random_frame(random_) for _ in range(random_.randint(0, 40)))
    data = data[: random_.randint(0, len(data))] if data and random_.random() < 0.5 else data
    end, notable, seqnos, items = plain(data)
    walked = Walked(data)
    assert (walked.end, walked.notable, walked.wrong) == (end, notable, -1), f"seed {seed}"
    assert {v: int(walked.seqnos[v]) for v in seqnos} == seqnos
    assert {v: int(walked.items[v]) for v in items} == items
    assert int(walked.items.sum()) == sum(items.values())


def test_a_wrong_magic_stops_the_walk_at_its_place() -> None:
    good = encode(m.StreamEnd(vbucket=1, opaque=1, reason=0), Dialect.DCP_7)
    walked = Walked(good + b"\x55" * HEADER_SIZE)
    assert (walked.end, walked.wrong, walked.notable) == (len(good), len(good), [0])


@pytest.mark.parametrize("body", [BODY_SIZE_MAX + 1, 3])
def test_a_body_too_large_or_too_small_for_its_parts_stops_the_walk(body: int) -> None:
    header = bytearray(encode(m.StreamEnd(vbucket=1, opaque=1, reason=0), Dialect.DCP_7))
    header[8:12] = body.to_bytes(4, "big")
    assert Walked(bytes(header)).wrong == 0


def test_the_walk_stops_when_its_list_is_full_and_goes_on_from_there() -> None:
    frame = encode(m.Noop(opaque=1), Dialect.DCP_7)
    walked = Walked(frame * 5, notable=3)
    assert (walked.end, walked.notable) == (3 * len(frame), [0, len(frame), 2 * len(frame)])
