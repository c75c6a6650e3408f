"""Frames a reader was sent, taken apart by the wire layer: the store's own code is not asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.wire.codec import decode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import FrameBuffer

if TYPE_CHECKING:
    from headrace.store import Chunk
    from headrace.wire.message import Message

DIALECT = Dialect.named("dcp-7")


def messages(data: bytes | memoryview) -> list[Message]:
    """The messages of a chunk; every byte must belong to one."""
    buffer = FrameBuffer()
    buffer.feed(bytes(data))
    frames = list(buffer)
    assert sum(frame.size for frame in frames) == len(data)
    return [decode(frame, DIALECT) for frame in frames]


def seqno_of(message: Message) -> int:
    """The seqno a data message carries."""
    for name in ("commit_seqno", "abort_seqno", "by_seqno"):
        if hasattr(message, name):
            return int(getattr(message, name))
    raise AssertionError(message)


def check_chunk(chunk: Chunk) -> list[Message]:
    """The messages of a chunk, after its numbers were held against them."""
    found = messages(chunk.data)
    assert len(found) == chunk.count
    seqnos = [seqno_of(message) for message in found]
    assert seqnos == sorted(set(seqnos))
    if seqnos:
        assert (chunk.first_seqno, chunk.last_seqno) == (seqnos[0], seqnos[-1])
        assert chunk.last_seqno <= chunk.read_seqno
    return found
