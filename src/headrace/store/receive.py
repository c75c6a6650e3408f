"""A run of received data frames enters a replica in one call.

What a producer sends is nearly what lies at rest: the kernel checks each frame (whole, plain, of
the right vbucket and stream, its seqno rising and inside the snapshot), lays it into the arena in
the form of `headrace.store.layout` and has `accept_new` enter it, or `accept_version` if its key is
known. It stops before the first frame that is anything else; nothing of that one has been changed.

An entry has to wait for memory: a key's slot in the index lies anywhere. So frames
go in groups: all of a group are laid down and hashed and their slots asked for, and when the first
is entered its slot is near.

Imports: errors, store.accept, store.index, store.layout, store.model, store.native.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.errors import StoreFull
from headrace.store import layout as at
from headrace.store.accept import accept_new, accept_version, frame_hash
from headrace.store.index import collection_of, fetch_row, fetch_slot
from headrace.store.model import KEY_SIZE_MAX, VALUE_SIZE_MAX
from headrace.store.native import (
    address_of,
    bytes_at,
    copy_bytes,
    kernel,
    load8,
    load16,
    load32,
    load64,
    store8,
    store16,
    store32,
)

if TYPE_CHECKING:
    from headrace.history import SnapshotRange
    from headrace.store.native import Bytes, Words
    from headrace.store.vbucket import VBucket

# What the kernel is told, and tells.
T_VBUCKET: Final = 0
T_OPAQUE: Final = 1
T_FIRST: Final = 2
T_LAST: Final = 3
T_PREFIX: Final = 4
"""Bytes to put before each key: 1 for the default collection's id, 0 when keys carry theirs."""
T_CHANGES: Final = 5
T_CONSUMED: Final = 6
T_COUNT: Final = 7
T_ARENA_USED: Final = 8
T_NEEDED: Final = 9
T_WHY: Final = 10
T_COLLECTION: Final = 11
"""The collection of every key of the run, or one of these:"""
COLLECTION_UNKNOWN: Final = -2
COLLECTION_MIXED: Final = -1
T_COLUMNS: Final = 12

# What is noted of each frame of a group.
G_PLACE: Final = 0
G_HASH: Final = 1
G_COLUMNS: Final = 2
GROUP_MAX: Final = 16
"""Frames whose slots are asked for before the first of them is entered."""
RUN_MAX: Final = 4096
"""Frames entered by one call: tables must have room for as many before it."""

WHY_OTHER: Final = 0
"""The next frame is not plain, or not whole yet."""
WHY_TABLES: Final = 1
WHY_ARENA: Final = 2

COLLECTION_ID_SIZE_MAX: Final = 5
OLD_DELETION_EXTRAS: Final = 18
"""Sequence numbers and the size of extended metadata: deletions without a time."""
NUMBERS_SIZE: Final = 16
MUTATION, DELETION, EXPIRATION = at.MUTATION, at.DELETION, at.EXPIRATION


@kernel
def extras_at_rest(opcode: int, extras: int) -> int:
    """Size of the extras at rest of a frame with so many; 0 when it is not plain."""
    if opcode == MUTATION:
        return at.MUTATION_EXTRAS if extras == at.MUTATION_EXTRAS else 0
    if opcode == DELETION:
        if extras in (at.DELETION_EXTRAS, OLD_DELETION_EXTRAS):
            return at.DELETION_EXTRAS
        return 0
    if opcode == EXPIRATION and extras == at.EXPIRATION_EXTRAS:
        return at.EXPIRATION_EXTRAS
    return 0


@kernel
def has_collection(key: int, key_size: int) -> bool:
    """Whether a key begins with a whole collection id and has something behind it."""
    for place in range(min(key_size - 1, COLLECTION_ID_SIZE_MAX)):
        if load8(key + place) < 0x80:
            return True
    return False


