"""The rows users see: what each column means, and how the columns of the wire become them.

Spark and Delta have no unsigned numbers. 32-bit ones are widened; 64-bit ones (seqno, cas, rev,
branch) keep their bits as signed: the same number up to 2**63 - 1, which no seqno and no clock
reaches, and ``hex(branch)`` shows a branch as every tool does.

Rules.
- (vbucket, epoch, seqno) names a row; order inside a vbucket is (epoch, seqno).
- Seqno-advanced rows are not published: they move positions, they tell nothing.
- ``value`` is null where a deletion or expiration carried none. Compressed values are inflated.
- A key that is not UTF-8 is shown as U+FFFD followed by the hex of its bytes.
- A rollback is a row too: event ``rollback`` at the boundary gone back to, in the new epoch, on the
  branch that lives; its value is a JSON object with where the reader stood and the dead branch.

Imports: history, wire, columns, spark.positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.block import ROWS_MAX
from headrace.columns.schema import SCHEMA, Event
from headrace.history import canonical_json
from headrace.wire.opcodes import Datatype, SystemEventId
from headrace.wire.values import inflate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.spark.positions import Withdrawal

ROLLBACK: Final = "rollback"
MUTATION: Final = "mutation"
DELETION: Final = "deletion"
EXPIRATION: Final = "expiration"
SYSTEM: Final = "system"

EVENT_NAMES: Final[dict[Event, str]] = {
    Event.MUTATION: MUTATION,
    Event.DELETION: DELETION,
    Event.EXPIRATION: EXPIRATION,
    Event.PREPARE: "prepare",
    Event.COMMIT: "commit",
    Event.ABORT: "abort",
    Event.SYSTEM_EVENT: SYSTEM,
    Event.SEQNO_ADVANCED: "seqno_advanced",
}

_NAMES: Final = pa.array(["", *(EVENT_NAMES[event] for event in Event)], pa.string())
_BAD_KEY_MARK: Final = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class RowColumn:
    """One column of a row: its Arrow type, whether it can be null, its SQL type and meaning."""

    name: str
    type: pa.DataType
    sql: str
    nullable: bool
    meaning: str


I32, I64 = pa.int32(), pa.int64()
TIME: Final = pa.timestamp("us", tz="UTC")

ROW_COLUMNS: Final = (
    RowColumn("vbucket", I32, "int", False, "vbucket the change belongs to"),
    RowColumn("epoch", I64, "bigint", False, "rises at every rollback of the vbucket"),
    RowColumn("seqno", I64, "bigint", False, "place in the vbucket's history"),
    RowColumn("branch", I64, "bigint", False, "uuid of the branch the change was written on"),
    RowColumn(
        "event",
        pa.string(),
        "string",
        False,
        "mutation, deletion, expiration, system or rollback (with sync writes also others)",
    ),
    RowColumn("key", pa.string(), "string", False, "document key; name of a system event"),
    RowColumn("value", pa.binary(), "binary", True, "document; null if a deletion carried none"),
    RowColumn("cas", I64, "bigint", True, "CAS: a hybrid clock in nanoseconds"),
    RowColumn("rev", I64, "bigint", True, "revision of the key"),
    RowColumn("flags", I64, "bigint", True, "flags the writer stored with the document"),
    RowColumn("expiry", I64, "bigint", True, "second at which the document expires, 0 never"),
    RowColumn("lock_time", I64, "bigint", True, "seconds the document is locked"),
    RowColumn("datatype", I32, "int", True, "bits: 1 JSON, 2 snappy (inflated here), 4 xattrs"),
    RowColumn("delete_time", I64, "bigint", True, "second of the deletion"),
    RowColumn("collection_id", I64, "bigint", True, "collection of the key, or of a system event"),
    RowColumn("system_event", I32, "int", True, "what a system event changed"),
    RowColumn("snapshot_start", I64, "bigint", True, "first seqno of the row's snapshot"),
    RowColumn("snapshot_end", I64, "bigint", True, "last seqno of the row's snapshot"),
    RowColumn("snapshot_flags", I64, "bigint", True, "bits of the row's snapshot marker"),
    RowColumn("event_time", TIME, "timestamp", True, "time of the change, from its CAS"),
)

ROW_SCHEMA: Final = pa.schema(
    [pa.field(column.name, column.type, column.nullable) for column in ROW_COLUMNS]
)
"""Schema of the rows of `format("dcp")` (values as binary) and, after `turn`, of `changes`."""


def sql_schema(columns: Sequence[RowColumn] = ROW_COLUMNS) -> str:
    """The columns as Spark reads a schema."""
    return ", ".join(
        f"{column.name} {column.sql}{'' if column.nullable else ' NOT NULL'}" for column in columns
    )


def signed(number: int) -> int:
    """A 64-bit number with its bits kept, as the tables hold it."""
    return number - 2**64 if number >= 2**63 else number


def unsigned(number: int) -> int:
    """The 64-bit number whose bits a table holds as signed."""
    return number + 2**64 if number < 0 else number


@dataclass(frozen=True, slots=True)
class RowContext:
    """What a batch of the wire does not say: epoch and branches of each vbucket.

    ``epochs`` is indexed by vbucket. ``begins`` and ``uuids`` have one line per place in a failover
    log, newest first, indexed by vbucket; a log that is shorter repeats its oldest branch.
    """

    epochs: np.ndarray
    begins: np.ndarray
    uuids: np.ndarray


def rows_of(batch: pa.RecordBatch, context: RowContext) -> pa.RecordBatch:
    """The published rows of a batch of the wire, in its order."""
    events = _numbers(batch, "event")
    if events.max(initial=0) == Event.SEQNO_ADVANCED:
        # No event has a greater number.
        batch = batch.filter(pa.array(events != Event.SEQNO_ADVANCED))
        events = _numbers(batch, "event")
    count = len(events)
    if not count:
        return NO_ROWS
    event = _only(events)
    vbuckets = _numbers(batch, "vbucket").astype(np.int32)
    runs = Runs.of(vbuckets)
    cas = _column(batch, "cas").view(I64)
    datatypes = _numbers(batch, "datatype")
    datatype = _only(datatypes)
    values = _column(batch, "value")
    collections = _widened(_column(batch, "collection_id"), I64)
    if event != Event.MUTATION or datatype is None or datatype & Datatype.SNAPPY:
        values = _values(values, events, datatypes)
        collections = _collections(batch, collections, events)
    columns: dict[str, pa.Array] = {
        "vbucket": pa.array(vbuckets),
        "epoch": _epochs(runs, context, count),
        "seqno": _column(batch, "seqno").view(I64),
        "branch": pa.array(_branches(runs, batch, context).view(np.int64)),
        "event": _names(events, event),
        "key": _texts(_column(batch, "key")),
        "value": values,
        "cas": cas,
        "rev": _column(batch, "rev").view(I64),
        "datatype": _datatypes(datatypes, datatype),
        "collection_id": collections,
        "system_event": _widened(_column(batch, "system_event"), I32),
        "snapshot_start": _column(batch, "snapshot_start").view(I64),
        "snapshot_end": _column(batch, "snapshot_end").view(I64),
        "event_time": _times(cas),
    }
    for name in ("flags", "expiry", "lock_time", "delete_time", "snapshot_flags"):
        columns[name] = _widened(_column(batch, name), I64)
    return pa.RecordBatch.from_arrays(
        [columns[column.name] for column in ROW_COLUMNS], schema=ROW_SCHEMA
    )


NO_ROWS: Final = pa.RecordBatch.from_pylist([], schema=ROW_SCHEMA)


def rows_size(rows: pa.RecordBatch) -> int:
    """About the bytes of rows, from the two columns whose size is not known beforehand.

    `RecordBatch.nbytes` looks at each buffer of every column: as dear as to make the rows.
    """
    documents = sum(_bytes_of(rows.column(place)) for place in _PLACES_OF_BYTES)
    return int(rows.num_rows) * _ROW_BYTES + documents


def _bytes_of(column: pa.Array) -> int:
    """The bytes of the values of a column of texts or bytes."""
    if not len(column):
        return 0
    places = np.frombuffer(column.buffers()[1], np.int32)
    return int(places[column.offset + len(column)]) - int(places[column.offset])


def rollback_rows(withdrawals: Iterable[Withdrawal]) -> pa.RecordBatch:
    """One row per withdrawal; it stands before the rows of the history that lives."""
    rows = [
        {
            "vbucket": one.vbucket,
            "epoch": one.epoch,
            "seqno": signed(one.to_seqno),
            "branch": signed(one.branch),
            "event": ROLLBACK,
            "key": "",
            "value": canonical_json(
                {
                    "from_seqno": str(one.from_seqno),
                    "to_seqno": str(one.to_seqno),
                    "dead_branch": f"{one.dead_branch:016x}",
                    "branch": f"{one.branch:016x}",
                }
            ).encode(),
            "datatype": int(Datatype.JSON),
        }
        for one in withdrawals
    ]
    return pa.RecordBatch.from_pylist(rows, schema=ROW_SCHEMA)


# -- the columns that need more than a cast --------------------------------------------------------


_PLACES: Final = {name: place for place, name in enumerate(SCHEMA.names)}
_PLACES_OF_BYTES: Final = tuple(ROW_SCHEMA.get_field_index(name) for name in ("key", "value"))
_ROW_BYTES: Final = sum(
    4 + len(MUTATION) if column.name == "event" else column.type.bit_width // 8
    for column in ROW_COLUMNS
    if column.name not in ("key", "value")
) + 4 * len(_PLACES_OF_BYTES)
"""Bytes of a row without its key and its value."""

CONSTANT_ROWS: Final = ROWS_MAX
"""Rows that one array of equal values is made for."""
CONSTANTS_MAX: Final = 64
"""Arrays of equal values that are kept."""


class _Constants:
    """Arrays that hold one value over and over, to be shared by all batches.

    Most columns of most batches say the same in every row. An array that is there already costs
    nothing, and is still in the processor's cache when it is written.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[pa.DataType, object], pa.Array] = {}

    def of(self, kind: pa.DataType, value: object, count: int) -> pa.Array:
        """``count`` times the value, None for null."""
        if count > CONSTANT_ROWS:
            return pa.repeat(pa.scalar(value, kind), count)
        whole = self._found.get((kind, value))
        if whole is None:
            if len(self._found) >= CONSTANTS_MAX:
                self._found.clear()
            whole = pa.repeat(pa.scalar(value, kind), CONSTANT_ROWS)
            self._found[kind, value] = whole
        return whole.slice(0, count)


