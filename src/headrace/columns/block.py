"""The memory of a batch: one allocation that is an Arrow IPC message, lent from a pool.

    0            IPC prefix and metadata (which buffer stands where, how long, how many nulls)
    BODY         one array per column, ROWS_MAX rows each
                 zeros: data and validity of the columns that are null in every row
                 validity bitmaps, one per group of `Presence`
                 the presence word of every row, the list of frames handed back
    PAYLOAD      bytes of keys, then bytes of values

Because places do not depend on the input, they are constants in the kernel's code, and Arrow takes
the whole block in one call (`pyarrow.ipc.read_record_batch`, no copy) where one call per buffer
would cost a tenth of the time it takes to scan 4 MB. The kernel writes the metadata's numbers.

Rules.
- A block belongs to the batch made from it: Arrow's buffers hold the lease, and the memory goes
  back to the pool only when the last of them is gone. Nothing else may point into a block.
- The zeros are never written. Nothing else in a block is known to be zero when it is lent again.
- A block is pages that the kernel gives when they are first written: what no batch reached costs
  nothing, so that one size of block serves small scans and large ones. A block is used again with
  the pages it has, the newest first: touching new pages costs more than scanning into old ones.
- The pool keeps blocks of at most `POOL_SIZE_MAX` bytes, counted by the pages that were written;
  what comes back beyond that is freed.
- Arrays start at different places modulo 4096: streams of stores that share their low 12 bits
  would fight for the same sets of the first cache.

Imports: columns.schema.
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from headrace.columns.schema import COLUMNS, SCHEMA, Presence, blank

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    Memory: TypeAlias = NDArray[np.uint8]

ROWS_MAX: Final = 49_152
"""Most rows of a batch: about 6 MB of small documents."""
OTHERS_MAX: Final = 16_384
"""Most frames one scan hands back."""
OTHER: Final = np.dtype(
    [("offset", np.uint32), ("size", np.uint32), ("reason", np.uint32), ("row", np.uint32)]
)
"""One frame handed back: where it stands, why, and how many rows of the batch came before it."""
OTHER_ROW: Final = 12
"""Where ``row`` stands in it."""
SLACK: Final = 64
"""Bytes behind the payload that a copy in whole vectors may write over."""
PAYLOADS: Final = (64 * 1024, 512 * 1024, 4 * 1024 * 1024, 6 * 1024 * 1024)
"""Sizes of input that blocks are made for; larger ones, for frames of their own, are doubled."""
PAYLOAD_MIN: Final = PAYLOADS[0]
POOL_SIZE_MAX: Final = 40 * 1024 * 1024

PREFIX_SIZE: Final = 8
BODY: Final = 4096
_ALIGNMENT: Final = 64
_STAGGER: Final = 5 * _ALIGNMENT
_CONTINUATION: Final = 0xFFFF_FFFF

_BUFFER_COUNT: Final = sum(2 + column.is_binary for column in COLUMNS)

PRESENCES: Final = tuple(Presence)
BITMAP_SIZE: Final = ROWS_MAX // 8


def _places() -> tuple[dict[str, int], int]:
    sizes = {column.name: column.width * (ROWS_MAX + 1) for column in COLUMNS}
    sizes["zeros"] = 8 * ROWS_MAX
    sizes.update({f"valid {group.name}": BITMAP_SIZE for group in PRESENCES})
    sizes["presence"] = 2 * ROWS_MAX
    sizes["others"] = OTHER.itemsize * OTHERS_MAX
    places = {}
    at = BODY
    for name, size in sizes.items():
        places[name] = at
        at = -(-(at + size) // _ALIGNMENT) * _ALIGNMENT + _STAGGER
    return places, at


PLACES, PAYLOAD = _places()
"""Name -> offset in the block; `PAYLOAD` is where keys begin."""


def value_place(payload: int) -> int:
    """Return where values begin in a block made for ``payload`` bytes of input."""
    return PAYLOAD + payload + SLACK + _STAGGER


def block_size(payload: int) -> int:
    """Return the size of a block made for ``payload`` bytes of input."""
    return value_place(payload) + payload + SLACK


class _Metadata:
    """The metadata of an IPC message of our schema, and where its numbers stand.

    Made from a message that Arrow itself wrote: only numbers are replaced, never the structure.
    """

    def __init__(self) -> None:
        # One row, because FlatBuffers leaves out a field that is 0.
        written = blank(1).serialize().to_pybytes()
        continuation, size = struct.unpack_from("<II", written)
        assert continuation == _CONTINUATION
        assert PREFIX_SIZE + size <= BODY
        data = bytearray(BODY)
        data[: PREFIX_SIZE + size] = written[: PREFIX_SIZE + size]
        struct.pack_into("<I", data, 4, BODY - PREFIX_SIZE)
        self._data = data
        message = self._follow(PREFIX_SIZE)
        self.body_length = self._field(message, 3)
        batch = self._follow(self._field(message, 2))
        self.length = self._field(batch, 0)
        self.nodes = self._vector(self._field(batch, 1), len(COLUMNS))
        self.buffers = self._vector(self._field(batch, 2), _BUFFER_COUNT)
        self.bytes = bytes(data)

    def _follow(self, at: int) -> int:
        """Return the place that the offset at ``at`` points to."""
        return at + int(struct.unpack_from("<I", self._data, at)[0])

    def _field(self, table: int, number: int) -> int:
        """Return the place of a table's field; Arrow writes every field we ask for."""
        vtable = table - struct.unpack_from("<i", self._data, table)[0]
        offset = struct.unpack_from("<H", self._data, vtable + 4 + 2 * number)[0]
        assert offset
        return int(table + offset)

    def _vector(self, at: int, length: int) -> int:
        """Return the place of the first element of a vector that must have ``length`` of them."""
        vector = self._follow(at)
        assert struct.unpack_from("<I", self._data, vector)[0] == length
        return vector + 4


