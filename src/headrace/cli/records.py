"""Items as JSON: one object per line, stable names, nothing left out.

Rules
- Integers are JSON integers, whatever their size: seqnos and CAS values need all 64 bits, so read
  them with a parser that keeps them (Python, jq 1.7, any with big integers).
- Bytes are a string when they are printable UTF-8 (line breaks and tabs allowed) and {"hex": "..."}
  otherwise.
- A field that the layout does not have is left out; one that is empty is there.

Imports: wire, capture.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Final

from headrace.cli.texts import printable
from headrace.wire.message import HEADER_FIELDS
from headrace.wire.opcodes import Status

if TYPE_CHECKING:
    from headrace.capture.walk import Item

_BREAKS: Final = str.maketrans("", "", "\n\r\t")


def json_line(item: Item, vbucket: int | None) -> str:
    """Return the item as one line of JSON."""
    return json.dumps(record(item, vbucket), ensure_ascii=False, separators=(",", ":"))


def record(item: Item, vbucket: int | None) -> dict[str, object]:
    """Return the item as plain data; ``vbucket`` is the one a reply is about, when known."""
    connection = item.connection
    found: dict[str, object] = {}
    if item.timestamp_ns is not None:
        found["timestamp_ns"] = item.timestamp_ns
    found["connection"] = connection.number
    if connection.client is not None:
        found["client"] = str(connection.client)
        found["server"] = str(connection.server)
    found["direction"] = item.direction.value
    found["offset"] = item.offset
    if item.line is not None:
        found["line"] = item.line
    found["size"] = len(item.data)
    if item.frame is not None:
        found.update(_frame(item, vbucket))
    if item.message is not None:
        found["message"] = type(item.message).__name__
        found["fields"] = {
            field.name: plain(content)
            for field in fields(item.message)
            if field.name not in HEADER_FIELDS
            and field.name not in ("opcode", "magic")
            and (content := getattr(item.message, field.name)) is not None
        }
    if item.error is not None:
        found["error"] = str(item.error)
        found["error_offset"] = item.offset + (item.error_at or 0)
        found["bytes"] = {"hex": item.data.hex()}
    return found


def _frame(item: Item, vbucket: int | None) -> dict[str, object]:
    frame = item.frame
    assert frame is not None
    found: dict[str, object] = {
        "magic": frame.magic,
        "opcode": frame.opcode,
        "name": frame.name,
        "reply": frame.is_reply,
    }
    if vbucket is not None:
        found["vbucket"] = vbucket
    if frame.is_reply:
        found["status"] = frame.status
        if frame.status in _STATUS_NAMES:
            found["status_name"] = _STATUS_NAMES[frame.status]
    found["opaque"] = frame.opaque
    found["cas"] = frame.cas
    found["datatype"] = frame.datatype
    if item.message is not None and item.message.frame_infos:
        found["frame_infos"] = [plain(info) for info in item.message.frame_infos]
    return found


_STATUS_NAMES: Final = {int(status): status.name for status in Status}


def plain(content: object) -> object:
    """Return a field's content as JSON can say it."""
    if isinstance(content, bytes):
        text = _text(content)
        return text if text is not None else {"hex": content.hex()}
    if is_dataclass(content):
        return {field.name: plain(getattr(content, field.name)) for field in fields(content)}
    if isinstance(content, tuple | list):
        return [plain(entry) for entry in content]
    return content


def _text(data: bytes) -> str | None:
    if printable(data) is not None:
        return data.decode("utf-8")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if text.translate(_BREAKS).isprintable() else None
