"""Plain key-value requests served in bulk: index look-up, frame, append and reply in one kernel.

What is plain: magic 80, no CAS condition, no framing, GET GETQ GETK GETKQ SET SETQ NOOP, the
default collection or one the owner names, an active vbucket that nobody holds back, a value in
memory without xattrs or snappy. The kernel stops before the first request that is anything else,
and the owner answers that one by its own rules; so everything here must answer exactly as those
rules would. A value is JSON if it parses as JSON.

Imports: store.accept, store.core, store.index, store.json_check, store.layout, store.native,
store.output, store.rewrite, wire.opcodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.store import layout as at
from headrace.store.accept import accept
from headrace.store.core import RESERVE_AHEAD
from headrace.store.index import collection_of, find_key, key_hash
from headrace.store.json_check import UNSURE, check_json
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
    store64,
)
from headrace.store.output import BufferPool
from headrace.store.rewrite import address_at, is_wanted
from headrace.wire.opcodes import Opcode, VBucketState

if TYPE_CHECKING:
    from headrace.store.core import Core
    from headrace.store.native import Bytes, Words

GET: Final = int(Opcode.GET)
GETQ: Final = int(Opcode.GETQ)
GETK: Final = int(Opcode.GETK)
GETKQ: Final = int(Opcode.GETKQ)
SET: Final = int(Opcode.SET)
SETQ: Final = int(Opcode.SETQ)
NOOP: Final = int(Opcode.KV_NOOP)
REPLY_MAGIC: Final = 0x81
STATUS_MISSING: Final = 0x01
ACTIVE: Final = int(VBucketState.ACTIVE)
KEY_SIZE_MAX: Final = 250
SET_EXTRAS: Final = 8
RELATIVE_EXPIRY_MAX: Final = 30 * 86_400
EXPIRY_MAX: Final = 0xFFFF_FFFF
OUTPUT_FIRST: Final = 128 * 1024
OUTPUT_MAX: Final = 4 * 1024 * 1024
"""Replies of one call; what is left is served by the next."""
OUTPUT_KEPT_MAX: Final = 2 * 1024 * 1024
OUTPUT_KEPT_SHARE: Final = 32
"""Bytes of buffers for replies that are kept, at most this part of the quota."""

# What the kernel is told, and what it tells.
T_NOW_SECONDS: Final = 0
T_NOW: Final = 1
T_COLLECTIONS: Final = 2
T_TOKENS: Final = 3
T_JSON: Final = 4
T_VALUE_MAX: Final = 5
T_TTL_MAX: Final = 6
T_CONSUMED: Final = 7
T_WRITTEN: Final = 8
T_ARENA_USED: Final = 9
T_CHANGES: Final = 10
"""Changes the tables still have room for."""
T_WHY: Final = 11
T_NEEDED: Final = 12
T_COLUMNS: Final = 13

HITS: Final = 256
MISSES: Final = 257
COUNTS: Final = 258
"""Numbers of requests served: by opcode, then reads that found a document and that did not."""
NO_COLLECTIONS: Final[Words] = np.zeros(0, np.int64)

WHY_DONE: Final = 0
WHY_OTHER: Final = 1
"""The next request is not plain (or not whole)."""
WHY_OUTPUT: Final = 2
WHY_ARENA: Final = 3
WHY_TABLES: Final = 4


@kernel
def reply_header(
    target: int, request: int, key_size: int, extras: int, datatype: int, status: int, body: int
) -> None:
    """Write a reply's header, all but the CAS."""
    store8(target, REPLY_MAGIC)
    store8(target + at.OPCODE_AT, load8(request + at.OPCODE_AT))
    store16(target + at.KEY_SIZE_AT, key_size)
    store8(target + at.EXTRAS_SIZE_AT, extras)
    store8(target + at.DATATYPE_AT, datatype)
    store16(target + at.VBUCKET_AT, status)
    store32(target + at.BODY_SIZE_AT, body)
    store32(target + at.OPAQUE_AT, load32(request + at.OPAQUE_AT))


@kernel
def stored_expiry(expiry: int, told: Words) -> int:
    """The absolute time a client's expiry means."""
    if 0 < expiry <= RELATIVE_EXPIRY_MAX:
        expiry += told[T_NOW_SECONDS]
    longest = told[T_TTL_MAX]
    if longest and (expiry == 0 or expiry > told[T_NOW_SECONDS] + longest):
        expiry = told[T_NOW_SECONDS] + longest
    return min(expiry, EXPIRY_MAX)


