"""A consumer's copy of one vbucket that knows its boundaries and goes back when told.

It resumes wherever it stands, also inside a snapshot, with the snapshot it was in; on ROLLBACK r it
goes to its last boundary at or below r. It checks what every stream must obey.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.wire import messages
from headrace.wire.opcodes import SEQNO_MAX

if TYPE_CHECKING:
    from headrace.wire.message import Message

ATTEMPTS_MAX = 30


@dataclass(slots=True)
class Event:
    """One change: None is a deletion."""

    seqno: int
    key: bytes
    value: bytes | None


@dataclass(slots=True)
class Copy:
    """What a consumer holds of one vbucket."""

    vbucket: int
    events: list[Event] = field(default_factory=list)
    boundaries: list[int] = field(default_factory=lambda: [0])
    log: tuple[messages.FailoverEntry, ...] = ()
    snapshot: tuple[int, int] = (0, 0)
    announced: tuple[int, int] = (0, 0)
    rollbacks: int = 0
    ended: bool = False

    @property
    def seqno(self) -> int:
        """The last seqno received."""
        return self.events[-1].seqno if self.events else 0

    def request(self, end: int = SEQNO_MAX) -> messages.StreamRequest:
        """Ask to go on from here."""
        start, stop = self.snapshot
        if self.seqno >= stop:
            start = stop = self.seqno
        self.announced, self.ended = (0, 0), False
        return messages.StreamRequest(
            vbucket=self.vbucket,
            flags=0,
            start_seqno=self.seqno,
            end_seqno=end,
            vb_uuid=self.log[0].uuid if self.log else 0,
            snap_start_seqno=start,
            snap_end_seqno=stop,
        )

    def roll_back(self, seqno: int) -> None:
        """Go to the last boundary at or below a seqno."""
        assert seqno < self.seqno, f"ROLLBACK to {seqno} from {self.seqno}"
        self.rollbacks += 1
        self.boundaries = [one for one in self.boundaries if one <= seqno]
        to = self.boundaries[-1]
        self.events = [event for event in self.events if event.seqno <= to]
        assert self.seqno <= to
        self.snapshot = (to, to)
        if self.seqno < to:
            # The boundary was reached by a seqno that was not an event of ours.
            self.snapshot = (self.seqno, self.seqno)
        self.log = tuple(entry for entry in self.log if entry.seqno <= self.seqno)

    def receive(self, message: Message) -> Event | None:
        """Take one message of the stream; the change it was, if any."""
        if isinstance(message, messages.SnapshotMarker):
            start, end = message.start_seqno or 0, message.end_seqno or 0
            assert start <= end, message
            assert end > self.seqno, message
            self.announced = (start, end)
            return None
        if isinstance(message, messages.StreamEnd):
            self.ended = True
            return None
        if isinstance(message, messages.Mutation):
            event = Event(message.by_seqno, message.key, message.value)
        elif isinstance(message, messages.Deletion):
            event = Event(message.by_seqno, message.key, None)
        else:
            return None
        assert self.announced != (0, 0), f"{message} before a marker"
        start, end = self.announced
        assert self.seqno < event.seqno <= end, (self.seqno, event, self.announced)
        if self.seqno >= self.snapshot[1] and self.boundaries[-1] < self.seqno:
            self.boundaries.append(self.seqno)
        self.snapshot = (start, end)
        self.events.append(event)
        if event.seqno == end:
            self.boundaries.append(end)
        return event

    def state(self) -> dict[bytes, tuple[int, bytes | None]]:
        """Each key's last version."""
        return {event.key: (event.seqno, event.value) for event in self.events}

    def branch_of(self, seqno: int) -> int:
        """The branch that a seqno was written in, by the log of the last accepted request.

        0 when the log, which keeps its newest 25 entries, knows no longer.
        """
        return next((entry.uuid for entry in self.log if entry.seqno < seqno), 0)
