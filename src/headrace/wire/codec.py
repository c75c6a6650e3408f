"""Frames <-> messages, by one look into LAYOUTS.

`decode` finds the rows of the frame's opcode that the dialect hears and reads the frame by the one
whose sizes fit; `encode` finds the rows of the message's class that the dialect speaks and writes
the first that can say everything the message says. There is no other knowledge of layouts.

Strict decoding refuses whatever no row describes. Tolerant decoding is for recorded bytes, where
the boundary of a frame is known from outside. It reads three more things, each seen in a seed or on
a real server: parts whose lengths the header misstates (the row is found by the body's total size),
extras cut short between two fields (what is missing stays unset), and a flexible frame whose
framing extras are in the body but not counted in the header.

Imports: errors, wire.dialect, wire.frame, wire.layout(s), wire.kv_layouts, wire.message.
"""

from __future__ import annotations

import struct
from dataclasses import MISSING
from dataclasses import fields as dataclass_fields
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.frame import (
    HEADER_SIZE,
    Frame,
    encode_frame_infos,
    opcode_name,
    parse_frame_infos,
)
from headrace.wire.kv_layouts import KV_ROWS
from headrace.wire.layout import (
    ANY_KEY,
    NO_KEY,
    REPLY,
    REQUEST,
    SERVER_REPLY,
    SERVER_REQUEST,
    Bytes,
    Custom,
    Fixed,
    Repeated,
    Row,
)
from headrace.wire.layouts import STREAM_ROWS
from headrace.wire.message import ErrorReply, Reply, Request, UnknownCommand, UnknownReply
from headrace.wire.opcodes import DATATYPE_ALL, FrameInfoId, Magic, Opcode

if TYPE_CHECKING:
    from headrace.wire.dialect import Dialect
    from headrace.wire.message import Message

LAYOUTS: Final[tuple[Row, ...]] = STREAM_ROWS + KV_ROWS
"""Every layout there is."""

_KINDS: Final = {
    Magic.REQUEST: REQUEST,
    Magic.ALT_REQUEST: REQUEST,
    Magic.REPLY: REPLY,
    Magic.ALT_REPLY: REPLY,
    Magic.SERVER_REQUEST: SERVER_REQUEST,
    Magic.SERVER_REPLY: SERVER_REPLY,
}
_MAGICS: Final = {
    REQUEST: (Magic.REQUEST, Magic.ALT_REQUEST),
    REPLY: (Magic.REPLY, Magic.ALT_REPLY),
    SERVER_REQUEST: (Magic.SERVER_REQUEST, None),
    SERVER_REPLY: (Magic.SERVER_REPLY, None),
}
_HEARD_MAX: Final = 4096
"""Kinds of frames whose rows are remembered: every opcode of a conversation, with room to spare."""
_STREAM_ID_BYTE: Final = (FrameInfoId.STREAM_ID << 4) | 2


def _index_by_opcode() -> dict[tuple[str, int], tuple[Row, ...]]:
    index: dict[tuple[str, int], list[Row]] = {}
    for row in LAYOUTS:
        index.setdefault((row.kind, row.opcode), []).append(row)
    return {key: tuple(rows) for key, rows in index.items()}


def _index_by_class() -> dict[type[Message], tuple[Row, ...]]:
    index: dict[type[Message], list[Row]] = {}
    for row in LAYOUTS:
        index.setdefault(row.message, []).append(row)
    return {key: tuple(rows) for key, rows in index.items()}


_BY_OPCODE: Final = _index_by_opcode()
_BY_CLASS: Final = _index_by_class()
_OPTIONAL: Final = {
    message: frozenset[str]().union(*(row.optional_names() for row in rows))
    for message, rows in _BY_CLASS.items()
}
_UNSAID: Final = {
    id(row): tuple(sorted(_OPTIONAL[row.message] - row.optional_names())) for row in LAYOUTS
}
"""Fields that other rows of the same message carry: None in a message read by this row."""
_IS_ONLY: Final = {
    id(row): not (_UNSAID[id(row)] or row.fixed or row.needed_names()) for row in LAYOUTS
}
"""Whether a row, where it is the only one, can say whatever its message says."""


