"""Two roads from a receive buffer to rows and events, both through one ConsumerConnection.

The bulk road scans the buffer straight into Arrow (`headrace.columns`): items become rows of a
batch, every other frame goes to the connection by its place in the buffer, and each run of rows
between two of them is told to the connection by its first and last seqno. The object road gives
every frame to the connection and gets every change as an event.

Both give pieces in the order of the wire: `Rows`, `Whole` (a vbucket stands at a boundary, with the
position to keep) and the connection's events.

Rules
- Rows of a stream that is not open are dropped; their bytes are given back with the others.
- Rows of a run rise strictly, except in an out-of-order snapshot.
- After a failure the road takes nothing more; what came before it is good and was told.

Imports: columns, errors, history, protocol, wire.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from headrace.columns.block import BlockPool
from headrace.columns.scan import Scanner
from headrace.columns.schema import SCHEMA
from headrace.columns.table import Reason
from headrace.errors import HeadraceError, RemoteProtocolError
from headrace.protocol import events as e
from headrace.protocol.flow import counted_size
from headrace.wire.frame import BODY_SIZE_MAX, HEADER_SIZE, Frame, body_lengths, cut
from headrace.wire.opcodes import Feature, Magic

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from headrace.protocol.consumer import ConsumerConnection
    from headrace.protocol.talk import Position

POOL: Final = BlockPool()
"""Memory of batches, shared by all readers: what one gives back need not be made again."""
_VBUCKET: Final = SCHEMA.get_field_index("vbucket")
_SEQNO: Final = SCHEMA.get_field_index("seqno")
_OPAQUE: Final = SCHEMA.get_field_index("opaque")
_SNAPSHOT_FLAGS: Final = SCHEMA.get_field_index("snapshot_flags")
_REQUESTS: Final = frozenset({int(Magic.REQUEST), int(Magic.ALT_REQUEST)})
_MAGICS: Final = frozenset(int(magic) for magic in Magic)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows ``start`` to ``stop`` of a batch: consecutive items of one stream."""

    batch: pa.RecordBatch
    start: int
    stop: int
    vbucket: int


@dataclass(frozen=True, slots=True)
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

    def __init__(self, connection: ConsumerConnection, *, inflate: bool = True) -> None:
        """Stand before the first byte; the scanner is made when the dialect is settled."""
        self.connection = connection
        self.failure: HeadraceError | None = None
        self._inflate = inflate
        self._scanner: Scanner | None = None
        self._streams: dict[int, int] = {}

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
            markers=True,
            pool=POOL,
        )

    def _scan(self, scanner: Scanner, view: memoryview, taken: Taken, now: float) -> None:
        result = scanner.scan(view)
        taken.consumed = result.consumed
        if not result.consumed and result.error is None:
            return
        frames = [
            _frame_at(view[offset : offset + size], 0)
            for offset, size in zip(
                result.others["offset"].tolist(), result.others["size"].tolist(), strict=True
            )
        ]
        taken.size = result.counted - sum(_counted(frame) for frame in frames if frame is not None)
        self.connection.window.received(taken.size)
        reasons, places = result.others["reason"].tolist(), result.others["row"].tolist()
        runs = _Runs(result.batch)
        for frame, reason, row in zip(frames, reasons, places, strict=True):
            assert frame is not None, "the scanner hands back whole frames"
            for start, stop in runs.until(row):
                self._take_run(runs, start, stop, taken.pieces, now)
            if reason in (Reason.PREFIX, Reason.STREAMS):
                raise RemoteProtocolError(f"{frame.name} of a stream or collection nobody named")
            self._take_frame(frame, taken.pieces, now)
        for start, stop in runs.until(runs.size):
            self._take_run(runs, start, stop, taken.pieces, now)
        if result.error is not None:
            raise result.error

    def _take_frame(self, frame: Frame, pieces: list[Piece], now: float) -> None:
        for event in self.connection.receive_frame(frame, now=now):
            if isinstance(event, e.StreamOpened):
                self._streams[event.opaque] = event.vbucket
            elif isinstance(event, e.SnapshotCompleted):
                pieces.append(_whole(self.connection, event))
                continue
            pieces.append(event)

    def _take_run(
        self, runs: _Runs, start: int, stop: int, pieces: list[Piece], now: float
    ) -> None:
        opaque, vbucket = int(runs.opaques[start]), int(runs.vbuckets[start])
        if not self.connection.is_open(opaque):
            return
        if self._streams.get(opaque) != vbucket:
            raise RemoteProtocolError(
                f"items of vbucket {vbucket} with the opaque of the stream of vbucket "
                f"{self._streams.get(opaque)}"
            )
        first, last = runs.ends(start, stop)
        told = self.connection.advance(opaque, first_seqno=first, last_seqno=last, size=0, now=now)
        # Only now: rows that the stream refuses would come again.
        pieces.append(Rows(runs.batch, start, stop, vbucket))
        for event in told:
            if isinstance(event, e.SnapshotCompleted):
                pieces.append(_whole(self.connection, event))
            else:
                pieces.append(event)


