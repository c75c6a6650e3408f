"""The words of a vbucket's history and their pure rules: branch, snapshot, token, boundary.

A vbucket's history is a line of seqnos that may fork: a node that takes over after a failure
names a new branch (a random uuid) that begins after the last seqno it is sure of. The failover log
lists those branches, newest first. A consumer keeps a resume token: the branch, the last seqno
it holds and the snapshot that seqno lies in. A producer deduplicates inside a snapshot, so a
consumer has "everything up to s" only when s is the end of a complete snapshot: a boundary.

Rules and invariants:

* A failover log has 1 to ``LOG_ENTRIES_MAX`` entries, no uuid is 0, and seqnos never rise from
  newest to oldest. Entry (u, s) says "the history named u begins after seqno s".
* A token always satisfies ``snapshot.start <= seqno <= snapshot.end`` and is in its shortest true
  form: at the end of a snapshot the snapshot is [seqno, seqno]. Equal positions are equal tokens.
* A marker moves no token; the first item inside it does.
* Only complete snapshot ends are boundaries. A consumer told to roll back to r goes to its
  greatest boundary at or below r, because the snapshot that straddles r lacks older versions of
  its keys.
* Everything is a value: a rule returns a new log, token or set of boundaries. Randomness (a new
  branch's uuid) comes in as an argument. A broken rule is a ``ValueError``; the caller says whose
  fault it was.

Spec: docs/protocol.md, "Failover log", "Stream request", "Snapshots".

Imports: nothing of ours.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NewType, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

VBucketId = NewType("VBucketId", int)
Seqno = NewType("Seqno", int)
BranchId = NewType("BranchId", int)

NO_SEQNO: Final = Seqno(0)
NO_BRANCH: Final = BranchId(0)
SEQNO_MAX: Final = Seqno(0xFFFF_FFFF_FFFF_FFFF)
LOG_ENTRIES_MAX: Final = 25
BOUNDARIES_MAX: Final = 32
TOKEN_FORMAT: Final = 1
BOUNDARIES_FORMAT: Final = 1
# 48 bits, so that a uuid of ours survives a JSON reader that keeps numbers as doubles.
BRANCH_ID_BITS: Final = 48

JsonObject: TypeAlias = dict[str, object]


@dataclass(frozen=True, slots=True, order=True)
class SnapshotRange:
    """The seqnos a snapshot spans, both ends included."""

    start: Seqno
    end: Seqno

    def __post_init__(self) -> None:
        """Refuse a range that runs backwards or leaves 64 bits."""
        if not 0 <= self.start <= self.end <= SEQNO_MAX:
            raise ValueError(
                f"snapshot {self.start}..{self.end}, allowed 0 <= start <= end <= {SEQNO_MAX}"
            )

    def __contains__(self, seqno: int) -> bool:
        """Whether the seqno lies in the range."""
        return self.start <= seqno <= self.end

    def __str__(self) -> str:
        """As people read it: ``3..9``."""
        return f"{self.start}..{self.end}"

    @classmethod
    def at(cls, seqno: Seqno) -> SnapshotRange:
        """The range of a complete snapshot seen from its end."""
        return cls(seqno, seqno)


@dataclass(frozen=True, slots=True)
class FailoverEntry:
    """One branch: the history named ``uuid`` begins after ``seqno``."""

    uuid: BranchId
    seqno: Seqno

    def __post_init__(self) -> None:
        """Refuse the uuid that means "none" and numbers that leave 64 bits."""
        if not 0 < self.uuid <= SEQNO_MAX:
            raise ValueError(f"branch uuid {self.uuid:#x}, allowed 1..{SEQNO_MAX:#x}")
        if not 0 <= self.seqno <= SEQNO_MAX:
            raise ValueError(f"branch seqno {self.seqno}, allowed 0..{SEQNO_MAX}")

    def __str__(self) -> str:
        """As people read it: ``0000f58bcdd94bd5@12``."""
        return f"{self.uuid:016x}@{self.seqno}"


@dataclass(frozen=True, slots=True)
class FailoverLog:
    """The branches of a vbucket's history, newest first."""

    entries: tuple[FailoverEntry, ...]

    def __post_init__(self) -> None:
        """Refuse an empty log, one over the limit, and one whose seqnos rise with age."""
        if not 1 <= len(self.entries) <= LOG_ENTRIES_MAX:
            raise ValueError(
                f"failover log of {len(self.entries)} entries, allowed 1..{LOG_ENTRIES_MAX}"
            )
        for newer, older in itertools.pairwise(self.entries):
            if older.seqno > newer.seqno:
                raise ValueError(f"failover entry {older} is older than {newer} but begins later")

    def __iter__(self) -> Iterator[FailoverEntry]:
        """Newest to oldest, as on the wire."""
        return iter(self.entries)

    def __len__(self) -> int:
        """Number of branches."""
        return len(self.entries)

    def __str__(self) -> str:
        """As people read it, newest first."""
        return " ".join(str(entry) for entry in self.entries)

    @property
    def newest(self) -> FailoverEntry:
        """The branch that is being written."""
        return self.entries[0]

    @property
    def oldest(self) -> FailoverEntry:
        """The oldest branch still remembered."""
        return self.entries[-1]

    # -- how a log comes to be ------------------------------------------------------------------

    @classmethod
    def of(cls, *pairs: tuple[int, int]) -> FailoverLog:
        """The log with these (uuid, seqno) pairs, newest first."""
        return cls(tuple(FailoverEntry(BranchId(u), Seqno(s)) for u, s in pairs))

    @classmethod
    def created(cls, uuid: BranchId) -> FailoverLog:
        """The log of a new, empty vbucket in any state; also of one reset to 0."""
        return cls((FailoverEntry(uuid, NO_SEQNO),))

    @classmethod
    def loaded(cls, pairs: Iterable[tuple[int, int]]) -> tuple[FailoverLog, int]:
        """What is sound of a log read from a disk or a peer, and how many entries were not.

        Dropped: uuid 0, and a seqno above that of the newer neighbour that was kept. Entries past
        the limit are the oldest and are dropped too, but not counted: a peer may remember more
        than we do. Nothing sound left: ValueError.
        """
        kept: list[FailoverEntry] = []
        erased = 0
        for uuid, seqno in pairs:
            if uuid == NO_BRANCH or (kept and seqno > kept[-1].seqno):
                erased += 1
            else:
                kept.append(FailoverEntry(BranchId(uuid), Seqno(seqno)))
        if not kept:
            raise ValueError(f"failover log without a sound entry, {erased} erased")
        return cls(tuple(kept[:LOG_ENTRIES_MAX])), erased

    # -- what happens to it ---------------------------------------------------------------------

    def promoted(self, uuid: BranchId, *, complete_end: Seqno) -> FailoverLog:
        """The log after a non-active copy became active without a takeover.

        ``complete_end`` is the end of the last completely received snapshot, not the high seqno:
        that may lie in a half-received snapshot.
        """
        kept = tuple(entry for entry in self.entries if entry.seqno <= complete_end)
        return FailoverLog((FailoverEntry(uuid, complete_end), *kept)[:LOG_ENTRIES_MAX])

    def restarted_uncleanly(
        self, uuid: BranchId, *, snapshot: SnapshotRange, persisted: Seqno
    ) -> FailoverLog:
        """The log after an active copy came back from a crash.

        ``snapshot`` is the last one that reached the disk, ``persisted`` the last seqno that did.
        The branch begins at the snapshot's end if all of it was kept, else at its start.
        """
        complete = persisted >= snapshot.end
        return self.promoted(uuid, complete_end=snapshot.end if complete else snapshot.start)

    def taken_over(self) -> FailoverLog:
        """The log after a takeover stream made this copy active: history continues unchanged."""
        return self

    def replaced_by(self, producer: FailoverLog) -> FailoverLog:
        """The log of a copy whose stream was accepted: the producer's history is now its own."""
        return producer

    def rolled_back(self, seqno: Seqno, *, uuid: BranchId) -> FailoverLog:
        """The log after everything above ``seqno`` was discarded.

        ``uuid`` names the new history when none of the old one is left (rolled back to 0, or below
        the oldest branch remembered).
        """
        kept = tuple(entry for entry in self.entries if entry.seqno <= seqno)
        if seqno == NO_SEQNO or not kept:
            return FailoverLog((FailoverEntry(uuid, seqno),))
        return FailoverLog(kept)

    # -- what it tells --------------------------------------------------------------------------

    def index(self, uuid: int) -> int | None:
        """The place of a branch (0 is the newest), searched from the oldest; None if unknown."""
        for place in range(len(self.entries) - 1, -1, -1):
            if self.entries[place].uuid == uuid:
                return place
        return None

    def upper(self, uuid: int, high: Seqno) -> Seqno | None:
        """The last seqno of history ``uuid``: where the next newer branch begins, or ``high``."""
        place = self.index(uuid)
        if place is None:
            return None
        return high if place == 0 else self.entries[place - 1].seqno

    def holds(self, uuid: int, seqno: int, *, high: Seqno = SEQNO_MAX) -> bool:
        """Whether the place ``seqno`` on branch ``uuid`` is part of this history."""
        upper = self.upper(uuid, high)
        return upper is not None and seqno <= upper

    def branch_at(self, seqno: Seqno) -> BranchId:
        """The branch on which the item ``seqno`` was written, or the oldest one remembered."""
        for entry in self.entries:
            if entry.seqno < seqno:
                return entry.uuid
        return self.oldest.uuid

    def shared_with(self, other: FailoverLog, *, high: Seqno, other_high: Seqno) -> Seqno:
        """The last seqno up to which both logs prove the same history; 0 if they prove none.

        Never above the true fork; below it only when the branch before the fork was forgotten.
        """
        shared = NO_SEQNO
        for entry in self.entries:
            ours, theirs = self.upper(entry.uuid, high), other.upper(entry.uuid, other_high)
            if ours is not None and theirs is not None:
                shared = max(shared, min(ours, theirs))
        return shared


