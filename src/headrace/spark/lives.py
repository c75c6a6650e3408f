"""The life of one key: its versions with their branches, and the rollbacks that ended some.

From a table comes everything that was ever streamed; from a source what it still has, which is one
version unless it keeps history.

Imports: errors, history, wire, spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from headrace.history import VBucketId
from headrace.spark.feed import Span
from headrace.spark.positions import START
from headrace.spark.progress import Progress
from headrace.spark.rows import ROLLBACK, key_bytes, unsigned
from headrace.spark.tables.views import changes_files, open_changes
from headrace.wire.values import vbucket_of

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from headrace.spark.feed import FeedFactory

COLUMNS: Final = [
    "vbucket",
    "epoch",
    "seqno",
    "branch",
    "event",
    "key",
    "value",
    "cas",
    "rev",
    "collection_id",
    "event_time",
]


@dataclass(frozen=True, slots=True)
class Moment:
    """One version of the key, or one rollback of its vbucket.

    ``dead``: a later rollback withdrew this version.
    """

    vbucket: int
    epoch: int
    seqno: int
    branch: int
    event: str
    value: bytes | None
    cas: int | None
    rev: int | None
    collection_id: int | None
    time: datetime | None
    dead: bool


def life_in_table(
    directory: Path | str, key: str, *, collection_id: int | None = None
) -> list[Moment]:
    """Every version of the key in a table, with the rollbacks of its vbucket, oldest first."""
    table = open_changes(directory)
    files = changes_files(directory)
    if not files:
        return []
    vbucket = vbucket_of(key_bytes(key), table.shape().vbuckets)
    wanted = (pc.field("key") == key) | (pc.field("event") == ROLLBACK)
    rows = ds.dataset(files, format="parquet").to_table(
        columns=COLUMNS, filter=(pc.field("vbucket") == vbucket) & wanted
    )
    return _moments(rows, collection_id)


def life_in_source(
    factory: FeedFactory, key: str, *, collection_id: int | None = None
) -> list[Moment]:
    """What the source still has of the key."""
    feed = factory()
    try:
        vbucket = VBucketId(vbucket_of(key_bytes(key), len(feed.vbuckets())))
        high = feed.high_seqnos().get(vbucket)
        if not high:
            return []
        spans = [Span(vbucket, START, high)]
        progress = Progress(spans)
        found = []
        for news in feed.drain(spans):
            rows = progress.take(news)
            if rows is not None:
                found.append(rows.filter(pc.equal(rows.column("key"), key)).select(COLUMNS))
    finally:
        feed.close()
    return _moments(pa.Table.from_batches(found), collection_id) if found else []


def _moments(rows: pa.Table, collection_id: int | None) -> list[Moment]:
    found = sorted(rows.to_pylist(), key=lambda row: (row["epoch"], row["seqno"]))
    ends = [(row["epoch"], row["seqno"]) for row in found if row["event"] == ROLLBACK]
    return [
        Moment(
            row["vbucket"],
            row["epoch"],
            unsigned(row["seqno"]),
            unsigned(row["branch"]),
            row["event"],
            row["value"],
            row["cas"],
            row["rev"],
            row["collection_id"],
            row["event_time"],
            row["event"] != ROLLBACK
            and any(row["epoch"] < epoch and row["seqno"] > seqno for epoch, seqno in ends),
        )
        for row in found
        if row["event"] == ROLLBACK
        or collection_id is None
        or (row["collection_id"] or 0) == collection_id
    ]
