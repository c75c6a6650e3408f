"""The key index: open addressing over integer tables, probed and changed by kernels.

A slot holds the upper half of a key's hash and its row + 1; 0 is empty. Probes are linear, removal
shifts the run behind it back, so a probe ends at the first empty slot. Rows keep their full hash:
slots are rebuilt without touching a key. Rows of removed keys are chained and used again.

Imports: store.layout, store.native.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.store import layout as at
from headrace.store.native import (
    copy_bytes,
    fetch_line,
    hash_bytes,
    kernel,
    load8,
    same_bytes,
)

if TYPE_CHECKING:
    from headrace.store.native import Words

E_HASH, E_KEY, E_WORD = at.E_HASH, at.E_KEY, at.E_WORD
S_ENTRIES, S_FREE, S_KEYS, S_SEED = at.S_ENTRIES, at.S_FREE, at.S_KEYS, at.S_SEED
S_HEAP_USED, S_HEAP_GARBAGE, S_HEAP_ADDRESS = at.S_HEAP_USED, at.S_HEAP_GARBAGE, at.S_HEAP_ADDRESS
LOW_HALF = 0xFFFF_FFFF
WORD_SIZE = 8


@kernel
def key_hash(state: Words, vbucket: int, address: int, size: int) -> int:
    """The hash of a key in a vbucket."""
    return hash_bytes(address, size, state[S_SEED] ^ ((vbucket + 1) * -7046029254386353131))


@kernel
def fetch_slot(slots: Words, found: int) -> None:
    """Have the slot where the probe for a hash begins brought near: it lies anywhere."""
    fetch_line(slots.ctypes.data + (found & (len(slots) - 1)) * WORD_SIZE)


@kernel
def fetch_row(slots: Words, entries: Words, found: int) -> None:
    """Have the row brought near that the first slot of a probe names, if that may be the key's."""
    slot = slots[found & (len(slots) - 1)]
    if slot != 0 and slot & ~LOW_HALF == found & ~LOW_HALF:
        row = (slot & LOW_HALF) - 1
        fetch_line(entries.ctypes.data + row * at.E_COLUMNS * WORD_SIZE)


@kernel
def find_key(
    slots: Words, entries: Words, state: Words, vbucket: int, address: int, size: int, found: int
) -> int:
    """The row of a key whose hash is ``found``, or -1."""
    mask = len(slots) - 1
    upper = found & ~LOW_HALF
    heap = state[S_HEAP_ADDRESS]
    place = found & mask
    while True:
        slot = slots[place]
        if slot == 0:
            return -1
        if slot & ~LOW_HALF == upper:
            row = (slot & LOW_HALF) - 1
            key = entries[row, E_KEY]
            if (
                entries[row, E_HASH] == found
                and key & 0xFF == size
                and entries[row, E_WORD] >> 48 == vbucket
                and same_bytes(heap + (key >> 8), address, size)
            ):
                return row
        place = (place + 1) & mask


@kernel
def place_row(slots: Words, found: int, row: int) -> None:
    """Put a row into the first free slot of its probe."""
    mask = len(slots) - 1
    place = found & mask
    while slots[place] != 0:
        place = (place + 1) & mask
    slots[place] = (found & ~LOW_HALF) | (row + 1)


@kernel
def insert_key(
    slots: Words, entries: Words, state: Words, address: int, size: int, found: int
) -> int:
    """A new row for a key that is not in the index; the caller fills in the other columns."""
    row = take_row(entries, state, address, size, found)
    place_row(slots, found, row)
    return row


@kernel
def absent_at(slots: Words, entries: Words, found: int) -> int:
    """The slot for a key whose hash is ``found``, or -1 when a key of that hash is in the index."""
    mask = len(slots) - 1
    upper = found & ~LOW_HALF
    place = found & mask
    while True:
        slot = slots[place]
        if slot == 0:
            return place
        if slot & ~LOW_HALF == upper and entries[(slot & LOW_HALF) - 1, E_HASH] == found:
            return -1
        place = (place + 1) & mask


@kernel
def take_row(entries: Words, state: Words, address: int, size: int, found: int) -> int:
    """A row for a new key, which no slot names yet."""
    if state[S_FREE]:
        row = state[S_FREE] - 1
        following = entries[row, E_HASH]
        state[S_FREE] = following
        if following:
            fetch_line(entries.ctypes.data + (following - 1) * at.E_COLUMNS * WORD_SIZE)
    else:
        row = state[S_ENTRIES]
        state[S_ENTRIES] += 1
    place = state[S_HEAP_USED]
    copy_bytes(state[S_HEAP_ADDRESS] + place, address, size)
    state[S_HEAP_USED] = place + size
    entries[row, E_HASH] = found
    entries[row, E_KEY] = (place << 8) | size
    state[S_KEYS] += 1
    return row


