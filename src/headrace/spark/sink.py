"""`df.write(Stream).format("dcp")`: rows become documents, written or deleted, in batches.

    mode=upsert   each row is a document: ``keyColumn`` and ``valueColumn``, or, without the latter,
                  all other columns as a JSON object
    mode=delete   each row is a key to delete
    mode=change   each row is a change, with the columns of this source: mutations are written with
                  their flags and expiry, deletions and expirations delete; other rows are passed
                  over

Rules.
- Writing the same rows again leaves the same documents: a replayed batch changes nothing that
  shows.
- In mode ``change`` the last version of each key in a task's rows is written, by (epoch, seqno):
  the rows of one key must reach one task, as they do when they come from this source.
- A rollback row is passed over: what it withdraws cannot be found out from a stream of rows. Copy
  from tables kept by `headrace sync` where the target must follow rollbacks.
- Nothing is taken back when a job fails half way; the rows that came are in the bucket.

Imports: client, errors, spark.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from headrace.client.writer import Document
from headrace.errors import ConfigError
from headrace.spark.credentials import find_credentials
from headrace.spark.options import checked_names, required
from headrace.spark.rows import DELETION, EXPIRATION, MUTATION, key_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headrace.spark.credentials import Credentials

MODES: Final = ("upsert", "delete", "change")
CHANGE_COLUMNS: Final = ("event", "key", "value", "epoch", "seqno")


@dataclass(frozen=True, slots=True)
class Sink:
    """What to write where; picklable, sent to every task."""

    url: str
    bucket: str | None
    credentials: Credentials
    mode: str
    key_column: str
    value_column: str | None
    collection: str | None

    def write(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Write every row's document; how many there were."""
        from headrace.client.bucket import connect

        credentials = self.credentials
        with connect(
            self.url,
            user=credentials.user,
            password=credentials.password,
            bucket=self.bucket,
        ) as bucket:
            collection = 0
            if self.collection is not None:
                collection = bucket.manifest().collection_id(self.collection)
            with bucket.writer() as writer:
                count = 0
                for document in self.documents(batches, collection):
                    writer.put(document)
                    count += 1
        return count

    def documents(self, batches: Iterable[pa.RecordBatch], collection: int) -> Iterator[Document]:
        """The documents that the rows ask for."""
        if self.mode == "change":
            yield from _latest_changes(batches, collection)
            return
        for batch in batches:
            for row in batch.to_pylist():
                key = _key(row[self.key_column])
                if self.mode == "delete":
                    yield Document(key, None, collection_id=collection)
                else:
                    value, is_json = self._value(row)
                    yield Document(key, value, collection_id=collection, is_json=is_json)

    def _value(self, row: dict[str, object]) -> tuple[bytes, bool]:
        if self.value_column is None:
            fields = {name: value for name, value in row.items() if name != self.key_column}
            return json.dumps(fields, default=_plain, separators=(",", ":")).encode(), True
        value = row[self.value_column]
        if isinstance(value, bytes):
            return value, False
        if isinstance(value, str):
            return value.encode(), value.lstrip()[:1] in ("{", "[")
        return json.dumps(value, default=_plain, separators=(",", ":")).encode(), True


def _latest_changes(batches: Iterable[pa.RecordBatch], collection: int) -> Iterator[Document]:
    latest: dict[tuple[int, bytes], tuple[tuple[int, int], Document]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            if row["event"] not in (MUTATION, DELETION, EXPIRATION):
                continue
            key, place = _key(row["key"]), (row["epoch"], row["seqno"])
            name = (row.get("collection_id") or 0, key)
            if name in latest and latest[name][0] >= place:
                continue
            value = row["value"] if row["event"] == MUTATION else None
            if isinstance(value, str):
                value = value.encode()
            latest[name] = (
                place,
                Document(
                    key,
                    value if row["event"] != MUTATION else value or b"",
                    row.get("expiry") or 0,
                    row.get("flags") or 0,
                    collection,
                    bool((row.get("datatype") or 0) & 1),
                ),
            )
    for _, document in latest.values():
        yield document


def _key(value: object) -> bytes:
    if isinstance(value, str):
        return key_bytes(value)
    if isinstance(value, bytes):
        return value
    raise ConfigError(f"a key is {value!r:.60}, expected text or bytes")


def _plain(value: object) -> object:
    """What JSON has no form for, as text."""
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise ConfigError(f"a value of type {type(value).__name__} has no form in JSON")


def sink_of(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> Sink:
    """The sink the options and the frame's columns make; ConfigError if they do not fit."""
    if overwrite:
        raise ConfigError("a bucket cannot be overwritten; write with mode append")
    given = checked_names(options)
    mode = given.get("mode", "upsert")
    if mode not in MODES:
        raise ConfigError(f"option mode is {mode!r}, allowed: {', '.join(MODES)}")
    key, value = given.get("keycolumn", "key"), given.get("valuecolumn")
    needed = CHANGE_COLUMNS if mode == "change" else (key, *((value,) if value else ()))
    missing = [name for name in needed if name not in schema.names]
    if missing:
        raise ConfigError(
            f"the frame has no column {missing[0]}, needed: {', '.join(needed)}; "
            f"it has {', '.join(schema.names)}"
        )
    return Sink(
        required(given, "url"),
        given.get("bucket"),
        find_credentials(user=given.get("user"), file=given.get("credentialsfile")),
        mode,
        key,
        value,
        given.get("collection"),
    )


@dataclass
class Written(WriterCommitMessage):
    """What a task wrote."""

    documents: int


class BatchWriter(DataSourceArrowWriter):
    """Writes a frame."""

    def __init__(self, sink: Sink) -> None:
        """Open nothing."""
        self.sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one task's rows."""
        return Written(self.sink.write(iterator))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches."""

    def __init__(self, sink: Sink) -> None:
        """Open nothing."""
        self.sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one task's rows of one batch."""
        return Written(self.sink.write(iterator))
