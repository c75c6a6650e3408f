"""One commit per turn: whole, once, by one writer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from headrace.errors import StoreError, StoreLocked
from headrace.spark.landing import LandedFile, RowFile
from headrace.spark.rows import ROW_SCHEMA
from headrace.spark.tables.changes import TABLE_SCHEMA
from headrace.spark.tables.delta import Table

if TYPE_CHECKING:
    from pathlib import Path


def table_at(path: Path) -> Table:
    table = Table(path / "t", TABLE_SCHEMA, "changes")
    table.create({"vbuckets": 4, "parts": 2})
    return table


def landed(table: Table, turn: int, *seqnos: int) -> LandedFile:
    rows = [
        {"vbucket": 0, "epoch": 0, "seqno": s, "branch": 1, "event": "mutation", "key": f"k{s}"}
        for s in seqnos
    ]
    file = RowFile(table.path, 0, turn)
    file.write(pa.RecordBatch.from_pylist(rows, schema=ROW_SCHEMA))
    found = file.finish()
    assert found is not None
    return found


def test_a_commit_is_visible_with_its_turn_and_its_summary(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    assert (table.turn, table.files()) == (0, [])
    assert table.commit(1, added=[landed(table, 1, 1, 2)], removed=[], summary={"rows": 2})
    (file,) = table.files()
    assert (table.turn, file.rows, file.part, file.turn_low) == (1, 2, 0, 1)
    assert table.summary() == {"rows": 2}


def test_a_turn_that_is_there_is_not_committed_again(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    table.commit(1, added=[landed(table, 1, 1)], removed=[], summary={})
    version = table.version
    again = Table(table.path, TABLE_SCHEMA, "changes")
    assert not again.commit(1, added=[landed(table, 1, 1)], removed=[], summary={})
    assert again.version == version


def test_a_second_writer_is_refused_and_nothing_of_it_is_seen(tmp_path: Path) -> None:
    first = table_at(tmp_path)
    second = Table(first.path, TABLE_SCHEMA, "changes")
    stale = second.open()
    first.commit(1, added=[landed(first, 1, 1)], removed=[], summary={})
    # The second one looked before the first committed, and does not look again.
    second.open = lambda: stale  # type: ignore[method-assign]
    with pytest.raises(StoreLocked, match="another writer was first"):
        second.commit(1, added=[landed(first, 1, 7)], removed=[], summary={})
    assert [file.rows for file in first.files()] == [1]


def test_files_are_replaced_in_one_step(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    table.commit(1, added=[landed(table, 1, 1)], removed=[], summary={})
    before = table.files()
    table.commit(2, added=[landed(table, 2, 2, 3)], removed=before, summary={})
    assert [file.rows for file in table.files()] == [2]


def test_a_directory_that_is_no_table_of_ours_is_refused(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    with pytest.raises(StoreError, match="not a table"):
        Table(tmp_path / "nothing", TABLE_SCHEMA, "changes").open()
    write_deltalake(str(tmp_path / "other"), pa.table({"a": [1]}))
    with pytest.raises(StoreError, match="not a changes table"):
        Table(tmp_path / "other", TABLE_SCHEMA, "changes").settings()
    with pytest.raises(StoreError, match="not a state table"):
        Table(table_at(tmp_path).path, TABLE_SCHEMA, "state").settings()


def test_vacuum_removes_what_no_turn_committed(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    table.commit(1, added=[landed(table, 1, 1)], removed=[], summary={})
    orphan = landed(table, 2, 9)
    assert (table.path / orphan.path).exists()
    table.vacuum(hours=0)
    assert not (table.path / orphan.path).exists()
    assert all((table.path / file.path).exists() for file in table.files())


def test_a_checkpoint_keeps_the_turn(tmp_path: Path) -> None:
    table = table_at(tmp_path)
    table.commit(1, added=[landed(table, 1, 1)], removed=[], summary={})
    table.checkpoint()
    for path in (table.path / "_delta_log").glob("*.json"):
        path.unlink()
    assert Table(table.path, TABLE_SCHEMA, "changes").turn == 1
