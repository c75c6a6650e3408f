"""Conversations of a producer that are almost right, made fast: six microseconds a frame.

A frame is drawn by its parts, not from messages: an opcode, sizes its layouts have (or nearly),
extras full of edges, a key with or without a sound collection prefix, framing extras sound and not.
Beside them stand whole frames from vectors and captures, left alone or bent. Lengths in the
header are right most of the time: one that is wrong ends the conversation.
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.capture.source import open_source
from headrace.capture.walk import walk
from headrace.wire.dialect import Dialect
from headrace.wire.layout import Fixed
from headrace.wire.layouts import ITEM_ROWS, MARKER_ROWS, STATE_ROWS
from headrace.wire.opcodes import Opcode
from tests.fuzz.mutations import mutated, resized, sound_frames

if TYPE_CHECKING:
    from random import Random

CAPTURES: Final = Path(__file__).resolve().parent.parent / "captures"
CAPTURES_READ: Final = (
    "02_live_665.pcap",
    "09_expiry_665.pcap",
    "12a_collections_live_665.pcap",
    "13a_sync_live_665.pcap",
    "14_stream_id_665.pcap",
    "17b_takeover_665.pcap",
)

_HEAD: Final = struct.Struct(">BBHBBHIIQ")
_FLEXIBLE_HEAD: Final = struct.Struct(">BBBBBBHIIQ")
_ROWS: Final = MARKER_ROWS + ITEM_ROWS + STATE_ROWS
_ITEMS: Final = tuple(range(Opcode.STREAM_END, Opcode.CACHE_TRANSFER_END + 1))
OPCODES: Final = (*_ITEMS, *(Opcode.MUTATION,) * 12, *(Opcode.SNAPSHOT_MARKER,) * 4)
EXTRAS_SIZES: Final = {
    opcode: sorted({row.extras.size for row in _ROWS if row.opcode == opcode} or {0})
    for opcode in _ITEMS
}
VALUE_SIZES: Final = {
    opcode: sorted(
        {
            row.value.fields.size
            for row in _ROWS
            if row.opcode == opcode and isinstance(row.value, Fixed)
        }
    )
    for opcode in _ITEMS
}
MAGICS: Final = (0x80,) * 10 + (0x08,) * 5 + (0x81, 0x18, 0x82, 0x83)
SIZES: Final = (0, 0, 1, 2, 3, 5, 16, 31, 32, 33, 62, 63, 64, 65, 66, 127, 300)
KEY_SIZES: Final = (0, 1, 2, 5, 6, 18, 31, 32, 33, 34, 64, 200)
PREFIXES: Final = (
    b"\x00",
    b"\x08",
    b"\x7f",
    b"\x80\x01",
    b"\xff\x7f",
    b"\x88\x80\x04",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x1f",
    b"\x80\x00",
    b"\x80\x80\x80\x80\x80\x01",
    b"\xff",
    b"",
)
FRAMINGS: Final = (
    b"\x22\x00\x07",
    b"\x22\x00\x07",
    b"\x22\xff\xff",
    b"\x10\x22\x01\x02",
    b"\x22\x00\x01\x22\x00\x02",
    b"\xf1\x05\x00\x22\x00\x03",
    b"\x2f\x00" + b"s" * 15,
    b"\xff\x01\x01" + b"s" * 16,
    b"\x23\x00\x07\x07",
    b"",
    b"\x22\x00",
    b"\xf2",
    b"\x1f",
)
EDGES: Final = (0, 0, 0, 1, 2, 3, 7, 0x22, 0x7F, 0x80, 0xFF)


@cache
def recorded_frames() -> tuple[bytes, ...]:
    """Return whole frames of vectors and captures."""
    frames = [resized(data) for _, data in sound_frames()]
    for name in CAPTURES_READ:
        with open_source(str(CAPTURES / name)) as source:
            for item in walk(source, Dialect.DCP_7, strict=False):
                if item.frame is not None:
                    frames.append(item.frame.to_bytes())  # noqa: PERF401 - one walk per file
    return tuple(frames)


def drawn_frame(random: Random) -> bytes:
    """Return a frame with a sound header and parts that are nearly right."""
    choice, chance = random.choice, random.random
    opcode = choice(OPCODES)
    size = choice(EXTRAS_SIZES[opcode])
    if chance() < 0.05:
        size = max(0, size + choice((-2, -1, 1, 2)))
    extras = bytes(choice(EDGES) for _ in range(size)) if chance() < 0.5 else random.randbytes(size)
    if opcode == Opcode.MUTATION and size > 29 and chance() < 0.8:
        extras = extras[:28] + b"\x00\x00" + extras[30:]
    if size == 1 and chance() < 0.9:
        extras = bytes([choice((0, 0, 1, 2))])
    key = b""
    if opcode not in (Opcode.SNAPSHOT_MARKER, Opcode.STREAM_END) or chance() < 0.05:
        key = choice(PREFIXES) + b"k" * choice(KEY_SIZES)
    value_size = choice(VALUE_SIZES[opcode]) if size == 1 and VALUE_SIZES[opcode] else choice(SIZES)
    if opcode in (Opcode.COMMIT, Opcode.ABORT, Opcode.SEQNO_ADVANCED) and chance() < 0.8:
        value_size, key = 0, b"" if opcode == Opcode.SEQNO_ADVANCED else key
    if opcode == Opcode.SNAPSHOT_MARKER and size != 1 and chance() < 0.9:
        value_size = 0
    return packed(random, opcode, extras, key, random.randbytes(value_size))


def packed(random: Random, opcode: int, extras: bytes, key: bytes, value: bytes) -> bytes:
    """Return a frame of these parts with a drawn magic, framing and header."""
    choice = random.choice
    magic = choice(MAGICS)
    datatype, vbucket = choice((0, 1, 2, 3, 4, 255)), choice((0, 1, 2, 512, 65535))
    opaque, cas = random.getrandbits(32), random.getrandbits(64)
    if magic in (0x08, 0x18):
        framing = choice(FRAMINGS)
        key = key[:255]
        slipped = random.random() < 0.1
        body = framing + extras + key + value
        head = _FLEXIBLE_HEAD.pack(
            magic,
            opcode,
            0 if slipped else len(framing),
            len(key),
            len(extras),
            datatype,
            vbucket,
            len(body),
            opaque,
            cas,
        )
        return head + body
    body = extras + key + value
    return (
        _HEAD.pack(magic, opcode, len(key), len(extras), datatype, vbucket, len(body), opaque, cas)
        + body
    )


def conversation(random: Random, frames: int) -> bytes:
    """Return about ``frames`` frames; in one of three, something is wrong with a header."""
    recorded = recorded_frames()
    parts = []
    for _ in range(frames):
        chance = random.random()
        if chance < 0.7:
            parts.append(drawn_frame(random))
        elif chance < 0.9:
            parts.append(random.choice(recorded))
        else:
            parts.append(resized_soundly(mutated(random, random.choice(recorded))))
    if random.random() < 0.33 and parts:
        place = random.randrange(len(parts))
        parts[place] = mutated(random, parts[place])
    stream = b"".join(parts)
    if random.random() < 0.3:
        stream = stream[: random.randint(0, len(stream))]
    return stream


def resized_soundly(data: bytes) -> bytes:
    """Return a bent frame whose magic and lengths can be right, or one with no extras and key."""
    data = resized(data)
    if len(data) < 24:
        return b""
    if data[0] not in (0x80, 0x81, 0x82, 0x83, 0x08, 0x18):
        data = b"\x80" + data[1:]
    flexible = data[0] in (0x08, 0x18)
    parts = data[4] + (data[2] + data[3] if flexible else data[2] << 8 | data[3])
    if parts > len(data) - 24:
        data = data[:2] + b"\x00\x00\x00" + data[5:]
    return data
