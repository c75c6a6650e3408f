"""Frames back into memory: the kernels that rebuild index and items, and the rare frames.

Blocks are loaded row by row: each data frame becomes its key's newest version, the one before is
marked. Journal entries are copied into the arena and accepted again with the numbers they have.
Both hand the rare frames (sync writes, system events, what a replica was told) back to Python, in
order.

Imports: errors, store.accept, store.blocks, store.index, store.layout, store.native, store.plain,
store.prepares, store.records, store.replica.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.errors import CorruptRecord
from headrace.store import layout as at
from headrace.store.accept import SIGN, accept, index_version, seqno_at, supersede
from headrace.store.blocks import FRAME_BYTES_MIN, Block, scan_frames
from headrace.store.disk import Table
from headrace.store.index import find_key, key_hash
from headrace.store.native import address_of, bytes_at, kernel, load8, load16, load32, load64
from headrace.store.plain import EVENT_FIELDS, MARKER_FIELDS, split_frame
from headrace.store.prepares import pending_of
from headrace.store.records import BLOCK_HEADER, BLOCK_KEY, check_block
from headrace.store.replica import Received
from headrace.wire.opcodes import SystemEventId

if TYPE_CHECKING:
    from headrace.store.core import Core
    from headrace.store.disk import Reader
    from headrace.store.native import Halves, Words
    from headrace.store.plain import Parts
    from headrace.store.vbucket import VBucket

RARE_ROWS: Final = 4096
"""Rare frames a kernel gathers before Python looks at them."""
DAMAGED: Final = -1


@kernel
def load_rows(
    slots: Words,
    entries: Words,
    items: Words,
    vbuckets: Words,
    marks: Words,
    state: Words,
    vbucket: int,
    source: int,
    rows: Halves,
    start: int,
    rare: Words,
) -> tuple[int, int]:
    """Load a block's frames from a row on: (row to go on at, rare frames gathered)."""
    gathered = 0
    row = start
    while row < len(rows) and gathered < len(rare) and state[at.S_MARKS] + 1 < len(marks):
        frame = source + rows[row, 1]
        opcode = load8(frame + at.OPCODE_AT)
        seqno = load64(frame + seqno_at(opcode))
        vbuckets[vbucket, at.V_HIGH] = max(vbuckets[vbucket, at.V_HIGH], seqno)
        if opcode not in (at.PREPARE, at.ABORT):
            vbuckets[vbucket, at.V_VISIBLE] = max(vbuckets[vbucket, at.V_VISIBLE], seqno)
        cas = load64(frame + at.CAS_AT)
        if cas ^ SIGN > vbuckets[vbucket, at.V_MAX_CAS] ^ SIGN:
            vbuckets[vbucket, at.V_MAX_CAS] = cas
        is_rare = True
        if opcode in (at.MUTATION, at.DELETION, at.EXPIRATION):
            is_rare = load32(frame + at.OPAQUE_AT) & at.COMMITTED != 0
            key = frame + at.HEADER + load8(frame + at.EXTRAS_SIZE_AT)
            key_size = load16(frame + at.KEY_SIZE_AT)
            found = key_hash(state, vbucket, key, key_size)
            entry = find_key(slots, entries, state, vbucket, key, key_size, found)
            if entry >= 0:
                old = entries[entry, at.E_SEQNO]
                supersede(vbuckets, items, marks, state, vbucket, old, 0, seqno)
            index_version(slots, entries, vbuckets, state, vbucket, frame, entry, found, 0)
        if is_rare:
            rare[gathered] = row
            gathered += 1
        row += 1
    return row, gathered


@kernel
def count_frames(source: int, size: int) -> int:
    """How many frames follow each other; DAMAGED if they do not add up to the size."""
    count = 0
    offset = 0
    while offset < size:
        if offset + at.HEADER > size:
            return DAMAGED
        frame = source + offset
        body = load32(frame + at.BODY_SIZE_AT)
        fixed = load8(frame + at.EXTRAS_SIZE_AT) + load16(frame + at.KEY_SIZE_AT)
        opcode = load8(frame + at.OPCODE_AT)
        if body < fixed or at.HEADER + body < seqno_at(opcode) + 8:
            return DAMAGED
        offset += at.HEADER + body
        count += 1
    return count if offset == size else DAMAGED


@kernel
def replay_frames(
    slots: Words,
    entries: Words,
    items: Words,
    vbuckets: Words,
    marks: Words,
    state: Words,
    sealed: Words,
    commit: int,
    source: int,
    position: int,
    size: int,
    start: int,
    now: int,
    rare: Words,
) -> tuple[int, int]:
    """Accept journalled frames again, from an offset on: (offset to go on at, rare frames).

    ``sealed`` holds per vbucket the commit below which its frames are in blocks. Rare frames are
    rows of (offset, ordinal). The offset is DAMAGED when a seqno does not rise.
    """
    gathered = 0
    offset = start
    while offset < size and gathered < len(rare):
        frame = source + offset
        frame_size = at.HEADER + load32(frame + at.BODY_SIZE_AT)
        vbucket = load16(frame + at.VBUCKET_AT)
        if vbucket >= len(vbuckets):
            return DAMAGED, gathered
        if vbuckets[vbucket, at.V_STATE] and commit >= sealed[vbucket]:
            opcode = load8(frame + at.OPCODE_AT)
            ordinal = 0
            is_rare = True
            if opcode == at.ADVANCED:
                seqno = load64(frame + at.SEQNO_AT)
                vbuckets[vbucket, at.V_HIGH] = max(vbuckets[vbucket, at.V_HIGH], seqno)
                is_rare = False
            elif opcode != at.MARKER:
                ordinal = accept(
                    slots,
                    entries,
                    items,
                    vbuckets,
                    marks,
                    state,
                    frame,
                    position + offset,
                    load64(frame + seqno_at(opcode)),
                    load64(frame + at.CAS_AT),
                    load64(frame + at.REV_AT),
                    now,
                )[0]
                if ordinal < 0:
                    return DAMAGED, gathered
                if opcode in (at.MUTATION, at.DELETION, at.EXPIRATION):
                    is_rare = load32(frame + at.OPAQUE_AT) & at.COMMITTED != 0
            if is_rare:
                rare[gathered, 0] = offset
                rare[gathered, 1] = ordinal
                gathered += 1
        offset += frame_size
    return offset, gathered


