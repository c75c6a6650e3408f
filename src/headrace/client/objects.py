"""Objects: rows of a batch as changes, some at a time.

The road of single changes is the bulk road and one step more: what a kernel has cut out of the
frames is made into objects a few hundred rows at a time, column by column. One frame at a time
through codec, stream and events costs five times as much.

Rules
- The changes are those that `headrace.client.changes.change_of` makes of the same messages; the
  tests hold the two against each other.
- Every change has the token of its own row: all rows of a run lie in the same snapshot, so that the
  token of the last one tells those of the others.
- `Several` is what an application is in the middle of; its ``position`` covers what was handed out.

Imports: client.changes, columns.schema, history, protocol.talk, wire.opcodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.client.changes import Change, Kind, taken_apart
from headrace.columns.schema import SCHEMA, Event
from headrace.history import ResumeToken, Seqno
from headrace.protocol.talk import Position
from headrace.wire.opcodes import Datatype

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from headrace.history import Boundaries, SnapshotRange

HIDDEN: Final = frozenset({Kind.SEQNO_ADVANCED})
"""Changes that move positions and are not handed out."""
KINDS: Final = {int(event): Kind[event.name] for event in Event}
"""A number in the column ``event`` -> the kind of change."""
_NUMBERS: Final = ("seqno", "event", "cas", "rev", "flags", "expiry", "delete_time", "datatype")
"""Columns that are 0 where they are null, and a change says 0 there."""
_OPTIONAL: Final = ("collection_id", "prepared_seqno", "stream_id")
"""Columns that are None in a change where they are null."""
_TAKEN_APART: Final = int(Datatype.SNAPPY | Datatype.XATTR)
_DTYPES: Final = {
    name: np.dtype(SCHEMA.field(name).type.to_pandas_dtype()) for name in (*_NUMBERS, *_OPTIONAL)
}


class RowReader:
    """The columns of one batch, as changes need them."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        """Take a batch as the scanner makes it; it is kept."""
        self.batch = batch
        self._numbers = [_numbers(batch, name) for name in _NUMBERS]
        self._optional = [(batch.column(name), _numbers(batch, name)) for name in _OPTIONAL]
        self._binary = [_offsets_and_data(batch, name) for name in ("key", "value")]

    def greatest(self, start: int, stop: int) -> Seqno:
        """The greatest seqno among rows."""
        return Seqno(int(self._numbers[0][start:stop].max()))

    def changes(
        self, start: int, stop: int, vbucket: int, token: ResumeToken, span: SnapshotRange | None
    ) -> list[Change]:
        """The changes of rows ``start`` to ``stop``, in a run that ends at ``token``."""
        numbers = [column[start:stop].tolist() for column in self._numbers]
        optional = [_optional(*one, start, stop) for one in self._optional]
        binary = [_cut(*one, start, stop) for one in self._binary]
        found = []
        rows = zip(zip(*numbers, strict=True), zip(*optional, strict=True), *binary, strict=True)
        for several, some, key, value in rows:
            seqno, event, cas, rev, flags, expiry, delete_time, datatype = several
            collection_id, prepared_seqno, stream_id = some
            kind = KINDS[event]
            if kind in HIDDEN:
                continue
            document, xattrs = value, None
            if datatype & _TAKEN_APART:
                document, datatype, xattrs = taken_apart(value, datatype)
            found.append(
                Change(
                    vbucket=vbucket,
                    seqno=seqno,
                    kind=kind,
                    key=key,
                    value=document,
                    cas=cas,
                    rev=rev,
                    flags=flags,
                    expiry=expiry,
                    delete_time=delete_time,
                    datatype=datatype,
                    collection_id=collection_id,
                    xattrs=xattrs,
                    prepared_seqno=prepared_seqno,
                    stream_id=stream_id,
                    token=token_at(token, span, seqno),
                )
            )
        return found


def token_at(token: ResumeToken, span: SnapshotRange | None, seqno: Seqno) -> ResumeToken:
    """The token of one row of a run that ends at ``token``; without a span it waits where it is."""
    if span is None:
        return token
    return ResumeToken(token.branch, seqno, span, token.purge_seqno, token.log)


class Several:
    """Changes made of rows of one vbucket, handed out one by one."""

    __slots__ = ("_at", "_boundaries", "_changes", "_vbucket")

    def __init__(self, changes: list[Change], vbucket: int, boundaries: Boundaries) -> None:
        """Stand before the first; ``boundaries`` are those that all of them share."""
        self._changes = changes
        self._vbucket = vbucket
        self._boundaries = boundaries
        self._at = 0

    def __len__(self) -> int:
        """How many are left."""
        return len(self._changes) - self._at

    def next(self) -> Change | None:
        """The next one, None after the last."""
        if self._at == len(self._changes):
            return None
        self._at += 1
        return self._changes[self._at - 1]

    @property
    def delivered(self) -> dict[int, Position]:
        """Where the vbucket stands once what was handed out is done with."""
        if not self._at:
            return {}
        return {self._vbucket: Position(self._changes[self._at - 1].token, self._boundaries)}


@dataclass(slots=True)
class Uncut:
    """Rows of one run that wait to become changes."""

    reader: RowReader
    start: int
    stop: int
    vbucket: int
    token: ResumeToken
    span: SnapshotRange | None
    boundaries: Boundaries

    def several(self) -> Several:
        """The changes, made now."""
        changes = self.reader.changes(self.start, self.stop, self.vbucket, self.token, self.span)
        return Several(changes, self.vbucket, self.boundaries)

    @property
    def last_seqno(self) -> Seqno:
        """The greatest seqno among the rows."""
        return self.reader.greatest(self.start, self.stop)

    @property
    def position(self) -> Position:
        """Where the vbucket stands behind the last row."""
        return Position(token_at(self.token, self.span, self.last_seqno), self.boundaries)


def _numbers(batch: pa.RecordBatch, name: str) -> NDArray[np.generic]:
    """The numbers of a column, 0 where it is null: the scanner writes all of them."""
    column = batch.column(name)
    data = column.buffers()[1]
    return np.frombuffer(data, _DTYPES[name], len(column), column.offset * _DTYPES[name].itemsize)


def _optional(
    column: pa.Array, numbers: NDArray[np.generic], start: int, stop: int
) -> list[int | None]:
    if column.null_count == len(column):
        return [None] * (stop - start)
    some: list[int | None] = (
        column.slice(start, stop - start).to_pylist()
        if column.null_count
        else numbers[start:stop].tolist()
    )
    return some


def _offsets_and_data(
    batch: pa.RecordBatch, name: str
) -> tuple[NDArray[np.int32], memoryview | bytes]:
    column = batch.column(name)
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset)
    return places, b"" if data is None else memoryview(data)


def _cut(
    offsets: NDArray[np.int32], data: memoryview | bytes, start: int, stop: int
) -> list[bytes]:
    places = offsets[start : stop + 1].tolist()
    first = places[0]
    # One copy of what all of them have, then slices of bytes: a third of the time.
    whole = bytes(data[first : places[-1]])
    return [whole[one - first : after - first] for one, after in pairwise(places)]
