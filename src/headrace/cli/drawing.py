"""A frame drawn byte by byte: where each field stands, what it is called, what it means.

    SNAPSHOT_MARKER  server to client, byte 2303, 44 bytes
      0..12 disk
      header
           0  80                       magic                 request
           1  56                       opcode                SNAPSHOT_MARKER
      ...
      extras, V1
          24  00 00 00 00 00 00 00 00  start_seqno           0

Fields, their order and their names come from the layout row that reads the frame; there is no
second table of places. A frame that only a tolerant reader understands is drawn as it was
understood: its message is written again, and the lengths of the parts are those of the corrected
frame.

Rules
- Offsets count from the frame's first byte, exactly.
- Numbers and names stand beside rows of up to 8 bytes, text beside rows of 16.
- At most `TEXT_ROWS_MAX` rows of a text and `RECORDS_MAX` records of a list are drawn; the rest is
  counted.

Imports: errors, wire, cli.texts, cli.words.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Final

from headrace.cli.follow import WITHOUT_VBUCKET
from headrace.cli.texts import (
    code_name,
    datatype_name,
    size_text,
    status_name,
    time_text,
    uuid_text,
)
from headrace.errors import HeadraceError, RemoteProtocolError
from headrace.wire.codec import row_of, rows_heard, to_frame
from headrace.wire.frame import HEADER_SIZE, body_lengths, opcode_name, parse_frame_infos
from headrace.wire.layout import SIZES, Fixed, Repeated
from headrace.wire.opcodes import Datatype, Feature, FrameInfoId, Magic, ReplyFrameInfoId
from headrace.wire.values import inflate, split_collection, split_xattrs

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from headrace.capture.walk import Item
    from headrace.wire.dialect import Dialect
    from headrace.wire.layout import Fields, Row

FIELD_ROW_SIZE: Final = 8
TEXT_ROW_SIZE: Final = 16
TEXT_ROWS_MAX: Final = 32
RECORDS_MAX: Final = 64
_NAME_WIDTH: Final = 22
_HEX_WIDTH: Final = 3 * FIELD_ROW_SIZE - 1
_TEXT_WIDTH: Final = 3 * TEXT_ROW_SIZE - 1
_CAS_PLAUSIBLE: Final = range(1_262_304_000, 4_102_444_800)  # seconds, years 2010 to 2100

_MAGIC_WORDS: Final = {
    Magic.REQUEST: "request",
    Magic.REPLY: "reply",
    Magic.SERVER_REQUEST: "request of the server",
    Magic.SERVER_REPLY: "reply to the server",
    Magic.ALT_REQUEST: "request with framing extras",
    Magic.ALT_REPLY: "reply with framing extras",
}
_MEANINGS: Final[dict[str, Callable[[int], str]]] = {
    "expiration": lambda number: f"{number} {time_text(number)}" if number else "0, never",
    "delete_time": lambda number: f"{number} {time_text(number)}" if number else "0",
    "vb_uuid": uuid_text,
    "uuid": uuid_text,
    "old_vb_uuid": uuid_text,
    "stream_opaque": hex,
    "collection_id": hex,
    "scope_id": hex,
    "manifest_uid": hex,
    "meta_cas": lambda number: cas_text(number),
    "features": lambda number: f"{number:#04x} {code_name(number, Feature)}",
}
"""Field name -> how its number is best read; any other is decimal, with its code's name."""


@dataclass(frozen=True, slots=True)
class Parts:
    """How long the parts of a body are, and the row that says what they mean."""

    framing: int
    extras: int
    key: int
    row: Row | None
    message: object = None


def draw(item: Item, dialect: Dialect, collections: bool | None) -> Iterator[str]:
    """Yield the lines of a frame's drawing; the frame must have been cut."""
    assert item.frame is not None
    parts = _parts(item, dialect)
    data = item.data
    yield "  header"
    yield from _header(data)
    if (parts.framing, parts.extras, parts.key) != body_lengths(data)[:3]:
        yield "  what follows is cut as it was understood, not as this header says"
    extras_at = HEADER_SIZE + parts.framing
    key_at = extras_at + parts.extras
    value_at = key_at + parts.key
    if parts.framing:
        yield "  framing extras"
        yield from _frame_infos(data[HEADER_SIZE:extras_at], reply=item.frame.is_reply)
    if parts.extras:
        layout = f", {parts.row.name}" if parts.row else ", in no known layout"
        yield f"  extras{layout}"
        run = parts.row.extras if parts.row else None
        yield from _run(data[extras_at:key_at], extras_at, run)
    if parts.key:
        yield "  key"
        yield from _key(data[key_at:value_at], key_at, collections, item)
    if value_at < len(data):
        yield from _value(data[value_at:], value_at, item.frame.datatype, parts.row)


