"""One vbucket stream at the consumer's end: may this come now, and where does the token stand.

The machine is the table ``TRANSITIONS``: (state, kind of message) -> state; a missing row is the
peer's error. Until every check has passed the state is BROKEN, so that no half-taken message
leaves a good-looking stream.

Rules:

* Items (everything that takes a seqno, SEQNO_ADVANCED included) rise strictly and lie inside the
  marker that announced them. They carry the opaque of the stream request.
* The token moves with items, never with a marker. A marker without items, or two markers in a row,
  change nothing: servers send them when what they announce is hidden from this consumer.
* While the token is inside a snapshot, every further marker widens it: the consumer lacks versions
  that the first snapshot had deduplicated, and has everything only at the end of the last. This
  holds across a reconnection too, when the producer answers a request at 5 in 1..10 with a disk
  snapshot 1..8 and goes on from memory.
* A token at the end of its snapshot is a boundary and is recorded as one.
* A producer that ends a finished stream inside a snapshot which the request reached beyond has sent
  all of it: the rest is hidden from this consumer, and the token moves to the snapshot's end. When
  the requested end lies inside the snapshot nobody can tell, and the token stays.
* The draft's empty marker has no range: its snapshot is complete at the next marker or at the
  end of a finished stream, and the token waits for that.
* In an out-of-order (OSO) snapshot items come in any order; the token waits for its end and then
  stands at the highest seqno that came.

Spec: docs/protocol.md, "Snapshots", "Out-of-order snapshots", "Stream end".

Imports: errors, history, wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.history import (
    NO_SEQNO,
    SEQNO_MAX,
    Boundaries,
    ResumeToken,
    Seqno,
    SnapshotRange,
)
from headrace.wire import messages as m
from headrace.wire.opcodes import MarkerFlag, OsoFlag, Status, StreamEndReason

if TYPE_CHECKING:
    from headrace.wire.message import Request


class State(Enum):
    """Where a stream stands."""

    # By identity: members are singletons, and a table is asked for every item.
    __hash__ = object.__hash__

    OPEN = auto()  # between snapshots
    MARKED = auto()  # a marker came, nothing inside it yet: the token is still the old one
    IN_SNAPSHOT = auto()
    DRAFT_MARKED = auto()  # an empty marker came, nothing after it yet
    IN_DRAFT_SNAPSHOT = auto()
    OSO = auto()  # items in any order
    ENDED = auto()
    BROKEN = auto()  # the peer broke a rule; nothing more is taken


class Kind(Enum):
    """What a message is to a stream."""

    __hash__ = object.__hash__

    MARKER = auto()
    EMPTY_MARKER = auto()
    ITEM = auto()
    LAST_ITEM = auto()  # its seqno is the end of the marker
    OSO_START = auto()
    OSO_END = auto()
    STATE_CHANGE = auto()
    CACHED = auto()  # cache transfer: outside of every snapshot
    FLUSH = auto()
    END = auto()


TRANSITIONS: Final[dict[tuple[State, Kind], State]] = {
    (State.OPEN, Kind.MARKER): State.MARKED,
    (State.OPEN, Kind.EMPTY_MARKER): State.DRAFT_MARKED,
    (State.OPEN, Kind.OSO_START): State.OSO,
    (State.OPEN, Kind.STATE_CHANGE): State.OPEN,
    (State.OPEN, Kind.CACHED): State.OPEN,
    (State.OPEN, Kind.FLUSH): State.OPEN,
    (State.OPEN, Kind.END): State.ENDED,
    (State.MARKED, Kind.MARKER): State.MARKED,
    (State.MARKED, Kind.ITEM): State.IN_SNAPSHOT,
    (State.MARKED, Kind.LAST_ITEM): State.OPEN,
    (State.MARKED, Kind.END): State.ENDED,
    (State.IN_SNAPSHOT, Kind.MARKER): State.MARKED,
    (State.IN_SNAPSHOT, Kind.ITEM): State.IN_SNAPSHOT,
    (State.IN_SNAPSHOT, Kind.LAST_ITEM): State.OPEN,
    (State.IN_SNAPSHOT, Kind.END): State.ENDED,
    (State.DRAFT_MARKED, Kind.EMPTY_MARKER): State.DRAFT_MARKED,
    (State.DRAFT_MARKED, Kind.ITEM): State.IN_DRAFT_SNAPSHOT,
    (State.DRAFT_MARKED, Kind.STATE_CHANGE): State.DRAFT_MARKED,
    (State.DRAFT_MARKED, Kind.FLUSH): State.DRAFT_MARKED,
    (State.DRAFT_MARKED, Kind.END): State.ENDED,
    (State.IN_DRAFT_SNAPSHOT, Kind.EMPTY_MARKER): State.DRAFT_MARKED,
    (State.IN_DRAFT_SNAPSHOT, Kind.ITEM): State.IN_DRAFT_SNAPSHOT,
    (State.IN_DRAFT_SNAPSHOT, Kind.STATE_CHANGE): State.IN_DRAFT_SNAPSHOT,
    (State.IN_DRAFT_SNAPSHOT, Kind.FLUSH): State.IN_DRAFT_SNAPSHOT,
    (State.IN_DRAFT_SNAPSHOT, Kind.END): State.ENDED,
    (State.OSO, Kind.ITEM): State.OSO,
    (State.OSO, Kind.OSO_END): State.OPEN,
    (State.OSO, Kind.END): State.ENDED,
}

SEQNO_FIELDS: Final[dict[type[Request], str]] = {
    m.Mutation: "by_seqno",
    m.Deletion: "by_seqno",
    m.Expiration: "by_seqno",
    m.SystemEvent: "by_seqno",
    m.Prepare: "by_seqno",
    m.Commit: "commit_seqno",
    m.Abort: "abort_seqno",
    m.SeqnoAdvanced: "by_seqno",
}
"""Messages that take a seqno of the vbucket's history -> the field that says which."""

