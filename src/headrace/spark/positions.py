"""Where a reader of vbuckets truly stands, and the three rules that keep it honest.

A producer deduplicates: a snapshot [A, B] that was streamed holds each key once, at its last seqno.
"I have everything up to s" is therefore true only when s is the end of a snapshot received whole: a
boundary. A token that claims a boundary where there was none is believed by a producer after a
failover, and a value is then wrong or missing for ever.

Rules.
1. Whole snapshots. A position moves only to the end of a whole snapshot (`Position.advanced`).
2. Rollback to a boundary. Told to go back to r, a position goes to the greatest boundary b <= r it
   holds that lies on the producer's history (`Position.rolled_back`); everything above b is
   withdrawn, the rows between b and r too: their snapshot straddles r and lacks older versions.
3. Positions beside the data. Where a position is stored in the transaction that stores its rows, it
   is exact. Where it is not (a Spark offset, planned before the rows are read), it is a `Claim`: a
   place that may be no boundary, and the last position known to be honest. Any change of branch
   since then returns to that one (`Claim.must_return`).

The epoch of a vbucket rises at every withdrawal. Order inside a vbucket is (epoch, seqno): seqno
alone would bring rolled-back rows back to life. A row is dead when a withdrawal of a later epoch
reaches below it (`Withdrawal.covers`).

64-bit numbers are decimal strings in JSON, uuids 16 hex digits; equal vectors give equal text.

Imports: history.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from headrace.history import (
    NO_SEQNO,
    ZERO,
    Boundaries,
    Boundary,
    BranchId,
    FailoverLog,
    ResumeToken,
    Seqno,
    SnapshotRange,
    VBucketId,
    canonical_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BOUNDARIES_KEPT: Final = 8
"""Boundaries a position carries: dense near the head, where rollbacks go."""
POSITION_FORMAT: Final = 1
VECTOR_FORMAT: Final = 1
EPOCH_MAX: Final = 2**63 - 1
NO_BOUNDARIES: Final = Boundaries(limit=BOUNDARIES_KEPT)


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """Everything of the vbucket above ``to_seqno`` and of an epoch before ``epoch`` is dead.

    ``from_seqno`` is where the reader stood, ``dead_branch`` the branch it stood on, ``branch`` the
    one that lives on.
    """

    vbucket: VBucketId
    epoch: int
    to_seqno: Seqno
    from_seqno: Seqno
    dead_branch: BranchId
    branch: BranchId

    def covers(self, *, epoch: int, seqno: int) -> bool:
        """Whether a row of this vbucket is dead because of this withdrawal."""
        return epoch < self.epoch and seqno > self.to_seqno


@dataclass(frozen=True, slots=True)
class Position:
    """A boundary of one vbucket: everything up to ``seqno`` is held, on the living branch."""

    token: ResumeToken = ZERO
    epoch: int = 0
    boundaries: Boundaries = NO_BOUNDARIES

    def __post_init__(self) -> None:
        """Refuse a token inside a snapshot: a position is honest or it is not one."""
        if not self.token.is_boundary:
            raise ValueError(f"position {self.token} is inside a snapshot, expected its end")
        if not 0 <= self.epoch <= EPOCH_MAX:
            raise ValueError(f"epoch {self.epoch}, allowed 0..{EPOCH_MAX}")

    @property
    def seqno(self) -> Seqno:
        """The last seqno held."""
        return self.token.seqno

    @property
    def branch(self) -> BranchId:
        """The newest branch of the history held."""
        return self.token.branch

    def accepted(self, log: FailoverLog) -> Position:
        """The same place, after the producer accepted it and told its log."""
        # Not `replace`: a turn does this for every vbucket, and a plain call costs a third.
        return Position(self.token.accepted(log), self.epoch, self.boundaries)

    def advanced(
        self,
        seqno: Seqno,
        log: FailoverLog,
        *,
        boundaries: Boundaries | None = None,
        purge_seqno: Seqno = NO_SEQNO,
        token: ResumeToken | None = None,
    ) -> Position:
        """The position after a snapshot that ends at ``seqno`` was received whole (rule 1).

        ``boundaries``: those held, where more than this one was passed. ``token``: one that says
        the same as the other arguments, to be used as it is.
        """
        if seqno < self.seqno:
            raise ValueError(f"position at seqno {self.seqno} cannot advance to {seqno}")
        if seqno == self.seqno:
            return self.accepted(log)
        if token is None or token.seqno != seqno or token.log != log:
            token = ResumeToken.at_boundary(log.newest.uuid, seqno, log)
            if purge_seqno:
                token = replace(token, purge_seqno=purge_seqno)
        held = boundaries or self.boundaries.recorded(seqno, log.branch_at(seqno))
        return Position(token, self.epoch, held)

    def boundary_below(self, seqno: Seqno, log: FailoverLog) -> Seqno:
        """The greatest boundary held at or below ``seqno`` on the producer's history (rule 2)."""
        return self.boundaries.greatest(seqno, log)

    def rolled_back(
        self, vbucket: VBucketId, to_seqno: Seqno, log: FailoverLog, *, epoch: int | None = None
    ) -> tuple[Position, Withdrawal]:
        """The position at the boundary ``to_seqno``, and what is withdrawn for it.

        The new epoch is the next one unless the caller has a later one. A place that is no
        boundary of ours is a ValueError: use `boundary_below` to find one.
        """
        held = {NO_SEQNO, self.seqno, *(mark.seqno for mark in self.boundaries)}
        if to_seqno not in held or to_seqno > self.seqno:
            raise ValueError(f"vbucket {vbucket} has no boundary at seqno {to_seqno}")
        later = self.epoch + 1 if epoch is None else max(epoch, self.epoch + 1)
        withdrawal = Withdrawal(vbucket, later, to_seqno, self.seqno, self.branch, log.newest.uuid)
        token = ZERO if to_seqno == NO_SEQNO else self.token.rolled_back(to_seqno)
        position = Position(token, later, self.boundaries.rolled_back(to_seqno))
        return position.accepted(log), withdrawal

    def reconciled(
        self, vbucket: VBucketId, log: FailoverLog, *, high: Seqno, epoch: int | None = None
    ) -> tuple[Position, Withdrawal | None]:
        """The position on the producer's history, and what is withdrawn if it was not on it.

        What a producer with this log and high seqno would say, said beforehand.
        """
        if self.seqno == NO_SEQNO:
            return self.accepted(log), None
        ours = self.token.log or FailoverLog.created(self.branch)
        shared = ours.shared_with(log, high=self.seqno, other_high=high)
        if shared >= self.seqno:
            return self.accepted(log), None
        return self.rolled_back(vbucket, self.boundary_below(shared, log), log, epoch=epoch)

    def forgotten_below(self, horizon: Seqno) -> Position:
        """Without boundaries below ``horizon``, whose older versions are no longer kept.

        A rollback below the horizon then finds no boundary and streams the vbucket from 0.
        """
        kept = tuple(mark for mark in self.boundaries if mark.seqno >= horizon)
        return replace(self, boundaries=replace(self.boundaries, marks=kept))

    def to_json(self) -> dict[str, object]:
        """The position as a JSON object."""
        return {
            "format": POSITION_FORMAT,
            "token": self.token.to_json(),
            "epoch": str(self.epoch),
            "boundaries": self.boundaries.to_json(),
        }

    @classmethod
    def from_json(cls, value: object) -> Position:
        """The position of an object written by `to_json`; anything else is a ValueError."""
        if not isinstance(value, dict) or value.get("format") != POSITION_FORMAT:
            raise ValueError(f"position {value!r:.80}, this release reads format {POSITION_FORMAT}")
        epoch = value.get("epoch")
        if not isinstance(epoch, str) or not epoch.isdecimal():
            raise ValueError(f"position epoch {epoch!r}, expected a decimal string")
        return cls(
            ResumeToken.from_json(value.get("token")),
            int(epoch),
            Boundaries.from_json(value.get("boundaries"), limit=BOUNDARIES_KEPT),
        )

    def to_text(self) -> str:
        """The position as canonical JSON."""
        return canonical_json(self.to_json())

    @classmethod
    def from_text(cls, text: str) -> Position:
        """The position of a text written by `to_text`; anything else is a ValueError."""
        return cls.from_json(json.loads(text))

    def packed(self) -> list[object]:
        """The position as few plain numbers, for the way from a task to its driver."""
        token = self.token
        return [
            token.branch,
            token.seqno,
            token.purge_seqno,
            self.epoch,
            [number for entry in token.log or () for number in (entry.uuid, entry.seqno)],
            [number for mark in self.boundaries for number in (mark.branch, mark.seqno)],
        ]

    @classmethod
    def unpacked(cls, numbers: tuple[int, int, int, int, list[int], list[int]]) -> Position:
        """What `packed` gave."""
        branch, seqno, purge_seqno, epoch, log, marks = numbers
        entries = zip(log[::2], log[1::2], strict=True)
        token = ResumeToken(
            BranchId(branch),
            Seqno(seqno),
            SnapshotRange.at(Seqno(seqno)),
            Seqno(purge_seqno),
            FailoverLog.of(*entries) if log else None,
        )
        places = zip(marks[::2], marks[1::2], strict=True)
        held = tuple(Boundary(BranchId(uuid), Seqno(at)) for uuid, at in places)
        return cls(token, epoch, Boundaries(held, limit=max(BOUNDARIES_KEPT, len(held))))


