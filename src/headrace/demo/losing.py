"""The failover with loss: which vbucket, what is lost, and what of it the tables had to take back.

The loss is chosen so that it can be seen: the vbucket whose tables are furthest is failed over
below where its tables stand. The tables have then published changes that never happened, and have
to withdraw them.

Rules.
- What is told about the tables is read from the tables, after the turn that took the rollback: dead
  rows are those the rollback's own rule names, and `state` is looked at for leftovers.
- The tables go back to a boundary at or below the seqno of the new branch (see
  `headrace.spark.positions`), so they may withdraw more than the node lost; what still exists is
  streamed again.

Imports: errors, spark.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.errors import HeadraceError
from headrace.spark.rows import ROLLBACK
from headrace.spark.tables.views import open_changes, open_state

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headrace.spark.positions import Withdrawal

LOST_BELOW_TABLES: Final = 60
"""Seqnos that the tables had and the node loses."""
POSITION_MIN: Final = 20
EXAMPLE_FIELDS: Final = ("status", "total", "last_order")
_COLUMNS: Final = ("vbucket", "epoch", "seqno", "event", "key", "value")


@dataclass(frozen=True, slots=True)
class Loss:
    """A failover as the node did it."""

    vbucket: int
    high_seqno: int
    seqno: int
    branch: str


@dataclass(frozen=True, slots=True)
class Example:
    """One document whose latest version never happened."""

    key: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """What the tables took back."""

    vbucket: int
    from_seqno: int
    to_seqno: int
    rows: int
    documents: int
    dead_branch: str
    branch: str
    visible: int
    example: Example | None


@dataclass(frozen=True, slots=True)
class SnapshotSeen:
    """A snapshot of a vbucket as a turn published it."""

    turn: int
    start: int
    end: int
    rows: int
    dead: bool


def place_to_lose(positions: Mapping[int, int]) -> tuple[int, int]:
    """The vbucket to fail over and the seqno its new branch begins at."""
    vbucket, position = max(positions.items(), key=lambda one: (one[1], -one[0]), default=(0, 0))
    if position < POSITION_MIN:
        raise HeadraceError(
            f"the tables have {position} seqnos of their fullest vbucket, a failover that can be "
            f"seen needs {POSITION_MIN}; try more --documents or more --seconds"
        )
    return vbucket, position - min(LOST_BELOW_TABLES, position // 2)


def withdrawn(directory: Path, told: Withdrawal) -> Withdrawn:
    """What the tables say about a rollback they have taken."""
    rows = _rows_of(directory, told.vbucket)
    above = pc.and_(pc.less(rows["epoch"], told.epoch), pc.greater(rows["seqno"], told.to_seqno))
    dead = rows.filter(pc.and_(above, pc.not_equal(rows["event"], ROLLBACK)))
    state = _state_of(directory, told.vbucket)
    left = state.filter(
        pc.and_(pc.less(state["epoch"], told.epoch), pc.greater(state["seqno"], told.to_seqno))
    )
    return Withdrawn(
        vbucket=int(told.vbucket),
        from_seqno=int(told.from_seqno),
        to_seqno=int(told.to_seqno),
        rows=dead.num_rows,
        documents=len(pc.unique(dead["key"])),
        dead_branch=f"{told.dead_branch:016x}",
        branch=f"{told.branch:016x}",
        visible=left.num_rows,
        example=_example(dead, state),
    )


def snapshots(directory: Path, vbucket: int) -> list[SnapshotSeen]:
    """Every snapshot of a vbucket that the tables have, the withdrawn ones marked."""
    rows = _rows_of(directory, vbucket, (*_COLUMNS, "turn", "snapshot_start", "snapshot_end"))
    ends = [(row["epoch"], row["seqno"]) for row in rows.to_pylist() if row["event"] == ROLLBACK]
    counted: Counter[tuple[int, int, int, bool]] = Counter()
    for row in rows.to_pylist():
        if row["event"] == ROLLBACK or row["snapshot_end"] is None:
            continue
        dead = any(row["epoch"] < epoch and row["seqno"] > seqno for epoch, seqno in ends)
        counted[row["turn"], row["snapshot_start"], row["snapshot_end"], dead] += 1
    return [
        SnapshotSeen(turn, start, end, count, dead)
        for (turn, start, end, dead), count in sorted(counted.items())
    ]


def _rows_of(directory: Path, vbucket: int, columns: tuple[str, ...] = _COLUMNS) -> pa.Table:
    table = open_changes(directory)
    files = table.row_files([table.shape().part_of(vbucket)])
    return _read([table.path / file.path for file in files], vbucket, columns)


def _state_of(directory: Path, vbucket: int) -> pa.Table:
    table = open_state(directory)
    part = open_changes(directory).shape().part_of(vbucket)
    files = [file for file in table.table.files() if file.part == part]
    return _read([table.path / file.path for file in files], vbucket, _COLUMNS)


def _read(paths: list[Path], vbucket: int, columns: tuple[str, ...]) -> pa.Table:
    tables = [pq.read_table(path, columns=list(columns), partitioning=None) for path in paths]
    rows = pa.concat_tables(tables)
    return rows.filter(pc.equal(rows["vbucket"], vbucket))


def _example(dead: pa.Table, state: pa.Table) -> Example | None:
    """A document that has gone back in time, an order's status if there is one."""
    newest = {
        row["key"]: row for row in sorted(dead.to_pylist(), key=lambda row: int(row["seqno"]))
    }
    held: dict[str, dict[str, object]] = {}
    for row in sorted(state.to_pylist(), key=lambda row: (row["epoch"], row["seqno"])):
        held[row["key"]] = row
    found: list[Example] = []
    for key, row in newest.items():
        now = held.get(key)
        before, after = _told(row), "gone" if now is None else _told(now)
        if before != after:
            found.append(Example(key, before, after))
    found.sort(key=lambda one: (not one.key.startswith("order::"), one.after == "gone", one.key))
    return found[0] if found else None


def _told(row: Mapping[str, object]) -> str:
    """A version of a document in a few words."""
    value = row["value"]
    if row["event"] != "mutation" or not isinstance(value, bytes):
        return "gone"
    said = json.loads(value)
    for name in EXAMPLE_FIELDS:
        if name in said:
            return f"{name} {said[name]}"
    return f"{len(value)} bytes"
