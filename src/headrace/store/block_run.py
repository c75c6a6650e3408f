"""The frames of several blocks for one reader, written in one call.

A call of a kernel costs microseconds, and whatever Python does between two of them it does with
caches that the kernel has just filled with other bytes. So the values of a chunk's blocks are
looked up together; then one call goes through them all. It stops early where
`headrace.store.rewrite.rewrite_block` does; `BlockRun.write` is then called again and goes on.

The addresses in a run are those of one short read of the disk: a run must not outlive it.

Imports: store.blocks, store.native, store.records, store.rewrite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.store import rewrite as by
from headrace.store.blocks import lower_row
from headrace.store.native import address_of, bytes_at, halves_at, kernel
from headrace.store.records import BLOCK_HEADER

if TYPE_CHECKING:
    from headrace.store.blocks import Block
    from headrace.store.native import Words
    from headrace.store.output import Output
    from headrace.store.transform import Transform

# Columns of a run: one row for each block.
B_SOURCE: Final = 0
"""Address of its first frame."""
B_SIZE: Final = 1
B_ROWS: Final = 2
"""Address of its rows."""
B_COUNT: Final = 3
B_FIRST: Final = 4
B_LAST: Final = 5


@kernel
def rewrite_blocks(
    run: Words,
    place: int,
    after: int,
    options: Words,
    wanted: Words,
    last: int,
    end: int,
    all_versions: bool,
    target: int,
    capacity: int,
    limit: int,
    result: Words,
) -> int:
    """Write the frames above seqno ``after`` of the blocks from ``place`` on: the block it is in.

    R_NEXT is the row to begin with, negative to look for it. A block that is read to its end passes
    the seqnos behind its last frame, too.
    """
    while place < len(run):
        first = run[place, B_FIRST]
        rows = halves_at(run[place, B_ROWS], run[place, B_COUNT])
        if result[by.R_NEXT] < 0:
            result[by.R_NEXT] = lower_row(rows, after + 1 - first)
        by.rewrite_block(
            run[place, B_SOURCE],
            run[place, B_SIZE],
            rows,
            first,
            options,
            wanted,
            last,
            end,
            all_versions,
            target,
            capacity,
            limit,
            result,
        )
        if result[by.R_WHY] != by.WHY_END:
            break
        result[by.R_READ] = min(run[place, B_LAST], last)
        result[by.R_NEXT] = -1
        place += 1
        if result[by.R_BYTES] >= limit:
            break
    return place


class BlockRun:
    """Blocks of one vbucket and their values, in the order of their seqnos."""

    __slots__ = ("_blocks", "_owners", "_place", "_table", "_values")

    def __init__(self, blocks: list[Block], values: list[memoryview]) -> None:
        """Stand before the first block; ``values`` has those of the first blocks, maybe not all."""
        self._blocks, self._values = blocks, values
        self._owners = [bytes_at(value) for value in values]
        self._table: Words = np.array(
            [
                (
                    address_of(owner) + BLOCK_HEADER.size,
                    block.size,
                    block.rows_address,
                    len(block.rows),
                    block.first,
                    block.last,
                )
                for block, owner in zip(blocks, self._owners, strict=False)
            ],
            np.int64,
        ).reshape(len(values), 6)
        self._place = 0

    @property
    def block(self) -> Block:
        """The block it stopped in."""
        return self._blocks[self._place]

    def frame(self, row: int) -> memoryview:
        """The bytes of a frame of that block."""
        start, stop = self.block.extent(row)
        return self._values[self._place][BLOCK_HEADER.size + start : BLOCK_HEADER.size + stop]

    def write(
        self,
        output: Output,
        transform: Transform,
        *,
        after: int,
        last: int,
        end: int,
        all_versions: bool,
    ) -> None:
        """Write frames until the limit, the end or one that is left to the caller."""
        self._place = rewrite_blocks(
            self._table,
            self._place,
            after,
            transform.options,
            transform.wanted,
            last,
            end,
            all_versions,
            output.address,
            output.capacity,
            output.limit,
            output.result,
        )