class _Runs:
    """The rows of a batch, cut where the stream changes."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.size = batch.num_rows
        self.opaques: NDArray[np.uint32] = batch.column(_OPAQUE).to_numpy()
        self.vbuckets: NDArray[np.uint16] = batch.column(_VBUCKET).to_numpy()
        self._seqnos: NDArray[np.uint64] = batch.column(_SEQNO).to_numpy()
        changes = self.opaques[1:] != self.opaques[:-1]
        changes |= self.vbuckets[1:] != self.vbuckets[:-1]
        self._cuts = [*(np.flatnonzero(changes) + 1).tolist(), self.size]
        self._at = 0
        self._cut = 0
        self._check_order(changes)

    def _check_order(self, changes: NDArray[np.bool_]) -> None:
        wrong = (self._seqnos[1:] <= self._seqnos[:-1]) & ~changes
        if not wrong.any():
            return
        # Out of order is legal where no marker is in force: in an out-of-order snapshot.
        marked = self.batch.column(_SNAPSHOT_FLAGS).is_valid().to_numpy(zero_copy_only=False)
        wrong &= marked[1:]
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0]) + 1
            raise RemoteProtocolError(
                f"item with seqno {self._seqnos[row]} of vbucket {self.vbuckets[row]}, must be "
                f"above {self._seqnos[row - 1]}",
                status=0x22,
            )

    def until(self, row: int) -> list[tuple[int, int]]:
        """The runs from where the last call ended to ``row``."""
        found = []
        while self._at < row:
            stop = min(row, self._cuts[self._cut])
            found.append((self._at, stop))
            self._at = stop
            if stop == self._cuts[self._cut]:
                self._cut += 1
        return found

    def ends(self, start: int, stop: int) -> tuple[int, int]:
        """The least and the greatest seqno of a run."""
        first, last = int(self._seqnos[start]), int(self._seqnos[stop - 1])
        if last - first >= stop - start - 1 and self.batch.column(_SNAPSHOT_FLAGS)[start].is_valid:
            return first, last
        run = self._seqnos[start:stop]
        return int(run.min()), int(run.max())


def _whole(connection: ConsumerConnection, event: e.SnapshotCompleted) -> Whole:
    return Whole(event.vbucket, connection.position(event.vbucket, event.stream_id))


def holds_frame(view: memoryview) -> bool:
    """Whether a whole frame stands at the front, or a header that cannot be one."""
    if len(view) < HEADER_SIZE:
        return len(view) > 0 and view[0] not in _MAGICS
    return len(view) >= HEADER_SIZE + int.from_bytes(view[8:12], "big") or view[0] not in _MAGICS


def _counted(frame: Frame) -> int:
    return counted_size(frame.opcode, frame.size) if frame.magic in _REQUESTS else 0


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
