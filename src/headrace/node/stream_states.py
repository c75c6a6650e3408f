"""Where a stream can stand, what moves it, and the table of both.

    PENDING ----> BACKFILLING <---> IN_MEMORY ----> DEAD     (every state can end)
       |  `-----------|---------------^
       `------------> TAKEOVER_SEND <---> TAKEOVER_WAIT

A stream that hands its vbucket over is never IN_MEMORY: after its backfill, or at once, it sends
what memory has in TAKEOVER_SEND and waits for each answer in TAKEOVER_WAIT. A missing entry of the
table is a mistake of ours.

Imports: nothing of ours.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final


class State(Enum):
    """Where a stream stands."""

    PENDING = auto()
    BACKFILLING = auto()
    IN_MEMORY = auto()
    TAKEOVER_SEND = auto()
    TAKEOVER_WAIT = auto()
    DEAD = auto()


class Cause(Enum):
    """What moves a stream."""

    DISK = auto()  # memory does not hold what comes next
    MEMORY = auto()  # it does
    TAKEOVER = auto()  # it does, and the vbucket is to be handed over
    ASKED = auto()  # the consumer was asked to change its vbucket's state
    ANSWERED = auto()  # it did, and there is more to send
    END = auto()


TRANSITIONS: Final[dict[tuple[State, Cause], State]] = {
    (State.PENDING, Cause.DISK): State.BACKFILLING,
    (State.PENDING, Cause.MEMORY): State.IN_MEMORY,
    (State.PENDING, Cause.TAKEOVER): State.TAKEOVER_SEND,
    (State.BACKFILLING, Cause.DISK): State.BACKFILLING,
    (State.BACKFILLING, Cause.MEMORY): State.IN_MEMORY,
    (State.BACKFILLING, Cause.TAKEOVER): State.TAKEOVER_SEND,
    (State.IN_MEMORY, Cause.DISK): State.BACKFILLING,
    (State.TAKEOVER_SEND, Cause.DISK): State.BACKFILLING,
    (State.TAKEOVER_SEND, Cause.ASKED): State.TAKEOVER_WAIT,
    (State.TAKEOVER_WAIT, Cause.ANSWERED): State.TAKEOVER_SEND,
    (State.PENDING, Cause.END): State.DEAD,
    (State.BACKFILLING, Cause.END): State.DEAD,
    (State.IN_MEMORY, Cause.END): State.DEAD,
    (State.TAKEOVER_SEND, Cause.END): State.DEAD,
    (State.TAKEOVER_WAIT, Cause.END): State.DEAD,
}


class Progress(Enum):
    """What a step left behind."""

    MORE = auto()  # the outbox is full, or this turn is over
    IDLE = auto()  # nothing to send until the vbucket changes, or an answer comes
    SLOT = auto()  # a backfill is due and waits for its turn
    ENDED = auto()  # the stream's reason says why
