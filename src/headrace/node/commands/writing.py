"""Changing one document: SET, ADD, REPLACE, DELETE, APPEND, PREPEND, INCREMENT, DECREMENT.

Imports: wire, node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from headrace.node.command import writing
from headrace.node.documents import (
    Parts,
    absolute_expiry,
    check_datatype,
    check_size,
    inflated,
    living_item,
    locate,
    put_together,
    received_value,
    taken_apart,
)
from headrace.node.refusal import Refusal
from headrace.node.writes import (
    Write,
    carry_out,
    check_writable,
    preserves_ttl,
    tombstone_of,
    with_kept_xattrs,
)
from headrace.wire import kv
from headrace.wire.opcodes import Feature, Opcode, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.node.documents import Place
    from headrace.node.replies import Outcome
    from headrace.node.session import Session
    from headrace.store import Change, Item, Meta

NUMBER_MAX: Final = 2**64 - 1
DIGITS_MAX: Final = 20
DO_NOT_CREATE: Final = 0xFFFF_FFFF
"""Expiration of an arithmetic command that must find its number."""

Stored = TypeVar("Stored", bound=kv.StoredReply)


def stored(session: Session, place: Place, kind: type[Stored]) -> Callable[[Change], Stored]:
    """The reply of a write: its CAS and, if negotiated, its place in history."""

    def answer(change: Change) -> Stored:
        if not session.has(Feature.MUTATION_SEQNO):
            return kind(cas=change.cas)
        uuid = place.vbucket.failover_log.newest.uuid
        return kind(cas=change.cas, vb_uuid=uuid, seqno=change.seqno)

    return answer


def _meta_of(place: Place, item: Item | None) -> Meta | None:
    return None if item is None else place.vbucket.meta(place.key)


def _store(
    session: Session,
    message: kv.Set | kv.Add | kv.Replace,
    place: Place,
    item: Item | None,
    kind: type[kv.StoredReply],
) -> Outcome:
    value, datatype = received_value(session, message.value, message.datatype)
    value, datatype = with_kept_xattrs(item, value, datatype)
    if preserves_ttl(message) and item is not None:
        expiry = item.expiry
    else:
        expiry = absolute_expiry(session, place, message.expiration)
    write = Write(value=value, flags=message.flags, expiry=expiry, datatype=datatype)
    return carry_out(session, place, message, write, stored(session, place, kind))


def set_(session: Session, message: kv.Set) -> Outcome:
    """Write a document."""
    place = locate(session, message.vbucket, message.key)
    item = living_item(session, place)
    check_writable(session, place, _meta_of(place, item), message.cas)
    return _store(session, message, place, item, kv.SetReply)


def add(session: Session, message: kv.Add) -> Outcome:
    """Write a document that must not exist."""
    if message.cas:
        raise Refusal(Status.EINVAL, "ADD with a CAS: what does not exist has none")
    place = locate(session, message.vbucket, message.key)
    item = living_item(session, place)
    if item is not None:
        raise Refusal(Status.KEY_EEXISTS)
    check_writable(session, place, None, 0)
    return _store(session, message, place, None, kv.AddReply)


def replace(session: Session, message: kv.Replace) -> Outcome:
    """Write a document that must exist."""
    place = locate(session, message.vbucket, message.key)
    item = living_item(session, place)
    if item is None:
        raise Refusal(Status.KEY_ENOENT)
    check_writable(session, place, _meta_of(place, item), message.cas)
    return _store(session, message, place, item, kv.ReplaceReply)


def delete(session: Session, message: kv.Delete) -> Outcome:
    """Leave a tombstone."""
    place = locate(session, message.vbucket, message.key)
    item = living_item(session, place)
    if item is None:
        raise Refusal(Status.KEY_ENOENT)
    check_writable(session, place, _meta_of(place, item), message.cas)
    answer = stored(session, place, kv.DeleteReply)
    return carry_out(session, place, message, tombstone_of(item), answer)


# -- joining -------------------------------------------------------------------------------------


def _join(
    session: Session,
    message: kv.Append | kv.Prepend,
    kind: type[kv.StoredReply],
    join: Callable[[bytes, bytes], bytes],
) -> Outcome:
    place = locate(session, message.vbucket, message.key)
    check_datatype(session, message.datatype)
    item = living_item(session, place)
    if item is None:
        raise Refusal(Status.NOT_STORED)
    check_writable(session, place, _meta_of(place, item), message.cas)
    parts = taken_apart(item.value, item.datatype)
    document = join(parts.document, inflated(message.value, message.datatype))
    check_size(document)
    value, datatype = put_together(Parts(parts.xattrs, document))
    write = Write(value=value, flags=item.flags, expiry=item.expiry, datatype=datatype)
    return carry_out(session, place, message, write, stored(session, place, kind))


def append(session: Session, message: kv.Append) -> Outcome:
    """Write bytes behind a document."""
    return _join(session, message, kv.AppendReply, lambda old, new: old + new)


def prepend(session: Session, message: kv.Prepend) -> Outcome:
    """Write bytes before a document."""
    return _join(session, message, kv.PrependReply, lambda old, new: new + old)


# -- arithmetic ----------------------------------------------------------------------------------


def number_of(document: bytes) -> int:
    """The decimal number a document is; DELTA_BADVAL if it is none."""
    if not document.isdigit() or len(document) > DIGITS_MAX or int(document) > NUMBER_MAX:
        raise Refusal(Status.DELTA_BADVAL)
    return int(document)


def _arithmetic(
    session: Session,
    message: kv.Increment | kv.Decrement,
    kind: type[kv.IncrementReply] | type[kv.DecrementReply],
    change_of: Callable[[int, int], int],
) -> Outcome:
    place = locate(session, message.vbucket, message.key)
    item = living_item(session, place)
    xattrs: dict[str, bytes] = {}
    if item is None:
        if message.cas or message.expiration == DO_NOT_CREATE:
            raise Refusal(Status.KEY_ENOENT)
        number, flags = message.initial, 0
        expiry = absolute_expiry(session, place, message.expiration)
    else:
        parts = taken_apart(item.value, item.datatype)
        number = change_of(number_of(parts.document), message.delta)
        xattrs, flags, expiry = parts.xattrs, item.flags, item.expiry
    check_writable(session, place, _meta_of(place, item), message.cas)
    value, datatype = put_together(Parts(xattrs, str(number).encode()))
    write = Write(value=value, flags=flags, expiry=expiry, datatype=datatype)

    def answer(change: Change) -> kv.StoredReply:
        if not session.has(Feature.MUTATION_SEQNO):
            return kind(number=number, cas=change.cas)
        uuid = place.vbucket.failover_log.newest.uuid
        return kind(number=number, cas=change.cas, vb_uuid=uuid, seqno=change.seqno)

    return carry_out(session, place, message, write, answer)


def increment(session: Session, message: kv.Increment) -> Outcome:
    """Add to a number; it wraps at 64 bits."""
    return _arithmetic(
        session, message, kv.IncrementReply, lambda number, delta: (number + delta) & NUMBER_MAX
    )


def decrement(session: Session, message: kv.Decrement) -> Outcome:
    """Subtract from a number; it stops at 0."""
    return _arithmetic(
        session, message, kv.DecrementReply, lambda number, delta: max(0, number - delta)
    )


ROWS: Final = (
    *writing(set_, Opcode.SET, Opcode.SETQ),
    *writing(add, Opcode.ADD, Opcode.ADDQ),
    *writing(replace, Opcode.REPLACE, Opcode.REPLACEQ),
    *writing(delete, Opcode.DELETE, Opcode.DELETEQ),
    *writing(append, Opcode.APPEND, Opcode.APPENDQ),
    *writing(prepend, Opcode.PREPEND, Opcode.PREPENDQ),
    *writing(increment, Opcode.INCREMENT, Opcode.INCREMENTQ),
    *writing(decrement, Opcode.DECREMENT, Opcode.DECREMENTQ),
)
