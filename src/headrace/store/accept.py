"""How a change enters the store: one kernel gives it its numbers and tells every table.

The caller has laid the frame into the arena with seqno, rev and CAS still open (0) or given. The
kernel fills them in, links the item behind the vbucket's last one, marks the version it supersedes
and updates the key index. Nothing else changes these tables, except compaction, truncation and
loading, which hold the same lock.

A checkpoint closes by its limits, except while a replica receives snapshots (their markers
decide), and when a sync write would otherwise share one with another version of its key: readers
of memory must see both.

Imports: store.index, store.layout, store.native.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.store import layout as at
from headrace.store.index import absent_at, find_key, insert_key, key_hash, take_row
from headrace.store.native import kernel, load8, load16, load32, load64, store64

if TYPE_CHECKING:
    from headrace.store.native import Words

SEQNO_NOT_RISING: Final = -1
"""What `accept` returns for a given seqno at or below the high seqno; nothing was changed."""

CLOCK_MASK: Final = ~0xFFFF
SIGN: Final = -(2**63)
LOW_HALF: Final = 0xFFFF_FFFF

MUTATION, DELETION, EXPIRATION = at.MUTATION, at.DELETION, at.EXPIRATION
PREPARE, ABORT = at.PREPARE, at.ABORT


@kernel
def seqno_at(opcode: int) -> int:
    """Where a frame at rest keeps its own seqno."""
    return at.ABORT_SEQNO_AT if opcode in (at.COMMIT, at.ABORT) else at.SEQNO_AT


@kernel
def next_cas(previous: int, now: int) -> int:
    """The hybrid clock: the time if it is ahead, else one more; unsigned comparison."""
    time = now & CLOCK_MASK
    return time if time ^ SIGN > previous ^ SIGN else previous + 1


@kernel
def supersede(
    vbuckets: Words,
    items: Words,
    marks: Words,
    state: Words,
    vbucket: int,
    old_seqno: int,
    old_ordinal: int,
    new_seqno: int,
) -> None:
    """Mark a version by the seqno of the one after it, in memory and (later) in its block."""
    vbuckets[vbucket, at.V_SUPERSEDED] += 1
    if state[at.S_LOW] <= old_ordinal <= state[at.S_HIGH]:
        row = old_ordinal & (len(items) - 1)
        if items[row, at.I_SEQNO] == old_seqno:
            items[row, at.I_SUPERSEDED] = new_seqno
    if old_seqno <= vbuckets[vbucket, at.V_SEALED]:
        place = state[at.S_MARKS]
        marks[place, at.M_VBUCKET] = vbucket
        marks[place, at.M_OLD] = old_seqno
        marks[place, at.M_NEW] = new_seqno
        state[at.S_MARKS] = place + 1


@kernel
def open_checkpoint(vbuckets: Words, vbucket: int, start: int) -> None:
    """Close the open checkpoint and begin the next one at ``start``."""
    vbuckets[vbucket, at.V_CHECKPOINT] += 1
    vbuckets[vbucket, at.V_CHECKPOINT_START] = start
    vbuckets[vbucket, at.V_CHECKPOINT_ITEMS] = 0
    vbuckets[vbucket, at.V_CHECKPOINT_BYTES] = 0


@kernel
def checkpoint_is_full(vbuckets: Words, state: Words, vbucket: int, seconds: int) -> bool:
    """Whether one of the limits closes the open checkpoint."""
    return not vbuckets[vbucket, at.V_RECEIVING] and (
        vbuckets[vbucket, at.V_CHECKPOINT_ITEMS] >= state[at.S_CHECKPOINT_ITEMS]
        or vbuckets[vbucket, at.V_CHECKPOINT_BYTES] >= state[at.S_CHECKPOINT_BYTES]
        or seconds - vbuckets[vbucket, at.V_CHECKPOINT_TIME] >= state[at.S_CHECKPOINT_SECONDS]
    )


@kernel
def link_item(
    vbuckets: Words,
    items: Words,
    state: Words,
    vbucket: int,
    seqno: int,
    position: int,
    info: int,
    seconds: int,
) -> int:
    """Append an item to the vbucket's open checkpoint; its ordinal."""
    if vbuckets[vbucket, at.V_CHECKPOINT_ITEMS] == 0:
        vbuckets[vbucket, at.V_CHECKPOINT_TIME] = seconds
        if not vbuckets[vbucket, at.V_RECEIVING]:
            vbuckets[vbucket, at.V_CHECKPOINT_START] = seqno
    elif checkpoint_is_full(vbuckets, state, vbucket, seconds):
        open_checkpoint(vbuckets, vbucket, seqno)
        vbuckets[vbucket, at.V_CHECKPOINT_TIME] = seconds
    ordinal = state[at.S_HIGH] + 1
    state[at.S_HIGH] = ordinal
    row = ordinal & (len(items) - 1)
    vbuckets[vbucket, at.V_COUNT] += 1
    items[row, at.I_SEQNO] = seqno
    items[row, at.I_POSITION] = position
    items[row, at.I_TAG] = vbucket | (vbuckets[vbucket, at.V_CHECKPOINT] << 16)
    items[row, at.I_SUPERSEDED] = 0
    items[row, at.I_NEXT] = 0
    items[row, at.I_CHECKPOINT_START] = vbuckets[vbucket, at.V_CHECKPOINT_START]
    items[row, at.I_COUNT] = vbuckets[vbucket, at.V_COUNT]
    items[row, at.I_INFO] = info
    last = vbuckets[vbucket, at.V_LAST]
    if vbuckets[vbucket, at.V_FIRST] == 0:
        vbuckets[vbucket, at.V_FIRST] = ordinal
    else:
        items[last & (len(items) - 1), at.I_NEXT] = ordinal
    vbuckets[vbucket, at.V_LAST] = ordinal
    vbuckets[vbucket, at.V_CHECKPOINT_ITEMS] += 1
    vbuckets[vbucket, at.V_CHECKPOINT_BYTES] += info >> at.INFO_SIZE_SHIFT
    vbuckets[vbucket, at.V_HIGH] = seqno
    opcode = info & 0xFF
    if opcode not in (PREPARE, ABORT):
        vbuckets[vbucket, at.V_VISIBLE] = seqno
    return ordinal


