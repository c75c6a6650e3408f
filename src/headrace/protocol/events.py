"""What a consumer connection tells its owner, one frozen class per kind of news.

Expected turns of a stream are events with numbers, never exceptions: rollback, stream end, refusal,
not-my-vbucket, a stream that cannot be opened at all. Events come in the order of the bytes that
caused them: a `RolledBack` stands before the first change of the new history.

``size`` of an event is what it takes of the flow-control window; the owner gives it back with
``processed`` once it is done with the change. Events without ``size`` were given back already.

Imports: history, wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.wire.opcodes import StreamEndReason

if TYPE_CHECKING:
    from headrace.history import (
        BranchId,
        FailoverLog,
        ResumeToken,
        Seqno,
        SnapshotRange,
        VBucketId,
    )
    from headrace.wire.dialect import Dialect
    from headrace.wire.message import Request
    from headrace.wire.messages import CacheTransfer, VBucketSeqno
    from headrace.wire.opcodes import MarkerFlag


@dataclass(frozen=True, slots=True)
class RefusedControl:
    """A property the producer does not have; the connection goes on without it."""

    key: str
    value: str
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The handshake is over: streams may be requested."""

    dialect: Dialect
    features: frozenset[int]
    controls: tuple[tuple[str, str], ...]
    refused: tuple[RefusedControl, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """News of one stream."""

    vbucket: VBucketId
    stream_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack(StreamEvent):
    """Everything above ``to_seqno`` is withdrawn: it belongs to a history that is no more.

    ``to_seqno`` is a boundary the consumer holds, at or below what the producer asked for.
    ``dead_branch`` is the branch the consumer was on. The stream of the new history is open.
    """

    from_seqno: Seqno
    to_seqno: Seqno
    dead_branch: BranchId
    token: ResumeToken


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOpened(StreamEvent):
    """The producer accepted the stream at ``token`` and told its log.

    ``branch_changed``: the log's newest branch is not the one the request named. An owner whose
    positions may be ahead of its data treats that as a rollback.
    """

    opaque: int
    token: ResumeToken
    log: FailoverLog
    branch_changed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStarted(StreamEvent):
    """A snapshot begins; ``snapshot`` is None for the draft's marker and out-of-order ones."""

    snapshot: SnapshotRange | None
    flags: MarkerFlag
    out_of_order: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemReceived(StreamEvent):
    """One item: mutation, deletion, expiration, system event, prepare, commit, abort or advance.

    ``token`` is where to resume once this item is safe with the owner.
    """

    message: Request
    seqno: Seqno
    size: int
    token: ResumeToken


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCompleted(StreamEvent):
    """Everything up to the token's seqno has been received: a state that may be published."""

    token: ResumeToken


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReceived(StreamEvent):
    """Items of the producer's cache, outside of every snapshot; None: that was the last of them."""

    message: CacheTransfer | None
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAsked(StreamEvent):
    """The producer asked for a vbucket state (takeover); it was answered."""

    state: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed(StreamEvent):
    """The draft's FLUSH: all data of the vbucket is gone."""


class Advice(Enum):
    """What to do after a stream's end."""

    DONE = "the stream reached its end"
    ASK_AGAIN = "request the stream again with its token; a rollback may follow"
    GONE = "nothing is left to stream under this request"


END_ADVICE: Final[dict[int, Advice]] = {
    StreamEndReason.FINISHED: Advice.DONE,
    StreamEndReason.CLOSED: Advice.DONE,
    StreamEndReason.STATE_CHANGED: Advice.ASK_AGAIN,
    StreamEndReason.DISCONNECTED: Advice.ASK_AGAIN,
    StreamEndReason.TOO_SLOW: Advice.ASK_AGAIN,
    StreamEndReason.BACKFILL_FAILED: Advice.ASK_AGAIN,
    StreamEndReason.ROLLBACK: Advice.ASK_AGAIN,
    StreamEndReason.FILTER_EMPTY: Advice.GONE,
    StreamEndReason.LOST_PRIVILEGES: Advice.GONE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnded(StreamEvent):
    """No more messages follow; ``token`` is where the stream stands."""

    reason: int
    advice: Advice
    token: ResumeToken


@dataclass(frozen=True, slots=True, kw_only=True)
class NotMyVBucket(StreamEvent):
    """Another node has the vbucket; ``cluster_map`` is the JSON the node sent, often empty."""

    cluster_map: bytes
    token: ResumeToken


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRefused(StreamEvent):
    """The producer will not stream; ``temporary``: the same request may succeed later."""

    status: int
    reason: str
    temporary: bool
    token: ResumeToken


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStuck(StreamEvent):
    """No position was accepted, not even the beginning; nothing more will be tried by itself."""

    reason: str
    attempts: int
    token: ResumeToken


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverLogTold(StreamEvent):
    """The answer to a failover-log request."""

    log: FailoverLog


@dataclass(frozen=True, slots=True)
class SeqnosTold:
    """The answer to a request for high seqnos."""

    seqnos: tuple[VBucketSeqno, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMapTold:
    """A cluster map, asked for or pushed; the revision is in the JSON too."""

    cluster_map: bytes
    pushed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused:
    """A question other than a stream request was refused."""

    opcode: int
    status: int
    vbucket: VBucketId
    reason: str


@dataclass(frozen=True, slots=True)
class ProducerSilent:
    """Nothing came for too long: close the link; the tokens stay good."""

    seconds: float


Event: TypeAlias = (
    Connected
    | RolledBack
    | StreamOpened
    | SnapshotStarted
    | ItemReceived
    | SnapshotCompleted
    | CacheReceived
    | StateAsked
    | Flushed
    | StreamEnded
    | NotMyVBucket
    | StreamRefused
    | StreamStuck
    | FailoverLogTold
    | SeqnosTold
    | ClusterMapTold
    | RequestRefused
    | ProducerSilent
)
