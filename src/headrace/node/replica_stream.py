"""One inbound stream of a replica: a vbucket that follows its producer.

    WAITING --> ASKED --> OPEN <--> RECEIVING         (every state can end as CLOSED)
                 |  ^        `--> TAKEN
                 v  |
             ROLLING_BACK

Rules:

* The vbucket's own state is the resume token: the last seqno, the snapshot that holds it if that is
  not whole, the newest branch of its log; nothing of it is kept here.
* A marker sets the accepted range, items rise inside it, anything else is ERANGE and changes
  nothing. A marker that lies wholly below the last seqno is ERANGE.
* Items are applied as they come, without conflict resolution: seqno, rev, CAS, expiry are the
  producer's.
* A marker that asks for it is answered when its last item was applied.
* Prepares are acknowledged in order: at level persistToMajority when they are on disk, the others
  when they are in memory; those of a disk snapshot when it is whole, and then its end is.
* A change of state is answered when it is durable. After "active" nothing but the end may come.

A refusal is raised as `Refusal`; its status is the answer. The stream knows no clock and no socket.

Spec: docs/protocol.md, "Stream lifecycle"; semantics of replicas in "ADD_STREAM".

Imports: history, store, wire, node.manifest, node.refusal, node.replica_parts.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

from headrace.history import FailoverLog, Seqno, SnapshotRange
from headrace.node.manifest import FIRST, followed, from_json
from headrace.node.refusal import Refusal
from headrace.node.replica_parts import parts_of
from headrace.store import layout as at
from headrace.store.model import SEQNO_LIMIT
from headrace.wire import messages as m
from headrace.wire.dialect import Dialect
from headrace.wire.opcodes import (
    SEQNO_MAX,
    DurabilityLevel,
    MarkerFlag,
    Status,
    VBucketState,
)
from headrace.wire.system_events import detail_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.store.bucket import Bucket
    from headrace.store.plain import Parts
    from headrace.store.vbucket import VBucket
    from headrace.wire.message import Message, Request

RECEIVING_STATES: Final = frozenset({VBucketState.REPLICA, VBucketState.PENDING})
ROLLBACKS_MAX: Final = 32
"""Times one stream request may be answered with ROLLBACK: a log has 25 branches at most."""


class Host(Protocol):
    """What a stream needs of its bucket."""

    @property
    def bucket(self) -> Bucket:
        """The stored bucket."""

    def set_state(self, vbucket: int, state: VBucketState, *, takeover: bool = False) -> VBucket:
        """Give the vbucket a state, durably, and tell everyone concerned."""


class State(Enum):
    """Where an inbound stream stands."""

    WAITING = auto()  # the negotiation is under way
    ASKED = auto()
    ROLLING_BACK = auto()
    OPEN = auto()  # between snapshots
    RECEIVING = auto()  # inside one
    TAKEN = auto()  # the vbucket became active
    CLOSED = auto()


class Cause(Enum):
    """What moves an inbound stream."""

    ASK = auto()
    ACCEPT = auto()
    ROLLBACK = auto()
    MARKER = auto()
    ITEM = auto()
    WHOLE = auto()  # the last item of a snapshot was applied
    FLUSH = auto()
    STATE = auto()
    ACTIVE = auto()  # a STATE that was "active"
    END = auto()


_STANDING: Final = (State.OPEN, State.RECEIVING)
TRANSITIONS: Final[dict[tuple[State, Cause], State]] = {
    (State.WAITING, Cause.ASK): State.ASKED,
    (State.ROLLING_BACK, Cause.ASK): State.ASKED,
    (State.ASKED, Cause.ASK): State.ASKED,
    (State.ASKED, Cause.ACCEPT): State.OPEN,
    (State.ASKED, Cause.ROLLBACK): State.ROLLING_BACK,
    **{(state, Cause.MARKER): State.RECEIVING for state in _STANDING},
    (State.RECEIVING, Cause.ITEM): State.RECEIVING,
    (State.RECEIVING, Cause.WHOLE): State.OPEN,
    **{(state, Cause.FLUSH): State.OPEN for state in _STANDING},
    **{(state, Cause.STATE): state for state in _STANDING},
    **{(state, Cause.ACTIVE): State.TAKEN for state in _STANDING},
    **{(state, Cause.END): State.CLOSED for state in State},
}
REFUSALS: Final[dict[tuple[State, Cause], Status]] = {
    (State.OPEN, Cause.ITEM): Status.ERANGE,
    (State.TAKEN, Cause.ITEM): Status.ERANGE,
    (State.TAKEN, Cause.MARKER): Status.ERANGE,
}
"""What a standing stream answers to what may not come; all else has no stream to be for."""


def cause_of(message: Message) -> Cause | None:
    """What a message of the producer's is to a stream; None: nothing."""
    return _CAUSES.get(type(message))