@dataclass(frozen=True, slots=True)
class ResumeToken:
    """Where to start a vbucket's stream again without a gap and without a lie.

    ``branch`` is the newest branch of the log the stream was accepted with. ``log`` is that log:
    when the producer no longer knows the branch, an older one may still be common. ``purge_seqno``
    is the one the snapshot's marker carried (V2.2), 0 if none did; a producer that still has the
    same one need not roll us back.
    """

    branch: BranchId
    seqno: Seqno
    snapshot: SnapshotRange
    purge_seqno: Seqno = NO_SEQNO
    log: FailoverLog | None = None

    def __post_init__(self) -> None:
        """Refuse a seqno outside its snapshot (a producer answers ERANGE); clamp a whole one."""
        seqno, snapshot = self.seqno, self.snapshot
        if not snapshot.start <= seqno <= snapshot.end:
            raise ValueError(f"token at seqno {seqno} outside its snapshot {snapshot}")
        if snapshot.start < seqno == snapshot.end:
            object.__setattr__(self, "snapshot", SnapshotRange(seqno, seqno))
        if not 0 <= self.branch <= SEQNO_MAX or not 0 <= self.purge_seqno <= SEQNO_MAX:
            raise ValueError(
                f"token branch {self.branch}, purge seqno {self.purge_seqno}, allowed 64 bits each"
            )

    def __str__(self) -> str:
        """As people read it."""
        return f"{self.branch:016x}@{self.seqno} in {self.snapshot}"

    @classmethod
    def at_boundary(
        cls, branch: BranchId, seqno: Seqno, log: FailoverLog | None = None
    ) -> ResumeToken:
        """The token of a consumer that holds everything up to ``seqno``."""
        return cls(branch, seqno, SnapshotRange.at(seqno), log=log)

    @property
    def is_boundary(self) -> bool:
        """Whether everything up to the seqno is held: the snapshot is complete."""
        return self.seqno == self.snapshot.end

    def accepted(self, log: FailoverLog) -> ResumeToken:
        """The same position, after the producer accepted it and told its log."""
        # Not `replace`, here and below: it costs three times as much, once per vbucket.
        return ResumeToken(log.newest.uuid, self.seqno, self.snapshot, self.purge_seqno, log)

    def advanced(
        self, seqno: Seqno, snapshot: SnapshotRange, *, purge_seqno: Seqno | None = None
    ) -> ResumeToken:
        """The token after an item at ``seqno`` of that snapshot; only items call this.

        A seqno that does not rise, or lies outside the snapshot, is a ValueError.
        """
        if seqno <= self.seqno:
            raise ValueError(f"token at seqno {self.seqno} cannot advance to {seqno}")
        purged = self.purge_seqno if purge_seqno is None else purge_seqno
        return ResumeToken(self.branch, seqno, snapshot, purged, self.log)

    def rolled_back(self, boundary: Seqno) -> ResumeToken:
        """The token after everything above ``boundary`` was discarded.

        The boundary must be one we hold: the end of a complete snapshot, or 0. Branches that begin
        above it are forgotten; the purge seqno too, since it was told with a later snapshot.
        """
        if boundary > self.seqno:
            raise ValueError(f"token at seqno {self.seqno} cannot roll back to {boundary}")
        if boundary == NO_SEQNO:
            return ZERO
        if self.log is None:
            return ResumeToken.at_boundary(self.branch, boundary)
        kept = tuple(entry for entry in self.log if entry.seqno <= boundary)
        log = FailoverLog(kept or (FailoverEntry(self.log.oldest.uuid, boundary),))
        return ResumeToken.at_boundary(log.newest.uuid, boundary, log)

    def on_older_branches(self, boundaries: Boundaries) -> Iterator[ResumeToken]:
        """The positions to try, best first, when the producer does not know our branch.

        Each names an older branch of our log at a place that we truly hold on it: our own position
        where its whole snapshot lies on that branch, else our greatest boundary there. Naming an
        older branch above its end would be a lie that a producer may believe.
        """
        if self.log is None:
            return
        place = self.log.index(self.branch)
        for newer in range(place if place is not None else 0, len(self.log) - 1):
            upper, older = self.log.entries[newer].seqno, FailoverLog(self.log.entries[newer + 1 :])
            if self.snapshot.end <= upper:
                yield replace(self, branch=older.newest.uuid, log=older)
                continue
            boundary = boundaries.greatest(upper)
            if boundary > NO_SEQNO:
                yield ResumeToken.at_boundary(older.newest.uuid, boundary, older)

    # -- as text --------------------------------------------------------------------------------

    def to_json(self) -> JsonObject:
        """The token as a JSON object; 64-bit numbers are decimal strings, uuids 16 hex digits."""
        return {
            "format": TOKEN_FORMAT,
            "branch": _hex(self.branch),
            "seqno": str(self.seqno),
            "snapshot": [str(self.snapshot.start), str(self.snapshot.end)],
            "purge_seqno": str(self.purge_seqno),
            "log": [[_hex(entry.uuid), str(entry.seqno)] for entry in self.log or ()],
        }

    def to_text(self) -> str:
        """The token as canonical JSON: equal tokens give equal text."""
        return canonical_json(self.to_json())

    @classmethod
    def from_json(cls, value: object) -> ResumeToken:
        """The token of a JSON object written by ``to_json``; anything else is a ValueError."""
        fields = _fields(
            value,
            name="resume token",
            format_number=TOKEN_FORMAT,
            keys={"branch", "seqno", "snapshot", "purge_seqno", "log"},
        )
        start, end = _pair(fields["snapshot"], "snapshot")
        log = tuple(_pair(entry, "log entry") for entry in _items(fields["log"], "log"))
        return cls(
            branch=BranchId(_unhex(fields["branch"], "branch")),
            seqno=Seqno(_uint64(fields["seqno"], "seqno")),
            snapshot=SnapshotRange(
                Seqno(_uint64(start, "snapshot start")), Seqno(_uint64(end, "snapshot end"))
            ),
            purge_seqno=Seqno(_uint64(fields["purge_seqno"], "purge_seqno")),
            log=FailoverLog.of(*((_unhex(u, "log uuid"), _uint64(s, "log seqno")) for u, s in log))
            if log
            else None,
        )

    @classmethod
    def from_text(cls, text: str) -> ResumeToken:
        """The token of a text written by ``to_text``; anything else is a ValueError."""
        return cls.from_json(json.loads(text))