def read_block(core: Core, key: bytes, value: memoryview) -> Block:
    """The block of a value found on disk, its rows filled; CorruptRecord if it is not sound."""
    path = core.disk.path
    count, stamp, first, last = check_block(key, value, path=path)
    size = len(value) - BLOCK_HEADER.size
    rows = np.empty((min(count, size // FRAME_BYTES_MIN + 1), 3), np.uint32)
    frames = bytes_at(value)
    found = scan_frames(address_of(frames) + BLOCK_HEADER.size, size, first, rows)
    if found != count or not count or first + int(rows[-1, 0]) != last:
        raise CorruptRecord(
            f"{path}: block {key.hex()} holds {found} frames, its header says {count}", path=path
        )
    return Block(BLOCK_KEY.unpack(key)[0], first, last, size, stamp, rows, checked=True)


def load_block(vbucket: VBucket, block: Block, value: memoryview) -> None:
    """Make a block's frames known to index, sync writes, events and collections; lock held."""
    core, tables = vbucket.core, vbucket.core.tables
    frames = bytes_at(value)
    source = address_of(frames) + BLOCK_HEADER.size
    tables.reserve_keys(len(block.rows), min(block.size, 0xFF * len(block.rows)))
    vbucket.collections.add_frames(source, block.size)
    rare = np.empty(RARE_ROWS, np.int64)
    row = 0
    while row < len(block.rows):
        row, gathered = load_rows(
            tables.slots,
            tables.entries,
            tables.items,
            tables.vbuckets,
            tables.marks,
            tables.state,
            vbucket.id,
            source,
            block.rows,
            row,
            rare,
        )
        for place in rare[:gathered].tolist():
            start, stop = block.extent(place)
            take_rare(vbucket, value[BLOCK_HEADER.size + start : BLOCK_HEADER.size + stop], 0)
        core.flush_marks()


def load_blocks(vbucket: VBucket, reader: Reader) -> None:
    """Load every block the vbucket's list holds; lock held."""
    for block in vbucket.core.blocks[vbucket.id].blocks:
        value = reader.get(Table.BLOCKS, block.key)
        assert value is not None
        load_block(vbucket, block, value)


def replay_entry(
    core: Core, vbuckets: dict[int, VBucket], commit: int, frames: memoryview, sealed: Words
) -> None:
    """Accept the frames of one journal entry again; lock held."""
    count = count_frames(address_of(bytes_at(frames)), len(frames))
    if count == DAMAGED:
        raise _damaged(core, commit)
    segment = core.arena.room(len(frames))
    offset = segment.used
    segment.view[offset : offset + len(frames)] = frames
    segment.used = offset + len(frames)
    core.reserve(count + 1)
    tables = core.tables
    rare = np.empty((RARE_ROWS, 2), np.int64)
    done = 0
    while done < len(frames):
        done, gathered = replay_frames(
            tables.slots,
            tables.entries,
            tables.items,
            tables.vbuckets,
            tables.marks,
            tables.state,
            sealed,
            commit,
            segment.address + offset,
            segment.base + offset,
            len(frames),
            done,
            core.clock(),
            rare,
        )
        if done == DAMAGED:
            raise _damaged(core, commit)
        for place, ordinal in rare[:gathered].tolist():
            size = at.HEADER + int.from_bytes(frames[place + 8 : place + 12], "big")
            frame = frames[place : place + size]
            number = int.from_bytes(frame[at.VBUCKET_AT : at.VBUCKET_AT + 2], "big")
            take_rare(vbuckets[number], frame, ordinal)


def _damaged(core: Core, commit: int) -> CorruptRecord:
    path = core.disk.path
    return CorruptRecord(f"{path}: journal entry {commit} holds frames out of order", path=path)


def take_rare(vbucket: VBucket, frame: memoryview, ordinal: int) -> None:
    """Tell the vbucket of a sync write, a system event or a received snapshot."""
    parts = split_frame(frame)
    if parts.opcode == at.MARKER:
        _take_marker(vbucket, parts)
    elif parts.opcode == at.PREPARE:
        vbucket.prepares.prepared(pending_of(parts), ordinal)
    elif parts.opcode == at.ABORT:
        vbucket.prepares.aborted(parts.key, parts.seqno, ordinal)
    elif parts.opcode == at.SYSTEM_EVENT:
        _, event, _ = EVENT_FIELDS.unpack(parts.extras)
        vbucket.events.happened(event, parts.note, parts.seqno, ordinal)
        if event in (SystemEventId.BEGIN_COLLECTION, SystemEventId.END_COLLECTION):
            vbucket.lookup.forget_collection(vbucket.id, parts.note, parts.seqno)
    else:
        vbucket.prepares.committed(parts.key, parts.seqno)
    vbucket.note_prepares()


def _take_marker(vbucket: VBucket, parts: Parts) -> None:
    told = vbucket.received = Received.from_parts(parts)
    if told is None:
        vbucket.unsettled.over(MARKER_FIELDS.unpack(parts.extras)[1])
    else:
        vbucket.unsettled.add_again(told.complete_before, told.end)
