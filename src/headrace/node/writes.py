"""The rules for changing a document: locks, durable writes in flight, CAS, and durability.

* A document that is locked takes only writes with the lock's CAS, which unlock it.
* A key has at most one durable write in flight; another write gets SYNC_WRITE_IN_PROGRESS, or
  SYNC_WRITE_RE_COMMIT when this node found the prepare instead of making it.
* A vbucket whose takeover cannot keep up takes no writes for a while (ETMPFAIL).
* A CAS in the request means compare-and-swap: no document KEY_ENOENT, another CAS KEY_EEXISTS.
* A durable write is a prepare and its commit, once `headrace.node.sync_writes` says so; in memory
  alone levels that ask for persistence are refused. It is completed even when its connection goes.

Imports: errors, store, wire, node.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import StoreFull
from headrace.node.config import DURABILITY_SECONDS_DEFAULT
from headrace.node.documents import (
    Parts,
    put_together,
    system_xattrs,
    taken_apart,
)
from headrace.node.refusal import Refusal
from headrace.node.replies import Later
from headrace.wire.opcodes import Datatype, DurabilityLevel, FrameInfoId, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.node.documents import Place
    from headrace.node.link import Timer
    from headrace.node.session import Session
    from headrace.store import Change, Item, Meta
    from headrace.wire.message import Reply, Request

TIMEOUT_INVALID: Final = frozenset({0, 0xFFFF})
_PERSISTING: Final = frozenset(
    {DurabilityLevel.MAJORITY_AND_PERSIST_ON_ACTIVE, DurabilityLevel.PERSIST_TO_MAJORITY}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A document's next version; ``cas`` None lets the store choose."""

    value: bytes = b""
    flags: int = 0
    expiry: int = 0
    datatype: int = 0
    deleted: bool = False
    cas: int | None = None


class Durability(NamedTuple):
    """What a synchronous write asks for."""

    level: DurabilityLevel
    seconds: float


def check_writable(session: Session, place: Place, meta: Meta | None, cas: int) -> None:
    """Refuse a write that a lock, another write or the CAS forbids; ``meta`` None: it does not
    live."""
    if place.host.holds_writes(place.vbucket.id):
        raise Refusal(Status.ETMPFAIL, "the vbucket is handed over and its backlog must drain")
    lock = place.host.find_lock(place.vbucket.id, place.key, meta.cas) if meta else None
    if lock is not None and lock.until > session.monotonic and cas != lock.cas:
        raise locked(session)
    if place.vbucket.pending(place.key) is not None:
        found = place.host.sync_writes.is_recommitting(place.vbucket.id, place.key)
        raise Refusal(Status.SYNC_WRITE_RE_COMMIT if found else Status.SYNC_WRITE_IN_PROGRESS)
    if cas == 0:
        return
    if meta is None:
        raise Refusal(Status.KEY_ENOENT)
    if cas != (lock.cas if lock is not None else meta.cas):
        place.host.counters.cas_misses += 1
        raise Refusal(Status.KEY_EEXISTS)
    place.host.counters.cas_hits += 1


def locked(session: Session) -> Refusal:
    """The refusal of a locked document; clients without extended errors know only "try later"."""
    return Refusal(Status.LOCKED if session.extended_errors else Status.ETMPFAIL)


def durability_of(session: Session, request: Request) -> Durability | None:
    """The durability the request asks for, or None."""
    for info in request.frame_infos:
        if info.id == FrameInfoId.DURABILITY:
            return _durability(session, info.data)
    return None


