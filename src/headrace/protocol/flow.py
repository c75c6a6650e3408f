"""Flow control and noop, both ends; time comes in as an argument, in seconds of any steady clock.

Flow control. The consumer grants a window of bytes per connection. The producer may send while
fewer bytes than the window are unacknowledged, so one message may overshoot by its whole size. The
consumer acknowledges what it has *processed*, also when it rejected it or its stream was already
closed.

* Counted: every request of the producer but NOOP, at its size on the wire; a PREPARE at 2 bytes
  more (released servers count it so). Replies are never counted.
* The producer's count never goes below 0, whatever a peer acknowledges. A changed window keeps the
  count; window 0 switches flow control off and forgets it.
* The consumer acknowledges when it has freed more than a share of the window, or anything at all
  once an interval has passed. It never acknowledges more than it received.

Noop. The producer asks when none is unanswered and an interval has passed since the last; a full
window does not hold it back. Either end gives up when it heard nothing at all for long enough.

Spec: docs/protocol.md, "Flow control" and "Noop".

Imports: errors, wire.
"""

from __future__ import annotations

from typing import Final

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.opcodes import Opcode

WINDOW_MAX: Final = 0xFFFF_FFFF
ACK_BYTES_MAX: Final = 0xFFFF_FFFF
ACK_SHARE_DIVISOR: Final = 5
ACK_INTERVAL_SECONDS: Final = 5.0
PREPARE_SURPLUS: Final = 2
STUCK_SECONDS: Final = 720.0

NOOP_INTERVAL_SECONDS: Final = 20.0
NOOP_INTERVAL_SECONDS_MIN: Final = 0.1
IDLE_TIMEOUT_SECONDS: Final = 360.0
SILENT_INTERVALS: Final = 2
# Released servers count their noops from here, far from the opaques that clients choose.
NOOP_OPAQUE_BASE: Final = 10_000_000

COUNTED: Final[dict[int, int]] = {
    Opcode.STREAM_END: 0,
    Opcode.SNAPSHOT_MARKER: 0,
    Opcode.MUTATION: 0,
    Opcode.DELETION: 0,
    Opcode.EXPIRATION: 0,
    Opcode.SET_VBUCKET_STATE: 0,
    Opcode.SYSTEM_EVENT: 0,
    Opcode.PREPARE: PREPARE_SURPLUS,
    Opcode.COMMIT: 0,
    Opcode.ABORT: 0,
    Opcode.SEQNO_ADVANCED: 0,
    Opcode.OSO_SNAPSHOT: 0,
    Opcode.CACHE_TRANSFER: 0,
    Opcode.CACHE_TRANSFER_END: 0,
}
"""Opcode of a counted request -> bytes it counts beyond its size on the wire."""


def counted_size(opcode: int, size: int) -> int:
    """The bytes a producer's request of ``size`` bytes takes of the window; 0 if not counted."""
    surplus = COUNTED.get(opcode)
    return 0 if surplus is None else size + surplus


def _check_window(window: int) -> None:
    if not 0 <= window <= WINDOW_MAX:
        raise LocalProtocolError(f"flow control window of {window} bytes, allowed 0..{WINDOW_MAX}")


class ProducerWindow:
    """The producer's count of what the consumer has not acknowledged."""

    __slots__ = ("_progress_at", "outstanding", "total_acknowledged", "total_sent", "window")

    def __init__(self, window: int = 0) -> None:
        """Start with nothing outstanding; window 0 is no flow control."""
        _check_window(window)
        self.window = window
        self.outstanding = 0
        self.total_sent = 0
        self.total_acknowledged = 0
        self._progress_at: float | None = None

    @property
    def is_full(self) -> bool:
        """Whether nothing but NOOP may be sent now."""
        return self.window > 0 and self.outstanding >= self.window

    @property
    def room(self) -> int | None:
        """Bytes until the window is full, None without flow control; one message may exceed it."""
        return max(0, self.window - self.outstanding) if self.window else None

    def resize(self, window: int) -> None:
        """Take a new window in the middle of a connection; the count stays, 0 clears it."""
        _check_window(window)
        self.window = window
        if window == 0:
            self.outstanding = 0
            self._progress_at = None

    def sent(self, size: int, *, now: float) -> None:
        """Count a message of this counted size that goes to the socket."""
        if self.is_full and size:
            raise LocalProtocolError(
                f"{size} bytes sent into a full window: {self.outstanding} of {self.window}"
            )
        self.total_sent += size
        if self.window:
            self.outstanding += size
            if self.is_full:
                self._progress_at = now

    def acknowledged(self, size: int, *, now: float) -> None:
        """Give back what the consumer says it processed, never below 0."""
        self.total_acknowledged += size
        self.outstanding = max(0, self.outstanding - size)
        self._progress_at = now if self.is_full else None

    def is_stuck(self, *, now: float, after_seconds: float = STUCK_SECONDS) -> bool:
        """Whether the window has been full without an acknowledgement for too long."""
        return self._progress_at is not None and now - self._progress_at >= after_seconds


