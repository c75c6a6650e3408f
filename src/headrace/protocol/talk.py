"""One stream of a consumer connection, from its request to its end.

A talk knows what its owner wants (`StreamPlan`), asks for it until a position is accepted
(`headrace.protocol.resume`), follows what comes (`headrace.protocol.stream`), and says it as
events. It returns what to send and never sends.

Rules:

* The position is changed by an accepted request, by items, and by nothing else.
* `RolledBack` stands before `StreamOpened`, and both before the first change of the new history.
* KEY_ENOENT to a stream request is the draft's ROLLBACK 0.

Spec: docs/protocol.md, "Stream request".

Imports: errors, history, protocol, wire.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from headrace.history import (
    NO_SEQNO,
    SEQNO_MAX,
    ZERO,
    Boundaries,
    FailoverLog,
    ResumeToken,
    Seqno,
    VBucketId,
)
from headrace.protocol import events as e
from headrace.protocol.handshake import refusal_text
from headrace.protocol.resume import Resumption
from headrace.protocol.stream import SEQNO_FIELDS, ConsumerStream, Kind
from headrace.wire import messages as m
from headrace.wire.dialect import Dialect
from headrace.wire.message import ErrorReply, stream_id_info
from headrace.wire.opcodes import MarkerFlag, Status, StreamFlag

if TYPE_CHECKING:
    from headrace.history import SnapshotRange
    from headrace.protocol.stream import Step
    from headrace.wire.frame import FrameInfo
    from headrace.wire.message import Message, Reply, Request

TEMPORARY: Final = frozenset({Status.ETMPFAIL, Status.ENOMEM, Status.EBUSY})
NO_FLAGS: Final = StreamFlag(0)
STREAM_ID_MAX: Final = 0xFFFF
NO_MARKER: Final = MarkerFlag(0)
NAMED_FLAGS: Final = {flags: MarkerFlag(flags) for flags in range(64)}
"""What markers say as a rule: to look it up is a call less, of three."""
HELD: Final = frozenset({Kind.ITEM, Kind.LAST_ITEM, Kind.CACHED})
"""Messages whose bytes the owner gives back; those of all others are given back at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """What an owner wants of one vbucket: where to start, where to end, what to leave out.

    ``collections`` or ``scope`` (ids) narrow the stream, not both; neither means everything.
    ``manifest_uid`` tells the producer which manifest the ids come from.
    """

    vbucket: VBucketId
    token: ResumeToken = ZERO
    boundaries: Boundaries = field(default_factory=Boundaries)
    end_seqno: Seqno = SEQNO_MAX
    flags: StreamFlag = NO_FLAGS
    collections: tuple[int, ...] = ()
    scope: int | None = None
    manifest_uid: int | None = None
    stream_id: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no producer would accept."""
        if self.collections and self.scope is not None:
            raise ConfigError("a stream is narrowed to collections or to a scope, not to both")
        if self.stream_id is not None and not 1 <= self.stream_id <= STREAM_ID_MAX:
            raise ConfigError(f"stream id {self.stream_id}, allowed 1..{STREAM_ID_MAX}")

    def for_vbucket(
        self, vbucket: VBucketId, token: ResumeToken, boundaries: Boundaries, end_seqno: Seqno
    ) -> StreamPlan:
        """The same of one vbucket, from there to there."""
        # Not `replace`: it costs twice as much, once per stream.
        return StreamPlan(
            vbucket=vbucket,
            token=token,
            boundaries=boundaries,
            end_seqno=end_seqno,
            flags=self.flags,
            collections=self.collections,
            scope=self.scope,
            manifest_uid=self.manifest_uid,
            stream_id=self.stream_id,
        )

    def value(self, *, purge_seqno: Seqno = NO_SEQNO) -> bytes:
        """The JSON value of the request, empty when there is nothing to say."""
        said: dict[str, object] = {}
        if self.manifest_uid is not None:
            said["uid"] = f"{self.manifest_uid:x}"
        if self.collections:
            said["collections"] = [f"{collection:x}" for collection in self.collections]
        if self.scope is not None:
            said["scope"] = f"{self.scope:x}"
        if self.stream_id is not None:
            said["sid"] = self.stream_id
        if purge_seqno:
            said["purge_seqno"] = str(purge_seqno)
        return json.dumps(said, separators=(",", ":")).encode() if said else b""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a stream stands: everything needed to go on later, on any connection."""

    token: ResumeToken
    boundaries: Boundaries


@dataclass(slots=True)
class Progress:
    """Where a run of items left its stream.

    ``span`` is the snapshot the token moved in (`ConsumerStream.span`). ``completed``: the position
    to keep, where the run was the end of a snapshot.
    """

    token: ResumeToken
    span: SnapshotRange | None
    completed: Position | None


@dataclass(slots=True)
class Said:
    """What came of one message: news for the owner, answers for the producer.

    ``held``: the owner has the message's bytes now and gives them back when it is done. ``over``:
    the opaque is no longer a stream's.
    """

    events: list[e.Event] = field(default_factory=list)
    answers: list[Message] = field(default_factory=list)
    held: bool = False
    over: bool = False


