"""Frames for the tests of columns, byte by byte where a layout is the point."""

from __future__ import annotations

import struct
from typing import Final

from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.messages import Mutation, SnapshotMarker

D7: Final = Dialect.DCP_7


def frame(
    opcode: int,
    extras: bytes = b"",
    key: bytes = b"",
    value: bytes = b"",
    *,
    magic: int = 0x80,
    framing: bytes = b"",
    vbucket: int = 5,
    datatype: int = 0,
    opaque: int = 7,
    cas: int = 9,
) -> bytes:
    """Return a frame with the header that these parts need."""
    flexible = magic in (0x08, 0x18)
    lengths = bytes([len(framing), len(key)]) if flexible else struct.pack(">H", len(key))
    body = framing + extras + key + value
    return (
        struct.pack(">BB", magic, opcode)
        + lengths
        + struct.pack(">BBHIIQ", len(extras), datatype, vbucket, len(body), opaque, cas)
        + body
    )


def mutation(
    seqno: int,
    *,
    vbucket: int = 5,
    key: bytes = b"key",
    value: bytes = b"value",
    datatype: int = 0,
    opaque: int = 7,
) -> bytes:
    """Return an ordinary mutation."""
    return encode(
        Mutation(
            vbucket=vbucket,
            opaque=opaque,
            cas=seqno * 1000 & 0xFFFF_FFFF_FFFF_FFFF,
            datatype=datatype,
            by_seqno=seqno,
            rev_seqno=1,
            key=key,
            value=value,
        ),
        D7,
    )


def marker(start: int, end: int, flags: int = 1, *, vbucket: int = 5) -> bytes:
    """Return an ordinary marker, V1."""
    message = SnapshotMarker(vbucket=vbucket, start_seqno=start, end_seqno=end, flags=flags)
    return encode(message, D7)
