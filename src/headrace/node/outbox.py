"""The bytes of one pull: parts in order, and how much may still be added.

Two limits are obeyed at once: what is left of the pull (the smaller of the caller's budget and the
flow control window) and what is left of the present stream's turn. Each may be overshot by one
message, as the protocol allows a producer to overshoot its window. The end of either
is not used up to the last byte: a read for a hundred bytes costs what one for a megabyte does.

Imports: protocol.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from headrace.protocol.flow import PREPARE_SURPLUS

Part: TypeAlias = bytes | memoryview

REST_SHARE: Final = 128
"""Less than this part of a pull is not worth another look at the store: nothing is left."""


class Outbox:
    """What one pull sends."""

    __slots__ = ("_left", "_rest", "_turn", "counted", "parts", "size")

    def __init__(self, limit: int) -> None:
        """Start empty, with room for ``limit`` bytes."""
        self.parts: list[Part] = []
        self.size = 0
        self.counted = 0
        self._left = limit
        self._turn = limit
        self._rest = limit // REST_SHARE

    @property
    def room(self) -> int:
        """Bytes that may still be added now; at 0 and below, nothing."""
        room = min(self._left, self._turn)
        return 0 if room < self._rest and self.size else room

    @property
    def is_full(self) -> bool:
        """Whether the pull, not only the turn, is used up."""
        return self._left <= 0 or (self._left < self._rest and self.size > 0)

    def begin_turn(self, limit: int) -> None:
        """Let the next stream add ``limit`` bytes."""
        self._turn = limit

    def add(self, part: Part, *, prepares: int = 0) -> None:
        """Add whole messages; each PREPARE among them counts more than its size."""
        size = len(part)
        counted = size + prepares * PREPARE_SURPLUS
        self.parts.append(part)
        self.size += size
        self.counted += counted
        self._left -= counted
        self._turn -= counted
