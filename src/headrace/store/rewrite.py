"""One kernel from frames at rest to frames for a reader, for whole chunks.

`write_frame` obeys a `Transform` for one frame; two loops feed it: the frames of a block, and the
linked items of a vbucket in the arena. Both leave out versions that the view's end has
superseded. A frame whose value must be rewritten, and a system event, stop the loop: the caller
does that one with `headrace.store.plain` and goes on. `plain` is also the slow and obvious twin
that the tests hold against this kernel.

Imports: store.index, store.layout, store.native, store.transform.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.store import layout as at
from headrace.store import transform as to
from headrace.store.index import collection_of
from headrace.store.native import (
    copy_bytes,
    kernel,
    load8,
    load16,
    load32,
    load64,
    store8,
    store16,
    store32,
    store64,
)

if TYPE_CHECKING:
    from headrace.store.native import Halves, Words

FRAME_GROWTH_MAX: Final = 8
"""Bytes a frame may gain: 3 of stream-id framing, 1 of an expiration that becomes a deletion."""
WHOLE_HEAD: Final = 24 + 31
"""Header and extras of a mutation at rest."""
DROPPED: Final = 0
SLOW: Final = -1

# Places in the result of a loop; BYTES..PREPARES are added to, so that loops can be chained.
R_NEXT: Final = 0
"""Row (of a block) or ordinal (of an item) to look at next."""
R_BYTES: Final = 1
R_COUNT: Final = 2
R_FIRST: Final = 3
R_LAST: Final = 4
R_READ: Final = 5
R_PREPARES: Final = 6
R_WHY: Final = 7
R_PASSED: Final = 8
"""Ordinal of the last item passed."""
R_COLUMNS: Final = 9

# Why a loop stopped.
WHY_END: Final = 0
WHY_LIMIT: Final = 1
WHY_SLOW: Final = 2
WHY_ROOM: Final = 3
WHY_DAMAGED: Final = 4

COMPRESSION_INFLATE: Final = to.Compression.INFLATE.value
COMPRESSION_DEFLATE: Final = to.Compression.DEFLATE.value


@kernel
def is_wanted(wanted: Words, collection: int) -> bool:
    """Whether a collection id is among the sorted ones."""
    low, high = 0, len(wanted)
    while low < high:
        middle = (low + high) // 2
        if wanted[middle] < collection:
            low = middle + 1
        else:
            high = middle
    return low < len(wanted) and wanted[low] == collection


@kernel
def passes(source: int, opcode: int, options: Words, wanted: Words) -> bool:
    """Whether a reader gets this frame at all; system events pass wherever collections do."""
    if opcode == at.SYSTEM_EVENT:
        return options[to.O_COLLECTIONS] != 0
    if opcode in (at.PREPARE, at.ABORT) and not options[to.O_SYNC_WRITES]:
        return False
    key = source + at.HEADER + load8(source + at.EXTRAS_SIZE_AT)
    if not options[to.O_COLLECTIONS]:
        return load8(key) == 0
    if options[to.O_FILTERED]:
        return is_wanted(wanted, collection_of(key, load16(source + at.KEY_SIZE_AT)))
    return True


@kernel
def needs_slow_path(opcode: int, datatype: int, value_size: int, options: Words) -> bool:
    """Whether the frame's value must be taken apart."""
    if opcode == at.SYSTEM_EVENT:
        return True
    values, xattrs = options[to.O_VALUES], options[to.O_XATTRS]
    if datatype & at.DATATYPE_XATTR and value_size:
        if values != xattrs:
            return True
        deletes = opcode in (at.DELETION, at.EXPIRATION)
        if xattrs and deletes and not options[to.O_DELETED_USER_XATTRS]:
            return True
    if not values or not value_size:
        return False
    if datatype & at.DATATYPE_SNAPPY:
        return options[to.O_COMPRESSION] == COMPRESSION_INFLATE
    return options[to.O_COMPRESSION] == COMPRESSION_DEFLATE


