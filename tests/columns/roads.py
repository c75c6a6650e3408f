"""Two roads from the same bytes to rows, in a form that can be compared.

The kernel's road is `Scanner`; the plain road is `FrameBuffer`, `decode` and `Builder`, with the
bookkeeping of frames handed back and bytes counted written out by the rules of the protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.columns.builder import Builder
from headrace.columns.forms import COUNTED, EVENTS, SURCHARGE, UNMARKING
from headrace.columns.schema import SCHEMA
from headrace.columns.table import Reason
from headrace.errors import RemoteProtocolError
from headrace.wire.codec import decode, rows_heard
from headrace.wire.frame import BODY_SIZE_MAX, Frame, FrameBuffer
from headrace.wire.messages import SnapshotMarker
from headrace.wire.opcodes import Magic, MarkerFlag, Opcode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.columns.scan import Scanner
    from headrace.wire.dialect import Dialect
    from headrace.wire.message import Message

REQUESTS: Final = (Magic.REQUEST, Magic.ALT_REQUEST)
KNOWN: Final = frozenset({*EVENTS, *UNMARKING, SnapshotMarker})


@dataclass(frozen=True)
class Outcome:
    """What became of a stream of bytes."""

    rows: pa.Table
    others: list[tuple[int, int, Reason, int]]
    """Offset in the stream, size, reason, rows before it since the stream began."""
    counted: int
    consumed: int
    error: tuple[str, int | None, int] | None

    def differences(self, other: Outcome) -> list[str]:
        """Return one sentence per part in which two outcomes differ."""
        found = [
            f"{name}: {getattr(self, name)!r} and {getattr(other, name)!r}"
            for name in ("others", "counted", "consumed", "error")
            if getattr(self, name) != getattr(other, name)
        ]
        if not self.rows.equals(other.rows):
            found.append(_first_difference(self.rows, other.rows))
        return found


def _first_difference(one: pa.Table, two: pa.Table) -> str:
    if one.num_rows != two.num_rows:
        return f"rows: {one.num_rows} and {two.num_rows}"
    for number, (left, right) in enumerate(zip(one.to_pylist(), two.to_pylist(), strict=True)):
        names = [name for name in left if left[name] != right[name]]
        if names:
            return f"row {number}: " + ", ".join(
                f"{name} {left[name]!r} and {right[name]!r}" for name in names
            )
    return "rows: equal as Python values, not as Arrow arrays"


def kernel_road(scanner: Scanner, pieces: Iterable[bytes]) -> Outcome:
    """Give the pieces to a scanner as a connection would."""
    held = b""
    batches = []
    others: list[tuple[int, int, Reason, int]] = []
    rows = counted = 0
    error = None
    for piece in pieces:
        held += piece
        while True:
            before = scanner.offset
            result = scanner.scan(held)
            for offset, size, reason, row in result.others.tolist():
                others.append((before + offset, size, Reason(reason), rows + row))
            result.batch.validate(full=True)
            batches.append(result.batch)
            rows += result.batch.num_rows
            counted += result.counted
            held = held[result.consumed :]
            assert scanner.offset == before + result.consumed
            if result.error is not None:
                error = (str(result.error), result.error.offset, result.error.status)
            if result.consumed == 0:
                break
        if error is not None:
            break
    table = pa.Table.from_batches(batches, schema=SCHEMA).combine_chunks()
    return Outcome(table, others, counted, scanner.offset, error)


def plain_road(
    data: bytes,
    dialect: Dialect,
    *,
    collections: bool = False,
    stream_ids: bool = False,
    body_size_max: int = BODY_SIZE_MAX,
) -> Outcome:
    """Cut frames, decode each, build rows."""
    buffer = FrameBuffer(body_size_max=body_size_max)
    buffer.feed(data)
    builder = Builder(collections=collections)
    others: list[tuple[int, int, Reason, int]] = []
    counted = 0
    error = None
    while True:
        at = buffer.offset
        try:
            frame = buffer.take()
        except RemoteProtocolError as broken:
            error = (str(broken), broken.offset, broken.status)
            break
        if frame is None:
            break
        reason = _reason(frame, dialect, builder, stream_ids)
        if frame.magic in REQUESTS and frame.opcode in COUNTED:
            counted += frame.size + SURCHARGE.get(Opcode(frame.opcode), 0)
        if reason is not None:
            others.append((at, frame.size, reason, builder.rows))
    table = pa.Table.from_batches([builder.batch()], schema=SCHEMA)
    return Outcome(table, others, counted, buffer.offset, error)


def _reason(frame: Frame, dialect: Dialect, builder: Builder, stream_ids: bool) -> Reason | None:
    """Give a frame to the builder; return why it is handed back, None when it is not."""
    if frame.magic not in REQUESTS:
        return Reason.OTHER
    if not any(row.message in KNOWN for row in rows_heard(frame, dialect)):
        return Reason.OTHER
    try:
        message = _decode(frame, dialect, stream_ids)
    except RemoteProtocolError:
        return Reason.MALFORMED
    try:
        taken = builder.add(message)
    except RemoteProtocolError as error:
        return Reason.PREFIX if "collection" in str(error) else Reason.MALFORMED
    if isinstance(message, SnapshotMarker) and (message.flags or 0) & MarkerFlag.ACK:
        return Reason.MARKER
    return None if taken else Reason.OTHER


def _decode(frame: Frame, dialect: Dialect, stream_ids: bool) -> Message:
    body = frame.extras + frame.key + frame.value
    slipped = (
        stream_ids
        and frame.magic == Magic.ALT_REQUEST
        and not frame.framing
        and len(frame.value) >= 3
        and body[0] == 0x22
    )
    if not slipped:
        return decode(frame, dialect)
    first, second = 3 + len(frame.extras), 3 + len(frame.extras) + len(frame.key)
    shifted = Frame(
        magic=frame.magic,
        opcode=frame.opcode,
        datatype=frame.datatype,
        vbucket=frame.vbucket,
        opaque=frame.opaque,
        cas=frame.cas,
        framing=body[:3],
        extras=body[3:first],
        key=body[first:second],
        value=body[second:],
    )
    return decode(shifted, dialect)
