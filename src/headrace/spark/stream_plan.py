"""Planning micro-batches: from the last offset, the producer's word and the tasks' reports to the
next.

Spark plans batch n+1 after batch n was read. Batch n was planned to end at E; its tasks read on to
the end B of the snapshot that holds E, and report B. With the report, batch n+1 begins at B,
honestly. Without it the reader stands somewhere at or after E: batch n+1 begins at E, a claim, and
repeats the tail; and should the branch have changed since, it goes back to the last boundary known
instead.

Rules.
- A claim that must return (`Claim.must_return`) is planned as a rollback: the entry falls to a
  boundary of the producer's history, in a later epoch, and its rows begin with a rollback row.
- Epochs come from a clock of milliseconds, and always rise: two rollbacks of which one was never
  reported cannot have the same. Where no report came, the next batch is in a later epoch, since
  the task may have begun one: a tail that is repeated is then known by (vbucket, branch, seqno),
  which names a change for ever.
- Ends never lie before beginnings, and limits divide what there is to read fairly.
- An offset that would only say what the tasks reported, with nothing new to read, costs Spark an
  empty batch: it is made when the source has been quiet for a while (``settle``), so that a restart
  repeats nothing.

Imports: history, spark.feed, spark.offsets, spark.positions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.history import NO_BRANCH, NO_SEQNO, BranchId, ResumeToken, Seqno, VBucketId
from headrace.spark.offsets import Entry, Fall, Offset, thinned
from headrace.spark.positions import START, Claim, Withdrawal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.history import FailoverLog
    from headrace.spark.positions import Reached


@dataclass(frozen=True, slots=True)
class Assignment:
    """One vbucket of one batch, for one task.

    ``claim`` is where to begin, ``branch`` the newest one when the batch was planned; NO_BRANCH
    where it does not matter. ``withdrawal`` was planned: its row comes first.
    """

    vbucket: VBucketId
    claim: Claim
    branch: BranchId
    end_seqno: Seqno
    withdrawal: Withdrawal | None = None

    @property
    def size(self) -> int:
        """Seqnos to read."""
        return max(0, self.end_seqno - self.claim.seqno)


def anchor(tokens: Mapping[VBucketId, ResumeToken]) -> Offset:
    """The first concrete offset of a reader that does not start at the beginning."""
    entries = {}
    for vbucket, token in tokens.items():
        at = START
        if token.seqno and token.log is not None:
            at = START.advanced(token.seqno, token.log)
        entries[vbucket] = Entry(Claim(at.branch, at.seqno, thinned(at), known=True), at.seqno)
    return Offset(1, entries)


def next_offset(
    before: Offset,
    highs: Mapping[VBucketId, Seqno],
    logs: Mapping[VBucketId, FailoverLog],
    reports: Mapping[VBucketId, Reached],
    *,
    now_ms: int,
    rows_max: int | None = None,
    settle: bool = False,
) -> Offset:
    """The next offset; the same one if there is nothing to read and nothing to take back.

    ``reports`` are what the tasks of the batch ending at ``before`` really reached.
    """
    begun = {
        vb: _begin(vb, before.entries.get(vb), highs[vb], logs[vb], reports.get(vb), now_ms)
        for vb in highs
    }
    sizes = {vb: max(0, highs[vb] - entry.claim.seqno) for vb, entry in begun.items()}
    shares = _shares(sizes, rows_max)
    if not any(shares.values()) and not any(entry.fall for entry in begun.values()):
        if not settle or not any(vb in before.entries for vb in reports):
            return before
        settled = {**before.entries, **{vb: begun[vb] for vb in reports if vb in begun}}
        return before if settled == before.entries else Offset(before.plan + 1, settled)
    entries = dict(before.entries)
    for vb, entry in begun.items():
        if shares[vb] or entry.fall or vb not in entries:
            end = Seqno(entry.claim.seqno + shares[vb])
            claim = Claim(logs[vb].newest.uuid, end, entry.claim.honest)
            entries[vb] = Entry(claim, entry.claim.seqno, pending=True, fall=entry.fall)
        else:
            entries[vb] = entry
    return Offset(before.plan + 1, entries)


def _begin(
    vbucket: VBucketId,
    entry: Entry | None,
    high: Seqno,
    log: FailoverLog,
    report: Reached | None,
    now_ms: int,
) -> Entry:
    """Where a vbucket stands before the batch that is being planned."""
    claim = _standing(entry, report, now_ms)
    honest = claim.honest
    held, withdrawal = honest.reconciled(vbucket, log, high=high, epoch=now_ms)
    if withdrawal is None and not claim.must_return(log):
        return Entry(replace(claim, honest=held), claim.seqno)
    if withdrawal is None:
        held, _ = honest.rolled_back(vbucket, honest.seqno, log, epoch=now_ms)
    fallen = Claim(held.branch, held.seqno, held, known=True)
    return Entry(fallen, held.seqno, fall=Fall(claim.branch, claim.seqno))


def _standing(entry: Entry | None, report: Reached | None, now_ms: int) -> Claim:
    """Where the reader of a vbucket stands, as far as is known."""
    if entry is None:
        return Claim(START.branch, NO_SEQNO, thinned(START), known=True)
    if not entry.pending:
        return entry.claim
    if report is not None:
        return replace(report.claim, honest=thinned(report.position))
    # The task may have gone back and begun a new epoch; rows of the old one would be dead then.
    honest = entry.claim.honest
    return replace(entry.claim, honest=replace(honest, epoch=max(now_ms, honest.epoch + 1)))


def _shares(sizes: Mapping[VBucketId, int], rows_max: int | None) -> dict[VBucketId, int]:
    """How much of each vbucket to read: all, or a fair part of the limit."""
    if rows_max is None or sum(sizes.values()) <= rows_max:
        return dict(sizes)
    shares = {}
    room, left = rows_max, len([size for size in sizes.values() if size])
    for vb in sorted(sizes, key=lambda one: sizes[one]):
        if not sizes[vb]:
            shares[vb] = 0
            continue
        # At least one seqno in total is read, or a limit below the number of vbuckets would stop.
        shares[vb] = min(sizes[vb], room // left if room >= left else min(1, room))
        room -= shares[vb]
        left -= 1
    return shares


def assignments(start: Offset, end: Offset) -> list[Assignment]:
    """What the batch between two offsets reads; the same for the same two, always."""
    found = []
    for vbucket, entry in end.entries.items():
        before = start.entries.get(vbucket)
        if entry == before or not entry.pending:
            continue
        withdrawal = None
        if entry.fall is not None:
            honest = entry.claim.honest
            withdrawal = Withdrawal(
                vbucket,
                honest.epoch,
                honest.seqno,
                entry.fall.seqno,
                entry.fall.branch,
                honest.branch,
            )
        claim = replace(entry.claim, seqno=entry.begin_seqno, branch=_begun_on(before, entry))
        one = Assignment(vbucket, claim, entry.claim.branch, entry.claim.seqno, withdrawal)
        if one.size or withdrawal is not None:
            found.append(one)
    return found


def from_the_beginning(highs: Mapping[VBucketId, Seqno]) -> list[Assignment]:
    """What one read of everything reads, whatever history its tasks find.

    A task that is tried again gives all its rows again, so none of an older history can be left.
    """
    claim = Claim(START.branch, NO_SEQNO, thinned(START), known=True)
    return [Assignment(vb, claim, NO_BRANCH, high) for vb, high in highs.items() if high]


def _begun_on(before: Entry | None, entry: Entry) -> BranchId:
    """The branch of the place where a batch begins."""
    honest = entry.claim.honest
    if before is None or entry.fall is not None or entry.begin_seqno == honest.seqno:
        return honest.branch
    return before.claim.branch


def grouped(found: Sequence[Assignment], most: int) -> list[list[Assignment]]:
    """The assignments in at most ``most`` groups of about the same size."""
    groups: list[list[Assignment]] = [[] for _ in range(max(1, min(most, len(found))))]
    loads = [0] * len(groups)
    for one in sorted(found, key=lambda each: (-each.size, each.vbucket)):
        lightest = loads.index(min(loads))
        groups[lightest].append(one)
        loads[lightest] += one.size + 1
    return [sorted(group, key=lambda each: each.vbucket) for group in groups if group]