@kernel
def is_plain(
    frame: int, left: int, vbucket: int, opaque: int, prefix: int, above: int, last: int
) -> bool:
    """Whether the frame at an address, of which ``left`` bytes are there, may be entered.

    Its seqno must lie above one and reach up to another.
    """
    if left < at.HEADER or load8(frame) != at.MAGIC:
        return False
    opcode = load8(frame + at.OPCODE_AT)
    extras = load8(frame + at.EXTRAS_SIZE_AT)
    key_size = load16(frame + at.KEY_SIZE_AT)
    body = load32(frame + at.BODY_SIZE_AT)
    if extras_at_rest(opcode, extras) == 0 or at.HEADER + body > left or body < extras + key_size:
        return False
    if load16(frame + at.VBUCKET_AT) != vbucket or load32(frame + at.OPAQUE_AT) != opaque:
        return False
    seqno = load64(frame + at.SEQNO_AT)
    if seqno <= above or seqno > last:
        return False
    if opcode == MUTATION and load16(frame + at.NMETA_AT) != 0:
        return False
    if extras == OLD_DELETION_EXTRAS and load16(frame + at.HEADER + NUMBERS_SIZE) != 0:
        return False
    if key_size == 0 or key_size + prefix > KEY_SIZE_MAX:
        return False
    if body - extras - key_size > VALUE_SIZE_MAX:
        return False
    return prefix != 0 or has_collection(frame + at.HEADER + extras, key_size)


