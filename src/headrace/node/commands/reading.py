"""Reading one document: GET, GETK, GAT, TOUCH, GET_LOCKED, UNLOCK, GET_META, GET_RANDOM_KEY.

Imports: wire, node.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from headrace.node.bucket_host import LOCK_SECONDS_DEFAULT, LOCK_SECONDS_MAX, Lock
from headrace.node.command import NO_INFOS, Command, Quiet, reading, writing
from headrace.node.documents import (
    absolute_expiry,
    living_item,
    living_meta,
    locate,
    shown_cas,
    shown_value,
)
from headrace.node.refusal import Refusal
from headrace.node.users import Role
from headrace.node.writes import check_writable, locked
from headrace.wire import kv
from headrace.wire.opcodes import Opcode, Status, VBucketState
from headrace.wire.values import split_collection

if TYPE_CHECKING:
    from headrace.node.documents import Place
    from headrace.node.session import Session
    from headrace.store import Item

WITH_DATATYPE: Final = 2
"""Request version of GET_META that asks for the datatype."""


def _find(session: Session, place: Place) -> Item:
    item = living_item(session, place)
    if item is None:
        place.host.counters.get_misses += 1
        raise Refusal(Status.KEY_ENOENT)
    place.host.counters.get_hits += 1
    return item


def get(session: Session, message: kv.Get) -> kv.GetReply:
    """Send a document."""
    place = locate(session, message.vbucket, message.key)
    item = _find(session, place)
    value, datatype = shown_value(session, item)
    return kv.GetReply(
        flags=item.flags, value=value, datatype=datatype, cas=shown_cas(session, place, item.cas)
    )


def get_key(session: Session, message: kv.GetK) -> kv.GetKReply:
    """Send a document and its key as it was asked for."""
    place = locate(session, message.vbucket, message.key)
    item = _find(session, place)
    value, datatype = shown_value(session, item)
    return kv.GetKReply(
        flags=item.flags,
        key=message.key,
        value=value,
        datatype=datatype,
        cas=shown_cas(session, place, item.cas),
    )


def _touched(session: Session, place: Place, expiration: int) -> tuple[Item, int]:
    """Give a document a new expiry; the document and its CAS."""
    item = _find(session, place)
    meta = living_meta(session, place)
    check_writable(session, place, meta, 0)
    expiry = absolute_expiry(session, place, expiration)
    place.host.counters.touches += 1
    if expiry == item.expiry:
        return item, item.cas
    change = place.vbucket.touch(place.key, expiry)
    if change is None:
        raise Refusal(Status.KEY_ENOENT)
    return item, change.cas


def touch(session: Session, message: kv.Touch) -> kv.TouchReply:
    """Change when a document expires."""
    place = locate(session, message.vbucket, message.key)
    _, cas = _touched(session, place, message.expiration)
    return kv.TouchReply(cas=cas)


def get_and_touch(session: Session, message: kv.Gat) -> kv.GatReply:
    """Send a document and change when it expires."""
    place = locate(session, message.vbucket, message.key)
    item, cas = _touched(session, place, message.expiration)
    value, datatype = shown_value(session, item)
    return kv.GatReply(flags=item.flags, value=value, datatype=datatype, cas=cas)


def get_locked(session: Session, message: kv.GetLocked) -> kv.GetLockedReply:
    """Send a document and lock it: only the CAS sent can change or unlock it for a time."""
    place = locate(session, message.vbucket, message.key)
    item = _find(session, place)
    before = place.host.find_lock(place.vbucket.id, place.key, item.cas)
    if before is not None and before.until > session.monotonic:
        raise locked(session)
    if place.vbucket.pending(place.key) is not None:
        raise Refusal(Status.SYNC_WRITE_IN_PROGRESS)
    asked = message.lock_seconds or LOCK_SECONDS_DEFAULT
    seconds = asked if asked <= LOCK_SECONDS_MAX else LOCK_SECONDS_DEFAULT
    cas = max(place.vbucket.max_cas, item.cas, before.cas if before else 0) + 1
    lock = Lock(cas, item.cas, session.monotonic + seconds)
    place.host.lock(place.vbucket.id, place.key, lock)
    value, datatype = shown_value(session, item)
    return kv.GetLockedReply(flags=item.flags, value=value, datatype=datatype, cas=cas)


def unlock(session: Session, message: kv.Unlock) -> kv.UnlockReply:
    """Unlock a document by the CAS its lock gave."""
    place = locate(session, message.vbucket, message.key)
    if message.cas == 0:
        raise Refusal(Status.EINVAL, "UNLOCK needs the CAS of the lock")
    meta = living_meta(session, place)
    if meta is None:
        raise Refusal(Status.KEY_ENOENT)
    lock = place.host.find_lock(place.vbucket.id, place.key, meta.cas)
    if lock is None or lock.until <= session.monotonic:
        raise Refusal(Status.NOT_LOCKED if session.extended_errors else Status.ETMPFAIL)
    if lock.cas != message.cas:
        raise locked(session)
    # The lock's CAS stays the document's, as the reader who held it knows no other.
    place.host.lock(place.vbucket.id, place.key, lock._replace(until=0.0))
    return kv.UnlockReply()


def get_meta(session: Session, message: kv.GetMeta) -> kv.GetMetaReply:
    """Send a document's metadata, or its tombstone's."""
    place = locate(session, message.vbucket, message.key)
    version = message.request_version
    if version is not None and version not in (1, WITH_DATATYPE):
        raise Refusal(Status.EINVAL, f"GET_META version {version}, allowed 1 or 2")
    living_meta(session, place)
    meta = place.vbucket.meta(place.key)
    if meta is None:
        raise Refusal(Status.KEY_ENOENT)
    return kv.GetMetaReply(
        deleted=int(meta.deleted),
        flags=meta.flags,
        expiration=meta.expiry,
        rev_seqno=meta.rev,
        document_datatype=meta.datatype if version == WITH_DATATYPE else None,
        cas=meta.cas if meta.deleted else shown_cas(session, place, meta.cas),
    )


def get_random_key(session: Session, message: kv.GetRandomKey) -> kv.GetRandomKeyReply:
    """Send any document of a collection, the default one if none is named."""
    host = session.host
    collection = message.collection_id if session.collections else 0
    if collection is None:
        collection = 0
    if collection not in host.manifest.collections:
        raise host.manifest.unknown_collection()
    vbuckets = [one for one in host.bucket.vbuckets if one.state == VBucketState.ACTIVE]
    # Chance picks a sample here, not a secret.
    random.shuffle(vbuckets)
    for vbucket in vbuckets:
        key = vbucket.random_key(random.getrandbits(32), collection)
        item = vbucket.get(key) if key is not None else None
        if key is None or item is None or item.deleted or 0 < item.expiry <= session.now:
            continue
        value, datatype = shown_value(session, item)
        return kv.GetRandomKeyReply(
            flags=item.flags,
            key=key if session.collections else split_collection(key)[1],
            value=value,
            datatype=datatype,
            cas=item.cas,
        )
    raise Refusal(Status.KEY_ENOENT)


ROWS: Final = (
    *reading(get, Opcode.GET, Opcode.GETQ),
    *reading(get_key, Opcode.GETK, Opcode.GETKQ),
    *writing(touch, Opcode.TOUCH, infos=NO_INFOS),
    *writing(get_and_touch, Opcode.GAT, infos=NO_INFOS),
    Command(
        opcode=Opcode.GATQ,
        function=get_and_touch,
        role=Role.WRITE,
        bucket=True,
        quiet=Quiet.MISS,
    ),
    *writing(get_locked, Opcode.GET_LOCKED, infos=NO_INFOS),
    *writing(unlock, Opcode.UNLOCK, infos=NO_INFOS),
    *reading(get_meta, Opcode.GET_META, Opcode.GETQ_META),
    *reading(get_random_key, Opcode.GET_RANDOM_KEY),
)