@kernel
def lives_on(entries: Words, row: int, told: Words) -> bool:
    """Whether a known key is a tombstone or lives and may be served here: no expiry due."""
    expiry = entries[row, at.E_FLAGS] & 0xFFFF_FFFF
    word = entries[row, at.E_WORD]
    return bool(word & at.WORD_DELETED or not expiry or expiry > told[T_NOW_SECONDS])


@kernel
def serve_get(
    entries: Words,
    items: Words,
    state: Words,
    addresses: Words,
    row: int,
    request: int,
    target: int,
    room: int,
    counts: Words,
    told: Words,
) -> int:
    """Answer a read: the reply's size, 0 for none, -WHY_... when it cannot be answered here."""
    opcode = load8(request + at.OPCODE_AT)
    if row < 0 or entries[row, at.E_WORD] & at.WORD_DELETED:
        if opcode in (GETQ, GETKQ):
            counts[MISSES] += 1
            return 0
        if opcode == GETK:
            return -WHY_OTHER
        if room < at.HEADER:
            told[T_NEEDED] = at.HEADER
            return -WHY_OUTPUT
        counts[MISSES] += 1
        reply_header(target, request, 0, 0, 0, STATUS_MISSING, 0)
        store64(target + at.CAS_AT, 0)
        return at.HEADER
    word = entries[row, at.E_WORD]
    datatype = (word >> 40) & 0xFF
    ordinal = entries[row, at.E_ORDINAL]
    in_memory = state[at.S_LOW] <= ordinal <= state[at.S_HIGH]
    if not in_memory or datatype > 1 or not lives_on(entries, row, told):
        return -WHY_OTHER
    key_size = load16(request + at.KEY_SIZE_AT) if opcode in (GETK, GETKQ) else 0
    value_size = word & 0xFFFF_FFFF
    body = 4 + key_size + value_size
    if at.HEADER + body > room:
        told[T_NEEDED] = at.HEADER + body
        return -WHY_OUTPUT
    reply_header(target, request, key_size, 4, datatype & told[T_JSON], 0, body)
    store64(target + at.CAS_AT, entries[row, at.E_CAS])
    store32(target + at.HEADER, entries[row, at.E_FLAGS] >> 32)
    copy_bytes(target + at.HEADER + 4, request + at.HEADER, key_size)
    position = items[ordinal & (len(items) - 1), at.I_POSITION]
    size = items[ordinal & (len(items) - 1), at.I_INFO] >> at.INFO_SIZE_SHIFT
    value = address_at(addresses, state, position) + size - value_size
    copy_bytes(target + at.HEADER + 4 + key_size, value, value_size)
    counts[HITS] += 1
    return int(at.HEADER + body)


@kernel
def lay_mutation(
    target: int, request: int, vbucket: int, datatype: int, prefix: int, told: Words
) -> int:
    """Lay the frame of a SET into the arena; its size."""
    key_size = load16(request + at.KEY_SIZE_AT)
    value_size = load32(request + at.BODY_SIZE_AT) - SET_EXTRAS - key_size
    body = at.MUTATION_EXTRAS + prefix + key_size + value_size
    store8(target, at.MAGIC)
    store8(target + at.OPCODE_AT, at.MUTATION)
    store16(target + at.KEY_SIZE_AT, prefix + key_size)
    store8(target + at.EXTRAS_SIZE_AT, at.MUTATION_EXTRAS)
    store8(target + at.DATATYPE_AT, datatype)
    store16(target + at.VBUCKET_AT, vbucket)
    store32(target + at.BODY_SIZE_AT, body)
    store32(target + at.OPAQUE_AT, 0)
    store32(target + at.FLAGS_AT, load32(request + at.HEADER))
    expiry = stored_expiry(load32(request + at.HEADER + 4), told)
    store32(target + at.EXPIRY_AT, expiry)
    store32(target + at.EXPIRY_AT + 4, 0)
    store16(target + at.NMETA_AT, 0)
    store8(target + at.NRU_AT, 0)
    key = target + at.HEADER + at.MUTATION_EXTRAS
    if prefix:
        store8(key, 0)
    copy_bytes(key + prefix, request + at.HEADER + SET_EXTRAS, key_size + value_size)
    return at.HEADER + body


@kernel
def has_known_collection(key: int, size: int, known: Words) -> bool:
    """Whether a key is a collection id among the known ones, in its shortest form, and a name."""
    if not is_wanted(known, collection_of(key, size)):
        return False
    last = 0
    while load8(key + last) >= 0x80:
        last += 1
    return last + 1 < size and (last == 0 or load8(key + last) != 0)


