"""The kernel of columns against the plain decoder: same rows, same frames handed back, same error.

- A frame becomes the row that decode and Builder make of it, or is handed back for the same reason.
- Bytes counted, bytes consumed and the error of a broken header agree.
- No split of the input changes anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.columns.block import ROWS_MAX, BlockPool
from headrace.columns.scan import Scanner
from headrace.wire.dialect import Dialect
from tests.columns.roads import kernel_road, plain_road
from tests.fuzz.conversations import conversation
from tests.fuzz.mutations import pieces

if TYPE_CHECKING:
    from random import Random

FRAMES_MAX: Final = 12
BODY_SIZE_MAX: Final = 4096
DIALECTS: Final = (*Dialect, Dialect.DCP_7, Dialect.DCP_7, Dialect.DCP_7)
POOL: Final = BlockPool()
SHORT: Final = 2_000
"""Bytes of a conversation in which every row may be a batch of its own."""


def attempt(random: Random) -> None:
    """Make one conversation and take both roads."""
    check(random, conversation(random, random.randint(1, FRAMES_MAX)))


def check(random: Random, stream: bytes) -> int:
    """Hold the kernel against the decoder on these bytes; return the bytes both consumed."""
    dialect = random.choice(DIALECTS)
    collections, stream_ids = random.random() < 0.5, random.random() < 0.3

    def scanner(rows_max: int) -> Scanner:
        return Scanner(
            dialect,
            collections=collections,
            stream_ids=stream_ids,
            body_size_max=BODY_SIZE_MAX,
            rows_max=rows_max,
            pool=POOL,
        )

    plain = plain_road(
        stream,
        dialect,
        collections=collections,
        stream_ids=stream_ids,
        body_size_max=BODY_SIZE_MAX,
    )
    whole = kernel_road(scanner(ROWS_MAX), [stream])
    assert not (found := plain.differences(whole)), found
    rows_max = random.choice((1, 3, ROWS_MAX)) if len(stream) < SHORT else ROWS_MAX
    split = kernel_road(scanner(rows_max), pieces(random, stream))
    assert not (found := whole.differences(split)), found
    return plain.consumed
