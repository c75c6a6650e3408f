"""What a loss of power leaves of a table."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from headrace.errors import StoreError
from headrace.history import FailoverLog, Seqno, VBucketId
from headrace.spark import durable
from headrace.spark.landing import Landed, RowFile
from headrace.spark.positions import START
from headrace.spark.rows import ROW_SCHEMA
from headrace.spark.tables.changes import ChangesTable

if TYPE_CHECKING:
    from pathlib import Path

LOG = FailoverLog.of((0xAB, 0))
NOTHING = Landed((), {}, (), {}, 0, 0)


def table_of_turns(path: Path, turns: int) -> ChangesTable:
    table = ChangesTable(path / "changes")
    table.create(vbuckets=4, parts=2)
    for turn in range(1, turns + 1):
        table.commit(turn, NOTHING, {VBucketId(0): START.advanced(Seqno(turn), LOG)})
    return table


class Synced:
    """Notes what is put on the disk, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        real = os.fsync

        def note(handle: int) -> None:
            self.names.append(os.readlink(f"/proc/self/fd/{handle}"))
            real(handle)

        monkeypatch.setattr(os, "fsync", note)

    def place(self, end: str) -> int:
        return next(at for at, name in enumerate(self.names) if name.endswith(end))


def test_a_whole_log_has_no_torn_commit(tmp_path: Path) -> None:
    table = table_of_turns(tmp_path, 2)
    assert durable.torn_commit(table.path) is None
    assert table.table.heal() is None
    assert durable.torn_commit(tmp_path / "nowhere") is None


@pytest.mark.parametrize("kept", [0, 1, 10, -1, -10])
def test_a_torn_commit_is_put_aside_and_its_turn_comes_again(tmp_path: Path, kept: int) -> None:
    table = table_of_turns(tmp_path, 3)
    commit = table.path / durable.LOG / f"{table.table.version:020d}.json"
    commit.write_bytes(commit.read_bytes().rstrip()[:kept])
    again = ChangesTable(table.path)
    assert again.table.heal() == commit
    assert not commit.exists()
    assert again.published().turn == 2
    assert again.commit(3, NOTHING, {VBucketId(0): START.advanced(Seqno(9), LOG)})
    assert ChangesTable(table.path).published().position(VBucketId(0)).seqno == 9


def test_without_healing_a_torn_commit_is_one_sentence(tmp_path: Path) -> None:
    table = table_of_turns(tmp_path, 1)
    commit = table.path / durable.LOG / f"{table.table.version:020d}.json"
    commit.write_bytes(commit.read_bytes()[:10])
    with pytest.raises(StoreError, match="is not a table that can be read"):
        ChangesTable(table.path).published()


def test_files_are_on_the_disk_before_the_commit_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of_turns(tmp_path, 1)
    synced = Synced(monkeypatch)
    file = RowFile(table.path, 1, 2)
    row = {"vbucket": 3, "epoch": 0, "seqno": 1, "branch": 0xAB, "event": "mutation", "key": "k"}
    file.write(pa.RecordBatch.from_pylist([row], schema=ROW_SCHEMA))
    landed = file.finish()
    assert landed is not None
    table.commit(2, Landed((landed,), {}, (), {}, 1, 0), {VBucketId(3): START})
    commit = f"{table.table.version:020d}.json"
    assert synced.place(landed.path) < synced.place(commit)
    assert synced.place("/part=1") < synced.place(commit), "the file's name too"
    assert synced.place(commit) < len(synced.names) - 1
    assert synced.names[-1].endswith(durable.LOG), "and the name of the commit last"
