"""Spark's offsets: every vbucket's claim, with what is known to be honest, as canonical JSON.

Spark plans a micro-batch by its end before anything is read, keeps the end in its log, and
compares offsets as text. Our end is therefore a claim (`positions.Claim`): where the batch is
planned to stop, which may lie inside a snapshot, together with the last boundary known when it was
planned.

    {"format": 1, "plan": 7, "vbuckets": {"0": "...", "1": "..."}}

``plan`` counts the offsets made; a task's report names the plan it belongs to. A vbucket is one
text, its parts divided by ``|``: the claim (branch@seqno); the epoch; the honest seqno~purge seqno;
the failover log, newest first, and the boundaries, oldest first (each branch@seqno); the seqno the
batch begins at; whether the claim is known, claimed or pending; and, where this batch begins with a
rollback, where it fell from (branch@seqno).

Rules.
- Numbers are decimal and unbounded, branches hex: nothing is rounded, 2**64-1 is itself.
- Equal offsets give equal text: vbuckets in order, no spaces, one way to write each.
- The initial offset is a constant without vbuckets: Spark does not keep it, so it may hold nothing
  that would be different after a crash.

Imports: errors, history, spark.positions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from headrace.errors import ConfigError
from headrace.history import (
    NO_BRANCH,
    NO_SEQNO,
    ZERO,
    Boundaries,
    Boundary,
    BranchId,
    FailoverEntry,
    FailoverLog,
    ResumeToken,
    Seqno,
    SnapshotRange,
    VBucketId,
)
from headrace.spark.positions import Claim, Position

OFFSET_FORMAT: Final = 1
_STANDINGS: Final = {(True, False): "known", (False, False): "claimed", (False, True): "pending"}
_STANDING_OF: Final = {word: flags for flags, word in _STANDINGS.items()}
MARKS_KEPT: Final = 4


@dataclass(frozen=True, slots=True)
class Fall:
    """Where a planned rollback fell from."""

    branch: BranchId
    seqno: Seqno


@dataclass(frozen=True, slots=True)
class Entry:
    """One vbucket of an offset: where its batch ends by plan, and what is known.

    ``claim.honest`` is the last boundary known when the batch was planned; with ``fall`` the batch
    begins by going back to it. ``begin_seqno`` is where the batch begins. ``pending``: the batch
    has work for this vbucket, whose report is not in yet.
    """

    claim: Claim
    begin_seqno: Seqno
    pending: bool = False
    fall: Fall | None = None

    def to_text(self) -> str:
        """One line, one way to write it."""
        claim, honest = self.claim, self.claim.honest
        return "|".join(
            [
                _place(claim.branch, claim.seqno),
                str(honest.epoch),
                f"{honest.seqno}~{honest.token.purge_seqno}",
                ",".join(_place(entry.uuid, entry.seqno) for entry in honest.token.log or ()),
                ",".join(_place(mark.branch, mark.seqno) for mark in honest.boundaries),
                str(self.begin_seqno),
                _STANDINGS[claim.known, self.pending],
                _place(self.fall.branch, self.fall.seqno) if self.fall else "",
            ]
        )

    @classmethod
    def from_text(cls, text: str) -> Entry:
        """What `to_text` wrote; anything else is a ValueError."""
        claim, epoch, seqno, log, marks, begin, standing, fall = text.split("|")
        known, pending = _STANDING_OF[standing]
        branch, end = _parse(claim)
        entries = tuple(
            FailoverEntry(BranchId(uuid), Seqno(at)) for uuid, at in map(_parse, _split(log))
        )
        told = FailoverLog(entries) if entries else None
        boundaries = Boundaries(
            tuple(Boundary(BranchId(uuid), Seqno(at)) for uuid, at in map(_parse, _split(marks))),
            limit=max(MARKS_KEPT, 2),
        )
        honest, purge_seqno = (Seqno(int(one)) for one in seqno.split("~"))
        newest = told.newest.uuid if told else NO_BRANCH
        if honest == NO_SEQNO and told is None:
            token = ZERO
        else:
            token = ResumeToken(newest, honest, SnapshotRange.at(honest), purge_seqno, told)
        position = Position(token, int(epoch), boundaries)
        return cls(
            Claim(BranchId(branch), Seqno(end), position, known),
            Seqno(int(begin)),
            pending,
            Fall(BranchId(_parse(fall)[0]), Seqno(_parse(fall)[1])) if fall else None,
        )


@dataclass(frozen=True, slots=True)
class Offset:
    """All vbuckets of one planned end."""

    plan: int = 0
    entries: dict[VBucketId, Entry] = field(default_factory=dict)

    @property
    def is_initial(self) -> bool:
        """Whether nothing was planned yet."""
        return self.plan == 0

    def to_json(self) -> dict[str, object]:
        """The offset as Spark keeps it."""
        return {
            "format": OFFSET_FORMAT,
            "plan": self.plan,
            "vbuckets": {str(vb): self.entries[vb].to_text() for vb in sorted(self.entries)},
        }

    @classmethod
    def from_json(cls, value: object) -> Offset:
        """What `to_json` wrote; anything else is a ConfigError: the checkpoint is not ours."""
        if not isinstance(value, dict) or value.get("format") != OFFSET_FORMAT:
            raise ConfigError(
                f"the Spark checkpoint holds an offset {str(value)[:80]!r}, this release reads "
                f"format {OFFSET_FORMAT}"
            )
        try:
            return cls(
                int(value["plan"]),
                {
                    VBucketId(int(vb)): Entry.from_text(text)
                    for vb, text in value["vbuckets"].items()
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"an offset of the Spark checkpoint cannot be read: {error}"
            ) from error


INITIAL: Final = Offset()


def thinned(position: Position) -> Position:
    """The position with as few boundaries as an offset keeps."""
    boundaries = Boundaries(limit=MARKS_KEPT)
    for mark in position.boundaries:
        boundaries = boundaries.recorded(mark.seqno, mark.branch)
    return Position(position.token, position.epoch, boundaries)


def _place(branch: int, seqno: int) -> str:
    return f"{branch:x}@{seqno}"


def _parse(text: str) -> tuple[int, int]:
    branch, mark, seqno = text.partition("@")
    if not mark:
        raise ValueError(f"place {text!r}, expected branch@seqno")
    return int(branch, 16), int(seqno)


def _split(text: str) -> list[str]:
    return text.split(",") if text else []
