"""A slice of the campaign: each kind of kill, twice. `python -m tests.spark.campaign` is the whole.

And the judgement itself: it finds what it is there to find.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.spark.jobs import LocalRunner
from headrace.spark.sync import Sync, SyncOptions
from tests.spark.campaign import VICTIMS, Campaign, dead_in_state, rollbacks_of, rows_twice
from tests.spark.producer import InMemory, Producer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TIMES = 2


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kill", VICTIMS)
def test_what_is_killed_loses_and_doubles_nothing(kill: str, tmp_path: Path) -> None:
    lines: list[str] = []
    Campaign(tmp_path, kill, times=TIMES, seed=7).run(lines.append)
    assert f"{TIMES} kills" in lines[-1]


def synced(path: Path) -> Sync:
    producer = Producer.with_vbuckets(2)
    sync = Sync(InMemory(producer), path, LocalRunner(), SyncOptions(parts=1))
    for number in range(20):
        producer.put(number % 2, f"k{number}", "before")
    list(sync.once())
    producer.fail_over(0, 5)
    producer.put(0, "k0", "after")
    list(sync.once())
    return sync


def edit(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path, partitioning=None)), path)


def test_tables_that_are_right_pass_the_judgement(tmp_path: Path) -> None:
    synced(tmp_path)
    assert (rows_twice(tmp_path), dead_in_state(tmp_path), rollbacks_of(tmp_path)) == (0, 0, 1)


def test_a_row_that_is_there_twice_is_found(tmp_path: Path) -> None:
    sync = synced(tmp_path)
    largest = max(sync.changes.row_files(), key=lambda file: file.rows)
    edit(sync.changes.path / largest.path, lambda rows: pa.concat_tables([rows, rows.slice(0, 3)]))
    assert rows_twice(tmp_path) == 3


def test_a_row_of_a_dead_branch_in_state_is_found(tmp_path: Path) -> None:
    sync = synced(tmp_path)
    (file,) = sync.state.table.files()

    def revive(rows: pa.Table) -> pa.Table:
        dead = rows.to_pylist()[:1]
        dead[0] |= {"vbucket": 0, "epoch": 0, "seqno": 9, "key": "revived"}
        return pa.concat_tables([rows, pa.Table.from_pylist(dead, rows.schema)])

    edit(sync.state.path / file.path, revive)
    assert dead_in_state(tmp_path) == 1