@kernel
def write_header(
    source: int, target: int, options: Words, opcode: int, datatype: int, extras: int, key_size: int
) -> int:
    """Write header and framing, all but body size and CAS; where the extras go."""
    body = target + at.HEADER
    if options[to.O_STREAM_ID]:
        store8(target, at.FLEXIBLE_MAGIC)
        store8(target + 2, 3)
        store8(target + 3, key_size)
        store8(body, 0x22)  # frame info 2 (stream id), 2 bytes
        store16(body + 1, options[to.O_STREAM_ID])
        body += 3
    else:
        store8(target, at.MAGIC)
        store16(target + at.KEY_SIZE_AT, key_size)
    store8(target + at.OPCODE_AT, opcode)
    store8(target + at.EXTRAS_SIZE_AT, extras)
    store8(target + at.DATATYPE_AT, datatype)
    store16(target + at.VBUCKET_AT, load16(source + at.VBUCKET_AT))
    store32(target + at.OPAQUE_AT, options[to.O_OPAQUE])
    return body


@kernel
def write_whole(
    source: int, target: int, size: int, collections: int, datatype_mask: int, opaque: int
) -> int:
    """Write a mutation that leaves as it lies, but for the opaque and a prefix: its size."""
    datatype = load8(source + at.DATATYPE_AT)
    if collections:
        copy_bytes(target, source, size)
    else:
        if load8(source + WHOLE_HEAD) != 0:
            return DROPPED
        # Of constant size, hence a few instructions; its last byte is written over at once.
        copy_bytes(target, source, WHOLE_HEAD + 1)
        copy_bytes(target + WHOLE_HEAD, source + WHOLE_HEAD + 1, size - WHOLE_HEAD - 1)
        size -= 1
        store16(target + at.KEY_SIZE_AT, load16(source + at.KEY_SIZE_AT) - 1)
        store32(target + at.BODY_SIZE_AT, size - at.HEADER)
    store8(target + at.DATATYPE_AT, datatype & datatype_mask)
    store32(target + at.OPAQUE_AT, opaque)
    return size


@kernel
def write_frame(source: int, target: int, options: Words, wanted: Words) -> int:
    """Write what the reader gets of the frame at ``source``: its size, DROPPED or SLOW.

    ``target`` has room for the frame and FRAME_GROWTH_MAX bytes.
    """
    opcode = load8(source + at.OPCODE_AT)
    whole = options[to.O_WHOLE]
    if opcode == at.MUTATION and whole >= 0 and not load8(source + at.DATATYPE_AT) & whole:
        return write_whole(
            source,
            target,
            at.HEADER + load32(source + at.BODY_SIZE_AT),
            options[to.O_COLLECTIONS],
            options[to.O_DATATYPE_MASK],
            options[to.O_OPAQUE],
        )
    if not passes(source, opcode, options, wanted):
        return DROPPED
    extras = load8(source + at.EXTRAS_SIZE_AT)
    key_size = load16(source + at.KEY_SIZE_AT)
    datatype = load8(source + at.DATATYPE_AT)
    body_size = load32(source + at.BODY_SIZE_AT)
    value_size = body_size - extras - key_size
    note = load32(source + at.OPAQUE_AT)
    commits = options[to.O_COMMITS] and note & at.COMMITTED and opcode != at.PREPARE
    if not commits and needs_slow_path(opcode, datatype, value_size, options):
        return SLOW
    key = source + at.HEADER + extras
    if not options[to.O_COLLECTIONS]:
        key += 1
        key_size -= 1
    cas = load64(source + at.CAS_AT)
    copied = extras
    if commits:
        opcode, extras, copied, value_size, datatype, cas = at.COMMIT, 16, 0, 0, 0, 0
    elif opcode == at.MUTATION:
        extras = copied = options[to.O_MUTATION_EXTRAS]
    elif opcode in (at.DELETION, at.EXPIRATION):
        extras = options[to.O_DELETION_EXTRAS]
        copied = 20 if extras == 21 else 16
        if opcode == at.EXPIRATION:
            if not options[to.O_EXPIRY_OPCODE]:
                opcode = at.DELETION
            elif extras == 21:
                extras = 20
    value = source + at.HEADER + body_size - value_size
    if not options[to.O_VALUES] and value_size:
        value_size = 0
        if not options[to.O_KEEP_DATATYPE]:
            datatype = 0
    body = write_header(
        source, target, options, opcode, datatype & options[to.O_DATATYPE_MASK], extras, key_size
    )
    store64(target + at.CAS_AT, cas)
    if commits:
        seqno = load64(source + at.SEQNO_AT)
        store64(body, seqno - (note & at.COMMIT_DISTANCE_MAX))
        store64(body + 8, seqno)
    else:
        copy_bytes(body, source + at.HEADER, copied)
        for rest in range(copied, extras):
            store8(body + rest, 0)
    body += extras
    copy_bytes(body, key, key_size)
    body += key_size
    copy_bytes(body, value, value_size)
    body += value_size
    store32(target + at.BODY_SIZE_AT, body - target - at.HEADER)
    return body - target


