"""Landing: tasks write the files of the `changes` table themselves.

A task drains some vbuckets and writes one Parquet file per part of the table, straight from the
columns of the wire; the driver gets back names, sizes, statistics and honest end positions. A file
is part of the table only when the driver has committed it: one that was written by a task that
died, or by a turn that was never committed, is seen by nobody and goes at the next vacuum.

Rules.
- File names are unique per attempt: two copies of a task never write one file.
- Rows of a snapshot that did not become whole are cut from the file before it is reported.
- All parts of a task are drained together: a reader costs as much as some thousand rows. The file
  of a part is closed when the last of its vbuckets has come to its end; vbuckets are streamed by
  their numbers, so that few files are open at once.
- A file is on the disk, not only written, before it is reported (`headrace.spark.durable`).

Imports: history, spark.collector, spark.durable, spark.feed, spark.planning, spark.positions,
spark.progress, spark.rows.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.history import BranchId, Seqno, VBucketId
from headrace.spark.collector import calm_collector
from headrace.spark.durable import sync_file
from headrace.spark.feed import Completed
from headrace.spark.planning import span_size
from headrace.spark.positions import Position, Withdrawal
from headrace.spark.progress import Progress, whole_rows
from headrace.spark.rows import I64, ROW_SCHEMA, Runs, constants, rows_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.spark.feed import Feed, FeedFactory
    from headrace.spark.planning import Work

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
                "positions": {vb: one.packed() for vb, one in self.positions.items()},
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
            {VBucketId(int(vb)): Position.unpacked(one) for vb, one in found["positions"].items()},
            tuple(_withdrawal(*map(int, numbers)) for numbers in found["withdrawals"]),
            {VBucketId(int(vb)): reason for vb, reason in found["unfinished"].items()},
            found["rows"],
            found["bytes"],
        )

    @classmethod
    def joined(cls, all_landed: Iterable[Landed]) -> Landed:
        """The account of several tasks as one."""
        some = list(all_landed)
        return cls(
            tuple(file for one in some for file in one.files),
            {vb: position for one in some for vb, position in one.positions.items()},
            tuple(withdrawal for one in some for withdrawal in one.withdrawals),
            {vb: reason for one in some for vb, reason in one.unfinished.items()},
            sum(one.rows for one in some),
            sum(one.bytes for one in some),
        )


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
        self._footers: list[pq.FileMetaData] = []

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
                metadata_collector=self._footers,
            )
        if turns is None:
            turns = constants.of(I64, self._turn, rows.num_rows)
        batch = pa.RecordBatch.from_arrays([turns, *rows.columns], schema=self._schema)
        self._pending.append(batch)
        self._pending_rows += rows.num_rows
        self._pending_bytes += rows_size(rows)
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
        low, high = _measured(self._footers[-1])
        stats = {
            "numRecords": self.rows,
            "minValues": low,
            "maxValues": high,
            "nullCount": dict.fromkeys(low, 0),
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
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0


def _measured(footer: pq.FileMetaData) -> tuple[dict[str, int], dict[str, int]]:
    """The least and the greatest values of the columns `MEASURED`, as the writer found them."""
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    for name in MEASURED:
        place = footer.schema.names.index(name)
        for number in range(footer.num_row_groups):
            found = footer.row_group(number).column(place).statistics
            if found is not None and found.has_min_max:
                low[name] = min(int(found.min), low.get(name, found.min))
                high[name] = max(int(found.max), high.get(name, found.max))
    return low, high


@dataclass(frozen=True)
class LandingTask:
    """Drain the spans of these parts together, and write their files."""

    factory: FeedFactory
    table: str
    turn: int
    parts: Work

    def __call__(self) -> str:
        """Open a feed, land every part, and give the account."""
        with calm_collector():
            feed = self.factory()
            try:
                landed = land(feed, Path(self.table), self.turn, self.parts)
            finally:
                feed.close()
            return landed.to_text()


def land(feed: Feed, table: Path, turn: int, work: Work) -> Landed:
    """Drain the spans of some parts into their files."""
    spans = [span for _, some in work for span in some]
    progress = Progress(spans)
    files = _PartFiles(table, turn, work)
    try:
        planned = progress.planned_rows()
        if planned is not None:
            files.write(planned)
        for news in feed.drain([span for span in spans if span_size(span)]):
            rows = progress.take(news)
            if rows is not None:
                files.write(rows)
            elif isinstance(news, Completed):
                files.reach(news.vbucket, news.seqno)
        landed = files.finish(progress)
    except BaseException:
        files.discard()
        raise
    return Landed(
        tuple(landed),
        progress.positions,
        tuple(progress.withdrawals),
        progress.unfinished,
        sum(file.rows for file in landed),
        files.bytes,
    )


class _PartFiles:
    """The files of a task: of every part one, or more where rows came after it was closed."""

    def __init__(self, table: Path, turn: int, work: Work) -> None:
        self.bytes = 0
        self._table, self._turn = table, turn
        self._open: dict[int, RowFile] = {}
        self._done: list[LandedFile] = []
        self._ends = {span.vbucket: span.end_seqno for _, spans in work for span in spans}
        self._part_of = np.zeros(max(self._ends, default=0) + 1, np.int64)
        self._left: dict[int, set[VBucketId]] = {}
        for part, spans in work:
            self._part_of[[span.vbucket for span in spans]] = part
            self._left[part] = {span.vbucket for span in spans if span_size(span)}

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows to the files of their parts."""
        self.bytes += rows_size(rows)
        runs = Runs.of(self._part_of[rows.column(_VBUCKET).to_numpy()])
        places = (runs.values.tolist(), runs.starts.tolist(), runs.sizes.tolist())
        for part, start, size in zip(*places, strict=True):
            if part not in self._open:
                self._open[part] = RowFile(self._table, part, self._turn)
            self._open[part].write(rows.slice(start, size))

    def reach(self, vbucket: VBucketId, seqno: Seqno) -> None:
        """Close the file of a part whose last vbucket has come to its end."""
        if seqno < self._ends[vbucket]:
            return
        part = int(self._part_of[vbucket])
        self._left[part].discard(vbucket)
        if not self._left[part]:
            self._close(part)

    def _close(self, part: int) -> None:
        file = self._open.pop(part, None)
        landed = None if file is None else file.finish()
        if landed is not None:
            self._done.append(landed)

    def finish(self, progress: Progress) -> list[LandedFile]:
        """Close what is open; the files as they are to be committed, by part."""
        for part in list(self._open):
            self._close(part)
        touched = [*progress.unfinished, *(one.vbucket for one in progress.withdrawals)]
        torn = {int(self._part_of[vbucket]) for vbucket in touched}
        found = (
            _without_torn_rows(self._table, self._turn, file, progress)
            if file.part in torn
            else file
            for file in self._done
        )
        self._done = [file for file in found if file is not None]
        return sorted(self._done, key=lambda file: file.part)

    def discard(self) -> None:
        """Remove what was written."""
        for file in self._open.values():
            file.discard()
        for landed in self._done:
            (self._table / landed.path).unlink(missing_ok=True)


_VBUCKET: Final = ROW_SCHEMA.get_field_index("vbucket")


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