def rows_heard(frame: Frame, dialect: Dialect) -> tuple[Row, ...]:
    """Return the rows that may describe this frame: its opcode, its status, this dialect."""
    return _rows_heard(frame.magic, frame.opcode, frame.status, dialect)


@lru_cache(maxsize=_HEARD_MAX)
def _rows_heard(magic: int, opcode: int, status: int, dialect: Dialect) -> tuple[Row, ...]:
    rows = _BY_OPCODE.get((_KINDS[Magic(magic)], opcode), ())
    reply = Magic(magic).is_reply
    return tuple(
        row for row in rows if dialect in row.hear and (not reply or status in row.statuses)
    )


def row_of(frame: Frame, dialect: Dialect) -> Row | None:
    """Return the row that describes this frame exactly, or None."""
    extras, key_size, value_size = frame.extras, len(frame.key), len(frame.value)
    for row in _rows_heard(frame.magic, frame.opcode, frame.status, dialect):
        if row.fits(extras, key_size, value_size):
            return row
    return None


def decode(frame: Frame, dialect: Dialect, *, strict: bool = True) -> Message:
    """Return the message this frame is, or raise RemoteProtocolError with the place in it."""
    row = row_of(frame, dialect)
    if row is None:
        rows = rows_heard(frame, dialect)
        if not rows:
            return _without_row(frame)
        message = None if strict else _read_tolerant(frame, rows)
        if message is None:
            raise _misfit(frame, rows, dialect)
        return message
    if frame.magic == Magic.ALT_REQUEST and not frame.framing:
        shifted = _uncounted_framing(frame)
        if shifted is not None and strict:
            raise RemoteProtocolError(
                f"{frame.name} with a stream id in its body and 0 bytes of framing extras in its "
                "header; allowed: 3",
                offset=2,
            )
        frame = shifted or frame
    return _read(frame, row, strict)


def _read(frame: Frame, row: Row, strict: bool) -> Message:
    extras = row.extras
    try:
        fields = extras.read(frame.extras, strict)
    except RemoteProtocolError as error:
        error.offset = HEADER_SIZE + len(frame.framing)
        error.args = (f"{frame.name}: {error}",)
        raise
    if row.key != NO_KEY:
        fields["key"] = frame.key
    value = row.value
    if isinstance(value, Bytes):
        fields["value"] = frame.value
    elif isinstance(value, Fixed):
        fields.update(value.fields.read(frame.value, strict))
    elif isinstance(value, Repeated):
        fields[value.name] = value.read(frame.value)
    elif isinstance(value, Custom):
        fields.update(_parse(frame, value, fields))
    if row.fixed:
        fields.update(row.fixed)
    return _make(row, frame, fields)


def _parse(frame: Frame, value: Custom, fields: dict[str, object]) -> dict[str, object]:
    try:
        return value.parse(frame.value, fields)
    except RemoteProtocolError as error:
        error.offset = frame.size - len(frame.value) + (error.offset or 0)
        error.args = (f"{frame.name}: {error}",)
        raise


def _make(row: Row, frame: Frame, fields: dict[str, object]) -> Message:
    fields["opaque"] = frame.opaque
    fields["cas"] = frame.cas
    fields["datatype"] = frame.datatype
    if frame.framing:
        fields["frame_infos"] = parse_frame_infos(frame.framing)
    fields["status" if frame.is_reply else "vbucket"] = frame.vbucket
    for name in _UNSAID[id(row)]:
        fields[name] = None
    return row.message(**fields)  # type: ignore[arg-type]


