"""A change-stream connection whose server end consumes: vbuckets of ours follow a producer.

A node never dials. A manager opens this connection (OPEN without flag 01) and one of the same name
to the producer, and forwards frames between the two: what we send as requests reaches the
producer, what it sends reaches us. ADD_STREAM and CLOSE_STREAM are the manager's own.

The replica has no socket, no thread and no clock; its owner treats it as it treats a
`headrace.node.producer.Producer`: `handle` returns bytes to send, `pull` what became due meanwhile,
`tick` is called when `next_tick` has come, `closed_reason` ends the connection. Besides, `arrived`
announces each frame before it is handled, and `receive_bulk` takes whole runs of items.

Rules:

* The negotiation (`headrace.node.replica_talk`) begins with the first ADD_STREAM, as in released
  nodes: the manager has its other end by then. Stream requests follow when it is over.
* ADD_STREAM is answered when its stream stands, with the stream's opaque, or with the status its
  request was refused with. One inbound stream per vbucket of a node.
* What belongs to no stream of ours is refused and still acknowledged as received: a closed stream's
  bytes must not fill the window. Bytes are acknowledged when they have been processed.
* A stream whose vbucket is changed by others is closed at the producer at once
  (`headrace.node.replica_losses`): the manager sees that go by and may add it again.
* When the store has no room, messages are held, in order, and tried again; the window fills.
* A message that a consumer's end must not get closes the connection without an answer.

Spec: docs/protocol.md, "ADD_STREAM", "Flow control", "Noop".

Imports: errors, protocol, store, wire, node.opening, node.refusal, node.replica_context,
node.replica_losses, node.replica_statistics, node.replica_stream, node.replica_talk.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, ClassVar, Final

from headrace.errors import StoreError, StoreFull
from headrace.node.opening import OpenOptions, read_open
from headrace.node.refusal import Refusal
from headrace.node.replica_context import ReplicaSettings
from headrace.node.replica_losses import Losses
from headrace.node.replica_statistics import replica_statistics
from headrace.node.replica_stream import RECEIVING_STATES, Cause, ReplicaStream, State, cause_of
from headrace.node.replica_talk import WINDOW, Talk, Terms
from headrace.protocol.decision import Refused
from headrace.protocol.flow import ConsumerWindow, counted_size
from headrace.wire import messages as m
from headrace.wire.admin import GetErrorMapReply
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.message import ErrorReply, Request, UnknownReply
from headrace.wire.opcodes import Datatype, Feature, Opcode, Status, StreamFlag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.node.replica_context import Host, Session
    from headrace.wire.message import Message

RETRY_SECONDS: Final = 0.05
"""How long to wait before what the store had no room for is tried again."""
HELD_BYTES_MAX: Final = 4 * WINDOW
"""Bytes held for want of room; a producer that respects the window never gets there."""
ADD_STREAM_FLAGS: Final = sum(StreamFlag)
OPAQUE_MAX: Final = 0x7FFF_FFFF
NOT_OPEN: Final = OpenOptions(name="", producer=False)
BULK_OPCODES: Final = frozenset({Opcode.MUTATION, Opcode.DELETION, Opcode.EXPIRATION})
"""What `Replica.receive_bulk` may take."""
BARE: Final = frozenset({Status.KEY_ENOENT, Status.KEY_EEXISTS, Status.STREAM_NOT_FOUND})
OF_VERSION_7: Final = {
    Status.KEY_ENOENT: Status.STREAM_NOT_FOUND,
    Status.KEY_EEXISTS: Status.OPAQUE_NO_MATCH,
}
"""What "no such stream" and "another opaque" are called once v7_dcp_status_codes is agreed."""
SILENT: Final = frozenset({Dialect.DCP_7})
"""Dialects in which the end of a stream we no longer have is not answered."""


class Replica:
    """The state of one consuming connection."""

    def __init__(
        self, session: Session, host: Host, now: float, *, settings: ReplicaSettings | None = None
    ) -> None:
        """Begin before OPEN, which is the first message to `handle`."""
        self.session, self.host = session, host
        self.settings = settings if settings is not None else ReplicaSettings()
        self.options = NOT_OPEN
        self.closed_reason: str | None = None
        self.created_at = self.heard_at = now
        self.window = ConsumerWindow(0, now=now)
        self.acknowledged_at: float | None = None
        self.backoffs = 0
        self.bytes_received = 0
        self.items_received_by_ended = 0
        self.streams: dict[int, ReplicaStream] = {}
        self._by_opaque: dict[int, ReplicaStream] = {}
        self._losses = Losses(self.streams, session.wake)
        self._last_opaque = 0
        self._talk: Talk | None = None
        self._output: list[bytes] = []
        self._arrived = 0
        """Counted bytes of the message at hand."""
        self._held: deque[tuple[Request, int]] = deque()
        self._held_bytes = 0
        self._retry_at: float | None = None
        self._persisted: set[int] = set()

    # -- being told -------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether an OPEN was accepted."""
        return self.options is not NOT_OPEN

    def end(self, reason: str) -> None:
        """Ask the owner to close the connection."""
        if self.closed_reason is None:
            self.closed_reason = reason
            self.session.wake()

    def arrived(self, opcode: int, size: int) -> None:
        """A frame of this size came; `handle` is next, unless it cannot be read."""
        self._processed(self._arrived)
        self.bytes_received += size
        self._arrived = counted_size(opcode, size)
        self.window.received(self._arrived)

    def _processed(self, size: int) -> None:
        self.window.processed(size)
        self._arrived = 0

    def handle(self, message: Message, now: float) -> bytes:
        """Take one message; what to send now."""
        if self.closed_reason is not None:
            return b""
        self.heard_at = now
        if not self.is_open and not isinstance(message, m.Open):
            self.end(f"{type(message).__name__} before OPEN")
            return b""
        if isinstance(message, Request) and cause_of(message) is not None:
            self._take(message, now)
        else:
            handler = self.HANDLERS.get(type(message))
            if handler is None:
                self.end(f"{type(message).__name__} on a consumer's connection")
                return b""
            handler(self, message, now)
        self._processed(self._arrived)
        return self._sent(now)

    def _sent(self, now: float) -> bytes:
        """Everything to send, acknowledged bytes included."""
        size = self.window.take_ack(now=now)
        if size:
            self.acknowledged_at = now
            self._send(m.BufferAck(ack_bytes=size))
        data, self._output = b"".join(self._output), []
        return data

    def _send(self, message: Message) -> None:
        self._output.append(encode(message, self.session.dialect))

    # -- the manager ------------------------------------------------------------------------------

    def _open(self, message: m.Open, now: float) -> None:
        session = self.session
        found = read_open(message, dialect=session.dialect, collections=session.collections)
        if self.is_open:
            found = Refused(Status.EINVAL, "the connection was opened before")
        if isinstance(found, Refused):
            self._refuse(message, Opcode.OPEN, Refusal(found.status, found.reason))
            return
        self.options = found
        window = 0 if session.dialect is Dialect.UPR_DRAFT else self.settings.window
        self.window = ConsumerWindow(window, now=now)
        terms = Terms(
            dialect=session.dialect,
            collections=session.collections,
            consumer_name=found.consumer_name,
            window=window,
        )
        self._talk = Talk(terms, self._next_opaque)
        self._send(m.OpenReply(opaque=message.opaque))

    def _next_opaque(self) -> int:
        self._last_opaque = self._last_opaque % OPAQUE_MAX + 1
        return self._last_opaque

    def _add_stream(self, message: m.AddStream, now: float) -> None:  # noqa: ARG002 - as all
        number, talk = message.vbucket, self._talk
        assert talk is not None
        try:
            self._check_add(message)
        except Refusal as refusal:
            self._refuse(message, Opcode.ADD_STREAM, refusal)
            return
        stream = ReplicaStream(
            self.host,
            self.host.bucket.vbucket(number),
            opaque=self._next_opaque(),
            flags=message.flags,
            asked_by=message.opaque,
            dialect=self.session.dialect,
            collections=self.session.collections,
            persisted=self._vbucket_persisted,
        )
        self.streams[number] = self._by_opaque[stream.opaque] = stream
        self.host.inbound[number] = self
        self.host.feed.watch(number, self._losses)
        if not talk.has_begun:
            self._ask(talk.begin())
        elif talk.is_done:
            self._send(stream.request())

    def _check_add(self, message: m.AddStream) -> None:
        number = message.vbucket
        if message.flags & ~ADD_STREAM_FLAGS:
            raise Refusal(
                Status.EINVAL, f"stream flags {message.flags:#x}, allowed {ADD_STREAM_FLAGS:#x}"
            )
        self._forget_if_lost(number)
        if self.host.inbound.get(number) is not None:
            raise Refusal(Status.KEY_EEXISTS, f"vbucket {number} has an inbound stream")
        vbucket = self.host.bucket.find(number)
        if vbucket is None or vbucket.state not in RECEIVING_STATES:
            raise self.session.not_my_vbucket()

    def _forget_if_lost(self, number: int) -> None:
        """A stream whose vbucket changed under it no longer stands in the way."""
        holder = self.host.inbound.get(number)
        stream = holder.streams.get(number) if isinstance(holder, Replica) else None
        if isinstance(holder, Replica) and stream is not None and stream.is_lost:
            holder.give_up(stream)

    def _close_stream(self, message: m.CloseStream, now: float) -> None:  # noqa: ARG002 - as all
        stream = self.streams.get(message.vbucket)
        if stream is None:
            status = self._status(Status.KEY_ENOENT)
            self._refuse(message, Opcode.CLOSE_STREAM, Refusal(status, "there is no such stream"))
            return
        self.drop(stream)
        self._send(m.CloseStreamReply(opaque=message.opaque))

    def give_up(self, stream: ReplicaStream) -> None:
        """Close a stream that lost its vbucket, at the producer too if it has it."""
        if stream.is_standing:
            request = m.CloseStream(vbucket=stream.vbucket.id, opaque=self._next_opaque())
            self._send(request)
            self.session.wake()
        self.drop(stream)

    def drop(self, stream: ReplicaStream, status: Status = Status.KEY_ENOENT) -> None:
        """Forget a stream; an ADD_STREAM that waits for it is refused."""
        number = stream.vbucket.id
        stream.move(Cause.END)
        self.items_received_by_ended += stream.items_received
        self._by_opaque.pop(stream.opaque, None)
        if self.streams.get(number) is stream:
            del self.streams[number]
            self.host.feed.unwatch(number, self._losses)
            if self.host.inbound.get(number) is self:
                del self.host.inbound[number]
        if stream.asked_by is not None:
            reply = ErrorReply(opcode=Opcode.ADD_STREAM, status=status, opaque=stream.asked_by)
            stream.asked_by = None
            self._send(reply)

    # -- the negotiation --------------------------------------------------------------------------

    def _ask(self, requests: Iterable[Request]) -> None:
        talk = self._talk
        assert talk is not None
        for request in requests:
            self._send(request)
        if talk.is_done:
            for stream in self.streams.values():
                if stream.state is State.WAITING:
                    self._send(stream.request())

    def _answered(self, message: Message, now: float) -> None:  # noqa: ARG002 - as all
        assert self._talk is not None
        following = self._talk.answered(
            message.opaque, accepted=not isinstance(message, ErrorReply)
        )
        if following is not None:
            self._ask(following)

    # -- stream requests --------------------------------------------------------------------------

    def _accepted(self, message: m.StreamRequestReply, now: float) -> None:  # noqa: ARG002
        stream = self._by_opaque.get(message.opaque)
        if stream is None or stream.state is not State.ASKED:
            return
        if stream.is_lost:
            self.drop(stream, Status.NOT_MY_VBUCKET)
            return
        try:
            stream.accepted(message.failover_log)
        except Refusal as refusal:
            self.drop(stream, refusal.status)
            return
        assert stream.asked_by is not None
        self._send(m.AddStreamReply(opaque=stream.asked_by, stream_opaque=stream.opaque))
        stream.asked_by = None
        self._acknowledge_prepares(stream)

    def _roll_back(self, message: m.RollbackReply, now: float) -> None:  # noqa: ARG002
        stream = self._by_opaque.get(message.opaque)
        if stream is not None and stream.state is State.ASKED:
            self._go_back(stream, message.rollback_seqno)

    def _go_back(self, stream: ReplicaStream, seqno: int) -> None:
        vbucket = stream.vbucket
        try:
            to = stream.told_to_roll_back(seqno)
        except Refusal as refusal:
            self.drop(stream, refusal.status)
            return
        if to is None:
            self._send(stream.request())
            return

        def gone_back(result: object) -> None:
            self.host.feed.tell(vbucket.id)
            if stream.state is not State.ROLLING_BACK or self.closed_reason is not None:
                return
            if isinstance(result, Exception):
                self.drop(stream, Status.ETMPFAIL)
            elif stream.rolled_back():
                self._send(stream.request())
            else:
                self.drop(stream, Status.NOT_MY_VBUCKET)
            self.session.wake()

        def is_over() -> bool:
            # The connection may go while this waits for a thread. The next one's stream may stand
            # by then: what it received must not be taken away, and nobody would tell the manager.
            return stream.state is not State.ROLLING_BACK

        self.settings.off_loop(
            lambda: vbucket.rollback(to, as_replica=True, unless=is_over), gone_back
        )

    def _error(self, message: ErrorReply, now: float) -> None:
        if message.opcode != Opcode.STREAM_REQ:
            self._answered(message, now)
            return
        stream = self._by_opaque.get(message.opaque)
        if stream is None or stream.state is not State.ASKED:
            return
        draft = self.session.dialect is Dialect.UPR_DRAFT
        if draft and message.status == Status.KEY_ENOENT and stream.start_seqno:
            self._go_back(stream, 0)  # the draft's words for "your branch is unknown"
        else:
            self.drop(stream, Status(message.status))

    # -- what the producer sends ------------------------------------------------------------------

    def _take(self, message: Request, now: float) -> None:
        """Give a message to its stream, or hold it behind others that wait for room."""
        size, self._arrived = self._arrived, 0
        if not self._held:
            try:
                self._give(message)
            except StoreFull:
                self.backoffs += 1
                self._retry_at = now + RETRY_SECONDS
            except StoreError as error:
                self.end(f"the store failed: {error}")
                return
            else:
                self._processed(size)
                return
        self._held.append((message, size))
        self._held_bytes += size
        if self._held_bytes > HELD_BYTES_MAX:
            self.end(f"{self._held_bytes} bytes wait for room in the store")

    def _give(self, message: Request) -> None:
        try:
            stream = self._stream_of(message)
            for answer in stream.receive(message):
                self._send(answer)
        except Refusal as refusal:
            self._refuse_item(message, refusal)
            return
        if stream.state is State.CLOSED:
            self.drop(stream)
        else:
            self._acknowledge_prepares(stream)

    def _stream_of(self, message: Request) -> ReplicaStream:
        stream = self.streams.get(message.vbucket)
        if stream is not None and stream.is_lost:
            self.give_up(stream)
            stream = None
        if stream is None or not stream.is_standing:
            raise Refusal(self._status(Status.KEY_ENOENT), "there is no such stream")
        if stream.opaque != message.opaque:
            raise Refusal(
                self._status(Status.KEY_EEXISTS),
                f"opaque {message.opaque}, this stream's is {stream.opaque}",
            )
        return stream

    def _status(self, status: Status) -> Status:
        talk = self._talk
        if talk is not None and "v7_dcp_status_codes" in talk.granted:
            return OF_VERSION_7.get(status, status)
        return status

    def _refuse_item(self, message: Request, refusal: Refusal) -> None:
        if isinstance(message, m.StreamEnd) and self.session.dialect in SILENT:
            return
        self._refuse(message, OPCODES[type(message)], refusal)

    def _acknowledge_prepares(self, stream: ReplicaStream) -> None:
        talk = self._talk
        if talk is not None and talk.replicates_sync_writes:
            acknowledgement = stream.take_acknowledgement()
            if acknowledgement is not None:
                self._send(acknowledgement)

    def receive_bulk(self, frames: memoryview, now: float) -> int:
        """Apply the longest prefix of plain items of one stream; the bytes that were taken.

        Whatever follows goes through `arrived` and `handle`, and perhaps back to here.
        """
        if self._held or self.closed_reason is not None:
            return 0
        stream = self._by_opaque.get(int.from_bytes(frames[12:16], "big"))
        if stream is None or stream.is_lost:
            return 0
        try:
            used, count = stream.receive_run(frames)
        except StoreError:  # `handle` meets it again, and says what to do
            return 0
        if not count:
            return 0
        self.heard_at = now
        self._processed(self._arrived)
        self.bytes_received += used
        self.window.received(used)
        self._processed(used)
        for answer in stream.applied():
            self._send(answer)
        self._acknowledge_prepares(stream)
        return used

    def _noop(self, message: m.Noop, now: float) -> None:  # noqa: ARG002 - as all handlers
        self._send(m.NoopReply(opaque=message.opaque))

    def _nothing(self, message: Message, now: float) -> None:
        """A reply that asks for nothing."""

    def _refuse(self, message: Message, opcode: Opcode, refusal: Refusal) -> None:
        value, datatype = refusal.value or b"", 0
        plain = not value and refusal.status not in BARE and refusal.context
        if plain and Feature.JSON in self.session.features:
            value = json.dumps({"error": {"context": refusal.context}}).encode()
            datatype = int(Datatype.JSON)
        self._send(
            ErrorReply(
                opcode=opcode,
                status=refusal.status,
                opaque=message.opaque,
                datatype=datatype,
                value=value,
            )
        )

    # -- time -------------------------------------------------------------------------------------

    def _vbucket_persisted(self, vbucket: int) -> None:
        """Note that something was made durable; any thread."""
        self._persisted.add(vbucket)
        self.session.wake()

    def pull(self, budget_bytes: int, now: float) -> bytes:  # noqa: ARG002 - a producer's signature
        """What became due since the last message: acknowledgements, requests after a rollback."""
        if self.closed_reason is not None:
            return b""
        for lost in self._losses.take():
            self.give_up(lost)
        while self._persisted:
            stream = self.streams.get(self._persisted.pop())
            if stream is not None and stream.is_standing:
                self._acknowledge_prepares(stream)
        return self._sent(now)

    def pull_parts(self, budget_bytes: int, now: float) -> list[bytes | memoryview]:
        """As `pull`."""
        data = self.pull(budget_bytes, now)
        return [data] if data else []

    @property
    def has_more(self) -> bool:
        """Whether another `pull` may find something."""
        return bool(self._persisted or self._output or self._losses)

    def look_ahead(self, budget_bytes: int) -> None:
        """Nothing is prepared before it is pulled."""

    def tick(self, now: float) -> bytes:
        """Try held messages again, acknowledge what waits; gives up on a silent producer."""
        if self.closed_reason is not None:
            return b""
        if now >= self._dead_at():
            self.end("the producer was silent for too long")
            return b""
        if self._retry_at is not None and now >= self._retry_at:
            self._retry(now)
        return self._sent(now)

    def _retry(self, now: float) -> None:
        while self._held:
            message, size = self._held[0]
            try:
                self._give(message)
            except StoreFull:
                self._retry_at = now + RETRY_SECONDS
                return
            self._held.popleft()
            self._held_bytes -= size
            self._processed(size)
        self._retry_at = None

    def _dead_at(self) -> float:
        talk = self._talk
        if talk is None or "enable_noop" not in talk.granted or not self.streams:
            return float("inf")
        return self.heard_at + self.settings.idle_timeout_seconds

    def next_tick(self, now: float) -> float | None:  # noqa: ARG002 - a producer's signature
        """When to call `tick` next; None: not before something else happens."""
        due = [at for at in (self._retry_at, self.window.ack_at()) if at is not None]
        dead = self._dead_at()
        if dead != float("inf"):
            due.append(dead)
        return min(due, default=None)

    # -- the rest ---------------------------------------------------------------------------------

    @property
    def items_received(self) -> int:
        """Items applied, on streams that live and that ended."""
        living = sum(stream.items_received for stream in self.streams.values())
        return self.items_received_by_ended + living

    def statistics(self, now: float) -> Iterable[tuple[str, str]]:
        """What ``stats dcp`` tells: names without the connection's prefix."""
        return replica_statistics(self, now)

    def close(self) -> None:
        """Let go of every stream; nothing more is sent. Idempotent."""
        if self.closed_reason is None:
            self.closed_reason = "closed"
        for stream in tuple(self.streams.values()):
            stream.asked_by = None
            self.drop(stream)
        self._held.clear()
        self._output.clear()

    HANDLERS: ClassVar[dict[type[Message], Callable[..., None]]] = {
        m.Open: _open,
        m.AddStream: _add_stream,
        m.CloseStream: _close_stream,
        m.Noop: _noop,
        m.StreamRequestReply: _accepted,
        m.RollbackReply: _roll_back,
        m.ControlReply: _answered,
        GetErrorMapReply: _answered,
        UnknownReply: _answered,
        ErrorReply: _error,
        m.BufferAckReply: _nothing,
        m.CloseStreamReply: _nothing,
    }
    """Every message a consumer's end takes besides a stream's; any other closes the connection."""


OPCODES: Final[dict[type, Opcode]] = {
    m.SnapshotMarker: Opcode.SNAPSHOT_MARKER,
    m.Mutation: Opcode.MUTATION,
    m.Deletion: Opcode.DELETION,
    m.Expiration: Opcode.EXPIRATION,
    m.Flush: Opcode.FLUSH,
    m.SetVBucketState: Opcode.SET_VBUCKET_STATE,
    m.StreamEnd: Opcode.STREAM_END,
    m.SystemEvent: Opcode.SYSTEM_EVENT,
    m.Prepare: Opcode.PREPARE,
    m.Commit: Opcode.COMMIT,
    m.Abort: Opcode.ABORT,
    m.SeqnoAdvanced: Opcode.SEQNO_ADVANCED,
}
"""What to answer with."""
