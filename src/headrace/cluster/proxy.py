"""Proxy: a connection to a producer node, one to a consumer node, frames handed across as they are.

    producer node  <->  Proxy  <->  consumer node

What the consumer node asks (CONTROL, STREAM_REQ, acknowledgements) goes to the producer and what
that answers and streams goes back, byte for byte. Only ADD_STREAM and CLOSE_STREAM are the
manager's own: it puts them between two frames, and their replies go no further.

Rules
- Whole frames are handed on, never re-encoded; what is not whole yet is held, up to one frame.
- A reply is our own if its opcode and opaque are those of a request of ours on that side; any other
  frame passes.
- A frame nobody here understands passes too: judging it is the other end's business. Only a header
  that is no header ends the proxy, for nothing behind it can be found.
- At most `QUEUE_SIZE_MAX` bytes wait for a side before the other side is no longer read.
- A stream is closed at the consumer first, then at the producer: the consumer drops what still
  comes.
- A stream that the consumer closes by itself, because its copy was changed by others, is told as
  lost when the producer has answered: from then on it accepts a new one.
- The end that a producer still sends for a stream that was closed, by whomever, is not told: it may
  come behind the beginning of the next.
- A stream that the producer has and the consumer refused is closed at the producer before the
  refusal is told: it would refuse every later request for the vbucket with KEY_EEXISTS.

Spec: docs/protocol.md, "Takeover".

Imports: errors, wire, cluster.header_walk.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from headrace.cluster.header_walk import NOTABLE_MAX, VBUCKETS, walk
from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire import messages as m
from headrace.wire.codec import decode, encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import BODY_SIZE_MAX, HEADER_SIZE, body_lengths, cut
from headrace.wire.message import ErrorReply
from headrace.wire.opcodes import Magic, Opcode, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.wire.frame import Frame
    from headrace.wire.message import Message

QUEUE_SIZE_MAX: Final = 4 << 20
PLAIN_MARKER: Final = Struct(">QQI")
PLAIN_MARKER_DIALECTS: Final = frozenset({Dialect.DCP_3, Dialect.DCP_5, Dialect.DCP_7})
"""Dialects in which a marker with 20 bytes of extras is start, end and flags."""
OWN_OPAQUE_FIRST: Final = 0x4D00_0000
OWN_MAX: Final = 2 * VBUCKETS
STREAMS_MAX: Final = 4 * VBUCKETS
"""Streams remembered by their opaque; a consumer node numbers them upwards."""


class Side(IntEnum):
    """One of the two nodes."""

    PRODUCER = 0
    CONSUMER = 1

    @property
    def other(self) -> Side:
        """The node across."""
        return Side.CONSUMER if self is Side.PRODUCER else Side.PRODUCER


# -- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyEvent:
    """Something that went by, or the answer to a request of ours."""

    vbucket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAdded(ProxyEvent):
    """The consumer node has its stream; ADD_STREAM is answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRefused(ProxyEvent):
    """ADD_STREAM was refused; ``text`` is a node's word for it."""

    status: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamClosed(ProxyEvent):
    """The stream is closed at both ends, or was not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAsked(ProxyEvent):
    """The consumer node asks the producer node for a stream from this seqno."""

    start_seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RolledBack(ProxyEvent):
    """The producer node told the consumer node to go back to this seqno."""

    seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerSeen(ProxyEvent):
    """A snapshot was announced."""

    start_seqno: int
    end_seqno: int
    flags: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerAcknowledged(ProxyEvent):
    """The consumer node has applied the snapshot a marker announced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSent(ProxyEvent):
    """A takeover's SET_VBUCKET_STATE passed, in the released numbering."""

    state: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAnswered(ProxyEvent):
    """The consumer node answered SET_VBUCKET_STATE."""

    state: int
    status: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnded(ProxyEvent):
    """The producer node ended the stream; 0 is "finished"."""

    reason: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLost(ProxyEvent):
    """The consumer node closed its stream at the producer node: its copy was changed by others."""


@dataclass(frozen=True, slots=True)
class _Own:
    """A request of ours that waits for its reply."""

    opcode: int
    vbucket: int
    refused: StreamRefused | None = None
    """Told, instead of the closing, when what a refusal left at the producer is closed."""