@kernel
def index_version(
    slots: Words,
    entries: Words,
    vbuckets: Words,
    state: Words,
    vbucket: int,
    address: int,
    row: int,
    found: int,
    ordinal: int,
) -> None:
    """Make the data frame at ``address`` the newest version of its key (``row`` -1: a new key)."""
    if row < 0:
        extras = load8(address + at.EXTRAS_SIZE_AT)
        key_size = load16(address + at.KEY_SIZE_AT)
        row = insert_key(slots, entries, state, address + at.HEADER + extras, key_size, found)
    elif entries[row, at.E_WORD] & at.WORD_DELETED:
        vbuckets[vbucket, at.V_TOMBSTONES] -= 1
    else:
        vbuckets[vbucket, at.V_LIVE] -= 1
    fill_row(entries, vbuckets, vbucket, address, row, ordinal)


@kernel
def fill_row(
    entries: Words, vbuckets: Words, vbucket: int, address: int, row: int, ordinal: int
) -> None:
    """Tell the row of a key of its newest version, and count that."""
    extras = load8(address + at.EXTRAS_SIZE_AT)
    key_size = load16(address + at.KEY_SIZE_AT)
    value_size = load32(address + at.BODY_SIZE_AT) - extras - key_size
    word = (vbucket << 48) | (load8(address + at.DATATYPE_AT) << 40) | value_size
    rev = load64(address + at.REV_AT)
    if load8(address + at.OPCODE_AT) != MUTATION:
        word |= at.WORD_DELETED
        vbuckets[vbucket, at.V_TOMBSTONES] += 1
        entries[row, at.E_FLAGS] = load32(address + at.DELETE_TIME_AT)
        if rev ^ SIGN > vbuckets[vbucket, at.V_DELETED_REV] ^ SIGN:
            vbuckets[vbucket, at.V_DELETED_REV] = rev
    else:
        vbuckets[vbucket, at.V_LIVE] += 1
        entries[row, at.E_FLAGS] = load64(address + at.FLAGS_AT)
    entries[row, at.E_SEQNO] = load64(address + at.SEQNO_AT)
    entries[row, at.E_REV] = rev
    entries[row, at.E_CAS] = load64(address + at.CAS_AT)
    entries[row, at.E_WORD] = word
    entries[row, at.E_ORDINAL] = ordinal


@kernel
def accept_new(
    slots: Words,
    entries: Words,
    items: Words,
    vbuckets: Words,
    state: Words,
    address: int,
    position: int,
    seconds: int,
    found: int,
) -> bool:
    """`accept_version` for a data frame with all its numbers, if its key is new.

    False: a key of that hash is known, or a number is open, and nothing was changed. That a key is
    new is what a first copy mostly finds; it needs one probe and none of what older versions need.
    """
    cas = load64(address + at.CAS_AT)
    if cas == 0 or load64(address + at.REV_AT) == 0:
        return False
    place = absent_at(slots, entries, found)
    if place < 0:
        return False
    vbucket = load16(address + at.VBUCKET_AT)
    if cas ^ SIGN > vbuckets[vbucket, at.V_MAX_CAS] ^ SIGN:
        vbuckets[vbucket, at.V_MAX_CAS] = cas
    info = load8(address + at.OPCODE_AT) | (
        (load32(address + at.BODY_SIZE_AT) + at.HEADER) << at.INFO_SIZE_SHIFT
    )
    seqno = load64(address + at.SEQNO_AT)
    ordinal = link_item(vbuckets, items, state, vbucket, seqno, position, info, seconds)
    key = address + at.HEADER + load8(address + at.EXTRAS_SIZE_AT)
    row = take_row(entries, state, key, load16(address + at.KEY_SIZE_AT), found)
    slots[place] = (found & ~LOW_HALF) | (row + 1)
    fill_row(entries, vbuckets, vbucket, address, row, ordinal)
    return True


