"""Bytes and numbers as text for people: keys, values, flags, times.

Rules
- Text is shown as text only when it is printable UTF-8; anything else is hex, so that a terminal
  never gets control codes from a capture.
- Every preview is bounded: `PREVIEW_SIZE` characters of a value, whatever its size.
- Numbers keep their protocol names: flags are joined by `|` as bits of the same word.

Imports: errors, wire.opcodes, wire.values.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import IntFlag
from typing import TYPE_CHECKING, Final

from headrace.errors import RemoteProtocolError
from headrace.wire.opcodes import SEQNO_MAX, Datatype, Status
from headrace.wire.values import inflate, split_collection, split_xattrs

if TYPE_CHECKING:
    from enum import IntEnum

PREVIEW_SIZE: Final = 60
HEX_PREVIEW_BYTES: Final = 12
HEAD_FACTOR: Final = 8
"""Bytes looked at per character shown: four hold any character, the rest may be indentation."""
_BREAKS: Final = re.compile(rb"[ \t]*[\r\n]\s*|\t")
_SECONDS_MAX: Final = 253_402_300_799  # the last second of the year 9999


def printable(data: bytes) -> str | None:
    """Return the text that these bytes are, or None when they are not printable UTF-8."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def preview(data: bytes, size: int = PREVIEW_SIZE) -> str:
    """Return the beginning of some bytes as one line of text, or as hex when they are not text."""
    head = data[: HEAD_FACTOR * size]
    if len(head) < len(data):
        head = _whole_characters(head)  # a character cut in two must not look like binary
    text = printable(_BREAKS.sub(b" ", head))
    if text is None:
        shown = data[:HEX_PREVIEW_BYTES].hex(" ")
        return f"{shown} ..." if len(data) > HEX_PREVIEW_BYTES else shown
    cut = len(text) > size or len(head) < len(data)
    return text[: size - 3] + "..." if cut else text


def _whole_characters(data: bytes) -> bytes:
    for cut in range(4):
        try:
            data[: len(data) - cut].decode("utf-8")
        except UnicodeDecodeError:
            continue
        return data[: len(data) - cut]
    return data


def quoted(data: bytes) -> str:
    """Return a name: its text, in quotes when a space would blur where it ends."""
    text = printable(data)
    if text is None:
        return preview(data)
    return f'"{text}"' if not text or " " in text else text


def code_name(number: int, codes: type[IntEnum] | type[IntFlag] | None) -> str:
    """Return the name of a number, of the bits of a word, or the number itself."""
    if codes is None:
        return str(number)
    if issubclass(codes, IntFlag):
        return _flag_names(number, codes)
    try:
        return codes(number).name.lower()
    except ValueError:
        return str(number)


def _flag_names(number: int, codes: type[IntFlag]) -> str:
    names = [str(bit.name).lower() for bit in codes if bit and number & bit]
    rest = number & ~sum(bit for bit in codes)
    if rest:
        names.append(f"{rest:#x}")
    return "|".join(names) or "none"


def status_name(status: int) -> str:
    """Return the name of a status; 0 is ok, an unknown one its number."""
    if status == Status.SUCCESS:
        return "ok"
    try:
        return Status(status).name
    except ValueError:
        return f"status {status:#04x}"


def datatype_name(datatype: int) -> str:
    """Return the bits of a datatype by name, raw for none."""
    return code_name(datatype, Datatype) if datatype else "raw"


def seqno_text(seqno: int | None) -> str:
    """Return a seqno; the greatest one means that there is no end."""
    return "endless" if seqno == SEQNO_MAX else str(seqno)


def uuid_text(uuid: int) -> str:
    """Return a branch uuid as it is written everywhere: 16 hex digits, 0 for none."""
    return f"{uuid:016x}" if uuid else "0"


def time_text(seconds: int) -> str:
    """Return a time in UTC for seconds since 1970."""
    if not 0 <= seconds <= _SECONDS_MAX:
        return str(seconds)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def size_text(size: int) -> str:
    """Return a number of bytes."""
    return several(size, "byte")


def several(count: int, name: str) -> str:
    """Return a number of things by name: 1 node, 2 nodes."""
    return f"{count:,} {name}" + ("" if count == 1 else "s")


def key_text(key: bytes, collections: bool | None) -> str:
    """Return a key, its collection behind it.

    ``collections`` says whether keys have a collection prefix here; None means nobody knows, and
    then a first byte that no text has is taken for one.
    """
    prefixed = collections if collections is not None else bool(key) and not 0x20 <= key[0] < 0x7F
    if prefixed:
        try:
            collection, name = split_collection(key)
        except RemoteProtocolError:
            return quoted(key)
        return quoted(name) + (f" in {collection:#x}" if collection else "")
    return quoted(key)


def value_text(value: bytes, datatype: int) -> str:
    """Return the beginning of a value, its xattrs by name, its datatype and its size."""
    notes = [size_text(len(value))]
    if datatype:
        notes.insert(0, datatype_name(datatype))
    try:
        document = inflate(value) if datatype & Datatype.SNAPPY else value
        if datatype & Datatype.XATTR:
            xattrs, document = split_xattrs(document)
            notes.append("xattrs " + " ".join(xattrs) if xattrs else "no xattrs")
    except RemoteProtocolError as error:
        return f"{preview(value)} ({', '.join(notes)}, but {error})"
    shown = preview(document) + " " if document else ""
    return f"{shown}({', '.join(notes)})"
