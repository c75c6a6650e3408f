"""What bytes look like when nobody says: is this a header, and which end would send it?

Guesses are made only where a capture leaves no choice: it began in the middle of a connection, it
lost packets, or it is a file of frames without connections. Who uses a guess says so.

Imports: wire.frame, wire.opcodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.capture.conversation import Direction
from headrace.errors import RemoteProtocolError
from headrace.wire.frame import BODY_SIZE_MAX, HEADER_SIZE, body_lengths
from headrace.wire.opcodes import DATATYPE_ALL, Magic, Opcode, ServerOpcode

if TYPE_CHECKING:
    from headrace.wire.frame import Frame

MAGICS: Final = frozenset(int(magic) for magic in Magic)
_REPLIES: Final = frozenset(int(magic) for magic in Magic if magic.is_reply)
_SERVER_MAGICS: Final = frozenset({int(Magic.SERVER_REQUEST), int(Magic.SERVER_REPLY)})
_OPCODES: Final = frozenset(int(opcode) for opcode in Opcode)
_SERVER_OPCODES: Final = frozenset(int(opcode) for opcode in ServerOpcode)
_FROM_PRODUCER: Final = frozenset(
    int(opcode)
    for opcode in (
        Opcode.STREAM_END,
        Opcode.SNAPSHOT_MARKER,
        Opcode.MUTATION,
        Opcode.DELETION,
        Opcode.EXPIRATION,
        Opcode.FLUSH,
        Opcode.SET_VBUCKET_STATE,
        Opcode.NOOP,
        Opcode.SYSTEM_EVENT,
        Opcode.PREPARE,
        Opcode.COMMIT,
        Opcode.ABORT,
        Opcode.SEQNO_ADVANCED,
        Opcode.OSO_SNAPSHOT,
        Opcode.CACHE_TRANSFER,
        Opcode.CACHE_TRANSFER_END,
    )
)
"""Requests that a producer sends; in most conversations the server is the producer."""


def plausible_header(data: bytes | bytearray | memoryview, at: int = 0) -> bool:
    """True when a header could stand at ``at``: known magic and opcode, lengths that fit."""
    if len(data) - at < HEADER_SIZE:
        return False
    known = _SERVER_OPCODES if data[at] in _SERVER_MAGICS else _OPCODES
    if data[at] not in MAGICS or data[at + 1] not in known or data[at + 5] > DATATYPE_ALL:
        return False
    try:
        framing, extras, key, body = body_lengths(data, at)
    except RemoteProtocolError:
        return False
    return framing + extras + key <= body <= BODY_SIZE_MAX


def likely_sender(data: bytes) -> Direction:
    """Which end sends a frame that begins with these bytes; UNKNOWN when they are no header."""
    return _sender(data[0], data[1]) if plausible_header(data) else Direction.UNKNOWN


def likely_direction(frame: Frame) -> Direction:
    """Which way this frame travels when the consumer is the client, as it nearly always is."""
    return _sender(frame.magic, frame.opcode)


def _sender(magic: int, opcode: int) -> Direction:
    from_server = magic in _SERVER_MAGICS or opcode in _FROM_PRODUCER
    asked = Direction.SERVER_TO_CLIENT if from_server else Direction.CLIENT_TO_SERVER
    return asked.reverse if magic in _REPLIES else asked
