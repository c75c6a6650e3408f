"""The rules between a request and a document: where it is, whether it lives, what is shown of it.

Order of the refusals, as in released servers: vbucket (07), key (04), collection (88), then the
document itself (`headrace.node.writes` has the rules for changing it).

* The vbucket of the header is obeyed, never computed from the key.
* A document whose expiry has passed does not live: whoever finds it expires it first.
* What a client is shown is its negotiated part of a value: no xattrs, snappy inflated where it was
  not negotiated, datatype bits it does not know cleared.
* JSON is what parses as JSON, whatever the client claims.

Imports: errors, wire, node.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import RemoteProtocolError
from headrace.node.manifest import DEFAULT_ID
from headrace.node.refusal import Blocked, Refusal
from headrace.wire.opcodes import Datatype, Feature, Status, VBucketState
from headrace.wire.values import inflate, join_xattrs, split_collection, split_xattrs

if TYPE_CHECKING:
    from headrace.node.bucket_host import BucketHost
    from headrace.node.session import Session
    from headrace.store import Item, Meta, VBucket

KEY_SIZE_MAX: Final = 250
PREFIXED_KEY_SIZE_MAX: Final = 251
DEFAULT_PREFIX: Final = b"\0"
DOCUMENT_SIZE_MAX: Final = 20 * 1024 * 1024
RELATIVE_EXPIRY_MAX: Final = 30 * 86_400
EXPIRY_MAX: Final = 0xFFFF_FFFF
LOCKED_CAS: Final = 0xFFFF_FFFF_FFFF_FFFF
"""What a reader is shown instead of the CAS of a document that another has locked."""
ACTIVE_ONLY: Final = frozenset({VBucketState.ACTIVE})
_JSON_FIRST: Final = frozenset(b'{["tfn-0123456789 \t\r\n')


@dataclass(frozen=True, slots=True)
class Place:
    """Where a document is: bucket, vbucket and the key with its collection in front."""

    host: BucketHost
    vbucket: VBucket
    key: bytes
    collection: int


class Parts(NamedTuple):
    """A value taken apart: its xattrs and its document, inflated."""

    xattrs: dict[str, bytes]
    document: bytes


def find_vbucket(
    session: Session, number: int, *, states: frozenset[VBucketState] = ACTIVE_ONLY
) -> VBucket:
    """The vbucket in one of these states; a pending one makes the request wait."""
    vbucket = session.host.bucket.find(number)
    if vbucket is not None and vbucket.state in states:
        return vbucket
    if vbucket is not None and vbucket.state == VBucketState.PENDING:
        raise Blocked(number)
    raise session.not_my_vbucket()


def locate(
    session: Session,
    number: int,
    key: bytes,
    *,
    states: frozenset[VBucketState] = ACTIVE_ONLY,
) -> Place:
    """Where the document ``key`` of vbucket ``number`` is."""
    vbucket = find_vbucket(session, number, states=states)
    host = session.host
    collection = DEFAULT_ID
    if session.collections:
        try:
            collection, name = split_collection(key)
        except RemoteProtocolError as error:
            raise Refusal(Status.EINVAL, str(error)) from error
        if not name or len(key) > PREFIXED_KEY_SIZE_MAX:
            raise Refusal(
                Status.EINVAL,
                f"key of {len(key)} bytes with its collection, limit {PREFIXED_KEY_SIZE_MAX}, "
                "and at least one byte must follow the collection",
            )
    else:
        if len(key) > KEY_SIZE_MAX:
            raise Refusal(Status.EINVAL, f"key of {len(key)} bytes, limit {KEY_SIZE_MAX}")
        key = DEFAULT_PREFIX + key
    if collection not in host.manifest.collections:
        raise host.manifest.unknown_collection()
    return Place(host, vbucket, key, collection)


def living_meta(session: Session, place: Place) -> Meta | None:
    """What is known of a document that lives; one whose time has come is expired here."""
    if place.host.sync_writes.is_recommitting(place.vbucket.id, place.key):
        raise Refusal(Status.SYNC_WRITE_RE_COMMIT)
    meta = place.vbucket.meta(place.key)
    if meta is None or meta.deleted:
        return None
    if 0 < meta.expiry <= session.now and place.vbucket.state == VBucketState.ACTIVE:
        _expire(place)
        return None
    return meta


def living_item(session: Session, place: Place) -> Item | None:
    """A document that lives, with its value."""
    if living_meta(session, place) is None:
        return None
    item = place.vbucket.get(place.key)
    return None if item is None or item.deleted else item


def _expire(place: Place) -> None:
    item = place.vbucket.get(place.key)
    if item is None or place.vbucket.pending(place.key) is not None:
        return
    value, datatype = system_xattrs(item.value, item.datatype)
    place.vbucket.expire(place.key, value=value, datatype=datatype)


def absolute_expiry(session: Session, place: Place, expiry: int) -> int:
    """The time a client's expiry means, cut to the longest its collection or bucket allows."""
    now = session.now
    if 0 < expiry <= RELATIVE_EXPIRY_MAX:
        expiry = now + expiry
    longest = place.host.manifest.collections[place.collection].max_ttl
    if longest is None:
        longest = place.host.config.max_ttl
    if longest and (expiry == 0 or expiry > now + longest):
        expiry = now + longest
    return min(expiry, EXPIRY_MAX)


