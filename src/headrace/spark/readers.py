"""The readers of `format("dcp")`: the planner in the driver's process, `read` in the executors'.

Readers are pickled when a query starts and for every task: making one opens nothing, and what is
opened is left out of the pickle.

Rules.
- Batch: every vbucket from the beginning to where the producer is when the read is planned, whole
  snapshots, of the history that lives when a task begins. A rollback in the middle fails the task,
  and Spark reads its part again.
- Stream: see `stream_plan` and `reading`. The initial offset is a constant; the first offset of a
  stream that starts elsewhere than at the beginning is an anchor with nothing to read.
- `latestOffset` waits for news, at most ``pollSeconds``: Spark would ask again every few ms.

Imports: errors, history, spark.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from headrace.errors import ConnectionLost
from headrace.spark import channel
from headrace.spark.offsets import INITIAL, Offset
from headrace.spark.options import Snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from headrace.history import FailoverLog, Seqno, VBucketId
    from headrace.spark.feed import Feed, FeedFactory
    from headrace.spark.options import SourceOptions
    from headrace.spark.positions import Reached
    from headrace.spark.stream_plan import Assignment

Answer = TypeVar("Answer")

PAUSE_SECONDS: Final = 0.05
ROW_BYTES_GUESS: Final = 512
SEQNOS_PER_PARTITION: Final = 50_000
"""Less than this is not worth another task."""


@dataclass
class Part(InputPartition):
    """What one task reads."""

    assignments: tuple[Assignment, ...]
    plan: int = 0
    number: int = 0
    rollback_epoch: int = 0
    address: channel.Address | None = None


def partition_count(size: int, most: int) -> int:
    """How many tasks are worth it."""
    return max(1, min(most, -(-size // SEQNOS_PER_PARTITION)))


class BatchReader(DataSourceReader):
    """One consistent snapshot per vbucket, at the moment of planning."""

    def __init__(self, options: SourceOptions, factory: FeedFactory) -> None:
        """Open nothing."""
        self.options = options
        self.factory = factory

    def partitions(self) -> Sequence[InputPartition]:
        """Ask where everything is now."""
        from headrace.spark.stream_plan import from_the_beginning, grouped

        feed = self.factory()
        try:
            found = from_the_beginning(feed.high_seqnos())
        finally:
            feed.close()
        count = partition_count(sum(one.size for one in found), self.options.partitions)
        # Spark plans a query without partitions as one that never ran: an empty one is a query too.
        return [Part(tuple(group)) for group in grouped(found, count)] or [Part(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part, in an executor."""
        from headrace.spark.collector import calm_collector
        from headrace.spark.reading import Reading, is_rollback
        from headrace.spark.value_columns import with_values

        assert isinstance(partition, Part)
        if not partition.assignments:
            return
        with calm_collector():
            feed = self.factory()
            try:
                exact = self.options.snapshots is Snapshots.EXACT
                reading = Reading(feed, partition.assignments, rollback_epoch=1, exact=exact)
                for rows in reading.batches():
                    # Batches of rollbacks hold nothing else, and are never joined with others.
                    if is_rollback(rows):
                        raise ConnectionLost("the source was rolled back while it was read; again")
                    yield with_values(rows, self.options.values, self.options.flattening)
            finally:
                feed.close()


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches of changes, for ever or to where the source is now."""

    def __init__(self, options: SourceOptions, factory: FeedFactory) -> None:
        """Open nothing: this runs in the planner and, pickled, in every task."""
        self.options = options
        self.factory = factory
        self._feed: Feed | None = None
        self._listener: channel.Listener | None = None
        self._target: dict[VBucketId, Seqno] | None = None
        self._row_bytes = float(ROW_BYTES_GUESS)
        self._highs: dict[VBucketId, Seqno] = {}
        self._last: Offset = INITIAL

    def __getstate__(self) -> dict[str, object]:
        """Leave out what belongs to one process."""
        return {"options": self.options, "factory": self.factory}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Start again with nothing open."""
        self.__init__(state["options"], state["factory"])  # type: ignore[misc]

    # -- the planner -----------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, object]:
        """The constant before everything."""
        return INITIAL.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say."""
        if self.options.rows_max is not None:
            return ReadMaxRows(self.options.rows_max)
        if self.options.bytes_max is not None:
            return ReadMaxBytes(self.options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where the source is now: nothing later will be read."""
        self._target = self._ask_highs()

    def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
        """The next planned end, or ``start`` if nothing is new after a while."""
        before = Offset.from_json(start)
        if before.is_initial and self.options.start != "beginning":
            return self._anchor().to_json()
        deadline = time.monotonic() + self.options.poll_seconds
        while True:
            over = self._target is not None or time.monotonic() >= deadline
            found = self._next(before, limit, settle=over)
            if found is not before or over:
                self._last = found
                return found.to_json() if found is not before else start
            time.sleep(PAUSE_SECONDS)

    def reportLatestOffset(self) -> dict[str, object]:
        """Where the source is, for Spark's progress reports."""
        behind = {
            vb: max(
                0, high - (self._last.entries[vb].claim.seqno if vb in self._last.entries else 0)
            )
            for vb, high in self._highs.items()
        }
        return {"seqnos": str(sum(self._highs.values())), "lag": str(sum(behind.values()))}

    def partitions(
        self, start: dict[str, object], end: dict[str, object]
    ) -> Sequence[InputPartition]:
        """The tasks of the batch between two offsets; what was reported of it before is void."""
        from headrace.spark.stream_plan import assignments, grouped

        planned = Offset.from_json(end)
        found = assignments(Offset.from_json(start), planned)
        count = partition_count(sum(one.size for one in found), self.options.partitions)
        listener = self._listening()
        listener.mailbox.forget(planned.plan)
        if self.options.state_directory is not None:
            channel.clear_directory(self.options.state_directory, planned.plan)
        address = listener.address(self.options.report_host, self.options.state_directory)
        now_ms = int(time.time() * 1000)
        return [
            Part(tuple(group), planned.plan, number, now_ms, address)
            for number, group in enumerate(grouped(found, count) if found else [])
        ]

    def commit(self, end: dict[str, object]) -> None:
        """Nothing to do: positions are in the offsets."""

    def stop(self) -> None:
        """Close what the planner opened."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._drop_feed()

    def _next(self, before: Offset, limit: ReadLimit, *, settle: bool) -> Offset:
        from headrace.spark.stream_plan import next_offset

        highs = self._ask_highs()
        self._highs = highs
        if self._target is not None:
            highs = {vb: min(high, self._target.get(vb, high)) for vb, high in highs.items()}
        logs = self._ask_logs(list(highs))
        highs = {vb: high for vb, high in highs.items() if vb in logs}
        return next_offset(
            before,
            highs,
            logs,
            self._reports(before.plan),
            now_ms=int(time.time() * 1000),
            rows_max=self._rows_max(limit),
            settle=settle,
        )

    def _rows_max(self, limit: ReadLimit) -> int | None:
        rows: list[int] = []
        if isinstance(limit, ReadMaxRows):
            rows.append(limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            rows.append(max(1, int(limit.max_bytes / self._row_bytes)))
        if not isinstance(limit, ReadAllAvailable) and self.options.bytes_max is not None:
            rows.append(max(1, int(self.options.bytes_max / self._row_bytes)))
        return min(rows) if rows else None

    def _reports(self, plan: int) -> dict[VBucketId, Reached]:
        reports = self._listener.mailbox.reports(plan) if self._listener is not None else []
        if not reports and self.options.state_directory is not None:
            reports = channel.read_directory(self.options.state_directory, plan)
        found: dict[VBucketId, Reached] = {}
        rows = size = 0
        for one in reports:
            found.update(one.reached)
            rows += one.rows
            size += one.bytes
        if rows:
            self._row_bytes = max(1.0, size / rows)
        return found

    def _anchor(self) -> Offset:
        from headrace.spark.starts import start_tokens
        from headrace.spark.stream_plan import anchor

        return anchor(start_tokens(self._connected(), self.options.start))

    # -- the source ------------------------------------------------------------------------------

    def _connected(self) -> Feed:
        if self._feed is None:
            self._feed = self.factory()
        return self._feed

    def _drop_feed(self) -> None:
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def _ask_highs(self) -> dict[VBucketId, Seqno]:
        return self._patiently(lambda feed: dict(feed.high_seqnos()))

    def _ask_logs(self, vbuckets: list[VBucketId]) -> dict[VBucketId, FailoverLog]:
        return self._patiently(lambda feed: dict(feed.failover_logs(vbuckets)))

    def _patiently(self, ask: Callable[[Feed], Answer]) -> Answer:
        """Ask until the source answers; ConnectionLost when patience is at its end."""
        deadline = time.monotonic() + self.options.patience_seconds
        while True:
            try:
                return ask(self._connected())
            except ConnectionLost:
                self._drop_feed()
                if time.monotonic() >= deadline:
                    raise
                time.sleep(PAUSE_SECONDS * 10)

    def _listening(self) -> channel.Listener:
        if self._listener is None:
            self._listener = channel.Listener(self.options.report_host)
        return self._listener

    # -- a task ----------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one part, in an executor, and report what it reached."""
        from headrace.spark.collector import calm_collector
        from headrace.spark.reading import Reading
        from headrace.spark.value_columns import with_values

        assert isinstance(partition, Part)
        address = partition.address or channel.Address()
        known = channel.begin(address, partition.plan, partition.number)
        exact = self.options.snapshots is Snapshots.EXACT
        with calm_collector():
            feed = self.factory()
            try:
                reading = Reading(
                    feed,
                    partition.assignments,
                    rollback_epoch=partition.rollback_epoch,
                    exact=exact,
                    to_latest=not known and not exact,
                )
                for rows in reading.batches():
                    yield with_values(rows, self.options.values, self.options.flattening)
            finally:
                feed.close()
            told = channel.Report(reading.reached(), reading.rows, reading.bytes)
            channel.report(address, partition.plan, partition.number, told)
