"""Files that tasks write: what is in them, what they tell, what they leave behind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import ConnectionLost
from headrace.history import BranchId, FailoverLog, Seqno, VBucketId
from headrace.spark.feed import Completed, Finished, News, Opened, RolledBack, Rows, Span
from headrace.spark.landing import FILE_SCHEMA, Landed, LandingTask, land
from headrace.spark.positions import START, Withdrawal
from tests.spark.producer import InMemory, Item, Producer, ScriptedFeed, batch_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

VB = VBucketId(0)
NEW = FailoverLog.of((99, 0))


def filled() -> Producer:
    producer = Producer.with_vbuckets(4)
    for number in range(40):
        producer.put(number % 4, f"k{number}", f"v{number}")
    return producer


def spans_of(producer: Producer, *vbuckets: int) -> tuple[Span, ...]:
    return tuple(Span(VBucketId(vb), START, Seqno(producer.histories[vb].high)) for vb in vbuckets)


def test_a_task_writes_one_file_per_part_and_tells_what_is_in_it(tmp_path: Path) -> None:
    producer = filled()
    work = ((0, spans_of(producer, 0, 1)), (1, spans_of(producer, 2, 3)))
    landed = Landed.from_text(LandingTask(InMemory(producer), str(tmp_path), 7, work)())
    assert [(file.part, file.rows) for file in landed.files] == [(0, 20), (1, 20)]
    assert {vb: one.seqno for vb, one in landed.positions.items()} == dict.fromkeys(range(4), 10)
    for file in landed.files:
        table = pq.read_table(tmp_path / file.path, partitioning=None)
        assert table.schema.equals(FILE_SCHEMA)
        assert set(table["turn"].to_pylist()) == {7}
        stats = json.loads(file.stats)
        assert stats["numRecords"] == table.num_rows
        assert stats["maxValues"]["seqno"] == 10
        assert file.size == (tmp_path / file.path).stat().st_size


def test_an_account_survives_its_way_through_spark(tmp_path: Path) -> None:
    producer = filled()
    work = ((0, spans_of(producer, 0)),)
    text = LandingTask(InMemory(producer), str(tmp_path), 1, work)()
    landed = Landed.from_text(text)
    landed = Landed.joined(
        [
            landed,
            Landed(
                (),
                {},
                (Withdrawal(VB, 3, Seqno(2), Seqno(2**64 - 1), BranchId(5), BranchId(6)),),
                {VB: "x"},
                0,
                0,
            ),
        ]
    )
    assert Landed.from_text(landed.to_text()) == landed


def test_a_part_without_rows_has_no_file(tmp_path: Path) -> None:
    landed = land(ScriptedFeed(filled()), tmp_path, 1, ((0, ()),))
    assert landed.files == ()
    assert list(tmp_path.iterdir()) == []


class Torn(ScriptedFeed):
    """A feed that gives up in the middle of its second snapshot."""

    def drain(self, spans: Sequence[Span]) -> Iterator[News]:
        assert [span.vbucket for span in spans] == [VB]
        log = self.producer.histories[0].log
        yield Opened(VB, Seqno(0), log)
        yield Rows(batch_of(0, [Item(1, b"a", b"1"), Item(2, b"b", b"1")], start=1, end=2))
        yield Completed(VB, Seqno(2))
        yield Rows(batch_of(0, [Item(3, b"a", b"2")], start=3, end=5))
        yield Finished(VB, False, "the node went away")


def test_rows_of_a_torn_snapshot_are_not_in_the_file(tmp_path: Path) -> None:
    spans = (Span(VB, START, Seqno(5)),)
    landed = land(Torn(filled()), tmp_path, 1, ((0, spans),))
    assert landed.unfinished == {VB: "the node went away"}
    assert landed.positions[VB].seqno == 2
    (file,) = landed.files
    assert pq.read_table(tmp_path / file.path, partitioning=None)["seqno"].to_pylist() == [1, 2]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1, "the file with the torn rows is gone"


class Failing(ScriptedFeed):
    def drain(self, spans: Sequence[Span]) -> Iterator[News]:
        yield from list(super().drain(spans))[:-1]
        raise ConnectionLost("gone")


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    producer = filled()
    with pytest.raises(ConnectionLost):
        land(Failing(producer), tmp_path, 1, ((0, spans_of(producer, 0)),))
    assert list(tmp_path.rglob("*.parquet")) == []


class Returning(ScriptedFeed):
    """A feed whose first vbucket is rolled back after it had come to its end."""

    def drain(self, spans: Sequence[Span]) -> Iterator[News]:
        told = [one for one in super().drain(spans) if not isinstance(one, Finished)]
        yield from told
        yield RolledBack(VB, Seqno(10), Seqno(0), BranchId(1), NEW)
        yield Opened(VB, Seqno(0), NEW)
        yield Rows(batch_of(0, [Item(1, b"again", b"1")], start=1, end=1))
        yield Completed(VB, Seqno(1))
        yield from (Finished(span.vbucket, True) for span in spans)


def test_rows_that_come_after_a_part_was_closed_are_in_a_file_of_their_own(tmp_path: Path) -> None:
    producer = filled()
    work = ((0, spans_of(producer, 0, 1)), (1, spans_of(producer, 2, 3)))
    landed = land(Returning(producer), tmp_path, 1, work)
    assert [(file.part, file.rows) for file in landed.files] == [(0, 20), (0, 2), (1, 20)]
    again = pq.read_table(tmp_path / landed.files[1].path, partitioning=None)
    assert again["event"].to_pylist() == ["rollback", "mutation"]
    assert landed.rows == 42
    assert len(list(tmp_path.rglob("*.parquet"))) == 3


class Mixed(ScriptedFeed):
    """A feed whose batches hold rows of several vbuckets, as the client's do."""

    def drain(self, spans: Sequence[Span]) -> Iterator[News]:
        told = list(super().drain(spans))
        yield from (one for one in told if isinstance(one, Opened))
        batches = [one.batch for one in told if isinstance(one, Rows)]
        halves = [b.slice(at, b.num_rows // 2) for at in (0, 5) for b in batches]
        yield Rows(pa.concat_batches(halves))
        yield from (one for one in told if isinstance(one, Completed | Finished))


def test_a_batch_of_many_vbuckets_is_divided_among_the_parts(tmp_path: Path) -> None:
    producer = filled()
    work = ((3, spans_of(producer, 0, 2)), (5, spans_of(producer, 1, 3)))
    landed = land(Mixed(producer), tmp_path, 1, work)
    assert [(file.part, file.rows) for file in landed.files] == [(3, 20), (5, 20)]
    for file, vbuckets in zip(landed.files, ({0, 2}, {1, 3}), strict=True):
        table = pq.read_table(tmp_path / file.path, partitioning=None)
        assert set(table["vbucket"].to_pylist()) == vbuckets
        stats = json.loads(file.stats)
        assert (stats["minValues"]["vbucket"], stats["maxValues"]["vbucket"]) == (
            min(vbuckets),
            max(vbuckets),
        )
        assert stats["minValues"] | {"vbucket": 0} == {
            "turn": 1,
            "vbucket": 0,
            "epoch": 0,
            "seqno": 1,
        }


def test_two_copies_of_a_task_never_write_one_file(tmp_path: Path) -> None:
    producer = filled()
    task = LandingTask(InMemory(producer), str(tmp_path), 1, ((0, spans_of(producer, 0)),))
    first, second = Landed.from_text(task()), Landed.from_text(task())
    assert first.files[0].path != second.files[0].path
