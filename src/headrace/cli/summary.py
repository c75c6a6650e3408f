"""Counts instead of frames: what was said, how often, in which direction, and how it was answered.

Imports: capture, cli.texts.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import click

from headrace.capture.conversation import Direction
from headrace.cli.texts import size_text, status_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.capture.conversation import Connection
    from headrace.capture.walk import Item

_WAYS: Final = (Direction.CLIENT_TO_SERVER, Direction.SERVER_TO_CLIENT)


class Summary:
    """Counts items; `lines` tells the counts."""

    def __init__(self) -> None:
        """Start at nothing."""
        self._connections: dict[int, Connection] = {}
        self._frames: Counter[tuple[str, bool, Direction]] = Counter()
        self._numbers: dict[str, int] = {}
        self._refusals: Counter[tuple[str, int]] = Counter()
        self._bytes: Counter[Direction] = Counter()
        self._faults = 0

    def count(self, item: Item) -> None:
        """Add one item."""
        self._connections.setdefault(item.connection.number, item.connection)
        self._bytes[item.direction] += len(item.data)
        self._faults += item.error is not None
        frame = item.frame
        if frame is None:
            return
        self._numbers[frame.name] = frame.opcode
        self._frames[frame.name, frame.is_reply, item.direction] += 1
        if frame.is_reply and frame.status:
            self._refusals[frame.name, frame.status] += 1

    def lines(self) -> Iterator[str]:
        """Yield the table of counts."""
        heading = f"{'':<26}{'client to server':>20}{'server to client':>20}"
        yield click.style(heading, bold=True)
        yield click.style(f"{'opcode':<26}" + _columns(["requests", "replies"] * 2), bold=True)
        for name in sorted(self._numbers, key=lambda known: (self._numbers[known], known)):
            counts = [self._frames[name, reply, way] for way in _WAYS for reply in (False, True)]
            yield f"{name:<26}" + _columns([str(count or "-") for count in counts])
        totals = [
            sum(count for (_, *column), count in self._frames.items() if column == [reply, way])
            for way in _WAYS
            for reply in (False, True)
        ]
        yield click.style(f"{'all':<26}" + _columns([str(total) for total in totals]), bold=True)
        yield from self._rest()

    def _rest(self) -> Iterator[str]:
        if self._refusals:
            yield ""
            yield click.style("replies that are not ok", bold=True)
            for (name, status), count in sorted(self._refusals.items()):
                yield f"{name:<26}{status_name(status):<28}{count:>6}"
        yield ""
        connections = len(self._connections)
        parts = [f"{connections} connection{'' if connections == 1 else 's'}"]
        parts += [
            f"{size_text(self._bytes[way])} from the {way.value}"
            for way in _WAYS
            if self._bytes[way]
        ]
        if self._faults:
            parts.append(f"{self._faults} that could not be read")
        yield ", ".join(parts)


def _columns(texts: list[str]) -> str:
    return "".join(f"{text:>{width}}" for text, width in zip(texts, (11, 9, 11, 9), strict=True))