def _durability(session: Session, data: bytes) -> Durability:
    if len(data) not in (1, 3):
        raise Refusal(Status.EINVAL, f"durability of {len(data)} bytes, allowed 1 or 3")
    try:
        level = DurabilityLevel(data[0])
    except ValueError:
        raise Refusal(Status.DURABILITY_INVALID_LEVEL, f"level {data[0]}, allowed 1..3") from None
    seconds = DURABILITY_SECONDS_DEFAULT
    if len(data) == 3:
        milliseconds = int.from_bytes(data[1:], "big")
        if milliseconds in TIMEOUT_INVALID:
            raise Refusal(Status.EINVAL, f"durability timeout {milliseconds}, allowed 1..65534")
        seconds = milliseconds / 1000
    if level in _PERSISTING and not session.host.bucket.durable:
        raise Refusal(
            Status.DURABILITY_INVALID_LEVEL,
            "this bucket lives in memory alone: nothing is ever persisted",
        )
    return Durability(level, seconds)


def preserves_ttl(request: Request) -> bool:
    """Whether the write keeps the expiry the document has."""
    return any(info.id == FrameInfoId.PRESERVE_TTL for info in request.frame_infos)


def with_kept_xattrs(item: Item | None, value: bytes, datatype: int) -> tuple[bytes, int]:
    """A new document under the xattrs of the version it replaces."""
    if item is None or not item.datatype & Datatype.XATTR:
        return value, datatype
    xattrs = taken_apart(item.value, item.datatype).xattrs
    return put_together(Parts(xattrs, taken_apart(value, datatype).document))


def tombstone_of(item: Item, flags: int = 0) -> Write:
    """The write that deletes a document: its system xattrs stay."""
    value, datatype = system_xattrs(item.value, item.datatype)
    return Write(value=value, datatype=datatype, flags=flags, deleted=True)


def carry_out(
    session: Session,
    place: Place,
    request: Request,
    write: Write,
    answer: Callable[[Change], Reply | None],
) -> Reply | Later | None:
    """Do the write with the durability asked for; ``answer`` makes the reply of the change."""
    durability = durability_of(session, request)
    try:
        if durability is not None:
            return _durable(session, place, write, durability, answer)
        change = _plain(place, write)
    except StoreFull as error:
        raise Refusal(Status.ENOMEM, str(error)) from error
    _count(place, write)
    return answer(change)


def _count(place: Place, write: Write) -> None:
    if place.host.has_locks:
        place.host.unlock(place.vbucket.id, place.key)
    if write.deleted:
        place.host.counters.deletes += 1
    else:
        place.host.counters.writes += 1


def _plain(place: Place, write: Write) -> Change:
    if write.deleted:
        return place.vbucket.delete(
            place.key,
            value=write.value,
            datatype=write.datatype,
            cas=write.cas,
        )
    return place.vbucket.store(
        place.key,
        write.value,
        flags=write.flags,
        expiry=write.expiry,
        datatype=write.datatype,
        cas=write.cas,
    )


def _durable(
    session: Session,
    place: Place,
    write: Write,
    durability: Durability,
    answer: Callable[[Change], Reply | None],
) -> Reply | Later | None:
    vbucket, syncs = place.vbucket, place.host.sync_writes
    syncs.check(vbucket.id)
    prepared = vbucket.prepare(
        place.key,
        write.value,
        level=durability.level,
        flags=write.flags,
        expiry=write.expiry,
        datatype=write.datatype,
        deleted=write.deleted,
        cas=write.cas,
    )
    later = Later()
    outcomes: list[Reply | Refusal | None] = []
    timers: list[Timer] = []

    def done(outcome: Change | str) -> None:
        for timer in timers:
            timer.cancel()
        if isinstance(outcome, str):
            outcomes.append(Refusal(Status.SYNC_WRITE_AMBIGUOUS, outcome))
        else:
            _count(place, write)
            outcomes.append(answer(outcome))
        later.resolve(outcomes[0])

    syncs.begin(vbucket, prepared, key=place.key, level=durability.level, done=done)
    if not outcomes:
        out_of_time = partial(syncs.time_out, vbucket.id, prepared.seqno)
        timers.append(session.link.call_later(durability.seconds, out_of_time))
        return later
    if isinstance(outcomes[0], Refusal):
        raise outcomes[0]
    return outcomes[0]