START: Final = Position()
"""Before the first seqno of any history."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A place that may be no boundary, with the last position known to be honest (rule 3).

    ``branch`` is the newest branch of the producer's log when the place was claimed. ``known``: the
    reader is known to stand exactly here; else it may hold more than is claimed.
    """

    branch: BranchId
    seqno: Seqno
    honest: Position
    known: bool = False

    def __post_init__(self) -> None:
        """Refuse a claim behind what is known."""
        if self.seqno < self.honest.seqno:
            raise ValueError(f"claim at {self.seqno} behind its boundary {self.honest.seqno}")

    @property
    def is_honest(self) -> bool:
        """Whether the place itself is known to be a boundary, and the reader to stand there."""
        return self.known and self.seqno == self.honest.seqno

    def must_return(self, log: FailoverLog) -> bool:
        """Whether a producer with this log sends the reader back, whatever it answers.

        An honest place is good as long as it lies on the producer's history. Another one is good
        only while the branch it was claimed on is still the newest.
        """
        if not self.is_honest:
            return log.newest.uuid != self.branch
        return self.seqno > NO_SEQNO and not log.holds(self.honest.branch, self.seqno)


@dataclass(frozen=True, slots=True)
class Reached:
    """Where a task stopped: its last boundary, and the last seqno it handed out rows for."""

    position: Position
    seqno: Seqno

    @classmethod
    def boundary(cls, position: Position) -> Reached:
        """A task that stopped at a boundary."""
        return cls(position, position.seqno)

    @property
    def claim(self) -> Claim:
        """The same as the beginning of the next batch."""
        return Claim(self.position.branch, self.seqno, self.position, known=True)


