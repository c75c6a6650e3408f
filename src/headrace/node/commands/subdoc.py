"""Sub-document commands: one path, or up to 16, of one document and its xattrs.

A lookup answers each path for itself. A mutation is all or none: the first path that fails names
itself and nothing is changed. Document flags say what happens when the document is missing (make
it, insist that it is new) or deleted (look into the tombstone's xattrs, make it deleted, revive
it).

Imports: wire, node.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from headrace.node.command import reading, writing
from headrace.node.documents import (
    Parts,
    absolute_expiry,
    check_size,
    living_item,
    locate,
    put_together,
    shown_cas,
    taken_apart,
)
from headrace.node.refusal import Refusal
from headrace.node.subdocument import (
    READERS,
    WRITERS,
    Identity,
    OpenDocument,
    PathWork,
    change,
    first_body,
    look_up,
)
from headrace.node.writes import Write, carry_out, check_writable, preserves_ttl
from headrace.wire.opcodes import Feature, Opcode, Status, SubdocDocFlag
from headrace.wire.subdoc import (
    LookupResult,
    MutationResult,
    SubdocMultiLookup,
    SubdocMultiLookupReply,
    SubdocMultiMutation,
    SubdocMultiMutationReply,
    SubdocReply,
    SubdocRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.node.documents import Place
    from headrace.node.replies import Outcome
    from headrace.node.session import Session
    from headrace.store import Change, Item
    from headrace.wire.message import Reply

LOOKUP_FLAGS: Final = int(SubdocDocFlag.ACCESS_DELETED)
MUTATION_FLAGS: Final = sum(SubdocDocFlag)
MASK: Final = 0xFFFF


def _open(session: Session, place: Place, flags: int) -> OpenDocument | None:
    """The document, a tombstone if deleted ones may be seen, or None."""
    item: Item | None = living_item(session, place)
    if item is None and flags & SubdocDocFlag.ACCESS_DELETED:
        item = place.vbucket.get(place.key)
    if item is None:
        return None
    parts = taken_apart(item.value, item.datatype)
    body = None if item.deleted and not parts.document else parts.document
    return OpenDocument(place.vbucket, item, dict(parts.xattrs), body, deleted=item.deleted)


def _works(message: SubdocMultiLookup | SubdocMultiMutation) -> list[PathWork]:
    works = [
        PathWork(spec.opcode, int(spec.flags), spec.path, spec.value) for spec in message.specs
    ]
    body_seen = False
    for work in works:
        if work.is_xattr and body_seen:
            raise Refusal(Status.SUBDOC_INVALID_XATTR_ORDER)
        body_seen = body_seen or not work.is_xattr
    return works


def _work(message: SubdocRequest) -> PathWork:
    return PathWork(message.operation, int(message.path_flags), message.path, message.value)


def _doc_flags(flags: int | None, allowed: int) -> int:
    number = int(flags or 0)
    if number & ~allowed:
        raise Refusal(Status.EINVAL, f"document flags {number:#04x}, allowed {allowed:#04x}")
    return number


# -- lookups -------------------------------------------------------------------------------------


def lookup(session: Session, message: SubdocRequest) -> SubdocReply:
    """Read one path."""
    flags = _doc_flags(message.doc_flags, LOOKUP_FLAGS)
    if message.value or message.expiration is not None:
        raise Refusal(Status.EINVAL, "a lookup takes neither value nor expiration")
    place = locate(session, message.vbucket, message.key)
    document = _open(session, place, flags)
    if document is None or document.item is None:
        raise Refusal(Status.KEY_ENOENT)
    value = look_up(document, _work(message))
    return SubdocReply(
        operation=message.operation,
        status=Status.SUBDOC_SUCCESS_DELETED if document.deleted else Status.SUCCESS,
        value=value,
        cas=shown_cas(session, place, document.item.cas),
    )


def multi_lookup(session: Session, message: SubdocMultiLookup) -> SubdocMultiLookupReply:
    """Read several paths; each has its own status."""
    flags = _doc_flags(message.doc_flags, LOOKUP_FLAGS)
    works = _works(message)
    place = locate(session, message.vbucket, message.key)
    document = _open(session, place, flags)
    if document is None or document.item is None:
        raise Refusal(Status.KEY_ENOENT)
    results = []
    for work in works:
        try:
            results.append(LookupResult(status=Status.SUCCESS, value=look_up(document, work)))
        except Refusal as refusal:
            results.append(LookupResult(status=refusal.status))
    failed = any(result.status for result in results)
    return SubdocMultiLookupReply(
        status=LOOKUP_STATUSES[failed, document.deleted],
        results=tuple(results),
        cas=shown_cas(session, place, document.item.cas),
    )


LOOKUP_STATUSES: Final = {
    (False, False): Status.SUCCESS,
    (True, False): Status.SUBDOC_MULTI_PATH_FAILURE,
    (False, True): Status.SUBDOC_SUCCESS_DELETED,
    (True, True): Status.SUBDOC_MULTI_PATH_FAILURE_DELETED,
}


# -- mutations -----------------------------------------------------------------------------------


class _Mutation:
    """One mutation command on its way: opened, changed, written."""

    def __init__(
        self,
        session: Session,
        message: SubdocRequest | SubdocMultiMutation,
        works: list[PathWork],
    ) -> None:
        self._session = session
        self._message = message
        self._works = works
        self._flags = _doc_flags(message.doc_flags, MUTATION_FLAGS)
        self._check_flags()
        self.place = locate(session, message.vbucket, message.key)
        living = living_item(session, self.place)
        meta = self.place.vbucket.meta(self.place.key) if living is not None else None
        self._refuse_by_existence(living)
        check_writable(session, self.place, meta, message.cas)
        self.document = self._opened()
        self._identity: Identity | None = None

    def _check_flags(self) -> None:
        flags = self._flags
        if flags & SubdocDocFlag.MKDOC and flags & SubdocDocFlag.ADD:
            raise Refusal(Status.EINVAL, "document flags 01 and 02 exclude each other")
        if flags & SubdocDocFlag.ADD and self._message.cas:
            raise Refusal(Status.EINVAL, "document flag 02 (add) with a CAS")
        creates = flags & (SubdocDocFlag.MKDOC | SubdocDocFlag.ADD)
        if flags & SubdocDocFlag.CREATE_AS_DELETED and not creates:
            raise Refusal(Status.EINVAL, "document flag 08 needs 01 or 02")
        if flags & SubdocDocFlag.REVIVE_DOCUMENT and flags & SubdocDocFlag.CREATE_AS_DELETED:
            raise Refusal(Status.EINVAL, "document flags 08 and 10 exclude each other")

    def _refuse_by_existence(self, living: Item | None) -> None:
        if self._flags & SubdocDocFlag.ADD and living is not None:
            raise Refusal(Status.KEY_EEXISTS)
        if self._flags & SubdocDocFlag.REVIVE_DOCUMENT and living is not None:
            raise Refusal(Status.SUBDOC_CAN_ONLY_REVIVE_DELETED)

    def _opened(self) -> OpenDocument:
        document = _open(self._session, self.place, self._flags)
        if document is not None and not (document.deleted and self._may_create()):
            return document
        if document is None and not self._may_create():
            raise Refusal(Status.KEY_ENOENT)
        deleted = bool(self._flags & SubdocDocFlag.CREATE_AS_DELETED)
        body = None if deleted else first_body(self._works).encode()
        made = OpenDocument(self.place.vbucket, None, {}, body, deleted=deleted)
        if document is not None:
            made.xattrs, made.item = document.xattrs, document.item
        return made

    def _may_create(self) -> bool:
        return bool(self._flags & (SubdocDocFlag.MKDOC | SubdocDocFlag.ADD))

    def identity(self) -> Identity:
        """The CAS and seqno this change will be given: chosen once, when a macro asks."""
        if self._identity is None:
            vbucket = self.place.vbucket
            clock = time.time_ns() & ~MASK
            cas = clock if clock > vbucket.max_cas else vbucket.max_cas + 1
            self._identity = Identity(cas, vbucket.high_seqno + 1)
        return self._identity

    def apply(self, work: PathWork) -> bytes:
        """Carry out one path; what it returns."""
        return change(self.document, work, self.identity, creating=self._may_create())

    def write(self, answer: Callable[[Change], Reply | None]) -> Outcome:
        """Write the changed document."""
        document, message = self.document, self._message
        if self._flags & SubdocDocFlag.REVIVE_DOCUMENT:
            document.deleted = False
        if document.body is not None:
            check_size(document.body)
            if document.deleted and document.changed_body:
                raise Refusal(Status.SUBDOC_DELETED_CANT_HAVE_VALUE)
        value, datatype = put_together(Parts(document.xattrs, document.body or b""))
        deleted = document.deleted or (document.body is None and document.changed_body)
        write = Write(
            value=value,
            datatype=datatype,
            flags=document.item.flags if document.item else 0,
            expiry=0 if deleted else self._expiry(),
            deleted=deleted,
            cas=self._identity.cas if self._identity else None,
        )
        return carry_out(self._session, self.place, message, write, answer)

    def _expiry(self) -> int:
        message, item = self._message, self.document.item
        kept = item.expiry if item is not None and not item.deleted else 0
        if message.expiration is None or (preserves_ttl(message) and item is not None):
            return kept
        return absolute_expiry(self._session, self.place, message.expiration)


def _token(session: Session, place: Place, change_made: Change) -> tuple[int | None, int | None]:
    if not session.has(Feature.MUTATION_SEQNO):
        return None, None
    return place.vbucket.failover_log.newest.uuid, change_made.seqno


def mutate(session: Session, message: SubdocRequest) -> Outcome:
    """Change one path."""
    work = _work(message)
    mutation = _Mutation(session, message, [work])
    value = mutation.apply(work)

    def answer(change_made: Change) -> SubdocReply:
        uuid, seqno = _token(session, mutation.place, change_made)
        return SubdocReply(
            operation=message.operation,
            value=value,
            cas=change_made.cas,
            vb_uuid=uuid,
            seqno=seqno,
            status=Status.SUBDOC_SUCCESS_DELETED if mutation.document.deleted else Status.SUCCESS,
        )

    return mutation.write(answer)


def multi_mutate(session: Session, message: SubdocMultiMutation) -> Outcome:
    """Change several paths, all or none."""
    works = _works(message)
    mutation = _Mutation(session, message, works)
    results = []
    for index, work in enumerate(works):
        try:
            value = mutation.apply(work)
        except Refusal as refusal:
            failed = MutationResult(index=index, status=refusal.status)
            return SubdocMultiMutationReply(
                status=LOOKUP_STATUSES[True, mutation.document.deleted], results=(failed,)
            )
        if value:
            results.append(MutationResult(index=index, status=Status.SUCCESS, value=value))

    def answer(change_made: Change) -> SubdocMultiMutationReply:
        uuid, seqno = _token(session, mutation.place, change_made)
        return SubdocMultiMutationReply(
            status=LOOKUP_STATUSES[False, mutation.document.deleted],
            results=tuple(results),
            cas=change_made.cas,
            vb_uuid=uuid,
            seqno=seqno,
        )

    return mutation.write(answer)


ROWS: Final = (
    *(row for number in READERS for row in reading(lookup, Opcode(number))),
    *(row for number in WRITERS for row in writing(mutate, Opcode(number))),
    *reading(multi_lookup, Opcode.SUBDOC_MULTI_LOOKUP),
    *writing(multi_mutate, Opcode.SUBDOC_MULTI_MUTATION),
)
