"""One frame, by its form: the road of every frame that is not the common mutation.

`take_frame` checks a frame's header and parts, finds the form that fits, and writes a row, puts a
snapshot in force, ends one, or hands the frame back. What it accepts and refuses is what
`headrace.wire.codec.decode`, strict, accepts and refuses, plus two rules of columns: extended
metadata must fit into the value, and with collections a document's key must start with a
collection id.

Rules.
- Nothing is read outside a frame, and a frame is looked into once it is known to be whole.
- A frame is taken whole or not at all: every check comes before the first write.
- Groups of columns that few messages have (`SPARSE`) are cleared when the first row of the batch
  needs them, and written only where present; all other columns are written for every row.

Imports: columns.block, columns.forms, columns.machine, columns.schema, columns.table, wire.opcodes.
"""

from __future__ import annotations

from typing import Final

from headrace.columns import block as b
from headrace.columns.forms import ABSENT, FORM_NUMBERS, INDEX_NUMBERS, Entry, KeyRule, Kind, Part
from headrace.columns.machine import (
    compiled,
    copy,
    host64,
    store8,
    store16,
    store32,
    store64,
    wire8,
    wire16,
    wire32,
    wire64,
    zero,
)
from headrace.columns.schema import COLUMNS, Presence
from headrace.columns.table import (
    MARKS_MAX,
    STEP_NUMBERS,
    STREAM_NUMBERS,
    Context,
    Reason,
    Step,
    Stop,
    Stream,
    named_place,
    stream_name,
)
from headrace.wire.opcodes import FrameInfoId, Magic, MarkerFlag

HEADER: Final = 24
FORM_SIZE: Final = 8 * FORM_NUMBERS
ENTRY_SIZE: Final = 8 * INDEX_NUMBERS
STREAM_SIZE: Final = 8 * STREAM_NUMBERS
STEP_SIZE: Final = 8 * STEP_NUMBERS
OTHER_SIZE: Final = int(b.OTHER.itemsize)
OTHERS: Final = b.PLACES["others"]
PRESENCE: Final = b.PLACES["presence"]

VBUCKET: Final = b.PLACES["vbucket"]
SEQNO: Final = b.PLACES["seqno"]
EVENT: Final = b.PLACES["event"]
KEY: Final = b.PLACES["key"]
VALUE: Final = b.PLACES["value"]
CAS: Final = b.PLACES["cas"]
REV: Final = b.PLACES["rev"]
FLAGS: Final = b.PLACES["flags"]
EXPIRY: Final = b.PLACES["expiry"]
LOCK_TIME: Final = b.PLACES["lock_time"]
NRU: Final = b.PLACES["nru"]
DATATYPE: Final = b.PLACES["datatype"]
DELETE_TIME: Final = b.PLACES["delete_time"]
COLLECTION_ID: Final = b.PLACES["collection_id"]
SNAPSHOT_START: Final = b.PLACES["snapshot_start"]
SNAPSHOT_END: Final = b.PLACES["snapshot_end"]
SNAPSHOT_FLAGS: Final = b.PLACES["snapshot_flags"]
PREPARED_SEQNO: Final = b.PLACES["prepared_seqno"]
DURABILITY: Final = b.PLACES["durability"]
DELETED: Final = b.PLACES["deleted"]
SYSTEM_EVENT: Final = b.PLACES["system_event"]
SYSTEM_VERSION: Final = b.PLACES["system_version"]
STREAM_ID: Final = b.PLACES["stream_id"]
OPAQUE: Final = b.PLACES["opaque"]

SPARSE: Final = tuple(
    (int(column.presence), b.PLACES[column.name], column.width * b.ROWS_MAX)
    for column in COLUMNS
    if column.presence
    in (
        Presence.DELETE_TIME,
        Presence.STREAM_ID,
        Presence.RESOLUTION,
        Presence.PREPARE,
        Presence.SYSTEM,
    )
)
"""Columns of groups that few messages have: group, place, size."""
SPARSE_GROUPS: Final = sum({group for group, _, _ in SPARSE})

PREFIX_PRESENCE: Final = int(Presence.COLLECTION)
ID_PRESENCE: Final = int(Presence.STREAM_ID)
RANGE_PRESENCE: Final = int(Presence.SNAPSHOT | Presence.MARKED)
EMPTY_MARKER_PRESENCE: Final = int(Presence.MARKED)
UNCOUNTED_FRAMING: Final = (FrameInfoId.STREAM_ID << 4) + 2
BAD_FRAMING: Final = -2
ACK: Final = int(MarkerFlag.ACK)


