"""Hold a table against its source, item by item, at a boundary.

Each part's vbuckets are streamed from the beginning, in tasks, and compared with the part's files:
every document the source has must be in `state` with the same bytes, CAS, flags and expiry, and
nothing else may be. A document that the source changed after the table's position cannot be judged
(the version the table should have is no longer there); it is counted as newer. On a source at rest,
after a sync, nothing is newer and everything is judged.

Kinds of difference.
- missing    the source has the document, the table does not
- extra      the table has the document, the source does not
- different  both have it, and not the same
- twice      two rows of `changes` have the same vbucket, epoch and seqno
- branch     the table's position is not on the source's history: a rollback it has not taken yet

Imports: errors, history, spark.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.errors import StoreError
from headrace.spark.feed import Span
from headrace.spark.flatten import Flattening
from headrace.spark.positions import START
from headrace.spark.progress import Progress
from headrace.spark.rows import MUTATION, unsigned
from headrace.spark.tables.state import READ_COLUMNS, documents, latest, living_rows
from headrace.spark.tables.views import open_changes, open_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from headrace.history import VBucketId
    from headrace.spark.feed import FeedFactory
    from headrace.spark.jobs import Runner
    from headrace.spark.positions import Position

DIFFERENCES_KEPT: Final = 1000
"""Differences each task lists; all are counted."""
COMPARED: Final = ("value", "cas", "rev", "flags", "expiry", "seqno")


@dataclass(frozen=True, slots=True)
class Difference:
    """One document, or row, that is not as it should be."""

    kind: str
    vbucket: int
    key: str
    detail: str

    def __str__(self) -> str:
        """As a line."""
        return f"{self.kind}: vbucket {self.vbucket} key {self.key!r}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Report:
    """What was compared and what was found; ``count`` may be more than are listed."""

    documents: int
    rows: int
    newer: int
    count: int
    differences: tuple[Difference, ...]

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Report:
        """What `to_text` wrote."""
        found = json.loads(text)
        found["differences"] = tuple(Difference(**one) for one in found["differences"])
        return cls(**found)

    @classmethod
    def joined(cls, reports: list[Report]) -> Report:
        """Several as one."""
        return cls(
            sum(one.documents for one in reports),
            sum(one.rows for one in reports),
            sum(one.newer for one in reports),
            sum(one.count for one in reports),
            tuple(d for one in reports for d in one.differences),
        )


def verify(factory: FeedFactory, directory: Path | str, runner: Runner) -> Report:
    """Compare every part; StoreError if `state` does not stand on the newest turn of `changes`."""
    changes, state = open_changes(directory), open_state(directory)
    published = changes.published()
    if state.turn != published.turn:
        raise StoreError(
            f"state stands on turn {state.turn}, changes is at {published.turn}; run headrace sync"
        )
    shape = changes.shape()
    rows, held = changes.row_files(), state.table.files()
    tasks = [
        VerifyTask(
            factory,
            tuple((vb, published.position(vb)) for vb in shape.vbuckets_of(part)),
            tuple(str((changes.path / f.path).resolve()) for f in rows if f.part == part),
            tuple(str((state.path / f.path).resolve()) for f in held if f.part == part),
        )
        for part in range(shape.parts)
    ]
    return Report.joined([Report.from_text(text) for text in runner.run(tasks)])


@dataclass(frozen=True)
class VerifyTask:
    """Compare one part."""

    factory: FeedFactory
    positions: tuple[tuple[VBucketId, Position], ...]
    changes: tuple[str, ...]
    state: tuple[str, ...]

    def __call__(self) -> str:
        """Stream the part from its beginning and hold both against each other."""
        feed = self.factory()
        try:
            highs = feed.high_seqnos()
            vbuckets = [vb for vb, _ in self.positions if vb in highs]
            logs = feed.failover_logs(vbuckets)
            spans = [Span(vb, START, highs[vb]) for vb in vbuckets if highs[vb]]
            progress = Progress(spans)
            batches = [rows for news in feed.drain(spans) if (rows := progress.take(news))]
        finally:
            feed.close()
        positions = dict(self.positions)
        found = [
            Difference("branch", vb, "", f"{positions[vb].branch:016x}@{positions[vb].seqno}")
            for vb, log in logs.items()
            if positions[vb].seqno and not log.holds(positions[vb].branch, positions[vb].seqno)
        ]
        source = _source_documents(batches)
        table = _table_documents(self.state)
        rows, twice = _doubled(self.changes)
        found += twice
        newer = 0
        for difference, is_newer in compare(source, table, positions):
            newer += is_newer
            if difference is not None:
                found.append(difference)
        kept = tuple(found[:DIFFERENCES_KEPT])
        return Report(len(source), rows, newer, len(found), kept).to_text()


Document = tuple[object, ...]
Place = tuple[int, int | None, str]


def compare(
    source: Mapping[Place, Document],
    table: Mapping[Place, Document],
    positions: Mapping[VBucketId, Position],
) -> Iterator[tuple[Difference | None, bool]]:
    """Each difference, and for each document that cannot be judged None and True."""
    limits = {int(vb): position.seqno for vb, position in positions.items()}
    for place, document in source.items():
        vbucket, _, key = place
        *fields, deleted = document
        seqno = fields[-1]
        if unsigned(int(str(seqno))) > limits.get(vbucket, 0):
            yield None, True
            continue
        held = table.get(place)
        if deleted:
            if held is not None:
                yield Difference("extra", vbucket, key, f"deleted at {seqno}"), False
        elif held is None:
            yield Difference("missing", vbucket, key, f"written at {seqno}"), False
        elif held[:-1] != document[:-1]:
            wrong = [
                f"{name} {theirs!r:.40} in the table, {ours!r:.40} in the source"
                for name, theirs, ours in zip(COMPARED, held, document, strict=False)
                if theirs != ours
            ]
            yield Difference("different", vbucket, key, "; ".join(wrong)), False
    for place, document in table.items():
        if place not in source:
            yield Difference("extra", place[0], place[2], f"from seqno {document[-2]}"), False


def _source_documents(batches: list[pa.RecordBatch]) -> dict[Place, Document]:
    if not batches:
        return {}
    rows = pa.Table.from_batches(batches)
    rows = rows.add_column(0, "turn", pa.array([0] * rows.num_rows, pa.int64()))
    return _by_place(documents(living_rows(rows.select(READ_COLUMNS)), Flattening.of({})))


def _table_documents(files: tuple[str, ...]) -> dict[Place, Document]:
    if not files:
        return {}
    columns = ["vbucket", "collection_id", "key", "epoch", "event", "deleted", *COMPARED]
    tables = [pq.read_table(path, columns=columns, partitioning=None) for path in files]
    rows = latest(pa.concat_tables(tables))
    return _by_place(rows.filter(pc.equal(rows["event"], MUTATION)))


def _by_place(rows: pa.Table) -> dict[Place, Document]:
    places = zip(
        *(rows[name].to_pylist() for name in ("vbucket", "collection_id", "key")), strict=True
    )
    fields = zip(*(rows[name].to_pylist() for name in (*COMPARED, "deleted")), strict=True)
    return dict(zip(places, fields, strict=True))


def _doubled(files: tuple[str, ...]) -> tuple[int, list[Difference]]:
    """How many rows there are, and those that are there twice."""
    if not files:
        return 0, []
    place = ["vbucket", "epoch", "seqno"]
    rows = pa.concat_tables([pq.read_table(p, columns=place, partitioning=None) for p in files])
    counted = rows.group_by(place, use_threads=False).aggregate([([], "count_all")])
    doubled = counted.filter(pc.greater(counted["count_all"], 1)).to_pylist()
    return rows.num_rows, [
        Difference("twice", row["vbucket"], "", f"epoch {row['epoch']} seqno {row['seqno']}")
        for row in doubled
    ]
