"""The walk over a buffer of frames that fills a block: one pass, no object, no GIL.

The frame that streams are made of (a classic mutation with 31 bytes of extras, no extended metadata
and a collection id below 128) is read here, with constants; every other frame goes to
`headrace.columns.frames`, which reads it by its form. The rows are the same: the tests send each
message down both roads.

Rules.
- Nothing is read outside [source, source + size): a frame is looked into once it is known to be
  whole, and a copy of whole vectors is done only when `SLACK` bytes follow the frame.
- Nothing is written outside the block: rows and frames handed back are bounded by the context's
  limits, and the payload of a frame is never longer than the frame.
- A scan that stopped in the middle (`Stop.GROW`) goes on with the next call as if it had not.

Imports: columns.block, columns.frames, columns.machine, columns.schema, columns.table,
wire.opcodes.
"""

from __future__ import annotations

import sys
from typing import Final

from headrace.columns import block
from headrace.columns.frames import (
    CAS,
    COLLECTION_ID,
    DATATYPE,
    EVENT,
    EXPIRY,
    FLAGS,
    HEADER,
    KEY,
    LOCK_TIME,
    NRU,
    OPAQUE,
    OTHER_SIZE,
    OTHERS,
    PREFIX_PRESENCE,
    PREPARED_SEQNO,
    PRESENCE,
    REV,
    SEQNO,
    SNAPSHOT_END,
    SNAPSHOT_FLAGS,
    SNAPSHOT_START,
    STEP_SIZE,
    STREAM_SIZE,
    VALUE,
    VBUCKET,
    add,
    get,
    put,
    take_frame,
)
from headrace.columns.machine import (
    compiled,
    copy,
    host16,
    host32,
    host64,
    inlined,
    move32,
    move64,
    prefetch,
    prefetch_to_write,
    store8,
    store16,
    store32,
    store64,
    wire8,
    wire16,
    wire32,
    wire64,
)
from headrace.columns.schema import Event, Presence
from headrace.columns.table import Context, Step, Stop, Stream
from headrace.wire.opcodes import Magic, Opcode

SLACK: Final = block.SLACK
BITMAPS: Final = tuple(block.PLACES[f"valid {group.name}"] for group in block.PRESENCES)
GROUPS: Final = len(block.PRESENCES)
ZEROS: Final = block.PLACES["zeros"]
FULL: Final = int(Stop.FULL)
OTHER_ROW: Final = block.OTHER_ROW
RESOLUTION: Final = int(Presence.RESOLUTION)
MARKED: Final = int(Presence.MARKED)
SIGN: Final = -(1 << 63)

# The next header's place is known only when this one is read, so the processor cannot run ahead,
# and its own prefetchers stop at every page: asking for what comes 4 KB further on takes a fifth
# off the time.
AHEAD: Final = 4096
AHEAD_MAX: Final = 1024
LINE: Final = 64

# First two bytes of the common mutation, read as a number of this machine.
COMMON_START: Final = int.from_bytes([Magic.REQUEST, Opcode.MUTATION], sys.byteorder)
COMMON_EXTRAS: Final = 31
COMMON_SIZE: Final = HEADER + COMMON_EXTRAS
COMMON_EVENT: Final = int(Event.MUTATION)
COMMON_PRESENCE: Final = int(Presence.REVISION | Presence.DOCUMENT | Presence.NRU)


@compiled
def finish(context: int) -> None:
    """Close the offsets, make the bitmaps that are needed, describe the batch in its metadata."""
    base = get(context, Context.BLOCK)
    rows = get(context, Context.ROWS)
    store32(base + 4 * rows + KEY, get(context, Context.KEY_SIZE))
    store32(base + 4 * rows + VALUE, get(context, Context.VALUE_SIZE))
    seen_any, seen_all = get(context, Context.SEEN_ANY), get(context, Context.SEEN_ALL)
    for group in range(GROUPS):
        nulls = 0
        if (seen_any >> group) & 1 == 0:
            nulls = rows
        elif (seen_all >> group) & 1 == 0:
            nulls = rows - _bitmap(base, rows, group)
        put(context, Context.FIRST_NULLS + group, nulls)
    if get(context, Context.STEPS) != 0:
        _find_steps(context, base, rows)
    _describe(context, base, rows)


