"""`headrace decode --parquet`: what a producer sent, as rows of a Parquet file.

The rows and their columns are those of `headrace.columns.schema`; nothing is added. Bytes of a
connection's direction go to its own Scanner, since snapshots belong to streams and streams to
connections.

Rules
- Markers always reach the scanner, even when a filter leaves them out of the view: rows carry their
  snapshot.
- A frame whose header contradicts its bytes is written again as it should have been sent.
- The file appears under its name when it is complete; rows of one connection keep their order.

Imports: errors, wire, capture, columns, cli.follow.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from headrace.cli.texts import size_text
from headrace.columns.scan import Scanner
from headrace.columns.schema import SCHEMA
from headrace.columns.table import Reason
from headrace.errors import CaptureError
from headrace.wire.codec import to_frame
from headrace.wire.opcodes import Opcode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.capture.conversation import Direction
    from headrace.capture.walk import Item
    from headrace.cli.follow import Follower
    from headrace.wire.dialect import Dialect

FLUSH_SIZE: Final = 4 << 20
"""Bytes of one direction that are gathered before they are scanned."""

ROWS: Final = frozenset(
    int(opcode)
    for opcode in (
        Opcode.MUTATION,
        Opcode.DELETION,
        Opcode.EXPIRATION,
        Opcode.PREPARE,
        Opcode.COMMIT,
        Opcode.ABORT,
        Opcode.SYSTEM_EVENT,
        Opcode.SEQNO_ADVANCED,
    )
)
CONTEXT: Final = frozenset(
    int(opcode) for opcode in (Opcode.SNAPSHOT_MARKER, Opcode.STREAM_END, Opcode.OSO_SNAPSHOT)
)
"""Frames that make no row and say which snapshot the rows around them belong to."""


def write_parquet(
    items: Iterable[tuple[Item, bool]],
    dialect: Dialect,
    out: str,
    *,
    follower: Follower,
    strict: bool = True,
) -> str:
    """Write the wanted items that are rows; returns a sentence about the file.

    Raises CaptureError when the file cannot be written, when a frame makes no row that should, and
    when the capture is damaged; in the last two cases the file holds the rows that could be read.
    """
    part = Path(f"{out}.part")
    try:
        with pq.ParquetWriter(part, SCHEMA) as writer:
            rows = _Rows(writer, dialect, follower, strict=strict)
            damage = rows.take_all(items)
        part.replace(out)
    except OSError as error:
        raise CaptureError(f"{out} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            part.unlink()
    if damage is not None:
        raise damage
    if rows.lost:
        raise CaptureError(
            f"{rows.lost} frames made no row in {out}, which has the other {rows.count}"
        )
    return f"{rows.count:,} rows in {out}, {size_text(Path(out).stat().st_size)}"


class _Rows:
    """The lanes of all connections on their way to one file."""

    def __init__(
        self, writer: pq.ParquetWriter, dialect: Dialect, follower: Follower, *, strict: bool
    ) -> None:
        self._writer = writer
        self._dialect = dialect
        self._follower = follower
        self._strict = strict
        self._lanes: dict[tuple[int, Direction], _Lane] = {}

    @property
    def count(self) -> int:
        """Rows written."""
        return sum(lane.rows for lane in self._lanes.values())

    @property
    def lost(self) -> int:
        """Frames that should have made a row."""
        return sum(lane.lost for lane in self._lanes.values())

    def take_all(self, items: Iterable[tuple[Item, bool]]) -> CaptureError | None:
        """Write every row; returns the damage of the capture, if it has any."""
        damage: CaptureError | None = None
        try:
            for item, wanted in items:
                if _belongs(item, wanted):
                    self._lane(item).take(item)
        except CaptureError as error:
            damage = error
        for lane in self._lanes.values():
            lane.flush()
        return damage

    def _lane(self, item: Item) -> _Lane:
        key = (item.connection.number, item.direction)
        lane = self._lanes.get(key)
        if lane is None:
            scanner = Scanner(
                self._dialect,
                collections=bool(self._follower.collections(item.connection)),
                stream_ids=not self._strict,
            )
            lane = self._lanes[key] = _Lane(self._writer, self._dialect, scanner)
        return lane


def _belongs(item: Item, wanted: bool) -> bool:
    frame = item.frame
    if frame is None or item.message is None or frame.is_reply:
        return False
    return frame.opcode in CONTEXT or (wanted and frame.opcode in ROWS)


class _Lane:
    """One direction of one connection: bytes that wait for the scanner."""

    def __init__(self, writer: pq.ParquetWriter, dialect: Dialect, scanner: Scanner) -> None:
        self.rows = 0
        self.lost = 0
        self._writer = writer
        self._dialect = dialect
        self._scanner = scanner
        self._data = bytearray()

    def take(self, item: Item) -> None:
        """Add one frame, and scan when enough have come together."""
        assert item.message is not None
        assert item.frame is not None
        if item.frame.to_bytes() == item.data:
            self._data += item.data
        else:
            self._data += to_frame(item.message, self._dialect, historic=True).to_bytes()
        if len(self._data) >= FLUSH_SIZE:
            self.flush()

    def flush(self) -> None:
        """Write the rows of all bytes that wait."""
        data = bytes(self._data)
        self._data.clear()
        at = 0
        while at < len(data):
            result = self._scanner.scan(memoryview(data)[at:])
            if result.error is not None:
                raise CaptureError(str(result.error), offset=result.error.offset) from result.error
            assert result.consumed, "whole frames are always consumed"
            if result.batch.num_rows:
                self._writer.write_batch(result.batch)
                self.rows += result.batch.num_rows
            reasons = result.others["reason"].tolist()
            self.lost += sum(reason in (Reason.MALFORMED, Reason.PREFIX) for reason in reasons)
            at += result.consumed
