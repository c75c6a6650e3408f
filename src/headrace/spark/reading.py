"""What a task of a user's query does: read its assignments and yield rows, whatever happens.

`read()` of a Spark source cannot tell its planner anything, and when it raises, the same range is
read again for ever. So a failover that comes between planning and reading must come out as rows: a
rollback row, then the rows of the history that lives.

Rules.
- The failover log is looked at before a stream is asked for, unless it is one from seqno 0, and
  the one it was accepted with again; a newer branch than the batch was planned with sends the
  vbucket back to its last honest boundary, in a new epoch, even if the producer said yes: rows of
  an earlier attempt at this batch may have been published already, and some of them may be dead.
- Whole snapshots: rows are read to the end of the snapshot that holds the planned end.
  ``exact`` drops what lies beyond, and claims no boundary there.
- A vbucket that cannot be read to its planned end is a ConnectionLost: Spark has already promised
  that end, so to go on without it would lose rows.

Imports: columns, errors, history, spark.feed, spark.positions, spark.progress, spark.stream_plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.block import ROWS_MAX
from headrace.errors import ConnectionLost
from headrace.history import BranchId, ResumeToken, Seqno, VBucketId
from headrace.spark.feed import Completed, Finished, Opened, RolledBack, Rows, Span
from headrace.spark.positions import Position, Reached
from headrace.spark.progress import Progress
from headrace.spark.rows import ROLLBACK, ROW_SCHEMA, rows_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace.spark.feed import Feed
    from headrace.spark.stream_plan import Assignment

BATCH_ROWS: Final = 10_000
"""Rows up to which small batches are put together."""
BATCH_ROWS_MAX: Final = ROWS_MAX
"""Rows of a batch handed to Spark: as many as the client gives at once.

To cut a batch in two costs more than to hand over a large one."""
BATCH_BYTES: Final = 16 << 20
"""Small batches are put together up to this size: Arrow's offsets have 32 bits, and memory ends."""
ROUNDS_MAX: Final = 16
"""How often vbuckets may be sent back before the source is said not to come to rest."""
_EVENT: Final = ROW_SCHEMA.get_field_index("event")