_named_place = compiled(named_place)
_stream_name = compiled(stream_name)


@compiled
def get(line: int, number: int) -> int:
    """Return a number of a context, a stream or a form."""
    return host64(line + 8 * number)


@compiled
def put(line: int, number: int, value: int) -> None:
    """Set a number of a context or a stream."""
    store64(line + 8 * number, value)


@compiled
def add(line: int, number: int, value: int) -> None:
    """Add to a number of a context or a stream."""
    store64(line + 8 * number, host64(line + 8 * number) + value)


@compiled
def _hand_back(context: int, at: int, size: int, reason: int) -> None:
    """Note a frame for the slow road."""
    count = get(context, Context.OTHERS)
    line = get(context, Context.BLOCK) + OTHERS + count * OTHER_SIZE
    store32(line, at - get(context, Context.SOURCE))
    store32(line + 4, size)
    store32(line + 8, reason)
    store32(line + 12, get(context, Context.ROWS))
    put(context, Context.OTHERS, count + 1)


@compiled
def _stream_id_of(at: int, size: int) -> int:
    """Return the stream id among frame infos, ABSENT, or BAD_FRAMING."""
    found = ABSENT
    end = at + size
    while at < end:
        first = wire8(at)
        identity, length = first >> 4, first & 15
        at += 1
        if identity == 15:
            if at >= end:
                return BAD_FRAMING
            identity += wire8(at)
            at += 1
        if length == 15:
            if at >= end:
                return BAD_FRAMING
            length += wire8(at)
            at += 1
        if at + length > end:
            return BAD_FRAMING
        if identity == FrameInfoId.STREAM_ID and length == 2 and found == ABSENT:
            found = wire16(at)
        at += length
    return found


@compiled
def _fitting_form(entry: int, forms: int, extras_at: int, extras: int, key: int, value: int) -> int:
    """Return the address of the first form that parts of these sizes fit, or 0."""
    form = forms + host64(entry + 8 * Entry.FIRST) * FORM_SIZE
    for _ in range(host64(entry + 8 * Entry.COUNT)):
        rule = get(form, Part.KEY_RULE)
        version = get(form, Part.VERSION)
        if (
            get(form, Part.EXTRAS_SIZE) == extras
            and get(form, Part.VALUE_MIN) <= value <= get(form, Part.VALUE_MAX)
            and (rule == KeyRule.ANY or (rule == KeyRule.SOME) == (key > 0))
            and (version == ABSENT or wire8(extras_at) == version)
        ):
            return form
        form += FORM_SIZE
    return 0


@compiled
def _translated(form: int, extras_at: int) -> int:
    """Return what the form's coded field says, or ABSENT when its number has no meaning."""
    number = wire32(extras_at + get(form, Part.CODED))
    for code in range(get(form, Part.CODES)):
        if get(form, Part.FIRST_CODE + 2 * code) == number:
            return get(form, Part.FIRST_CODE + 2 * code + 1)
    return ABSENT


@compiled
def _stream(context: int, vbucket: int, identity: int) -> int:
    """Return the address of a stream; 0: the table must grow; ABSENT: it may not grow further."""
    if identity == ABSENT:
        return get(context, Context.STREAMS) + vbucket * STREAM_SIZE
    name = _stream_name(vbucket, identity)
    capacity = get(context, Context.NAMED_CAPACITY)
    table = get(context, Context.NAMED)
    place = _named_place(name, capacity)
    while True:
        stream = table + place * STREAM_SIZE
        known = get(stream, Stream.NAME)
        if known == name:
            return stream
        if known == 0:
            break
        place = (place + 1) & (capacity - 1)
    count = get(context, Context.NAMED_COUNT)
    if count >= get(context, Context.NAMED_MAX):
        return ABSENT
    if 4 * (count + 1) > 3 * capacity:
        return 0
    put(context, Context.NAMED_COUNT, count + 1)
    put(stream, Stream.NAME, name)
    return stream


@compiled
def _told(stream: int, number: int, form: int, part: int, extras_at: int) -> int:
    """Keep one optional number of a marker; return 1 when the marker told it."""
    place = get(form, part)
    put(stream, number, 0 if place == ABSENT else wire64(extras_at + place))
    return 0 if place == ABSENT else 1