@kernel
def frame_hash(state: Words, address: int) -> int:
    """The hash of the key of the data frame at an address."""
    key = address + at.HEADER + load8(address + at.EXTRAS_SIZE_AT)
    key_size = load16(address + at.KEY_SIZE_AT)
    return key_hash(state, load16(address + at.VBUCKET_AT), key, key_size)


@kernel
def accept_version(
    slots: Words,
    entries: Words,
    items: Words,
    vbuckets: Words,
    marks: Words,
    state: Words,
    address: int,
    position: int,
    seqno: int,
    cas: int,
    rev: int,
    now: int,
    found: int,
) -> tuple[int, int, int, int]:
    """`accept` for a frame with a key whose hash is ``found`` and whose seqno is set and rises."""
    vbucket = load16(address + at.VBUCKET_AT)
    opcode = load8(address + at.OPCODE_AT)
    info = opcode | ((load32(address + at.BODY_SIZE_AT) + at.HEADER) << at.INFO_SIZE_SHIFT)
    seconds = now // 1_000_000_000
    if cas == 0:
        cas = next_cas(vbuckets[vbucket, at.V_MAX_CAS], now)
    store64(address + at.CAS_AT, cas)
    if cas ^ SIGN > vbuckets[vbucket, at.V_MAX_CAS] ^ SIGN:
        vbuckets[vbucket, at.V_MAX_CAS] = cas
    extras = load8(address + at.EXTRAS_SIZE_AT)
    key_size = load16(address + at.KEY_SIZE_AT)
    key = address + at.HEADER + extras
    row = find_key(slots, entries, state, vbucket, key, key_size, found)
    if rev == 0:
        rev = 1 + (entries[row, at.E_REV] if row >= 0 else vbuckets[vbucket, at.V_DELETED_REV])
    store64(address + at.REV_AT, rev)
    if opcode == PREPARE:
        return (
            link_item(vbuckets, items, state, vbucket, seqno, position, info, seconds),
            seqno,
            cas,
            rev,
        )

    committed = load32(address + at.OPAQUE_AT) & at.COMMITTED != 0
    if committed:
        info |= at.INFO_COMMITTED
    if row >= 0:
        old = entries[row, at.E_ORDINAL]
        if state[at.S_LOW] <= old <= state[at.S_HIGH]:
            old_row = old & (len(items) - 1)
            shared = items[old_row, at.I_TAG] >> 16 == vbuckets[vbucket, at.V_CHECKPOINT]
            sync = committed or items[old_row, at.I_INFO] & at.INFO_COMMITTED
            if shared and sync and not vbuckets[vbucket, at.V_RECEIVING]:
                open_checkpoint(vbuckets, vbucket, seqno)
        supersede(vbuckets, items, marks, state, vbucket, entries[row, at.E_SEQNO], old, seqno)
    ordinal = link_item(vbuckets, items, state, vbucket, seqno, position, info, seconds)
    index_version(slots, entries, vbuckets, state, vbucket, address, row, found, ordinal)
    return ordinal, seqno, cas, rev


@kernel
def accept(
    slots: Words,
    entries: Words,
    items: Words,
    vbuckets: Words,
    marks: Words,
    state: Words,
    address: int,
    position: int,
    seqno: int,
    cas: int,
    rev: int,
    now: int,
) -> tuple[int, int, int, int]:
    """Accept the frame at ``address``: (its ordinal, seqno, CAS, rev).

    seqno, cas and rev of 0 are chosen here. ``now`` is unix nanoseconds. The ordinal is
    SEQNO_NOT_RISING, and nothing has changed, for a given seqno that is not above the high seqno.
    """
    vbucket = load16(address + at.VBUCKET_AT)
    opcode = load8(address + at.OPCODE_AT)
    high = vbuckets[vbucket, at.V_HIGH]
    if seqno == 0:
        seqno = high + 1
    elif seqno <= high:
        return SEQNO_NOT_RISING, high, 0, 0
    store64(address + seqno_at(opcode), seqno)
    if opcode in (MUTATION, DELETION, EXPIRATION, PREPARE):
        found = frame_hash(state, address)
        return accept_version(
            slots,
            entries,
            items,
            vbuckets,
            marks,
            state,
            address,
            position,
            seqno,
            cas,
            rev,
            now,
            found,
        )
    info = opcode | ((load32(address + at.BODY_SIZE_AT) + at.HEADER) << at.INFO_SIZE_SHIFT)
    seconds = now // 1_000_000_000
    ordinal = link_item(vbuckets, items, state, vbucket, seqno, position, info, seconds)
    return ordinal, seqno, 0, 0
