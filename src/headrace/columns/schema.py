"""The columns of a batch and what they mean.

A row is a message that takes a seqno of its vbucket's history: mutation, deletion, expiration,
prepare, commit, abort, system event and seqno advanced. Seqno advanced is a row because a snapshot
may end with it: the last row of a vbucket with ``seqno == snapshot_end`` is where the vbucket is
consistent, whatever took that seqno. Readers who want documents only keep ``event <= EXPIRATION``.
Markers are no rows: each row carries the snapshot it came in.

Rules.
- A column that can be null is null exactly where the message had no room for the field; a field
  that was sent as 0 is 0. Keys and values are never null: the wire cannot tell an absent one from
  an empty one. Columns that share a `Presence` bit are null in the same rows.
- ``key`` has no collection prefix: with collections it is split off into ``collection_id``.
- ``value`` is without the extended metadata (nmeta bytes at the end of a body, 3.x and 4.x), which
  is dropped.
- A row seen before any marker, after STREAM_END, or in an out-of-order snapshot has no snapshot:
  all three snapshot columns are null. After the draft's empty marker the range is null and
  ``snapshot_flags`` is 0.
- Keys and values have 32-bit offsets (plain binary, the type Spark reads): a batch takes its bytes
  from a bounded input (`headrace.columns.scan`), so they cannot overflow.

Imports: nothing of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

import pyarrow as pa


class Event(IntEnum):
    """What a row tells; the number in the column ``event``."""

    MUTATION = 1
    DELETION = 2
    EXPIRATION = 3
    PREPARE = 4
    COMMIT = 5
    ABORT = 6
    SYSTEM_EVENT = 7
    SEQNO_ADVANCED = 8


class Presence(IntFlag):
    """Groups of fields that a message has together or lacks together; one bit per group."""

    REVISION = 0x001
    DOCUMENT = 0x002
    NRU = 0x004
    DELETE_TIME = 0x008
    COLLECTION = 0x010
    STREAM_ID = 0x020
    RESOLUTION = 0x040
    PREPARE = 0x080
    SYSTEM = 0x100
    SNAPSHOT = 0x200
    MARKED = 0x400


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its Arrow type, the group that decides where it is null, its meaning."""

    name: str
    type: pa.DataType
    presence: Presence | None
    meaning: str

    @property
    def is_binary(self) -> bool:
        """True for the two columns of bytes: offsets and data instead of one array."""
        return bool(pa.types.is_binary(self.type))

    @property
    def width(self) -> int:
        """Bytes of one row's number; of one offset for a column of bytes."""
        return 4 if self.is_binary else int(self.type.bit_width) // 8


U8, U16, U32, U64 = pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()

COLUMNS: Final = (
    Column("vbucket", U16, None, "vbucket the change belongs to"),
    Column("seqno", U64, None, "place in the vbucket's history; of commit and abort their own"),
    Column("event", U8, None, "what happened, a number of Event"),
    Column(
        "key", pa.binary(), None, "document key; name of a system event; empty if none was sent"
    ),
    Column("value", pa.binary(), None, "document, xattr block included; empty if none was sent"),
    Column("cas", U64, None, "CAS of the header: a hybrid clock in nanoseconds, 0 if none"),
    Column("rev", U64, Presence.REVISION, "revision of the key"),
    Column("flags", U32, Presence.DOCUMENT, "flags the writer stored with the document"),
    Column("expiry", U32, Presence.DOCUMENT, "second at which the document expires, 0 never"),
    Column("lock_time", U32, Presence.DOCUMENT, "seconds the document is locked"),
    Column("nru", U8, Presence.NRU, "how hot the document is in the producer's cache"),
    Column("datatype", U8, None, "bits of Datatype: what the value is made of"),
    Column("delete_time", U32, Presence.DELETE_TIME, "second of the deletion"),
    Column("collection_id", U32, Presence.COLLECTION, "collection of the key"),
    Column("snapshot_start", U64, Presence.SNAPSHOT, "first seqno of the snapshot in force"),
    Column("snapshot_end", U64, Presence.SNAPSHOT, "last seqno of the snapshot in force"),
    Column("snapshot_flags", U32, Presence.MARKED, "bits of MarkerFlag of the snapshot in force"),
    Column("prepared_seqno", U64, Presence.RESOLUTION, "seqno of the prepare this row resolves"),
    Column("durability", U8, Presence.PREPARE, "level of a prepare, a number of DurabilityLevel"),
    Column("deleted", U8, Presence.PREPARE, "1 when the prepare is of a deletion"),
    Column("system_event", U32, Presence.SYSTEM, "what changed, a number of SystemEventId"),
    Column("system_version", U8, Presence.SYSTEM, "version of the system event's value"),
    Column("stream_id", U16, Presence.STREAM_ID, "stream id of the frame"),
    Column("opaque", U32, None, "opaque of the stream's request"),
)

SCHEMA: Final = pa.schema(
    [
        pa.field(
            column.name,
            column.type,
            nullable=column.presence is not None,
            metadata={"meaning": column.meaning},
        )
        for column in COLUMNS
    ]
)
"""Schema of every batch."""


def blank(rows: int) -> pa.RecordBatch:
    """A batch of the schema with nothing in its rows.

    Not by `pa.array`, which loads pandas where that is installed: a quarter of a second and forty
    megabytes for a question about the type of its argument.
    """
    return pa.RecordBatch.from_arrays([pa.nulls(rows, one.type) for one in COLUMNS], schema=SCHEMA)


NO_ROWS: Final = blank(0)