def shown_cas(session: Session, place: Place, cas: int) -> int:
    """The CAS a reader is shown: a lock in force hides it, one that has ended replaced it."""
    lock = place.host.find_lock(place.vbucket.id, place.key, cas)
    if lock is None:
        return cas
    return LOCKED_CAS if lock.until > session.monotonic else lock.cas


# -- values --------------------------------------------------------------------------------------


def is_json(value: bytes) -> bool:
    """Whether the bytes are one JSON text."""
    if not value or value[0] not in _JSON_FIRST:
        return False
    try:
        json.loads(value, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def inflated(value: bytes, datatype: int) -> bytes:
    """The bytes of a value that may be snappy; EINVAL when they do not inflate."""
    if not datatype & Datatype.SNAPPY:
        return value
    try:
        return inflate(value)
    except RemoteProtocolError as error:
        raise Refusal(Status.EINVAL, str(error)) from error


def taken_apart(value: bytes, datatype: int) -> Parts:
    """A value's xattrs and document."""
    plain = inflated(value, datatype)
    if not datatype & Datatype.XATTR:
        return Parts({}, plain)
    try:
        return Parts(*split_xattrs(plain))
    except RemoteProtocolError as error:
        raise Refusal(Status.XATTR_EINVAL, str(error)) from error


def put_together(parts: Parts) -> tuple[bytes, int]:
    """The value and datatype of xattrs and a document."""
    datatype = Datatype.JSON if is_json(parts.document) else 0
    if not parts.xattrs:
        return parts.document, datatype
    return join_xattrs(parts.xattrs, parts.document), datatype | Datatype.XATTR


def system_xattrs(value: bytes, datatype: int) -> tuple[bytes, int]:
    """What a tombstone keeps of a value: the xattrs whose names start with ``_``."""
    if not datatype & Datatype.XATTR:
        return b"", 0
    kept = {
        name: text for name, text in taken_apart(value, datatype).xattrs.items() if name[0] == "_"
    }
    return (join_xattrs(kept, b""), int(Datatype.XATTR)) if kept else (b"", 0)


def shown_value(session: Session, item: Item) -> tuple[bytes, int]:
    """The value and datatype of a document as this client may see them."""
    value, datatype = item.value, item.datatype
    if datatype & Datatype.XATTR:
        value = taken_apart(value, datatype).document
        datatype &= Datatype.JSON
    elif datatype & Datatype.SNAPPY and not session.has(Feature.SNAPPY):
        value = inflated(value, datatype)
        datatype &= ~Datatype.SNAPPY
    if not session.has(Feature.JSON):
        datatype &= ~Datatype.JSON
    return value, datatype


def received_value(session: Session, value: bytes, datatype: int) -> tuple[bytes, int]:
    """A client's value and its true datatype; snappy stays as it came."""
    check_datatype(session, datatype)
    if datatype & Datatype.XATTR:
        raise Refusal(Status.EINVAL, "this command takes no xattrs")
    plain = inflated(value, datatype)
    check_size(plain)
    kept = datatype & Datatype.SNAPPY
    return value, kept | (Datatype.JSON if is_json(plain) else 0)


def check_datatype(session: Session, datatype: int) -> None:
    """Refuse datatype bits that were not negotiated."""
    allowed = session.datatypes
    if datatype & ~allowed:
        raise Refusal(
            Status.EINVAL, f"datatype {datatype:#04x}; negotiated with HELLO: {allowed:#04x}"
        )


def check_size(document: bytes) -> None:
    """Refuse a document over the limit."""
    if len(document) > DOCUMENT_SIZE_MAX:
        raise Refusal(Status.E2BIG, f"document of {len(document)} bytes, limit {DOCUMENT_SIZE_MAX}")
