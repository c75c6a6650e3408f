"""TCP segments -> the bytes of each direction, in order, with every gap named.

Each direction keeps one number: the sequence number it waits for. A segment before it is a
retransmission and only its new bytes count; a segment behind it waits. A hole is closed by the
segment that fills it or is declared a gap: when the other end has acknowledged bytes behind the
hole and `GAP_PATIENCE` further segments have not brought them (the capture lost them, not the
network), when more waits than the limits allow, when the connection ends, or when the capture does.

Rules
- Sequence numbers are 32 bits and wrap: only their distance, as a signed number, is ever compared.
- Where segments overlap, the bytes that were seen first stay.
- A SYN with another initial sequence number on a known port pair is a new connection.
- A segment without SYN and without payload never begins a connection.
- Memory: `WAITING_BYTES_MAX` and `WAITING_SEGMENTS_MAX` per direction, `CONNECTIONS_MAX`
  connections; the connection that was silent longest is flushed and forgotten first.

Imports: errors, capture.conversation, capture.guess, capture.packets.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.capture.conversation import Connection, Direction, Piece, RoleEvidence
from headrace.capture.guess import likely_sender
from headrace.capture.packets import Packet, Segment, Skip, TcpFlag, segment_of
from headrace.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.capture.conversation import Endpoint

GAP_PATIENCE: Final = 64
WAITING_BYTES_MAX: Final = 32 << 20
WAITING_SEGMENTS_MAX: Final = 16_384
CONNECTIONS_MAX: Final = 4096
SERVER_PORTS: Final = frozenset({11210, 11207, 11209})
"""Ports that Couchbase servers listen on: plain, TLS, and the old internal one."""

_SEQUENCE_MASK: Final = 0xFFFF_FFFF
_HALF: Final = 0x8000_0000


def distance(sequence: int, origin: int) -> int:
    """How far ``sequence`` lies behind ``origin``, as a signed number that survives wrap-around."""
    delta = (sequence - origin) & _SEQUENCE_MASK
    return delta - (_SEQUENCE_MASK + 1) if delta >= _HALF else delta


@dataclass(slots=True)
class Tally:
    """What was counted on the way; read it when the pieces have run out."""

    packets: int = 0
    segments: int = 0
    connections: int = 0
    retransmitted_bytes: int = 0
    gaps: int = 0
    missing_bytes: int = 0
    forgotten_connections: int = 0
    skipped: Counter[Skip] = field(default_factory=Counter)


@dataclass(slots=True)
class _Half:
    """One direction: what it waits for, and what came too early."""

    expected: int | None = None  # sequence number of the next byte
    initial: int | None = None  # sequence number of the SYN
    offset: int = 0
    waiting: list[tuple[int, int, bytes, int | None]] = field(default_factory=list)
    waiting_bytes: int = 0
    arrivals: int = 0  # makes the order of equal offsets the order of arrival
    ended_at: int | None = None  # offset of the FIN
    impatience: int = 0
    acknowledged: int = 0  # offset up to which the other end has confirmed


@dataclass(slots=True)
class _State:
    connection: Connection
    halves: dict[Direction, _Half]
    finished: bool = False


class Reassembler:
    """Segments in, pieces out; `flush` at the end gives what was still waiting."""

    def __init__(self, *, port: int | None = None) -> None:
        """Take all connections, or with ``port`` only those that have it on one side."""
        self.tally = Tally()
        self._port = port
        self._states: OrderedDict[tuple[Endpoint, Endpoint], _State] = OrderedDict()

    def feed(self, segment: Segment) -> Iterator[Piece]:
        """Yield the pieces that this segment completes."""
        self.tally.segments += 1
        if self._port is not None and self._port not in (
            segment.source.port,
            segment.destination.port,
        ):
            return
        state = self._states.get(_key(segment))
        if state is not None and _begins_anew(state, segment):
            yield from self._end(state)
            state = None
        if state is None:
            if not segment.payload_size and not segment.flags & TcpFlag.SYN:
                return
            yield from self._make_room()
            state = self._begin(segment)
        self._states.move_to_end(_key(segment))
        yield from self._take(state, segment)

    def flush(self) -> Iterator[Piece]:
        """Yield what still waits behind holes, oldest first, and forget every connection."""
        left = [piece for state in self._states.values() for piece in self._end(state)]
        self._states.clear()
        yield from sorted(left, key=lambda piece: piece.timestamp_ns or 0)

    def _make_room(self) -> Iterator[Piece]:
        while len(self._states) >= CONNECTIONS_MAX:
            _, state = self._states.popitem(last=False)
            self.tally.forgotten_connections += not state.finished
            yield from self._end(state)

    def _begin(self, segment: Segment) -> _State:
        client, server, evidence = _roles(segment, self._port)
        self.tally.connections += 1
        connection = Connection(
            number=self.tally.connections,
            client=client,
            server=server,
            evidence=evidence,
            complete_start=bool(segment.flags & TcpFlag.SYN),
        )
        halves = {Direction.CLIENT_TO_SERVER: _Half(), Direction.SERVER_TO_CLIENT: _Half()}
        state = self._states[_key(segment)] = _State(connection, halves)
        return state

    def _take(self, state: _State, segment: Segment) -> Iterator[Piece]:
        direction = _direction(state, segment)
        half, other = state.halves[direction], state.halves[direction.reverse]
        if segment.flags & TcpFlag.ACK and other.expected is not None:
            acknowledged = other.offset + distance(segment.acknowledgement, other.expected)
            other.acknowledged = max(other.acknowledged, acknowledged)
        sequence = segment.sequence
        if segment.flags & TcpFlag.SYN:
            half.initial, sequence = segment.sequence, (segment.sequence + 1) & _SEQUENCE_MASK
            if (
                segment.flags & TcpFlag.ACK and other.expected is None
            ):  # the SYN itself was not seen
                other.expected = segment.acknowledgement
        if half.expected is None and (segment.payload_size or segment.flags & TcpFlag.SYN):
            half.expected = sequence
        if half.expected is None:
            return
        at = half.offset + distance(sequence, half.expected)
        if segment.payload:
            yield from self._store(state, direction, at, segment)
        if segment.flags & (TcpFlag.FIN | TcpFlag.RST):
            self._note_end(state, half, at + segment.payload_size, segment.flags)
        for way in (direction, direction.reverse):
            if self._is_lost(state.halves[way]):
                yield from self._jump(state, way)
        if state.finished:
            yield from self._end(state)

    def _note_end(self, state: _State, half: _Half, end: int, flags: TcpFlag) -> None:
        if flags & TcpFlag.FIN:
            half.ended_at = end
        ends = [each.ended_at for each in state.halves.values()]
        done = all(
            each.ended_at is not None and each.offset >= each.ended_at
            for each in state.halves.values()
        )
        state.finished = bool(flags & TcpFlag.RST) or (None not in ends and done)

    def _store(
        self, state: _State, direction: Direction, at: int, segment: Segment
    ) -> Iterator[Piece]:
        half = state.halves[direction]
        if at > half.offset:
            half.arrivals += 1
            insort(half.waiting, (at, half.arrivals, segment.payload, segment.timestamp_ns))
            half.waiting_bytes += len(segment.payload)
            while (
                half.waiting_bytes > WAITING_BYTES_MAX or len(half.waiting) > WAITING_SEGMENTS_MAX
            ):
                yield from self._jump(state, direction)
            return
        yield from self._deliver(state, direction, at, segment.payload, segment.timestamp_ns)
        yield from self._drain(state, direction, segment.timestamp_ns)

    def _deliver(
        self, state: _State, direction: Direction, at: int, data: bytes, time: int | None
    ) -> Iterator[Piece]:
        """Hand on what is new in ``data``, which begins at or before the expected byte."""
        half = state.halves[direction]
        known = half.offset - at
        self.tally.retransmitted_bytes += min(known, len(data))
        if known >= len(data):
            return
        fresh = data[known:]
        yield Piece(state.connection, direction, half.offset, fresh, time)
        _advance(half, len(fresh))

    def _drain(self, state: _State, direction: Direction, time: int | None) -> Iterator[Piece]:
        """Hand on what waited and now fits; it became readable at ``time``."""
        half = state.halves[direction]
        taken = 0
        while taken < len(half.waiting) and half.waiting[taken][0] <= half.offset:
            at, _, data, _ = half.waiting[taken]
            half.waiting_bytes -= len(data)
            taken += 1
            yield from self._deliver(state, direction, at, data, time)
        del half.waiting[:taken]
        half.impatience = 0

    def _is_lost(self, half: _Half) -> bool:
        """True when the other end has the hole's bytes and the capture had time to show them."""
        if not half.waiting or half.acknowledged < half.waiting[0][0]:
            return False
        half.impatience += 1
        return half.impatience > GAP_PATIENCE

    def _jump(self, state: _State, direction: Direction) -> Iterator[Piece]:
        """Declare the first hole a gap and go on behind it."""
        half = state.halves[direction]
        if not half.waiting:
            return
        at, _, _, time = half.waiting[0]
        yield self._gap(state, direction, at - half.offset, time)
        yield from self._drain(state, direction, time)

    def _gap(self, state: _State, direction: Direction, missing: int, time: int | None) -> Piece:
        half = state.halves[direction]
        _advance(half, missing)
        self.tally.gaps += 1
        self.tally.missing_bytes += missing
        return Piece(state.connection, direction, half.offset, b"", time, missing=missing)

    def _end(self, state: _State) -> Iterator[Piece]:
        """Hand on all that waits in both directions, and the gap before an early FIN."""
        for direction, half in state.halves.items():
            while half.waiting:
                yield from self._jump(state, direction)
            if half.ended_at is not None and half.ended_at > half.offset:
                yield self._gap(state, direction, half.ended_at - half.offset, None)


