"""Upkeep of `changes`: many small files into few, and a horizon below which versions are forgotten.

Every turn adds a file per part. `compact` writes a part's files anew as one, in the order of
(vbucket, epoch, seqno). With ``keep_since`` it also forgets: versions that were superseded before
that time, rows that a rollback withdrew, deletions that nothing older is left for. What is kept
still gives the state at every boundary at or above the horizon; boundaries below it are taken out
of the positions, so that a rollback that would need one streams its vbucket from 0 instead.

Rules.
- Upkeep is a turn: one commit, with files, positions and the next turn's number. A sync that runs
  meanwhile is refused, or refuses this; either way nothing is lost.
- The horizon of a vbucket is a boundary it holds, the greatest below its first change that is not
  older than ``keep_since``.
- The latest living version of every key stays, however old.

Imports: history, spark.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.history import NO_SEQNO, Seqno, VBucketId
from headrace.spark.landing import COMPACT_GROUP_BYTES, FILE_SCHEMA, Landed, RowFile
from headrace.spark.rows import MUTATION
from headrace.spark.tables.state import (
    DOCUMENT_EVENTS,
    StateOptions,
    is_tail,
    latest,
    living_rows,
)

if TYPE_CHECKING:
    from headrace.spark.jobs import Runner
    from headrace.spark.positions import Vector
    from headrace.spark.tables.changes import ChangesTable, Published
    from headrace.spark.tables.delta import TableFile
    from headrace.spark.tables.state import StateTable

FILES_MIN: Final = 2
"""A part with fewer files is left alone, unless something is to be forgotten."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What upkeep did."""

    files_before: int
    files_after: int
    rows_before: int
    rows_after: int


@dataclass(frozen=True)
class CompactTask:
    """Write one part anew."""

    table: str
    part: int
    turn: int
    paths: tuple[str, ...]
    boundaries: tuple[tuple[VBucketId, tuple[Seqno, ...]], ...]
    keep_since_us: int | None

    def __call__(self) -> str:
        """Read the part, forget what may be forgotten, write the rest in order."""
        table = Path(self.table)
        tables = [pq.read_table(table / path, partitioning=None) for path in self.paths]
        rows = pa.concat_tables(tables).cast(FILE_SCHEMA)
        horizons: dict[VBucketId, Seqno] = {}
        if self.keep_since_us is not None:
            horizons = horizons_of(rows, dict(self.boundaries), self.keep_since_us)
            rows = kept_rows(rows, horizons)
        order = [(name, "ascending") for name in ("vbucket", "epoch", "seqno")]
        file = RowFile(table, self.part, self.turn, group_bytes=COMPACT_GROUP_BYTES)
        for batch in rows.sort_by(order).to_batches():
            if batch.num_rows:
                file.write(batch.drop_columns(["turn"]), turns=batch.column("turn"))
        written = file.finish()
        landed = Landed((written,) if written else (), {}, (), {}, rows.num_rows, 0)
        told = {"landed": landed.to_text(), "horizons": {str(v): s for v, s in horizons.items()}}
        return json.dumps(told)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a compaction would write anew."""

    files: tuple[TableFile, ...]
    tails: int

    @property
    def parts(self) -> dict[int, list[str]]:
        """The files by part."""
        found: dict[int, list[str]] = {}
        for file in self.files:
            found.setdefault(file.part, []).append(file.path)
        return found


def choose(
    changes: ChangesTable, state: StateTable | None = None, *, everything: bool = False
) -> Chosen:
    """The files of parts that have several, or of all; and how many tails `state` has."""
    files = changes.row_files()
    counts = Counter(file.part for file in files)
    chosen = tuple(file for file in files if everything or counts[file.part] >= FILES_MIN)
    tails = sum(map(is_tail, state.table.files())) if state is not None and state.exists else 0
    return Chosen(chosen, tails)


def compact(
    changes: ChangesTable,
    runner: Runner,
    *,
    keep_since: datetime | None = None,
    state: StateTable | None = None,
) -> Compacted:
    """Write the parts with several files anew; with ``keep_since`` all of them, and forget.

    ``state`` is merged too, and stands on the new turn afterwards.
    """
    published = changes.published()
    files_before = len(changes.row_files())
    chosen = choose(changes, state, everything=keep_since is not None)
    if not chosen.files and not chosen.tails:
        return Compacted(files_before, files_before, 0, 0)
    turn = published.turn + 1
    tasks = _tasks(changes, published, turn, chosen.parts, keep_since)
    told = [json.loads(text) for text in runner.run(tasks)]
    landed = Landed.joined(Landed.from_text(one["landed"]) for one in told)
    vector: Vector = dict(published.vector)
    for vb, seqno in ((vb, s) for one in told for vb, s in one["horizons"].items()):
        held = vector.get(VBucketId(int(vb)))
        if held is not None:
            vector[VBucketId(int(vb))] = held.forgotten_below(Seqno(seqno))
    changes.replace_files(turn, landed, vector, chosen.files)
    if state is not None and state.exists:
        state.follow(changes, runner, StateOptions(), merge_all=True)
    rows_before = sum(file.rows for file in chosen.files)
    return Compacted(files_before, len(changes.row_files()), rows_before, landed.rows)


def _tasks(
    changes: ChangesTable,
    published: Published,
    turn: int,
    parts: dict[int, list[str]],
    keep_since: datetime | None,
) -> list[CompactTask]:
    shape = changes.shape()
    return [
        CompactTask(
            str(changes.path.resolve()),
            part,
            turn,
            tuple(paths),
            tuple(
                (vb, tuple(mark.seqno for mark in published.position(vb).boundaries))
                for vb in shape.vbuckets_of(part)
            ),
            None if keep_since is None else int(keep_since.timestamp() * 1_000_000),
        )
        for part, paths in parts.items()
    ]


def horizons_of(
    rows: pa.Table, boundaries: dict[VBucketId, tuple[Seqno, ...]], keep_since_us: int
) -> dict[VBucketId, Seqno]:
    """Each vbucket's horizon: its greatest boundary below its first change that must stay."""
    since = pa.scalar(datetime.fromtimestamp(keep_since_us / 1e6, UTC), pa.timestamp("us", "UTC"))
    young = rows.filter(pc.greater_equal(rows["event_time"], since))
    first = young.group_by("vbucket", use_threads=False).aggregate([("seqno", "min")])
    limits = dict(zip(first["vbucket"].to_pylist(), first["seqno_min"].to_pylist(), strict=True))
    found = {}
    for vb, marks in boundaries.items():
        below = [mark for mark in marks if vb not in limits or mark < limits[vb]]
        found[vb] = max(below, default=NO_SEQNO)
    return found


def kept_rows(rows: pa.Table, horizons: dict[VBucketId, Seqno]) -> pa.Table:
    """Everything above the horizons that lives, and below them the latest version of each key."""
    width = max([*horizons, *rows["vbucket"].to_pylist(), 0]) + 1
    limits = np.zeros(width, np.int64)
    for vb, seqno in horizons.items():
        limits[vb] = seqno
    alive = living_rows(rows)
    above = alive["seqno"].to_numpy() > limits[alive["vbucket"].to_numpy()]
    old = alive.filter(pa.array(~above))
    old = latest(old.filter(pc.is_in(old["event"], pa.array(DOCUMENT_EVENTS))))
    old = old.filter(pc.equal(old["event"], MUTATION))
    # A rollback row whose rows are all gone withdraws nothing any more; it stays as history.
    return pa.concat_tables([old, alive.filter(pa.array(above))])
