"""Positions: an unchangeable map of vbuckets to where they stand, cheap to make anew.

A consumer asks for its tokens after every batch, and a batch moves a few of a thousand vbuckets.
The map is made of parts of `PART` vbuckets; one with some positions changed shares all parts with
the old one but those that hold them.

Imports: protocol.talk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.protocol.talk import Position

PART: Final = 32


class Positions(Mapping[int, "Position"]):
    """Where vbuckets stand."""

    __slots__ = ("_parts", "_size", "greatest", "least")

    def __init__(self, positions: Mapping[int, Position]) -> None:
        """``least`` and ``greatest`` are the vbuckets at the ends, None of an empty map."""
        self._parts: dict[int, dict[int, Position]] = {}
        self._size = 0
        self.least: int | None = None
        self.greatest: int | None = None
        self._take(positions)

    def _take(self, positions: Mapping[int, Position]) -> None:
        fresh: set[int] = set()
        for vbucket, position in positions.items():
            number = vbucket // PART
            if number not in fresh:
                fresh.add(number)
                self._parts[number] = dict(self._parts.get(number, ()))
            part = self._parts[number]
            self._size += vbucket not in part
            part[vbucket] = position
            self.least = vbucket if self.least is None else min(self.least, vbucket)
            self.greatest = vbucket if self.greatest is None else max(self.greatest, vbucket)

    def updated(self, positions: Mapping[int, Position]) -> Positions:
        """With these in the place of the old ones."""
        made = Positions({})
        made._parts = dict(self._parts)
        made._size, made.least, made.greatest = self._size, self.least, self.greatest
        made._take(positions)
        return made

    def __getitem__(self, vbucket: int) -> Position:
        return self._parts[vbucket // PART][vbucket]

    def __iter__(self) -> Iterator[int]:
        for number in sorted(self._parts):
            yield from sorted(self._parts[number])

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"Positions({dict(self)!r})"
