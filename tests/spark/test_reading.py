"""A task of a user's query: what it yields when the world changed between plan and read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from headrace.errors import ConnectionLost
from headrace.history import Seqno
from headrace.spark import reading as reading_module
from headrace.spark.feed import Finished
from headrace.spark.offsets import INITIAL
from headrace.spark.reading import BATCH_ROWS, Reading, joined
from headrace.spark.rows import ROW_SCHEMA
from headrace.spark.stream_plan import Assignment, assignments, next_offset
from tests.spark.producer import Producer, ScriptedFeed
from tests.spark.worlds import state_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace.history import FailoverLog, VBucketId
    from headrace.spark.feed import News, Span


def filled(count: int = 20, *, cut: int = 8) -> Producer:
    producer = Producer.with_vbuckets(1)
    for number in range(1, count + 1):
        producer.put(0, f"k{number % 7}", f"{number}")
        if number == cut:
            producer.cut(0)
    return producer


def planned(producer: Producer, high: int | None = None) -> list[Assignment]:
    feed = ScriptedFeed(producer)
    highs = feed.high_seqnos()
    if high is not None:
        highs = dict.fromkeys(highs, Seqno(high))
    logs = feed.failover_logs(feed.vbuckets())
    return assignments(INITIAL, next_offset(INITIAL, highs, logs, {}, now_ms=1))


def read(producer: Producer, work: list[Assignment], **more: bool) -> tuple[list[dict], Reading]:  # type: ignore[type-arg]
    reading = Reading(ScriptedFeed(producer), work, rollback_epoch=77, **more)
    return [row for rows in reading.batches() for row in rows.to_pylist()], reading


def test_a_snapshot_is_read_whole_and_its_end_is_reported() -> None:
    producer = filled()
    rows, reading = read(producer, planned(producer, high=10))
    assert max(row["seqno"] for row in rows) == 20
    (reached,) = reading.reached().values()
    assert (reached.position.seqno, reached.seqno) == (20, 20)
    assert (reading.rows, reading.bytes > 0) == (len(rows), True)


def test_exact_stops_at_the_plan_and_says_which_boundary_it_holds() -> None:
    producer = filled()
    rows, reading = read(producer, planned(producer, high=15), exact=True)
    assert max(row["seqno"] for row in rows) <= 15
    (reached,) = reading.reached().values()
    assert (reached.position.seqno, reached.seqno) == (8, 15)


def test_a_failover_between_plan_and_read_comes_out_as_rows() -> None:
    producer = filled()
    work = planned(producer)
    producer.fail_over(0, 12)
    producer.put(0, "new", "x")
    rows, reading = read(producer, work)
    assert (rows[0]["event"], rows[0]["seqno"], rows[0]["epoch"]) == ("rollback", 0, 77)
    assert {row["epoch"] for row in rows} == {77}
    assert state_of(rows) == producer.state()
    (reached,) = reading.reached().values()
    assert (reached.position.seqno, reached.position.epoch) == (13, 77)


def test_a_failover_that_comes_while_the_stream_is_asked_for_comes_out_as_rows_too() -> None:
    producer = filled()
    work = planned(producer)
    producer.plot = [lambda one: one.fail_over(0, 12)]
    rows, _ = read(producer, work)
    assert rows[0]["event"] == "rollback"
    assert state_of(rows) == producer.state()


def test_a_vbucket_that_lost_everything_between_plan_and_read_comes_out_as_a_rollback() -> None:
    producer = filled()
    work = planned(producer)
    producer.fail_over(0, 0)
    rows, _ = read(producer, work)
    assert [(row["event"], row["seqno"], row["epoch"]) for row in rows] == [("rollback", 0, 77)]


class Counting(ScriptedFeed):
    asked = 0

    def failover_logs(self, vbuckets: Sequence[VBucketId]) -> dict[VBucketId, FailoverLog]:
        self.asked += len(vbuckets)
        return dict(super().failover_logs(vbuckets))


def test_logs_are_not_asked_for_where_a_stream_from_the_start_brings_them() -> None:
    feed = Counting(filled())
    rows = list(Reading(feed, planned(filled()), rollback_epoch=1).batches())
    assert (len(rows), feed.asked) == (1, 0)


def test_many_new_branches_in_a_row_are_no_reason_to_give_up() -> None:
    producer = filled()
    work = planned(producer)
    producer.plot = [lambda one: one.fail_over(0, one.histories[0].high) for _ in range(50)]
    rows, _ = read(producer, work)
    assert state_of(rows) == producer.state()


def test_to_latest_reads_to_where_the_producer_is() -> None:
    producer = filled(cut=10)
    work = planned(producer, high=5)
    rows, _ = read(producer, work)
    assert max(row["seqno"] for row in rows) == 10
    rows, _ = read(producer, work, to_latest=True)
    assert max(row["seqno"] for row in rows) == 20


class GivingUp(ScriptedFeed):
    def drain(self, spans: Sequence[Span]) -> Iterator[News]:
        yield from (news for news in super().drain(spans) if not isinstance(news, Finished))


def test_a_span_that_is_not_read_to_its_end_is_an_error() -> None:
    producer = filled()
    reading = Reading(GivingUp(producer), planned(producer), rollback_epoch=1)
    with pytest.raises(ConnectionLost, match="vbucket 0 was not read to its planned end"):
        list(reading.batches())


def test_batches_have_a_good_size(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer.with_vbuckets(1)
    for number in range(BATCH_ROWS + 500):
        producer.put(0, f"k{number}", "v")

    def sizes() -> list[int]:
        reading = Reading(ScriptedFeed(producer), planned(producer), rollback_epoch=1)
        return [rows.num_rows for rows in reading.batches()]

    assert sizes() == [BATCH_ROWS + 500], "not cut for a few rows"
    monkeypatch.setattr(reading_module, "BATCH_ROWS_MAX", BATCH_ROWS)
    assert sizes() == [BATCH_ROWS, 500]


def test_nothing_to_read_is_nothing() -> None:
    assert list(Reading(ScriptedFeed(filled()), [], rollback_epoch=1).batches()) == []


def batch(*rows: tuple[str, int]) -> pa.RecordBatch:
    """A batch of (event, seqno)."""
    found = [
        {"vbucket": 0, "epoch": 0, "seqno": seqno, "branch": 1, "event": event, "key": "k"}
        for event, seqno in rows
    ]
    return pa.RecordBatch.from_pylist(found, schema=ROW_SCHEMA)


def run_of(first: int, count: int) -> pa.RecordBatch:
    return batch(*(("mutation", seqno) for seqno in range(first, first + count)))


def seqnos(batches: Iterable[pa.RecordBatch]) -> list[list[int]]:
    return [one.column("seqno").to_pylist() for one in batches]


def test_small_batches_are_put_together_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_module, "BATCH_ROWS", 4)
    monkeypatch.setattr(reading_module, "BATCH_ROWS_MAX", 4)
    assert seqnos(joined([run_of(1, 2), run_of(3, 2), run_of(5, 1)])) == [[1, 2, 3, 4], [5]]
    assert seqnos(joined([run_of(1, 3), run_of(4, 3)])) == [[1, 2, 3], [4, 5, 6]]
    assert seqnos(joined([run_of(1, 1), run_of(2, 9)])) == [[1], [2, 3, 4, 5], [6, 7, 8, 9], [10]]
    assert seqnos(joined([])) == []


def test_a_rollback_is_a_batch_of_its_own() -> None:
    parts = [run_of(1, 2), batch(("rollback", 1)), run_of(2, 1), run_of(3, 1)]
    assert seqnos(joined(parts)) == [[1, 2], [1], [2, 3]]
    several = batch(("rollback", 1), ("rollback", 4))
    assert seqnos(joined([run_of(1, 2), several, run_of(5, 1)])) == [[1, 2], [1, 4], [5]]


def test_large_values_are_not_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_module, "BATCH_BYTES", run_of(1, 3).nbytes)
    assert seqnos(joined([run_of(1, 2), run_of(3, 2)])) == [[1, 2], [3, 4]]