@compiled
def _marker(stream: int, form: int, extras_at: int, flags: int) -> None:
    """Put the marker's snapshot in force."""
    start = get(form, Part.START)
    ranged = start != ABSENT
    put(stream, Stream.START, wire64(extras_at + start) if ranged else 0)
    put(stream, Stream.END, wire64(extras_at + get(form, Part.END)) if ranged else 0)
    put(stream, Stream.FLAGS, flags)
    put(stream, Stream.PRESENCE, RANGE_PRESENCE if ranged else EMPTY_MARKER_PRESENCE)
    known = _told(stream, Stream.MAX_VISIBLE, form, Part.MAX_VISIBLE, extras_at)
    known |= _told(stream, Stream.HIGH_COMPLETED, form, Part.HIGH_COMPLETED, extras_at) << 1
    known |= _told(stream, Stream.PURGE, form, Part.PURGE, extras_at) << 2
    known |= _told(stream, Stream.HIGH_PREPARED, form, Part.HIGH_PREPARED, extras_at) << 3
    known |= _told(stream, Stream.TIMESTAMP, form, Part.TIMESTAMP, extras_at) << 4
    put(stream, Stream.KNOWN, known)


@compiled
def _note_marker(context: int, stream: int, at: int, counted: int) -> bool:
    """Note a marker in force for the steps; False: it has no range, or there is no room."""
    count = get(context, Context.MARK_COUNT)
    ranged = get(stream, Stream.PRESENCE) == RANGE_PRESENCE
    if get(context, Context.STEPS) == 0 or not ranged or count >= MARKS_MAX:
        return False
    row, line = get(context, Context.ROWS), get(context, Context.MARKS) + count * STEP_SIZE
    put(line, Step.OTHERS, get(context, Context.OTHERS))
    put(line, Step.START, row)
    put(line, Step.STOP, row)
    put(line, Step.OPAQUE, wire32(at + 12))
    put(line, Step.VBUCKET, wire16(at + 6))
    put(line, Step.FIRST, get(stream, Stream.START))
    put(line, Step.LAST, get(stream, Stream.END))
    put(line, Step.SAID, get(stream, Stream.FLAGS))
    put(line, Step.PURGE, get(stream, Stream.PURGE))
    put(line, Step.IS_PURGE_TOLD, (get(stream, Stream.KNOWN) >> 2) & 1)
    put(context, Context.MARK_COUNT, count + 1)
    add(context, Context.MARK_SIZE, counted)
    return True


@compiled
def _unmark(stream: int) -> None:
    """Leave the stream without a snapshot in force."""
    put(stream, Stream.START, 0)
    put(stream, Stream.END, 0)
    put(stream, Stream.FLAGS, 0)
    put(stream, Stream.PRESENCE, 0)
    put(stream, Stream.KNOWN, 0)


@compiled
def _prefix_size(at: int, size: int) -> int:
    """Return the bytes of the collection id that a key starts with, 0 when it is none."""
    for index in range(min(size, 5)):
        byte = wire8(at + index)
        if byte < 0x80:
            shortest = index == 0 or byte != 0
            fits = index < 4 or byte < 0x10
            return index + 1 if shortest and fits else 0
    return 0


@compiled
def _collection_of(at: int, size: int) -> int:
    collection = 0
    for index in range(size):
        collection |= (wire8(at + index) & 0x7F) << (7 * index)
    return collection


@compiled
def _read32(form: int, part: int, extras_at: int) -> int:
    place = get(form, part)
    return 0 if place == ABSENT else wire32(extras_at + place)


@compiled
def _read8(form: int, part: int, extras_at: int) -> int:
    place = get(form, part)
    return 0 if place == ABSENT else wire8(extras_at + place)


