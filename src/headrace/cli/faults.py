"""A fault, shown where it is: file, connection, direction, byte, the sentence, and the bytes.

    x.pcap, connection 16 (127.0.0.1:60166 > 127.0.0.1:12266), client to server, byte 187
      STREAM_REQ with 24 bytes of extras; dcp-7 allows 48
         183  80 53 00 00 18 00 00 00 00 00 00 18 00 00 00 01
                          ^^

Imports: wire, capture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.capture.conversation import Direction, RoleEvidence
from headrace.errors import RemoteProtocolError
from headrace.wire.codec import decode
from headrace.wire.frame import one_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.capture.walk import Item
    from headrace.wire.dialect import Dialect

ROW_SIZE: Final = 16
ROWS_BEFORE: Final = 1
"""Rows of bytes shown before the one with the wrong byte."""

WAYS: Final = {
    Direction.CLIENT_TO_SERVER: "client to server",
    Direction.SERVER_TO_CLIENT: "server to client",
    Direction.UNKNOWN: "",
}


def fault_lines(item: Item, name: str, dialect: Dialect, *, strict: bool) -> Iterator[str]:
    """Yield the lines that show a fault."""
    assert item.error is not None
    at = item.error_at or 0
    yield f"{place(item, name)}, byte {item.offset + at}"
    hint = " (--tolerant reads it)" if strict and _tolerated(item, dialect) else ""
    yield f"  {item.error}{hint}"
    yield from (f"  {line}" for line in excerpt(item.data, at, item.offset))


def place(item: Item, name: str) -> str:
    """Where an item is, in words."""
    connection = item.connection
    parts = [name]
    if connection.client is not None:
        parts.append(f"connection {connection.number} ({connection})")
    if item.line is not None:
        parts.append(f"line {item.line}")
    if way := WAYS[item.direction]:
        parts.append(way)
    return ", ".join(parts)


def excerpt(data: bytes, at: int, offset: int) -> Iterator[str]:
    """Yield rows of bytes around ``at`` with a caret under it; they are counted from ``offset``."""
    first = max(at // ROW_SIZE - ROWS_BEFORE, 0) * ROW_SIZE
    for start in range(first, at + 1, ROW_SIZE):
        row = data[start : start + ROW_SIZE]
        label = f"{offset + start:>10}"
        # The byte behind the last one that is there: the place where something is missing.
        yield f"{label}  {row.hex(' ')}".rstrip()
        if start <= at < start + ROW_SIZE:
            yield " " * (len(label) + 2 + 3 * (at - start)) + "^^"


def _tolerated(item: Item, dialect: Dialect) -> bool:
    whole = item.connection.evidence is RoleEvidence.NONE
    if item.frame is None and not whole:
        return False
    try:
        # Where the boundary is known, the header's lengths may be the slip.
        frame = item.frame or one_frame(item.data, tolerant=True)
        decode(frame, dialect, strict=False)
    except RemoteProtocolError:
        return False
    return True