def _without_row(frame: Frame) -> Message:
    """Return what can be said of a sound frame that no layout describes."""
    infos = parse_frame_infos(frame.framing) if frame.framing else ()
    if frame.is_reply:
        kind = ErrorReply if frame.vbucket else UnknownReply
        return kind(
            opcode=frame.opcode,
            magic=_classic(frame.magic),
            status=frame.vbucket,
            opaque=frame.opaque,
            cas=frame.cas,
            datatype=frame.datatype,
            frame_infos=infos,
            extras=frame.extras,
            key=frame.key,
            value=frame.value,
        )
    return UnknownCommand(
        opcode=frame.opcode,
        magic=_classic(frame.magic),
        vbucket=frame.vbucket,
        opaque=frame.opaque,
        cas=frame.cas,
        datatype=frame.datatype,
        frame_infos=infos,
        extras=frame.extras,
        key=frame.key,
        value=frame.value,
    )


def _classic(magic: int) -> int:
    """Return the magic without regard to framing; frame infos say which framing to write."""
    return _MAGICS[_KINDS[Magic(magic)]][0]


def _misfit(frame: Frame, rows: tuple[Row, ...], dialect: Dialect) -> RemoteProtocolError:
    """Return the one sentence that names the first part no row allows."""
    name = frame.name
    sizes = sorted({row.extras.size for row in rows})
    if len(frame.extras) not in sizes:
        allowed = " or ".join(str(size) for size in sizes)
        return RemoteProtocolError(
            f"{name} with {len(frame.extras)} bytes of extras; {dialect.value} allows {allowed}",
            offset=4,
        )
    rows = tuple(row for row in rows if row.extras.size == len(frame.extras))
    keys = {row.key for row in rows}
    if keys == {NO_KEY} and frame.key:
        return RemoteProtocolError(
            f"{name} with a key of {len(frame.key)} bytes; allowed: no key", offset=2
        )
    if ANY_KEY not in keys and NO_KEY not in keys and not frame.key:
        offset = 3 if Magic(frame.magic).is_flexible else 2
        return RemoteProtocolError(f"{name} without a key; it must have one", offset=offset)
    versions = sorted(row.version for row in rows if row.version is not None)
    if versions and frame.extras[0] not in versions:
        allowed = ", ".join(str(version) for version in dict.fromkeys(versions))
        return RemoteProtocolError(
            f"{name} of version {frame.extras[0]}; {dialect.value} allows {allowed}",
            offset=HEADER_SIZE + len(frame.framing),
        )
    matching = [row for row in rows if row.version in (None, *frame.extras[:1])]
    allowed = " or ".join(dict.fromkeys(str(row.value) for row in matching))
    return RemoteProtocolError(
        f"{name} with a value of {len(frame.value)} bytes; allowed: {allowed}", offset=8
    )


def _read_tolerant(frame: Frame, rows: tuple[Row, ...]) -> Message | None:
    """Return the message some row would have, or None when nothing known explains the frame."""
    frame = _uncounted_framing(frame) or frame
    for row in rows:
        if row.fits(frame.extras, len(frame.key), len(frame.value)):
            return _read(frame, row, strict=False)
    by_size = _fit_by_size(frame, rows)
    if by_size is not None:
        return _read(*by_size, strict=False)
    return _cut_short(frame, rows)


def _fit_by_size(frame: Frame, rows: tuple[Row, ...]) -> tuple[Frame, Row] | None:
    """Find the keyless row of fixed size whose total is the body's: the header misstated parts."""
    body = frame.extras + frame.key + frame.value
    for row in rows:
        fixed = row.value.fields.size if isinstance(row.value, Fixed) else 0
        whole = row.extras.size + fixed
        if row.key == NO_KEY and whole and whole == len(body) and not isinstance(row.value, Bytes):
            # Seed 003 draws version 1 before a V2.0 value: the size decides, not the byte.
            return _recut(frame, body, row.extras.size), row
    return None


def _recut(frame: Frame, body: bytes, extras_size: int) -> Frame:
    return _replace(frame, frame.framing, body[:extras_size], b"", body[extras_size:])