constants: Final = _Constants()


@dataclass(frozen=True, slots=True)
class Runs:
    """The rows of a batch as runs of one value each: rows of a vbucket come together."""

    values: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, numbers: np.ndarray) -> Runs:
        """The runs of at least one row."""
        changes = (numbers[1:] != numbers[:-1]).nonzero()[0]
        edges = np.empty(len(changes) + 2, np.int64)
        edges[0], edges[-1] = 0, len(numbers)
        np.add(changes, 1, out=edges[1:-1])
        starts = edges[:-1]
        return cls(numbers[starts], starts, edges[1:] - starts)

    def spread(self, values: np.ndarray) -> np.ndarray:
        """One value per run as one value per row."""
        return values.repeat(self.sizes)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    return batch.column(_PLACES[name])


def _numbers(batch: pa.RecordBatch, name: str) -> np.ndarray:
    """A column that is never null as numbers, without a copy where that can be."""
    return np.asarray(_column(batch, name).to_numpy(zero_copy_only=False))


def _only(numbers: np.ndarray) -> int | None:
    """The number that all of them are; None if there are several."""
    least = int(numbers.min())
    return least if least == numbers.max() else None


def _names(events: np.ndarray, only: int | None) -> pa.Array:
    if only is None:
        return _NAMES.take(pa.array(events))
    return constants.of(pa.string(), EVENT_NAMES[Event(only)], len(events))