_METADATA: Final = _Metadata()
LENGTH_PLACE: Final = _METADATA.length
NODES_PLACE: Final = _METADATA.nodes
"""One (rows, nulls) per column."""
BUFFERS_PLACE: Final = _METADATA.buffers
"""One (offset, size) per buffer: validity, numbers or offsets, and the bytes of a binary column."""
NEVER_NULL: Final = len(PRESENCES)
DESCRIPTION: Final = tuple(
    (
        PLACES[column.name],
        column.width,
        int(column.is_binary),
        NEVER_NULL if column.presence is None else PRESENCES.index(column.presence),
    )
    for column in COLUMNS
)
"""What the kernel needs to describe a batch: place, width, binary, group of every column."""


def fresh_pages(size: int) -> Memory:
    """Return zeroed memory of which a page is taken when it is first touched.

    An allocator would give the pages of something freed before and clear them all; and a process
    that forks must not share what its child writes.
    """
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, dtype=np.uint8)


class Block:
    """One allocation, in use by a scan; ``written`` is the most that a batch has used of it."""

    __slots__ = ("address", "memory", "payload", "written")

    def __init__(self, payload: int) -> None:
        self.payload = payload
        self.written = 0
        self.memory: Memory = fresh_pages(block_size(payload))
        self.address = int(self.memory.ctypes.data)
        self.memory[:BODY] = np.frombuffer(_METADATA.bytes, dtype=np.uint8)
        place = _METADATA.body_length
        self.memory[place : place + 8].view(np.int64)[0] = self.memory.size - BODY

    def others(self, count: int) -> NDArray[np.void]:
        """Return a copy of the first ``count`` frames handed back."""
        place = PLACES["others"]
        raw = self.memory[place : place + count * OTHER.itemsize]
        return raw.copy().view(OTHER)


def payload_for(input_size: int) -> int:
    """Return the size of input that a block for ``input_size`` bytes is made for."""
    for payload in PAYLOADS:
        if input_size <= payload:
            return payload
    payload = 2 * PAYLOADS[-1]
    while payload < input_size:
        payload *= 2
    return payload


class _Lease:
    """Stands for a block while Arrow uses it; gives the block back when it is gone."""

    __slots__ = ("_block", "_pool")

    def __init__(self, pool: BlockPool, block: Block) -> None:
        self._pool = pool
        self._block = block

    def __del__(self) -> None:
        self._pool.give_back(self._block)


class BlockPool:
    """Blocks lent to batches and taken back when the batches are gone; safe from any thread.

    Without a lock: a block may come back in the middle of anything, and every step here is one
    operation on a list or a dict. Two threads at once can keep one block too many, no worse.
    """

    def __init__(self, *, size_max: int = POOL_SIZE_MAX) -> None:
        self._free: dict[int, list[Block]] = {}
        self._size_max = size_max

    def lend(self, input_size: int) -> Block:
        """Return a block with room for the payload of ``input_size`` bytes of frames."""
        payload = payload_for(input_size)
        try:
            return self._free[payload].pop()
        except (KeyError, IndexError):
            return Block(payload)

    def give_back(self, block: Block) -> None:
        """Take a block that nothing points into any more."""
        held = sum(free.written for blocks in list(self._free.values()) for free in list(blocks))
        if held + block.written <= self._size_max:
            self._free.setdefault(block.payload, []).append(block)

    def batch(self, block: Block) -> pa.RecordBatch:
        """Return the batch the block describes; the block comes back when the batch is gone."""
        lease = _Lease(self, block)
        return ipc.read_record_batch(
            pa.foreign_buffer(block.address, block.memory.size, lease), SCHEMA
        )