@compiled
def _below(one: int, other: int) -> bool:
    """Compare as unsigned numbers."""
    return (one ^ SIGN) < (other ^ SIGN)


@compiled
def _breaks_rule(base: int, row: int, start: int) -> bool:
    """Whether a row cannot follow the one before it in its run, or resolves what is to come."""
    presence = host16(base + 2 * row + PRESENCE)
    seqno = host64(base + 8 * row + SEQNO)
    if presence & RESOLUTION and not _below(host64(base + 8 * row + PREPARED_SEQNO), seqno):
        return True
    # Out of order is legal where no marker is in force: in an out-of-order snapshot.
    if row == start or presence & MARKED == 0:
        return False
    return not _below(host64(base + 8 * (row - 1) + SEQNO), seqno)


@inlined
def _plain_run(base: int, row: int, limit: int, opaque: int, vbucket: int) -> int:
    """Return where rows end to be of one stream and to rise; all are marked, none resolves.

    This is what streams are made of, and a third of the time of looking at every rule.
    """
    last = host64(base + 8 * (row - 1) + SEQNO) ^ SIGN
    while row < limit:
        seqno = host64(base + 8 * row + SEQNO) ^ SIGN
        if (
            seqno <= last
            or host32(base + 4 * row + OPAQUE) != opaque
            or host16(base + 2 * row + VBUCKET) != vbucket
        ):
            break
        last = seqno
        row += 1
    return row


@compiled
def _pass_marks(context: int, mark: int, row: int) -> int:
    """Make steps of the noted markers up to a row; return the first that is behind it."""
    count, line = 0, get(context, Context.STEPS) + get(context, Context.STEP_COUNT) * STEP_SIZE
    end = get(context, Context.MARKS) + get(context, Context.MARK_COUNT) * STEP_SIZE
    while mark < end and get(mark, Step.START) <= row:
        copy(line + count * STEP_SIZE, mark, STEP_SIZE)
        mark += STEP_SIZE
        count += 1
    add(context, Context.STEP_COUNT, count)
    return mark