_CAUSES: Final[dict[type, Cause]] = {
    m.SnapshotMarker: Cause.MARKER,
    m.Flush: Cause.FLUSH,
    m.SetVBucketState: Cause.STATE,
    m.StreamEnd: Cause.END,
    **dict.fromkeys(
        (
            m.Mutation,
            m.Deletion,
            m.Expiration,
            m.SystemEvent,
            m.Prepare,
            m.Commit,
            m.Abort,
            m.SeqnoAdvanced,
        ),
        Cause.ITEM,
    ),
}


class ReplicaStream:
    """One inbound stream."""

    def __init__(
        self,
        host: Host,
        vbucket: VBucket,
        *,
        opaque: int,
        flags: int,
        asked_by: int,
        dialect: Dialect,
        collections: bool,
        persisted: Callable[[int], None],
    ) -> None:
        """Before its request; ``asked_by`` is the opaque of ADD_STREAM, ``persisted(vbucket)`` is
        called, on any thread, when what was waited for is durable."""
        self._host = host
        self.vbucket = vbucket
        self.opaque = opaque
        self.flags = flags
        self.asked_by: int | None = asked_by
        self.dialect = dialect
        self.collections = collections
        self._persisted = persisted
        self.state = State.WAITING
        self.marker: SnapshotRange | None = None
        """The range items must lie in."""
        self.marker_from_disk = False
        self._owed: deque[int] = deque()
        """Ends of the markers that are to be answered."""
        self._prepared: deque[tuple[int, bool]] = deque()
        """Prepares to acknowledge, in order: (seqno, only when it is on disk)."""
        self._disk_fence = False
        """A prepare of the disk snapshot that is received must reach our disk."""
        self.acknowledged_seqno = 0
        self.rollbacks = 0
        self._older_branch = 0
        self.start_seqno = 0
        self.items_received = 0
        self._generation = vbucket.generation

    def move(self, cause: Cause) -> None:
        """Change the state, or say why that may not be."""
        after = TRANSITIONS.get((self.state, cause))
        if after is None:
            status = REFUSALS.get((self.state, cause), Status.KEY_ENOENT)
            raise Refusal(status, f"{cause.name.lower()} while {self.state.name.lower()}")
        self.state = after

    @property
    def is_standing(self) -> bool:
        """Whether the producer accepted it and it has not ended."""
        return self.state in (State.OPEN, State.RECEIVING, State.TAKEN)

    @property
    def is_lost(self) -> bool:
        """Whether the vbucket is no longer what the stream was added for."""
        vbucket = self.vbucket
        known = self._host.bucket.find(vbucket.id)
        if known is not vbucket or vbucket.generation != self._generation:
            return True
        return self.state is not State.TAKEN and vbucket.state not in RECEIVING_STATES

    # -- asking -----------------------------------------------------------------------------------

    def request(self) -> m.StreamRequest:
        """The stream request of the vbucket as it is now."""
        self.move(Cause.ASK)
        vbucket, log = self.vbucket, self.vbucket.failover_log
        seqno = self.start_seqno = vbucket.high_seqno
        snapshot = vbucket.snapshot
        if vbucket.complete_seqno == seqno or seqno not in snapshot:
            # A marker without an item has changed nothing yet.
            snapshot = SnapshotRange.at(Seqno(seqno))
        branch = log.entries[self._older_branch]
        draft = self.dialect is Dialect.UPR_DRAFT
        return m.StreamRequest(
            opaque=self.opaque,
            vbucket=vbucket.id,
            flags=self.flags,
            start_seqno=seqno,
            end_seqno=SEQNO_MAX,
            vb_uuid=branch.uuid if seqno else 0,
            snap_start_seqno=None if draft else snapshot.start,
            snap_end_seqno=None if draft else snapshot.end,
            high_seqno=branch.seqno if draft else None,
        )

    def told_to_roll_back(self, seqno: int) -> int | None:
        """Where the vbucket must go back to; None: ask again first, on an older branch."""
        self.move(Cause.ROLLBACK)
        self.rollbacks += 1
        vbucket, log = self.vbucket, self.vbucket.failover_log
        if self.rollbacks > ROLLBACKS_MAX or not self.start_seqno:
            raise Refusal(Status.ROLLBACK, f"rolled back {self.rollbacks} times without end")
        older = self._older_branch + 1
        if seqno == 0 and older == 1 and len(log) > 1 and log.newest.seqno == vbucket.high_seqno:
            self._older_branch = older
            return None
        self._older_branch = 0
        # A demand that leaves us where we are would be made for ever.
        return seqno if vbucket.unsettled.boundary(seqno) < vbucket.high_seqno else 0

    def rolled_back(self) -> bool:
        """The vbucket went back; False: it is lost, and was not touched.

        Between the end of a rollback on its thread and this call it may be deleted or promoted.
        """
        self._generation = self.vbucket.generation
        if self.is_lost:
            return False
        if not self.vbucket.high_seqno:
            self.vbucket.set_manifest({})
        return True

    def accepted(self, entries: tuple[m.FailoverEntry, ...]) -> None:
        """The producer accepted: its log is ours. Refusal EINVAL when it is none."""
        try:
            log, _ = FailoverLog.loaded((entry.uuid, entry.seqno) for entry in entries)
        except ValueError as error:
            raise Refusal(Status.EINVAL, str(error)) from error
        self.move(Cause.ACCEPT)
        if log != self.vbucket.failover_log:
            self.vbucket.replace_failover_log(log, durably=False)
        self._remember_prepares()

    # -- what the producer sends ------------------------------------------------------------------

    def receive(self, message: Request) -> list[Message]:
        """Take a message of the producer's; the answers to it. Refusal: nothing was changed."""
        cause = cause_of(message)
        assert cause is not None
        if cause is Cause.MARKER:
            return self._marker(message)  # type: ignore[arg-type]
        if cause is Cause.STATE:
            return self._set_state(message)  # type: ignore[arg-type]
        if cause is Cause.ITEM:
            return self._item(message)
        if cause is Cause.FLUSH:
            return self._flush()
        self._finish_open_snapshot()
        self.move(Cause.END)
        return []

    def _marker(self, message: m.SnapshotMarker) -> list[Message]:
        start, end, flags = message.start_seqno, message.end_seqno, message.flags or 0
        high, before = self.vbucket.high_seqno, self.state
        self.move(Cause.MARKER)
        self.state, after = before, self.state
        if start is None or end is None:
            # The draft's marker has no range: it ends the snapshot before it.
            self._finish_open_snapshot()
            start, end = high + 1, SEQNO_LIMIT
        if start > end:
            raise Refusal(Status.EINVAL, f"marker from {start} to {end}")
        if end <= high or end > SEQNO_LIMIT:
            raise Refusal(Status.ERANGE, f"marker {start}..{end} after seqno {high}")
        self.marker = SnapshotRange(Seqno(start), Seqno(end))
        self.marker_from_disk = bool(flags & MarkerFlag.DISK)
        self.vbucket.receive_snapshot(
            self.marker,
            new_checkpoint=bool(flags & MarkerFlag.CHECKPOINT),
            from_disk=self.marker_from_disk,
            high_completed_seqno=message.high_completed_seqno or 0,
            max_visible_seqno=message.max_visible_seqno or 0,
            purge_seqno=message.purge_seqno or 0,
        )
        self.state = after
        if flags & MarkerFlag.ACK:
            self._owed.append(end)
        return []

    def _finish_open_snapshot(self) -> None:
        if self.marker is not None and self.marker.end == SEQNO_LIMIT:
            self.vbucket.finish_snapshot()
            self.marker = None

    def _item(self, message: Request) -> list[Message]:
        self.move(Cause.ITEM)
        parts = parts_of(message, collections=self.collections)
        seqno, marker, vbucket = parts.seqno, self.marker, self.vbucket
        assert marker is not None
        if seqno not in marker or seqno <= vbucket.high_seqno:
            raise Refusal(
                Status.ERANGE, f"seqno {seqno} after {vbucket.high_seqno} in snapshot {marker}"
            )
        self._check_completion(parts)
        try:
            vbucket.apply_parts(parts)
        except ValueError as error:
            raise Refusal(Status.EINVAL, str(error)) from error
        self.items_received += 1
        if isinstance(message, m.SystemEvent):
            self._follow_manifest(message)
        elif isinstance(message, m.Prepare):
            self._note_prepare(seqno, message.durability)
        return self.applied()

    def _check_completion(self, parts: Parts) -> None:
        """A commit or abort needs its prepare, unless a disk snapshot left that out."""
        if parts.opcode not in (at.COMMIT, at.ABORT) or self.vbucket.pending(parts.key):
            return
        if parts.opcode == at.COMMIT or not self.vbucket.receives_disk:
            raise Refusal(Status.KEY_ENOENT, "the key has no prepare in flight")

    def _follow_manifest(self, message: m.SystemEvent) -> None:
        detail = detail_of(message)
        if detail is not None:
            kept = self.vbucket.manifest
            manifest = from_json(kept) if kept else FIRST
            changed = followed(manifest, message.event, message.key.decode(), detail)
            self.vbucket.set_manifest(changed.to_json())

    def receive_run(self, frames: memoryview) -> tuple[int, int]:
        """Apply a run of plain items; see `VBucket.receive_run`. Call `applied` afterwards."""
        if self.state is not State.RECEIVING:
            return 0, 0
        assert self.marker is not None
        used, count = self.vbucket.receive_run(
            frames, opaque=self.opaque, snapshot=self.marker, collections=self.collections
        )
        self.items_received += count
        return used, count

    def applied(self) -> list[Message]:
        """After items were applied: the answers that are due now."""
        answers: list[Message] = []
        high = self.vbucket.high_seqno
        while self._owed and self._owed[0] <= high:
            self._owed.popleft()
            answers.append(m.SnapshotMarkerReply(opaque=self.opaque))
        if self.marker is not None and high >= self.marker.end and self.state is State.RECEIVING:
            self.move(Cause.WHOLE)
            if self.vbucket.receives_disk:
                self._prepare_reached(high, self._disk_fence)
                self._disk_fence = False
        return answers

    def _set_state(self, message: m.SetVBucketState) -> list[Message]:
        try:
            state = VBucketState(message.state)
        except ValueError:
            raise Refusal(Status.EINVAL, f"state {message.state}, allowed 1..4") from None
        before = self.state
        self.move(Cause.ACTIVE if state is VBucketState.ACTIVE else Cause.STATE)
        self.state, after = before, self.state
        self._host.set_state(self.vbucket.id, state, takeover=True)
        self.state = after
        return [m.SetVBucketStateReply(opaque=message.opaque)]

    def _flush(self) -> list[Message]:
        if self.dialect not in (Dialect.UPR_DRAFT, Dialect.UPR_2014):
            raise Refusal(Status.NOT_SUPPORTED, f"{self.dialect.value} has no FLUSH")
        self.move(Cause.FLUSH)
        log = self.vbucket.failover_log
        self.vbucket.rollback(0)
        self.vbucket.replace_failover_log(log)
        self.rolled_back()
        self.marker = None
        self._owed.clear()
        self._prepared.clear()
        return []

    # -- sync writes ------------------------------------------------------------------------------

    def _remember_prepares(self) -> None:
        """What is here already is acknowledged again, as far as it may be."""
        vbucket, persisted = self.vbucket, self._durable_seqno()
        fences = [
            one.seqno
            for one in vbucket.all_pending()
            if one.level == DurabilityLevel.PERSIST_TO_MAJORITY and one.seqno > persisted
        ]
        reached = max(vbucket.high_prepared_seqno, vbucket.settled_prepared)
        if fences:
            before = [one.seqno for one in vbucket.all_pending() if one.seqno < fences[0]]
            below = max(before, default=0)
            self._prepare_reached(below, False)
            self._prepare_reached(fences[-1], True)
        if reached:
            self._prepare_reached(reached, False)

    def _note_prepare(self, seqno: int, level: int) -> None:
        fence = level == DurabilityLevel.PERSIST_TO_MAJORITY
        if self.vbucket.receives_disk:
            self._disk_fence |= fence
        else:
            self._prepare_reached(seqno, fence)

    def _prepare_reached(self, seqno: int, fence: bool) -> None:
        if not seqno:
            return
        self._prepared.append((seqno, fence))
        if fence and seqno > self._durable_seqno():
            number = self.vbucket.id
            self.vbucket.on_persisted(seqno, lambda _: self._persisted(number))

    def _durable_seqno(self) -> int:
        return self.vbucket.persisted_seqno if self._host.bucket.durable else 0

    def take_acknowledgement(self) -> m.SeqnoAcknowledged | None:
        """How far prepares are held now, if that is news."""
        reached, durable = self.acknowledged_seqno, self._durable_seqno()
        while self._prepared:
            seqno, fence = self._prepared[0]
            if fence and seqno > durable:
                break
            self._prepared.popleft()
            reached = max(reached, seqno)
        if reached == self.acknowledged_seqno:
            return None
        self.acknowledged_seqno = reached
        return m.SeqnoAcknowledged(
            opaque=self.opaque, vbucket=self.vbucket.id, prepared_seqno=reached
        )