KINDS: Final[dict[type[Request], Kind]] = {
    m.SetVBucketState: Kind.STATE_CHANGE,
    m.CacheTransfer: Kind.CACHED,
    m.CacheTransferEnd: Kind.CACHED,
    m.Flush: Kind.FLUSH,
    m.StreamEnd: Kind.END,
}
ACK: Final = int(MarkerFlag.ACK)
OSO_KINDS: Final = {int(OsoFlag.START): Kind.OSO_START, int(OsoFlag.END): Kind.OSO_END}


@dataclass(slots=True)
class Step:
    """What one message, or one run of items, did to the stream.

    ``completed``: the token now stands at a boundary it did not stand at before. ``ack``: the
    marker asked for a reply and its last item has come.
    """

    kind: Kind
    state: State
    completed: bool = False
    ack: bool = False


class ConsumerStream:
    """One accepted stream: feeds on messages, keeps the token and the boundaries."""

    __slots__ = (
        "_flags",
        "_last",
        "_purge",
        "_range",
        "boundaries",
        "end_seqno",
        "opaque",
        "span",
        "state",
        "token",
    )

    def __init__(
        self,
        token: ResumeToken,
        *,
        opaque: int = 0,
        end_seqno: Seqno = SEQNO_MAX,
        boundaries: Boundaries | None = None,
    ) -> None:
        """Start after ``token``, which already tells the branch the producer accepted it on.

        A token at the end of a snapshot is a boundary its owner holds, and is recorded as one.
        """
        self.token = token
        self.end_seqno = end_seqno
        self.boundaries = Boundaries() if boundaries is None else boundaries
        self.opaque = opaque
        self.state = State.OPEN
        self._last = token.seqno
        self._range: SnapshotRange | None = None
        self._flags = 0
        self._purge: Seqno | None = None
        self.span: SnapshotRange | None = None
        """The snapshot that the newest items moved the token in, whole; None: it waits (draft,
        out of order)."""
        self._record()

    @property
    def last_seqno(self) -> Seqno:
        """The highest seqno that came; the token may wait behind it (draft, OSO)."""
        return self._last

    @property
    def snapshot(self) -> SnapshotRange | None:
        """The range of the marker in force, None outside of one."""
        return self._range

    @property
    def snapshot_flags(self) -> MarkerFlag:
        """The flags of the newest marker."""
        return MarkerFlag(self._flags)

    def receive(self, message: Request) -> Step:
        """Take one message, or break and raise RemoteProtocolError with the status to answer."""
        before, self.state = self.state, State.BROKEN  # until every check has passed
        if message.opaque != self.opaque:
            raise RemoteProtocolError(
                f"{_name(message)} with opaque {message.opaque:#x}, the stream has "
                f"{self.opaque:#x}",
                status=Status.KEY_EEXISTS,
            )
        seqno_field = SEQNO_FIELDS.get(type(message))
        if seqno_field is not None:
            seqno = Seqno(getattr(message, seqno_field))
            _check_resolution(message, seqno)
            return self._take_items(before, seqno, seqno, _name(message))
        kind = self._kind_of(message)
        after = self._after(before, kind, _name(message))
        completed = self._TAKE[kind](self, before, message)
        self.state = after
        return Step(kind, after, completed)

    def announce(
        self, start: Seqno, end: Seqno, flags: int, purge_seqno: Seqno | None
    ) -> SnapshotRange:
        """Take a marker with a range, as `receive` does; the range."""
        before, self.state = self.state, State.BROKEN
        after = self._after(before, Kind.MARKER, "SnapshotMarker")
        snapshot = self._mark(start, end, flags, purge_seqno)
        self.state = after
        return snapshot

    def advance(self, first_seqno: Seqno, last_seqno: Seqno) -> Step:
        """Take a run of items that came after the newest marker, as if one by one.

        The caller has seen that they rise strictly (in an OSO snapshot: that these are the least
        and the greatest).
        """
        if first_seqno > last_seqno:
            raise LocalProtocolError(f"run of items from {first_seqno} down to {last_seqno}")
        before, self.state = self.state, State.BROKEN
        return self._take_items(before, first_seqno, last_seqno, "item")

    # -- items ----------------------------------------------------------------------------------

    def _take_items(self, before: State, first: Seqno, last: Seqno, name: str) -> Step:
        # Few calls: of the bulk road this is done once per run, with cold caches.
        marker = self._range
        ends_marker = marker is not None and last == marker.end
        kind = Kind.LAST_ITEM if ends_marker else Kind.ITEM
        after = self._after(before, kind, name)
        floor = self.token.seqno if before is State.OSO else self._last
        if first <= floor:
            raise RemoteProtocolError(
                f"{name} with seqno {first}, must be above {floor}", status=Status.ERANGE
            )
        completed = ack = False
        self.span = None
        if marker is not None:
            completed = self._move_token(marker, first, last, name)
            if ends_marker:
                ack = self._flags & ACK != 0
                self._range = None
        if last > self._last:
            self._last = last
        self.state = after
        return Step(kind, after, completed, ack)

    def _move_token(self, marker: SnapshotRange, first: Seqno, last: Seqno, name: str) -> bool:
        """Move the token to ``last`` in the marker in force; whether that made it a boundary."""
        if not (marker.start <= first and last <= marker.end):
            outside = first if first not in marker else last
            raise RemoteProtocolError(
                f"{name} with seqno {outside} outside its snapshot {marker}", status=Status.ERANGE
            )
        snapshot = marker
        token = self.token
        held = token.snapshot
        if token.seqno != held.end and held is not marker:
            snapshot = SnapshotRange(min(held.start, marker.start), max(held.end, marker.end))
        self.span = snapshot
        self.token = token.advanced(last, snapshot, purge_seqno=self._purge)
        return last == snapshot.end and self._record()

    def _record(self) -> bool:
        """Keep the token's place if everything up to it is held; whether it is."""
        if not self.token.is_boundary:
            return False
        log = self.token.log
        branch = self.token.branch if log is None else log.branch_at(self.token.seqno)
        self.boundaries = self.boundaries.recorded(self.token.seqno, branch)
        return True

    # -- everything else ------------------------------------------------------------------------

    def _kind_of(self, message: Request) -> Kind:
        if isinstance(message, m.SnapshotMarker):
            return Kind.EMPTY_MARKER if message.start_seqno is None else Kind.MARKER
        if isinstance(message, m.OsoSnapshot):
            kind = OSO_KINDS.get(message.oso_flags)
            if kind is None:
                raise RemoteProtocolError(
                    f"OsoSnapshot with flags {message.oso_flags:#x}, allowed 0x1 and 0x2"
                )
            return kind
        kind = KINDS.get(type(message))
        if kind is None:
            raise RemoteProtocolError(f"{_name(message)} is no message of a stream")
        return kind

    def _after(self, before: State, kind: Kind, name: str) -> State:
        after = TRANSITIONS.get((before, kind))
        if after is None:
            raise RemoteProtocolError(f"{name} while {before.name}")
        return after

    def _take_marker(self, before: State, message: Request) -> bool:
        del before
        assert isinstance(message, m.SnapshotMarker)
        start, end = message.start_seqno, message.end_seqno
        if start is None or end is None:
            raise RemoteProtocolError(f"SnapshotMarker from {start} to {end}")
        purge = None if message.purge_seqno is None else Seqno(message.purge_seqno)
        self._mark(Seqno(start), Seqno(end), message.flags or 0, purge)
        return False

    def _mark(
        self, start: Seqno, end: Seqno, flags: int, purge_seqno: Seqno | None
    ) -> SnapshotRange:
        if start > end:
            raise RemoteProtocolError(f"SnapshotMarker from {start} to {end}")
        if end <= self._last:
            raise RemoteProtocolError(
                f"SnapshotMarker {start}..{end} lies below the last seqno {self._last}",
                status=Status.ERANGE,
            )
        snapshot = SnapshotRange(start, end)
        self._range, self._flags, self._purge = snapshot, flags, purge_seqno
        return snapshot

    def _take_empty_marker(self, before: State, message: Request) -> bool:
        """A draft's snapshot before it is whole now."""
        del message
        return before is State.IN_DRAFT_SNAPSHOT and self._catch_up()

    def _take_end(self, before: State, message: Request) -> bool:
        assert isinstance(message, m.StreamEnd)
        marker, self._range = self._range, None
        if message.reason != StreamEndReason.FINISHED:
            return False
        if before is State.IN_DRAFT_SNAPSHOT:
            return self._catch_up()
        if marker is None:
            return False
        held = self.token
        if held.is_boundary or not held.snapshot.end <= marker.end <= self.end_seqno:
            return False
        self._last = marker.end
        return self._catch_up()

    def _take_oso_start(self, before: State, message: Request) -> bool:
        del before, message
        self._range = None
        self._purge = None
        return False

    def _take_oso_end(self, before: State, message: Request) -> bool:
        del before, message
        return self._catch_up()

    def _catch_up(self) -> bool:
        """Move the token over everything that came; whether there was anything."""
        if self._last <= self.token.seqno:
            return False
        self.token = self.token.advanced(self._last, SnapshotRange.at(self._last))
        return self._record()

    def _take_nothing(self, before: State, message: Request) -> bool:
        del before, message
        return False

    _TAKE: Final = {
        Kind.MARKER: _take_marker,
        Kind.EMPTY_MARKER: _take_empty_marker,
        Kind.OSO_START: _take_oso_start,
        Kind.OSO_END: _take_oso_end,
        Kind.STATE_CHANGE: _take_nothing,
        Kind.CACHED: _take_nothing,
        Kind.FLUSH: _take_nothing,
        Kind.END: _take_end,
    }


def _check_resolution(message: Request, seqno: Seqno) -> None:
    """A commit or abort comes after its prepare; seqno 0 belongs to nothing."""
    if seqno == NO_SEQNO:
        raise RemoteProtocolError(f"{_name(message)} with seqno 0, allowed from 1")
    if isinstance(message, m.Commit | m.Abort) and message.prepared_seqno >= seqno:
        raise RemoteProtocolError(
            f"{_name(message)} at seqno {seqno} of a prepare at {message.prepared_seqno}"
        )


def _name(message: Request) -> str:
    return type(message).__name__