Vector = dict[VBucketId, Position]
"""Every vbucket's position; one that is missing stands at the start."""


def vector_text(vector: Mapping[VBucketId, Position]) -> str:
    """The vector as canonical JSON: equal vectors give equal text."""
    return canonical_json(
        {
            "format": VECTOR_FORMAT,
            "vbuckets": {str(vbucket): vector[vbucket].to_json() for vbucket in sorted(vector)},
        }
    )


def vector_of(text: str) -> Vector:
    """The vector of a text written by `vector_text`; anything else is a ValueError."""
    value = json.loads(text)
    if not isinstance(value, dict) or value.get("format") != VECTOR_FORMAT:
        raise ValueError(f"vector of another format, this release reads {VECTOR_FORMAT}")
    return {
        VBucketId(int(vbucket)): Position.from_json(position)
        for vbucket, position in value["vbuckets"].items()
    }


def lag(vector: Mapping[VBucketId, Position], highs: Mapping[VBucketId, Seqno]) -> int:
    """Seqnos between the vector and the source; a vbucket that is ahead counts as level."""
    return sum(max(0, high - vector.get(vbucket, START).seqno) for vbucket, high in highs.items())


def living(rows: Iterable[tuple[int, int]], withdrawals: Iterable[Withdrawal]) -> list[bool]:
    """For each (epoch, seqno) of one vbucket whether it lives: the plain form of the views."""
    covering = list(withdrawals)
    return [
        not any(withdrawal.covers(epoch=epoch, seqno=seqno) for withdrawal in covering)
        for epoch, seqno in rows
    ]
