"""Landing: tasks write the files of the `changes` table themselves.

A task drains some vbuckets and writes one Parquet file per part of the table, straight from the
columns of the wire; the driver gets back names, sizes, statistics and honest end positions. A file
is part of the table only when the driver has committed it: one that was written by a task that
died, or by a turn that was never committed, is seen by nobody and goes at the next vacuum.

Rules.
- File names are unique per attempt: two copies of a task never write one file.
- Rows of a snapshot that did not become whole are cut from the file before it is reported.
- A part is drained completely before the next one begins: one open file at a time.
- A file is on the disk, not only written, before it is reported (`headrace.spark.durable`).

Imports: history, spark.durable, spark.feed, spark.planning, spark.positions, spark.progress,
spark.rows.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.history import BranchId, Seqno, VBucketId
from headrace.spark.durable import sync_file
from headrace.spark.planning import span_size
from headrace.spark.positions import Position, Withdrawal
from headrace.spark.progress import Progress, whole_rows
from headrace.spark.rows import ROW_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.spark.feed import Feed, FeedFactory, Span

ROW_GROUP_ROWS: Final = 131_072
ROW_GROUP_BYTES: Final = 8 << 20
"""Bytes after which landed rows are encoded: while they are still in the processor's cache."""
COMPACT_GROUP_BYTES: Final = 64 << 20
"""The same for files that are written once and read often."""
PAGE_BYTES: Final = 128 << 10
"""Bytes of a page: what is gathered is compressed while it is still in the core's own cache.

A tenth less CPU than pages of a megabyte, for files of the same size."""
COMPRESSION: Final = "snappy"
# Columns whose values repeat; keys and values do not, and trying costs more than it saves.
DICTIONARY_COLUMNS: Final = ["branch", "event", "epoch", "vbucket", "turn", "datatype", "flags"]
STATISTICS_COLUMNS: Final = ["vbucket", "epoch", "seqno", "key", "turn", "event"]

MEASURED: Final = ("turn", "vbucket", "epoch", "seqno")
"""Columns whose least and greatest value the table's log tells."""

TURN: Final = pa.field("turn", pa.int64(), nullable=False)
FILE_SCHEMA: Final = pa.schema([TURN, *ROW_SCHEMA])
"""Columns of a file of `changes`; the part is in its path."""


@dataclass(frozen=True, slots=True)
class LandedFile:
    """A file of a table that is not committed yet; ``path`` is relative to the table."""

    path: str
    part: int
    size: int
    rows: int
    stats: str


@dataclass(frozen=True, slots=True)
class Landed:
    """What a task did: files, where its vbuckets stand now, and what was withdrawn."""

    files: tuple[LandedFile, ...]
    positions: dict[VBucketId, Position]
    withdrawals: tuple[Withdrawal, ...]
    unfinished: dict[VBucketId, str]
    rows: int
    bytes: int

    def to_text(self) -> str:
        """As JSON, the form in which it comes back through Spark."""
        return json.dumps(
            {
                "files": [asdict(file) for file in self.files],
                "positions": {str(vb): one.to_json() for vb, one in self.positions.items()},
                "withdrawals": [
                    [str(number) for number in asdict(one).values()] for one in self.withdrawals
                ],
                "unfinished": {str(vb): reason for vb, reason in self.unfinished.items()},
                "rows": self.rows,
                "bytes": self.bytes,
            }
        )

    @classmethod
    def from_text(cls, text: str) -> Landed:
        """What `to_text` wrote."""
        found = json.loads(text)
        return cls(
            tuple(LandedFile(**file) for file in found["files"]),
            {VBucketId(int(vb)): Position.from_json(one) for vb, one in found["positions"].items()},
            tuple(_withdrawal(*map(int, numbers)) for numbers in found["withdrawals"]),
            {VBucketId(int(vb)): reason for vb, reason in found["unfinished"].items()},
            found["rows"],
            found["bytes"],
        )

    @classmethod
    def joined(cls, all_landed: Iterable[Landed]) -> Landed:
        """The account of several tasks as one."""
        total = cls((), {}, (), {}, 0, 0)
        for one in all_landed:
            total = cls(
                (*total.files, *one.files),
                {**total.positions, **one.positions},
                (*total.withdrawals, *one.withdrawals),
                {**total.unfinished, **one.unfinished},
                total.rows + one.rows,
                total.bytes + one.bytes,
            )
        return total


def _withdrawal(
    vbucket: int, epoch: int, to_seqno: int, from_seqno: int, dead: int, branch: int
) -> Withdrawal:
    return Withdrawal(
        VBucketId(vbucket),
        epoch,
        Seqno(to_seqno),
        Seqno(from_seqno),
        BranchId(dead),
        BranchId(branch),
    )


