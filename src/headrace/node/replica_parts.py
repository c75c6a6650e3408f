"""Received items in the store's form: dcp-7 extras, the collection id before the key.

Extended metadata, which older servers send behind the value, is cut off.

Imports: store.layout, store.plain, wire.messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.store import layout as at
from headrace.store.plain import (
    ABORT_FIELDS,
    ADVANCED_FIELDS,
    DELETION_FIELDS,
    EVENT_FIELDS,
    EXPIRATION_FIELDS,
    MUTATION_FIELDS,
    PREPARE_FIELDS,
    Parts,
)
from headrace.wire import messages as m

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.wire.message import Request

DEFAULT_COLLECTION: Final = b"\0"


def parts_of(message: Request, *, collections: bool) -> Parts:
    """An item as the store takes it: dcp-7 extras, the collection id before the key."""
    return _PARTS[type(message)](message, b"" if collections else DEFAULT_COLLECTION)


def _parts(
    message: Request, opcode: int, extras: bytes, key: bytes = b"", value: bytes = b""
) -> Parts:
    return Parts(opcode, message.datatype, message.vbucket, 0, message.cas, extras, key, value)


def _without_metadata(value: bytes, size: int | None) -> bytes:
    return value[: len(value) - size] if size else value


def _mutation(message: m.Mutation, prefix: bytes) -> Parts:
    extras = MUTATION_FIELDS.pack(
        message.by_seqno,
        message.rev_seqno,
        message.flags,
        message.expiration,
        message.lock_time,
        0,
        message.nru or 0,
    )
    value = _without_metadata(message.value, message.nmeta)
    return _parts(message, at.MUTATION, extras, prefix + message.key, value)


def _deletion(message: m.Deletion, prefix: bytes) -> Parts:
    value = _without_metadata(message.value, message.nmeta)
    extras = DELETION_FIELDS.pack(message.by_seqno, message.rev_seqno, message.delete_time or 0, 0)
    if message.delete_time is None:
        extras = extras[:16]
    return _parts(message, at.DELETION, extras, prefix + message.key, value)


def _expiration(message: m.Expiration, prefix: bytes) -> Parts:
    extras = EXPIRATION_FIELDS.pack(message.by_seqno, message.rev_seqno, message.delete_time or 0)
    value = _without_metadata(message.value, message.nmeta)
    return _parts(message, at.EXPIRATION, extras, prefix + message.key, value)


def _event(message: m.SystemEvent, _: bytes) -> Parts:
    extras = EVENT_FIELDS.pack(message.by_seqno, message.event, message.version)
    return _parts(message, at.SYSTEM_EVENT, extras, message.key, message.value)


def _prepare(message: m.Prepare, prefix: bytes) -> Parts:
    extras = PREPARE_FIELDS.pack(
        message.by_seqno,
        message.rev_seqno,
        message.flags,
        message.expiration,
        message.lock_time,
        message.nru,
        message.deleted,
        message.durability,
    )
    return _parts(message, at.PREPARE, extras, prefix + message.key, message.value)


def _commit(message: m.Commit, prefix: bytes) -> Parts:
    extras = ABORT_FIELDS.pack(message.prepared_seqno, message.commit_seqno)
    return _parts(message, at.COMMIT, extras, prefix + message.key)


def _abort(message: m.Abort, prefix: bytes) -> Parts:
    extras = ABORT_FIELDS.pack(message.prepared_seqno, message.abort_seqno)
    return _parts(message, at.ABORT, extras, prefix + message.key)


def _advanced(message: m.SeqnoAdvanced, _: bytes) -> Parts:
    return _parts(message, at.ADVANCED, ADVANCED_FIELDS.pack(message.by_seqno))


_PARTS: Final[dict[type, Callable[..., Parts]]] = {
    m.Mutation: _mutation,
    m.Deletion: _deletion,
    m.Expiration: _expiration,
    m.SystemEvent: _event,
    m.Prepare: _prepare,
    m.Commit: _commit,
    m.Abort: _abort,
    m.SeqnoAdvanced: _advanced,
}
