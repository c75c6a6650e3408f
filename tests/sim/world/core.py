"""The world: one heap of events, one source of chance, one trace.

Everything that happens is an event at a time; two runs of a seed make the same trace, line by line.
There are no threads, no real time and no other randomness.
"""

from __future__ import annotations

import heapq
from collections import Counter
from enum import Enum
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

START_SECONDS = 1_000.0
EPOCH_NANOSECONDS = 1_700_000_000_000_000_000
EVENTS_MAX = 60_000
"""Events of one run: a world that never rests is broken."""


class Situation(Enum):
    """Where bugs hide. A world that never comes there proves nothing about them."""

    FAILOVER = "failovers"
    MOVE = "moves that ended"
    CRASH_IN_COMMIT = "crashes inside a commit"
    LONG_SNAPSHOT = "snapshots of several items to a replica"
    PROMOTED_INSIDE = "promotions inside a snapshot"
    REPLICA_RESTARTED_INSIDE = "restarts of a replica inside a snapshot"
    REPLICA_CUT_INSIDE = "connections of a replica lost inside a snapshot"
    COPY_REPLACED = "copies replaced under their stream"
    REPLICA_ASKED = "streams asked of a replica"
    REPLICA_ASKED_INSIDE = "streams asked of a replica inside a snapshot"
    REPLICA_ASKED_FILLING = "streams asked of a replica in its first disk snapshot"
    CONSUMER_ROLLED_BACK = "rollbacks of a consumer"
    CONSUMER_CUT_INSIDE = "connections of a consumer lost inside a snapshot"
    CONSUMER_RESTARTED_INSIDE = "restarts of a consumer inside a snapshot"


class Violation(AssertionError):
    """Something happened that must not."""


class Timer:
    """Something that will happen unless it is cancelled."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[], None]) -> None:
        self.function: Callable[[], None] | None = function

    def cancel(self) -> None:
        self.function = None


class World:
    """Time, chance and what was seen."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now = START_SECONDS
        self.lines: list[str] = []
        self.events = 0
        self.counts: Counter[Situation] = Counter()
        self.checks: list[Callable[[], None]] = []
        self._heap: list[tuple[float, int, Timer]] = []
        self._number = 0

    def at(self, delay: float, function: Callable[[], None]) -> Timer:
        """Let something happen so many seconds from now."""
        timer = Timer(function)
        self._number += 1
        heapq.heappush(self._heap, (self.now + max(delay, 0.0), self._number, timer))
        return timer

    def say(self, who: str, what: str) -> None:
        """Write a line into the trace."""
        self.lines.append(f"{self.now - START_SECONDS:9.4f}  {who:<12} {what}")

    def count(self, situation: Situation) -> None:
        """Note that a rare situation came about."""
        self.counts[situation] += 1

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def delay(self, least: float = 0.0005, most: float = 0.02) -> float:
        return self.random.uniform(least, most)

    def run_until(self, end: float) -> None:
        """Let everything happen that is due before a time, checking after each event."""
        while self._heap and self._heap[0][0] <= end:
            self._step()
        self.now = max(self.now, end)

    def _step(self) -> None:
        at, _, timer = heapq.heappop(self._heap)
        if timer.function is None:
            return
        self.now = max(self.now, at)
        self.events += 1
        if self.events > EVENTS_MAX:
            raise Violation(f"the world did not come to rest within {EVENTS_MAX} events")
        timer.function()
        for check in self.checks:
            check()
