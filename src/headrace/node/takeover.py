"""Handing a vbucket over to the node that a stream feeds, without losing a write.

    TAKEOVER_SEND   what memory has; every marker asks for an acknowledgement
                    nothing left and none outstanding: SET_VBUCKET_STATE(pending)
    TAKEOVER_WAIT   answered: our copy is dead, durably; clients are sent elsewhere
    TAKEOVER_SEND   the last items
                    nothing left and none outstanding: SET_VBUCKET_STATE(active)
    TAKEOVER_WAIT   answered: STREAM_END(finished)

Rules:

* Our copy is dead on disk before the other node is asked to become active: at no moment, and after
  no crash, have two nodes the vbucket active.
* Writers may be faster than answers. A stream that has caught up `CATCH_UPS_MAX` times sends no
  more before our copy is dead: what is left then was written during one round trip.
* Other streams of the vbucket end when it dies; the one that hands it over goes on.
* An answer nobody waits for is ignored. A refusal in place of an acknowledgement ends the takeover
  where it stands: with the stream alone where the consumer says that it has no such stream, with
  the connection otherwise. States stay as they are; a manager looks at both copies and decides.
* Sending that takes longer than `BACKED_UP_SECONDS` cannot keep up with the writers: they are told
  to try again later until our copy is dead or the takeover is given up.
* Dialects before dcp-3 have no acknowledged markers; there the answer to a state, which comes
  after all that was sent before, is the only one.

Spec: docs/protocol.md, "SET_VBUCKET_STATE", "SNAPSHOT_MARKER".

Imports: wire, node.stream_states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.node.stream_states import State
from headrace.wire.opcodes import StreamEndReason, VBucketState

if TYPE_CHECKING:
    from headrace.node.producer_context import Host
    from headrace.node.stream import Stream

CATCH_UPS_MAX: Final = 3
BACKED_UP_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 1.0
"""How often a connection looks whether a takeover lasts too long."""
SENDING: Final = frozenset({State.TAKEOVER_SEND, State.TAKEOVER_WAIT})


class Takeover:
    """How far one stream is in handing over its vbucket."""

    __slots__ = (
        "_acknowledges",
        "_catch_ups",
        "_sent_more",
        "asks",
        "is_backed_up",
        "since",
        "unacknowledged",
    )

    def __init__(self, *, acknowledges: bool) -> None:
        """Begin; ``acknowledges``: the dialect's markers can ask for an answer."""
        self._acknowledges = acknowledges
        self._catch_ups = 0
        self._sent_more = False
        self.asks = VBucketState.PENDING
        """What the other node is asked to become once everything was acknowledged."""
        self.unacknowledged = 0
        self.since: float | None = None
        """When the sending began; None before."""
        self.is_backed_up = False

    def expects_answer(self) -> bool:
        """Whether the marker about to be sent asks for an answer; it is counted then."""
        self._sent_more = True
        self.unacknowledged += self._acknowledges
        return self._acknowledges

    def caught_up(self) -> bool:
        """Nothing is left to send; whether the next step may be taken."""
        self._catch_ups += self._sent_more
        self._sent_more = False
        return self.is_acknowledged

    @property
    def is_close(self) -> bool:
        """Whether what came since the stream last caught up can wait until our copy is dead."""
        return self.asks is VBucketState.PENDING and self._catch_ups >= CATCH_UPS_MAX

    @property
    def is_acknowledged(self) -> bool:
        """Whether every marker so far was answered."""
        return not self.unacknowledged

    def dies(self) -> VBucketState:
        """The other node is pending: the state our copy takes now."""
        self.asks = VBucketState.ACTIVE
        return VBucketState.DEAD

    def observe(self, state: State, now: float) -> None:
        """Note when the sending began."""
        if self.since is None and state in SENDING:
            self.since = now


class Takeovers:
    """The takeovers of one connection; answers name them by their stream's opaque."""

    __slots__ = ("_host", "_streams")

    def __init__(self, host: Host) -> None:
        """Start with none."""
        self._host = host
        self._streams: dict[int, tuple[Stream, Takeover]] = {}

    def __len__(self) -> int:
        """Number under way."""
        return len(self._streams)

    def add(self, stream: Stream) -> None:
        """Follow a stream, if it is one that hands its vbucket over."""
        if stream.takeover is not None:
            self._streams[stream.shape.opaque] = stream, stream.takeover

    def remove(self, stream: Stream) -> None:
        """The stream is dead."""
        found = self._streams.get(stream.shape.opaque)
        if found is not None and found[0] is stream:
            del self._streams[stream.shape.opaque]
            self._release(stream, found[1])

    def clear(self) -> None:
        """The connection is gone."""
        for stream, takeover in self._streams.values():
            self._release(stream, takeover)
        self._streams.clear()

    def marker_answered(self, opaque: int) -> Stream | None:
        """A marker was acknowledged; the stream that may go on now."""
        found = self._streams.get(opaque)
        if found is None or found[1].is_acknowledged:
            return None
        stream, takeover = found
        takeover.unacknowledged -= 1
        return stream if takeover.is_acknowledged else None

    def state_answered(self, opaque: int) -> Stream | None:
        """The other node changed its state; the stream that goes on or has ended."""
        found = self._streams.get(opaque)
        if found is None or found[0].state is not State.TAKEOVER_WAIT:
            return None
        stream, takeover = found
        stream.answered()
        if takeover.asks is not VBucketState.PENDING:
            self._release(stream, takeover)
        return stream

    def refused(self, opaque: int, *, forgiven: bool) -> tuple[bool, Stream | None]:
        """An acknowledgement was refused: whether it is a takeover's, and the stream it ends."""
        found = self._streams.get(opaque)
        if found is None or not forgiven:
            return found is not None, None
        found[0].finish(StreamEndReason.CLOSED)
        return True, found[0]

    def look(self, now: float) -> None:
        """Hold writers back where the sending lasts too long."""
        for stream, takeover in self._streams.values():
            if (
                takeover.since is not None
                and not takeover.is_backed_up
                and now - takeover.since > BACKED_UP_SECONDS
                and takeover.asks is VBucketState.PENDING
            ):
                takeover.is_backed_up = True
                self._host.hold_writes(stream.vbucket, held=True)

    def _release(self, stream: Stream, takeover: Takeover) -> None:
        if takeover.is_backed_up:
            takeover.is_backed_up = False
            self._host.hold_writes(stream.vbucket, held=False)
