"""Messages -> batch, one at a time: the slow and obvious road to the rows of scan.

For people, for single messages, and as the model the kernel is held against in the tests. It knows
messages, not layouts: what a field is called, not where it stands.

Imports: columns.forms, columns.schema, errors, wire.message(s), wire.values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headrace.columns.forms import EVENTS, UNMARKING
from headrace.columns.schema import SCHEMA, Event
from headrace.errors import RemoteProtocolError
from headrace.wire import messages as m
from headrace.wire.message import Request
from headrace.wire.values import split_collection

if TYPE_CHECKING:
    from headrace.wire.message import Message

    Row = dict[str, object]
    Place = tuple[int, int | None]

NO_SNAPSHOT: Final = (None, None, None)

FIELDS: Final = {
    "by_seqno": "seqno",
    "commit_seqno": "seqno",
    "abort_seqno": "seqno",
    "rev_seqno": "rev",
    "flags": "flags",
    "expiration": "expiry",
    "lock_time": "lock_time",
    "nru": "nru",
    "delete_time": "delete_time",
    "prepared_seqno": "prepared_seqno",
    "durability": "durability",
    "deleted": "deleted",
    "event": "system_event",
    "version": "system_version",
    "value": "value",
}
"""Field of a message -> column, where they hold the same."""


class Builder:
    """Collects rows and keeps the snapshot in force of every stream."""

    def __init__(self, *, collections: bool = False) -> None:
        self._collections = collections
        self._rows: list[Row] = []
        self._snapshots: dict[Place, tuple[int | None, int | None, int | None]] = {}

    @property
    def rows(self) -> int:
        """Rows collected since the last batch."""
        return len(self._rows)

    def add(self, message: Message) -> bool:
        """Take a message; True when it is a row or a marker, False when neither.

        Raises RemoteProtocolError, and changes nothing, when it should be a row but cannot.
        """
        if not isinstance(message, Request):
            return False
        place = (message.vbucket, message.stream_id)
        if isinstance(message, m.SnapshotMarker):
            flags = message.flags or 0
            self._snapshots[place] = (message.start_seqno, message.end_seqno, flags)
            return True
        if type(message) in UNMARKING:
            self._snapshots.pop(place, None)
        event = EVENTS.get(type(message))
        if event is None:
            return False
        self._rows.append(self._row(event, message, place))
        return True

    def batch(self) -> pa.RecordBatch:
        """Return the rows collected since the last batch."""
        rows, self._rows = self._rows, []
        arrays = [pa.array([row[field.name] for row in rows], type=field.type) for field in SCHEMA]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)

    def _row(self, event: Event, message: Request, place: Place) -> Row:
        row: Row = dict.fromkeys(SCHEMA.names)
        row.update(vbucket=message.vbucket, opaque=message.opaque, cas=message.cas)
        row.update(event=int(event), datatype=message.datatype, stream_id=message.stream_id)
        for field, column in FIELDS.items():
            if hasattr(message, field):
                row[column] = getattr(message, field)
        snapshot = self._snapshots.get(place, NO_SNAPSHOT)
        row.update(zip(("snapshot_start", "snapshot_end", "snapshot_flags"), snapshot, strict=True))
        row["value"] = _without_metadata(message)
        row["key"] = getattr(message, "key", b"")
        if self._collections and event not in (Event.SYSTEM_EVENT, Event.SEQNO_ADVANCED):
            row["collection_id"], row["key"] = split_collection(getattr(message, "key", b""))
        return row


def _without_metadata(message: Request) -> bytes:
    value: bytes = getattr(message, "value", b"")
    size: int = getattr(message, "nmeta", None) or 0
    if size > len(value):
        raise RemoteProtocolError(
            f"{type(message).__name__} with {size} bytes of extended metadata in a value of "
            f"{len(value)}"
        )
    return value[: len(value) - size]