@kernel
def lay_down(frame: int, target: int, prefix: int, now: int) -> int:
    """Write a plain frame in its form at rest; its size."""
    opcode = load8(frame + at.OPCODE_AT)
    extras = load8(frame + at.EXTRAS_SIZE_AT)
    key_size = load16(frame + at.KEY_SIZE_AT)
    body = load32(frame + at.BODY_SIZE_AT)
    wanted = extras_at_rest(opcode, extras)
    size = at.HEADER + body + (wanted - extras) + prefix
    if extras == wanted and prefix == 0:
        copy_bytes(target, frame, size)
    else:
        copy_bytes(target, frame, at.HEADER + min(extras, wanted))
        if extras == OLD_DELETION_EXTRAS:
            store32(target + at.DELETE_TIME_AT, now // 1_000_000_000)
            store8(target + at.DELETE_TIME_AT + 4, 0)
        store8(target + at.EXTRAS_SIZE_AT, wanted)
        store16(target + at.KEY_SIZE_AT, key_size + prefix)
        store32(target + at.BODY_SIZE_AT, size - at.HEADER)
        key = target + at.HEADER + wanted
        if prefix:
            store8(key, 0)
        copy_bytes(key + prefix, frame + at.HEADER + extras, body - extras)
    store32(target + at.OPAQUE_AT, 0)
    return size


@kernel
def lay_group(
    slots: Words,
    state: Words,
    source: int,
    source_size: int,
    segment: int,
    capacity: int,
    now: int,
    above: int,
    limit: int,
    told: Words,
    group: Words,
) -> int:
    """Lay down up to ``limit`` frames and ask for their slots; how many.

    Fewer than that: ``told`` says why. It is also told how far source and segment are used.
    """
    vbucket, opaque, prefix, last = told[T_VBUCKET], told[T_OPAQUE], told[T_PREFIX], told[T_LAST]
    consumed, used, count = told[T_CONSUMED], told[T_ARENA_USED], 0
    while count < limit:
        frame = source + consumed
        if not is_plain(frame, source_size - consumed, vbucket, opaque, prefix, above, last):
            told[T_WHY] = WHY_OTHER
            break
        body = load32(frame + at.BODY_SIZE_AT)
        # At rest a frame is at most a prefix and a delete time longer.
        needed = at.HEADER + body + at.DELETION_EXTRAS
        if used + needed > capacity:
            told[T_NEEDED] = needed
            told[T_WHY] = WHY_ARENA
            break
        size = lay_down(frame, segment + used, prefix, now)
        above = load64(frame + at.SEQNO_AT)
        # The received frame is near; what was just written is still on its way to memory.
        found = frame_hash(state, segment + used if prefix else frame)
        fetch_slot(slots, found)
        collection = 0
        if prefix == 0:
            extras = load8(frame + at.EXTRAS_SIZE_AT)
            key_size = load16(frame + at.KEY_SIZE_AT)
            collection = collection_of(frame + at.HEADER + extras, key_size)
        if collection != told[T_COLLECTION]:
            first = told[T_COLLECTION] == COLLECTION_UNKNOWN
            told[T_COLLECTION] = collection if first else COLLECTION_MIXED
        group[count, G_PLACE] = used
        group[count, G_HASH] = found
        used += size
        consumed += at.HEADER + body
        count += 1
    told[T_CONSUMED] = consumed
    told[T_ARENA_USED] = used
    return count


@kernel
def receive_frames(
    slots: Words,
    entries: Words,
    items: Words,
    vbuckets: Words,
    marks: Words,
    state: Words,
    source: int,
    source_size: int,
    segment: int,
    base: int,
    capacity: int,
    now: int,
    told: Words,
    group: Words,
) -> None:
    """Enter frames until one is not plain or room runs out; ``told`` says which and how far."""
    vbucket, changes = told[T_VBUCKET], told[T_CHANGES]
    above = max(vbuckets[vbucket, at.V_HIGH], told[T_FIRST] - 1)
    entered, seconds = 0, now // 1_000_000_000
    while True:
        limit = min(changes - entered, GROUP_MAX)
        told[T_WHY] = WHY_TABLES
        count = lay_group(
            slots,
            state,
            source,
            source_size,
            segment,
            capacity,
            now,
            above,
            limit,
            told,
            group,
        )
        for place in range(count):
            fetch_row(slots, entries, group[place, G_HASH])
        for place in range(count):
            frame = segment + group[place, G_PLACE]
            above = load64(frame + at.SEQNO_AT)
            if accept_new(
                slots,
                entries,
                items,
                vbuckets,
                state,
                frame,
                base + group[place, G_PLACE],
                seconds,
                group[place, G_HASH],
            ):
                continue
            accept_version(
                slots,
                entries,
                items,
                vbuckets,
                marks,
                state,
                frame,
                base + group[place, G_PLACE],
                above,
                load64(frame + at.CAS_AT),
                load64(frame + at.REV_AT),
                now,
                group[place, G_HASH],
            )
        entered += count
        if count < limit or entered >= changes:
            break
    told[T_COUNT] += entered


def receive_run(
    vbucket: VBucket,
    frames: memoryview,
    *,
    opaque: int,
    snapshot: SnapshotRange,
    collections: bool,
) -> tuple[int, int]:
    """Bytes and number of the frames entered; see `VBucket.receive_run`."""
    core = vbucket.core
    told, group = np.zeros(T_COLUMNS, np.int64), np.empty((GROUP_MAX, G_COLUMNS), np.int64)
    told[T_VBUCKET] = vbucket.id
    told[T_OPAQUE] = opaque
    told[T_FIRST], told[T_LAST] = snapshot.start, min(snapshot.end, 2**63 - 1)
    told[T_PREFIX] = 0 if collections else 1
    source = bytes_at(frames)
    needs_room = 0
    while True:
        if needs_room:
            try:
                core.ensure_room(needs_room)
            except StoreFull:
                if not told[T_COUNT]:
                    raise
                break
        with core.lock:
            vbucket.check_exists()
            _run(vbucket, source, told, group, needs_room)
        why, needs_room = int(told[T_WHY]), 0
        if why == WHY_ARENA:
            needs_room = int(told[T_NEEDED])
        elif why != WHY_TABLES:
            break
    if told[T_COUNT]:
        core.announce(vbucket.id)
    return int(told[T_CONSUMED]), int(told[T_COUNT])


def _expected(source: Bytes, consumed: int) -> int:
    """About how many frames are left, by the size of the next; at most what one call enters."""
    left = len(source) - consumed
    if left < at.HEADER:
        return 1
    size = consumed + at.BODY_SIZE_AT
    body = int.from_bytes(source[size : size + 4].tobytes(), "big")
    return min(left // (at.HEADER + body) + 1, RUN_MAX)


def _run(vbucket: VBucket, source: Bytes, told: Words, group: Words, needs_room: int) -> None:
    core, before = vbucket.core, vbucket.high_seqno
    expected = _expected(source, int(told[T_CONSUMED]))
    core.reserve(expected)
    segment = core.arena.room(needs_room) if needs_room else core.arena.current
    tables = core.tables
    told[T_CHANGES] = expected
    told[T_ARENA_USED] = segment.used
    told[T_COLLECTION] = COLLECTION_UNKNOWN
    receive_frames(
        tables.slots,
        tables.entries,
        tables.items,
        tables.vbuckets,
        tables.marks,
        tables.state,
        address_of(source),
        len(source),
        segment.address,
        segment.base,
        len(segment.array),
        core.clock(),
        told,
        group,
    )
    segment.used = int(told[T_ARENA_USED])
    if told[T_COLLECTION] >= 0:
        vbucket.collections.received(int(told[T_COLLECTION]), after=before)
    core.reserve_is_used()
