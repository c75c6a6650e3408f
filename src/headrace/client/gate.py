"""Gate: hand out only what is on disk, so that a crash of the node cannot take it back.

A node announces changes from memory; one that crashes before it wrote them starts a new branch and
consumers are rolled back. With the gate a batch or change waits until every copy of its vbuckets
says (OBSERVE_SEQNO) that its seqnos are persisted. What is rolled back meanwhile is never seen.

Imports: nothing of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

ASK_SECONDS: Final = 0.05
"""How often the nodes are asked while something waits."""


class Gate:
    """What is known to be on disk, and the question for more."""

    def __init__(self, ask: Callable[[dict[int, int]], dict[int, int]]) -> None:
        """``ask`` takes vbucket -> branch and gives vbucket -> persisted seqno."""
        self._ask = ask
        self._persisted: dict[int, int] = {}
        self._asked_at: float | None = None

    def allows(self, ceilings: dict[int, int]) -> bool:
        """Whether everything up to these seqnos is on disk."""
        known = self._persisted
        return all(known.get(vbucket, 0) >= seqno for vbucket, seqno in ceilings.items())

    def ask(self, branches: dict[int, int], *, now: float) -> bool:
        """Ask about branches, unless that was done a moment ago; whether it was asked."""
        if self._asked_at is not None and now - self._asked_at < ASK_SECONDS:
            return False
        self._asked_at = now
        self._persisted.update(self._ask(branches))
        return True

    def forget(self, vbucket: int) -> None:
        """A vbucket has a new history: what was known of it is void."""
        self._persisted.pop(vbucket, None)