class Reading:
    """One task's reading; `positions` are what it honestly reached."""

    def __init__(
        self,
        feed: Feed,
        assignments: Sequence[Assignment],
        *,
        rollback_epoch: int,
        exact: bool = False,
        to_latest: bool = False,
    ) -> None:
        """``to_latest`` reads at least to where the producer is now."""
        self._feed = feed
        self._assignments = list(assignments)
        self._rollback_epoch = rollback_epoch
        self._exact = exact
        self._to_latest = to_latest
        self.positions: dict[VBucketId, Position] = {
            one.vbucket: one.claim.honest for one in assignments
        }
        self._beyond: set[VBucketId] = set()
        self.rows = self.bytes = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, in the order of each vbucket's history."""
        spans = self._spans()
        planned = [one.withdrawal for one in self._assignments if one.withdrawal is not None]
        if planned:
            progress = Progress(spans)
            rows = progress.planned_rows()
            assert rows is not None, "there are planned withdrawals"
            yield self._counted(rows)
        planned_on = {one.vbucket: one.branch for one in self._assignments if one.branch}
        spans, returned = self._checked(spans, planned_on)
        yield from returned
        for _ in range(ROUNDS_MAX):
            sent_back: dict[VBucketId, pa.RecordBatch] = {}
            yield from joined(self._drained(spans, planned_on, sent_back))
            if not sent_back:
                return
            yield from map(self._counted, sent_back.values())
            spans = self._again(list(sent_back))
            planned_on = {}
        raise ConnectionLost(f"vbuckets {sorted(sent_back)} are rolled back again and again")

    # -- where to begin --------------------------------------------------------------------------

    def _spans(self) -> list[Span]:
        highs = self._feed.high_seqnos() if self._to_latest else {}
        return [
            Span(
                one.vbucket,
                _pretended(one),
                max(one.end_seqno, highs.get(one.vbucket, one.end_seqno))
                if one.size
                else one.end_seqno,
                one.withdrawal,
            )
            for one in self._assignments
        ]

    def _checked(
        self, spans: list[Span], planned_on: dict[VBucketId, BranchId]
    ) -> tuple[list[Span], list[pa.RecordBatch]]:
        """The spans, those on a newer branch than planned sent back, and the rows that say so.

        Every end is taken back to what the producer has, so that nobody waits for more.
        """
        if not spans:
            return [], []
        highs = self._feed.high_seqnos()
        # A stream from seqno 0 is never refused and brings its log along: to ask a thousand of them
        # beforehand costs a tenth of reading them. Where nothing is left there is no stream.
        fresh = {s.vbucket for s in spans if not s.position.seqno and highs.get(s.vbucket)}
        begun = [span.vbucket for span in spans if span.vbucket not in fresh]
        logs = self._feed.failover_logs(begun) if begun else {}
        honest = {one.vbucket: one.claim.honest for one in self._assignments}
        found, told = [], []
        for span in spans:
            vb = span.vbucket
            if vb in fresh:
                found.append(Span(vb, span.position, min(span.end_seqno, highs[vb])))
                continue
            if vb not in logs or vb not in highs:
                found.append(span)
                continue
            position = span.position
            stale = logs[vb].newest.uuid != planned_on.get(vb, logs[vb].newest.uuid)
            base = honest[vb] if stale else position
            settled, withdrawal = base.reconciled(
                vb, logs[vb], high=highs[vb], epoch=self._rollback_epoch
            )
            if stale or withdrawal is not None:
                progress = Progress([span], rollback_epoch=self._rollback_epoch)
                progress.positions[vb] = base
                position, rows = progress.withdraw(vb, settled.seqno, logs[vb])
                told.append(self._counted(rows))
                planned_on.pop(vb, None)
            if position.seqno == self.positions[vb].seqno or vb not in planned_on:
                # A claim that was only pretended is no position of ours.
                self.positions[vb] = position
            end = max(min(span.end_seqno, highs[vb]), position.seqno)
            found.append(Span(vb, position, Seqno(end)))
        return found, told

    def _again(self, vbuckets: list[VBucketId]) -> list[Span]:
        """Spans of vbuckets that were sent back, to what the producer has of them now."""
        ends = {one.vbucket: one.end_seqno for one in self._assignments}
        highs = self._feed.high_seqnos()
        return [
            Span(
                vb,
                self.positions[vb],
                Seqno(max(min(ends[vb], highs.get(vb, ends[vb])), self.positions[vb].seqno)),
            )
            for vb in vbuckets
        ]

    # -- reading ---------------------------------------------------------------------------------

    def _drained(
        self,
        spans: Sequence[Span],
        planned_on: dict[VBucketId, BranchId],
        sent_back: dict[VBucketId, pa.RecordBatch],
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the spans; a vbucket that is on a newer branch lands in ``sent_back``."""
        progress = Progress(spans, rollback_epoch=self._rollback_epoch)
        honest = {one.vbucket: one.claim.honest for one in self._assignments}
        gone = np.zeros(progress.width, np.bool_)
        ends = {span.vbucket: span.end_seqno for span in spans}
        for news in self._feed.drain([s for s in spans if s.end_seqno > s.position.seqno]):
            if isinstance(news, Rows):
                rows = progress.take(news)
                if rows is not None:
                    yield from self._cut(rows, spans, gone)
                continue
            vb = news.vbucket
            if vb in planned_on and isinstance(news, Opened | RolledBack):
                branch = planned_on.pop(vb)
                if news.log.newest.uuid != branch:
                    base = honest[vb]
                    progress.positions[vb] = base
                    settled, _ = base.reconciled(
                        vb, news.log, high=Seqno(max(base.seqno, news.log.newest.seqno))
                    )
                    self.positions[vb], sent_back[vb] = progress.withdraw(
                        vb, settled.seqno, news.log
                    )
                    gone[vb] = True
            if vb in sent_back and not isinstance(news, Finished):
                continue
            rows = progress.take(news)
            if rows is not None:
                yield from self._cut(rows, spans, gone)
            if isinstance(news, Completed | RolledBack):
                self._stand(vb, progress.positions[vb], ends[vb])
        left = {vb: why for vb, why in progress.unfinished.items() if vb not in sent_back}
        if left:
            vbucket, reason = next(iter(left.items()))
            raise ConnectionLost(f"vbucket {vbucket} was not read to its planned end: {reason}")

    def _stand(self, vbucket: VBucketId, position: Position, end_seqno: Seqno) -> None:
        """Note a boundary; with ``exact`` one behind the end is none of ours."""
        if self._exact and position.seqno > end_seqno:
            self._beyond.add(vbucket)
        else:
            self.positions[vbucket] = position

    def _cut(
        self, rows: pa.RecordBatch, spans: Sequence[Span], gone: np.ndarray
    ) -> Iterator[pa.RecordBatch]:
        """The rows to hand out."""
        if gone.any():
            rows = rows.filter(pa.array(~gone[rows.column("vbucket").to_numpy()]))
        if self._exact:
            rows = _exact(rows, spans)
        if rows.num_rows:
            yield self._counted(rows)

    def _counted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        self.rows += rows.num_rows
        self.bytes += rows_size(rows)
        return rows

    def reached(self) -> dict[VBucketId, Reached]:
        """What to report, once everything has been handed out."""
        found = {}
        for one in self._assignments:
            position = self.positions[one.vbucket]
            stand = position.seqno
            if self._exact and stand < one.end_seqno and one.vbucket in self._beyond:
                # Rows up to the end were handed out, of a snapshot that goes on behind it.
                stand = one.end_seqno
            found[one.vbucket] = Reached(position, stand)
        return found


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of `BATCH_ROWS_MAX` at most, small ones put together.

    A batch costs Spark about as much as a thousand rows. A rollback stays a batch of its own.
    """
    held: list[pa.RecordBatch] = []
    count = size = 0
    for rows in batches:
        here = rows_size(rows)
        alone = rows.num_rows > BATCH_ROWS or is_rollback(rows)
        count, size = count + rows.num_rows, size + here
        if held and (alone or count > BATCH_ROWS or size > BATCH_BYTES):
            yield held[0] if len(held) == 1 else pa.concat_batches(held)
            held, count, size = [], rows.num_rows, here
        if not alone:
            held.append(rows)
            continue
        for start in range(0, rows.num_rows, BATCH_ROWS_MAX):
            yield rows.slice(start, BATCH_ROWS_MAX)
        count = size = 0
    if held:
        yield held[0] if len(held) == 1 else pa.concat_batches(held)


def is_rollback(rows: pa.RecordBatch) -> bool:
    """Whether a batch tells of rollbacks: then of nothing else."""
    return rows.num_rows > 0 and str(rows.column(_EVENT)[0].as_py()) == ROLLBACK


def _pretended(one: Assignment) -> Position:
    """A claim in the form of a position, to ask a stream with; only the check makes it good."""
    honest = one.claim.honest
    if one.claim.seqno == honest.seqno:
        return honest
    log = honest.token.log
    token = ResumeToken.at_boundary(one.claim.branch, one.claim.seqno, log)
    return Position(token, honest.epoch, honest.boundaries)


def _exact(rows: pa.RecordBatch, spans: Sequence[Span]) -> pa.RecordBatch:
    width = max(span.vbucket for span in spans) + 1
    ends = np.zeros(width, np.int64)
    for span in spans:
        ends[span.vbucket] = min(span.end_seqno, 2**63 - 1)
    inside = rows.column("seqno").to_numpy() <= ends[rows.column("vbucket").to_numpy()]
    kept = pc.or_(pa.array(inside), pc.equal(rows.column("event"), ROLLBACK))
    return rows.filter(kept)
