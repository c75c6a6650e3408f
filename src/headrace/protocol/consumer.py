"""ConsumerConnection: bytes in, events and bytes out; no socket, no clock, no thread.

The owner carries bytes and time: it gives what came to `receive`, sends what `take_output` returns,
acts on the events, says `processed` when it is done with a change, and calls `tick` when `next_at`
has come. Everything else (handshake, stream requests, rollback, flow control, noop) happens here.

Two roads, one truth. On the message road all bytes go through `receive`, and every change is an
event. On the bulk road the owner decodes items straight into columns: it tells the connection each
run of items (`advance`), the numbers of each marker (`announce`), and hands it every other frame
(`receive_frame`), in the order of the bytes; it counts for the window what it did not hand over.
Both roads end with the same tokens, boundaries and acknowledgements.

Rules and invariants:

* Streams are known by their opaque; a frame with an opaque that is no open stream's belongs to one
  that was closed: it is dropped and its bytes are acknowledged.
* After the link is lost `positions` tells where every stream stands.
* A NOOP is answered at once, whatever the window.
* An error of the peer raises RemoteProtocolError, a refused login, bucket or OPEN StatusError; from
  then on the connection takes nothing more. What came before the error in the same bytes is told
  first and the error is raised by the next call: `failure` is set, and `next_at` has come.

Spec: docs/protocol.md.

Imports: errors, history, protocol, wire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError, LocalProtocolError, RemoteProtocolError
from headrace.history import VBucketId
from headrace.protocol import events as e
from headrace.protocol.flow import ConsumerWindow, NoopWatch, counted_size
from headrace.protocol.handshake import ConsumerSettings, Handshake, refusal_text
from headrace.protocol.talk import (
    Position,
    Progress,
    Said,
    StreamPlan,
    StreamTalk,
    read_log,
    stream_id_infos,
)
from headrace.wire import admin
from headrace.wire import messages as m
from headrace.wire.codec import decode, encode
from headrace.wire.frame import BODY_SIZE_MAX, Frame, FrameBuffer
from headrace.wire.message import ErrorReply, Message, Reply, Request, UnknownCommand
from headrace.wire.opcodes import Magic, Opcode, Status, StreamEndReason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.history import Seqno
    from headrace.wire.dialect import Dialect

OPAQUE_FIRST: Final = 0x1000
"""Streams are numbered from here; the handshake's few requests lie below."""
OPAQUE_LIMIT: Final = 0x1_0000_0000
REQUESTS_MAX: Final = 0x1_0000
"""Most requests without a reply: one for every vbucket that a number can name."""
UNANSWERED: Final = frozenset({Opcode.BUFFER_ACK, Opcode.SEQNO_ACKNOWLEDGED})
"""Requests of ours that get no reply; one that comes all the same is ignored."""


