"""Intake: pieces from any number of connections in, things for the application out; no socket.

It stands between the skins and the application. Pieces of a connection move the courses; rows go
through the shelf (bulk) or become changes (objects) when their turn has come, `CHANGES_AT_ONCE` at
most; what the application may have waits in a queue, together with what its connection gets back
when the application is done with it.

What is done with: the application took it and asked for the next. Then its bytes are given back to
the producer's window and its positions become part of the tokens. Rows that wait on the shelf are
the exception: a snapshot larger than the window could never become whole, so their bytes are given
back while the application waits for more, and kept while it does not.

Imports: client.*, history, protocol, wire.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.bulk import Rows, Whole
from headrace.client.changes import Change, Rollback, Stretch, change_of
from headrace.client.objects import HIDDEN, RowReader, Several, Uncut
from headrace.history import Boundaries, Seqno, VBucketId
from headrace.protocol import events as e
from headrace.protocol.talk import Position
from headrace.wire.opcodes import Feature

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.client.bulk import Taken
    from headrace.client.courses import Courses
    from headrace.client.gate import Gate
    from headrace.client.shelf import Ready, Shelf
    from headrace.protocol.consumer import ConsumerConnection

    Given: TypeAlias = "pa.RecordBatch | Change | Several | Rollback"

CHANGES_AT_ONCE: Final = 256
"""Rows that become changes together; their bytes are given back when all are done with."""
_STARTING: Final = (e.StreamOpened, e.RolledBack)
_FOLLOWED: Final = frozenset({*_STARTING, e.CacheReceived})
"""Events that the intake follows; all others are the courses' alone."""


@dataclass(slots=True)
class Entry:
    """One thing for the application, or positions alone."""

    given: Given | Uncut | None
    connection: ConsumerConnection | None = None
    size: int = 0
    positions: dict[int, Position] = field(default_factory=dict)
    ceilings: dict[int, int] = field(default_factory=dict)
    partial: frozenset[int] = frozenset()


