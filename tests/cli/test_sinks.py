"""Sinks of tail: rollbacks are kept beside the rows they void."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from headrace.cli.sinks import ArrowFile, JsonLines, Lines, ParquetDirectory
from headrace.client.changes import Change, Kind, Rollback
from headrace.errors import ConfigError
from headrace.history import ZERO, BranchId
from tests.client.test_shelf import batch

if TYPE_CHECKING:
    from pathlib import Path

ROLLBACK = Rollback(vbucket=1, from_seqno=9, to_seqno=5, dead_branch=BranchId(0xAB), token=ZERO)


def test_a_rollback_is_a_line_between_lines() -> None:
    out = io.StringIO()
    sink = Lines(out, lambda text, _: text, lambda number: f"c{number}")
    change = Change(
        vbucket=1, seqno=9, kind=Kind.MUTATION, key=b"k", value=b"v", collection_id=8, token=ZERO
    )
    sink.take(change)
    sink.take(ROLLBACK)
    sink.commit()
    first, second = out.getvalue().splitlines()
    assert "1:9          mutation       c8/k v" in first
    assert second.startswith("rollback: vbucket 1 is rolled back from 9 to 5")
    out = io.StringIO()
    JsonLines(out, str).take(ROLLBACK)
    assert json.loads(out.getvalue())["to_seqno"] == 5


def test_a_rollback_ends_a_parquet_file(tmp_path: Path) -> None:
    sink = ParquetDirectory(tmp_path, rows_per_file=100)
    sink.take(batch((1, 8), (1, 9)))
    assert not sink.commit(), "not full yet: nothing is safe"
    sink.roll_back(ROLLBACK)
    assert sink.commit()
    sink.take(batch((1, 6)))
    sink.close()
    assert [pq.read_metadata(tmp_path / f"part-00000{n}.parquet").num_rows for n in (0, 1)] == [
        2,
        1,
    ]
    note = json.loads((tmp_path / "rollbacks.jsonl").read_text())
    assert (note["vbucket"], note["to_seqno"], note["before_part"]) == (1, 5, 1)


def test_an_arrow_file_notes_rollbacks_beside_it(tmp_path: Path) -> None:
    sink = ArrowFile(tmp_path / "x")
    sink.take(batch((1, 9)))
    sink.roll_back(ROLLBACK)
    sink.close()
    assert json.loads((tmp_path / "x.rollbacks.jsonl").read_text())["from_seqno"] == 9


def test_places_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        ArrowFile(tmp_path / "absent" / "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        ParquetDirectory(tmp_path / "file")