@compiled
def _write_fields(block: int, row: int, form: int, extras_at: int) -> None:
    """Write the columns that come from extras; of sparse groups only what is there."""
    store64(block + 8 * row + SEQNO, wire64(extras_at + get(form, Part.SEQNO)))
    rev = get(form, Part.REV)
    store64(block + 8 * row + REV, 0 if rev == ABSENT else wire64(extras_at + rev))
    store32(block + 4 * row + FLAGS, _read32(form, Part.FLAGS, extras_at))
    store32(block + 4 * row + EXPIRY, _read32(form, Part.EXPIRY, extras_at))
    store32(block + 4 * row + LOCK_TIME, _read32(form, Part.LOCK_TIME, extras_at))
    store8(block + row + NRU, _read8(form, Part.NRU, extras_at))
    if get(form, Part.DELETE_TIME) != ABSENT:
        store32(block + 4 * row + DELETE_TIME, _read32(form, Part.DELETE_TIME, extras_at))
    prepared = get(form, Part.PREPARED)
    if prepared != ABSENT:
        store64(block + 8 * row + PREPARED_SEQNO, wire64(extras_at + prepared))
    if get(form, Part.DURABILITY) != ABSENT:
        store8(block + row + DURABILITY, _read8(form, Part.DURABILITY, extras_at))
        store8(block + row + DELETED, _read8(form, Part.DELETED, extras_at))
    if get(form, Part.SYSTEM_EVENT) != ABSENT:
        store32(block + 4 * row + SYSTEM_EVENT, _read32(form, Part.SYSTEM_EVENT, extras_at))
        store8(block + row + SYSTEM_VERSION, _read8(form, Part.SYSTEM_VERSION, extras_at))


@compiled
def _write_header(block: int, row: int, at: int, form: int, stream: int) -> None:
    """Write the columns that come from the header and from the snapshot in force."""
    store16(block + 2 * row + VBUCKET, wire16(at + 6))
    store8(block + row + EVENT, get(form, Part.EVENT))
    store8(block + row + DATATYPE, wire8(at + 5))
    store32(block + 4 * row + OPAQUE, wire32(at + 12))
    store64(block + 8 * row + CAS, wire64(at + 16))
    store64(block + 8 * row + SNAPSHOT_START, get(stream, Stream.START))
    store64(block + 8 * row + SNAPSHOT_END, get(stream, Stream.END))
    store32(block + 4 * row + SNAPSHOT_FLAGS, get(stream, Stream.FLAGS))


@compiled
def _write_payload(
    context: int, row: int, key_at: int, key: int, value_at: int, value: int
) -> None:
    block = get(context, Context.BLOCK)
    key_size, value_size = get(context, Context.KEY_SIZE), get(context, Context.VALUE_SIZE)
    store32(block + 4 * row + KEY, key_size)
    store32(block + 4 * row + VALUE, value_size)
    copy(get(context, Context.KEYS) + key_size, key_at, key)
    copy(get(context, Context.VALUES) + value_size, value_at, value)
    put(context, Context.KEY_SIZE, key_size + key)
    put(context, Context.VALUE_SIZE, value_size + value)


@compiled
def _note_presence(context: int, row: int, presence: int) -> None:
    """Note which groups this row has; clear a sparse group's columns when it is the first."""
    block = get(context, Context.BLOCK)
    seen = get(context, Context.SEEN_ANY)
    new = presence & SPARSE_GROUPS & ~seen
    if new != 0:
        for group, place, size in SPARSE:
            if group & new:
                zero(block + place, size)
    store16(block + 2 * row + PRESENCE, presence)
    put(context, Context.SEEN_ANY, seen | presence)
    put(context, Context.SEEN_ALL, get(context, Context.SEEN_ALL) & presence)


@compiled
def _row(
    context: int,
    at: int,
    form: int,
    stream: int,
    identity: int,
    extras_at: int,
    prefix: int,
    key: int,
    value: int,
) -> None:
    """Write a row; every part of the frame is known to fit."""
    block = get(context, Context.BLOCK)
    row = get(context, Context.ROWS)
    presence = get(form, Part.PRESENCE) | get(stream, Stream.PRESENCE)
    if prefix > 0:
        presence |= PREFIX_PRESENCE
    if identity != ABSENT:
        presence |= ID_PRESENCE
    _note_presence(context, row, presence)
    if identity != ABSENT:
        store16(block + 2 * row + STREAM_ID, identity)
    _write_header(block, row, at, form, stream)
    _write_fields(block, row, form, extras_at)
    key_at = extras_at + get(form, Part.EXTRAS_SIZE)
    store32(block + 4 * row + COLLECTION_ID, _collection_of(key_at, prefix))
    _write_payload(context, row, key_at + prefix, key - prefix, key_at + key, value)
    put(stream, Stream.SEQNO, wire64(extras_at + get(form, Part.SEQNO)))
    put(context, Context.ROWS, row + 1)


