"""The demo's numbers: counted where they come from, one place for terminal, JSON and report.

Freshness of a change is the time from its CAS, the node's clock at the write, to the moment the
turn that carries it had been published; both clocks are this machine's.

Imports: spark, demo.losing, demo.record, demo.shop.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow.compute as pc

from headrace import __version__
from headrace.demo.shop import COLLECTIONS, SCOPE
from headrace.spark.tables.views import arrow_changes, arrow_state, open_changes, open_state

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from headrace.demo.losing import Loss, Withdrawn
    from headrace.demo.record import Record
    from headrace.spark.verify import Report

PARTS_USED: Final = ("pyspark", "deltalake", "pyarrow")
CAS_SECOND: Final = 1_000_000_000
MEBIBYTE: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Failover:
    """The failover, at both ends, in one place."""

    loss: Loss
    withdrawn: Withdrawn
    at: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What the demo did."""

    seconds: float
    spark_start_seconds: float
    vbuckets: int
    writes: dict[str, int]
    events: dict[str, int]
    documents: dict[str, int]
    turns: int
    rows: int
    turn_seconds_median: float
    lag_peak: int
    fresh_median_seconds: float
    fresh_worst_seconds: float
    table_bytes: int
    table_files: int
    rollbacks: int
    failover: Failover | None
    verified_keys: int
    verified_rows: int
    verify_seconds: float
    differences: int
    newer: int
    machine: dict[str, str] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Whether tables and source agree, with nothing left out of the comparison."""
        return self.differences == 0 and self.newer == 0

    def to_json(self) -> dict[str, object]:
        """As plain data."""
        return asdict(self) | {"agrees": self.agrees}


def machine() -> dict[str, str]:
    """Where the numbers come from."""
    found = {
        "headrace": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(os.cpu_count() or 0),
    }
    for name in PARTS_USED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def summed_up(
    tables: Path,
    record: Record,
    report: Report,
    *,
    writes: dict[str, int],
    failover: Failover | None,
    seconds: float,
    spark_start_seconds: float,
    verify_seconds: float,
    wall_minus_record: float,
) -> Summary:
    """Read the tables and count; ``wall_minus_record`` turns the record's times into clock time."""
    changes = arrow_changes(tables, withdrawn=True).select(["turn", "event", "cas"])
    fresh = freshness(changes, record, wall_minus_record)
    held = open_changes(tables)
    files = [*held.files(), *open_state(tables).table.files()]
    turns = sorted(turn.seconds for turn in record.turns)
    return Summary(
        seconds=seconds,
        spark_start_seconds=spark_start_seconds,
        vbuckets=held.shape().vbuckets,
        writes=writes,
        events=_counted(changes["event"]),
        documents=_documents(tables),
        turns=len(record.turns),
        rows=sum(turn.rows for turn in record.turns),
        turn_seconds_median=turns[len(turns) // 2] if turns else 0.0,
        lag_peak=record.lag_peak(),
        fresh_median_seconds=float(np.median(fresh)) if len(fresh) else 0.0,
        fresh_worst_seconds=float(np.max(fresh)) if len(fresh) else 0.0,
        table_bytes=sum(file.size for file in files),
        table_files=len(files),
        rollbacks=sum(turn.rollbacks for turn in record.turns),
        failover=failover,
        verified_keys=report.documents,
        verified_rows=report.rows,
        verify_seconds=verify_seconds,
        differences=report.count,
        newer=report.newer,
        machine=machine(),
    )


def freshness(
    changes: pa.Table, record: Record, wall_minus_record: float
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Seconds from write to table, of every change of the turns seen."""
    published = {turn.number: turn.time + wall_minus_record for turn in record.turns}
    if not published or not changes.num_rows:
        return np.zeros(0)
    rows = changes.filter(pc.and_(pc.is_valid(changes["cas"]), pc.greater(changes["cas"], 0)))
    turns = rows["turn"].to_numpy()
    written = rows["cas"].to_numpy() / CAS_SECOND
    times = np.full(int(max(max(published), turns.max(initial=0))) + 1, np.nan)
    for number, time in published.items():
        times[number] = time
    found = times[turns] - written
    return np.asarray(found[~np.isnan(found)], np.float64)


def _counted(column: pa.ChunkedArray) -> dict[str, int]:
    return {str(one["values"]): int(one["counts"]) for one in pc.value_counts(column).to_pylist()}


def _documents(tables: Path) -> dict[str, int]:
    names = {number: f"{SCOPE}.{name}" for name, number in COLLECTIONS.items()}
    ids = arrow_state(tables)["collection_id"].to_pylist()
    counted = Counter(names.get(one, str(one)) for one in ids)
    return {name: counted[name] for name in sorted(counted)}


def _several(name: str, count: int) -> str:
    """So many events of a kind."""
    words = {"system": "system event"}.get(name, name)
    return f"{count:,} {words}{'' if count == 1 else 's'}"


def told(summary: Summary) -> list[tuple[str, str]]:
    """The summary in words: the same rows on the terminal and in the report."""
    writes = summary.writes
    documents = ", ".join(f"{count:,} in {name}" for name, count in summary.documents.items())
    found = [
        (
            "shop",
            f"{writes.get('all', 0):,} writes: {writes.get('insert', 0):,} inserts, "
            f"{writes.get('update', 0):,} updates, {writes.get('delete', 0):,} deletes",
        ),
        ("changes", ", ".join(_several(*event) for event in sorted(summary.events.items()))),
        ("documents", documents),
        (
            "pipeline",
            f"{summary.turns} turns, {summary.rows:,} rows, {summary.turn_seconds_median:.2f} s a "
            f"turn (median); ready in {summary.spark_start_seconds:.1f} s",
        ),
        (
            "freshness",
            f"a change was in the tables after {summary.fresh_median_seconds:.1f} s (median), "
            f"{summary.fresh_worst_seconds:.1f} s (worst: the opening, which waited for Spark); "
            f"lag at most {summary.lag_peak:,} seqnos",
        ),
        (
            "tables",
            f"{summary.table_bytes / MEBIBYTE:.1f} MiB in {summary.table_files} files",
        ),
    ]
    if summary.failover is not None:
        loss, taken = summary.failover.loss, summary.failover.withdrawn
        found.append(
            (
                "rollback",
                f"vbucket {loss.vbucket} lost {loss.high_seqno - loss.seqno} seqnos; "
                f"{summary.failover.seconds:.1f} s later the tables had withdrawn {taken.rows} "
                f"rows of {taken.documents} documents",
            )
        )
    found.append(
        (
            "proof",
            f"{summary.verified_keys:,} keys, deleted ones too, and {summary.verified_rows:,} rows "
            f"of changes compared in {summary.verify_seconds:.1f} s: {summary.differences:,} "
            "differences",
        )
    )
    found.append(("time", f"{summary.seconds:.0f} s altogether"))
    return found