class StreamTalk:
    """One stream: its plan, its request, its machine once accepted."""

    __slots__ = ("_position", "_resumption", "closing", "machine", "opaque", "plan")

    def __init__(self, plan: StreamPlan) -> None:
        """Stand before the first request."""
        self.plan = plan
        self.opaque = 0
        self.closing = False
        self._position = Position(plan.token, plan.boundaries)
        self._resumption = Resumption(plan.token, plan.boundaries)
        self.machine: ConsumerStream | None = None

    @property
    def key(self) -> tuple[int, int | None]:
        """What the owner knows the stream by."""
        return self.plan.vbucket, self.plan.stream_id

    @property
    def position(self) -> Position:
        """Where the stream stands now."""
        machine = self.machine
        return self._position if machine is None else Position(machine.token, machine.boundaries)

    @property
    def is_open(self) -> bool:
        """Whether the producer has accepted it and it has not ended."""
        return self.machine is not None

    def request(self, opaque: int, dialect: Dialect, *, tell_purge: bool) -> m.StreamRequest:
        """The next stream request; from here on the stream is known by ``opaque``.

        ``tell_purge``: the producer understands a purge seqno in the request (markers V2.2).
        """
        plan, token = self.plan, self._resumption.asked
        is_draft = dialect is Dialect.UPR_DRAFT
        self.opaque = opaque
        return m.StreamRequest(
            opaque=opaque,
            vbucket=plan.vbucket,
            flags=plan.flags,
            start_seqno=token.seqno,
            end_seqno=plan.end_seqno,
            vb_uuid=token.branch,
            snap_start_seqno=None if is_draft else token.snapshot.start,
            snap_end_seqno=None if is_draft else token.snapshot.end,
            high_seqno=self._branch_start(token) if is_draft else None,
            value=plan.value(purge_seqno=token.purge_seqno if tell_purge else NO_SEQNO),
        )

    def _branch_start(self, token: ResumeToken) -> Seqno:
        """What the draft sends where later dialects have the snapshot."""
        if not token.is_boundary:
            raise LocalProtocolError(
                f"vbucket {self.plan.vbucket} stands inside the snapshot {token.snapshot}, which "
                f"{Dialect.UPR_DRAFT.value} cannot say; start from a boundary"
            )
        place = None if token.log is None else token.log.index(token.branch)
        return NO_SEQNO if token.log is None or place is None else token.log.entries[place].seqno

    # -- the answer to the request --------------------------------------------------------------

    def take_reply(self, reply: Reply) -> Said | None:
        """What the answer means; None: ask again, at the position `request` now tells."""
        if isinstance(reply, m.StreamRequestReply):
            return self._open(read_log(reply.failover_log))
        if isinstance(reply, m.RollbackReply):
            return self._roll_back(Seqno(reply.rollback_seqno))
        assert isinstance(reply, ErrorReply)
        if reply.status == Status.KEY_ENOENT and self._resumption.asked != ZERO:
            return self._roll_back(NO_SEQNO)
        return Said([self._refused(reply)], over=True)

    def _open(self, log: FailoverLog) -> Said:
        resumed = self._resumption.accepted(log)
        self.machine = ConsumerStream(
            resumed.token,
            opaque=self.opaque,
            end_seqno=self.plan.end_seqno,
            boundaries=resumed.boundaries,
        )
        vbucket, stream_id = self.plan.vbucket, self.plan.stream_id
        said = Said()
        withdrawal = resumed.withdrawal
        if withdrawal is not None:
            said.events.append(
                e.RolledBack(
                    vbucket=vbucket,
                    stream_id=stream_id,
                    from_seqno=withdrawal.from_seqno,
                    to_seqno=withdrawal.to_seqno,
                    dead_branch=withdrawal.dead_branch,
                    token=resumed.token,
                )
            )
        said.events.append(
            e.StreamOpened(
                vbucket=vbucket,
                stream_id=stream_id,
                opaque=self.opaque,
                token=resumed.token,
                log=log,
                branch_changed=resumed.branch_changed,
            )
        )
        return said

    def _roll_back(self, seqno: Seqno) -> Said | None:
        reason = self._resumption.rolled_back(seqno)
        if reason is None:
            return None
        stuck = e.StreamStuck(
            vbucket=self.plan.vbucket,
            stream_id=self.plan.stream_id,
            reason=reason,
            attempts=self._resumption.attempts,
            token=self._position.token,
        )
        return Said([stuck], over=True)

    def _refused(self, reply: ErrorReply) -> e.NotMyVBucket | e.StreamRefused:
        vbucket, stream_id, token = self.plan.vbucket, self.plan.stream_id, self._position.token
        if reply.status == Status.NOT_MY_VBUCKET:
            return e.NotMyVBucket(
                vbucket=vbucket, stream_id=stream_id, cluster_map=reply.value, token=token
            )
        return e.StreamRefused(
            vbucket=vbucket,
            stream_id=stream_id,
            status=reply.status,
            reason=refusal_text(reply),
            temporary=reply.status in TEMPORARY,
            token=token,
        )

    # -- what streams ---------------------------------------------------------------------------

    def take_message(self, message: Request, size: int) -> Said:
        """What one message of the open stream means; ``size`` is its counted size."""
        machine = self.machine
        assert machine is not None
        if message.vbucket != self.plan.vbucket:
            raise RemoteProtocolError(
                f"{type(message).__name__} of vbucket {message.vbucket} with the opaque of the "
                f"stream of vbucket {self.plan.vbucket}"
            )
        step = machine.receive(message)
        said = Said(held=step.kind in HELD)
        news = self._TELL[step.kind](self, message, size)
        if news is not None:
            said.events.append(news)
        self._tell_progress(machine, step, said)
        if isinstance(message, m.SetVBucketState):
            said.answers.append(m.SetVBucketStateReply(opaque=message.opaque))
        if isinstance(message, m.StreamEnd):
            said.events.append(self.end(message.reason))
            said.over = True
        return said

    def announce(
        self, start: Seqno, end: Seqno, flags: int, purge_seqno: Seqno | None
    ) -> e.SnapshotStarted:
        """What a marker of the open stream means, whose numbers the owner has read itself."""
        machine = self.machine
        assert machine is not None
        snapshot = machine.announce(start, end, flags, purge_seqno)
        named = NAMED_FLAGS.get(flags)
        return e.SnapshotStarted(
            vbucket=self.plan.vbucket,
            stream_id=self.plan.stream_id,
            snapshot=snapshot,
            flags=MarkerFlag(flags) if named is None else named,
        )

    def end(self, reason: int) -> e.StreamEnded:
        """The stream is over; what it stood at stays."""
        self._position, self.machine = self.position, None
        return e.StreamEnded(
            vbucket=self.plan.vbucket,
            stream_id=self.plan.stream_id,
            reason=reason,
            # A reason nobody has named yet: asking again is never wrong.
            advice=e.END_ADVICE.get(reason, e.Advice.ASK_AGAIN),
            token=self._position.token,
        )

    def _tell_progress(self, machine: ConsumerStream, step: Step, said: Said) -> None:
        if step.completed:
            said.events.append(
                e.SnapshotCompleted(
                    vbucket=self.plan.vbucket, stream_id=self.plan.stream_id, token=machine.token
                )
            )
        if step.ack:
            said.answers.append(m.SnapshotMarkerReply(opaque=self.opaque))

    def _tell_item(self, message: Request, size: int) -> e.Event:
        machine = self.machine
        assert machine is not None
        return e.ItemReceived(
            vbucket=self.plan.vbucket,
            stream_id=self.plan.stream_id,
            message=message,
            seqno=Seqno(getattr(message, SEQNO_FIELDS[type(message)])),
            size=size,
            token=machine.token,
        )

    def _tell_cached(self, message: Request, size: int) -> e.Event:
        return e.CacheReceived(
            vbucket=self.plan.vbucket,
            stream_id=self.plan.stream_id,
            message=message if isinstance(message, m.CacheTransfer) else None,
            size=size,
        )

    def _tell_snapshot(self, message: Request, size: int) -> e.Event:
        del size
        machine = self.machine
        assert machine is not None
        out_of_order = isinstance(message, m.OsoSnapshot)
        return e.SnapshotStarted(
            vbucket=self.plan.vbucket,
            stream_id=self.plan.stream_id,
            snapshot=machine.snapshot,
            flags=NO_MARKER if out_of_order else machine.snapshot_flags,
            out_of_order=out_of_order,
        )

    def _tell_state(self, message: Request, size: int) -> e.Event:
        del size
        assert isinstance(message, m.SetVBucketState)
        return e.StateAsked(
            vbucket=self.plan.vbucket, stream_id=self.plan.stream_id, state=message.state
        )

    def _tell_flush(self, message: Request, size: int) -> e.Event:
        del message, size
        return e.Flushed(vbucket=self.plan.vbucket, stream_id=self.plan.stream_id)

    def _tell_nothing(self, message: Request, size: int) -> None:
        del message, size

    _TELL: Final = {
        Kind.MARKER: _tell_snapshot,
        Kind.EMPTY_MARKER: _tell_snapshot,
        Kind.ITEM: _tell_item,
        Kind.LAST_ITEM: _tell_item,
        Kind.OSO_START: _tell_snapshot,
        Kind.OSO_END: _tell_nothing,
        Kind.STATE_CHANGE: _tell_state,
        Kind.CACHED: _tell_cached,
        Kind.FLUSH: _tell_flush,
        Kind.END: _tell_nothing,
    }


def stream_id_infos(stream_id: int | None) -> tuple[FrameInfo, ...]:
    """The frame infos of a request that names a stream id, or none."""
    return () if stream_id is None else (stream_id_info(stream_id),)


def read_log(entries: tuple[m.FailoverEntry, ...]) -> FailoverLog:
    """The failover log a peer told, without the entries that cannot be."""
    try:
        log, _ = FailoverLog.loaded((entry.uuid, entry.seqno) for entry in entries)
    except ValueError as error:
        raise RemoteProtocolError(str(error)) from error
    return log