@kernel
def _note_sent(result: Words, opcode: int, seqno: int, size: int) -> None:
    result[R_BYTES] += size
    result[R_COUNT] += 1
    if result[R_FIRST] == 0:
        result[R_FIRST] = seqno
    result[R_LAST] = seqno
    if opcode == at.PREPARE:
        result[R_PREPARES] += 1


@kernel
def _whole_run(
    source: int,
    source_size: int,
    rows: Halves,
    first_seqno: int,
    options: Words,
    last: int,
    superseded_end: int,
    target: int,
    capacity: int,
    limit: int,
    result: Words,
) -> None:
    """Write rows of a block from R_NEXT on while they are mutations that leave as they lie.

    Most blocks are one such run. Everything that is counted stays in registers meanwhile: stores
    into ``result`` for each frame would cost half as much as the copies.
    """
    row, used, count = result[R_NEXT], result[R_BYTES], result[R_COUNT]
    first, final, read = result[R_FIRST], result[R_LAST], result[R_READ]
    whole = options[to.O_WHOLE]
    collections, opaque = options[to.O_COLLECTIONS], options[to.O_OPAQUE]
    datatype_mask = options[to.O_DATATYPE_MASK]
    while row < len(rows) and used < limit and whole >= 0:
        seqno = first_seqno + rows[row, 0]
        if seqno > last:
            break
        superseded = rows[row, 2]
        if not superseded or seqno + superseded > superseded_end:
            offset = rows[row, 1]
            stop = rows[row + 1, 1] if row + 1 < len(rows) else source_size
            frame, size = source + offset, stop - offset
            if (
                load8(frame + at.OPCODE_AT) != at.MUTATION
                or load8(frame + at.DATATYPE_AT) & whole
                or at.HEADER + load32(frame + at.BODY_SIZE_AT) != size
                or used + size + FRAME_GROWTH_MAX > capacity
            ):
                break
            written = write_whole(frame, target + used, size, collections, datatype_mask, opaque)
            if written != DROPPED:
                used += written
                count += 1
                final = seqno
                if first == 0:
                    first = seqno
        read = seqno
        row += 1
    result[R_NEXT], result[R_BYTES], result[R_COUNT] = row, used, count
    result[R_FIRST], result[R_LAST], result[R_READ] = first, final, read


@kernel
def rewrite_block(
    source: int,
    source_size: int,
    rows: Halves,
    first_seqno: int,
    options: Words,
    wanted: Words,
    last: int,
    end: int,
    all_versions: bool,
    target: int,
    capacity: int,
    limit: int,
    result: Words,
) -> None:
    """Write the frames of a block from row R_NEXT on, up to seqno ``last``, as seen at ``end``."""
    superseded_end = -1 if all_versions else end
    result[R_WHY] = WHY_END
    while True:
        _whole_run(
            source,
            source_size,
            rows,
            first_seqno,
            options,
            last,
            superseded_end,
            target,
            capacity,
            limit,
            result,
        )
        row = result[R_NEXT]
        if row == len(rows):
            break
        seqno = first_seqno + rows[row, 0]
        if seqno > last:
            break
        if result[R_BYTES] >= limit:
            result[R_WHY] = WHY_LIMIT
            break
        superseded = rows[row, 2]
        if superseded and seqno + superseded <= superseded_end:
            result[R_READ] = seqno
            result[R_NEXT] = row + 1
            continue
        offset = rows[row, 1]
        stop = rows[row + 1, 1] if row + 1 < len(rows) else source_size
        if offset + at.HEADER + load32(source + offset + at.BODY_SIZE_AT) != stop:
            result[R_WHY] = WHY_DAMAGED
            break
        if result[R_BYTES] + (stop - offset) + FRAME_GROWTH_MAX > capacity:
            result[R_WHY] = WHY_ROOM
            break
        size = write_frame(source + offset, target + result[R_BYTES], options, wanted)
        if size == SLOW:
            result[R_WHY] = WHY_SLOW
            break
        result[R_READ] = seqno
        if size != DROPPED:
            _note_sent(result, load8(source + offset + at.OPCODE_AT), seqno, size)
        result[R_NEXT] = row + 1


