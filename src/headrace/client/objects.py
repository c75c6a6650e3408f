"""Objects: rows of a batch as changes, some at a time.

The road of single changes is the bulk road and one step more: what a kernel has cut out of the
frames is made into objects a few hundred rows at a time, column by column. One frame at a time
through codec, stream and events costs many times as much.

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
from functools import partial
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.client.changes import Change, Kind, Stretch, taken_apart
from headrace.columns.schema import SCHEMA, Event
from headrace.history import Seqno
from headrace.protocol.talk import Position
from headrace.wire.opcodes import Datatype

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from headrace.history import Boundaries

HIDDEN: Final = frozenset({Kind.SEQNO_ADVANCED})
"""Changes that move positions and are not handed out."""
KINDS: Final = {int(event): Kind[event.name] for event in Event}
"""A number in the column ``event`` -> the kind of change."""
_HIDDEN: Final = frozenset(number for number, kind in KINDS.items() if kind in HIDDEN)
_NUMBERS: Final = ("seqno", "event", "cas", "rev", "flags", "expiry", "delete_time", "datatype")
"""Columns that are 0 where they are null, and a change says 0 there."""
_OPTIONAL: Final = ("collection_id", "prepared_seqno", "stream_id")
"""Columns that are None in a change where they are null."""
_CHANGE: Final = partial(tuple.__new__, Change)
"""A change of a tuple of all its fields, without a call of Python."""
_TAKEN_APART: Final = int(Datatype.SNAPPY | Datatype.XATTR)
_DTYPES: Final = {
    name: np.dtype(SCHEMA.field(name).type.to_pandas_dtype()) for name in (*_NUMBERS, *_OPTIONAL)
}


class RowReader:
    """The columns of one batch, as changes need them."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        """Take a batch as the scanner makes it; it is kept."""
        self.batch = batch
        self._numbers = {name: _numbers(batch, name) for name in _NUMBERS}
        self._optional = {name: (batch.column(name), _numbers(batch, name)) for name in _OPTIONAL}
        self._binary = [_offsets_and_data(batch, name) for name in ("key", "value")]

    def greatest(self, start: int, stop: int) -> Seqno:
        """The greatest seqno among rows."""
        return Seqno(int(self._numbers["seqno"][start:stop].max()))

    def changes(self, start: int, stop: int, vbucket: int, stretch: Stretch) -> list[Change]:
        """The changes of rows ``start`` to ``stop``, a run or a part of one."""
        numbers = {name: column[start:stop].tolist() for name, column in self._numbers.items()}
        events: list[int] = numbers["event"]
        values: Sequence[bytes]
        keys, values = (_cut(*one, start, stop) for one in self._binary)
        datatypes: Sequence[int] = numbers["datatype"]
        xattrs: Iterable[dict[str, bytes] | None] = repeat(None)
        if any(datatype & _TAKEN_APART for datatype in set(datatypes)):
            apart = [taken_apart(*one) for one in zip(values, datatypes, strict=True)]
            values, datatypes, xattrs = zip(*apart, strict=True)
        collections, prepared, stream_ids = (
            _optional(*one, start, stop) for one in self._optional.values()
        )
        rows = zip(
            repeat(vbucket),
            numbers["seqno"],
            map(KINDS.__getitem__, events),
            keys,
            values,
            *(numbers[name] for name in ("cas", "rev", "flags", "expiry", "delete_time")),
            datatypes,
            collections,
            xattrs,
            prepared,
            stream_ids,
            repeat(stretch),
            strict=False,  # what is the same in all of them is repeated without end
        )
        changes = list(map(_CHANGE, rows))
        if _HIDDEN.isdisjoint(events):
            return changes
        return [change for change in changes if change.kind not in HIDDEN]


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
    stretch: Stretch
    boundaries: Boundaries

    def several(self) -> Several:
        """The changes, made now."""
        changes = self.reader.changes(self.start, self.stop, self.vbucket, self.stretch)
        return Several(changes, self.vbucket, self.boundaries)

    @property
    def last_seqno(self) -> Seqno:
        """The greatest seqno among the rows."""
        return self.reader.greatest(self.start, self.stop)

    @property
    def position(self) -> Position:
        """Where the vbucket stands behind the last row."""
        return Position(self.stretch.token_at(self.last_seqno), self.boundaries)


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
