"""A change-stream connection whose server end produces: requests in, streams out.

The producer has no socket, no thread and no clock. Its owner hands it decoded messages (`handle`
returns the replies), takes stream data while the transport is writable (`pull`), calls `tick` when
`next_tick` has come, and closes the connection once `closed_reason` is set. The producer calls
`session.wake()`, on any thread, when there may be something to pull.

Rules:

* Replies are returned at once and never wait for the flow control window; everything that counts
  against it goes through `pull`. A window may be overshot by one message. NOOP always flows.
* Streams that have something to send take turns, one quantum each; backfills at most
  ``ProducerSettings.backfills_max`` at a time, one at a time with sequential order.
* A request a consumer's end must not send (another role's message) closes the connection without an
  answer. So does an error reply that a released server would not forgive.
* A closed stream frees its vbucket at once; its STREAM_END, if one is due, is sent first of all.
* Answers to markers and states move a takeover (`headrace.node.takeover`); others are ignored.

Spec: docs/protocol.md, sections of each message; "Stream lifecycle", "Flow control", "Noop".

Imports: errors, protocol, wire, node.controls, node.opening, node.outbox, node.producer_context,
node.producer_statistics, node.schedule, node.stream_requests, node.stream_states, node.takeover.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, ClassVar, Final

from headrace.errors import RemoteProtocolError, StoreError
from headrace.node.controls import BackfillOrder, Controls, Priority, Setting, apply_control
from headrace.node.opening import OpenOptions, read_open
from headrace.node.outbox import Outbox
from headrace.node.producer_context import ProducerSettings
from headrace.node.producer_statistics import producer_statistics
from headrace.node.schedule import Schedule
from headrace.node.stream_requests import Asker, answer, make_stream
from headrace.node.stream_states import Progress
from headrace.node.takeover import LOOK_SECONDS, Takeovers
from headrace.protocol.decision import Refused, Rollback
from headrace.protocol.flow import NoopSender, ProducerWindow
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.message import ErrorReply
from headrace.wire.messages import (
    BufferAck,
    BufferAckReply,
    CloseStream,
    CloseStreamReply,
    Control,
    ControlReply,
    FailoverEntry,
    GetFailoverLog,
    GetFailoverLogReply,
    Noop,
    NoopReply,
    Open,
    OpenReply,
    RollbackReply,
    SeqnoAcknowledged,
    SetVBucketStateReply,
    SnapshotMarkerReply,
    StreamRequest,
    StreamRequestReply,
)
from headrace.wire.opcodes import Datatype, Feature, Opcode, Status, StreamEndReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.history import FailoverLog
    from headrace.node.look_ahead import LookAhead
    from headrace.node.outbox import Part
    from headrace.node.producer_context import Host, Session
    from headrace.node.stream import Stream
    from headrace.store.vbucket import VBucket
    from headrace.wire.message import Message

TURN_BYTES: Final = 4 * 1024 * 1024
"""What one stream may send before the next has its turn."""
PULL_BYTES: Final = {
    Priority.HIGH: 8 * 1024 * 1024,
    Priority.MEDIUM: 4 * 1024 * 1024,
    Priority.LOW: 64 * 1024,
}
"""What a connection may send in one pull: how priorities weigh on a shared event loop."""
MARKER_BYTES: Final = 256
"""Room for a marker beside a chunk that is read ahead of it."""
LOOK_AHEAD_MIN: Final = 1024 * 1024
"""Below this a chunk is read sooner than another thread is woken to read it."""
VISITS_PER_PULL_MAX: Final = 256
ENDS_MAX: Final = 65_536
"""STREAM_ENDs that may wait for the window before the connection counts as broken."""

# Bare statuses need no explanation; the others get a sentence when the peer can read JSON.
BARE: Final = frozenset({Status.KEY_ENOENT, Status.KEY_EEXISTS, Status.STREAM_NOT_FOUND})
FORGIVEN: Final = frozenset(
    {Status.NOT_MY_VBUCKET, Status.STREAM_NOT_FOUND, Status.OPAQUE_NO_MATCH}
)
FORGIVEN_BEFORE_7: Final = frozenset({Status.KEY_EEXISTS, Status.KEY_ENOENT})
ACKNOWLEDGEMENTS: Final = frozenset({Opcode.SNAPSHOT_MARKER, Opcode.SET_VBUCKET_STATE})
"""Replies to these matter to takeovers alone."""
COMPLETIONS: Final = frozenset({Opcode.COMMIT, Opcode.ABORT})
NOT_OPEN: Final = OpenOptions(name="", producer=False)


StreamKey = tuple[int, int]
"""A vbucket and a stream id, 0 without one."""


class Producer:
    """The state of one producing connection."""

    def __init__(
        self,
        session: Session,
        host: Host,
        now: float,
        *,
        settings: ProducerSettings | None = None,
    ) -> None:
        """Begin before OPEN, which is the first message to `handle`."""
        self.session, self.host = session, host
        self.settings = settings if settings is not None else ProducerSettings()
        self.options = NOT_OPEN
        self.controls = Controls()
        self._asker: Asker | None = None
        """What stream requests have in common until the next control."""
        self.window = ProducerWindow()
        self.noop: NoopSender | None = None
        self.created_at = now
        self.heard_at = now
        self.sent_at: float | None = None
        self.bytes_sent = 0
        self.items_sent_by_ended = 0
        self.closed_reason: str | None = None
        self.streams: dict[StreamKey, Stream] = {}
        self._by_vbucket: dict[int, list[Stream]] = {}
        self.schedule = Schedule(self.settings.backfills_max)
        self.takeovers = Takeovers(host)
        self._ends: deque[bytes] = deque()
        self._changed: set[int] = set()

    # -- being told -------------------------------------------------------------------------------

    def vbucket_changed(self, vbucket: int) -> None:
        """Note a change and ask to be pulled; any thread."""
        if vbucket not in self._changed:
            self._changed.add(vbucket)
            self.session.wake()

    def end(self, reason: str) -> None:
        """Ask the owner to close the connection."""
        if self.closed_reason is None:
            self.closed_reason = reason
            self.session.wake()

    def handle(self, message: Message, now: float) -> bytes:
        """Take one message and return the replies to it."""
        if self.closed_reason is not None:
            return b""
        self.heard_at = now
        if self.noop is not None:
            self.noop.heard(now=now)
        if not self.is_open and not isinstance(message, Open):
            self.end(f"{type(message).__name__} before OPEN")
            return b""
        handler = self.HANDLERS.get(type(message))
        if handler is None:
            self.end(f"{type(message).__name__} on a producer's connection")
            return b""
        return handler(self, message, now)

    # -- requests ---------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether an OPEN was accepted."""
        return self.options is not NOT_OPEN

    def _open(self, message: Open, now: float) -> bytes:  # noqa: ARG002 - as all handlers
        if self.is_open:
            refused = Refused(Status.EINVAL, "the connection was opened before")
            return self._refuse(message, Opcode.OPEN, refused)
        session = self.session
        options = read_open(message, dialect=session.dialect, collections=session.collections)
        if isinstance(options, OpenOptions) and not options.producer:
            options = Refused(Status.NOT_SUPPORTED, "this node does not consume; open flag 0x01")
        if isinstance(options, Refused):
            return self._refuse(message, Opcode.OPEN, options)
        self.options = options
        self.controls = Controls.for_name(options.name)
        return encode(OpenReply(opaque=message.opaque), session.dialect)

    def _control(self, message: Control, now: float) -> bytes:
        setting = Setting(
            text=message.value.decode("utf-8", "backslashreplace"),
            before=self.controls,
            options=self.options,
            features=self.session.features,
            collections=self.session.collections,
            keeps_history=self.host.bucket.settings.keeps_history,
        )
        changed = apply_control(message.key, setting, self.session.dialect)
        if isinstance(changed, Refused):
            return self._refuse(message, Opcode.CONTROL, changed)
        before, self.controls = self.controls, changed
        if changed.window != before.window or message.key == b"connection_buffer_size":
            self.window.resize(changed.window)
            self.session.wake()
        sequential = changed.backfill_order is BackfillOrder.SEQUENTIAL
        self.schedule.limit = 1 if sequential else self.settings.backfills_max
        if changed.noop != before.noop:
            self.noop = self._noop_sender(now) if changed.noop else None
        elif self.noop is not None:
            self.noop.set_interval(changed.noop_interval_seconds)
        return encode(ControlReply(opaque=message.opaque), self.session.dialect)

    def _noop_sender(self, now: float) -> NoopSender:
        return NoopSender(
            now=now,
            interval_seconds=self.controls.noop_interval_seconds,
            idle_timeout_seconds=self.settings.idle_timeout_seconds,
        )

    def _stream_request(self, message: StreamRequest, now: float) -> bytes:
        asker = self._asker
        if asker is None or asker.controls is not self.controls:
            asker = self._asker = Asker(
                session=self.session,
                host=self.host,
                options=self.options,
                controls=self.controls,
                settings=self.settings,
            )
        found = answer(message, asker, self.streams.keys())
        decision = found.decision
        if isinstance(decision, Rollback):
            return self._roll_back(message, decision, found.vbucket)
        if isinstance(decision, Refused):
            return self._refuse(message, Opcode.STREAM_REQ, decision)
        self._add_stream(make_stream(message, decision, found, asker), now)
        reply = StreamRequestReply(opaque=message.opaque, failover_log=_entries(decision.log))
        return encode(reply, self.session.dialect)

    def _roll_back(
        self, message: StreamRequest, decision: Rollback, vbucket: VBucket | None
    ) -> bytes:
        known = vbucket is not None and vbucket.failover_log.index(message.vb_uuid) is not None
        draft = self.session.dialect is Dialect.UPR_DRAFT
        if draft and self.settings.unknown_branch_is_enoent and not known:
            refused = Refused(Status.KEY_ENOENT, "the branch is unknown")
            return self._refuse(message, Opcode.STREAM_REQ, refused)
        reply = RollbackReply(opaque=message.opaque, rollback_seqno=decision.seqno)
        return encode(reply, self.session.dialect)

    def _add_stream(self, stream: Stream, now: float) -> None:
        stream.progress_at = now
        self.streams[stream.key] = stream
        self._by_vbucket.setdefault(stream.vbucket, []).append(stream)
        self.host.feed.watch(stream.vbucket, self)
        self.takeovers.add(stream)
        if self.controls.sync_replication:
            self.host.replica_joined(stream.vbucket, self.controls.consumer_name)
        self.schedule.enqueue(stream)
        self.session.wake()

    def _close_stream(self, message: CloseStream, now: float) -> bytes:  # noqa: ARG002 - as others
        stream_id = message.stream_id
        if (stream_id is not None) != self.controls.stream_ids:
            needed = "needs" if self.controls.stream_ids else "must not have"
            refused = Refused(Status.STREAM_ID_INVALID, f"CLOSE_STREAM here {needed} a stream id")
            return self._refuse(message, Opcode.CLOSE_STREAM, refused)
        stream = self.streams.get((message.vbucket, stream_id or 0))
        if stream is None:
            v7 = self.controls.v7_status_codes
            status = Status.STREAM_NOT_FOUND if v7 else Status.KEY_ENOENT
            return self._refuse(
                message, Opcode.CLOSE_STREAM, Refused(status, "there is no such stream")
            )
        stream.finish(StreamEndReason.CLOSED)
        self._retire(stream)
        return encode(CloseStreamReply(opaque=message.opaque), self.session.dialect)

    def _failover_log(self, message: GetFailoverLog, now: float) -> bytes:  # noqa: ARG002
        vbucket = self.host.bucket.find(message.vbucket)
        if vbucket is None:
            refused = Refused(Status.NOT_MY_VBUCKET, "the vbucket is not on this node")
            return self._refuse(message, Opcode.GET_FAILOVER_LOG, refused)
        log = _entries(vbucket.failover_log)
        return encode(
            GetFailoverLogReply(opaque=message.opaque, failover_log=log), self.session.dialect
        )

    def _buffer_ack(self, message: BufferAck, now: float) -> bytes:
        self.window.acknowledged(message.ack_bytes, now=now)
        self.session.wake()
        return b""

    def _seqno_acknowledged(self, message: SeqnoAcknowledged, now: float) -> bytes:  # noqa: ARG002
        stream = self.streams.get((message.vbucket, 0))
        if not self.controls.sync_replication:
            refused = Refused(
                Status.EINVAL, "SEQNO_ACKNOWLEDGED needs enable_sync_writes and consumer_name"
            )
            return self._refuse(message, Opcode.SEQNO_ACKNOWLEDGED, refused)
        if stream is None:
            return b""
        if message.prepared_seqno > stream.sent_seqno:
            self.end(
                f"seqno {message.prepared_seqno} of vbucket {message.vbucket} was acknowledged, "
                f"{stream.sent_seqno} was sent"
            )
            return b""
        stream.acknowledged_seqno = max(stream.acknowledged_seqno, message.prepared_seqno)
        self.host.replica_acknowledged(
            message.vbucket, self.controls.consumer_name, stream.acknowledged_seqno
        )
        return b""

    # -- replies ----------------------------------------------------------------------------------

    def _noop_reply(self, message: NoopReply, now: float) -> bytes:  # noqa: ARG002
        if self.noop is not None:
            try:
                self.noop.answered(message.opaque)
            except RemoteProtocolError as error:
                self.end(str(error))
        return b""

    def _acknowledgement(self, message: Message, now: float) -> bytes:  # noqa: ARG002
        return b""

    def _marker_reply(self, message: SnapshotMarkerReply, now: float) -> bytes:  # noqa: ARG002
        return self._go_on(self.takeovers.marker_answered(message.opaque))

    def _state_reply(self, message: SetVBucketStateReply, now: float) -> bytes:  # noqa: ARG002
        try:
            return self._go_on(self.takeovers.state_answered(message.opaque))
        except StoreError as error:
            self.end(f"the vbucket could not be given up: {error}")
            return b""

    def _go_on(self, stream: Stream | None) -> bytes:
        """Give a stream that was answered its turn, or forget it if that ended it."""
        if stream is not None and stream.reason is not None:
            self._retire(stream)
        elif stream is not None:
            self.schedule.enqueue(stream)
            self.session.wake()
        return b""

    def _error_reply(self, message: ErrorReply, now: float) -> bytes:  # noqa: ARG002
        opcode, status = message.opcode, message.status
        if opcode in ACKNOWLEDGEMENTS:
            forgiven = status in FORGIVEN or status in FORGIVEN_BEFORE_7
            of_takeover, ended = self.takeovers.refused(message.opaque, forgiven=forgiven)
            if of_takeover and not forgiven:
                self.end(f"the consumer refused a takeover with status {status:#04x}")
            return self._go_on(ended)
        if status in FORGIVEN:
            return b""
        if opcode == Opcode.STREAM_END and status == Status.KEY_ENOENT:
            return b""
        if (
            status in FORGIVEN_BEFORE_7
            and not self.controls.v7_status_codes
            and not (status == Status.KEY_ENOENT and opcode in COMPLETIONS)
        ):
            return b""
        self.end(f"the consumer answered opcode {opcode:#04x} with status {status:#04x}")
        return b""

    def _refuse(self, message: Message, opcode: Opcode, refused: Refused) -> bytes:
        value, datatype = b"", 0
        if refused.status == Status.NOT_MY_VBUCKET:
            value = self.session.not_my_vbucket().value or b""
        elif refused.status not in BARE and Feature.JSON in self.session.features:
            value = json.dumps({"error": {"context": refused.reason}}).encode()
            datatype = int(Datatype.JSON)
        reply = ErrorReply(
            opcode=opcode,
            status=refused.status,
            opaque=message.opaque,
            datatype=datatype,
            value=value,
        )
        return encode(reply, self.session.dialect)

    # -- data out ---------------------------------------------------------------------------------

    def pull(self, budget_bytes: int, now: float) -> Part:
        """Stream data to send now, about ``budget_bytes`` at most; empty when there is none."""
        parts = self.pull_parts(budget_bytes, now)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pull_parts(self, budget_bytes: int, now: float) -> list[Part]:
        """As `pull`, as the pieces it is made of: no copy of bulk data is made."""
        if self.closed_reason is not None:
            return []
        self._take_changes()
        limit = min(budget_bytes, PULL_BYTES[self.controls.priority])
        room = self.window.room
        box = Outbox(limit if room is None else min(limit, room))
        while self._ends and not box.is_full:
            box.add(self._ends.popleft())
        self._visit(box, now)
        if box.size:
            self.window.sent(box.counted, now=now)
            self.bytes_sent += box.size
            self.sent_at = now
        elif not self.schedule.is_empty and not self.window.is_full:
            self.session.wake()  # only filtered items so far: there is more to look at
        return box.parts

    @property
    def has_more(self) -> bool:
        """Whether another `pull` may find something, but for the window and what changes later."""
        return bool(self._ends or self._changed) or not self.schedule.is_empty

    def look_ahead(
        self, budget_bytes: int = TURN_BYTES, *, at_least: int = LOOK_AHEAD_MIN
    ) -> LookAhead | None:
        """The read whose chunk the next `pull` will want, to be run on another thread meanwhile.

        One chunk is read ahead of what was pulled, and only while the window has room for it.
        """
        stream = self.schedule.next
        if stream is None or self.closed_reason is not None:
            return None
        room = self.window.room
        limit = min(budget_bytes, TURN_BYTES, PULL_BYTES[self.controls.priority]) - MARKER_BYTES
        limit = limit if room is None else min(limit, room)
        return stream.look_ahead(limit) if limit >= at_least else None

    def _visit(self, box: Outbox, now: float) -> None:
        for _ in range(VISITS_PER_PULL_MAX):
            stream = None if box.is_full else self.schedule.take()
            if stream is None:
                return
            before = box.size
            box.begin_turn(TURN_BYTES)
            progress = stream.step(box)
            if box.size > before:
                stream.progress_at = now
                if stream.takeover is not None:
                    stream.takeover.observe(stream.state, now)
            if progress is Progress.ENDED:
                self._retire(stream)
            else:
                self.schedule.settle(stream, progress)

    def _take_changes(self) -> None:
        changed = self._changed
        while changed:
            # Out of the set first: a change after this look is noted again.
            for stream in self._by_vbucket.get(changed.pop(), ()):
                self.schedule.enqueue(stream)

    def _retire(self, stream: Stream) -> None:
        """Forget a dead stream and queue its last message."""
        if self.streams.get(stream.key) is not stream:
            return
        del self.streams[stream.key]
        left = [one for one in self._by_vbucket[stream.vbucket] if one is not stream]
        if left:
            self._by_vbucket[stream.vbucket] = left
        else:
            del self._by_vbucket[stream.vbucket]
            self.host.feed.unwatch(stream.vbucket, self)
        self.items_sent_by_ended += stream.items_sent
        self.schedule.give_back(stream)
        self.takeovers.remove(stream)
        reason = stream.reason
        assert reason is not None
        if reason is StreamEndReason.CLOSED and not stream.shape.terms.controls.end_on_close:
            return
        if len(self._ends) >= ENDS_MAX:
            self.end(f"{ENDS_MAX} stream ends wait for a window that stays full")
            return
        self._ends.append(stream.shape.stream_end(reason))
        self.session.wake()

    # -- time -------------------------------------------------------------------------------------

    def tick(self, now: float) -> bytes:
        """What is due now besides data: a NOOP; gives up on a peer that is gone."""
        if self.closed_reason is not None:
            return b""
        stuck = self.settings.stuck_seconds
        if stuck is not None and self.window.is_stuck(now=now, after_seconds=stuck):
            self.end(f"the window was full and not acknowledged for {stuck:.0f} s")
            return b""
        self._end_idle_backfills(now)
        self.takeovers.look(now)
        if self.noop is None:
            return b""
        if self.noop.is_dead(now=now):
            self.end("the consumer was silent for too long")
            return b""
        opaque = self.noop.take_noop(now=now)
        return b"" if opaque is None else encode(Noop(opaque=opaque), self.session.dialect)

    def next_tick(self, now: float) -> float | None:
        """When to call `tick` next, by the same clock; None: not before something else happens."""
        due = []
        if self.noop is not None:
            due.append(self.noop.next_at())
        if self.schedule.backfills:
            due.append(now + self.settings.idle_backfill_seconds)
        if self.settings.stuck_seconds is not None and self.window.is_full:
            due.append(now + self.settings.stuck_seconds)
        if self.takeovers:
            due.append(now + LOOK_SECONDS)
        return min(due, default=None)

    def _end_idle_backfills(self, now: float) -> None:
        if not self.schedule.backfills or not self.settings.disk_is_tight():
            return
        for stream in tuple(self.streams.values()):
            idle = now - stream.progress_at >= self.settings.idle_backfill_seconds
            if stream.is_reading_disk and idle:
                stream.finish(StreamEndReason.TOO_SLOW)
                self._retire(stream)

    # -- the rest ---------------------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        """Whether the window keeps data back."""
        return self.window.is_full

    def statistics(self, now: float) -> Iterable[tuple[str, str]]:
        """What ``stats dcp`` tells: names without the connection's prefix."""
        return producer_statistics(self, now)

    def close(self) -> None:
        """Let go of every stream; nothing more is sent. Idempotent."""
        if self.closed_reason is None:
            self.closed_reason = "closed"
        for stream in tuple(self.streams.values()):
            stream.finish(StreamEndReason.DISCONNECTED)
        for vbucket in self._by_vbucket:
            self.host.feed.unwatch(vbucket, self)
        self.streams.clear()
        self._by_vbucket.clear()
        self.schedule.clear()
        self.takeovers.clear()
        self._ends.clear()

    HANDLERS: ClassVar[dict[type[Message], Callable[..., bytes]]] = {
        Control: _control,
        StreamRequest: _stream_request,
        CloseStream: _close_stream,
        GetFailoverLog: _failover_log,
        BufferAck: _buffer_ack,
        SeqnoAcknowledged: _seqno_acknowledged,
        Open: _open,
        NoopReply: _noop_reply,
        BufferAckReply: _acknowledgement,
        SnapshotMarkerReply: _marker_reply,
        SetVBucketStateReply: _state_reply,
        ErrorReply: _error_reply,
    }
    """Every message a producer's end takes; any other closes the connection."""


def _entries(log: FailoverLog) -> tuple[FailoverEntry, ...]:
    return tuple(FailoverEntry(entry.uuid, entry.seqno) for entry in log)