@kernel
def address_at(addresses: Words, state: Words, position: int) -> int:
    """Where a position of the arena lies in memory."""
    segment_bytes = state[at.S_SEGMENT_BYTES]
    number = position // segment_bytes
    return addresses[number & (len(addresses) - 1)] + position - number * segment_bytes


@kernel
def rewrite_items(
    items: Words,
    state: Words,
    addresses: Words,
    options: Words,
    wanted: Words,
    end: int,
    last: int,
    from_memory: bool,
    all_versions: bool,
    target: int,
    capacity: int,
    limit: int,
    result: Words,
) -> None:
    """Write the linked items from ordinal R_NEXT on, up to seqno ``last``, as seen at ``end``.

    ``from_memory``: sync writes are never left out as superseded. R_NEXT becomes the next ordinal,
    0 when the vbucket has no more items.
    """
    ordinal = result[R_NEXT]
    result[R_WHY] = WHY_END
    while ordinal:
        row = ordinal & (len(items) - 1)
        seqno = items[row, at.I_SEQNO]
        if seqno > last:
            break
        if result[R_BYTES] >= limit:
            result[R_WHY] = WHY_LIMIT
            break
        superseded = items[row, at.I_SUPERSEDED]
        info = items[row, at.I_INFO]
        opcode = info & 0xFF
        sync = opcode in (at.PREPARE, at.ABORT) or info & at.INFO_COMMITTED
        kept = all_versions or (from_memory and sync)
        if superseded and superseded <= end and not kept:
            result[R_READ] = seqno
            result[R_PASSED] = ordinal
            ordinal = items[row, at.I_NEXT]
            continue
        if result[R_BYTES] + (info >> at.INFO_SIZE_SHIFT) + FRAME_GROWTH_MAX > capacity:
            result[R_WHY] = WHY_ROOM
            break
        source = address_at(addresses, state, items[row, at.I_POSITION])
        size = write_frame(source, target + result[R_BYTES], options, wanted)
        if size == SLOW:
            result[R_WHY] = WHY_SLOW
            break
        result[R_READ] = seqno
        result[R_PASSED] = ordinal
        if size != DROPPED:
            _note_sent(result, opcode, seqno, size)
        ordinal = items[row, at.I_NEXT]
    result[R_NEXT] = ordinal


@kernel
def last_passing(
    items: Words,
    state: Words,
    addresses: Words,
    options: Words,
    wanted: Words,
    ordinal: int,
    last: int,
    end: int,
) -> int:
    """The last seqno up to ``end``, from an ordinal on, that the reader gets; 0 if none.

    ``last`` is an item that none with a seqno up to ``end`` comes after, if its own is not beyond:
    mostly the reader gets it, and nobody has to walk.
    """
    row = last & (len(items) - 1)
    found: int = items[row, at.I_SEQNO]
    if ordinal and found <= end and _is_got(items, state, addresses, options, wanted, row, end):
        return found
    found = 0
    while ordinal:
        row = ordinal & (len(items) - 1)
        if items[row, at.I_SEQNO] > end:
            break
        if _is_got(items, state, addresses, options, wanted, row, end):
            found = items[row, at.I_SEQNO]
        ordinal = items[row, at.I_NEXT]
    return found


@kernel
def _is_got(
    items: Words, state: Words, addresses: Words, options: Words, wanted: Words, row: int, end: int
) -> bool:
    """Whether an item lives at ``end`` and is meant for the reader."""
    superseded = items[row, at.I_SUPERSEDED]
    if superseded and superseded <= end:
        return False
    source = address_at(addresses, state, items[row, at.I_POSITION])
    return passes(source, items[row, at.I_INFO] & 0xFF, options, wanted)


@kernel
def last_in_block(
    source: int, rows: Halves, first_seqno: int, options: Words, wanted: Words, end: int
) -> int:
    """The last seqno up to ``end`` in a block that the reader gets; 0 if none."""
    row = len(rows) - 1
    while row >= 0:
        frame = source + rows[row, 1]
        seqno = first_seqno + rows[row, 0]
        superseded = rows[row, 2]
        lives = not superseded or seqno + superseded > end
        if seqno <= end and lives and passes(frame, load8(frame + at.OPCODE_AT), options, wanted):
            return seqno
        row -= 1
    return 0
