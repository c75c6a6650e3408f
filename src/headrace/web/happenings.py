"""Happenings: what took place between two pictures, as sentences; and what failovers took away.

Rules
- A vbucket whose newest branch is another one failed over; it lost at least what the last picture
  had above the seqno where the new branch began, or exactly what the lever said that did it. A
  failover log does not keep that number, so it is kept here, for the branch diagram: `Losses`.
- Many alike at once are told a few at a time and then counted.

Imports: web.picture.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.web.picture import ABSENT, STATES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.web.picture import Json, Picture

KEPT_MAX: Final = 100
"""Happenings that are remembered."""
PER_LOOK_MAX: Final = 12
"""Happenings of one kind told one by one between two pictures."""
LOSSES_MAX: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something that took place; ``kind`` chooses how it is shown."""

    number: int
    time: float
    kind: str
    text: str
    vbucket: int | None = None

    def to_json(self) -> Json:
        """As the page reads it."""
        return {
            "number": self.number,
            "time": round(self.time, 3),
            "kind": self.kind,
            "text": self.text,
            "vbucket": self.vbucket,
        }


class Losses:
    """How far branches reached that a failover ended: (vbucket, new branch) -> seqno."""

    def __init__(self) -> None:
        """Nothing was lost yet."""
        self._reached: OrderedDict[tuple[int, str], int] = OrderedDict()
        self._told: OrderedDict[tuple[int, str], int] = OrderedDict()

    def note(self, vbucket: int, branch: str, reached: int) -> None:
        """The history that ``branch`` replaced was seen up to that seqno."""
        self._reached[vbucket, branch] = reached
        while len(self._reached) > LOSSES_MAX:
            self._reached.popitem(last=False)

    def tell(self, vbucket: int, branch: str, reached: int) -> None:
        """Somebody knows how far the predecessor of ``branch`` reached, to the seqno."""
        self._told[vbucket, branch] = reached
        while len(self._told) > LOSSES_MAX:
            self._told.popitem(last=False)

    def told(self, vbucket: int, branch: str) -> int | None:
        """What somebody knew, once."""
        return self._told.pop((vbucket, branch), None)

    def of(self, vbucket: int) -> dict[str, int]:
        """New branch -> the seqno its predecessor was seen at."""
        return {branch: seqno for (one, branch), seqno in self._reached.items() if one == vbucket}


class Chronicle:
    """The happenings of one bucket."""

    def __init__(self) -> None:
        """Nothing happened yet."""
        self.losses = Losses()
        self._kept: deque[Happening] = deque(maxlen=KEPT_MAX)
        self._number = 0

    def add(self, time: float, kind: str, text: str, vbucket: int | None = None) -> Happening:
        """Remember something."""
        self._number += 1
        made = Happening(number=self._number, time=time, kind=kind, text=text, vbucket=vbucket)
        self._kept.append(made)
        return made

    def all(self) -> list[Happening]:
        """What is remembered, oldest first."""
        return list(self._kept)

    def compare(self, old: Picture, new: Picture) -> list[Happening]:
        """Remember, and give, what took place between two pictures."""
        found = []
        for kind, several, sentences in (
            ("failover", "vbuckets failed over", self._failovers(old, new)),
            ("state", "vbuckets changed their state", _states(old, new)),
            ("purge", "vbuckets were purged", _purges(old, new)),
            ("joined", "connections came", _joined(old, new)),
            ("left", "connections went", _joined(new, old, word="left")),
        ):
            told = list(sentences)
            for text, vbucket in told[:PER_LOOK_MAX]:
                found.append(self.add(new.time, kind, text, vbucket))
            if len(told) > PER_LOOK_MAX:
                more = f"{len(told) - PER_LOOK_MAX} more {several}"
                found.append(self.add(new.time, kind, more))
        return found

    def _failovers(self, old: Picture, new: Picture) -> Iterator[tuple[str, int]]:
        if old.branches == new.branches:
            return
        for vbucket, (was, branch) in enumerate(zip(old.branches, new.branches, strict=False)):
            if was == branch or not was or not branch:
                continue
            began = new.columns["began"][vbucket]
            exact = self.losses.told(vbucket, branch)
            high = old.columns["high"][vbucket] if exact is None else exact
            self.losses.note(vbucket, branch, max(high, began))
            words = _loss(max(0, high - began), exact=exact is not None)
            yield (
                f"vbucket {vbucket} failed over at seqno {began:,}: {words}, "
                f"branch {branch[:8]} began",
                vbucket,
            )


def _loss(lost: int, *, exact: bool) -> str:
    if exact:
        return f"{lost:,} seqnos lost"
    return f"at least {lost:,} seqnos lost" if lost else "no loss was seen"


def _states(old: Picture, new: Picture) -> Iterator[tuple[str, int]]:
    before, after = old.columns["state"], new.columns["state"]
    if before == after:
        return
    for vbucket, (was, state) in enumerate(zip(before, after, strict=False)):
        if was != state:
            word = "gone" if state == ABSENT else STATES[state]
            yield f"vbucket {vbucket} is {word}, was {STATES[was]}", vbucket


def _purges(old: Picture, new: Picture) -> Iterator[tuple[str, int]]:
    before, after = old.columns["purge"], new.columns["purge"]
    if before == after:
        return
    for vbucket, (was, seqno) in enumerate(zip(before, after, strict=False)):
        if seqno > was:
            yield f"vbucket {vbucket} was purged up to seqno {seqno:,}", vbucket


def _joined(old: Picture, new: Picture, word: str = "connected") -> Iterator[tuple[str, None]]:
    known = {one.key for one in old.connections}
    for one in new.connections:
        if one.key not in known:
            yield f"{one.name or one.peer or one.key} {word}", None
