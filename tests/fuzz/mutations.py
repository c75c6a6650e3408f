"""Good bytes made a little bad: random ones die at the first check, almost-right ones do not."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

VECTORS: Final = Path(__file__).resolve().parent.parent / "vectors" / "vectors.json"
MUTATIONS_MAX: Final = 4
INSERTED_MAX: Final = 40
# Numbers at the edge of some width or of some check; drawn far more often than chance would.
EDGES: Final = (0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF)


@cache
def sound_frames() -> tuple[tuple[str, bytes], ...]:
    """Return (dialect name, bytes of a frame) of every vector."""
    vectors = json.loads(VECTORS.read_text(encoding="utf-8"))
    return tuple((vector["dialect"], bytes.fromhex(vector["hex"])) for vector in vectors)


def _flip(random: Random, data: bytearray) -> None:
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _edge(random: Random, data: bytearray) -> None:
    data[random.randrange(len(data))] = random.choice(EDGES)


def _truncate(random: Random, data: bytearray) -> None:
    del data[random.randrange(len(data)) :]


def _remove(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data))
    del data[at : at + random.randint(1, 8)]


def _insert(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = random.randbytes(random.randint(1, INSERTED_MAX))


def _repeat(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data))
    data[at:at] = data[at : at + random.randint(1, INSERTED_MAX)]


def _lengths(random: Random, data: bytearray) -> None:
    """Move bytes between the parts of a body: the header's lengths change, their sum may not."""
    for at in random.sample((2, 3, 4, 8, 9, 10, 11), k=random.randint(1, 2)):
        if at < len(data):
            data[at] = (data[at] + random.choice((-2, -1, 1, 2, 24))) & 0xFF


MUTATIONS: Final[Sequence[Callable[[Random, bytearray], None]]] = (
    _flip,
    _edge,
    _truncate,
    _remove,
    _insert,
    _repeat,
    _lengths,
)


def mutated(random: Random, data: bytes) -> bytes:
    """Return `data` after 0 to MUTATIONS_MAX mutations."""
    result = bytearray(data)
    for _ in range(random.randint(0, MUTATIONS_MAX)):
        if result:
            random.choice(MUTATIONS)(random, result)
    return bytes(result)


def resized(data: bytes) -> bytes:
    """Return a frame whose header states the body it really has, so that its parts are reached."""
    if len(data) < 24:
        return data
    return data[:8] + (len(data) - 24).to_bytes(4) + data[12:]


def pieces(random: Random, data: bytes) -> list[bytes]:
    """Return `data` cut in random places; empty pieces are as legal as any."""
    cuts = sorted(random.randint(0, len(data)) for _ in range(random.randint(0, 6)))
    return [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]