@kernel
def serve_requests(
    slots: Words,
    entries: Words,
    items: Words,
    vbuckets: Words,
    marks: Words,
    state: Words,
    addresses: Words,
    source: int,
    size: int,
    target: int,
    capacity: int,
    arena: int,
    position: int,
    arena_size: int,
    scratch: int,
    known: Words,
    held: Bytes,
    touched: Bytes,
    counts: Words,
    told: Words,
) -> None:
    """Serve requests from T_CONSUMED on until one is not plain or something runs out."""
    told[T_WHY] = WHY_OTHER
    prefix = 0 if told[T_COLLECTIONS] else 1
    while True:
        request = source + told[T_CONSUMED]
        left = size - told[T_CONSUMED]
        if left == 0:
            told[T_WHY] = WHY_DONE
            return
        if left < at.HEADER or load8(request) != 0x80:
            return
        opcode = load8(request + at.OPCODE_AT)
        extras = load8(request + at.EXTRAS_SIZE_AT)
        key_size = load16(request + at.KEY_SIZE_AT)
        body = load32(request + at.BODY_SIZE_AT)
        if at.HEADER + body > left or load64(request + at.CAS_AT) != 0:
            return
        out = target + told[T_WRITTEN]
        room = capacity - told[T_WRITTEN]
        datatype = load8(request + at.DATATYPE_AT)
        if opcode == NOOP:
            if body or datatype:
                return
            if room < at.HEADER:
                told[T_WHY] = WHY_OUTPUT
                told[T_NEEDED] = at.HEADER
                return
            reply_header(out, request, 0, 0, 0, 0, 0)
            store64(out + at.CAS_AT, 0)
            counts[NOOP] += 1
            told[T_WRITTEN] += at.HEADER
            told[T_CONSUMED] += at.HEADER
            continue
        vbucket = load16(request + at.VBUCKET_AT)
        if (
            vbucket >= len(vbuckets)
            or vbuckets[vbucket, at.V_STATE] != ACTIVE
            or vbuckets[vbucket, at.V_SLOW] != 0
            or held[vbucket] != 0
        ):
            return
        is_set = opcode in (SET, SETQ)
        if not is_set and opcode not in (GET, GETQ, GETK, GETKQ):
            return
        if extras != (SET_EXTRAS if is_set else 0) or datatype > told[T_JSON]:
            return
        if (
            key_size + prefix < 2
            or key_size + prefix > KEY_SIZE_MAX + 1
            or body < extras + key_size
        ):
            return
        wire_key = request + at.HEADER + extras
        if not prefix and not has_known_collection(wire_key, key_size, known):
            return
        if prefix:
            store8(scratch, 0)
        copy_bytes(scratch + prefix, wire_key, key_size)
        found = key_hash(state, vbucket, scratch, prefix + key_size)
        row = find_key(slots, entries, state, vbucket, scratch, prefix + key_size, found)
        if not is_set:
            if body != key_size or datatype:
                return
            written = serve_get(
                entries, items, state, addresses, row, request, out, room, counts, told
            )
            if written < 0:
                told[T_WHY] = -written
                return
            counts[opcode] += 1
            told[T_WRITTEN] += written
            told[T_CONSUMED] += at.HEADER + body
            continue
        value_size = body - SET_EXTRAS - key_size
        if value_size > told[T_VALUE_MAX]:
            return
        if row >= 0 and not entries[row, at.E_WORD] & at.WORD_DELETED:
            xattrs = (entries[row, at.E_WORD] >> 40) & at.DATATYPE_XATTR
            if xattrs or not lives_on(entries, row, told):
                return
        if told[T_CHANGES] <= 0:
            told[T_WHY] = WHY_TABLES
            return
        frame_size = at.HEADER + at.MUTATION_EXTRAS + prefix + key_size + value_size
        if told[T_ARENA_USED] + frame_size > arena_size:
            told[T_WHY] = WHY_ARENA
            told[T_NEEDED] = frame_size
            return
        if room < at.HEADER + 16:
            told[T_WHY] = WHY_OUTPUT
            told[T_NEEDED] = at.HEADER + 16
            return
        json = check_json(wire_key + key_size, value_size)
        if json == UNSURE:
            return
        place = told[T_ARENA_USED]
        lay_mutation(arena + place, request, vbucket, json, prefix, told)
        _, seqno, cas, _ = accept(
            slots,
            entries,
            items,
            vbuckets,
            marks,
            state,
            arena + place,
            position + place,
            0,
            0,
            0,
            told[T_NOW],
        )
        told[T_ARENA_USED] = place + frame_size
        told[T_CHANGES] -= 1
        touched[vbucket] = 1
        counts[opcode] += 1
        if opcode == SET:
            tokens = 16 if told[T_TOKENS] else 0
            reply_header(out, request, 0, tokens, 0, 0, tokens)
            store64(out + at.CAS_AT, cas)
            if tokens:
                store64(out + at.HEADER, vbuckets[vbucket, at.V_BRANCH])
                store64(out + at.HEADER + 8, seqno)
            told[T_WRITTEN] += at.HEADER + tokens
        told[T_CONSUMED] += at.HEADER + body


