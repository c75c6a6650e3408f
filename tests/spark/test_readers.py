"""The planner and its tasks as Spark calls them, without Spark."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from headrace.errors import ConnectionLost
from headrace.history import BranchId, FailoverLog, Seqno, VBucketId
from headrace.spark.feed import Finished, News, RolledBack, Span
from headrace.spark.options import SourceOptions
from headrace.spark.readers import BatchReader, Part, StreamReader, partition_count
from tests.spark.producer import InMemory, Producer, ScriptedFeed
from tests.spark.worlds import state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


ALL = ReadAllAvailable()


def options(**given: str) -> SourceOptions:
    return SourceOptions.of({"url": "x", "pollSeconds": "0", "patienceSeconds": "0", **given})


def filled(count: int = 40) -> Producer:
    producer = Producer.with_vbuckets(4)
    for number in range(count):
        producer.put(number % 4, f"k{number % 11}", f"{number}")
    return producer


@pytest.fixture
def reader_of() -> Iterator[Callable[..., StreamReader]]:
    made: list[StreamReader] = []

    def make(producer: Producer, **given: str) -> StreamReader:
        made.append(StreamReader(options(**given), InMemory(producer)))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def run(reader: StreamReader, start: dict[str, object], end: dict[str, object]) -> list[dict]:  # type: ignore[type-arg]
    """Plan and read one batch, its partitions through pickle as Spark does."""
    found = []
    for part in reader.partitions(start, end):
        sent = pickle.loads(pickle.dumps(part))  # noqa: S301 - our own bytes
        for batch in reader.read(sent):
            found += batch.to_pylist()
    return found


def test_a_query_from_the_beginning_reads_everything_then_waits(
    reader_of: Callable[..., StreamReader],
) -> None:
    producer = filled()
    reader = reader_of(producer)
    start = reader.initialOffset()
    assert reader.initialOffset() == start, "Spark asks twice and keeps neither"
    end = reader.latestOffset(start, ALL)
    rows = run(reader, start, end)
    assert state_of(rows) == producer.state()
    settled = reader.latestOffset(end, ALL)
    assert run(reader, end, settled) == []
    assert reader.latestOffset(settled, ALL) == settled


def test_offsets_go_through_sparks_json(reader_of: Callable[..., StreamReader]) -> None:
    reader = reader_of(filled())
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert json.loads(json.dumps(end)) == end


def test_a_query_from_now_is_anchored_and_loses_nothing_in_a_crash_of_batch_0(
    reader_of: Callable[..., StreamReader],
) -> None:
    producer = filled()
    first = reader_of(producer, start="now")
    start = first.initialOffset()
    anchor = first.latestOffset(start, ALL)
    assert first.partitions(start, anchor) == []
    producer.put(1, "after", "x")
    # Spark logged the anchor, crashed before its batch, and starts a new planner from its log.
    second = reader_of(producer, start="now")
    end = second.latestOffset(anchor, ALL)
    assert [row["key"] for row in run(second, anchor, end)] == ["after"]


def test_available_now_stops_at_what_there_was(reader_of: Callable[..., StreamReader]) -> None:
    producer = filled()
    reader = reader_of(producer)
    reader.prepareForTriggerAvailableNow()
    before = producer.state()
    producer.cut(0)
    producer.put(0, "later", "x")
    offset = reader.initialOffset()
    rows: list[dict] = []  # type: ignore[type-arg]
    for _ in range(20):
        following = reader.latestOffset(offset, ReadMaxRows(7))
        if following == offset:
            break
        rows += run(reader, offset, following)
        offset = following
    else:
        pytest.fail("the query does not end")
    assert state_of(rows) == before


def test_limits_are_taken_from_the_options(reader_of: Callable[..., StreamReader]) -> None:
    assert reader_of(filled(), maxRowsPerBatch="9").getDefaultReadLimit() == ReadMaxRows(9)
    assert reader_of(filled(), maxBytesPerBatch="9").getDefaultReadLimit() == ReadMaxBytes(9)
    assert isinstance(reader_of(filled()).getDefaultReadLimit(), ReadAllAvailable)


def test_lag_is_told_to_sparks_progress(reader_of: Callable[..., StreamReader]) -> None:
    producer = filled()
    reader = reader_of(producer)
    reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
    assert reader.reportLatestOffset() == {"seqnos": "40", "lag": "30"}


def test_a_planner_that_starts_again_repeats_the_tail_unless_a_directory_kept_it(
    reader_of: Callable[..., StreamReader], tmp_path: Path
) -> None:
    for directory in ({}, {"stateDirectory": str(tmp_path)}):
        producer = filled()
        first = reader_of(producer, **directory)
        start = first.initialOffset()
        end = first.latestOffset(start, ReadMaxRows(8))
        assert len(run(first, start, end)) > 8, "snapshots are read whole"
        producer.put(0, "k", "after")
        second = reader_of(producer, **directory)
        rows = run(second, end, second.latestOffset(end, ALL))
        assert (len(rows) == 1) == bool(directory)
        assert "after" in {row["value"].decode() for row in rows}


def test_a_reader_travels_without_its_connections(reader_of: Callable[..., StreamReader]) -> None:
    producer = filled()
    reader = reader_of(producer)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    reader.partitions(reader.initialOffset(), end)
    copy: object = pickle.loads(pickle.dumps(reader))  # noqa: S301 - our own bytes
    assert isinstance(copy, StreamReader)
    assert copy._feed is None
    assert copy._listener is None


def test_a_source_that_is_away_is_an_error_after_patience() -> None:
    class Away(InMemory):
        def __call__(self):  # type: ignore[no-untyped-def]  # noqa: ANN204
            raise ConnectionLost("nobody is there")

    reader = StreamReader(options(), Away(filled()))
    with pytest.raises(ConnectionLost):
        reader.latestOffset(reader.initialOffset(), ALL)


def test_a_batch_read_is_a_snapshot_of_every_vbucket() -> None:
    producer = filled()
    reader = BatchReader(options(partitions="3"), InMemory(producer))
    rows = [r for part in reader.partitions() for b in reader.read(part) for r in b.to_pylist()]
    assert state_of(rows) == producer.state()


def test_a_batch_read_of_nothing_is_one_empty_partition() -> None:
    reader = BatchReader(options(), InMemory(Producer.with_vbuckets(4)))
    (part,) = reader.partitions()
    assert list(reader.read(part)) == []


def test_a_batch_read_reads_the_history_that_lives_when_a_task_begins() -> None:
    producer = filled()
    reader = BatchReader(options(), InMemory(producer))
    parts = reader.partitions()
    producer.fail_over(0, 3)
    rows = [r for part in parts for b in reader.read(part) for r in b.to_pylist()]
    assert {row["event"] for row in rows} == {"mutation"}
    assert state_of(rows) == producer.state()


def test_a_batch_read_of_what_was_lost_in_between_is_empty() -> None:
    producer = filled()
    reader = BatchReader(options(), InMemory(producer))
    parts = reader.partitions()
    for vbucket in range(4):
        producer.fail_over(vbucket, 0)
    assert [batch for part in parts for batch in reader.read(part)] == []


def test_a_rollback_in_a_batch_read_is_read_again_by_spark() -> None:
    class Forking(ScriptedFeed):
        def drain(self, spans: Sequence[Span]) -> Iterator[News]:
            yield from (one for one in super().drain(spans) if not isinstance(one, Finished))
            log = FailoverLog.of((99, 3))
            yield RolledBack(VBucketId(0), Seqno(10), Seqno(0), BranchId(1), log)

    class Source(InMemory):
        def __call__(self) -> ScriptedFeed:
            return Forking(self.producer)

    reader = BatchReader(options(), Source(filled()))
    with pytest.raises(ConnectionLost, match="rolled back while it was read"):
        [batch for part in reader.partitions() for batch in reader.read(part)]


@pytest.mark.parametrize(
    ("size", "most", "count"), [(0, 8, 1), (10, 8, 1), (60_000, 8, 2), (10**9, 8, 8)]
)
def test_small_batches_get_few_tasks(size: int, most: int, count: int) -> None:
    assert partition_count(size, most) == count


def test_a_part_shows_no_secret(reader_of: Callable[..., StreamReader]) -> None:
    reader = reader_of(filled())
    start = reader.initialOffset()
    (part,) = reader.partitions(start, reader.latestOffset(start, ALL))
    assert isinstance(part, Part)
    assert part.address is not None
    assert repr(part.address.secret) not in repr(part)