class ConsumerWindow:
    """The consumer's count of what it received, processed and acknowledged."""

    __slots__ = (
        "_ack_interval_seconds",
        "_acknowledged_at",
        "_threshold",
        "freed",
        "held",
        "total_acknowledged",
        "window",
    )

    def __init__(
        self,
        window: int,
        *,
        now: float,
        ack_threshold: int | None = None,
        ack_interval_seconds: float = ACK_INTERVAL_SECONDS,
    ) -> None:
        """Start with nothing received; the threshold is a fifth of the window unless given."""
        _check_window(window)
        self.window = window
        self.held = 0
        self.freed = 0
        self.total_acknowledged = 0
        self._threshold = window // ACK_SHARE_DIVISOR if ack_threshold is None else ack_threshold
        self._ack_interval_seconds = ack_interval_seconds
        self._acknowledged_at = now

    def received(self, size: int) -> None:
        """Count a message, or a run of them, by counted size."""
        if self.window:
            self.held += size

    def processed(self, size: int) -> None:
        """Free what the owner is done with; more than is held is our own mistake."""
        if not self.window:
            return
        if not 0 <= size <= self.held:
            raise LocalProtocolError(f"{size} bytes processed, {self.held} are held")
        self.held -= size
        self.freed += size

    def is_due(self, now: float) -> bool:
        """Whether `take_ack` gives something now."""
        return self.freed > self._threshold or (
            self.freed > 0 and now - self._acknowledged_at >= self._ack_interval_seconds
        )

    def take_ack(self, *, now: float) -> int:
        """The bytes to acknowledge now, 0 for none; they count as acknowledged from here on."""
        if not self.is_due(now):
            return 0
        size = min(self.freed, ACK_BYTES_MAX)
        self.freed -= size
        self.total_acknowledged += size
        self._acknowledged_at = now
        return size

    def ack_at(self) -> float | None:
        """When `take_ack` gives something even if nothing more is processed; None: never."""
        return self._acknowledged_at + self._ack_interval_seconds if self.freed else None


class NoopSender:
    """The producer's end: when to ask, whether the answer fits, when to give up."""

    __slots__ = ("_asked_at", "_heard_at", "_idle_timeout_seconds", "_interval", "_next", "waiting")

    def __init__(
        self,
        *,
        now: float,
        interval_seconds: float = NOOP_INTERVAL_SECONDS,
        idle_timeout_seconds: float = IDLE_TIMEOUT_SECONDS,
    ) -> None:
        """Start as if one had just been answered."""
        self._interval = interval_seconds
        self._idle_timeout_seconds = idle_timeout_seconds
        self._asked_at = now
        self._heard_at = now
        self._next = NOOP_OPAQUE_BASE
        self.waiting: int | None = None

    def set_interval(self, seconds: float) -> None:
        """Take the interval the consumer asked for."""
        if not seconds >= NOOP_INTERVAL_SECONDS_MIN:
            raise LocalProtocolError(
                f"noop interval of {seconds} s, at least {NOOP_INTERVAL_SECONDS_MIN}"
            )
        self._interval = seconds

    def heard(self, *, now: float) -> None:
        """Note that bytes came from the peer, whatever they say."""
        self._heard_at = now

    def take_noop(self, *, now: float) -> int | None:
        """The opaque of the NOOP to send now, or None; it counts as sent from here on."""
        # The same sum as in `next_at`: a difference may fall short of it by rounding.
        if self.waiting is not None or now < self._asked_at + self._interval:
            return None
        self.waiting, self._next = self._next, self._next + 1
        self._asked_at = now
        return self.waiting

    def answered(self, opaque: int) -> None:
        """Take the reply; one to a question we did not ask ends the connection."""
        if opaque != self.waiting:
            expected = "none is expected" if self.waiting is None else f"expected {self.waiting}"
            raise RemoteProtocolError(f"noop reply with opaque {opaque}, {expected}", fatal=True)
        self.waiting = None

    def is_dead(self, *, now: float) -> bool:
        """Whether the peer was silent for longer than it may be."""
        return now >= self.dead_at()

    def dead_at(self) -> float:
        """When the peer counts as gone if it stays silent."""
        patience = max(SILENT_INTERVALS * self._interval, self._idle_timeout_seconds)
        return self._heard_at + patience

    def next_at(self) -> float:
        """The next moment at which `take_noop` or `is_dead` may change."""
        asks_at = self.dead_at() if self.waiting is not None else self._asked_at + self._interval
        return min(asks_at, self.dead_at())


class NoopWatch:
    """The consumer's end: whether the producer has gone silent.

    Watching begins with the first stream: older producers send no NOOP before there is one.
    """

    __slots__ = ("_interval", "heard_at", "is_watching")

    def __init__(self, *, interval_seconds: float, now: float) -> None:
        """Start not watching."""
        self._interval = interval_seconds
        self.heard_at = now
        self.is_watching = False

    def watch(self, *, now: float) -> None:
        """Begin, with the first accepted stream; later calls change nothing."""
        if not self.is_watching:
            self.is_watching = True
            self.heard_at = now

    def heard(self, *, now: float) -> None:
        """Note that bytes came from the peer, whatever they say."""
        self.heard_at = now

    def dead_at(self) -> float | None:
        """When the producer counts as gone if it stays silent; None: not watching."""
        return self.heard_at + SILENT_INTERVALS * self._interval if self.is_watching else None

    def is_dead(self, *, now: float) -> bool:
        """Whether nothing came for two intervals."""
        dead_at = self.dead_at()
        return dead_at is not None and now >= dead_at