class Requests:
    """Serves plain requests over one bucket's tables."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._scratch: Bytes = np.zeros(512, np.uint8)
        self._touched: Bytes = np.zeros(core.settings.vbuckets, np.uint8)
        self._none_held: Bytes = np.zeros(core.settings.vbuckets, np.uint8)
        quota = core.settings.memory_quota
        kept = min(OUTPUT_KEPT_MAX, quota // OUTPUT_KEPT_SHARE)
        self._outputs = BufferPool(kept, smallest=OUTPUT_FIRST)
        self.counts: Words = np.zeros(COUNTS, np.int64)
        """What was served so far."""
        self.runs = 0
        """Calls so far: the counts change with them only."""

    def serve(
        self,
        requests: bytes | memoryview,
        *,
        now: int,
        collections: Words | None,
        held: Bytes | None,
        mutation_tokens: bool,
        datatypes: bool,
        value_size_max: int,
        max_ttl: int,
    ) -> tuple[memoryview, int]:
        """Replies and the number of bytes answered; see `Bucket.serve_requests`."""
        core = self._core
        self.runs += 1
        told = np.zeros(T_COLUMNS, np.int64)
        told[T_NOW_SECONDS] = now
        told[T_COLLECTIONS] = collections is not None
        told[T_TOKENS] = mutation_tokens
        told[T_JSON] = datatypes
        told[T_VALUE_MAX] = value_size_max
        told[T_TTL_MAX] = max_ttl
        source = bytes_at(requests)
        output = self._outputs.take(OUTPUT_FIRST)
        needs_room = 0
        while True:
            if needs_room:
                core.ensure_room(needs_room)
            with core.lock:
                self._run(
                    source,
                    output,
                    told,
                    needs_room,
                    NO_COLLECTIONS if collections is None else collections,
                    self._none_held if held is None else held,
                )
                changed = np.flatnonzero(self._touched).tolist()
                self._touched[:] = 0
            for vbucket in changed:
                core.announce(vbucket)
            why = int(told[T_WHY])
            needs_room = 0
            if why == WHY_ARENA:
                needs_room = int(told[T_NEEDED])
            elif why == WHY_OUTPUT:
                grown = self._grown(output, told)
                if grown is None:
                    break
                output = grown
            elif why != WHY_TABLES:
                break
        written = int(told[T_WRITTEN])
        return memoryview(output)[:written], int(told[T_CONSUMED])  # type: ignore[arg-type]

    def _run(
        self,
        source: Bytes,
        output: Bytes,
        told: Words,
        needs_room: int,
        known: Words,
        held: Bytes,
    ) -> None:
        core = self._core
        core.reserve(RESERVE_AHEAD)
        segment = core.arena.room(needs_room) if needs_room else core.arena.current
        tables = core.tables
        told[T_NOW] = core.clock()
        told[T_CHANGES] = RESERVE_AHEAD
        told[T_ARENA_USED] = segment.used
        serve_requests(
            tables.slots,
            tables.entries,
            tables.items,
            tables.vbuckets,
            tables.marks,
            tables.state,
            core.arena.addresses,
            address_of(source),
            len(source),
            address_of(output),
            len(output),
            segment.address,
            segment.base,
            len(segment.array),
            address_of(self._scratch),
            known,
            held,
            self._touched,
            self.counts,
            told,
        )
        segment.used = int(told[T_ARENA_USED])
        core.reserve(0)

    def _grown(self, output: Bytes, told: Words) -> Bytes | None:
        """A larger output with the same replies; None when this call has given enough."""
        written, needed = int(told[T_WRITTEN]), int(told[T_NEEDED])
        if written and written + needed > OUTPUT_MAX:
            return None
        grown = self._outputs.take(max(2 * len(output), written + needed))
        grown[:written] = output[:written]
        return grown