def _uncounted_framing(frame: Frame) -> Frame | None:
    """Undo a real server's slip: a stream-id frame info in the body that the header forgot."""
    if (
        frame.magic != Magic.ALT_REQUEST
        or frame.framing
        or len(frame.value) < 3
        or frame.opcode not in _STREAM_OPCODES
    ):
        return None
    body = frame.extras + frame.key + frame.value
    if body[0] != _STREAM_ID_BYTE:
        return None
    framing, rest = body[:3], body[3:]
    first, second = len(frame.extras), len(frame.extras) + len(frame.key)
    return _replace(frame, framing, rest[:first], rest[first:second], rest[second:])


_STREAM_OPCODES: Final = frozenset(range(Opcode.STREAM_END, Opcode.CACHE_TRANSFER_END + 1))


def _replace(frame: Frame, framing: bytes, extras: bytes, key: bytes, value: bytes) -> Frame:
    return Frame(
        magic=frame.magic,
        opcode=frame.opcode,
        datatype=frame.datatype,
        vbucket=frame.vbucket,
        opaque=frame.opaque,
        cas=frame.cas,
        framing=framing,
        extras=extras,
        key=key,
        value=value,
    )


def _cut_short(frame: Frame, rows: tuple[Row, ...]) -> Message | None:
    """Return the message as far as its extras go, if they end with a field and suffice."""
    row = max(rows, key=lambda candidate: candidate.extras.size)
    found = row.extras.read_prefix(frame.extras)
    whole = sum(field.size for field in row.extras.fields[: len(found)])
    required = {
        field.name
        for field in dataclass_fields(row.message)
        if field.default is MISSING and field.default_factory is MISSING
    }
    if frame.key or frame.value or whole != len(frame.extras) or not required <= found.keys():
        return None
    return _make(row, frame, found)


def encode(message: Message, dialect: Dialect, *, historic: bool = False) -> bytes:
    """Return the message as it travels in this dialect, or raise LocalProtocolError.

    ``historic`` also writes layouts that are only ever read, to repeat recorded bytes.
    """
    return to_frame(message, dialect, historic=historic).to_bytes()


def to_frame(message: Message, dialect: Dialect, *, historic: bool = False) -> Frame:
    """Return the frame a message becomes in this dialect, or raise LocalProtocolError."""
    if isinstance(message, UnknownCommand | UnknownReply | ErrorReply):
        return _raw_frame(message)
    row = _choose(message, dialect, historic)
    try:
        return _write(message, row)
    except struct.error as error:
        name = type(message).__name__
        raise LocalProtocolError(f"{name} holds a number its layout cannot: {error}") from error


def _choose(message: Message, dialect: Dialect, historic: bool) -> Row:
    kind = type(message)
    name = kind.__name__
    if kind not in _BY_CLASS:
        raise LocalProtocolError(f"{name} has no layout")
    spoken, exact = _rows_spoken(kind, dialect, historic)
    if len(spoken) == 1 and _IS_ONLY[id(spoken[0])]:
        return spoken[0]
    if len(spoken) > 1:
        spoken = tuple(row for row in spoken if _says_fixed(row, message))
    if not spoken or not _says_fixed(spoken[0], message):
        raise LocalProtocolError(f"{name} cannot be said in {dialect.value}")
    optional = _OPTIONAL[kind]
    present = frozenset([field for field in optional if getattr(message, field) is not None])
    for row in exact.get(present, ()):
        if _says_fixed(row, message):
            return row
    for row in spoken:
        unsaid = present - row.optional_names()
        if row.needed_names() <= present and not any(getattr(message, field) for field in unsaid):
            return row
    numbers = ", ".join(f"{field}={getattr(message, field)}" for field in sorted(present))
    raise LocalProtocolError(
        f"{name} with {numbers or 'no field set'} cannot be said in {dialect.value}"
    )


_Spoken: TypeAlias = tuple[tuple[Row, ...], dict[frozenset[str], tuple[Row, ...]]]
_SPOKEN: Final[dict[tuple[type[Message], Dialect, bool], _Spoken]] = {}
"""What `_rows_spoken` found: at most every message in every dialect, twice."""


