"""What was seen while the demo ran: samples of both ends, turns, and marks, in order of time.

Times are seconds since the beginning. A sample holds what the node has (high seqnos), what the
tables have (the published vector) and what was written and landed until then. The record is
limited: when it is full every second sample goes, and later ones are taken half as often.

Imports: nothing of ours.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SAMPLES_MAX: Final = 2_000
MARKS_MAX: Final = 1_000
TURNS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Both ends at one moment."""

    time: float
    written: int
    landed: int
    highs: Mapping[int, int]
    positions: Mapping[int, int]

    @property
    def lags(self) -> dict[int, int]:
        """Seqnos the tables do not have yet, per vbucket."""
        return {vb: max(0, high - self.positions.get(vb, 0)) for vb, high in self.highs.items()}

    @property
    def lag(self) -> int:
        """Seqnos the tables do not have yet."""
        return sum(self.lags.values())

    def worst(self, count: int) -> list[tuple[int, int]]:
        """The vbuckets that are furthest behind, with their lag."""
        return sorted(self.lags.items(), key=lambda one: (-one[1], one[0]))[:count]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSeen:
    """A turn of the pipeline, when it had been published."""

    time: float
    number: int
    rows: int
    bytes: int
    files: int
    seconds: float
    rollbacks: int


@dataclass(frozen=True, slots=True)
class Mark:
    """Something to point at on a time line."""

    time: float
    kind: str
    text: str


@dataclass
class Record:
    """Everything seen; may be added to from any thread."""

    samples: list[Sample] = field(default_factory=list)
    turns: list[TurnSeen] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    _every: int = 1
    _skipped: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add_sample(self, sample: Sample) -> None:
        """Keep a sample, or pass over it where the record has become coarse."""
        with self._lock:
            self._skipped += 1
            if self._skipped < self._every:
                return
            self._skipped = 0
            self.samples.append(sample)
            if len(self.samples) >= SAMPLES_MAX:
                del self.samples[1::2]
                self._every *= 2

    def add_turn(self, turn: TurnSeen) -> None:
        """Keep a turn."""
        with self._lock:
            if len(self.turns) < TURNS_MAX:
                self.turns.append(turn)

    def mark(self, time: float, kind: str, text: str) -> None:
        """Keep a mark; the first ones stay when there are too many."""
        with self._lock:
            if len(self.marks) < MARKS_MAX:
                self.marks.append(Mark(time, kind, text))

    def lag_peak(self) -> int:
        """The greatest lag of all samples."""
        return max((sample.lag for sample in self.samples), default=0)


def rates(samples: Sequence[Sample], name: str) -> list[tuple[float, float]]:
    """Change per second of a counter between samples."""
    found = []
    for before, after in pairwise(samples):
        seconds = after.time - before.time
        if seconds > 0:
            found.append((after.time, (getattr(after, name) - getattr(before, name)) / seconds))
    return found