ZERO: Final = ResumeToken(NO_BRANCH, NO_SEQNO, SnapshotRange(NO_SEQNO, NO_SEQNO))


@dataclass(frozen=True, slots=True)
class Boundary:
    """The end of a complete snapshot, and the branch its last item was written on."""

    branch: BranchId
    seqno: Seqno

    def __str__(self) -> str:
        """As people read it: ``0000f58bcdd94bd5@12``."""
        return f"{self.branch:016x}@{self.seqno}"


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Ends of complete snapshots a consumer holds, with their branches; oldest first, 0 implied.

    At most ``limit`` are kept. The newest always is. Past the limit the one goes whose absence
    costs least: the smallest step (from its lower to its higher neighbour) in proportion to its
    distance from the newest, so that boundaries stand dense near the head, where rollbacks go, and
    sparse far back.
    """

    marks: tuple[Boundary, ...] = ()
    limit: int = BOUNDARIES_MAX

    def __post_init__(self) -> None:
        """Refuse marks that do not rise, and more of them than the limit."""
        if self.limit < 2 or len(self.marks) > self.limit:
            raise ValueError(f"{len(self.marks)} boundaries with limit {self.limit}, at least 2")
        for lower, higher in itertools.pairwise(self.marks):
            if lower.seqno >= higher.seqno:
                raise ValueError(f"boundary {higher} does not rise above {lower}")

    def __iter__(self) -> Iterator[Boundary]:
        """Oldest to newest."""
        return iter(self.marks)

    def __len__(self) -> int:
        """Number of boundaries kept, 0 not counted."""
        return len(self.marks)

    def recorded(self, seqno: Seqno, branch: BranchId) -> Boundaries:
        """With one more complete snapshot end; one at or below the newest changes nothing."""
        if seqno <= (self.marks[-1].seqno if self.marks else NO_SEQNO):
            return self
        marks = (*self.marks, Boundary(branch, seqno))
        if len(marks) > self.limit:
            cheapest = _cheapest([mark.seqno for mark in marks])
            marks = (*marks[:cheapest], *marks[cheapest + 1 :])
        # Not by `__init__`, which would look at all of them again, at every snapshot's end.
        made = object.__new__(Boundaries)
        object.__setattr__(made, "marks", marks)
        object.__setattr__(made, "limit", self.limit)
        return made

    def greatest(self, seqno: Seqno, producer: FailoverLog | None = None) -> Seqno:
        """The greatest boundary at or below ``seqno`` on the producer's history; else 0."""
        for mark in reversed(self.marks):
            if mark.seqno <= seqno and (
                producer is None or producer.holds(mark.branch, mark.seqno)
            ):
                return mark.seqno
        return NO_SEQNO

    def rolled_back(self, seqno: Seqno) -> Boundaries:
        """Without those above ``seqno``."""
        if not self.marks or self.marks[-1].seqno <= seqno:
            return self
        return Boundaries(tuple(mark for mark in self.marks if mark.seqno <= seqno), self.limit)

    def to_json(self) -> JsonObject:
        """The boundaries as a JSON object, written as ``ResumeToken.to_json`` writes."""
        return {
            "format": BOUNDARIES_FORMAT,
            "marks": [[_hex(mark.branch), str(mark.seqno)] for mark in self.marks],
        }

    @classmethod
    def from_json(cls, value: object, *, limit: int = BOUNDARIES_MAX) -> Boundaries:
        """The boundaries of an object written by ``to_json``; anything else is a ValueError.

        More than ``limit`` are thinned as if they had been recorded one by one.
        """
        fields = _fields(value, name="boundaries", format_number=BOUNDARIES_FORMAT, keys={"marks"})
        found = cls(limit=limit)
        for mark in _items(fields["marks"], "marks"):
            uuid, seqno = _pair(mark, "mark")
            found = found.recorded(
                Seqno(_uint64(seqno, "mark seqno")), BranchId(_unhex(uuid, "mark uuid"))
            )
        return found