@kernel
def remove_row(slots: Words, entries: Words, state: Words, row: int) -> None:
    """Forget a key: close the gap in its probe, free its row, leave its bytes as garbage."""
    mask = len(slots) - 1
    gap = entries[row, E_HASH] & mask
    while slots[gap] & LOW_HALF != row + 1:
        gap = (gap + 1) & mask
    place = gap
    while True:
        place = (place + 1) & mask
        slot = slots[place]
        if slot == 0:
            break
        home = entries[(slot & LOW_HALF) - 1, E_HASH] & mask
        # The slot may move back only if its home does not lie between the gap and itself.
        if (place - home) & mask >= (place - gap) & mask:
            slots[gap] = slot
            gap = place
    slots[gap] = 0
    state[S_HEAP_GARBAGE] += entries[row, E_KEY] & 0xFF
    state[S_KEYS] -= 1
    entries[row, E_WORD] = -1
    entries[row, E_HASH] = state[S_FREE]
    state[S_FREE] = row + 1


@kernel
def rebuild_slots(slots: Words, entries: Words, state: Words) -> None:
    """Fill empty slots from the rows."""
    for row in range(state[S_ENTRIES]):
        if entries[row, E_WORD] != -1:
            place_row(slots, entries[row, E_HASH], row)


@kernel
def repack_heap(entries: Words, state: Words, target: int) -> None:
    """Copy the keys that are in use to a new heap at ``target``."""
    used = 0
    heap = state[S_HEAP_ADDRESS]
    for row in range(state[S_ENTRIES]):
        if entries[row, E_WORD] != -1:
            key = entries[row, E_KEY]
            size = key & 0xFF
            copy_bytes(target + used, heap + (key >> 8), size)
            entries[row, E_KEY] = (used << 8) | size
            used += size
    state[S_HEAP_USED] = used
    state[S_HEAP_GARBAGE] = 0


@kernel
def collection_of(address: int, size: int) -> int:
    """The collection id a key starts with; -1 if the prefix does not end."""
    collection = 0
    shift = 0
    for place in range(min(size, 5)):
        byte = load8(address + place)
        collection |= (byte & 0x7F) << shift
        if byte < 0x80:
            return collection
        shift += 7
    return -1


@kernel
def remove_vbucket(slots: Words, entries: Words, state: Words, vbucket: int) -> int:
    """Forget every key of a vbucket; how many there were."""
    removed = 0
    for row in range(state[S_ENTRIES]):
        word = entries[row, E_WORD]
        if word != -1 and word >> 48 == vbucket:
            remove_row(slots, entries, state, row)
            removed += 1
    return removed


@kernel
def rows_due(
    entries: Words, vbuckets: Words, state: Words, now: int, active: int, start: int, rows: Words
) -> tuple[int, int]:
    """Rows of living keys of active vbuckets that expired by ``now``: (how many, row to go on
    at)."""
    found = 0
    row = start
    while row < state[S_ENTRIES] and found < len(rows):
        word = entries[row, E_WORD]
        expiry = entries[row, at.E_FLAGS] & LOW_HALF
        if (
            word != -1
            and not word & at.WORD_DELETED
            and expiry
            and expiry <= now
            and vbuckets[word >> 48, at.V_STATE] == active
        ):
            rows[found] = row
            found += 1
        row += 1
    return found, row


@kernel
def rows_of_collection(
    entries: Words, state: Words, vbucket: int, collection: int, living: bool, rows: Words
) -> int:
    """Rows of a vbucket's keys in a collection, as many as fit; returns how many there are."""
    found = 0
    for row in range(state[S_ENTRIES]):
        word = entries[row, E_WORD]
        if word == -1 or word >> 48 != vbucket or (living and word & at.WORD_DELETED):
            continue
        key = entries[row, E_KEY]
        if collection_of(state[S_HEAP_ADDRESS] + (key >> 8), key & 0xFF) == collection:
            if found < len(rows):
                rows[found] = row
            found += 1
    return found


@kernel
def living_row(entries: Words, state: Words, vbucket: int, collection: int, choice: int) -> int:
    """The ``choice``-th living key of a vbucket (-1: of any collection); how many if choice is
    -1."""
    found = 0
    for row in range(state[S_ENTRIES]):
        word = entries[row, E_WORD]
        if word == -1 or word >> 48 != vbucket or word & at.WORD_DELETED:
            continue
        key = entries[row, E_KEY]
        if collection >= 0 and (
            collection_of(state[S_HEAP_ADDRESS] + (key >> 8), key & 0xFF) != collection
        ):
            continue
        if found == choice:
            return row
        found += 1
    return found
