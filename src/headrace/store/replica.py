"""What a replica was told: the snapshot it receives, and frames as they came.

Imports: history, store.layout, store.plain, wire.opcodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.store import layout as at
from headrace.store.plain import (
    ABORT_FIELDS,
    ADVANCED_FIELDS,
    EVENT_FIELDS,
    MUTATION_FIELDS,
    PREPARE_FIELDS,
    Parts,
    build_frame,
    split_frame,
)

if TYPE_CHECKING:
    from headrace.store.vbucket import VBucket

_MARKER_VALUE: Final = Struct(">QQQ")
_MARKER_EXTRAS: Final = Struct(">QQI")
_DATA: Final = frozenset(
    (at.MUTATION, at.DELETION, at.EXPIRATION, at.SYSTEM_EVENT, at.PREPARE, at.COMMIT, at.ABORT)
)


@dataclass(slots=True)
class Received:
    """The snapshot being received; persisted with the items that follow it.

    ``complete_before`` is the end of the last snapshot that was received whole before this one.
    """

    start: int
    end: int
    from_disk: bool = False
    complete_before: int = 0
    high_completed: int = 0
    max_visible: int = 0

    def to_frame(self, vbucket: int) -> bytes:
        """The control frame that keeps it in the journal."""
        return build_frame(
            at.MARKER,
            vbucket=vbucket,
            extras=_MARKER_EXTRAS.pack(self.start, self.end, 2 if self.from_disk else 1),
            value=_MARKER_VALUE.pack(self.complete_before, self.high_completed, self.max_visible),
        )

    @classmethod
    def from_parts(cls, parts: Parts) -> Received:
        """The snapshot a control frame holds."""
        start, end, flags = _MARKER_EXTRAS.unpack(parts.extras)
        before, completed, visible = _MARKER_VALUE.unpack(parts.value)
        return cls(start, end, flags == 2, before, completed, visible)

    def to_json(self) -> list[int]:
        """As kept in the vbucket's record."""
        return [
            self.start,
            self.end,
            int(self.from_disk),
            self.complete_before,
            self.high_completed,
            self.max_visible,
        ]

    @classmethod
    def from_json(cls, numbers: list[int]) -> Received:
        """From the vbucket's record."""
        start, end, from_disk, before, completed, visible = numbers
        return cls(start, end, bool(from_disk), before, completed, visible)


def advanced_frame(vbucket: int, seqno: int) -> bytes:
    """The control frame for a seqno without an item."""
    return build_frame(at.ADVANCED, vbucket=vbucket, extras=ADVANCED_FIELDS.pack(seqno))


def apply_frames(vbucket: VBucket, frames: bytes | memoryview) -> int:
    """Check whole dcp-7 data frames, then apply them all; see `VBucket.apply_frames`."""
    found = _checked(vbucket, memoryview(frames))
    for parts in found:
        _apply(vbucket, parts)
    return len(found)


def _checked(vbucket: VBucket, frames: memoryview) -> list[Parts]:
    found: list[Parts] = []
    offset, before = 0, vbucket.high_seqno
    while offset < len(frames):
        size = at.HEADER + int.from_bytes(frames[offset + 8 : offset + 12], "big")
        frame = frames[offset : offset + size]
        if len(frame) < max(size, at.HEADER) or frame[0] != at.MAGIC:
            raise ValueError(f"bytes at offset {offset} are not a whole request frame")
        parts = split_frame(frame)
        _check(vbucket, parts, before)
        before, offset = parts.seqno, offset + size
        found.append(parts)
    return found


def _check(vbucket: VBucket, parts: Parts, before: int) -> None:
    if parts.opcode not in _DATA and parts.opcode != at.ADVANCED:
        raise ValueError(f"opcode {parts.opcode:#04x} is not a data frame")
    if parts.vbucket != vbucket.id:
        raise ValueError(f"frame of vbucket {parts.vbucket} for vbucket {vbucket.id}")
    if parts.seqno <= before or parts.seqno not in vbucket.snapshot:
        raise ValueError(
            f"seqno {parts.seqno} after {before} in snapshot {vbucket.snapshot}: not allowed"
        )


def _apply(vbucket: VBucket, parts: Parts) -> None:
    opcode, extras, seqno = parts.opcode, parts.extras, parts.seqno
    if opcode == at.MUTATION:
        _, rev, flags, expiry, _, _, nru = MUTATION_FIELDS.unpack(extras)
        vbucket.store(
            parts.key,
            parts.value,
            flags=flags,
            expiry=expiry,
            datatype=parts.datatype,
            cas=parts.cas,
            rev=rev,
            seqno=seqno,
            nru=nru,
        )
    elif opcode in (at.DELETION, at.EXPIRATION):
        remove = vbucket.delete if opcode == at.DELETION else vbucket.expire
        remove(
            parts.key,
            value=parts.value,
            datatype=parts.datatype,
            cas=parts.cas,
            rev=int.from_bytes(extras[8:16], "big"),
            seqno=seqno,
            delete_time=int.from_bytes(extras[16:20], "big") if len(extras) >= 20 else None,
        )
    elif opcode == at.SYSTEM_EVENT:
        _, event, version = EVENT_FIELDS.unpack(extras)
        vbucket.system_event(
            event,
            version=version,
            subject=event_subject(event, version, parts.value),
            key=parts.key,
            value=parts.value,
            seqno=seqno,
        )
    elif opcode == at.PREPARE:
        _, rev, flags, expiry, _, _, deleted, level = PREPARE_FIELDS.unpack(extras)
        vbucket.prepare(
            parts.key,
            parts.value,
            level=level,
            flags=flags,
            expiry=expiry,
            datatype=parts.datatype,
            deleted=bool(deleted),
            cas=parts.cas,
            rev=rev,
            seqno=seqno,
        )
    elif opcode == at.ADVANCED:
        vbucket.advance(seqno)
    else:
        _, seqno = ABORT_FIELDS.unpack(extras)
        complete = vbucket.commit_prepare if opcode == at.COMMIT else vbucket.abort_prepare
        complete(parts.key, seqno=seqno)


def event_subject(event: int, version: int, value: bytes) -> int:
    """The collection or scope id in the value of a version 0 or 1 system event."""
    offset = 12 if event in (0, 1, 5) else 8
    if version > 1 or len(value) < offset + 4:
        raise ValueError(f"system event {event} version {version} of {len(value)} bytes")
    return int.from_bytes(value[offset : offset + 4], "big")