def _cheapest(seqnos: list[Seqno]) -> int:
    """The index of the mark whose loss costs least; never the newest.

    Cost is step / (distance to the newest), compared by cross products: integers stay exact.
    """
    newest, best, best_step, best_distance = seqnos[-1], 0, 1, 0
    below: int = NO_SEQNO
    for place in range(len(seqnos) - 1):
        step, distance = seqnos[place + 1] - below, newest - seqnos[place]
        if step * best_distance < best_step * distance:
            best, best_step, best_distance = place, step, distance
        below = seqnos[place]
    return best


def canonical_json(value: Mapping[str, object]) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _hex(uuid: BranchId) -> str:
    return f"{uuid:016x}"


def _fields(value: object, *, name: str, format_number: int, keys: set[str]) -> dict[str, object]:
    """The object's fields, after its format number and its keys were checked."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} is a {type(value).__name__}, expected a JSON object")
    if value.get("format") != format_number or isinstance(value["format"], bool):
        raise ValueError(
            f"{name} has format {value.get('format')!r}, this release reads {format_number}"
        )
    if value.keys() != keys | {"format"}:
        raise ValueError(f"{name} has keys {sorted(value)}, expected {sorted(keys | {'format'})}")
    return value


def _items(value: object, name: str) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"{name} is a {type(value).__name__}, expected a list")
    return value


def _pair(value: object, name: str) -> tuple[object, object]:
    items = _items(value, name)
    if len(items) != 2:
        raise ValueError(f"{name} has {len(items)} items, expected 2")
    return items[0], items[1]


def _uint64(value: object, name: str) -> int:
    """A 64-bit number from its decimal string, written as we write it."""
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        number = int(value)
        if number <= SEQNO_MAX and str(number) == value:
            return number
    raise ValueError(f"{name} is {value!r}, expected a decimal string of 0..{SEQNO_MAX}")


def _unhex(value: object, name: str) -> int:
    """A uuid from its 16 lower-case hex digits."""
    if isinstance(value, str) and len(value) == 16:
        try:
            number = int(value, 16)
        except ValueError:
            number = -1
        if number >= 0 and _hex(BranchId(number)) == value:
            return number
    raise ValueError(f"{name} is {value!r}, expected 16 lower-case hex digits")
