"""Stillness: how long a copy that lacks something has not moved, and when that is too long.

Nobody waits for ever: a stream that brings nothing although there is something to bring is closed
and added again. To take a slow copy for a still one would cost more than it helps, so there are two
limits.

Rules
- A copy that changed in any way since the last look has moved.
- A producer reads for a few streams of a connection at a time; the others wait in line. While
  others move on the same connection the longer limit counts.
- The time before a look is counted only if there was a look before it: who was not asked, or had
  everything, has not been still.

Imports: nothing of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable

STILL_SECONDS: Final = 30.0
STILL_SECONDS_IN_LINE: Final = 300.0
"""The limit while others move on the same connection."""


class Stillness:
    """Since when one copy stands where it stands."""

    __slots__ = ("_alone_since", "_line", "_place", "_since")

    def __init__(self) -> None:
        """Nothing was seen yet."""
        self._place: Hashable = None
        self._line = 0
        self._since: float | None = None
        self._alone_since = 0.0

    def reset(self) -> None:
        """Begin anew: it has everything, or nobody could look."""
        self._since = None

    def look(self, now: float, place: Hashable, line: int) -> bool:
        """Note where a copy stands that lacks something; whether it has been still for too long.

        ``place`` is whatever changes when it moves, ``line`` when others of its connection do.
        """
        if self._since is None or place != self._place:
            self._since = self._alone_since = now
            self._place, self._line = place, line
            return False
        if line != self._line:
            self._line, self._alone_since = line, now
        return (
            now - self._alone_since >= STILL_SECONDS or now - self._since >= STILL_SECONDS_IN_LINE
        )

    def seconds(self, now: float) -> float:
        """How long it has been still."""
        return 0.0 if self._since is None else now - self._since
