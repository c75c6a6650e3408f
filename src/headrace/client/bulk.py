"""Two roads from a receive buffer to rows and events, both through one ConsumerConnection.

The bulk road scans the buffer straight into Arrow (`headrace.columns`): items become rows of a
batch; the connection is told each run of rows by its first and last seqno, each marker by its
numbers, and is given every other frame by its place in the buffer. The object road gives
every frame to the connection and gets every change as an event.

Both give pieces in the order of the wire: `Rows`, `Whole` (a vbucket stands at a boundary, with the
position to keep) and the connection's events.

Rules
- Rows of a stream that is not open are dropped; their bytes are given back with the others.
- Rows of a run rise strictly, except in an out-of-order snapshot, and resolve earlier prepares.
- After a failure the road takes nothing more; what came before it is good and was told.

Imports: columns, errors, history, protocol, wire.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headrace.columns.block import BlockPool
from headrace.columns.scan import Scanner, can_receive
from headrace.columns.schema import SCHEMA
from headrace.columns.table import Reason, Step
from headrace.errors import HeadraceError, RemoteProtocolError
from headrace.protocol import events as e
from headrace.protocol.flow import counted_size
from headrace.wire.frame import BODY_SIZE_MAX, HEADER_SIZE, Frame, body_lengths, cut
from headrace.wire.opcodes import Feature, Magic

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from headrace.columns.scan import ScanResult
    from headrace.history import ResumeToken, SnapshotRange
    from headrace.protocol.consumer import ConsumerConnection
    from headrace.protocol.talk import Position

POOL: Final = BlockPool()
"""Memory of batches, shared by all readers: what one gives back need not be made again."""
_VBUCKET: Final = SCHEMA.get_field_index("vbucket")
_SEQNO: Final = SCHEMA.get_field_index("seqno")
_PREPARED: Final = SCHEMA.get_field_index("prepared_seqno")
_REQUESTS: Final = frozenset({int(Magic.REQUEST), int(Magic.ALT_REQUEST)})
_MAGICS: Final = frozenset(int(magic) for magic in Magic)
_CAN_RECEIVE: Final = can_receive()


@dataclass(slots=True)
class Rows:
    """Rows ``start`` to ``stop`` of a batch: consecutive items of one stream.

    ``cas`` is that of the last row, ``size`` about what the rows take. ``token`` is the stream's
    behind the last row, and ``span`` the snapshot in which the token moved; None: it waits for the
    end of an out-of-order or a draft's snapshot.
    """

    batch: pa.RecordBatch
    start: int
    stop: int
    vbucket: int
    cas: int = 0
    size: int = 0
    token: ResumeToken | None = None
    span: SnapshotRange | None = None


@dataclass(slots=True)
class Whole:
    """Every row of the vbucket so far belongs to a complete snapshot."""

    vbucket: int
    position: Position


Piece: TypeAlias = Rows | Whole | e.Event


@dataclass(slots=True)
class Taken:
    """What came of a buffer; ``size`` bytes of rows are to be given back when they are done with.

    (Events that carry a size of their own are not in it.)
    """

    consumed: int
    pieces: list[Piece] = field(default_factory=list)
    size: int = 0


class ObjectRoad:
    """Frame by frame through the connection."""

    def __init__(self, connection: ConsumerConnection) -> None:
        """Stand before the first byte."""
        self.connection = connection
        self.failure: HeadraceError | None = None

    def take(self, view: memoryview, *, now: float) -> Taken:
        """Take the whole frames at the front of ``view``."""
        taken = Taken(0)
        try:
            while (frame := _frame_at(view, taken.consumed)) is not None:
                taken.consumed += frame.size
                self._give(frame, taken.pieces, now)
        except HeadraceError as error:
            self.failure = error
        self.failure = self.failure or self.connection.failure
        return taken

    def _give(self, frame: Frame, pieces: list[Piece], now: float) -> None:
        told = self.connection.receive_frame(frame, now=now)
        for event in told:
            pieces.append(event)
            if isinstance(event, e.SnapshotCompleted):
                pieces.append(_whole(self.connection, event))


class BulkRoad:
    """Items into rows, everything else through the connection."""

    def __init__(
        self, connection: ConsumerConnection, *, inflate: bool = True, objects: bool = False
    ) -> None:
        """Stand before the first byte; the scanner is made when the dialect is settled.

        ``objects``: a key that names no collection makes no row and comes as an event, for an owner
        who makes changes of both.
        """
        self.connection = connection
        self.failure: HeadraceError | None = None
        self._inflate = inflate
        self._objects = objects
        self._scanner: Scanner | None = None

    def take(self, view: memoryview, *, now: float) -> Taken:
        """Take the whole frames at the front of ``view``, at most a scanner's window of them."""
        taken = Taken(0)
        try:
            if self._scanner is None:
                self._take_handshake(view, taken, now)
            else:
                self._scan(self._scanner, view, taken, now)
        except HeadraceError as error:
            self.failure = error
        self.failure = self.failure or self.connection.failure
        return taken

    def _take_handshake(self, view: memoryview, taken: Taken, now: float) -> None:
        """Frame by frame until the handshake is over: only then it is known how to scan."""
        while self.connection.connected is None:
            frame = _frame_at(view, taken.consumed)
            if frame is None:
                return
            taken.consumed += frame.size
            taken.pieces += self.connection.receive_frame(frame, now=now)
        connected = self.connection.connected
        settings = self.connection.settings
        self._scanner = Scanner(
            connected.dialect,
            collections=Feature.COLLECTIONS in connected.features,
            stream_ids=settings.stream_ids,
            inflate=self._inflate and Feature.SNAPPY in connected.features,
            steps=True,
            pool=POOL,
        )

    # -- straight from a socket -----------------------------------------------------------------

    @property
    def can_receive(self) -> bool:
        """Whether `begin` may be called: the handshake is over, and this machine can do it."""
        return self._scanner is not None and self.failure is None and _CAN_RECEIVE

    def begin(self, memory: NDArray[np.uint8], at: int, filled: int) -> None:
        """Begin to take frames as they are received, after those at ``at`` to ``filled``."""
        assert self._scanner is not None
        self._scanner.begin(memory, at, filled)

    def receive(self, descriptor: int, limit: int) -> tuple[int, int | None]:
        """Receive and scan up to ``limit`` bytes since `begin`: how many came so far, and what the
        socket said at last (`Scanner.receive`)."""
        assert self._scanner is not None
        said = self._scanner.receive(descriptor, limit)
        return self._scanner.received, said

    def finish(self, view: memoryview, *, now: float) -> tuple[Taken, int, int]:
        """Take what was received since `begin`; ``view`` is of the whole memory.

        Also told: from where to where bytes are left in it.
        """
        assert self._scanner is not None
        result, at, filled = self._scanner.finish()
        taken = Taken(result.consumed)
        try:
            self._take_result(result, view, taken, now)
        except HeadraceError as error:
            self.failure = error
        self.failure = self.failure or self.connection.failure
        return taken, at, filled

    # -- rows and frames ------------------------------------------------------------------------

    def _scan(self, scanner: Scanner, view: memoryview, taken: Taken, now: float) -> None:
        result = scanner.scan(view)
        taken.consumed = result.consumed
        self._take_result(result, view, taken, now)

    def _take_result(self, result: ScanResult, view: memoryview, taken: Taken, now: float) -> None:
        if not result.consumed and result.error is None:
            return
        others = [_Other(view, *one) for one in result.others.tolist()]
        taken.size = result.counted - result.marked
        for other in others:
            taken.size -= other.counted
        window = self.connection.window
        window.received(taken.size + result.marked)
        if result.marked:
            window.processed(result.marked)
        done = 0
        for step in result.steps:
            if step[Step.OTHERS] > done:
                self._take_others(others[done : step[Step.OTHERS]], result, taken, now)
                done = step[Step.OTHERS]
            self._take_step(step, result, taken.pieces, now)
        if done < len(others):
            self._take_others(others[done:], result, taken, now)
        if result.broken_at is not None:
            raise _broken_rule(result)
        if result.error is not None:
            raise result.error

    def _take_others(
        self, others: list[_Other], result: ScanResult, taken: Taken, now: float
    ) -> None:
        for other in others:
            if result.broken_at is not None and other.row > result.broken_at:
                break
            reason, frame = other.reason, other.frame
            if reason == Reason.STREAMS or (reason == Reason.PREFIX and not self._objects):
                raise RemoteProtocolError(f"{frame.name} of a stream or collection nobody named")
            self._take_frame(frame, taken.pieces, now)

    def _take_frame(self, frame: Frame, pieces: list[Piece], now: float) -> None:
        for event in self.connection.receive_frame(frame, now=now):
            if isinstance(event, e.SnapshotCompleted):
                pieces.append(_whole(self.connection, event))
            else:
                pieces.append(event)

    def _take_step(
        self, step: list[Any], result: ScanResult, pieces: list[Piece], now: float
    ) -> None:
        """Take a run of rows or a marker. Few calls: it is done with cold caches."""
        _, start, stop, opaque, vbucket, first, last, said, purge, is_purge_told = step
        connection = self.connection
        if start == stop:
            purge_seqno = purge if is_purge_told else None
            started = connection.announce(
                opaque, vbucket, first, last, flags=said, purge_seqno=purge_seqno, now=now
            )
            if started is not None:
                pieces.append(started)
            return
        progress = connection.advance(opaque, vbucket, first, last, now=now)
        # Only now: rows that the stream refuses would come again.
        if progress is None:
            return
        batch = result.batch
        size = result.size * (stop - start) // batch.num_rows
        token, span, completed = progress.token, progress.span, progress.completed
        pieces.append(Rows(batch, start, stop, vbucket, said, size, token, span))
        if completed is not None:
            pieces.append(Whole(vbucket, completed))