def cas_text(cas: int) -> str:
    """Return a CAS; real servers make them from a clock in nanoseconds, and then it is told."""
    seconds = cas // 1_000_000_000
    return f"{cas:#x} {time_text(seconds)}" if seconds in _CAS_PLAUSIBLE else f"{cas:#x}"


def _parts(item: Item, dialect: Dialect) -> Parts:
    frame = item.frame
    assert frame is not None
    row = row_of(frame, dialect)
    if item.message is not None:
        try:
            understood = to_frame(item.message, dialect, historic=True)
        except HeadraceError:
            understood = frame
        if understood.size == len(item.data):
            frame = understood
            row = row_of(frame, dialect)
    if row is None and item.message is not None:
        # Extras cut short between two fields: the longest row names those that are there.
        rows = [row for row in rows_heard(frame, dialect) if row.message is type(item.message)]
        row = max(rows, key=lambda candidate: candidate.extras.size, default=None)
    return Parts(len(frame.framing), len(frame.extras), len(frame.key), row)


def _field(offset: int, data: bytes, name: str, meaning: str) -> str:
    return f"  {offset:>6}  {data.hex(' '):<{_HEX_WIDTH}}  {name:<{_NAME_WIDTH}}{meaning}".rstrip()


def _header(data: bytes) -> Iterator[str]:
    magic = data[0]
    flexible = magic in (Magic.ALT_REQUEST, Magic.ALT_REPLY)
    reply = Magic(magic).is_reply
    framing, extras, key, body = body_lengths(data)
    word = int.from_bytes(data[6:8], "big")
    yield _field(0, data[:1], "magic", _MAGIC_WORDS[Magic(magic)])
    yield _field(1, data[1:2], "opcode", opcode_name(magic, data[1]))
    if flexible:
        yield _field(2, data[2:3], "framing length", str(framing))
        yield _field(3, data[3:4], "key length", str(key))
    else:
        yield _field(2, data[2:4], "key length", str(key))
    yield _field(4, data[4:5], "extras length", str(extras))
    yield _field(5, data[5:6], "datatype", datatype_name(data[5]))
    yield _field(
        6, data[6:8], *(("status", status_name(word)) if reply else ("vbucket", str(word)))
    )
    yield _field(8, data[8:12], "body length", _body_words(framing, extras, key, body, data))
    yield _field(12, data[12:16], "opaque", f"{int.from_bytes(data[12:16], 'big'):#x}")
    yield _field(16, data[16:24], "cas", cas_text(int.from_bytes(data[16:24], "big")))


def _body_words(framing: int, extras: int, key: int, body: int, data: bytes) -> str:
    there = len(data) - HEADER_SIZE
    if body != there:
        return f"{body}, but {there} follow"
    value = body - framing - extras - key
    named = (("framing", framing), ("extras", extras), ("key", key), ("value", value))
    told = [f"{size} {name}" for name, size in named if size]
    return f"{body} = {' + '.join(told)}" if len(told) > 1 else str(body)


def _frame_infos(framing: bytes, *, reply: bool) -> Iterator[str]:
    try:
        infos = parse_frame_infos(framing)
    except RemoteProtocolError:
        yield from _text(framing, HEADER_SIZE)
        return
    at = 0
    for info in infos:
        # The id and the length share a byte; 15 in either moves it to a byte of its own.
        head = 1 + (framing[at] >> 4 == 15) + (framing[at] & 15 == 15)
        name = code_name(info.id, ReplyFrameInfoId if reply else FrameInfoId)
        yield _field(
            HEADER_SIZE + at,
            framing[at : at + head],
            "frame info",
            f"{info.id} {name}, {size_text(len(info.data))}",
        )
        at += head
        if len(info.data) > FIELD_ROW_SIZE:
            yield from _text(info.data, HEADER_SIZE + at)
        elif info.data:
            number = int.from_bytes(info.data, "big")
            yield _field(HEADER_SIZE + at, info.data, name, str(number))
        at += len(info.data)


def _run(data: bytes, base: int, run: Fields | None) -> Iterator[str]:
    """The fields of a fixed run as far as the bytes go; what is behind them is shown as bytes."""
    at = 0
    for field in run.fields if run is not None else ():
        if at + field.size > len(data):
            break
        number = int.from_bytes(data[at : at + field.size], "big")
        said = field.read(number, strict=False)
        meaning = _meaning(field.name, said, field.codes)
        if said != number:
            meaning = f"{number}, which is {meaning}"
        yield _field(base + at, data[at : at + field.size], field.name, meaning)
        at += field.size
    if at < len(data):
        yield from _text(data[at:], base + at)


