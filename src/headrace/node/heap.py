"""How a node's process gets its memory from the system, so that what it frees is free.

glibc keeps a heap for every few threads and, once a large block was freed, takes blocks of that
size from the heaps as well. A node commits, seals and sends in megabytes on several threads: the
heaps then keep tens of megabytes of holes beside what is in use. Here large blocks are always the
system's, and go back to it whole; the rest comes from one heap.

Imports: nothing of ours.
"""

from __future__ import annotations

import ctypes
from typing import Final

# Names and numbers of <malloc.h>.
M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
M_ARENA_MAX: Final = -8

LARGE_BYTES: Final = 192 * 1024
"""A block from this size on is asked of the system and given back to it."""
TRIM_BYTES: Final = 8 * 1024 * 1024
"""Free bytes at the heap's end that are kept: small slices of output come and go."""
HEAPS: Final = 1


def use_one_heap() -> bool:
    """Set up the allocator of this process; False where it is not glibc's. Idempotent."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    chosen = (
        (M_MMAP_THRESHOLD, LARGE_BYTES),
        (M_TRIM_THRESHOLD, TRIM_BYTES),
        (M_ARENA_MAX, HEAPS),
    )
    set_up = [bool(mallopt(name, value)) for name, value in chosen]
    return all(set_up)
