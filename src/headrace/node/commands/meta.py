"""Writes that bring their own metadata: SET_WITH_META, ADD_WITH_META, DEL_WITH_META.

A document that was changed elsewhere arrives with its CAS, rev, flags and expiry. The greater of
two versions wins, equal ones lose: by (rev, cas, expiry, flags), or on last-write-wins buckets by
(cas, rev, expiry, flags). A loser is told KEY_EEXISTS.

Imports: errors, wire, node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.node.command import NO_INFOS, writing
from headrace.node.commands.writing import stored
from headrace.node.config import ConflictResolution
from headrace.node.documents import (
    ACTIVE_ONLY,
    Parts,
    check_datatype,
    check_size,
    living_meta,
    locate,
    put_together,
    taken_apart,
)
from headrace.node.refusal import Refusal
from headrace.node.writes import check_writable
from headrace.wire import kv
from headrace.wire.opcodes import Datatype, MetaOption, Opcode, Status, VBucketState

if TYPE_CHECKING:
    from headrace.node.documents import Place
    from headrace.node.replies import Outcome
    from headrace.node.session import Session
    from headrace.store import Change, Meta

ANY_ALIVE: Final = frozenset({VBucketState.ACTIVE, VBucketState.REPLICA, VBucketState.PENDING})
KNOWN_OPTIONS: Final = sum(MetaOption)


def _options(session: Session, message: kv.WithMeta) -> int:
    options = int(message.options or 0)
    if options & ~KNOWN_OPTIONS:
        raise Refusal(Status.EINVAL, f"options {options:#x}, known {KNOWN_OPTIONS:#x}")
    if options & MetaOption.REGENERATE_CAS and not options & MetaOption.SKIP_CONFLICT_RESOLUTION:
        raise Refusal(
            Status.EINVAL, "option 04 (regenerate CAS) needs 08 (skip conflict resolution)"
        )
    last_write = session.host.config.conflict_resolution is ConflictResolution.LAST_WRITE
    accepts = bool(options & (MetaOption.FORCE_ACCEPT | MetaOption.SKIP_CONFLICT_RESOLUTION))
    if last_write and not accepts:
        raise Refusal(Status.EINVAL, "a last-write-wins bucket needs option 02 (force accept)")
    return options


def _value(session: Session, message: kv.WithMeta, *, deleted: bool) -> tuple[bytes, int]:
    check_datatype(session, message.datatype)
    nmeta = message.nmeta or 0
    if nmeta > len(message.value):
        raise Refusal(
            Status.EINVAL, f"{nmeta} bytes of metadata in a value of {len(message.value)}"
        )
    value = message.value[: len(message.value) - nmeta]
    parts = taken_apart(value, message.datatype)
    check_size(parts.document)
    if deleted and parts.document:
        raise Refusal(Status.EINVAL, "a deleted document keeps xattrs and nothing else")
    plain, datatype = put_together(Parts(parts.xattrs, parts.document))
    if message.datatype & Datatype.SNAPPY:
        return value, datatype | Datatype.SNAPPY
    return plain, datatype


def _wins(session: Session, message: kv.WithMeta, meta: Meta) -> bool:
    rest = (message.expiration, message.flags)
    mine = (meta.expiry, meta.flags)
    if session.host.config.conflict_resolution is ConflictResolution.LAST_WRITE:
        return (message.meta_cas, message.rev_seqno, *rest) > (meta.cas, meta.rev, *mine)
    return (message.rev_seqno, message.meta_cas, *rest) > (meta.rev, meta.cas, *mine)


def _apply(
    session: Session,
    message: kv.WithMeta,
    kind: type[kv.StoredReply],
    *,
    deleted: bool = False,
    must_be_new: bool = False,
) -> Outcome:
    options = _options(session, message)
    value, datatype = _value(session, message, deleted=deleted)
    states = ANY_ALIVE if options & MetaOption.FORCE else ACTIVE_ONLY
    place = locate(session, message.vbucket, message.key, states=states)
    if message.meta_cas in (0, 0xFFFF_FFFF_FFFF_FFFF):
        raise Refusal(Status.EINVAL, f"{message.meta_cas:#x} cannot be a document's CAS")
    living = living_meta(session, place)
    if must_be_new and living is not None:
        raise Refusal(Status.KEY_EEXISTS)
    check_writable(session, place, living, message.cas)
    known = place.vbucket.meta(place.key)
    skip = options & MetaOption.SKIP_CONFLICT_RESOLUTION
    if known is not None and not skip and not _wins(session, message, known):
        raise Refusal(Status.KEY_EEXISTS)
    cas = None if options & MetaOption.REGENERATE_CAS else message.meta_cas
    change = _write(place, message, value, datatype, cas, deleted, options)
    place.host.unlock(place.vbucket.id, place.key)
    return stored(session, place, kind)(change)


def _write(
    place: Place,
    message: kv.WithMeta,
    value: bytes,
    datatype: int,
    cas: int | None,
    deleted: bool,
    options: int,
) -> Change:
    vbucket, rev = place.vbucket, message.rev_seqno
    if not deleted:
        return vbucket.store(
            place.key,
            value,
            flags=message.flags,
            expiry=message.expiration,
            datatype=datatype,
            cas=cas,
            rev=rev,
        )
    when = message.expiration or None
    if options & MetaOption.IS_EXPIRATION:
        return vbucket.expire(
            place.key, value=value, datatype=datatype, cas=cas, rev=rev, delete_time=when
        )
    return vbucket.delete(
        place.key,
        value=value,
        datatype=datatype,
        cas=cas,
        rev=rev,
        delete_time=when,
    )


def set_with_meta(session: Session, message: kv.SetWithMeta) -> Outcome:
    """Write a document with its metadata."""
    return _apply(session, message, kv.SetWithMetaReply)


def add_with_meta(session: Session, message: kv.AddWithMeta) -> Outcome:
    """Write a document that must not exist with its metadata."""
    return _apply(session, message, kv.AddWithMetaReply, must_be_new=True)


def del_with_meta(session: Session, message: kv.DelWithMeta) -> Outcome:
    """Leave a tombstone with its metadata, whether the document was here or not."""
    return _apply(session, message, kv.DelWithMetaReply, deleted=True)


ROWS: Final = (
    *writing(set_with_meta, Opcode.SET_WITH_META, Opcode.SETQ_WITH_META, infos=NO_INFOS),
    *writing(add_with_meta, Opcode.ADD_WITH_META, Opcode.ADDQ_WITH_META, infos=NO_INFOS),
    *writing(del_with_meta, Opcode.DEL_WITH_META, Opcode.DELQ_WITH_META, infos=NO_INFOS),
)