@compiled
def _sound_frame(
    context: int, at: int, size: int, framing: int, extras: int, key: int, value: int
) -> int:
    """Take a whole request of an opcode that has forms; return `Stop.GROW` or 0."""
    entry = get(context, Context.INDEX) + wire8(at + 1) * ENTRY_SIZE
    identity = _stream_id_of(at + HEADER, framing)
    extras_at = at + HEADER + framing
    form = _fitting_form(entry, get(context, Context.FORMS), extras_at, extras, key, value)
    if form == 0 or identity == BAD_FRAMING:
        return _refused(context, at, size, Reason.MALFORMED)
    said = 0
    if get(form, Part.CODED) != ABSENT:
        said = _translated(form, extras_at)
    elif get(form, Part.MARKER_FLAGS) != ABSENT:
        said = wire32(extras_at + get(form, Part.MARKER_FLAGS))
    if said == ABSENT:
        return _refused(context, at, size, Reason.MALFORMED)
    metadata = 0
    if get(form, Part.NMETA) != ABSENT:
        metadata = wire16(extras_at + get(form, Part.NMETA))
    if metadata > value:
        return _refused(context, at, size, Reason.MALFORMED)
    prefix = 0
    if get(form, Part.PREFIXED) == 1 and get(context, Context.COLLECTIONS) == 1:
        prefix = _prefix_size(extras_at + extras, key)
        if prefix == 0:
            return _refused(context, at, size, Reason.PREFIX)
    stream = _stream(context, wire16(at + 6), identity)
    if stream == 0:
        return Stop.GROW
    if stream == ABSENT:
        return _refused(context, at, size, Reason.STREAMS)
    counted = _count(context, at, size)
    add(stream, Stream.COUNTED, counted)
    kind = get(form, Part.KIND)
    if kind == Kind.ROW:
        _row(context, at, form, stream, identity, extras_at, prefix, key, value - metadata)
    elif kind == Kind.MARKER:
        _marker(stream, form, extras_at, said)
        if not _note_marker(context, stream, at, counted) and (
            said & ACK or get(context, Context.STEPS) != 0
        ):
            _hand_back(context, at, size, Reason.MARKER)
    else:
        _unmark(stream)
        _hand_back(context, at, size, Reason.OTHER)
    return 0


@compiled
def _count(context: int, at: int, size: int) -> int:
    """Count a request for flow control; return the bytes it fills."""
    entry = get(context, Context.INDEX) + wire8(at + 1) * ENTRY_SIZE
    counted = (size + get(entry, Entry.SURCHARGE)) * get(entry, Entry.COUNTED)
    add(context, Context.COUNTED, counted)
    return counted


@compiled
def _refused(context: int, at: int, size: int, reason: int) -> int:
    _count(context, at, size)
    _hand_back(context, at, size, reason)
    return 0


@compiled
def take_frame(context: int, at: int, end: int) -> int:
    """Take the frame at ``at``: its size, 0 while it is not whole, or minus a `Stop`."""
    magic = wire8(at)
    flexible = magic in (Magic.ALT_REQUEST, Magic.ALT_REPLY)
    if not flexible and not Magic.REQUEST <= magic <= Magic.SERVER_REPLY:
        return -Stop.MAGIC
    if end - at < HEADER:
        return 0
    framing = wire8(at + 2) if flexible else 0
    key = wire8(at + 3) if flexible else wire16(at + 2)
    extras = wire8(at + 4)
    body = wire32(at + 8)
    value = body - framing - extras - key
    if body > get(context, Context.BODY_SIZE_MAX):
        return -Stop.BODY
    if value < 0:
        return -Stop.LENGTHS
    size = HEADER + body
    if end - at < size:
        return 0
    if magic not in (Magic.REQUEST, Magic.ALT_REQUEST):
        _hand_back(context, at, size, Reason.OTHER)
        return size
    opcode = wire8(at + 1)
    entry = get(context, Context.INDEX) + opcode * ENTRY_SIZE
    if get(entry, Entry.COUNT) == 0:
        _refused(context, at, size, Reason.OTHER)
        return size
    if (
        magic == Magic.ALT_REQUEST
        and framing == 0
        and value >= 3
        and wire8(at + HEADER) == UNCOUNTED_FRAMING
    ):
        # A released server forgets to count the stream id in the header of a live deletion.
        if get(context, Context.UNCOUNTED_FRAMING) == 0:
            _refused(context, at, size, Reason.MALFORMED)
            return size
        framing, value = 3, value - 3
    stop = _sound_frame(context, at, size, framing, extras, key, value)
    return -stop if stop != 0 else size
