"""A buffer that fills with frames for one reader, for `Cursor` and `Backfill`.

The kernels write until the limit is reached, room runs out or a frame needs the plain way; this
keeps the buffer large enough, does those frames, and hands out the `Chunk`.

Imports: store.layout, store.model, store.native, store.plain, store.rewrite.
"""

from __future__ import annotations

from dataclasses import replace
from sys import getrefcount
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.store import layout as at
from headrace.store import rewrite as by
from headrace.store.model import Chunk
from headrace.store.native import address_of, bytes_at, kernel, load8, load32, load64
from headrace.store.plain import rewrite_frame

if TYPE_CHECKING:
    from headrace.store.native import Bytes, Words
    from headrace.store.transform import Transform

CAPACITY_FIRST: Final = 64 * 1024
"""Live streams mostly send little at a time; larger chunks grow into their limit."""
SLACK: Final = 16 * 1024
"""Room behind the limit for the frame that reaches it."""
POOLED_BYTES_MIN: Final = 512 * 1024
"""Smaller buffers come from the allocator, which has them at hand."""
POOL_BUFFERS_MAX: Final = 3
"""Buffers kept: one on its way out, one read ahead, one between the two."""
_POOLED_ONLY: Final = 2
"""References to a buffer that nobody uses: the pool's list and the question."""


@kernel
def _count_frames(source: int, size: int, limit: int, found: Words) -> None:
    """Count frames up to the one that reaches ``limit``: bytes, frames, prepares, last seqno."""
    used = 0
    while used < limit and used + at.HEADER <= size:
        frame = source + used
        framing = load8(frame + 2) if load8(frame) == at.FLEXIBLE_MAGIC else 0
        opcode = load8(frame + at.OPCODE_AT)
        place = at.ABORT_SEQNO_AT if opcode in (at.COMMIT, at.ABORT) else at.SEQNO_AT
        found[1] += 1
        found[2] += opcode == at.PREPARE
        found[3] = load64(frame + framing + place)
        used += at.HEADER + load32(frame + at.BODY_SIZE_AT)
    found[0] = used


def cut_chunk(chunk: Chunk, limit_bytes: int) -> tuple[Chunk, Chunk | None]:
    """The chunk up to the frame that reaches the limit, and the rest, if any; no byte is copied."""
    size = len(chunk.data)
    if size <= limit_bytes:
        return chunk, None
    data, found = bytes_at(chunk.data), np.zeros(4, np.int64)
    _count_frames(address_of(data), size, limit_bytes, found)
    used, count, prepares, last = found.tolist()
    if used >= size:
        return chunk, None
    _count_frames(address_of(data) + used, size - used, 1, found)
    return (
        replace(
            chunk,
            data=chunk.data[:used],
            count=count,
            last_seqno=last,
            read_seqno=last,
            prepares=prepares,
        ),
        replace(
            chunk,
            data=chunk.data[used:],
            count=chunk.count - count,
            first_seqno=int(found[3]),
            prepares=chunk.prepares - prepares,
        ),
    )


class BufferPool:
    """Large buffers, used again once nobody holds a view of their bytes.

    Fresh memory costs a page fault for every 4 KB, about as much as filling it; and large blocks
    that come and go on several threads tear holes into the allocator's heap.
    """

    def __init__(self, bytes_max: int, *, smallest: int = POOLED_BYTES_MIN) -> None:
        """Start empty; buffers are kept as they are first asked for, up to so many bytes."""
        self._bytes_max = bytes_max
        self._smallest = smallest
        self._lock = Lock()
        self._buffers: list[Bytes] = []

    @property
    def bytes_kept(self) -> int:
        """Bytes of all buffers, used or not."""
        return sum(map(len, self._buffers))

    def take(self, size: int) -> Bytes:
        """A buffer of at least that size, its bytes undefined; any thread."""
        if size < self._smallest:
            return np.empty(size, np.uint8)
        with self._lock:
            kept = self._buffers
            for place in range(len(kept)):
                if getrefcount(kept[place]) > _POOLED_ONLY:
                    continue
                if size <= len(kept[place]):
                    return kept[place]
                del kept[place]  # too small for what is asked for nowadays
                break
            made = np.empty(size, np.uint8)
            if len(kept) < POOL_BUFFERS_MAX and self.bytes_kept + size <= self._bytes_max:
                kept.append(made)
            return made


class Output:
    """One chunk in the making."""

    def __init__(
        self,
        limit_bytes: int,
        *,
        expect_bytes: int = CAPACITY_FIRST,
        pool: BufferPool | None = None,
    ) -> None:
        size = min(limit_bytes, expect_bytes) + SLACK
        self.limit = limit_bytes
        self.result: Words = np.zeros(by.R_COLUMNS, np.int64)
        self._buffer: Bytes = np.empty(size, np.uint8) if pool is None else pool.take(size)
        self.address = address_of(self._buffer)
        self.capacity = len(self._buffer)

    @property
    def why(self) -> int:
        """Why the last kernel stopped."""
        return int(self.result[by.R_WHY])

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached."""
        return bool(self.result[by.R_BYTES] >= self.limit)

    def grow(self, frame_bytes: int) -> None:
        """Make room for one more frame of that size, and then some."""
        used = int(self.result[by.R_BYTES])
        needed = used + frame_bytes + by.FRAME_GROWTH_MAX
        size = max(needed, min(2 * self.capacity, self.limit)) + SLACK
        grown = np.empty(size, np.uint8)
        grown[:used] = self._buffer[:used]
        self._buffer, self.address, self.capacity = grown, address_of(grown), size

    def add_plain(self, frame: bytes | memoryview, seqno: int, transform: Transform) -> None:
        """Add what the reader gets of a frame the kernel left to us."""
        written = rewrite_frame(frame, transform)
        self.result[by.R_READ] = seqno
        if written is None:
            return
        used = int(self.result[by.R_BYTES])
        if used + len(written) > self.capacity:
            self.grow(len(written))
        self._buffer[used : used + len(written)] = np.frombuffer(written, np.uint8)
        self.result[by.R_BYTES] = used + len(written)
        self.result[by.R_COUNT] += 1
        self.result[by.R_LAST] = seqno
        if self.result[by.R_FIRST] == 0:
            self.result[by.R_FIRST] = seqno

    def chunk(self) -> Chunk | None:
        """What was gathered; None if no item was passed."""
        _, used, count, first, last, read, prepares = self.result.tolist()[: by.R_WHY]
        if not read:
            return None
        return Chunk(
            data=memoryview(self._buffer)[:used],  # type: ignore[arg-type]
            count=count,
            first_seqno=first,
            last_seqno=last,
            read_seqno=read,
            prepares=prepares,
        )