def _rows_spoken(kind: type[Message], dialect: Dialect, historic: bool) -> _Spoken:
    """Return the rows a dialect may send, and the same by the fields they carry."""
    known = _SPOKEN.get((kind, dialect, historic))
    if known is None:
        known = _SPOKEN[(kind, dialect, historic)] = _find_rows_spoken(kind, dialect, historic)
    return known


def _find_rows_spoken(kind: type[Message], dialect: Dialect, historic: bool) -> _Spoken:
    rows = tuple(row for row in _BY_CLASS[kind] if dialect in (row.hear if historic else row.speak))
    exact: dict[frozenset[str], tuple[Row, ...]] = {}
    for row in rows:
        names = row.optional_names()
        exact[names] = (*exact.get(names, ()), row)
    return rows, exact


def _says_fixed(row: Row, message: Message) -> bool:
    return all(getattr(message, name) == said for name, said in row.fixed)


def _write(message: Message, row: Row) -> Frame:
    extras = row.extras.write(message)
    if row.version is not None:
        extras = bytes([row.version]) + extras[1:]
    key: bytes = b"" if row.key == NO_KEY else getattr(message, "key")  # noqa: B009 - by row
    name = type(message).__name__
    if row.key not in (NO_KEY, ANY_KEY) and not key:
        raise LocalProtocolError(f"{name} without a key; it must have one")
    if message.datatype > DATATYPE_ALL:
        raise LocalProtocolError(f"{name} with datatype {message.datatype}, limit {DATATYPE_ALL}")
    framing = encode_frame_infos(message.frame_infos)
    return Frame(
        magic=_magic(row.kind, bool(framing), name),
        opcode=row.opcode,
        datatype=message.datatype,
        vbucket=_word(message, row, name),
        opaque=message.opaque,
        cas=message.cas,
        framing=framing,
        extras=extras,
        key=key,
        value=_value(message, row),
    )


def _magic(kind: str, flexible: bool, name: str) -> int:
    classic, alternative = _MAGICS[kind]
    if not flexible:
        return classic
    if alternative is None:
        raise LocalProtocolError(f"{name} cannot carry frame infos")
    return alternative


def _word(message: Message, row: Row, name: str) -> int:
    """Return bytes 6-7: vbucket or status."""
    if isinstance(message, Request):
        return message.vbucket
    assert isinstance(message, Reply)
    if message.status not in row.statuses:
        allowed = ", ".join(f"{status:#04x}" for status in sorted(row.statuses))
        raise LocalProtocolError(
            f"{name} with status {message.status:#04x}; allowed: {allowed}, else an ErrorReply"
        )
    return message.status


def _value(message: Message, row: Row) -> bytes:
    value = row.value
    if isinstance(value, Bytes):
        content: bytes = getattr(message, "value")  # noqa: B009 - the row says it has one
        if not value.fits(len(content)):
            raise LocalProtocolError(
                f"{type(message).__name__} with a value of {len(content)} bytes; needs {value}"
            )
        return content
    if isinstance(value, Fixed):
        return value.fields.write(message)
    if isinstance(value, Repeated):
        return value.write(getattr(message, value.name))
    if isinstance(value, Custom):
        return value.build(message)
    return b""


def _raw_frame(message: UnknownCommand | UnknownReply | ErrorReply) -> Frame:
    framing = encode_frame_infos(message.frame_infos)
    kind = _KINDS[Magic(message.magic)]
    if isinstance(message, ErrorReply) and message.status == 0:
        raise LocalProtocolError(
            f"ErrorReply to {opcode_name(message.magic, message.opcode)} with status 0"
        )
    return Frame(
        magic=_magic(kind, bool(framing), type(message).__name__),
        opcode=message.opcode,
        datatype=message.datatype,
        vbucket=message.vbucket if isinstance(message, UnknownCommand) else message.status,
        opaque=message.opaque,
        cas=message.cas,
        framing=framing,
        extras=message.extras,
        key=message.key,
        value=message.value,
    )
