"""What every message has, whatever it says.

A message is a frame understood under a dialect: frozen, typed, called by the same word everywhere.
Optional fields are None when the layout that carried them has no room for them; which of them are
set is what chooses the layout when the message is written again.

Imports: wire.frame, wire.opcodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.wire.frame import FrameInfo
from headrace.wire.opcodes import FrameInfoId

HEADER_FIELDS: Final = ("opaque", "cas", "datatype", "frame_infos", "vbucket", "status")
"""Fields that come from the header and the framing extras, not from a layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The header's fields that requests and replies share."""

    opaque: int = 0
    cas: int = 0
    datatype: int = 0
    frame_infos: tuple[FrameInfo, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Message):
    """A message with magic 80, 08 or 82."""

    vbucket: int = 0

    @property
    def stream_id(self) -> int | None:
        """Stream id of frame info 2, or None."""
        for info in self.frame_infos:
            if info.id == FrameInfoId.STREAM_ID and len(info.data) == 2:
                return int.from_bytes(info.data, "big")
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(Message):
    """A message with magic 81, 18 or 83."""

    status: int = 0


def stream_id_info(stream_id: int) -> FrameInfo:
    """Return the frame info that names a stream."""
    return FrameInfo(FrameInfoId.STREAM_ID, stream_id.to_bytes(2, "big"))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownCommand(Request):
    """A request whose opcode the dialect does not have.

    Answered: UNKNOWN_COMMAND, or by closing; the frame itself was sound.
    """

    opcode: int
    magic: int = 0x80
    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownReply(Reply):
    """A successful reply to an opcode the dialect does not have."""

    opcode: int
    magic: int = 0x81
    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReply(Reply):
    """A refusal of any command.

    The body is optional: JSON with an error context, or the cluster map with NOT_MY_VBUCKET.
    Receivers must cope with any bytes here.
    """

    opcode: int
    magic: int = 0x81
    extras: bytes = b""
    key: bytes = b""
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptyReply(Reply):
    """Success with no body."""
