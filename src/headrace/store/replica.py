"""What a replica was told: the snapshot it receives, and frames as they came.

Rules:

* A snapshot that was not received whole and is continued by another marker is one with it: it
  begins where the first began and is whole where the last ends. Until then no boundary lies in it.
* Inside a received snapshot the state was never whole, because its producer left out versions:
  `Unsettled` knows these ranges, so that a rollback ends at a boundary.
* Frames keep their numbers. A mutation or tombstone of a key that has a prepare in flight says that
  the prepare is done: a disk snapshot sends commits so, and what came after them. In a disk
  snapshot an abort may come without its prepare, and a prepare in place of an older one.

Imports: store.layout, store.plain.
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


UNSETTLED_MAX: Final = 64
"""Ranges without a boundary that a vbucket remembers; more are joined, where that costs least."""
_OVER: Final = 0
"""In the flags of a control frame: the vbucket receives no longer."""


class Unsettled:
    """The ranges in which a vbucket's state was never whole, oldest first.

    A range (before, end) leaves out both: they are boundaries, and so is every seqno that lies in
    no range.
    """

    __slots__ = ("ranges",)

    def __init__(self, ranges: list[tuple[int, int]] | None = None) -> None:
        self.ranges = [] if ranges is None else ranges

    def add(self, before: int, end: int) -> None:
        """A snapshot is received: its end is the next boundary after ``before``."""
        ranges = self.ranges
        while ranges and ranges[-1][0] >= before:
            end = max(end, ranges.pop()[1])
        if end - before > 1:
            ranges.append((before, end))
        if len(ranges) > UNSETTLED_MAX:
            self._join()

    def _join(self) -> None:
        """Give up the boundary whose loss costs least for its distance from the newest."""
        ranges, newest = self.ranges, self.ranges[-1][1]

        def cost(place: int) -> float:
            span = ranges[place + 1][1] - ranges[place][0]
            return span / (newest - ranges[place][1] + 1)

        cheapest = min(range(len(ranges) - 1), key=cost)
        ranges[cheapest : cheapest + 2] = [(ranges[cheapest][0], ranges[cheapest + 1][1])]

    def over(self, high: int) -> None:
        """What was received up to ``high`` is all there will be: it is the truth from now on."""
        if self.ranges and self.ranges[-1][0] <= high < self.ranges[-1][1]:
            before, _ = self.ranges.pop()
            self.add(before, high)

    def add_again(self, before: int, end: int) -> None:
        """A journal tells of a snapshot that a later record may know better."""
        if not self.ranges or before >= self.ranges[-1][0]:
            self.add(before, end)

    def boundary(self, seqno: int) -> int:
        """The greatest boundary at or below a seqno."""
        for before, end in reversed(self.ranges):
            if before < seqno < end:
                return before
            if end <= seqno:
                break
        return seqno

    def cut(self, to: int) -> None:
        """Nothing above ``to``, a boundary, exists any longer."""
        self.ranges = [one for one in self.ranges if one[0] < to]


@dataclass(slots=True)
class Received:
    """The snapshot being received; persisted with the items that follow it.

    ``complete_before`` is the end of the last snapshot that was received whole before this one.
    ``joined``: it is of several markers, so that a key may be in it twice; readers wait until it is
    whole, when the earlier version can be left out.
    """

    start: int
    end: int
    from_disk: bool = False
    complete_before: int = 0
    high_completed: int = 0
    max_visible: int = 0
    joined: bool = False

    def to_frame(self, vbucket: int) -> bytes:
        """The control frame that keeps it in the journal."""
        return build_frame(
            at.MARKER,
            vbucket=vbucket,
            extras=_MARKER_EXTRAS.pack(self.start, self.end, 2 if self.from_disk else 1),
            value=_MARKER_VALUE.pack(self.complete_before, self.high_completed, self.max_visible),
        )

    @classmethod
    def from_parts(cls, parts: Parts) -> Received | None:
        """The snapshot a control frame holds; None: the vbucket received no longer."""
        start, end, flags = _MARKER_EXTRAS.unpack(parts.extras)
        before, completed, visible = _MARKER_VALUE.unpack(parts.value)
        return cls(start, end, flags == 2, before, completed, visible) if flags else None

    def continued(self, by: Received) -> Received:
        """The same snapshot, not whole yet, under the marker that goes on with it."""
        return Received(
            min(self.start, by.start),
            max(self.end, by.end),
            self.from_disk or by.from_disk,
            self.complete_before,
            max(self.high_completed, by.high_completed),
            max(self.max_visible, by.max_visible),
            joined=self.joined or by.end > self.end,
        )

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


def over_frame(vbucket: int, high: int) -> bytes:
    """The control frame for the end of receiving, at a high seqno."""
    return build_frame(
        at.MARKER,
        vbucket=vbucket,
        extras=_MARKER_EXTRAS.pack(high, high, _OVER),
        value=_MARKER_VALUE.pack(high, 0, 0),
    )


def advanced_frame(vbucket: int, seqno: int) -> bytes:
    """The control frame for a seqno without an item."""
    return build_frame(at.ADVANCED, vbucket=vbucket, extras=ADVANCED_FIELDS.pack(seqno))


def apply_frames(vbucket: VBucket, frames: bytes | memoryview) -> int:
    """Check whole dcp-7 data frames, then apply them all; see `VBucket.apply_frames`."""
    found = _checked(vbucket, memoryview(frames))
    for parts in found:
        apply_parts(vbucket, parts)
    vbucket.snapshot_reached()
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


def apply_parts(vbucket: VBucket, parts: Parts) -> None:
    """Apply one received item whose seqno was checked."""
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
    elif opcode == at.DELETION:
        vbucket.delete(
            parts.key,
            value=parts.value,
            datatype=parts.datatype,
            cas=parts.cas,
            rev=int.from_bytes(extras[8:16], "big"),
            seqno=seqno,
            delete_time=int.from_bytes(extras[16:20], "big") if len(extras) >= 20 else None,
        )
    elif opcode == at.EXPIRATION:
        vbucket.expire(
            parts.key,
            value=parts.value,
            datatype=parts.datatype,
            cas=parts.cas,
            rev=int.from_bytes(extras[8:16], "big"),
            seqno=seqno,
            delete_time=int.from_bytes(extras[16:20], "big"),
        )
    else:
        _RARE[opcode](vbucket, parts)
        return
    if len(vbucket.prepares):
        vbucket.complete_prepare(parts.key, seqno)


def _apply_event(vbucket: VBucket, parts: Parts) -> None:
    seqno, event, version = EVENT_FIELDS.unpack(parts.extras)
    vbucket.system_event(
        event,
        version=version,
        subject=event_subject(event, version, parts.value),
        key=parts.key,
        value=parts.value,
        seqno=seqno,
    )


def _apply_prepare(vbucket: VBucket, parts: Parts) -> None:
    seqno, rev, flags, expiry, _, _, deleted, level = PREPARE_FIELDS.unpack(parts.extras)
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
        replaces=vbucket.receives_disk,
    )


def _apply_commit(vbucket: VBucket, parts: Parts) -> None:
    vbucket.commit_prepare(parts.key, seqno=parts.seqno)


def _apply_abort(vbucket: VBucket, parts: Parts) -> None:
    prepared, seqno = ABORT_FIELDS.unpack(parts.extras)
    vbucket.abort_prepare(
        parts.key, seqno=seqno, prepared=prepared if vbucket.receives_disk else None
    )


def _apply_advance(vbucket: VBucket, parts: Parts) -> None:
    vbucket.advance(parts.seqno)


_RARE: Final = {
    at.SYSTEM_EVENT: _apply_event,
    at.PREPARE: _apply_prepare,
    at.COMMIT: _apply_commit,
    at.ABORT: _apply_abort,
    at.ADVANCED: _apply_advance,
}


def event_subject(event: int, version: int, value: bytes) -> int:
    """The collection or scope id in the value of a version 0 or 1 system event."""
    offset = 12 if event in (0, 1, 5) else 8
    if version > 1 or len(value) < offset + 4:
        raise ValueError(f"system event {event} version {version} of {len(value)} bytes")
    return int.from_bytes(value[offset : offset + 4], "big")
