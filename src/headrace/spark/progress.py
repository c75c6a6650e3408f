"""A task's account of what it has read: news in, honest positions and withdrawals out.

Rules.
- `Progress.take` is given every news of a feed in order. Rows come back as published rows, with the
  epoch and branch they were read under; a rollback comes back as its row.
- A position moves only when the feed says a snapshot is complete (rule 1 of `positions`).
- Rows above the last boundary of their vbucket and epoch, when the reading ends, are not to be
  published: `Progress.cut` tells how far each (vbucket, epoch) is whole.

Imports: history, spark.feed, spark.positions, spark.rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.history import LOG_ENTRIES_MAX, NO_SEQNO, FailoverLog, Seqno, VBucketId
from headrace.spark.feed import Completed, Finished, News, Opened, RolledBack, Rows, Span
from headrace.spark.rows import RowContext, rollback_rows, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from headrace.spark.positions import Position, Withdrawal


class Progress:
    """Where each vbucket of a task stands, and what has been withdrawn on the way."""

    def __init__(self, spans: Sequence[Span], *, rollback_epoch: int | None = None) -> None:
        """Start at the spans' positions.

        ``rollback_epoch``: the least epoch a rollback may give, where epochs are no plain count.
        """
        self.positions: dict[VBucketId, Position] = {span.vbucket: span.position for span in spans}
        self.withdrawals: list[Withdrawal] = [
            span.withdrawal for span in spans if span.withdrawal is not None
        ]
        self.unfinished: dict[VBucketId, str] = {
            span.vbucket: "not read" for span in spans if span.end_seqno > span.position.seqno
        }
        self._rollback_epoch = rollback_epoch
        self._logs: dict[VBucketId, FailoverLog] = {}
        self._whole: dict[tuple[VBucketId, int], Seqno] = {}
        width = max((span.vbucket for span in spans), default=0) + 1
        self._context = RowContext(
            np.zeros(width, np.int64),
            np.zeros((LOG_ENTRIES_MAX, width), np.uint64),
            np.zeros((LOG_ENTRIES_MAX, width), np.uint64),
        )
        for span in spans:
            self._context.epochs[span.vbucket] = span.position.epoch

    def planned_rows(self) -> pa.RecordBatch | None:
        """The rows of rollbacks that were planned with the spans; they go before everything."""
        return rollback_rows(self.withdrawals) if self.withdrawals else None

    def take(self, news: News) -> pa.RecordBatch | None:
        """Account for one news; the rows to publish if it brought any."""
        if isinstance(news, Rows):
            rows = rows_of(news.batch, self._context)
            return rows if rows.num_rows else None
        if isinstance(news, RolledBack):
            return self._roll_back(news)
        if isinstance(news, Opened):
            self._open(news.vbucket, news.log)
        elif isinstance(news, Completed):
            moved = self.positions[news.vbucket].advanced(
                news.seqno,
                self._logs[news.vbucket],
                boundaries=news.boundaries,
                purge_seqno=news.purge_seqno,
                token=news.token,
            )
            self.positions[news.vbucket] = moved
            self._whole[news.vbucket, moved.epoch] = moved.seqno
        elif isinstance(news, Finished):
            if news.complete:
                self.unfinished.pop(news.vbucket, None)
            else:
                self.unfinished[news.vbucket] = news.reason
        return None

    def withdraw(
        self, vbucket: VBucketId, to_seqno: Seqno, log: FailoverLog
    ) -> tuple[Position, pa.RecordBatch]:
        """Go back to a boundary of the vbucket; its position there and the row that tells it."""
        position, withdrawal = self.positions[vbucket].rolled_back(
            vbucket, to_seqno, log, epoch=self._rollback_epoch
        )
        self.positions[vbucket] = position
        self.withdrawals.append(withdrawal)
        self._context.epochs[vbucket] = position.epoch
        return position, rollback_rows([withdrawal])

    def cut(self) -> dict[tuple[VBucketId, int], Seqno]:
        """The last whole seqno of every (vbucket, epoch) that was read."""
        return dict(self._whole)

    @property
    def width(self) -> int:
        """One more than the greatest vbucket."""
        return len(self._context.epochs)

    def _open(self, vbucket: VBucketId, log: FailoverLog) -> None:
        self._logs[vbucket] = log
        self.positions[vbucket] = self.positions[vbucket].accepted(log)
        begins, uuids = self._context.begins, self._context.uuids
        for place, entry in enumerate(log.entries):
            begins[place, vbucket] = entry.seqno
            uuids[place, vbucket] = entry.uuid
        # A log is short as a rule: the rest of the lines is its oldest branch, at once.
        begins[len(log) :, vbucket] = entry.seqno
        uuids[len(log) :, vbucket] = entry.uuid

    def _roll_back(self, news: RolledBack) -> pa.RecordBatch:
        held = self.positions[news.vbucket]
        # Rows of an incomplete snapshot may have come above the position: they are cut, not dead.
        self._whole.setdefault((news.vbucket, held.epoch), held.seqno)
        _, rows = self.withdraw(news.vbucket, min(news.to_seqno, held.seqno), news.log)
        return rows


def whole_rows(
    batches: Iterator[pa.RecordBatch], cut: dict[tuple[VBucketId, int], Seqno]
) -> Iterator[pa.RecordBatch]:
    """The rows at or below the cut of their vbucket and epoch; rollback rows always."""
    for batch in batches:
        keep = [
            event == "rollback" or seqno <= cut.get((VBucketId(vbucket), epoch), NO_SEQNO)
            for event, vbucket, epoch, seqno in zip(
                *(
                    batch.column(name).to_pylist()
                    for name in ("event", "vbucket", "epoch", "seqno")
                ),
                strict=True,
            )
        ]
        yield batch if all(keep) else batch.filter(np.array(keep))
