"""Several blocks in one call: the same frames as block by block, wherever it has to stop."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headrace.store import Transform, layout
from headrace.store import rewrite as by
from headrace.store.block_run import BlockRun
from headrace.store.blocks import Block
from headrace.store.native import address_of, bytes_at
from headrace.store.output import Output
from headrace.store.plain import rewrite_frame
from headrace.store.records import BLOCK_HEADER
from tests.store.test_rewrite import block_of, mutations

EVERYTHING = Transform(opaque=5)
LEGACY = Transform(opaque=5, collections=False)
END = 1 << 40


def made(frames: list[bytes], sizes: list[int], *, gap: int = 0) -> tuple[list[Block], list[bytes]]:
    """The frames, of seqnos 1, 2, 3..., in blocks of so many; each ends ``gap`` behind its last."""
    blocks, values, first = [], [], 1
    for size in sizes:
        data, rows = block_of(frames[first - 1 : first - 1 + size])
        last = first + size - 1 + gap
        blocks.append(Block(0, first, last, len(data), 1, rows, checked=True))
        values.append(bytes(BLOCK_HEADER.size) + data)
        first += size
    return blocks, values


def run_of(blocks: list[Block], values: list[bytes]) -> BlockRun:
    """A run that nobody has written of."""
    return BlockRun(blocks, [memoryview(value) for value in values])


def write(
    run: BlockRun,
    output: Output,
    *,
    transform: Transform = EVERYTHING,
    after: int = 0,
    last: int = END,
    all_versions: bool = False,
) -> bytes:
    """Everything in the output after one call."""
    run.write(output, transform, after=after, last=last, end=END, all_versions=all_versions)
    chunk = output.chunk()
    return b"" if chunk is None else bytes(chunk.data)


def fresh(limit: int = 1 << 20) -> Output:
    """An output whose reader stands before the first row that it wants."""
    output = Output(limit, expect_bytes=limit)
    output.result[by.R_NEXT] = -1
    return output


def shown(frames: list[bytes], transform: Transform) -> bytes:
    """The frames as the slow twin writes them."""
    return b"".join(rewrite_frame(frame, transform) or b"" for frame in frames)


@pytest.mark.parametrize("transform", [EVERYTHING, LEGACY], ids=["collections", "legacy"])
@pytest.mark.parametrize("after", [0, 1, 4, 5, 6, 11, 12])
def test_all_frames_above_a_seqno_come_in_one_call(after: int, transform: Transform) -> None:
    frames = mutations(12)
    output = fresh()
    written = write(run_of(*made(frames, [4, 1, 7])), output, transform=transform, after=after)
    assert written == shown(frames[after:], transform)
    assert (output.why, int(output.result[by.R_READ])) == (by.WHY_END, 12)


@pytest.mark.parametrize("seed", range(20))
def test_a_chunk_ends_with_the_frame_that_reaches_its_limit(seed: int) -> None:
    """Read again from there, chunk by chunk, nothing is missing and nothing comes twice."""
    chance = random.Random(seed)
    frames = mutations(30)
    sizes = [chance.randrange(1, 8) for _ in range(30)]
    sizes = [size for place, size in enumerate(sizes) if sum(sizes[: place + 1]) <= 30]
    blocks, values = made(frames, sizes)
    whole, after = b"", 0
    while after < sum(sizes):
        limit = chance.randrange(1, 400)
        output = fresh(limit)
        written = write(run_of(blocks, values), output, after=after)
        size_of_last = len(frames[int(output.result[by.R_LAST]) - 1])
        assert len(written) - size_of_last < limit, f"seed {seed}: a frame too many"
        whole += written
        after = int(output.result[by.R_READ])
    assert whole == shown(frames[: sum(sizes)], EVERYTHING), f"seed {seed}"


def test_a_block_that_is_read_to_its_end_passes_the_seqnos_behind_its_last_frame() -> None:
    frames = mutations(3)
    for last, passed in ((END, 8), (6, 6), (2, 2)):
        output = fresh()
        write(run_of(*made(frames, [3], gap=5)), output, last=last)
        assert int(output.result[by.R_READ]) == passed


def test_superseded_versions_are_left_out_in_every_block() -> None:
    frames = mutations(6)
    blocks, values = made(frames, [3, 3])
    blocks[0].rows[1, 2] = blocks[1].rows[0, 2] = 1
    kept = [frames[place] for place in (0, 2, 4, 5)]
    assert write(run_of(blocks, values), fresh()) == shown(kept, EVERYTHING)
    everything = write(run_of(blocks, values), fresh(), all_versions=True)
    assert everything == shown(frames, EVERYTHING)


def test_a_run_goes_on_where_the_caller_had_to_help() -> None:
    """A buffer that is too small stops it in any block; it is not begun again."""
    frames = mutations(9)
    run = run_of(*made(frames, [3, 3, 3]))
    output = fresh()
    output.capacity = len(frames[0]) * 4 + by.FRAME_GROWTH_MAX
    write(run, output)
    assert output.why == by.WHY_ROOM
    row = int(output.result[by.R_NEXT])
    assert (run.block.first, row, bytes(run.frame(row))) == (4, 1, frames[4])
    output.grow(1 << 16)
    assert write(run, output) == shown(frames, EVERYTHING)
    assert output.why == by.WHY_END


def test_damage_in_a_later_block_stops_before_its_frame() -> None:
    frames = mutations(6)
    blocks, values = made(frames, [3, 3])
    broken = bytearray(values[1])
    broken[BLOCK_HEADER.size + layout.BODY_SIZE_AT + 3] += 1
    run = run_of(blocks, [values[0], bytes(broken)])
    output = fresh()
    assert write(run, output) == shown(frames[:3], EVERYTHING)
    assert (output.why, run.block.first, int(output.result[by.R_NEXT])) == (by.WHY_DAMAGED, 4, 0)


def test_blocks_whose_value_was_not_found_are_left_for_later() -> None:
    frames = mutations(6)
    blocks, values = made(frames, [3, 3])
    output = fresh()
    assert write(run_of(blocks, values[:1]), output) == shown(frames[:3], EVERYTHING)
    assert int(output.result[by.R_READ]) == 3


def test_a_block_knows_where_its_rows_lie_and_they_must_lie_together() -> None:
    blocks, _ = made(mutations(3), [3])
    assert blocks[0].rows_address == address_of(blocks[0].rows)
    apart = np.zeros((6, 3), np.uint32)[::2]
    with pytest.raises(AssertionError):
        Block(0, 1, 3, 10, 1, apart, checked=True)
    assert address_of(bytes_at(b"x")) != 0