class Intake:
    """The queue between connections and the application."""

    def __init__(
        self,
        courses: Courses,
        shelf: Shelf | None,
        *,
        gate: Gate | None = None,
        listener: Callable[[e.Event], None] | None = None,
    ) -> None:
        """``shelf`` None makes changes of items instead of batches.

        ``gate`` holds back what is not on disk yet; ``held_back`` then says what waits for it.
        """
        self.courses = courses
        self.shelf = shelf
        self._delivered: dict[int, Position] = {}
        self._moved: dict[int, Position] = {}
        self._several: Several | None = None
        self._reader: RowReader | None = None
        self.newest_cas: dict[int, int] = {}
        self.received_items = 0
        self.received_bytes = 0
        self.gate = gate
        self.held_back: dict[int, int] = {}
        self._listener = listener
        self._boundaries: dict[int, Boundaries] = {}
        self._partial: frozenset[int] = frozenset()
        self._queue: deque[Entry] = deque()
        self._unshared: list[Entry] = []
        self._out: Entry | None = None
        self._owed: dict[ConsumerConnection, int] = {}
        self._whole = shelf is not None and shelf.is_whole

    @property
    def delivered(self) -> dict[int, Position]:
        """Where vbuckets stand once everything handed out is done with."""
        if self._several is not None:
            self._deliver(self._several.delivered)
        return self._delivered

    def take_moved(self) -> dict[int, Position]:
        """Those of `delivered` that moved since this was last asked."""
        if self._several is not None:
            self._deliver(self._several.delivered)
        moved, self._moved = self._moved, {}
        return moved

    def _deliver(self, positions: dict[int, Position]) -> None:
        self._delivered.update(positions)
        self._moved.update(positions)

    @property
    def is_covered(self) -> bool:
        """Whether the positions delivered cover every row handed out."""
        return not self._partial

    def __len__(self) -> int:
        """Things that wait for the application."""
        return len(self._queue)

    # -- from the connections -------------------------------------------------------------------

    def take(self, taken: Taken, connection: ConsumerConnection, *, now: float) -> None:
        """Take what came of one buffer of a connection."""
        rows = 0
        touched: dict[int, None] = {}
        for piece in taken.pieces:
            # Few calls: it is done with cold caches, and most pieces are the first two.
            if isinstance(piece, Rows):
                rows += piece.stop - piece.start
                self.newest_cas[piece.vbucket] = piece.cas
                touched[piece.vbucket] = None
                if self.shelf is not None:
                    self.shelf.put(piece)
                else:
                    self._queue_rows(piece, connection)
            elif isinstance(piece, Whole):
                touched[piece.vbucket] = None
                self._whole_snapshot(piece)
            elif isinstance(piece, e.ItemReceived):
                touched[piece.vbucket] = None
                self._item(piece, connection)
            elif type(piece) in _FOLLOWED:
                self._event(piece, connection, now)
            else:
                self.courses.take(piece, connection, now=now)
                if self._listener is not None:
                    self._listener(piece)
        self.received_items += rows
        self.received_bytes += taken.size
        courses, stream_id = self.courses, self.courses.stream_id
        positions: dict[int, Position] = {}
        for vbucket in touched:
            position = connection.position(VBucketId(vbucket), stream_id)
            positions[vbucket] = position
            courses.moved(vbucket, position, now=now)
        if self.shelf is not None:
            self._unshelve(taken.size, rows, connection, None if self._whole else positions)
        else:
            self._share(taken.size, rows, connection)

    def _event(self, event: e.Event, connection: ConsumerConnection, now: float) -> None:
        if isinstance(event, _STARTING) and self.shelf is not None:
            self._withdraw(event.vbucket, event.token.seqno, connection)
        if isinstance(event, e.RolledBack) and self.gate is not None:
            self._purge(event.vbucket, event.to_seqno)
        rollback = self.courses.take(event, connection, now=now)
        if isinstance(event, e.StreamOpened):
            course = self.courses.by_vbucket[event.vbucket]
            self._boundaries[event.vbucket] = course.position.boundaries
        if rollback is not None:
            kept = self.courses.by_vbucket[rollback.vbucket].position.boundaries
            position = Position(rollback.token, kept.rolled_back(Seqno(rollback.to_seqno)))
            self._queue.append(Entry(rollback, positions={rollback.vbucket: position}))
        if isinstance(event, e.CacheReceived):
            connection.processed(event.size, now=now)
        if self._listener is not None:
            self._listener(event)

    def _withdraw(self, vbucket: int, seqno: int, connection: ConsumerConnection) -> None:
        """Drop rows that wait and will come again or never: all above where the stream starts."""
        assert self.shelf is not None
        if self.shelf.holds_beyond(vbucket, seqno):
            for found in self.shelf.take():
                self._queue_batch(found, connection, 0)
            self.shelf.drop(vbucket)

    def _item(self, event: e.ItemReceived, connection: ConsumerConnection) -> None:
        self.received_items += 1
        self.received_bytes += event.size
        self.newest_cas[event.vbucket] = event.message.cas
        connected = connection.connected
        assert connected is not None
        change = change_of(
            event.message, event.token, collections=Feature.COLLECTIONS in connected.features
        )
        position = Position(event.token, self._boundaries[event.vbucket])
        given = None if change.kind in HIDDEN else change
        entry = Entry(given, connection, event.size, {event.vbucket: position})
        entry.ceilings[event.vbucket] = event.seqno
        self._put(entry)

    def _queue_rows(self, rows: Rows, connection: ConsumerConnection) -> None:
        """Let rows wait until they are to become changes; one by one where each has to wait."""
        assert rows.token is not None
        if self._reader is None or self._reader.batch is not rows.batch:
            self._reader = RowReader(rows.batch)
        boundaries, stretch = self._boundaries[rows.vbucket], Stretch(rows.token, rows.span)
        step = CHANGES_AT_ONCE if self.gate is None else 1
        for start in range(rows.start, rows.stop, step):
            stop = min(start + step, rows.stop)
            uncut = Uncut(self._reader, start, stop, rows.vbucket, stretch, boundaries)
            entry = Entry(uncut, connection, 0, {rows.vbucket: uncut.position})
            entry.ceilings[rows.vbucket] = uncut.last_seqno
            self._put(entry)
            self._unshared.append(entry)

    def _share(self, size: int, rows: int, connection: ConsumerConnection) -> None:
        """Say what the rows queued last give back; the bytes of those dropped are owed at once."""
        unshared, self._unshared = self._unshared, []
        left = size
        for entry in unshared:
            assert isinstance(entry.given, Uncut)
            entry.size = size * (entry.given.stop - entry.given.start) // rows
            left -= entry.size
        self._reader = None
        if left:
            self._owed[connection] = self._owed.get(connection, 0) + left

    def _whole_snapshot(self, piece: Whole) -> None:
        if self.shelf is not None and self._whole:
            self.shelf.complete(piece.vbucket, piece.position)
        elif self.shelf is None:
            self._boundaries[piece.vbucket] = piece.position.boundaries
            self._queue.append(Entry(None, positions={piece.vbucket: piece.position}))

    def _unshelve(
        self,
        size: int,
        rows: int,
        connection: ConsumerConnection,
        positions: dict[int, Position] | None,
    ) -> None:
        """Queue what may leave the shelf; the bytes of the rest are owed to the connection."""
        assert self.shelf is not None
        left = size
        for found in list(self.shelf.take(positions)):
            share = size * found.batch.num_rows // rows if rows else 0
            share = share if share < left else left
            left -= share
            self._queue_batch(found, connection, share)
        if left:
            self._owed[connection] = self._owed.get(connection, 0) + left

    def _queue_batch(self, ready: Ready, connection: ConsumerConnection, size: int) -> None:
        batch, positions = ready.batch, ready.positions
        entry = Entry(batch if batch.num_rows else None, connection, size, positions)
        entry.partial = ready.partial
        entry.ceilings = {vbucket: one.token.seqno for vbucket, one in positions.items()}
        if self.gate is not None:
            # The first batches of a large snapshot name no position; their rows must wait too.
            entry.ceilings = _highest(batch)
        self._put(entry)

    def _put(self, entry: Entry) -> None:
        self._queue.append(entry)
        if self.gate is None:
            self._hand(entry)

    def _hand(self, entry: Entry) -> None:
        """From here on a rollback below must be told."""
        for vbucket, seqno in entry.ceilings.items():
            course = self.courses.by_vbucket[vbucket]
            if seqno > course.handed:
                course.handed = Seqno(seqno)

    def _purge(self, vbucket: int, seqno: int) -> None:
        """Take what waits at the gate and is void now out of the queue."""
        assert self.gate is not None
        self.gate.forget(vbucket)
        for entry in self._queue:
            if entry.ceilings.get(vbucket, 0) <= seqno:
                continue
            del entry.ceilings[vbucket]
            entry.positions.pop(vbucket, None)
            if isinstance(entry.given, Change | Several | Uncut):
                entry.given = None
            elif entry.given is not None and not isinstance(entry.given, Rollback):
                void = pc.and_(
                    pc.equal(entry.given.column("vbucket"), pa.scalar(vbucket, pa.uint16())),
                    pc.greater(entry.given.column("seqno"), pa.scalar(seqno, pa.uint64())),
                )
                kept = entry.given.filter(pc.invert(void))
                entry.given = kept if kept.num_rows else None

    # -- to the application ---------------------------------------------------------------------

    def next(self, *, now: float) -> Given | None:
        """The next thing, after the last one counts as done with; None: more must come first."""
        self._finish(now)
        self.held_back = {}
        while self._queue:
            if self.gate is not None and not self.gate.allows(self._queue[0].ceilings):
                self.held_back = self._queue[0].ceilings
                return None
            entry = self._queue.popleft()
            self._out = entry
            if self.gate is not None:
                self._hand(entry)
            self._partial = (self._partial | entry.partial) - entry.positions.keys()
            if isinstance(entry.given, Uncut):
                several = entry.given.several()
                if len(several):
                    self._several = several
                    return several
            elif entry.given is not None:
                # Handed out: the tokens cover it, to be kept once it is done with.
                if entry.positions:
                    self._deliver(entry.positions)
                return entry.given
            self._finish(now)
        return None

    def _finish(self, now: float) -> None:
        entry, self._out = self._out, None
        self._several = None
        if entry is None:
            return
        if entry.given is None or isinstance(entry.given, Uncut):
            self._deliver(entry.positions)
        if entry.connection is not None and entry.size and entry.connection.failure is None:
            entry.connection.processed(entry.size, now=now)

    def release(self, *, now: float) -> None:
        """Give back what shelved rows hold: the application waits for more."""
        owed, self._owed = self._owed, {}
        for connection, size in owed.items():
            if connection.failure is None:
                connection.processed(size, now=now)

    def close(self) -> None:
        """Forget what waits."""
        self._queue.clear()
        self._owed.clear()
        if self.shelf is not None:
            self.shelf.close()


def _highest(batch: pa.RecordBatch) -> dict[int, int]:
    """The highest seqno of every vbucket in a batch."""
    vbuckets = batch.column("vbucket").to_numpy()
    seqnos = batch.column("seqno").to_numpy()
    return {int(one): int(seqnos[vbuckets == one].max()) for one in np.unique(vbuckets)}