class RowFile:
    """One Parquet file in the making; made when the first rows come."""

    def __init__(
        self,
        table: Path,
        part: int,
        turn: int,
        schema: pa.Schema = FILE_SCHEMA,
        *,
        group_bytes: int = ROW_GROUP_BYTES,
    ) -> None:
        """Choose a name nobody else has."""
        self._group_bytes = group_bytes
        self.name = f"part={part}/turn-{turn:010d}-{uuid.uuid4().hex}.parquet"
        self.path = table / self.name
        self._table = table
        self.rows = 0
        self._part, self._turn, self._schema = part, turn, schema
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = self._pending_bytes = 0
        self._low: dict[str, int] = {}
        self._high: dict[str, int] = {}

    def write(self, rows: pa.RecordBatch, *, turns: pa.Array | None = None) -> None:
        """Add rows; their turn is the file's unless they bring their own."""
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(
                self.path,
                self._schema,
                compression=COMPRESSION,
                data_page_size=PAGE_BYTES,
                use_dictionary=DICTIONARY_COLUMNS,
                write_statistics=STATISTICS_COLUMNS,
            )
        if turns is None:
            turns = pa.repeat(pa.scalar(self._turn, pa.int64()), rows.num_rows)
        batch = pa.RecordBatch.from_arrays([turns, *rows.columns], schema=self._schema)
        self._pending.append(batch)
        self._pending_rows += rows.num_rows
        self._pending_bytes += batch.nbytes
        self.rows += rows.num_rows
        if self._pending_rows >= ROW_GROUP_ROWS or self._pending_bytes >= self._group_bytes:
            self._flush()

    def finish(self) -> LandedFile | None:
        """Close the file and put it on the disk; None if nothing was written."""
        if self._writer is None:
            return None
        self._flush()
        self._writer.close()
        sync_file(self.path, self._table)
        stats = {
            "numRecords": self.rows,
            "minValues": self._low,
            "maxValues": self._high,
            "nullCount": dict.fromkeys(self._low, 0),
        }
        size = self.path.stat().st_size
        return LandedFile(self.name, self._part, size, self.rows, json.dumps(stats))

    def discard(self) -> None:
        """Remove what was written."""
        if self._writer is not None:
            self._writer.close()
            self.path.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._pending and self._writer is not None:
            # One call is one row group: small ones cost every reader.
            table = pa.Table.from_batches(self._pending, self._schema)
            self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
            if table.num_rows:
                self._measure(table)
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0

    def _measure(self, rows: pa.Table) -> None:
        for name in MEASURED:
            low, high = (int(one) for one in pc.min_max(rows[name]).as_py().values())
            self._low[name] = min(low, self._low.get(name, low))
            self._high[name] = max(high, self._high.get(name, high))


@dataclass(frozen=True)
class LandingTask:
    """Drain these spans, part by part, and write their files."""

    factory: FeedFactory
    table: str
    turn: int
    parts: tuple[tuple[int, tuple[Span, ...]], ...]

    def __call__(self) -> str:
        """Open a feed, land every part, and give the account."""
        feed = self.factory()
        try:
            # Part by part: fewer vbuckets are followed at once, and a part's memory is used again.
            done = [
                land_part(feed, Path(self.table), self.turn, part, spans)
                for part, spans in self.parts
            ]
        finally:
            feed.close()
        return Landed.joined(done).to_text()


def land_part(feed: Feed, table: Path, turn: int, part: int, spans: Sequence[Span]) -> Landed:
    """Drain the spans into one file of the part."""
    progress = Progress(spans)
    file = RowFile(table, part, turn)
    size = 0
    try:
        planned = progress.planned_rows()
        if planned is not None:
            file.write(planned)
        for news in feed.drain([span for span in spans if span_size(span)]):
            rows = progress.take(news)
            if rows is not None:
                file.write(rows)
                size += rows.nbytes
    except BaseException:
        file.discard()
        raise
    landed = file.finish()
    if landed is not None and (progress.unfinished or progress.withdrawals):
        landed = _without_torn_rows(table, turn, landed, progress)
    return Landed(
        (landed,) if landed else (),
        progress.positions,
        tuple(progress.withdrawals),
        progress.unfinished,
        landed.rows if landed else 0,
        size,
    )


def _without_torn_rows(
    table: Path, turn: int, landed: LandedFile, progress: Progress
) -> LandedFile | None:
    """The file without rows above the last whole snapshot of their vbucket and epoch."""
    source = pq.ParquetFile(table / landed.path)
    rows = (batch.drop_columns(["turn"]) for batch in source.iter_batches())
    file = RowFile(table, landed.part, turn)
    for batch in whole_rows(rows, progress.cut()):
        if batch.num_rows:
            file.write(batch)
    kept = file.finish()
    source.close()
    (table / landed.path).unlink()
    return kept