def _key(segment: Segment) -> tuple[Endpoint, Endpoint]:
    if segment.source <= segment.destination:
        return segment.source, segment.destination
    return segment.destination, segment.source


def _advance(half: _Half, size: int) -> None:
    assert half.expected is not None
    half.expected = (half.expected + size) & _SEQUENCE_MASK
    half.offset += size


def _direction(state: _State, segment: Segment) -> Direction:
    if segment.source == state.connection.client:
        return Direction.CLIENT_TO_SERVER
    return Direction.SERVER_TO_CLIENT


def _begins_anew(state: _State, segment: Segment) -> bool:
    """True for a SYN that is not the one this connection began with, nor a repetition of it."""
    if not segment.flags & TcpFlag.SYN:
        return False
    half = state.halves[_direction(state, segment)]
    if half.initial is None:
        # The answer to a SYN that was seen; or a SYN on a connection whose own was never seen.
        return half.expected is not None
    return half.initial != segment.sequence


def _roles(segment: Segment, port: int | None) -> tuple[Endpoint, Endpoint, RoleEvidence]:
    """(client, server, how we know), from the first segment of a connection."""
    sender_first = (segment.source, segment.destination)
    sender_last = (segment.destination, segment.source)
    if port is not None and segment.source.port != segment.destination.port:
        ends = sender_last if segment.source.port == port else sender_first
        return *ends, RoleEvidence.CHOSEN_PORT
    if segment.flags & TcpFlag.SYN:
        ends = sender_last if segment.flags & TcpFlag.ACK else sender_first
        return *ends, RoleEvidence.HANDSHAKE
    if (sender := likely_sender(segment.payload)) is not Direction.UNKNOWN:
        ends = sender_first if sender is Direction.CLIENT_TO_SERVER else sender_last
        return *ends, RoleEvidence.FIRST_MESSAGE
    well_known = segment.source.port in SERVER_PORTS
    lower = segment.source.port < segment.destination.port
    if segment.destination.port in SERVER_PORTS:
        well_known = lower = False
    return *(sender_last if well_known or lower else sender_first), RoleEvidence.PORT_NUMBERS


def reassemble(packets: Iterable[Packet], reassembler: Reassembler) -> Iterator[Piece]:
    """Yield the pieces of all packets; damage is raised after what could be read."""
    tally = reassembler.tally
    damage: CaptureError | None = None
    try:
        for packet in packets:
            tally.packets += 1
            segment = segment_of(packet)
            if isinstance(segment, Skip):
                tally.skipped[segment] += 1
            else:
                yield from reassembler.feed(segment)
    except CaptureError as error:
        damage = error
    yield from reassembler.flush()
    if damage is not None:
        raise damage