class _Other:
    """A frame that made no row."""

    __slots__ = ("counted", "frame", "reason", "row")

    def __init__(self, view: memoryview, at: int, size: int, reason: int, row: int) -> None:
        self.frame = frame = cut(view, at, body_lengths(view, at))
        self.reason = reason
        self.row = row
        self.counted = counted_size(frame.opcode, size) if frame.magic in _REQUESTS else 0


def _broken_rule(result: ScanResult) -> RemoteProtocolError:
    """What is wrong with the row at which the runs end."""
    row, batch = result.broken_at, result.batch
    assert row is not None
    seqno, vbucket = batch.column(_SEQNO)[row].as_py(), batch.column(_VBUCKET)[row].as_py()
    prepared = batch.column(_PREPARED)[row].as_py()
    if prepared is not None and prepared >= seqno:
        return RemoteProtocolError(
            f"item at seqno {seqno} of vbucket {vbucket} of a prepare at {prepared}"
        )
    return RemoteProtocolError(
        f"item with seqno {seqno} of vbucket {vbucket}, must be above "
        f"{batch.column(_SEQNO)[row - 1].as_py()}",
        status=0x22,
    )


def _whole(connection: ConsumerConnection, event: e.SnapshotCompleted) -> Whole:
    return Whole(event.vbucket, connection.position(event.vbucket, event.stream_id))


def holds_frame(view: memoryview) -> bool:
    """Whether a whole frame stands at the front, or a header that cannot be one."""
    if len(view) < HEADER_SIZE:
        return len(view) > 0 and view[0] not in _MAGICS
    return len(view) >= HEADER_SIZE + int.from_bytes(view[8:12], "big") or view[0] not in _MAGICS


def _frame_at(view: memoryview, at: int) -> Frame | None:
    """The whole frame at a place, None while it is not whole; fatal errors as `FrameBuffer`."""
    available = len(view) - at
    if available <= 0:
        return None
    if available < HEADER_SIZE:
        if view[at] not in _MAGICS:
            body_lengths(view, at)
        return None
    parts = body_lengths(view, at)
    framing, extras, key, body = parts
    if body > BODY_SIZE_MAX or framing + extras + key > body:
        raise RemoteProtocolError(
            f"frame with parts of {framing}+{extras}+{key} bytes in a body of {body}, limit "
            f"{BODY_SIZE_MAX}",
            fatal=True,
        )
    if available < HEADER_SIZE + body:
        return None
    return cut(view, at, parts)
