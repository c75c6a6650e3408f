"""The words of a move: its steps, what happens to it (events), what it wants done (actions).

A `Mover` is given events and gives actions; whoever owns it does them. The proxy's events
(`headrace.cluster.proxy`) are events of a move as well.

Imports: cluster.chains, cluster.copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.cluster.chains import Chain
    from headrace.cluster.copies import Copy
    from headrace.wire.opcodes import VBucketState


class Step(Enum):
    """Where a move stands: what it waits for."""

    WRITING = "writing"  # it is written down
    LINKING = "linking"  # both ends are open, and with that every older connection is ended
    INSPECTING = "inspecting"  # what the copies say decides where to begin
    REOPENING = "reopening"  # the source serves again after a takeover that broke
    PROMOTING = "promoting"  # the target serves after a takeover that broke
    PREPARING = "preparing"  # the target has a replica
    ADDING = "adding"  # the target's stream stands
    CATCHING_UP = "catching-up"  # the target is a few items behind
    CLOSING = "closing"  # the stream is closed
    TAKING_OVER = "taking-over"  # the takeover conversation
    ARMING = "arming"  # the active copy knows its chain
    PUBLISHING = "publishing"  # every node has the new map
    DROPPING = "dropping"  # copies nobody wants are gone
    RESTORING = "restoring"  # backing out: the target gave up what it was given
    FORGETTING = "forgetting"  # the journal has forgotten it
    WAITING = "waiting"  # time passes before another attempt
    FINISHED = "finished"


class Ending(Enum):
    """How a move ended."""

    DONE = "done"
    BACKED_OUT = "backed out"  # the source owns it as before, nothing is left behind
    GIVEN_UP = "given up"  # the same, because the copy did not come about
    PENDING = "pending"  # declared: `headrace move --resume` goes on
    CONFLICT = "conflict"  # a person must decide


# -- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveEvent:
    """Something that happened to a move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalWritten(MoveEvent):
    """The journal says what it was to say, durably."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksOpened(MoveEvent):
    """Both ends are open; older connections of the same name are ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLost(MoveEvent):
    """One of the two connections went, or could not be made."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesSeen(MoveEvent):
    """What the nodes say; None where a node could not be asked.

    ``passed`` counts the items that went to the target on the same link for other moves.
    """

    producer: Copy | None
    target: Copy | None
    passed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSet(MoveEvent):
    """A node has given its copy the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapPublished(MoveEvent):
    """Every node that answers has the new map; ``missing`` did not answer."""

    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyDropped(MoveEvent):
    """A node has no copy of the vbucket any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePassed(MoveEvent):
    """The time asked for is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut(MoveEvent):
    """Nothing happened for longer than a step may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(MoveEvent):
    """A node did not do what it was asked; ``reachable`` says whether it answered at all."""

    node: str
    text: str
    reachable: bool = True


# -- actions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something to be done for a move; each is answered by the event its line names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJournal(Action):
    """Write down that the move stands at this step. JournalWritten."""

    step: Step


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetMove(Action):
    """Take it out of the journal. JournalWritten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLinks(Action):
    """Have both ends open, under the move's name. LinksOpened or LinkLost.

    A link this manager opened before may serve, unless a ``fresh`` one is wanted: opening ends
    every older connection of that name at both nodes.
    """

    fresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AskCopies(Action):
    """Ask both nodes for their copies. CopiesSeen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetState(Action):
    """Give a copy a state, creating it; an active one also its chain. StateSet or Refused."""

    node: str
    state: VBucketState
    topology: Chain = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AddStream(Action):
    """ADD_STREAM through the proxy. StreamAdded or StreamRefused, later StreamEnded."""

    flags: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseStream(Action):
    """CLOSE_STREAM through the proxy. StreamClosed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishMap(Action):
    """Give every node the map with this chain: the new owner first, then the old. MapPublished."""

    chain: Chain
    first: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropCopy(Action):
    """Delete a copy, unless it is active. CopyDropped or Refused."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait(Action):
    """Let time pass. TimePassed."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish(Action):
    """The move is over; no event follows."""

    ending: Ending
    text: str = ""
