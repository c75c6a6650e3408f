"""The messages of documents: reading and writing them, with and without their metadata.

Commands with a quiet twin have a ``quiet`` field: the quiet opcode suppresses the reply that a
client can do without (success of a write, a miss of a read); errors are always sent.

Imports: wire.message.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.wire.message import EmptyReply, Reply, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRequest(Request):
    """A request about one document, with a quiet twin."""

    key: bytes
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReply(Reply):
    """A write took place: the header's CAS is the document's, with its place in history if asked.

    ``vb_uuid`` and ``seqno`` are there after HELLO with mutation tokens.
    """

    vb_uuid: int | None = None
    seqno: int | None = None
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Get(KeyRequest):
    """Read a document. Answered: GetReply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetReply(Reply):
    """A document."""

    flags: int = 0
    value: bytes = b""
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GetK(KeyRequest):
    """Read a document and be told its key again. Answered: GetKReply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetKReply(Reply):
    """A document with its key."""

    flags: int = 0
    key: bytes = b""
    value: bytes = b""
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Set(KeyRequest):
    """Write a document; a CAS in the header makes it compare-and-swap. Answered: SetReply."""

    flags: int = 0
    expiration: int = 0
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetReply(StoredReply):
    """Written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Add(KeyRequest):
    """Write a document that must not exist. Answered: AddReply."""

    flags: int = 0
    expiration: int = 0
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddReply(StoredReply):
    """Written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace(KeyRequest):
    """Write a document that must exist. Answered: ReplaceReply."""

    flags: int = 0
    expiration: int = 0
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceReply(StoredReply):
    """Written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete(KeyRequest):
    """Delete a document. Answered: DeleteReply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteReply(StoredReply):
    """Deleted; the CAS is the tombstone's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment(KeyRequest):
    """Add to a decimal number. Answered: IncrementReply. Expiration ffffffff: do not create."""

    delta: int
    initial: int = 0
    expiration: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementReply(StoredReply):
    """The new number."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decrement(KeyRequest):
    """Subtract from a decimal number, not below 0. Answered: DecrementReply."""

    delta: int
    initial: int = 0
    expiration: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecrementReply(StoredReply):
    """The new number."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(KeyRequest):
    """Write bytes behind a document's value. Answered: AppendReply."""

    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendReply(StoredReply):
    """Written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepend(KeyRequest):
    """Write bytes before a document's value. Answered: PrependReply."""

    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrependReply(StoredReply):
    """Written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch(Request):
    """Change a document's expiration. Answered: TouchReply."""

    expiration: int
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchReply(Reply):
    """Changed; some servers send the flags."""

    flags: int | None = None
    vb_uuid: int | None = None
    seqno: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gat(KeyRequest):
    """Read a document and change its expiration. Answered: GatReply."""

    expiration: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GatReply(Reply):
    """A document."""

    flags: int = 0
    value: bytes = b""
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GetLocked(Request):
    """Read a document and lock it for a time. Answered: GetLockedReply; the CAS unlocks."""

    lock_seconds: int | None = None
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GetLockedReply(Reply):
    """A locked document."""

    flags: int = 0
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlock(Request):
    """Unlock a document by the CAS its lock gave. Answered: UnlockReply."""

    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class UnlockReply(EmptyReply):
    """Unlocked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMeta(KeyRequest):
    """Ask for a document's metadata, tombstones included. Answered: GetMetaReply.

    ``request_version`` 2 asks for the datatype too.
    """

    request_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetMetaReply(Reply):
    """Metadata of a document or a tombstone."""

    deleted: int
    flags: int
    expiration: int
    rev_seqno: int
    document_datatype: int | None = None
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WithMeta(KeyRequest):
    """A write that brings its own metadata; ``meta_cas`` becomes the document's CAS.

    ``nmeta`` bytes of extended metadata stand at the end of the value.
    """

    flags: int = 0
    expiration: int = 0
    rev_seqno: int
    meta_cas: int
    options: int | None = None
    nmeta: int | None = None
    value: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetWithMeta(WithMeta):
    """Write a document with its metadata. Answered: SetWithMetaReply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetWithMetaReply(StoredReply):
    """Written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddWithMeta(WithMeta):
    """Write a document that must not exist with its metadata. Answered: AddWithMetaReply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddWithMetaReply(StoredReply):
    """Written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelWithMeta(WithMeta):
    """Delete a document with its metadata; the expiration is the delete time.

    Answered: DelWithMetaReply.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class DelWithMetaReply(StoredReply):
    """Deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRandomKey(Request):
    """Ask for any document, of one collection if given. Answered: GetRandomKeyReply."""

    collection_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetRandomKeyReply(Reply):
    """Any document."""

    flags: int = 0
    key: bytes = b""
    value: bytes = b""
