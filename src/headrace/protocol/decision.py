"""The answer to a stream request: accept, roll back or refuse, as one pure function.

A consumer names a branch, the last seqno it holds and the snapshot that seqno lies in. The
producer accepts when everything the consumer holds is part of the producer's history, and else
names a seqno to roll back to. The checks are rows of ``CHECKS``, run in order; the first that
answers decides.

Rules (S start, E end, U branch, [A,B] snapshot, H high seqno, P purge seqno, L failover log):

* The history named U ends at ``upper``: where the next newer branch begins, or H. The consumer's
  snapshot must end at or below it. A consumer at the start of its snapshot has no item of it, one
  at the end has it whole.
* A consumer behind P may have missed deletions and starts again from 0, unless it tells the same
  purge seqno, already holds everything of its filtered collections, or says that it does not care.
* A uuid is compared at start 0 only with the strict flag. An unknown one is ROLLBACK 0.
* The range is tested before the history and again after the flags changed the end.

Spec: docs/protocol.md, "Stream request".

Imports: history, wire.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.history import (
    NO_BRANCH,
    NO_SEQNO,
    SEQNO_MAX,
    BranchId,
    FailoverLog,
    Seqno,
    SnapshotRange,
)
from headrace.wire.opcodes import Status, StreamFlag, VBucketState

if TYPE_CHECKING:
    from collections.abc import Callable

NO_FLAGS: Final = StreamFlag(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart:
    """What a consumer asks for: the fields of a stream request.

    ``purge_seqno`` is the one of the request's JSON value, 0 if it named none. Draft requests
    carry no snapshot: both ends are the start.
    """

    start: Seqno
    end: Seqno = SEQNO_MAX
    branch: BranchId = NO_BRANCH
    snapshot_start: Seqno
    snapshot_end: Seqno
    flags: StreamFlag = NO_FLAGS
    purge_seqno: Seqno = NO_SEQNO


@dataclass(frozen=True, slots=True, kw_only=True)
class VBucketView:
    """What the producer knows of the vbucket at the moment of the request.

    ``filter_high`` is the highest seqno among the collections the stream is filtered to (or the
    default collection for a consumer without collections), None when the stream is not filtered.
    ``filling`` says that the vbucket is still receiving its first disk snapshot.
    """

    state: VBucketState
    high: Seqno
    log: FailoverLog
    purge: Seqno = NO_SEQNO
    persisted: Seqno | None = None
    filter_high: Seqno | None = None
    filling: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """The stream runs from after ``start`` to ``end``; the reply carries ``log``."""

    start: Seqno
    end: Seqno
    snapshot: SnapshotRange
    log: FailoverLog


@dataclass(frozen=True, slots=True)
class Rollback:
    """The consumer must discard everything above ``seqno``."""

    seqno: Seqno


@dataclass(frozen=True, slots=True)
class Refused:
    """No stream, and why: a status for the peer and a sentence for a person."""

    status: Status
    reason: str


Decision: TypeAlias = Accepted | Rollback | Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionView:
    """What the connection knows that bears on the request.

    ``needs_noop``: xattrs or collections are in use. ``filter_refusal`` is what reading the
    request's JSON value found wrong, None if nothing. ``backfill_full``: backfills hold all the
    memory they may.
    """

    needs_noop: bool = False
    noop_enabled: bool = False
    filter_refusal: Refused | None = None
    stream_is_live: bool = False
    backfill_full: bool = False


PLAIN_CONNECTION: Final = ConnectionView()
STREAMABLE: Final = frozenset({VBucketState.ACTIVE, VBucketState.REPLICA})
ACTIVE_ONLY: Final = frozenset({VBucketState.ACTIVE})
# Known to the protocol but withdrawn in 5.0.
WITHDRAWN: Final = StreamFlag.NO_VALUE


@dataclass(frozen=True, slots=True)
class _Case:
    """One request before one vbucket on one connection."""

    asked: StreamStart
    vbucket: VBucketView
    connection: ConnectionView


def decide(
    asked: StreamStart,
    vbucket: VBucketView | None,
    connection: ConnectionView = PLAIN_CONNECTION,
) -> Decision:
    """Answer a stream request; ``vbucket`` is None when the node does not have it."""
    if vbucket is None:
        return Refused(Status.NOT_MY_VBUCKET, "the vbucket is not on this node")
    refused = _state(_Case(asked, vbucket, connection))
    if refused is not None:
        return refused
    case = _Case(_from_latest(asked, vbucket), vbucket, connection)
    for check in CHECKS:
        answer = check(case)
        if answer is not None:
            return answer
    return _accept(case)


def _state(case: _Case) -> Refused | None:
    state = case.vbucket.state
    allowed = ACTIVE_ONLY if StreamFlag.ACTIVE_ONLY in case.asked.flags else STREAMABLE
    if state in allowed:
        return None
    names = " or ".join(sorted(one.name.lower() for one in allowed))
    return Refused(
        Status.NOT_MY_VBUCKET, f"the vbucket is {state.name.lower()}, a stream needs {names}"
    )


def _from_latest(asked: StreamStart, vbucket: VBucketView) -> StreamStart:
    if StreamFlag.FROM_LATEST not in asked.flags:
        return asked
    return replace(
        asked,
        start=vbucket.high,
        snapshot_start=vbucket.high,
        snapshot_end=vbucket.high,
        branch=asked.branch if asked.branch != NO_BRANCH else vbucket.log.newest.uuid,
    )


def _withdrawn_flags(case: _Case) -> Refused | None:
    if not case.asked.flags & WITHDRAWN:
        return None
    return Refused(Status.EINVAL, f"stream flag {WITHDRAWN.value:#04x} was withdrawn; use OPEN's")


def _noop(case: _Case) -> Refused | None:
    if not case.connection.needs_noop or case.connection.noop_enabled:
        return None
    return Refused(
        Status.NOT_SUPPORTED, "a stream with xattrs or collections needs enable_noop=true first"
    )


def _asked_range(case: _Case) -> Refused | None:
    asked = case.asked
    if asked.start > asked.end:
        return Refused(Status.ERANGE, f"start {asked.start} is above end {asked.end}")
    if not asked.snapshot_start <= asked.start <= asked.snapshot_end:
        return Refused(
            Status.ERANGE,
            f"start {asked.start} is outside its snapshot "
            f"{asked.snapshot_start}..{asked.snapshot_end}",
        )
    return None


def _filter(case: _Case) -> Refused | None:
    return case.connection.filter_refusal


def _already_live(case: _Case) -> Refused | None:
    if not case.connection.stream_is_live:
        return None
    return Refused(Status.KEY_EEXISTS, "this connection already streams the vbucket")


def _history(case: _Case) -> Rollback | None:
    """Whether what the consumer holds is part of our history, and if not, how far it is."""
    asked, vbucket = case.asked, case.vbucket
    strict = StreamFlag.STRICT_UUID in asked.flags
    if asked.start == NO_SEQNO and (not strict or asked.branch == NO_BRANCH):
        return None
    if _behind_purge(asked, vbucket):
        return Rollback(NO_SEQNO)
    upper = vbucket.log.upper(asked.branch, vbucket.high)
    if upper is None:
        return Rollback(NO_SEQNO)
    snapshot_start, snapshot_end = asked.snapshot_start, asked.snapshot_end
    if asked.start == snapshot_start:  # a marker came, no item of it
        snapshot_end = asked.start
    if snapshot_end <= upper:
        return None
    if asked.start == snapshot_end:  # the snapshot is whole
        snapshot_start = asked.start
    return Rollback(min(upper, snapshot_start))


def _behind_purge(asked: StreamStart, vbucket: VBucketView) -> bool:
    """Whether deletions that the consumer has not seen may have been purged."""
    ignores = StreamFlag.IGNORE_PURGED_TOMBSTONES in asked.flags
    purge = NO_SEQNO if ignores else vbucket.purge
    if asked.start == NO_SEQNO or asked.start >= purge or asked.purge_seqno == purge:
        return False
    # Everything of its collections is already held: what was purged is not the consumer's.
    filter_high = vbucket.filter_high
    return filter_high is None or not filter_high <= asked.start


def _end(case: _Case) -> Seqno:
    """Where the stream ends after the flags had their say; the last row that applies wins."""
    asked, vbucket = case.asked, case.vbucket
    latest = vbucket.high if vbucket.filter_high is None else vbucket.filter_high
    persisted = vbucket.high if vbucket.persisted is None else vbucket.persisted
    end = asked.end
    for flag, changed in (
        (StreamFlag.TO_LATEST, latest),
        (StreamFlag.DISK_ONLY, persisted),
        (StreamFlag.TAKEOVER, SEQNO_MAX),
    ):
        if flag in asked.flags:
            end = changed
    return end


def _final_range(case: _Case) -> Refused | None:
    start, end = case.asked.start, _end(case)
    if start > end:
        return Refused(Status.ERANGE, f"start {start} is above end {end} that the flags ask for")
    if start > case.vbucket.high:
        return Refused(Status.ERANGE, f"start {start} is above the high seqno {case.vbucket.high}")
    return None


def _backfill_memory(case: _Case) -> Refused | None:
    if not case.connection.backfill_full:
        return None
    return Refused(Status.ENOMEM, "backfills hold all the memory they may; ask again later")


def _filling(case: _Case) -> Refused | None:
    if not case.vbucket.filling:
        return None
    return Refused(Status.ETMPFAIL, "the vbucket is receiving its first disk snapshot")


CHECKS: Final[tuple[Callable[[_Case], Rollback | Refused | None], ...]] = (
    _withdrawn_flags,
    _noop,
    _asked_range,
    _filter,
    _already_live,
    _history,
    _final_range,
    _backfill_memory,
    _filling,
)


def _accept(case: _Case) -> Accepted:
    asked = case.asked
    # No item of the snapshot is held and it ends beyond what we have: it is not our snapshot.
    foreign = asked.start == asked.snapshot_start and asked.snapshot_end > case.vbucket.high
    snapshot = SnapshotRange(
        asked.snapshot_start, asked.snapshot_start if foreign else asked.snapshot_end
    )
    return Accepted(asked.start, _end(case), snapshot, case.vbucket.log)
