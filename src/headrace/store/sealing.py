"""How frames get from the arena into blocks: planned under the lock, copied without it.

A plan says what is to be sealed of one vbucket: the items from an ordinal on, below a position of
the arena, as the tables were when the lock was held. Copying and checksumming megabytes takes
milliseconds in which others go on to accept changes. That they may is due to three rules:

* Items that are not sealed stay in memory, their frames never change, and only the holder of the
  structure lock, who packs, seals, truncates or deletes.
* A packer looks at no item above the plan's last ordinal: newer ones are being written.
* What may change under its eyes is when a frame was superseded. It is read as it was or as it is,
  and brought up to date under the lock when the block is installed (`refresh_rows`). Which versions
  are left out does not depend on it: they were superseded at or below the plan's floor.

Blocks are packed one behind the other into memory that is used again, and each is checksummed while
it is still in a cache.

Imports: store.blocks, store.core, store.layout, store.native, store.records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.store import layout as at
from headrace.store.blocks import FRAME_BYTES_MIN, Block, pack_items
from headrace.store.core import seek_item
from headrace.store.native import address_of, kernel
from headrace.store.records import BLOCK_HEADER, fill_block_header

if TYPE_CHECKING:
    from headrace.store.core import Core
    from headrace.store.native import Bytes, Halves, Words
    from headrace.store.vbucket import VBucket

STEP_BYTES: Final = 8 * 1024 * 1024
"""Frames sealed by one step: bounds how much a commit can be delayed by sealing. Also the memory
blocks are packed into that is kept while more is to be sealed."""
STEP_SHARE: Final = 32
"""The same as a part of the quota: a step holds its frames three times for a moment."""

# What `pack_items` is told, and tells.
N_FIRST: Final = 0
N_LAST: Final = 1
N_DROPPED: Final = 2
N_PASSED: Final = 3
N_ORDINAL: Final = 4
N_COLUMNS: Final = 5


@dataclass(slots=True)
class Plan:
    """What is to be sealed of one vbucket.

    ``ordinal``: the first item that is not sealed, 0 if there is none; ``newest``: the last one
    that may be looked at; ``size``: bytes of the frames. Versions superseded at or below ``floor``
    are left out. ``superseded`` counts the versions of the vbucket that were when it was made.
    """

    vbucket: VBucket
    items: Words
    addresses: Words
    ordinal: int
    newest: int
    position: int
    floor: int
    sealed: int
    rewind: int
    history_floor: int
    superseded: int
    size: int


@dataclass(slots=True)
class Packed:
    """A block ready to be written, and the ordinal of its first item."""

    block: Block
    value: memoryview
    ordinal: int


@dataclass(slots=True)
class Sealed:
    """What one step does to one vbucket."""

    vbucket: VBucket
    blocks: list[Packed]
    seqno: int
    rewind: int
    history_floor: int
    superseded: int
    ordinal: int
    """The last item that was passed, 0 if none was."""


class Packer:
    """Packs the blocks of one bucket; the structure lock is held."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._memory: Bytes = np.empty(0, np.uint8)
        self._used = 0
        self._rows: Halves = np.empty((0, 3), np.uint32)

    def plan(self, vbucket: VBucket, position: int, *, floor: int, measured: bool = True) -> Plan:
        """What of a vbucket lies below a position and is not sealed; lock held.

        Not ``measured``, its size is left at 0: who seals everything need not walk to know it.
        """
        core, tables = self._core, self._core.tables
        row = vbucket.row
        sealed = int(row[at.V_SEALED])
        ordinal, size = 0, 0
        if row[at.V_HIGH] > sealed:
            ordinal = self._after_sealed(vbucket)
            size = bytes_below(tables.items, ordinal, position) if measured else 0
        return Plan(
            vbucket=vbucket,
            items=tables.items,
            addresses=core.arena.addresses,
            ordinal=ordinal,
            newest=int(tables.state[at.S_HIGH]),
            position=position,
            floor=floor,
            sealed=sealed,
            rewind=vbucket.rewind_seqno,
            history_floor=vbucket.history_floor,
            superseded=int(row[at.V_SUPERSEDED]),
            size=size,
        )

    def _after_sealed(self, vbucket: VBucket) -> int:
        """The first item that is not sealed: the one behind the last that was, if that is here."""
        tables, row = self._core.tables, vbucket.row
        if tables.in_memory(vbucket.sealed_ordinal):
            last = tables.items[tables.item_row(vbucket.sealed_ordinal)]
            if last[at.I_SEQNO] == row[at.V_SEALED] and last[at.I_TAG] & 0xFFFF == vbucket.id:
                return int(last[at.I_NEXT])
        return seek_item(tables.items, int(row[at.V_FIRST]), int(row[at.V_SEALED]))

    def begin(self, size: int) -> None:
        """So many bytes come; what was packed before is written, and its memory used again."""
        settings, self._used = self._core.settings, 0
        kept = min(STEP_BYTES, settings.memory_quota // STEP_SHARE)
        if size > settings.block_bytes and not len(self._memory):
            self._memory = np.empty(kept, np.uint8)
            self._core.packing_bytes = kept

    def let_go(self) -> None:
        """Nothing more is to be sealed for now."""
        self._memory, self._used = np.empty(0, np.uint8), 0
        self._rows = np.empty((0, 3), np.uint32)
        self._core.packing_bytes = 0

    def pack(self, plan: Plan) -> Sealed:
        """Copy what a plan names into blocks, their headers filled in."""
        numbers = np.zeros(N_COLUMNS, np.int64)
        numbers[N_PASSED] = plan.sealed
        packed: list[Packed] = []
        ordinal = plan.ordinal
        while ordinal:
            count, used, following, value = self._pack_block(plan, ordinal, numbers)
            if count:
                block = Block(
                    vbucket=plan.vbucket.id,
                    first=int(numbers[N_FIRST]),
                    last=int(numbers[N_LAST]),
                    size=used,
                    stamp=self._core.stamp(),
                    rows=self._rows[:count].copy(),
                    checked=False,
                )
                view = memoryview(value)[: BLOCK_HEADER.size + used]  # type: ignore[arg-type]
                fill_block_header(
                    view, count=count, stamp=block.stamp, first=block.first, last=block.last
                )
                packed.append(Packed(block, view, ordinal))
            if following == ordinal or not count:
                break
            ordinal = following
        dropped = int(numbers[N_DROPPED])
        return Sealed(
            plan.vbucket,
            packed,
            int(numbers[N_PASSED]),
            max(plan.rewind, dropped),
            max(plan.history_floor, dropped),
            plan.superseded,
            int(numbers[N_ORDINAL]),
        )

    def _pack_block(self, plan: Plan, ordinal: int, numbers: Words) -> tuple[int, int, int, Bytes]:
        """One block from an ordinal on: (frames, bytes, next ordinal, value)."""
        capacity = self._core.settings.block_bytes
        while True:
            value = self._room(BLOCK_HEADER.size + capacity)
            if len(self._rows) < capacity // FRAME_BYTES_MIN + 1:
                self._rows = np.empty((capacity // FRAME_BYTES_MIN + 1, 3), np.uint32)
            count, used, following = pack_items(
                plan.items,
                self._core.tables.state,
                plan.addresses,
                ordinal,
                plan.newest,
                plan.position,
                plan.floor,
                address_of(value) + BLOCK_HEADER.size,
                capacity,
                self._rows,
                numbers,
            )
            if count >= 0:
                self._take(value, BLOCK_HEADER.size + used if count else 0)
                return count, used, following, value
            ordinal, capacity = following, used  # one frame larger than a block gets its own

    def _room(self, size: int) -> Bytes:
        """Memory for a block: of what is kept, or its own when that is used up."""
        if self._used + size <= len(self._memory):
            return self._memory[self._used : self._used + size]
        return np.empty(size, np.uint8)

    def _take(self, value: Bytes, size: int) -> None:
        if value.base is self._memory:
            self._used += size


@kernel
def bytes_below(items: Words, ordinal: int, position: int) -> int:
    """Bytes of a vbucket's frames from an item on, up to a position of the arena."""
    size = 0
    while ordinal:
        row = ordinal & (len(items) - 1)
        if items[row, at.I_POSITION] >= position:
            break
        size += items[row, at.I_INFO] >> at.INFO_SIZE_SHIFT
        ordinal = items[row, at.I_NEXT]
    return size
