"""Where `headrace tail` puts what it reads: the terminal, JSON lines, an Arrow file, Parquet files.

Rules
- `commit` returns when everything taken so far is safe where it goes; tokens are kept after it.
- A rollback is a line between lines. Beside files it is a line of JSON in ``rollbacks.jsonl``: rows
  of the vbucket above its ``to_seqno`` in files with a lower number are void.
- Parquet files appear under their name when they are complete.

Imports: cli.texts, client, columns.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TextIO

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc

from headrace.cli.records import plain
from headrace.cli.texts import preview, quoted
from headrace.client.changes import Change, Kind, Rollback, cas_time
from headrace.columns.schema import SCHEMA
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS_PER_FILE: Final = 1_000_000
KIND_COLOURS: Final = {
    Kind.MUTATION: "green",
    Kind.DELETION: "red",
    Kind.EXPIRATION: "yellow",
    Kind.SYSTEM_EVENT: "cyan",
}


class ChangeSink(Protocol):
    """Takes single changes."""

    def take(self, item: Change | Rollback) -> None:
        """Take one."""

    def commit(self) -> None:
        """Make everything so far safe."""

    def close(self) -> None:
        """Finish."""


class Lines:
    """One line per change, for people."""

    def __init__(
        self, out: TextIO, style: Callable[[str, str], str], names: Callable[[int], str]
    ) -> None:
        """``style`` colours a text, ``names`` tells a collection's name from its id."""
        self._out = out
        self._style = style
        self._names = names

    def take(self, item: Change | Rollback) -> None:
        """Write a line."""
        if isinstance(item, Rollback):
            self._out.write(self._style(f"rollback: {item}", "magenta") + "\n")
            return
        time = cas_time(item.cas)
        when = time.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if time else "-" * 23
        kind = self._style(f"{item.kind.value:<14}", KIND_COLOURS.get(item.kind, "white"))
        where = f"{item.vbucket:>4}:{item.seqno:<10}"
        key = quoted(item.key)
        if item.collection_id:
            key = f"{self._names(item.collection_id)}/{key}"
        self._out.write(f"{when} {where} {kind} {key} {preview(item.value)}".rstrip() + "\n")

    def commit(self) -> None:
        """Flush."""
        self._out.flush()

    def close(self) -> None:
        """Flush."""
        self._out.flush()


class JsonLines:
    """One JSON object per change; numbers are exact, bytes as `headrace decode --json` has them."""

    def __init__(self, out: TextIO, names: Callable[[int], str]) -> None:
        """Write to a text stream."""
        self._out = out
        self._names = names

    def take(self, item: Change | Rollback) -> None:
        """Write a line."""
        record = rollback_record(item) if isinstance(item, Rollback) else self._record(item)
        self._out.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")

    def _record(self, item: Change) -> dict[str, object]:
        token = item.token  # made when it is asked for
        record: dict[str, object] = {
            "vbucket": item.vbucket,
            "seqno": item.seqno,
            "event": item.kind.value,
            "key": plain(item.key),
            "value": _document(item.value),
            "cas": item.cas,
            "rev": item.rev,
            "flags": item.flags,
            "expiry": item.expiry,
            "datatype": item.datatype,
            "branch": f"{token.branch:016x}",
            "boundary": token.is_boundary,
        }
        if item.collection_id is not None:
            record["collection"] = self._names(item.collection_id)
        if item.kind in (Kind.DELETION, Kind.EXPIRATION):
            record["delete_time"] = item.delete_time
        if item.xattrs is not None:
            record["xattrs"] = {name: _document(value) for name, value in item.xattrs.items()}
        if item.prepared_seqno is not None:
            record["prepared_seqno"] = item.prepared_seqno
        time = cas_time(item.cas)
        if time is not None:
            record["time"] = time.isoformat()
        return record

    def commit(self) -> None:
        """Flush."""
        self._out.flush()

    def close(self) -> None:
        """Flush."""
        self._out.flush()


def _document(value: bytes) -> object:
    """A JSON document as itself, anything else as `plain` says it."""
    with suppress(ValueError):
        return json.loads(value)
    return plain(value)


def rollback_record(item: Rollback) -> dict[str, object]:
    """A rollback as plain data."""
    return {
        "event": "rollback",
        "vbucket": item.vbucket,
        "from_seqno": item.from_seqno,
        "to_seqno": item.to_seqno,
        "dead_branch": f"{item.dead_branch:016x}",
        "branch": f"{item.token.branch:016x}",
        "log": str(item.token.log or ""),
    }


class BatchSink(Protocol):
    """Takes batches."""

    def take(self, batch: pa.RecordBatch) -> None:
        """Take one."""

    def roll_back(self, item: Rollback) -> None:
        """Note that rows are void."""

    def commit(self) -> bool:
        """Make everything so far safe; False: not yet, more must come."""

    def close(self) -> None:
        """Finish; everything is safe afterwards."""


class ArrowFile:
    """An Arrow IPC stream; readable while it grows."""

    def __init__(self, path: Path) -> None:
        """Begin the file anew."""
        self._path = path
        try:
            self._stream = path.open("wb")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
        self._writer = ipc.new_stream(self._stream, SCHEMA)

    def take(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        self._writer.write_batch(batch)

    def roll_back(self, item: Rollback) -> None:
        """Append a line beside the file."""
        _note_rollback(Path(f"{self._path}.rollbacks.jsonl"), item, {})

    def commit(self) -> bool:
        """Sync the file."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        return True

    def close(self) -> None:
        """End the stream."""
        self._writer.close()
        self.commit()
        self._stream.close()


class ParquetDirectory:
    """Numbered Parquet files of about ``rows_per_file`` rows."""

    def __init__(self, directory: Path, rows_per_file: int = ROWS_PER_FILE) -> None:
        """Go on behind the files that are there."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{directory} cannot be made: {error.strerror}") from error
        self._directory = directory
        self._rows_per_file = rows_per_file
        numbers = [int(path.stem.split("-")[1]) for path in directory.glob("part-*.parquet")]
        self._number = max(numbers, default=-1) + 1
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0

    @property
    def _path(self) -> Path:
        return self._directory / f"part-{self._number:06d}.parquet"

    def take(self, batch: pa.RecordBatch) -> None:
        """Append a batch to the file being written."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(f"{self._path}.part", SCHEMA)
        self._writer.write_batch(batch)
        self._rows += batch.num_rows

    def roll_back(self, item: Rollback) -> None:
        """End the file, so that a file's number tells on which side of the rollback it is."""
        self._finish()
        _note_rollback(self._directory / "rollbacks.jsonl", item, {"before_part": self._number})

    def commit(self) -> bool:
        """End the file when it is full."""
        if self._rows < self._rows_per_file:
            return self._writer is None
        self._finish()
        return True

    def close(self) -> None:
        """End the file."""
        self._finish()

    def _finish(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        part = Path(f"{self._path}.part")
        with part.open("rb") as stream:
            os.fsync(stream.fileno())
        part.replace(self._path)
        self._writer, self._rows = None, 0
        self._number += 1


def _note_rollback(path: Path, item: Rollback, more: dict[str, object]) -> None:
    with path.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(rollback_record(item) | more) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