class Proxy:
    """Both byte streams, and what is known of the streams inside them."""

    def __init__(self, *, dialect: Dialect = Dialect.DCP_7) -> None:
        """Stand between two connections that are open; ``dialect`` is the one both speak."""
        self.seqnos = np.zeros(VBUCKETS, np.uint64)
        """Vbucket -> seqno of the last item that passed."""
        self.items = np.zeros(VBUCKETS, np.uint64)
        """Vbucket -> how many items passed."""
        self.dialect = dialect
        self.passed = {Side.PRODUCER: 0, Side.CONSUMER: 0}
        """Bytes handed on from each side."""
        self._held = {Side.PRODUCER: bytearray(), Side.CONSUMER: bytearray()}
        self._wanted = {Side.PRODUCER: HEADER_SIZE, Side.CONSUMER: HEADER_SIZE}
        self._output: dict[Side, list[bytes]] = {Side.PRODUCER: [], Side.CONSUMER: []}
        self._queued = {Side.PRODUCER: 0, Side.CONSUMER: 0}
        self._own: dict[tuple[Side, int], _Own] = {}
        self._opaque = OWN_OPAQUE_FIRST
        self._streams: dict[int, int] = {}
        self._newest: dict[int, int] = {}
        """Vbucket -> opaque of the stream that was last asked for."""
        self._granted: set[int] = set()
        """Vbuckets the producer streams by its last answer; whether the consumer does is open."""
        self._closing: dict[int, int] = {}
        """Opaque of a consumer's own CLOSE_STREAM -> its vbucket, until it is answered."""
        self._given_up: dict[int, None] = {}
        """Opaques of streams that were closed before they ended, oldest first."""
        self._states: dict[int, int] = {}
        self._events: list[ProxyEvent] = []
        self._notable = np.zeros(NOTABLE_MAX, np.int64)
        self._found = np.zeros(3, np.int64)
        self._broken: RemoteProtocolError | None = None
        self._has_plain_markers = dialect in PLAIN_MARKER_DIALECTS

    # -- bytes -----------------------------------------------------------------------------------

    def receive(self, side: Side, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes from one side; whole frames are queued for the other."""
        if self._broken is not None:
            raise self._broken
        view = memoryview(data)
        held = self._held[side]
        # Only the frame that was begun is put together; what follows is read where it lies.
        while held:
            missing = self._wanted[side] - len(held)
            held += view[:missing]
            view = view[missing:]
            if len(held) < self._wanted[side]:
                return
            self._held[side] = bytearray()
            self._pass(side, memoryview(held))
            held = self._held[side]
        if view:
            self._pass(side, view)

    def _pass(self, side: Side, view: memoryview) -> None:
        """Hand on every whole frame; hold the rest."""
        array = np.frombuffer(view, np.uint8)
        at, count = 0, NOTABLE_MAX
        while count == NOTABLE_MAX:
            walk(array[at:], self.seqnos, self.items, self._notable, self._found)
            end, count, wrong = self._found.tolist()
            kept_from = at
            for place in self._notable[:count].tolist():
                start = at + place
                if self._look(side, view, start):
                    self._queue(side.other, view[kept_from:start])
                    kept_from = start + HEADER_SIZE + body_lengths(view, start)[3]
            self._queue(side.other, view[kept_from : at + end])
            at += end
            if wrong >= 0:
                self._break(side, view[at : at + HEADER_SIZE])
        if at < len(view):
            self._hold(side, bytearray(view[at:]))

    def _hold(self, side: Side, rest: bytearray) -> None:
        self._held[side] = rest
        self._wanted[side] = HEADER_SIZE
        if len(rest) >= HEADER_SIZE:
            self._wanted[side] += body_lengths(rest)[3]

    def _break(self, side: Side, header: memoryview) -> None:
        who = side.name.lower()
        self._broken = RemoteProtocolError(
            f"the {who} node sent {bytes(header).hex()}, which is no header; wanted is one of the "
            f"six magics and a body of at most {BODY_SIZE_MAX} bytes that holds its parts",
            fatal=True,
        )
        raise self._broken

    def _queue(self, side: Side, data: memoryview) -> None:
        if data:
            self._output[side].append(bytes(data))
            self._queued[side] += len(data)
            self.passed[side.other] += len(data)

    def take_output(self, side: Side) -> list[bytes]:
        """What is to be sent to a side, in order; it is forgotten here."""
        taken, self._output[side] = self._output[side], []
        self._queued[side] = 0
        return taken

    def may_read(self, side: Side) -> bool:
        """Whether a side may be read: what it sent before has left us."""
        return self._queued[side.other] < QUEUE_SIZE_MAX

    def queued(self, side: Side) -> int:
        """Bytes that wait for a side."""
        return self._queued[side]

    # -- requests of ours ------------------------------------------------------------------------

    def add_stream(self, vbucket: int, flags: int = 0) -> None:
        """Tell the consumer node to ask for the vbucket's stream."""
        self._ask(Side.CONSUMER, m.AddStream(vbucket=vbucket, opaque=self._number(), flags=flags))

    def close_stream(self, vbucket: int) -> None:
        """Close the vbucket's stream at the consumer node, then at the producer node."""
        self._ask(Side.CONSUMER, m.CloseStream(vbucket=vbucket, opaque=self._number()))

    def _number(self) -> int:
        self._opaque += 1
        if self._opaque >= OWN_OPAQUE_FIRST + OWN_MAX:
            self._opaque = OWN_OPAQUE_FIRST
        return self._opaque

    def _ask(
        self,
        side: Side,
        request: m.AddStream | m.CloseStream,
        refused: StreamRefused | None = None,
    ) -> None:
        if len(self._own) >= OWN_MAX:
            raise LocalProtocolError(f"{len(self._own)} requests without reply, limit {OWN_MAX}")
        opcode = OPCODES[type(request)]
        self._own[side, request.opaque] = _Own(opcode, request.vbucket, refused)
        self._output[side].append(encode(request, self.dialect))
        self._queued[side] += len(self._output[side][-1])

    # -- what goes by ----------------------------------------------------------------------------

    def take_events(self) -> list[ProxyEvent]:
        """What happened since the last call."""
        taken, self._events = self._events, []
        return taken

    def _look(self, side: Side, view: memoryview, at: int) -> bool:
        """Watch a notable frame; True when it is the reply to a request of ours."""
        opcode = view[at + 1]
        if opcode not in WATCHED:
            return False
        if opcode == Opcode.SNAPSHOT_MARKER and self._is_plain_marker(view, at):
            # The most frequent by far: read without an object for the frame.
            vbucket = (view[at + 6] << 8) | view[at + 7]
            start, end, flags = PLAIN_MARKER.unpack_from(view, at + HEADER_SIZE)
            self._events.append(
                MarkerSeen(vbucket=vbucket, start_seqno=start, end_seqno=end, flags=flags)
            )
            return False
        frame = cut(view, at, body_lengths(view, at))
        own = self._own.get((side, frame.opaque)) if frame.is_reply else None
        if own is not None and own.opcode == opcode:
            del self._own[side, frame.opaque]
            self.ANSWERED[side, own.opcode](self, own, self._understood(frame))
            return True
        watch = self.WATCH.get((side, opcode, frame.is_reply))
        if watch is not None:
            watch(self, frame)
        return False

    def _is_plain_marker(self, view: memoryview, at: int) -> bool:
        return (
            self._has_plain_markers
            and view[at] == Magic.REQUEST
            and view[at + 4] == PLAIN_MARKER.size
        )

    def _understood(self, frame: Frame) -> Message | None:
        try:
            return decode(frame, self.dialect)
        except RemoteProtocolError:
            return None

    def _added(self, own: _Own, reply: Message | None) -> None:
        is_granted = own.vbucket in self._granted
        self._granted.discard(own.vbucket)
        if isinstance(reply, m.AddStreamReply):
            self._events.append(StreamAdded(vbucket=own.vbucket))
            return
        status = reply.status if isinstance(reply, ErrorReply) else Status.EINTERNAL
        text = _status_text(status)
        refused = StreamRefused(vbucket=own.vbucket, status=status, text=text)
        if is_granted:
            # Nothing the consumer asks from now on can overtake this.
            self._close_at_producer(own.vbucket, refused)
        else:
            self._events.append(refused)

    def _closed_at_consumer(self, own: _Own, reply: Message | None) -> None:
        del reply  # closed, or it was not there: the same to us
        self._close_at_producer(own.vbucket)

    def _close_at_producer(self, vbucket: int, refused: StreamRefused | None = None) -> None:
        self._give_up(vbucket)
        request = m.CloseStream(vbucket=vbucket, opaque=self._number())
        self._ask(Side.PRODUCER, request, refused)

    def _closed_at_producer(self, own: _Own, reply: Message | None) -> None:
        del reply
        self._events.append(own.refused or StreamClosed(vbucket=own.vbucket))

    def _watch_request(self, frame: Frame) -> None:
        message = self._understood(frame)
        if isinstance(message, m.StreamRequest):
            _make_room(self._streams)
            self._streams[frame.opaque] = frame.vbucket
            self._newest[frame.vbucket] = frame.opaque
            self._events.append(StreamAsked(vbucket=frame.vbucket, start_seqno=message.start_seqno))

    def _watch_answer(self, frame: Frame) -> None:
        message = self._understood(frame)
        vbucket = self._streams.get(frame.opaque)
        if vbucket is None:
            return
        if isinstance(message, m.RollbackReply):
            self._events.append(RolledBack(vbucket=vbucket, seqno=message.rollback_seqno))
        if isinstance(message, m.StreamRequestReply) or frame.status == Status.KEY_EEXISTS:
            self._granted.add(vbucket)
        else:
            self._granted.discard(vbucket)

    def _watch_marker(self, frame: Frame) -> None:
        message = self._understood(frame)
        if isinstance(message, m.SnapshotMarker):
            self._events.append(
                MarkerSeen(
                    vbucket=frame.vbucket,
                    start_seqno=message.start_seqno or 0,
                    end_seqno=message.end_seqno or 0,
                    flags=message.flags or 0,
                )
            )

    def _watch_marker_reply(self, frame: Frame) -> None:
        vbucket = self._streams.get(frame.opaque)
        if vbucket is not None:
            self._events.append(MarkerAcknowledged(vbucket=vbucket))

    def _watch_state(self, frame: Frame) -> None:
        message = self._understood(frame)
        if isinstance(message, m.SetVBucketState):
            self._states[frame.opaque] = message.state
            self._events.append(StateSent(vbucket=frame.vbucket, state=message.state))

    def _watch_state_reply(self, frame: Frame) -> None:
        vbucket = self._streams.get(frame.opaque)
        state = self._states.pop(frame.opaque, None)
        if vbucket is not None and state is not None:
            self._events.append(StateAnswered(vbucket=vbucket, state=state, status=frame.status))

    def _give_up(self, vbucket: int) -> None:
        stream = self._newest.pop(vbucket, None)
        if stream is not None:
            _make_room(self._given_up)
            self._given_up[stream] = None

    def _watch_close(self, frame: Frame) -> None:
        _make_room(self._closing)
        self._closing[frame.opaque] = frame.vbucket
        self._give_up(frame.vbucket)

    def _watch_close_reply(self, frame: Frame) -> None:
        vbucket = self._closing.pop(frame.opaque, None)
        if vbucket is not None:
            self._events.append(StreamLost(vbucket=vbucket))

    def _watch_end(self, frame: Frame) -> None:
        message = self._understood(frame)
        if isinstance(message, m.StreamEnd):
            self._streams.pop(frame.opaque, None)
            if frame.opaque in self._given_up:
                del self._given_up[frame.opaque]
                return
            self._events.append(StreamEnded(vbucket=frame.vbucket, reason=message.reason))

    # -- the tables --------------------------------------------------------------------------------

    ANSWERED: ClassVar[dict[tuple[Side, int], Callable[[Proxy, _Own, Message | None], None]]] = {
        (Side.CONSUMER, Opcode.ADD_STREAM): _added,
        (Side.CONSUMER, Opcode.CLOSE_STREAM): _closed_at_consumer,
        (Side.PRODUCER, Opcode.CLOSE_STREAM): _closed_at_producer,
    }
    """Who answered which of our requests -> what that means."""

    WATCH: ClassVar[dict[tuple[Side, int, bool], Callable[[Proxy, Frame], None]]] = {
        (Side.CONSUMER, Opcode.STREAM_REQ, False): _watch_request,
        (Side.PRODUCER, Opcode.STREAM_REQ, True): _watch_answer,
        (Side.PRODUCER, Opcode.SNAPSHOT_MARKER, False): _watch_marker,
        (Side.CONSUMER, Opcode.SNAPSHOT_MARKER, True): _watch_marker_reply,
        (Side.PRODUCER, Opcode.SET_VBUCKET_STATE, False): _watch_state,
        (Side.CONSUMER, Opcode.SET_VBUCKET_STATE, True): _watch_state_reply,
        (Side.PRODUCER, Opcode.STREAM_END, False): _watch_end,
        (Side.CONSUMER, Opcode.CLOSE_STREAM, False): _watch_close,
        (Side.PRODUCER, Opcode.CLOSE_STREAM, True): _watch_close_reply,
    }
    """Who sent which frame, and whether it is a reply -> what it tells."""


OPCODES: Final[dict[type[m.AddStream | m.CloseStream], int]] = {
    m.AddStream: Opcode.ADD_STREAM,
    m.CloseStream: Opcode.CLOSE_STREAM,
}

WATCHED: Final = frozenset(opcode for _, opcode, _ in Proxy.WATCH) | frozenset(OPCODES.values())


def _make_room(table: dict[int, int] | dict[int, None]) -> None:
    if len(table) >= STREAMS_MAX:
        del table[next(iter(table))]


def _status_text(status: int) -> str:
    try:
        return f"{Status(status).name} (0x{status:02x})"
    except ValueError:
        return f"0x{status:02x}"