def _datatypes(datatypes: np.ndarray, only: int | None) -> pa.Array:
    if only is None:
        return pa.array((datatypes & ~np.uint8(Datatype.SNAPPY)).astype(np.int32))
    return constants.of(I32, only & ~int(Datatype.SNAPPY), len(datatypes))


def _epochs(runs: Runs, context: RowContext, count: int) -> pa.Array:
    epochs = context.epochs[runs.values]
    only = _only(epochs)
    return pa.array(runs.spread(epochs)) if only is None else constants.of(I64, only, count)


def _widened(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column of smaller numbers in a wider type."""
    if column.null_count == len(column):
        return constants.of(kind, None, len(column))
    if not column.null_count:
        only = _only(column.to_numpy(zero_copy_only=False))
        if only is not None:
            return constants.of(kind, only, len(column))
    return column.cast(kind)


def _branches(runs: Runs, batch: pa.RecordBatch, context: RowContext) -> np.ndarray:
    """The branch of each row: the newest whose beginning lies below the seqno."""
    here = runs.values
    begins = context.begins[0][here]
    if not begins.any():
        return runs.spread(context.uuids[0][here])
    seqnos = _numbers(batch, "seqno")
    if (np.minimum.reduceat(seqnos, runs.starts) > begins).all():
        return runs.spread(context.uuids[0][here])
    vbuckets = runs.spread(here)
    found: np.ndarray = context.uuids[0][vbuckets]
    below = seqnos <= context.begins[0][vbuckets]
    place = 1
    while place < len(context.uuids) and below.any():
        found = np.where(below, context.uuids[place][vbuckets], found)
        below &= seqnos <= context.begins[place][vbuckets]
        place += 1
    return found


def _texts(keys: pa.Array) -> pa.Array:
    _, places, data = keys.buffers()
    if data is not None and len(keys):
        ends = np.frombuffer(places, np.int32)
        letters = np.frombuffer(data, np.uint8)[ends[keys.offset] : ends[keys.offset + len(keys)]]
        if letters.size and letters.max() < _NOT_ASCII and not keys.null_count:
            # ASCII is UTF-8: one look at all bytes instead of one at each key.
            return pa.StringArray.from_buffers(len(keys), places, data, offset=keys.offset)
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(key) for key in keys.to_pylist()], pa.string())


_NOT_ASCII: Final = 0x80


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return f"{_BAD_KEY_MARK}{key.hex()}"


def key_bytes(text: str) -> bytes:
    """The key of a row as it is on the wire."""
    return bytes.fromhex(text[1:]) if text.startswith(_BAD_KEY_MARK) else text.encode()


def _values(values: pa.Array, events: np.ndarray, datatypes: np.ndarray) -> pa.Array:
    """The values with null for "none was sent", without a copy of the bytes."""
    if (datatypes & Datatype.SNAPPY).any():
        compressed = (datatypes & Datatype.SNAPPY) != 0
        values = pa.array(
            [
                inflate(value) if packed and value else value
                for value, packed in zip(values.to_pylist(), compressed, strict=True)
            ],
            pa.binary(),
        )
    absent = (events == Event.DELETION) | (events == Event.EXPIRATION)
    if not absent.any():
        return values
    absent &= pc.binary_length(values).to_numpy(zero_copy_only=False) == 0
    _, places, data = values.buffers()
    # The bitmap counts from the start of the buffers, which a slice shares with its whole.
    valid = np.concatenate([np.ones(values.offset, np.bool_), ~absent])
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(values), [bitmap, places, data], offset=values.offset
    )


def _times(cas: pa.Array) -> pa.Array:
    """The time a CAS tells, to the microsecond; null for 0 and for numbers that are no clock."""
    nanoseconds = cas.to_numpy(zero_copy_only=False)
    unknown = nanoseconds <= 0 if nanoseconds.min() <= 0 else None
    return pa.array(nanoseconds // 1000, mask=unknown).view(TIME)


def _collections(batch: pa.RecordBatch, collections: pa.Array, events: np.ndarray) -> pa.Array:
    """The collection of each row; of a system event the one it is about."""
    system = events == Event.SYSTEM_EVENT
    if not system.any():
        return collections
    found = collections.to_pylist()
    kinds = _column(batch, "system_event").to_pylist()
    values = _column(batch, "value")
    for place in np.flatnonzero(system).tolist():
        if kinds[place] in _ABOUT_COLLECTIONS:
            # Manifest uid, scope, collection: the same first 16 bytes in every layout but
            # FlatBuffers.
            value = values[place].as_py()
            if len(value) in _COLLECTION_VALUE_SIZES:
                found[place] = int.from_bytes(value[12:16], "big")
    return pa.array(found, I64)


_ABOUT_COLLECTIONS: Final = frozenset(
    {int(SystemEventId.BEGIN_COLLECTION), int(SystemEventId.END_COLLECTION)}
)
_COLLECTION_VALUE_SIZES: Final = (16, 20)
