"""Turns: which courses wait, until when, and whose turn it is on a node.

A waiting vbucket stands in one heap by time until its time has come, then in the heap of the node
that has it. So whoever asks a node for its streams looks at those that are due there and at no
others, however many vbuckets there are.

Rules
- A vbucket's newest word counts: entries of a heap that it has left or that name another time are
  dropped when they come to the front.
- On a node those come first that need no turn (nothing of theirs has to be held), then by number.

Imports: nothing of ours.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.client.address import NodeAddress


class Turns:
    """The vbuckets that wait."""

    def __init__(
        self,
        vbuckets: Iterable[int],
        *,
        node_of: Callable[[int], NodeAddress | None],
        needs_turn: Callable[[int], bool],
    ) -> None:
        """All of them are due; ``node_of`` says where, None where no node has it."""
        self._node_of = node_of
        self._needs_turn = needs_turn
        self._until: dict[int, float] = dict.fromkeys(vbuckets, 0.0)
        self._later: list[tuple[float, int]] = []
        self._due: dict[NodeAddress | None, list[tuple[bool, int]]] = {}
        self.scatter()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._until)

    def wait(self, vbucket: int, until: float) -> None:
        """Let a vbucket wait, also one that waits already."""
        self._until[vbucket] = until
        heappush(self._later, (until, vbucket))

    def leave(self, vbucket: int) -> None:
        """It waits no longer."""
        self._until.pop(vbucket, None)

    def scatter(self) -> None:
        """The nodes have changed: find anew where everybody belongs."""
        self._due.clear()
        self._later = [(until, vbucket) for vbucket, until in self._until.items()]
        heapify(self._later)

    def first(self, node: NodeAddress | None, *, now: float) -> int | None:
        """Whose turn it is on a node; it stays in front until it leaves or waits again."""
        self._arrive(now)
        due = self._due.get(node)
        while due:
            vbucket = due[0][1]
            if self._until.get(vbucket, now + 1) <= now:
                return vbucket
            heappop(due)
        return None

    def next_at(self, *, now: float) -> float | None:
        """When the next one is due that is not yet; None: not by time."""
        self._arrive(now)
        later = self._later
        while later and self._until.get(later[0][1]) != later[0][0]:
            heappop(later)
        return later[0][0] if later else None

    def _arrive(self, now: float) -> None:
        later = self._later
        while later and later[0][0] <= now:
            until, vbucket = heappop(later)
            if self._until.get(vbucket) == until:
                due = self._due.setdefault(self._node_of(vbucket), [])
                heappush(due, (self._needs_turn(vbucket), vbucket))
