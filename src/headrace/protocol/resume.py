"""How a position that a producer refuses becomes one that it accepts.

A consumer asks to resume at its token. The producer accepts, or answers with a seqno to roll back
to. This is the consumer's side of that talk for one stream: which position to ask for next, and,
once one is accepted, what of the data held is withdrawn.

Rules:

* ROLLBACK r > 0: ask at the greatest boundary held at or below r. The rows between the boundary
  and r go too: their snapshot straddles r and lacks older versions.
* ROLLBACK 0 means "start again" but often only "I do not know your branch": every older branch of
  our own log is tried first, each at a place we truly hold on it
  (`ResumeToken.on_older_branches`).
* Nothing is withdrawn before a position is accepted: if the link drops in between, the token is as
  good as it was.
* Every question is about an earlier place or an older branch than the one before, there are at
  most ``ATTEMPTS_MAX``, and the last is the beginning, which is always right. A producer that
  refuses even that has left the stream stuck, and the owner is told why.

Spec: docs/protocol.md, "Stream request"; open questions 2, 3, 9, 10.

Imports: history.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.history import (
    NO_BRANCH,
    NO_SEQNO,
    ZERO,
    Boundaries,
    BranchId,
    FailoverLog,
    ResumeToken,
    Seqno,
)

ATTEMPTS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """What an accepted resumption cost: everything in (``to_seqno``, ``from_seqno``]."""

    from_seqno: Seqno
    to_seqno: Seqno
    dead_branch: BranchId


@dataclass(frozen=True, slots=True)
class Resumed:
    """An accepted position, and what had to be withdrawn for it, if anything."""

    token: ResumeToken
    boundaries: Boundaries
    withdrawal: Withdrawal | None
    branch_changed: bool


class Resumption:
    """One stream's talk with a producer until it is accepted or stuck."""

    __slots__ = ("_older", "asked", "attempts", "boundaries", "held")

    def __init__(self, held: ResumeToken, boundaries: Boundaries) -> None:
        """Start by asking for exactly the position held."""
        self.held = held
        self.boundaries = boundaries
        self.asked = held
        self.attempts = 1
        self._older = held.on_older_branches(boundaries)

    def rolled_back(self, seqno: Seqno) -> str | None:
        """Choose what to ask next, now in ``asked``; or the reason why nothing is left to ask."""
        if self.asked == ZERO:
            return f"told to roll back to {seqno} from the beginning, request {self.attempts}"
        if self.attempts >= ATTEMPTS_MAX - 1:
            self.asked = ZERO
        elif self.asked.seqno == NO_SEQNO:
            # The token names a branch at 0: a producer that compares it there accepts none.
            self.asked = ZERO
        elif seqno == NO_SEQNO:
            self.asked = next(self._older, ZERO)
        else:
            self.asked = self._below(seqno)
        self.attempts += 1
        return None

    def _below(self, seqno: Seqno) -> ResumeToken:
        """The greatest boundary at or below ``seqno``, and in any case before the one asked."""
        boundary = self.boundaries.greatest(min(seqno, self.asked.seqno))
        if self.asked == self.asked.rolled_back(boundary):
            boundary = self.boundaries.greatest(Seqno(self.asked.seqno - 1))
        return self.asked.rolled_back(boundary)

    def accepted(self, log: FailoverLog) -> Resumed:
        """The position to stream from, and what is withdrawn."""
        token, held = self.asked.accepted(log), self.held
        withdrawal = None
        if token.seqno < held.seqno:
            withdrawal = Withdrawal(held.seqno, token.seqno, held.branch)
        return Resumed(
            token,
            self.boundaries.rolled_back(token.seqno),
            withdrawal,
            branch_changed=held.branch not in (NO_BRANCH, token.branch),
        )