class ConsumerConnection:
    """One connection of a consumer to a producer."""

    def __init__(
        self,
        settings: ConsumerSettings,
        *,
        now: float,
        nonce: str,
        body_size_max: int = BODY_SIZE_MAX,
    ) -> None:
        """Stand before the first byte; ``nonce`` is fresh and random, ``now`` in seconds."""
        self.settings = settings
        self.connected: e.Connected | None = None
        self.window = ConsumerWindow(0, now=now)
        self._watch = NoopWatch(interval_seconds=settings.noop_interval_seconds, now=now)
        self._handshake = Handshake(settings, nonce=nonce)
        self._frames = FrameBuffer(body_size_max=body_size_max)
        self._output: list[bytes] = []
        self._events: list[e.Event] = []
        self._now = now
        self._accepted: frozenset[str] = frozenset()
        self._broken: HeadraceError | None = None
        self._opaque = OPAQUE_FIRST
        self._asked: dict[int, Request] = {}
        self._live: dict[int, StreamTalk] = {}
        self._known: dict[tuple[int, int | None], StreamTalk] = {}
        self._send(self._handshake.request)

    # -- what the owner asks --------------------------------------------------------------------

    @property
    def dialect(self) -> Dialect:
        """The dialect spoken; settled once connected."""
        return self._handshake.dialect

    def request_stream(self, plan: StreamPlan) -> None:
        """Ask for a stream; LocalProtocolError if it cannot be asked for now."""
        if (plan.stream_id is not None) != self._has_control("enable_stream_id"):
            raise LocalProtocolError(
                f"stream id {plan.stream_id}: an id is given exactly when stream ids are enabled"
            )
        talk = StreamTalk(plan)
        known = self._known.get(talk.key)
        if known is not None and (known.opaque in self._live or known.closing):
            raise LocalProtocolError(f"vbucket {plan.vbucket} is already streamed or asked for")
        self._ask_stream(talk)
        self._known[talk.key] = talk

    def close_stream(self, vbucket: VBucketId, stream_id: int | None = None) -> None:
        """Ask for the stream's end; what still arrives for it is dropped."""
        talk = self._known.get((vbucket, stream_id))
        if talk is None or talk.opaque not in self._live:
            raise LocalProtocolError(f"vbucket {vbucket} has no live stream to close")
        infos = stream_id_infos(stream_id)
        self._ask(m.CloseStream(opaque=self._next_opaque(), vbucket=vbucket, frame_infos=infos))
        talk.closing = True
        del self._live[talk.opaque]

    def ask_failover_log(self, vbucket: VBucketId) -> None:
        """Ask for a vbucket's failover log."""
        self._ask(m.GetFailoverLog(opaque=self._next_opaque(), vbucket=vbucket))

    def ask_seqnos(self, state: int | None = None, collection_id: int | None = None) -> None:
        """Ask for the high seqnos of all vbuckets in a state."""
        self._ask(
            m.GetAllVbSeqnos(opaque=self._next_opaque(), state=state, collection_id=collection_id)
        )

    def ask_cluster_map(self) -> None:
        """Ask for the cluster map."""
        self._ask(admin.GetClusterConfig(opaque=self._next_opaque()))

    def positions(self) -> dict[tuple[int, int | None], Position]:
        """Where every stream stands, live or ended, by (vbucket, stream id)."""
        return {key: talk.position for key, talk in self._known.items()}

    def position(self, vbucket: VBucketId, stream_id: int | None = None) -> Position:
        """Where one stream stands; KeyError if it was never asked for."""
        return self._known[vbucket, stream_id].position

    @property
    def live(self) -> int:
        """Number of streams that are open or asked for."""
        return len(self._live)

    # -- bytes, time, progress ------------------------------------------------------------------

    @property
    def has_output(self) -> bool:
        """Whether there are bytes to send."""
        return bool(self._output)

    def take_output(self) -> bytes:
        """The bytes to send, once."""
        output = b"".join(self._output)
        self._output.clear()
        return output

    def receive(self, data: bytes | bytearray | memoryview, *, now: float) -> list[e.Event]:
        """Take any piece of the byte stream and tell what it meant."""
        self._check_sound()
        self._frames.feed(data)
        return self._take(self._frames, now)

    def receive_frame(self, frame: Frame, *, now: float) -> list[e.Event]:
        """Take one whole frame that the owner cut out itself (bulk road)."""
        if self._broken is not None:
            raise self._broken
        self._now = self._watch.heard_at = now
        try:
            self._take_frame(frame, frame.size)
        except HeadraceError as error:
            self._fail(error)
        if self.window.freed and self.window.is_due(now):
            self._acknowledge()
        return self._take_events()

    def announce(
        self,
        opaque: int,
        vbucket: int,
        start: Seqno,
        end: Seqno,
        *,
        flags: int,
        purge_seqno: Seqno | None,
        now: float,
    ) -> e.SnapshotStarted | None:
        """Take a marker with a range that the owner decoded itself (bulk road).

        None: its stream is not open, and it is dropped.
        """
        talk = self._streaming(opaque, vbucket, now)
        if talk is None:
            return None
        try:
            return talk.announce(start, end, flags, purge_seqno)
        except RemoteProtocolError as error:
            self._broken = error
            raise

    def advance(
        self, opaque: int, vbucket: int, first_seqno: Seqno, last_seqno: Seqno, *, now: float
    ) -> Progress | None:
        """Take a run of items of one stream that the owner decoded itself (bulk road).

        None: the stream is not open, and they are to be dropped.
        """
        talk = self._streaming(opaque, vbucket, now)
        if talk is None:
            return None
        machine = talk.machine
        assert machine is not None
        try:
            step = machine.advance(first_seqno, last_seqno)
        except RemoteProtocolError as error:
            self._broken = error
            raise
        if step.ack:
            self._send(m.SnapshotMarkerReply(opaque=opaque))
        return Progress(machine.token, machine.span, talk.position if step.completed else None)

    def _streaming(self, opaque: int, vbucket: int, now: float) -> StreamTalk | None:
        """The open stream of what the owner decoded itself."""
        if self._broken is not None:
            raise self._broken
        self._now = self._watch.heard_at = now
        talk = self._live.get(opaque)
        if talk is None or talk.machine is None:
            return None
        if talk.plan.vbucket != vbucket:
            self._broken = RemoteProtocolError(
                f"a message of vbucket {vbucket} with the opaque of the stream of vbucket "
                f"{talk.plan.vbucket}"
            )
            raise self._broken
        return talk

    def processed(self, size: int, *, now: float) -> None:
        """Give back the bytes of changes that are done with; acknowledges when it is time."""
        self.window.processed(size)
        self._now = now
        if self.window.is_due(now):
            self._acknowledge()

    @property
    def failure(self) -> HeadraceError | None:
        """The error that ended the connection; the next `receive` or `tick` raises it."""
        return self._broken

    def tick(self, *, now: float) -> list[e.Event]:
        """Do what is due by time alone: acknowledge, or notice that the producer is gone."""
        self._check_sound()
        self._now = now
        self._acknowledge()
        if self._watch.is_dead(now=now):
            self._events.append(e.ProducerSilent(now - self._watch.heard_at))
        return self._take_events()

    def next_at(self) -> float | None:
        """When `tick` should be called at the latest; None: not by time."""
        if self._broken is not None:
            return self._now
        ack, dead = self.window.ack_at(), self._watch.dead_at()
        if ack is None or dead is None:
            return dead if ack is None else ack
        return ack if ack < dead else dead

    # -- frames ---------------------------------------------------------------------------------

    def _take(self, frames: Iterable[Frame], now: float) -> list[e.Event]:
        self._heard(now)
        try:
            for frame in frames:
                self._take_frame(frame, frame.size)
        except HeadraceError as error:
            self._fail(error)
        self._acknowledge()
        return self._take_events()

    def _fail(self, error: HeadraceError) -> None:
        """What came before the error is good, and the tokens stand behind it: tell it first."""
        self._broken = error
        if not self._events:
            raise error

    def _take_frame(self, frame: Frame, size: int) -> None:
        # Real servers misplace the stream id of live deletions; only the tolerant reader knows.
        message = decode(frame, self._handshake.dialect, strict=not self.settings.stream_ids)
        if isinstance(message, Reply):
            self._take_reply(frame.opcode, message)
            return
        assert isinstance(message, Request)
        size = counted_size(frame.opcode, size)
        self.window.received(size)
        take = self._TAKE_REQUEST.get(type(message))
        talk = self._live.get(message.opaque)
        if take is not None:
            take(self, message)
            self.window.processed(size)
        elif talk is not None and talk.is_open:
            self._say(talk, talk.take_message(message, size), size)
        else:
            self.window.processed(size)

    def _say(self, talk: StreamTalk, said: Said, size: int) -> None:
        self._events += said.events
        for answer in said.answers:
            self._send(answer)
        if size and not said.held:
            self.window.processed(size)
        if said.over:
            del self._live[talk.opaque]

    def _take_noop(self, message: Request) -> None:
        self._send(m.NoopReply(opaque=message.opaque))

    def _take_clustermap(self, message: Request) -> None:
        assert isinstance(message, m.ClustermapChange)
        self._events.append(e.ClusterMapTold(cluster_map=message.value, pushed=True))

    def _take_unknown(self, message: Request) -> None:
        assert isinstance(message, UnknownCommand)
        if message.magic == Magic.REQUEST:  # a reply to the server's own kind is optional
            self._send(
                ErrorReply(
                    opaque=message.opaque, opcode=message.opcode, status=Status.UNKNOWN_COMMAND
                )
            )

    # -- replies --------------------------------------------------------------------------------

    def _take_reply(self, opcode: int, reply: Reply) -> None:
        if self.connected is None:
            self._take_handshake_reply(opcode, reply)
            return
        request = self._asked.pop(reply.opaque, None)
        if request is None:
            if opcode in UNANSWERED:
                return
            raise RemoteProtocolError(
                f"reply {opcode:#04x} with opaque {reply.opaque:#x} that nobody asked for"
            )
        take = self._TAKE_REPLY[type(request)]
        if isinstance(reply, ErrorReply) and type(request) not in self._TAKE_REFUSAL:
            take = ConsumerConnection._take_refusal
        take(self, request, reply)

    def _take_handshake_reply(self, opcode: int, reply: Reply) -> None:
        request = self._handshake.request
        assert request is not None
        if reply.opaque != request.opaque:
            raise RemoteProtocolError(
                f"reply {opcode:#04x} with opaque {reply.opaque} during the handshake, "
                f"expected {request.opaque}"
            )
        self._handshake.receive(reply)
        self._send(self._handshake.request)
        self.connected = self._handshake.connected
        if self.connected is not None:
            self._accepted = frozenset(key for key, _ in self.connected.controls)
            if self._has_control("connection_buffer_size"):
                self.window = ConsumerWindow(self.settings.window, now=self._now)
            self._events.append(self.connected)

    def _take_stream_reply(self, request: Request, reply: Reply) -> None:
        talk = self._live.get(request.opaque)
        if talk is None:  # closed while the answer was on its way
            return
        said = talk.take_reply(reply)
        if said is None:
            del self._live[talk.opaque]
            self._ask_stream(talk)
            return
        self._say(talk, said, size=0)
        if talk.is_open and self._has_control("enable_noop"):
            self._watch.watch(now=self._now)

    def _take_close_reply(self, request: Request, reply: Reply) -> None:
        """Success or not: nothing more of the stream is taken, which is what was asked for."""
        del reply
        talk = self._known.get((request.vbucket, request.stream_id))
        if talk is not None and talk.closing:
            talk.closing = False
            self._events.append(talk.end(StreamEndReason.CLOSED))

    def _take_log_reply(self, request: Request, reply: Reply) -> None:
        assert isinstance(reply, m.GetFailoverLogReply)
        log = read_log(reply.failover_log)
        self._events.append(e.FailoverLogTold(vbucket=VBucketId(request.vbucket), log=log))

    def _take_seqnos_reply(self, request: Request, reply: Reply) -> None:
        del request
        assert isinstance(reply, m.GetAllVbSeqnosReply)
        self._events.append(e.SeqnosTold(reply.seqnos))

    def _take_map_reply(self, request: Request, reply: Reply) -> None:
        del request
        assert isinstance(reply, admin.GetClusterConfigReply)
        self._events.append(e.ClusterMapTold(cluster_map=reply.value, pushed=False))

    def _take_refusal(self, request: Request, reply: Reply) -> None:
        assert isinstance(reply, ErrorReply)
        self._events.append(
            e.RequestRefused(
                opcode=reply.opcode,
                status=reply.status,
                vbucket=VBucketId(request.vbucket),
                reason=refusal_text(reply),
            )
        )

    _TAKE_REQUEST: Final = {
        m.Noop: _take_noop,
        m.ClustermapChange: _take_clustermap,
        UnknownCommand: _take_unknown,
    }
    _TAKE_REPLY: Final = {
        m.StreamRequest: _take_stream_reply,
        m.CloseStream: _take_close_reply,
        m.GetFailoverLog: _take_log_reply,
        m.GetAllVbSeqnos: _take_seqnos_reply,
        admin.GetClusterConfig: _take_map_reply,
    }
    _TAKE_REFUSAL: Final = frozenset({m.StreamRequest, m.CloseStream})
    """Requests whose refusal is part of their own story."""

    # -- small parts ----------------------------------------------------------------------------

    def _ask_stream(self, talk: StreamTalk) -> None:
        tell_purge = self._has_control("max_marker_version")
        self._ask(talk.request(self._next_opaque(), self.dialect, tell_purge=tell_purge))
        self._live[talk.opaque] = talk

    def _ask(self, request: Request) -> None:
        if self.connected is None:
            raise LocalProtocolError(f"{type(request).__name__} before the handshake is over")
        if len(self._asked) >= REQUESTS_MAX:
            raise LocalProtocolError(f"{len(self._asked)} requests wait for a reply already")
        self._send(request)
        self._asked[request.opaque] = request

    def _send(self, message: Message | None) -> None:
        if message is not None:
            self._output.append(encode(message, self.dialect))

    def _acknowledge(self) -> None:
        while size := self.window.take_ack(now=self._now):
            self._send(m.BufferAck(ack_bytes=size))

    def _heard(self, now: float) -> None:
        self._now = now
        self._watch.heard(now=now)

    def _has_control(self, key: str) -> bool:
        return key in self._accepted

    def _next_opaque(self) -> int:
        opaque = self._opaque
        self._opaque = opaque + 1 if opaque + 1 < OPAQUE_LIMIT else OPAQUE_FIRST
        return opaque

    def _take_events(self) -> list[e.Event]:
        taken, self._events = self._events, []
        return taken

    def _check_sound(self) -> None:
        if self._broken is not None:
            raise self._broken