@compiled
def _find_steps(context: int, base: int, rows: int) -> None:
    """Cut the rows where the stream changes or another frame stood; look at their order.

    Markers stand between the runs, in the order of the wire.
    """
    steps, row = get(context, Context.STEPS), 0
    other, others = base + OTHERS, base + OTHERS + get(context, Context.OTHERS) * OTHER_SIZE
    mark = get(context, Context.MARKS)
    marks = mark + get(context, Context.MARK_COUNT) * STEP_SIZE
    broken_at = 0
    put(context, Context.STEP_COUNT, 0)
    plain = (
        get(context, Context.SEEN_ANY) & RESOLUTION == 0
        and get(context, Context.SEEN_ALL) & MARKED != 0
    )
    while row < rows and broken_at == 0:
        mark = _pass_marks(context, mark, row)
        while other < others and host32(other + OTHER_ROW) <= row:
            other += OTHER_SIZE
        limit = min(rows, host32(other + OTHER_ROW)) if other < others else rows
        limit = min(limit, get(mark, Step.START)) if mark < marks else limit
        opaque, vbucket = host32(base + 4 * row + OPAQUE), host16(base + 2 * row + VBUCKET)
        start = row
        first = last = host64(base + 8 * row + SEQNO)
        if plain:
            row = _plain_run(base, row + 1, limit, opaque, vbucket)
            last = host64(base + 8 * (row - 1) + SEQNO)
        while (
            row < limit
            and host32(base + 4 * row + OPAQUE) == opaque
            and host16(base + 2 * row + VBUCKET) == vbucket
        ):
            if _breaks_rule(base, row, start):
                broken_at = row + 1
                break
            seqno = host64(base + 8 * row + SEQNO)
            if _below(seqno, first):
                first = seqno
            if _below(last, seqno):
                last = seqno
            row += 1
        if row > start:
            line = steps + get(context, Context.STEP_COUNT) * STEP_SIZE
            put(line, Step.OTHERS, (other - base - OTHERS) // OTHER_SIZE)
            put(line, Step.START, start)
            put(line, Step.STOP, row)
            put(line, Step.OPAQUE, opaque)
            put(line, Step.VBUCKET, vbucket)
            put(line, Step.FIRST, first)
            put(line, Step.LAST, last)
            put(line, Step.SAID, host64(base + 8 * (row - 1) + CAS))
            put(line, Step.PURGE, 0)
            put(line, Step.IS_PURGE_TOLD, 0)
            add(context, Context.STEP_COUNT, 1)
    _pass_marks(context, mark, row)
    put(context, Context.BROKEN_AT, broken_at)


@compiled
def _describe(context: int, base: int, rows: int) -> None:
    """Write rows, nulls, and the offset and size of every buffer."""
    store64(base + block.LENGTH_PLACE, rows)
    node, buffer = base + block.NODES_PLACE, base + block.BUFFERS_PLACE
    payload, payload_size = get(context, Context.KEYS), get(context, Context.KEY_SIZE)
    for place, width, binary, group in block.DESCRIPTION:
        nulls = 0
        if group != block.NEVER_NULL:
            nulls = get(context, Context.FIRST_NULLS + group)
        validity, bitmap = base + block.BODY, (rows + 7) >> 3
        if nulls == 0:
            bitmap = 0
        elif nulls == rows:
            validity = base + ZEROS
            place = ZEROS
        else:
            validity = base + BITMAPS[group]
        _pair(node, rows, nulls)
        _pair(buffer, validity - base - block.BODY, bitmap)
        _pair(buffer + 16, place - block.BODY, width * (rows + binary))
        node, buffer = node + 16, buffer + 32
        if binary == 1:
            _pair(buffer, payload - base - block.BODY, payload_size)
            buffer += 16
            payload, payload_size = get(context, Context.VALUES), get(context, Context.VALUE_SIZE)


@compiled
def _pair(at: int, first: int, second: int) -> None:
    store64(at, first)
    store64(at + 8, second)


@compiled
def _bitmap(base: int, rows: int, group: int) -> int:
    """Write the validity of one group; return how many rows have it."""
    present = 0
    bitmap = base + BITMAPS[group]
    for first in range(0, rows, 8):
        byte = 0
        for row in range(first, min(first + 8, rows)):
            bit = (host16(base + 2 * row + PRESENCE) >> group) & 1
            byte |= bit << (row - first)
            present += bit
        store8(bitmap + (first >> 3), byte)
    return present


@inlined
def _write_common(base: int, row: int, at: int, stream: int, presence: int) -> None:
    """Write the columns of a common mutation whose place does not depend on its size."""
    store16(base + 2 * row + VBUCKET, wire16(at + 6))
    store8(base + row + EVENT, COMMON_EVENT)
    store8(base + row + DATATYPE, wire8(at + 5))
    store32(base + 4 * row + OPAQUE, wire32(at + 12))
    store64(base + 8 * row + CAS, wire64(at + 16))
    store64(base + 8 * row + SEQNO, wire64(at + 24))
    store64(base + 8 * row + REV, wire64(at + 32))
    store32(base + 4 * row + FLAGS, wire32(at + 40))
    store32(base + 4 * row + EXPIRY, wire32(at + 44))
    store32(base + 4 * row + LOCK_TIME, wire32(at + 48))
    store8(base + row + NRU, wire8(at + 54))
    store64(base + 8 * row + SNAPSHOT_START, get(stream, Stream.START))
    store64(base + 8 * row + SNAPSHOT_END, get(stream, Stream.END))
    store32(base + 4 * row + SNAPSHOT_FLAGS, get(stream, Stream.FLAGS))
    store16(base + 2 * row + PRESENCE, presence)


@inlined
def _fetch_ahead(at: int, after: int, target: int) -> None:
    """Ask for as many lines as this frame has, ahead of where it is read and its value written."""
    for done in range(AHEAD, AHEAD + min(after - at, AHEAD_MAX), LINE):
        prefetch(at + done)
        prefetch_to_write(target + done)


@inlined
def _copy_key(target: int, source: int, size: int, roomy: bool) -> None:
    if roomy and size <= 32:
        move32(target, source)
    else:
        copy(target, source, size)


@inlined
def _copy_value(target: int, source: int, size: int, roomy: bool) -> None:
    if roomy and size <= SLACK:
        move64(target, source)
    else:
        copy(target, source, size)


@compiled
def _save(
    context: int, row: int, key_size: int, value_size: int, seen_any: int, seen_all: int
) -> None:
    put(context, Context.ROWS, row)
    put(context, Context.KEY_SIZE, key_size)
    put(context, Context.VALUE_SIZE, value_size)
    put(context, Context.SEEN_ANY, seen_any)
    put(context, Context.SEEN_ALL, seen_all)


@compiled
def walk(context: int) -> int:
    """Walk the frames that the context names, on from where it stopped; return why it stopped."""
    base = get(context, Context.BLOCK)
    keys, values = get(context, Context.KEYS), get(context, Context.VALUES)
    streams = get(context, Context.STREAMS)
    common = get(context, Context.COMMON) == 1
    collections = get(context, Context.COLLECTIONS)
    body_size_max = get(context, Context.BODY_SIZE_MAX)
    rows_limit = get(context, Context.ROWS_LIMIT)
    others_limit = get(context, Context.OTHERS_LIMIT)
    source = get(context, Context.SOURCE)
    at, end = source + get(context, Context.CONSUMED), source + get(context, Context.SOURCE_SIZE)
    row = get(context, Context.ROWS)
    key_size, value_size = get(context, Context.KEY_SIZE), get(context, Context.VALUE_SIZE)
    seen_any, seen_all = get(context, Context.SEEN_ANY), get(context, Context.SEEN_ALL)
    own_presence = COMMON_PRESENCE + PREFIX_PRESENCE * collections
    # Whatever take_frame did not take is a common mutation, all of it counted.
    counted_from, stop = at, 0
    while at < end:
        if row >= rows_limit:
            stop = FULL
            break
        if common and end - at > COMMON_SIZE:
            body = wire32(at + 8)
            key = wire16(at + 2)
            after = at + HEADER + body
            key_at = at + COMMON_SIZE
            value_at = key_at + key
            collection = wire8(key_at) * collections
            if (
                host16(at) == COMMON_START
                and wire8(at + 4) == COMMON_EXTRAS
                and key > 0
                and value_at <= after <= end
                and body <= body_size_max
                and wire16(at + 52) == 0
                and collection < 0x80
            ):
                _fetch_ahead(at, after, values + value_size)
                stream = streams + wire16(at + 6) * STREAM_SIZE
                presence = get(stream, Stream.PRESENCE) | own_presence
                seen_any |= presence
                seen_all &= presence
                _write_common(base, row, at, stream, presence)
                put(stream, Stream.SEQNO, wire64(at + HEADER))
                add(stream, Stream.COUNTED, HEADER + body)
                store32(base + 4 * row + COLLECTION_ID, collection)
                store32(base + 4 * row + KEY, key_size)
                store32(base + 4 * row + VALUE, value_size)
                roomy = after + SLACK <= end
                _copy_key(keys + key_size, key_at + collections, key - collections, roomy)
                _copy_value(values + value_size, value_at, after - value_at, roomy)
                key_size += key - collections
                value_size += after - value_at
                row += 1
                at = after
                continue
        if get(context, Context.OTHERS) >= others_limit:
            stop = FULL
            break
        _save(context, row, key_size, value_size, seen_any, seen_all)
        size = take_frame(context, at, end)
        if size <= 0:
            stop = -size
            break
        row = get(context, Context.ROWS)
        key_size, value_size = get(context, Context.KEY_SIZE), get(context, Context.VALUE_SIZE)
        seen_any, seen_all = get(context, Context.SEEN_ANY), get(context, Context.SEEN_ALL)
        at += size
        counted_from += size
    _save(context, row, key_size, value_size, seen_any, seen_all)
    put(context, Context.CONSUMED, at - source)
    add(context, Context.COUNTED, at - counted_from)
    return stop
