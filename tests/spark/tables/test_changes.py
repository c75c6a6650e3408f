"""The history table: turns, positions in the same commit, one bucket only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from headrace.errors import ConfigError, CorruptRecord
from headrace.history import SEQNO_MAX, BranchId, FailoverLog, ResumeToken, Seqno, VBucketId
from headrace.spark.landing import Landed, RowFile
from headrace.spark.positions import START, Position
from headrace.spark.rows import ROW_SCHEMA
from headrace.spark.tables.changes import POSITIONS_PART, ChangesTable, Shape

if TYPE_CHECKING:
    from pathlib import Path

LOG = FailoverLog.of((1111, 0))
NOTHING = Landed((), {}, (), {}, 0, 0)


def made(path: Path) -> ChangesTable:
    table = ChangesTable(path / "changes")
    table.create(vbuckets=16, parts=4)
    return table


def landed(table: ChangesTable, turn: int) -> Landed:
    file = RowFile(table.path, 1, turn)
    row = {"vbucket": 5, "epoch": 0, "seqno": 1, "branch": 1, "event": "mutation", "key": "k"}
    file.write(pa.RecordBatch.from_pylist([row], schema=ROW_SCHEMA))
    found = file.finish()
    assert found is not None
    return Landed((found,), {}, (), {}, 1, 10)


def test_a_new_table_is_at_the_start(tmp_path: Path) -> None:
    published = made(tmp_path).published()
    assert (published.turn, published.vector) == (0, {})
    assert published.position(VBucketId(3)) == START


def test_the_vector_comes_back_as_it_was_committed(tmp_path: Path) -> None:
    table = made(tmp_path)
    huge = Position(ResumeToken.at_boundary(BranchId(SEQNO_MAX), SEQNO_MAX), 3)
    vector = {VBucketId(5): START.advanced(Seqno(9), LOG), VBucketId(0): huge}
    assert table.commit(1, landed(table, 1), vector)
    published = ChangesTable(table.path).published()
    assert (published.turn, published.vector) == (1, vector)


def test_the_positions_of_a_turn_replace_those_before(tmp_path: Path) -> None:
    table = made(tmp_path)
    for turn in (1, 2, 3):
        table.commit(turn, NOTHING, {VBucketId(0): START.advanced(Seqno(turn), LOG)})
    assert [file.part for file in table.files()] == [POSITIONS_PART]
    assert table.row_files() == []
    assert table.published().position(VBucketId(0)).seqno == 3


def test_a_repeated_turn_changes_nothing_and_leaves_no_file(tmp_path: Path) -> None:
    table = made(tmp_path)
    table.commit(1, landed(table, 1), {VBucketId(0): START})
    before = sorted(table.path.rglob("*.parquet"))
    assert not table.commit(1, landed(table, 1), {VBucketId(0): START.advanced(Seqno(5), LOG)})
    assert sorted(table.path.rglob("*.parquet")) == before
    assert table.published().position(VBucketId(0)).seqno == 0


def test_positions_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    table = made(tmp_path)
    table.commit(1, NOTHING, {VBucketId(0): START})
    (file,) = table.files()
    rows = [
        {
            "vbucket": 0,
            "epoch": 0,
            "seqno": 0,
            "branch": 0,
            "event": "position",
            "key": "",
            "value": b"{",
        }
    ]
    broken = RowFile(table.path, POSITIONS_PART, 1)
    broken.write(pa.RecordBatch.from_pylist(rows, schema=ROW_SCHEMA))
    broken.finish()
    broken.path.rename(table.path / file.path)
    with pytest.raises(CorruptRecord, match="vbucket 0 cannot be read"):
        ChangesTable(table.path).published()


def test_a_vector_that_another_writer_has_replaced_is_read_again(tmp_path: Path) -> None:
    table = made(tmp_path)
    table.commit(1, NOTHING, {VBucketId(0): START})
    assert table.published() is table.published(), "one version is read once"
    other = ChangesTable(table.path)
    other.commit(2, NOTHING, {VBucketId(0): START.advanced(Seqno(5), LOG)})
    assert table.published().position(VBucketId(0)).seqno == 5


def test_a_bucket_of_another_size_is_refused(tmp_path: Path) -> None:
    made(tmp_path)
    with pytest.raises(ConfigError, match="16 vbuckets, this one has 64"):
        ChangesTable(tmp_path / "changes").create(vbuckets=64)


@pytest.mark.parametrize("parts", [0, 17])
def test_parts_that_cannot_be_are_refused(tmp_path: Path, parts: int) -> None:
    with pytest.raises(ConfigError, match=r"allowed 1\.\.16"):
        ChangesTable(tmp_path / "changes").create(vbuckets=16, parts=parts)


@pytest.mark.parametrize(("vbuckets", "parts"), [(1024, 8), (64, 7), (5, 5), (1, 1)])
def test_every_vbucket_is_in_one_part_and_every_part_has_some(vbuckets: int, parts: int) -> None:
    shape = Shape(vbuckets, parts)
    found = [vb for part in range(parts) for vb in shape.vbuckets_of(part)]
    assert found == list(range(vbuckets))
    assert all(shape.vbuckets_of(part) for part in range(parts))
