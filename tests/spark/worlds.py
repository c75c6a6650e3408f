"""Small worlds: a sync and a Spark stream without Spark, Delta or disks, run thousands of times.

`SyncWorld` is the commit loop with a table in memory; `StreamWorld` is Spark's micro-batch engine
with our planner and our tasks, and an idempotent table behind it. Both take acts that happen to the
producer between planning, reading and committing. What they come to is compared with the producer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.spark.offsets import INITIAL, Offset
from headrace.spark.planning import plan_spans, span_size
from headrace.spark.positions import Reached, Vector, vector_of, vector_text
from headrace.spark.progress import Progress, whole_rows
from headrace.spark.reading import Reading
from headrace.spark.stream_plan import assignments, next_offset
from tests.spark.producer import Producer, ScriptedFeed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from headrace.history import VBucketId

Row = dict[str, Any]


def state_of(rows: Iterable[Row]) -> dict[tuple[int, str], str]:
    """The living documents of rows with rollbacks among them: the views' rule, said plainly."""
    found = list(rows)
    ends = [row for row in found if row["event"] == "rollback"]
    latest: dict[tuple[int, str], Row] = {}
    for row in found:
        if row["event"] == "rollback":
            continue
        dead = any(
            end["vbucket"] == row["vbucket"]
            and end["epoch"] > row["epoch"]
            and end["seqno"] < row["seqno"]
            for end in ends
        )
        place = (int(str(row["vbucket"])), str(row["key"]))
        held = latest.get(place)
        if not dead and (held is None or _order(held) < _order(row)):
            latest[place] = row
    return {
        place: row["value"].decode() for place, row in latest.items() if row["event"] == "mutation"
    }


def _order(row: Row) -> tuple[int, int]:
    return int(str(row["epoch"])), int(str(row["seqno"]))


@dataclass
class SyncWorld:
    """The commit loop, its table two lists in memory."""

    producer: Producer
    rows: list[Row] = field(default_factory=list)
    vector: Vector = field(default_factory=dict)
    break_after: int | None = None

    def turn(
        self,
        *,
        after_plan: Callable[[Producer], object] | None = None,
        after_read: Callable[[Producer], object] | None = None,
        commit: bool = True,
    ) -> bool:
        """One turn; False if there was nothing to do."""
        feed = ScriptedFeed(self.producer, break_after=self.break_after)
        logs, highs = feed.failover_logs(feed.vbuckets()), feed.high_seqnos()
        plan = plan_spans(self.vector, highs, logs)
        if after_plan is not None:
            after_plan(self.producer)
        progress = Progress(plan.spans)
        batches: list[pa.RecordBatch] = []
        if (planned := progress.planned_rows()) is not None:
            batches.append(planned)
        drained = feed.drain([span for span in plan.spans if span_size(span)])
        batches += [rows for news in drained if (rows := progress.take(news)) is not None]
        if after_read is not None:
            after_read(self.producer)
        if commit:
            for batch in whole_rows(iter(batches), progress.cut()):
                self.rows += batch.to_pylist()
            # Through text, as every real commit goes.
            merged = {**self.vector, **plan.settled, **progress.positions}
            self.vector = vector_of(vector_text(merged))
        return bool(plan.spans)

    def settle(self) -> None:
        """Turns until there is nothing to do."""
        for _ in range(10):
            if not self.turn():
                return
        raise AssertionError("the sync does not come to rest")

    def state(self) -> dict[tuple[int, str], str]:
        return state_of(self.rows)


@dataclass
class StreamWorld:
    """Spark's engine: offsets planned and logged, batches read, perhaps twice; an idempotent sink.

    ``channel``: whether reports of tasks reach the planner.
    """

    producer: Producer
    channel: bool = True
    exact: bool = False
    rows_max: int | None = None
    log: list[str] = field(default_factory=lambda: [json.dumps(INITIAL.to_json())])
    table: dict[tuple[int, int, int, bool], Row] = field(default_factory=dict)
    reports: dict[VBucketId, Reached] = field(default_factory=dict)
    clock_ms: int = 1_000
    attempts: int = 0

    def batch(
        self,
        *,
        after_plan: Callable[[Producer], object] | None = None,
        after_read: Callable[[Producer], object] | None = None,
        crash: bool = False,
    ) -> bool:
        """Plan, log, read and publish one batch; with ``crash`` it is published and read again."""
        feed = ScriptedFeed(self.producer)
        before = Offset.from_json(json.loads(self.log[-1]))
        self.clock_ms += 1
        end = next_offset(
            before,
            feed.high_seqnos(),
            feed.failover_logs(feed.vbuckets()),
            self.reports if self.channel else {},
            now_ms=self.clock_ms,
            rows_max=self.rows_max,
            settle=True,
        )
        text = json.dumps(end.to_json())
        if text == self.log[-1]:
            return False
        self.log.append(text)
        if crash:
            self._read()
        if after_plan is not None:
            after_plan(self.producer)
        self._read()
        if after_read is not None:
            after_read(self.producer)
        return True

    def _read(self) -> None:
        """Tasks of the last batch in the log, and the sink."""
        self.clock_ms += 1
        self.attempts += 1
        start, end = (Offset.from_json(json.loads(text)) for text in self.log[-2:])
        reading = Reading(
            ScriptedFeed(self.producer),
            assignments(start, end),
            rollback_epoch=self.clock_ms,
            exact=self.exact,
            to_latest=not self.channel and not self.exact,
        )
        for rows in reading.batches():
            for row in rows.to_pylist():
                place = (row["vbucket"], row["epoch"], row["seqno"], row["event"] == "rollback")
                self.table[place] = row
        self.reports = reading.reached()

    def settle(self) -> None:
        """Batches until there is nothing to do."""
        for _ in range(40):
            if not self.batch():
                return
        raise AssertionError("the stream does not come to rest")

    def state(self) -> dict[tuple[int, str], str]:
        return state_of(self.table.values())