def _meaning(name: str, number: int, codes: type | None = None) -> str:
    if name in _MEANINGS:
        return _MEANINGS[name](number)
    if codes is None:
        return "endless" if number == 0xFFFF_FFFF_FFFF_FFFF else str(number)
    return f"{number:#x} {code_name(number, codes)}".removesuffix(f" {number}")


def _key(key: bytes, base: int, collections: bool | None, item: Item) -> Iterator[str]:
    prefixed = collections
    if prefixed is None:
        prefixed = not 0x20 <= key[0] < 0x7F
    if prefixed and item.message is not None and _has_document_key(item):
        try:
            collection, rest = split_collection(key)
        except RemoteProtocolError:
            pass
        else:
            size = len(key) - len(rest)
            yield _field(base, key[:size], "collection", f"{collection:#x}")
            key, base = rest, base + size
    yield from _text(key, base)


def _has_document_key(item: Item) -> bool:
    """True for requests on one document: all of them also carry a vbucket that means something."""
    assert item.frame is not None
    return item.frame.opcode not in WITHOUT_VBUCKET and item.frame.name != "SYSTEM_EVENT"


def _value(value: bytes, base: int, datatype: int, row: Row | None) -> Iterator[str]:
    shape = row.value if row is not None else None
    if isinstance(shape, Fixed):
        yield f"  value, {row.name}" if row is not None else "  value"
        yield from _run(value, base, shape.fields)
    elif isinstance(shape, Repeated):
        yield f"  value, {shape.label}: {len(value) // shape.record.size}"
        yield from _records(value, base, shape)
    else:
        yield f"  value, {datatype_name(datatype)}, {size_text(len(value))}"
        yield from _document(value, base, datatype)


def _records(value: bytes, base: int, shape: Repeated) -> Iterator[str]:
    made = shape.make
    names = [field.name for field in fields(made)] if is_dataclass(made) else [shape.name]
    sizes = [SIZES[code] for code in shape.record.format.lstrip(">")]
    count = len(value) // shape.record.size
    at = 0
    for _ in range(min(count, RECORDS_MAX)):
        for name, size in zip(names, sizes, strict=True):
            number = int.from_bytes(value[at : at + size], "big")
            yield _field(base + at, value[at : at + size], name, _meaning(name, number))
            at += size
    if count > RECORDS_MAX:
        yield f"          ... {count - RECORDS_MAX} more"
    elif at < len(value):
        yield from _text(value[at:], base + at)


def _document(value: bytes, base: int, datatype: int) -> Iterator[str]:
    """A value by its datatype: xattrs taken apart, snappy shown twice, as sent and inflated."""
    try:
        if datatype & Datatype.SNAPPY:
            inflated = inflate(value)
            yield from _text(value, base)
            yield f"  value inflated, {size_text(len(inflated))}, counted from its own start"
            yield from _document(inflated, 0, datatype & ~Datatype.SNAPPY)
            return
        if datatype & Datatype.XATTR:
            base_document = yield from _xattrs(value, base)
            if base_document - base < len(value):
                yield "  document"
                yield from _text(value[base_document - base :], base_document)
            return
    except RemoteProtocolError as error:
        yield f"          (but {error})"
    yield from _text(value, base)


def _xattrs(value: bytes, base: int) -> Generator[str, None, int]:
    """The pairs of an xattr block; returns where the document begins."""
    pairs, document = split_xattrs(value)
    total = len(value) - len(document) - 4
    yield _field(base, value[:4], "xattrs length", str(total))
    at = 4
    for name, content in pairs.items():
        encoded = name.encode()
        size = len(encoded) + len(content) + 2
        yield _field(base + at, value[at : at + 4], "pair length", str(size))
        yield from _text(value[at + 4 : at + 4 + size], base + at + 4)
        at += 4 + size
    return base + at


def _text(data: bytes, base: int) -> Iterator[str]:
    """Rows of bytes with the characters they are beside them."""
    shown = data[: TEXT_ROWS_MAX * TEXT_ROW_SIZE]
    for start in range(0, len(shown), TEXT_ROW_SIZE):
        row = shown[start : start + TEXT_ROW_SIZE]
        characters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        yield f"  {base + start:>6}  {row.hex(' '):<{_TEXT_WIDTH}}  {characters}".rstrip()
    if len(data) > len(shown):
        yield f"          ... {size_text(len(data) - len(shown))} more"
