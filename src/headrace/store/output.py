"""A buffer that fills with frames for one reader, for `Cursor` and `Backfill`.

The kernels write until the limit is reached, room runs out or a frame needs the plain way; this
keeps the buffer large enough, does those frames, and hands out the `Chunk`.

Imports: store.model, store.native, store.plain, store.rewrite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.store import rewrite as by
from headrace.store.model import Chunk
from headrace.store.native import address_of
from headrace.store.plain import rewrite_frame

if TYPE_CHECKING:
    from headrace.store.native import Bytes, Words
    from headrace.store.transform import Transform

CAPACITY_FIRST: Final = 64 * 1024
"""Live streams mostly send little at a time; larger chunks grow into their limit."""
SLACK: Final = 16 * 1024
"""Room behind the limit for the frame that reaches it."""


class Output:
    """One chunk in the making."""

    def __init__(self, limit_bytes: int, *, expect_bytes: int = CAPACITY_FIRST) -> None:
        self.limit = limit_bytes
        self.result: Words = np.zeros(by.R_COLUMNS, np.int64)
        self._buffer: Bytes = np.empty(min(limit_bytes, expect_bytes) + SLACK, np.uint8)
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
