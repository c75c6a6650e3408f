"""What a consumer hands to an application: changes, rollbacks, troubles. All frozen values.

A `Change` is a tuple with names: hundreds of thousands are made in a second, by `tuple.__new__`
from columns that lie ready, at a tenth of what a dataclass of as many fields costs. For the same
reason its token is made when it is asked for, of what all changes of a run have in common.

Imports: history, protocol, wire.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import RemoteProtocolError
from headrace.history import ResumeToken, Seqno
from headrace.protocol.stream import SEQNO_FIELDS
from headrace.wire import messages as m
from headrace.wire.opcodes import Datatype
from headrace.wire.values import inflate, split_collection, split_xattrs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.history import BranchId, SnapshotRange
    from headrace.wire.message import Request

CAS_SECOND: Final = 1_000_000_000


class Kind(Enum):
    """What happened to a document, or to the vbucket."""

    MUTATION = "mutation"
    DELETION = "deletion"
    EXPIRATION = "expiration"
    PREPARE = "prepare"
    COMMIT = "commit"
    ABORT = "abort"
    SYSTEM_EVENT = "system_event"
    SEQNO_ADVANCED = "seqno_advanced"


KINDS: Final[dict[type[Request], Kind]] = {
    m.Mutation: Kind.MUTATION,
    m.Deletion: Kind.DELETION,
    m.Expiration: Kind.EXPIRATION,
    m.Prepare: Kind.PREPARE,
    m.Commit: Kind.COMMIT,
    m.Abort: Kind.ABORT,
    m.SystemEvent: Kind.SYSTEM_EVENT,
    m.SeqnoAdvanced: Kind.SEQNO_ADVANCED,
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """What the tokens of a run's changes are made of.

    ``token`` stands behind the last of them, ``span`` is the snapshot they all lie in; None: the
    token waits where it is.
    """

    token: ResumeToken
    span: SnapshotRange | None = None

    def token_at(self, seqno: int) -> ResumeToken:
        """Where to resume behind the change at ``seqno``."""
        if self.span is None:
            return self.token
        last = self.token
        return ResumeToken(last.branch, Seqno(seqno), self.span, last.purge_seqno, last.log)


class _Fields(NamedTuple):
    vbucket: int
    seqno: int
    kind: Kind
    key: bytes
    value: bytes
    cas: int
    rev: int
    flags: int
    expiry: int
    delete_time: int
    datatype: int
    collection_id: int | None
    xattrs: dict[str, bytes] | None
    prepared_seqno: int | None
    stream_id: int | None
    stretch: Stretch


class Change(_Fields):
    """One change of one vbucket's history.

    ``key`` has no collection prefix and ``value`` is inflated; ``xattrs`` are cut from it.
    ``token`` is where to resume once this change is done with; ``token.is_boundary`` says that the
    vbucket's state is consistent after it. ``expiry`` and ``delete_time`` are seconds since 1970, 0
    for none. (``stretch``, the last of the tuple, is what ``token`` is made of.)
    """

    __slots__ = ()

    def __new__(
        cls,
        *,
        vbucket: int,
        seqno: int,
        kind: Kind,
        key: bytes = b"",
        value: bytes = b"",
        cas: int = 0,
        rev: int = 0,
        flags: int = 0,
        expiry: int = 0,
        delete_time: int = 0,
        datatype: int = 0,
        collection_id: int | None = None,
        xattrs: dict[str, bytes] | None = None,
        prepared_seqno: int | None = None,
        stream_id: int | None = None,
        token: ResumeToken,
    ) -> Change:
        """A change with its own token."""
        first = (vbucket, seqno, kind, key, value, cas, rev, flags, expiry, delete_time, datatype)
        last = (collection_id, xattrs, prepared_seqno, stream_id, Stretch(token))
        return tuple.__new__(cls, first + last)

    @property
    def token(self) -> ResumeToken:
        """Where to resume once this change is done with."""
        return self.stretch.token_at(self.seqno)

    def __eq__(self, other: object) -> bool:
        """The same change, with the same token; never the same as another tuple."""
        if not isinstance(other, Change):
            return False
        return self[:-1] == other[:-1] and self.token == other.token

    def __ne__(self, other: object) -> bool:
        """Not the same."""
        return not self == other

    def __hash__(self) -> int:
        """By what is told apart most."""
        return hash((self.vbucket, self.seqno, self.cas, self.key))

    def __repr__(self) -> str:
        """As a call that makes it."""
        fields = [f"{name}={one!r}" for name, one in zip(self._fields, self[:-1], strict=False)]
        return f"Change({', '.join(fields)}, token={self.token!r})"

    def __reduce__(self) -> tuple[object, ...]:
        """Keep it as it is."""
        return tuple.__new__, (Change, tuple(self))

    @property
    def time(self) -> datetime | None:
        """When the change was made by the node's clock (from its CAS), None if it has none."""
        return cas_time(self.cas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """Everything of the vbucket above ``to_seqno`` is withdrawn: its history is no more.

    ``from_seqno`` is the last seqno that was handed out, ``dead_branch`` the branch it was on.
    ``to_seqno`` is a boundary the consumer holds, at or below what the producer asked for. Rows of
    the new branch follow; ``token`` is where they start.
    """

    vbucket: int
    from_seqno: int
    to_seqno: int
    dead_branch: BranchId
    token: ResumeToken

    def __str__(self) -> str:
        """As a sentence."""
        log = f", the log is now {self.token.log}" if self.token.log is not None else ""
        return (
            f"vbucket {self.vbucket} is rolled back from {self.from_seqno} to {self.to_seqno}: "
            f"branch {self.dead_branch:016x} ended{log}; what came after {self.to_seqno} is void"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something keeps vbuckets from streaming; told as it happens, streaming is tried again."""

    vbuckets: tuple[int, ...]
    reason: str
    attempts: int
    retry_seconds: float | None

    def __str__(self) -> str:
        """As a sentence."""
        names = vbucket_names(self.vbuckets)
        again = "" if self.retry_seconds is None else f"; again in {self.retry_seconds:.1f} s"
        return f"vbucket {names}: {self.reason} (attempt {self.attempts}){again}"


def vbucket_names(vbuckets: Iterable[int], limit: int = 8) -> str:
    """Numbers as a person writes them, ``0-31, 40``, and of how many more there is no room."""
    rising = sorted(set(vbuckets))
    cuts = [place for place, (one, after) in enumerate(pairwise(rising), 1) if after != one + 1]
    runs = [rising[low:high] for low, high in pairwise([0, *cuts, len(rising)])]
    names = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:limit] if run]
    more = sum(map(len, runs[limit:]))
    return ", ".join(names) + (f" and {more} more" if more else "")


def cas_time(cas: int) -> datetime | None:
    """The time in a CAS, a hybrid clock in nanoseconds; None when it holds none."""
    if not cas:
        return None
    try:
        return datetime.fromtimestamp(cas / CAS_SECOND, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return None


def change_of(message: Request, token: ResumeToken, *, collections: bool) -> Change:
    """The change that a message tells, its key and value taken apart.

    What does not come apart is left as it came: a document that one writer broke must not keep
    everybody from the changes behind it.
    """
    key: bytes = getattr(message, "key", b"")
    collection = None
    if collections and key and not isinstance(message, m.SystemEvent):
        with suppress(RemoteProtocolError):
            collection, key = split_collection(key)
    value, datatype, xattrs = _value_of(message)
    return Change(
        vbucket=message.vbucket,
        seqno=getattr(message, SEQNO_FIELDS[type(message)]),
        kind=KINDS[type(message)],
        key=key,
        value=value,
        cas=message.cas,
        rev=getattr(message, "rev_seqno", 0),
        flags=getattr(message, "flags", 0),
        expiry=getattr(message, "expiration", 0),
        delete_time=getattr(message, "delete_time", 0) or 0,
        datatype=datatype,
        collection_id=collection,
        xattrs=xattrs,
        prepared_seqno=getattr(message, "prepared_seqno", None),
        stream_id=message.stream_id,
        token=token,
    )


def _value_of(message: Request) -> tuple[bytes, int, dict[str, bytes] | None]:
    value: bytes = getattr(message, "value", b"")
    nmeta = getattr(message, "nmeta", 0) or 0
    if 0 < nmeta <= len(value):
        value = value[:-nmeta]
    return taken_apart(value, message.datatype)


def taken_apart(value: bytes, datatype: int) -> tuple[bytes, int, dict[str, bytes] | None]:
    """The value inflated and without xattrs, the datatype of what is left, the xattrs."""
    xattrs = None
    # Without a value the datatype may still be that of the document: OPEN with flag 40.
    if value:
        with suppress(RemoteProtocolError):
            if datatype & Datatype.SNAPPY:
                value, datatype = inflate(value), datatype & ~Datatype.SNAPPY
            if datatype & Datatype.XATTR:
                xattrs, value = split_xattrs(value)
    return value, datatype, xattrs
