"""Verify finds nothing where nothing is wrong, and everything that is planted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from headrace.errors import StoreError
from headrace.spark.jobs import LocalRunner
from headrace.spark.sync import Sync, SyncOptions
from headrace.spark.verify import Difference, Report, verify
from tests.spark.producer import InMemory, Producer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def synced(path: Path, **options: object) -> tuple[Producer, Sync]:
    producer = Producer.with_vbuckets(4)
    for number in range(60):
        producer.put(number % 4, f"k{number % 50}", f"v{number}")
    producer.delete(0, "k0")
    sync = Sync(InMemory(producer), path, LocalRunner(), SyncOptions(parts=2, **options))  # type: ignore[arg-type]
    list(sync.once())
    return producer, sync


def checked(producer: Producer, path: Path) -> Report:
    return verify(InMemory(producer), path, LocalRunner())


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    producer, _ = synced(tmp_path)
    report = checked(producer, tmp_path)
    assert (report.count, report.newer) == (0, 0)
    assert report.documents == len(producer.state()) + 1, "the tombstone is looked at too"


def edited(sync: Sync, part: int, edit: Callable[[pa.Table], pa.Table]) -> None:
    """Change a file of `state` behind the table's back."""
    (file,) = [file for file in sync.state.table.files() if file.part == part]
    path = sync.state.path / file.path
    pq.write_table(edit(pq.read_table(path, partitioning=None)), path)


def with_value(table: pa.Table, key: str, value: bytes) -> pa.Table:
    values = pc.if_else(pc.equal(table["key"], key), pa.scalar(value), table["value"])
    return table.set_column(table.schema.get_field_index("value"), "value", values)


def test_every_planted_difference_is_found(tmp_path: Path) -> None:
    producer, sync = synced(tmp_path)
    edited(sync, 0, lambda t: t.filter(pc.not_equal(t["key"], "k1")))
    edited(sync, 1, lambda t: with_value(t, "k2", b"changed"))
    producer.histories[3].items = [i for i in producer.histories[3].items if i.key != b"k3"]
    report = checked(producer, tmp_path)
    found = sorted((one.kind, one.key) for one in report.differences)
    assert found == [("different", "k2"), ("extra", "k3"), ("missing", "k1")]
    assert report.count == 3
    assert "b'changed' in the table" in str(report.differences[1]) + str(report.differences[0])


def test_a_document_that_changed_since_is_not_judged(tmp_path: Path) -> None:
    producer, _ = synced(tmp_path)
    producer.put(1, "k1", "newer")
    producer.put(2, "fresh", "x")
    report = checked(producer, tmp_path)
    assert (report.count, report.newer) == (0, 2)


def test_a_rollback_not_taken_yet_is_told(tmp_path: Path) -> None:
    producer, _ = synced(tmp_path)
    producer.fail_over(2, 5)
    kinds = {(one.kind, one.vbucket) for one in checked(producer, tmp_path).differences}
    assert ("branch", 2) in kinds


def test_a_row_that_is_there_twice_is_told(tmp_path: Path) -> None:
    producer, sync = synced(tmp_path)
    file = sync.changes.row_files()[0]
    path = sync.changes.path / file.path
    table = pq.read_table(path, partitioning=None)
    pq.write_table(pa.concat_tables([table, table.slice(0, 1)]), path)
    (one,) = checked(producer, tmp_path).differences
    assert one.kind == "twice"


def test_a_state_that_stands_behind_is_refused(tmp_path: Path) -> None:
    producer, _ = synced(tmp_path)
    producer.put(0, "more", "x")
    list(Sync(InMemory(producer), tmp_path, LocalRunner(), SyncOptions(parts=2, state=None)).once())
    with pytest.raises(StoreError, match="state stands on turn 1, changes is at 2"):
        checked(producer, tmp_path)


def test_a_report_survives_its_way_through_spark() -> None:
    report = Report(5, 6, 1, 2, (Difference("extra", 3, "k", "x"),))
    assert Report.from_text(report.to_text()) == report
    assert Report.joined([report, report]).count == 4
