"""Callbacks that wait for a seqno to become durable.

Imports: nothing of ours.
"""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Waiting:
    """Who waits for which seqno of one vbucket; used under the bucket's lock."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Callable[[bool], None]]] = []
        self._order = count()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._heap)

    def add(self, seqno: int, callback: Callable[[bool], None]) -> None:
        """Wait for a seqno."""
        heapq.heappush(self._heap, (seqno, next(self._order), callback))

    def up_to(self, seqno: int) -> list[Callable[[bool], None]]:
        """Take those that wait for this seqno or a lower one."""
        ready = []
        while self._heap and self._heap[0][0] <= seqno:
            ready.append(heapq.heappop(self._heap)[2])
        return ready

    def above(self, seqno: int) -> list[Callable[[bool], None]]:
        """Take those that wait for a higher seqno: it will never come."""
        lost = [callback for wanted, _, callback in self._heap if wanted > seqno]
        self._heap = [entry for entry in self._heap if entry[0] <= seqno]
        heapq.heapify(self._heap)
        return lost
