"""One stream of a producer: a vbucket's changes after a seqno, from disk and from memory.

A stream holds a cursor over the recent items of its vbucket. What the cursor no longer finds in
memory is read from disk as one snapshot; then the stream goes on from memory, one snapshot per
look. A slow reader's cursor may be dropped: the stream goes back to disk and returns.
Its states are those of `headrace.node.stream_states`.

Rules:

* The end of a marker is a seqno at which the reader is consistent: the end of the disk view, or of
  what memory held when the snapshot began. The stream ends only there, never inside a snapshot,
  so items above the requested end may be sent.
* Where markers begin is `headrace.node.marker_book`'s; one with the checkpoint flag begins at the
  start of its checkpoint, if that lies above everything sent.
* A snapshot that could not be finished (its cursor was dropped in the middle, or a replica's disk
  ended inside it) is continued under a marker that covers it whole.
* A reader that resumes inside a snapshot is not consistent before that snapshot's end. Memory whose
  checkpoint ends earlier is passed by for the disk.
* A reader that cannot be told SEQNO_ADVANCED gets markers that end at the last seqno it is shown,
  and none for a snapshot that shows it nothing.
* A change stream is read from disk alone, again after each commit: memory keeps the newest
  version of a key only.
* A change of the vbucket's state, a new branch, a rollback or a deletion ends the stream. One that
  hands the vbucket over (`headrace.node.takeover`) makes that change itself and goes on.

`step` writes as much as the outbox has room for and says what the stream waits for. It never
blocks, keeps no queue and knows no clock.

Imports: errors, history, store, wire, node.disk_pass, node.filters, node.marker_book,
node.outbox, node.shape, node.stream_states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.errors import CorruptRecord
from headrace.node.disk_pass import DiskRequest, LostView, open_passes
from headrace.node.marker_book import MarkerBook
from headrace.node.stream_states import TRANSITIONS, Cause, Progress, State
from headrace.store.model import BackfillOutcome
from headrace.wire.opcodes import StreamEndReason, StreamFlag, VBucketState

if TYPE_CHECKING:
    from headrace.node.disk_pass import DiskPass, OsoLimits
    from headrace.node.filters import EventGate, StreamFilter
    from headrace.node.look_ahead import LookAhead
    from headrace.node.outbox import Outbox
    from headrace.node.producer_context import Host
    from headrace.node.shape import Shape
    from headrace.node.takeover import Takeover
    from headrace.protocol.decision import Accepted
    from headrace.store.cursor import Cursor
    from headrace.store.model import Chunk, MemorySnapshot
    from headrace.store.vbucket import VBucket

READS_PER_STEP_MAX: Final = 16
"""Reads of the store in one step: filtered items cost time and fill no outbox."""
ADVANCE_EVERY: Final = 10_000
"""Seqnos a reader is left without news for, in a backfill that is filtered out."""
# A PREPARE counts 2 bytes more than its size, of at least 57: asking for 28 of 30 parts of the room
# keeps a chunk of prepares from overshooting by more than its last message.
PREPARE_SHARE: Final = (28, 30)
PINNED: Final = frozenset({State.TAKEOVER_SEND, State.TAKEOVER_WAIT})
"""States in which a cursor is not dropped, whatever the reader allows."""


class Stream:
    """One accepted stream request."""

    __slots__ = (
        "_accepted_purge",
        "_ahead",
        "_awaited",
        "_cursor",
        "_disk_from",
        "_first_from_memory",
        "_gate",
        "_generation",
        "_manifest",
        "_oso",
        "_passes",
        "_reads_history",
        "_rests",
        "_snapshot_end",
        "_source",
        "_vbucket",
        "accepted",
        "acknowledged_seqno",
        "awaits_slot",
        "backfill_items",
        "branch",
        "cursor_name",
        "end",
        "filter",
        "flags",
        "has_slot",
        "is_queued",
        "items_sent",
        "markers",
        "progress_at",
        "read_seqno",
        "reason",
        "sent_seqno",
        "shape",
        "state",
        "takeover",
        "vbucket_state",
    )

    def __init__(
        self,
        *,
        source: Host,
        vbucket: VBucket,
        accepted: Accepted,
        flags: StreamFlag,
        shape: Shape,
        filter_: StreamFilter,
        gate: EventGate,
        cursor_name: str,
        oso: OsoLimits | None,
        purge_seqno: int = 0,
        takeover: Takeover | None = None,
    ) -> None:
        """Stand before the first item; ``purge_seqno`` is the one the request was judged by."""
        self._source, self._vbucket, self._manifest = source, vbucket, source.manifest
        self.accepted, self.end, self.flags = accepted, int(accepted.end), flags
        self.shape, self.filter, self._gate = shape, filter_, gate
        self.branch = int(accepted.log.newest.uuid)
        self._generation = vbucket.generation
        self.vbucket_state = vbucket.state
        self.cursor_name = cursor_name
        self.takeover = takeover
        self.state = State.PENDING
        self.reason: StreamEndReason | None = None
        self.read_seqno = int(accepted.start)
        self.sent_seqno = int(accepted.start)
        self.markers = MarkerBook(int(accepted.start), accepted.snapshot)
        self._snapshot_end = 0
        """Where the cursor's present snapshot ends."""
        self._first_from_memory = True
        self._cursor: Cursor | None = None
        self._passes: list[DiskPass] = []
        self._ahead: Chunk | None = None
        """The first item of a memory snapshot, read before its marker was sent."""
        self._reads_history = (
            shape.terms.controls.change_streams
            and vbucket.history_start_seqno > 0
            and takeover is None
        )
        self._rests = False
        """A change stream has read everything that is persisted."""
        self._awaited = 0
        """The highest seqno whose persistence was asked for."""
        self._disk_from = 0
        self._oso = oso
        self._accepted_purge = purge_seqno
        self.has_slot = False
        self.awaits_slot = False
        self.is_queued = False
        self.items_sent = 0
        self.backfill_items = 0
        self.acknowledged_seqno = 0
        self.progress_at = 0.0

    # -- what the producer asks -------------------------------------------------------------------

    @property
    def vbucket(self) -> int:
        """The vbucket's number."""
        return self.shape.vbucket

    @property
    def key(self) -> tuple[int, int]:
        """The vbucket and the stream id, 0 without one."""
        return self.shape.vbucket, self.filter.stream_id or 0

    @property
    def is_disk_only(self) -> bool:
        """Whether the stream ends with what is on disk."""
        return StreamFlag.DISK_ONLY in self.flags

    @property
    def has_cursor(self) -> bool:
        """Whether a place in memory is held for this stream."""
        return self._cursor is not None and not self._cursor.dropped

    @property
    def items_remaining(self) -> int:
        """Items in memory still to be looked at."""
        return self._cursor.remaining if self._cursor is not None else 0

    @property
    def is_backfilling(self) -> bool:
        """Whether what comes next must be read from disk, and is there."""
        return self.state is State.BACKFILLING and not self._rests

    @property
    def is_reading_disk(self) -> bool:
        """Whether a view of the disk is held open."""
        return bool(self._passes)

    def step(self, box: Outbox) -> Progress:
        """Write what there is room for; see `Progress`."""
        reason = self._lost()
        if reason is not None:
            return self.finish(reason)
        self._follow_manifest()
        if self.state is State.PENDING:
            return self._begin()
        if self.state is State.BACKFILLING:
            return self._from_disk(box)
        if self.state is State.TAKEOVER_WAIT:
            return Progress.IDLE
        return self._from_memory(box)

    def answered(self) -> Progress:
        """The consumer took the state it was asked to take: our copy dies, or we are done."""
        takeover, reason = self.takeover, self._lost()
        assert takeover is not None
        if reason is None and takeover.asks is VBucketState.ACTIVE:
            reason = StreamEndReason.FINISHED
        if reason is not None:
            return self.finish(reason)
        self.vbucket_state = takeover.dies()
        self._source.set_state(self._vbucket.id, self.vbucket_state)
        self._move(Cause.ANSWERED)
        return Progress.MORE

    def look_ahead(self, limit_bytes: int) -> LookAhead | None:
        """The read of a backfill's next chunk, to be run on another thread; None: not now."""
        if not (self.is_backfilling and self.has_slot) or self._lost() is not None:
            return None
        if not self._passes:
            try:
                self._open_passes()
            except LostView:
                return None  # the next step ends the stream
        return self._passes[0].look_ahead(limit_bytes)

    def finish(self, reason: StreamEndReason) -> Progress:
        """Become dead and let go of everything; a second reason does not replace the first."""
        if self.state is not State.DEAD:
            self._move(Cause.END)
            self.reason = reason
            self._close_passes()
            self._close_cursor()
        return Progress.ENDED

    def drop_cursor(self) -> bool:
        """Lose the place in memory, where the reader allows it; whether there was one."""
        cursor = self._cursor
        if cursor is None or cursor.dropped or not self._may_drop_cursor:
            return False
        cursor.drop()
        return True

    # -- state ------------------------------------------------------------------------------------

    def _move(self, cause: Cause) -> None:
        self.state = TRANSITIONS[self.state, cause]

    def _lost(self) -> StreamEndReason | None:
        """Why the stream cannot go on: the vbucket it was accepted for is no longer the same."""
        vbucket = self._vbucket
        known = self._source.bucket.find(vbucket.id)
        if known is not vbucket or vbucket.state != self.vbucket_state:
            return StreamEndReason.STATE_CHANGED
        if vbucket.generation != self._generation:
            return StreamEndReason.ROLLBACK
        if vbucket.failover_log.newest.uuid != self.branch:
            # A replica that follows another owner now: what comes belongs to a branch this
            # stream's reader was never told of.
            return StreamEndReason.STATE_CHANGED
        return None

    def _follow_manifest(self) -> None:
        """Let collections pass that came into the filter's scope; dropped ones pass as before."""
        manifest = self._source.manifest
        if manifest is self._manifest:
            return
        self._manifest = manifest
        if self.filter.scope is not None:
            only = self.shape.disk.only_collections or frozenset()
            living = self.filter.living(manifest) or frozenset()
            if not living <= only:
                self.shape = self.shape.for_collections(only | living)

    def _begin(self) -> Progress:
        if self.read_seqno >= self.end:
            return self.finish(StreamEndReason.FINISHED)
        if self.is_disk_only or self._reads_history:
            self._move(Cause.DISK)
            return Progress.SLOT
        cursor = self._open_cursor()
        if cursor.gap_end or self._memory_ends_early(cursor):
            self._move(Cause.DISK)
            return Progress.SLOT
        return self._enter_memory()

    def _enter_memory(self) -> Progress:
        """What comes next is in memory."""
        self._first_from_memory = True
        if self.takeover is None:
            self._move(Cause.MEMORY)
            return Progress.MORE
        self._move(Cause.TAKEOVER)
        # Anew, as one that is not dropped any more.
        return self._back_to_disk() if self._open_cursor().gap_end else Progress.MORE

    def _memory_ends_early(self, cursor: Cursor) -> bool:
        """Whether the disk, not the next checkpoint, reaches the end a resumed reader is owed."""
        owed = self.markers.owed_end
        if not owed or self._vbucket.persisted_seqno < owed:
            return False
        snapshot = cursor.snapshot(self.shape.memory)
        ends_early = snapshot is None or snapshot.end < owed
        # The look moved the cursor: the stream begins with one that has not looked.
        self._open_cursor()
        return ends_early

    def _open_cursor(self) -> Cursor:
        self._close_cursor()
        self._cursor = self._vbucket.open_cursor(
            self.cursor_name,
            after=self.read_seqno,
            droppable=self._may_drop_cursor,
        )
        return self._cursor

    @property
    def _may_drop_cursor(self) -> bool:
        return self.shape.terms.controls.cursor_dropping and self.state not in PINNED

    def _close_cursor(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def _close_passes(self) -> None:
        for one in self._passes:
            one.close()
        self._passes.clear()

    # -- from disk --------------------------------------------------------------------------------

    def _from_disk(self, box: Outbox) -> Progress:
        if self._rests:
            self._rests = False
            return self._await_disk()
        if not self.has_slot:
            return Progress.SLOT
        if not self._passes:
            try:
                self._open_passes()
            except LostView:
                return self.finish(StreamEndReason.ROLLBACK)
        for _ in range(READS_PER_STEP_MAX):
            if not self._passes:
                return self._after_disk()
            if box.room <= 0:
                break
            reason = self._run(self._passes[0], box)
            if reason is not None:
                return self.finish(reason)
        return Progress.MORE

    def _open_passes(self) -> None:
        # The cursor first: what comes after the view then stays in memory.
        if self._cursor is None and not self.is_disk_only:
            self._open_cursor()
        self._disk_from = self.read_seqno
        self._passes = open_passes(
            DiskRequest(
                vbucket=self._vbucket,
                shape=self.shape,
                filter=self.filter,
                after=self.read_seqno,
                start_of=self.markers.start_of,
                owed_end=self.markers.owed_end,
                oso=self._oso,
                forgiven_purge=self._forgiven_purge(),
            )
        )

    def _forgiven_purge(self) -> int:
        """The purge seqno the request was accepted with: it may have waited for a slot since."""
        if self.read_seqno != self.accepted.start or not self.markers.is_first:
            return 0
        ignores = StreamFlag.IGNORE_PURGED_TOMBSTONES in self.flags
        return self._vbucket.purge_seqno if ignores else self._accepted_purge

    def _run(self, one: DiskPass, box: Outbox) -> StreamEndReason | None:
        """One message or one chunk of a pass; the reason when it failed."""
        if one.opening:
            box.add(one.opening)
            one.opening = b""
            if one.end:
                self.markers.begin(one.start, one.end)
            else:
                self.markers.skip()
            return None
        if not one.is_read:
            try:
                chunk = one.read(self._limit(box))
            except CorruptRecord:
                return StreamEndReason.BACKFILL_FAILED
            if chunk is not None:
                self._send_from_disk(chunk, box)
                return None
            if one.view.outcome is not BackfillOutcome.COMPLETE:
                return StreamEndReason.ROLLBACK
            one.is_read = True
        if one.closing:
            box.add(one.closing.pop(0))
            return None
        if len(self._passes) == 1:
            self.read_seqno = max(self.read_seqno, one.view.end)
            self._gate.passed(self.read_seqno)
            self._close_marker(box)
        self._passes.pop(0).close()
        return None

    def _send_from_disk(self, chunk: Chunk, box: Outbox) -> None:
        self._send(chunk, box)
        self.backfill_items += chunk.count
        silent = chunk.read_seqno - self.sent_seqno
        marker = self.markers.open
        if silent < ADVANCE_EVERY or marker is None or not self.shape.can_advance:
            return
        if chunk.read_seqno < marker[1] and box.room > 0:
            box.add(self.shape.seqno_advanced(chunk.read_seqno))
            self.sent_seqno = chunk.read_seqno

    def _after_disk(self) -> Progress:
        if self._gate.is_empty:
            return self.finish(StreamEndReason.FILTER_EMPTY)
        if self.is_disk_only or (self.markers.open is None and self.read_seqno >= self.end):
            return self.finish(StreamEndReason.FINISHED)
        if self._reads_history:
            return self._await_disk()
        cursor = self._cursor_here()
        if cursor.gap_end:
            if self.read_seqno <= self._disk_from:
                return self.finish(StreamEndReason.BACKFILL_FAILED)
            self._move(Cause.DISK)
            return Progress.MORE
        return self._enter_memory()

    def _cursor_here(self) -> Cursor:
        """The cursor, standing at the last seqno read."""
        cursor = self._cursor
        if cursor is None or cursor.dropped:
            return self._open_cursor()
        cursor.seek(self.read_seqno)
        return cursor

    def _await_disk(self) -> Progress:
        """Go on when more of a change stream is persisted; its cursor only listens."""
        vbucket = self._vbucket
        # A look is what arms the bucket's listener, hence before the comparison.
        self._cursor_here().snapshot(self.shape.memory)
        if vbucket.persisted_seqno > self.read_seqno:
            return Progress.MORE
        self._rests = True
        high, feed, number = vbucket.high_seqno, self._source.feed, vbucket.id
        if high > max(self.read_seqno, self._awaited):
            self._awaited = high
            vbucket.on_persisted(high, lambda _: feed.tell(number))
        return Progress.IDLE

    # -- from memory ------------------------------------------------------------------------------

    def _from_memory(self, box: Outbox) -> Progress:
        cursor = self._cursor
        assert cursor is not None
        for _ in range(READS_PER_STEP_MAX):
            if box.room <= 0:
                break
            if self._ahead is not None:
                self._send(self._ahead, box)
                self._ahead = None
                continue
            if cursor.at_end:
                progress = self._between_snapshots(cursor, box)
                if progress is not None:
                    return progress
                continue
            chunk = cursor.take(self._limit(box), self.shape.memory)
            if chunk is not None:
                self._send(chunk, box)
            elif cursor.dropped:
                return self._back_to_disk()
            elif not cursor.at_end:
                return Progress.IDLE  # a replica that has not received the rest of its snapshot
        return Progress.MORE

    def _between_snapshots(self, cursor: Cursor, box: Outbox) -> Progress | None:
        """Close the last snapshot and begin the next; None: go on."""
        if self._snapshot_end:
            self.read_seqno = max(self.read_seqno, self._snapshot_end)
            self._snapshot_end = 0
            self._gate.passed(self.read_seqno)
            self._close_marker(box)
        if self.markers.open is None:
            if self._gate.is_empty:
                return self.finish(StreamEndReason.FILTER_EMPTY)
            if self.read_seqno >= self.end:
                return self.finish(StreamEndReason.FINISHED)
        if box.room <= 0:
            return None
        if self.takeover is not None and self.takeover.is_close:
            return self._rest(box)
        snapshot = cursor.snapshot(self.shape.memory)
        if snapshot is None:
            return self._back_to_disk() if cursor.dropped else self._rest(box)
        self._announce(snapshot, cursor, box)
        return None

    def _rest(self, box: Outbox) -> Progress:
        """Everything was sent; a takeover whose markers were answered takes its next step."""
        if self.takeover is not None and self.takeover.caught_up():
            box.add(self.shape.state_change(self.takeover.asks))
            self._move(Cause.ASKED)
        return Progress.IDLE

    def _back_to_disk(self) -> Progress:
        """The cursor was dropped: what follows the last item read is on disk."""
        self._close_cursor()
        self._snapshot_end, self._ahead = 0, None
        self._move(Cause.DISK)
        return Progress.SLOT

    def _announce(self, snapshot: MemorySnapshot, cursor: Cursor, box: Outbox) -> None:
        """Send a memory snapshot's marker, unless the reader stands under one that holds it."""
        self._snapshot_end = snapshot.end
        if self.markers.holds(snapshot.end):
            return
        whole = snapshot.end <= self._vbucket.high_seqno
        end = snapshot.end
        if whole and not self.shape.can_advance:
            end = snapshot.visible_end
        if not end:
            return
        end = max(end, self.markers.owed_end)
        checkpoint = snapshot.new_checkpoint or self._first_from_memory
        if (checkpoint or snapshot.from_disk) and snapshot.checkpoint_start > self.markers.sent_end:
            natural = snapshot.checkpoint_start
        else:
            # The first item that is sent, not one that was superseded since: read it ahead.
            ahead = self._ahead = cursor.take(1, self.shape.memory)
            natural = ahead.first_seqno if ahead is not None and ahead.count else snapshot.first
        start = self.markers.start_of(natural)
        acked = self.takeover is not None and self.takeover.expects_answer()
        box.add(
            self.shape.memory_marker(
                snapshot,
                start=start,
                end=end,
                checkpoint=checkpoint,
                acked=acked,
                purge_seqno=self._vbucket.purge_seqno,
                high_prepared_seqno=self._vbucket.high_prepared_seqno,
            )
        )
        self._first_from_memory = False
        self.markers.begin(start, end)

    # -- markers and items ------------------------------------------------------------------------

    def _limit(self, box: Outbox) -> int:
        """Bytes to ask the store for: it stops after the message that reaches them."""
        if not self.shape.terms.controls.sync_writes:
            return max(1, box.room)
        share, whole = PREPARE_SHARE
        return max(1, box.room * share // whole)

    def _close_marker(self, box: Outbox) -> None:
        """Close the marker if its end was reached, with SEQNO_ADVANCED where no item did it."""
        end = self.markers.reached(self.read_seqno)
        if not end:
            return
        if self.sent_seqno < end and self.shape.can_advance:
            box.add(self.shape.seqno_advanced(end))
            self.sent_seqno = end
        self.markers.close(shown_seqno=self.sent_seqno)

    def _send(self, chunk: Chunk, box: Outbox) -> None:
        if chunk.count:
            box.add(chunk.data, prepares=chunk.prepares)
            self.items_sent += chunk.count
            self.sent_seqno = max(self.sent_seqno, chunk.last_seqno)
        if chunk.read_seqno:
            self.read_seqno = max(self.read_seqno, chunk.read_seqno)
            self._gate.passed(chunk.read_seqno)
