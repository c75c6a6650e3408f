"""Filters at the consumer's end: by key, value and kind of change.

A producer narrows streams to collections; everything else is left out here, after it came. Tokens
move over what is left out all the same.

Imports: client.changes, columns.schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.changes import Kind
from headrace.columns.schema import SCHEMA, Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.client.changes import Change

EVENTS: Final = {
    Kind.MUTATION: Event.MUTATION,
    Kind.DELETION: Event.DELETION,
    Kind.EXPIRATION: Event.EXPIRATION,
    Kind.PREPARE: Event.PREPARE,
    Kind.COMMIT: Event.COMMIT,
    Kind.ABORT: Event.ABORT,
    Kind.SYSTEM_EVENT: Event.SYSTEM_EVENT,
    Kind.SEQNO_ADVANCED: Event.SEQNO_ADVANCED,
}
"""A kind of change -> its number in the column ``event``."""
_EVENT: Final = SCHEMA.get_field_index("event")
_FLAGS: Final = SCHEMA.get_field_index("flags")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What may pass; everything left out passes all.

    ``key_prefix`` and ``value_contains`` are bytes. ``where`` is any test on a row as a dict of the
    schema's columns (slow: one dict per row), ``expression`` an Arrow expression on the columns.
    """

    key_prefix: bytes = b""
    value_contains: bytes = b""
    kinds: frozenset[Kind] | None = None
    where: Callable[[dict[str, object]], bool] | None = None
    expression: pc.Expression | None = None

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that pass; the batch itself when all do."""
        mask = self._event_mask(batch)
        if self.key_prefix:
            mask = _both(mask, pc.starts_with(batch.column("key"), pattern=self.key_prefix))
        if self.value_contains:
            found = pc.match_substring(batch.column("value"), pattern=self.value_contains)
            mask = _both(mask, found)
        if mask is not None:
            batch = batch.filter(mask)
        if self.expression is not None and batch.num_rows:
            table = pa.Table.from_batches([batch]).filter(self.expression).combine_chunks()
            batch = table.to_batches()[0] if table.num_rows else batch.slice(0, 0)
        if self.where is not None and batch.num_rows:
            batch = batch.filter(pa.array([self.where(row) for row in batch.to_pylist()]))
        return batch

    @property
    def passes_changes(self) -> bool:
        """Whether every change passes, so that none need be looked at."""
        chosen = self.kinds is not None or self.where is not None
        return not (self.key_prefix or self.value_contains or chosen)

    def change(self, change: Change) -> bool:
        """Whether a change passes."""
        if self.kinds is not None and change.kind not in self.kinds:
            return False
        if not change.key.startswith(self.key_prefix) or self.value_contains not in change.value:
            return False
        return self.where is None or self.where(row_of(change))

    def _event_mask(self, batch: pa.RecordBatch) -> pa.Array | None:
        if self.kinds is None and not batch.column(_FLAGS).null_count:
            # Nearly every batch is documents only, which all have flags: look before copying.
            return None
        events = batch.column(_EVENT)
        if self.kinds is None:
            if not batch.num_rows or events.to_numpy().max() < Event.SEQNO_ADVANCED:
                return None
            return pc.not_equal(events, pa.scalar(Event.SEQNO_ADVANCED, pa.uint8()))
        wanted = [int(EVENTS[kind]) for kind in self.kinds]
        return pc.is_in(events, value_set=pa.array(wanted, pa.uint8()))


def _both(mask: pa.Array | None, other: pa.Array) -> pa.Array:
    return other if mask is None else pc.and_(mask, other)


def row_of(change: Change) -> dict[str, object]:
    """A change as a row of the schema's columns that it has."""
    return {
        "vbucket": change.vbucket,
        "seqno": change.seqno,
        "event": int(EVENTS[change.kind]),
        "key": change.key,
        "value": change.value,
        "cas": change.cas,
        "rev": change.rev,
        "flags": change.flags,
        "expiry": change.expiry,
        "delete_time": change.delete_time,
        "datatype": change.datatype,
        "collection_id": change.collection_id,
        "prepared_seqno": change.prepared_seqno,
        "stream_id": change.stream_id,
    }
