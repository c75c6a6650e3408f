"""Notices: what a manager did by itself, as sentences a person reads; each is taken once.

A flush of a node ends hundreds of streams at the same moment, for the same reason: they are one
sentence. What nobody takes is kept up to `NOTICES_MAX` sentences; of the rest the number is told.

Imports: client.changes.
"""

from __future__ import annotations

from typing import Final

from headrace.client.changes import vbucket_names

NOTICES_MAX: Final = 64


class Notices:
    """Sentences that wait for their reader."""

    def __init__(self) -> None:
        """Nothing happened yet."""
        self._found: dict[tuple[str, str, str], set[int]] = {}
        self._left_out = 0

    def add(self, producer: str, consumer: str, vbucket: int, text: str) -> None:
        """Note what happened to the stream of a vbucket between two nodes."""
        place = (producer, consumer, text)
        if place in self._found:
            self._found[place].add(vbucket)
        elif len(self._found) < NOTICES_MAX:
            self._found[place] = {vbucket}
        else:
            self._left_out += 1

    def take(self) -> list[str]:
        """What happened since the last call; it is forgotten here."""
        taken = [
            f"{producer} -> {consumer}, vb {vbucket_names(vbuckets)}: {text}"
            for (producer, consumer, text), vbuckets in self._found.items()
        ]
        if self._left_out:
            taken.append(f"and {self._left_out} more of the kind")
        self._found, self._left_out = {}, 0
        return taken
