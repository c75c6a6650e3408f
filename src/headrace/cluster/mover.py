"""Mover: one move of one vbucket, as a table of steps. No socket, no clock, no file.

    WRITING -> LINKING -> INSPECTING -> PREPARING -> ADDING -> CATCHING_UP -> CLOSING
    -> TAKING_OVER -> ARMING -> PUBLISHING -> DROPPING -> FORGETTING -> FINISHED

A replica's move leaves out TAKING_OVER. A move that begins, one that lost a link and one that is
resumed after a crash take the same road: the links are opened (which ends whatever an earlier
manager had under way), the copies are read, and `DECISIONS` says where to go on.

Rules
- One owner: the source is made active again only when it covers the target's copy (nothing is lost:
  a new branch begins at its own end, so no consumer is rolled back), the target only when its last
  snapshot is whole and it covers the source's. If neither does, or a node that may own the vbucket
  does not answer, nothing is changed: the move is declared pending or in conflict.
- The target is believed to be the owner when its answer to SET_VBUCKET_STATE(active) went by and
  the stream ended with "finished", or when it says so itself; never because time passed.
- Every attempt is counted (`ATTEMPTS` unless told otherwise), every wait bounded.
- A copy that moves is waited for, however slow it is. One that stands still for too long
  (`headrace.cluster.stillness`) gets a new stream; after `RESTARTS_MAX` of them that brought
  nothing new the move undoes what it did and says where the copy stood.
- Events that only tell (markers, acknowledgements) change nothing; any other event without an entry
  for its step is an error of ours.

Imports: errors, wire.opcodes, cluster.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, ClassVar, Final

from headrace.cluster.copies import Copy, covers
from headrace.cluster.planning import Kind, Move
from headrace.cluster.proxy import (
    MarkerAcknowledged,
    MarkerSeen,
    ProxyEvent,
    RolledBack,
    StateAnswered,
    StateSent,
    StreamAdded,
    StreamAsked,
    StreamClosed,
    StreamEnded,
    StreamLost,
    StreamRefused,
)
from headrace.cluster.steps import (
    Action,
    AddStream,
    AskCopies,
    CloseStream,
    CopiesSeen,
    CopyDropped,
    DropCopy,
    Ending,
    Finish,
    ForgetMove,
    JournalWritten,
    LinkLost,
    LinksOpened,
    MapPublished,
    MoveEvent,
    OpenLinks,
    PublishMap,
    Refused,
    SetState,
    StateSet,
    Step,
    TimedOut,
    TimePassed,
    Wait,
    WriteJournal,
)
from headrace.cluster.stillness import Stillness
from headrace.errors import LocalProtocolError
from headrace.wire.opcodes import Status, StreamEndReason, StreamFlag, VBucketState

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.cluster.chains import Chain

Event = MoveEvent | ProxyEvent

ATTEMPTS: Final = 8
"""How often a move begins before it is left to --resume: about 16 seconds of waiting."""
ATTEMPTS_MAX: Final = 1000
ATTEMPTS_BACKING_OUT: Final = 2
WAIT_SECONDS: Final = 0.25
WAIT_SECONDS_MAX: Final = 4.0
POLL_SECONDS: Final = 0.05
RESTARTS_MAX: Final = 3
"""Streams in a row that are added for a copy that does not come further."""
CLOSE_ENOUGH: Final = 64
"""Items the target may lack when its stream is exchanged for the takeover's."""


class View(Enum):
    """What a copy is to a decision."""

    ACTIVE = auto()
    PASSIVE = auto()  # replica or pending
    DEAD = auto()
    ABSENT = auto()
    SILENT = auto()  # the node does not answer


class Decision(Enum):
    """Where to go on, seen what the copies are."""

    COPY = auto()  # the source owns it: begin, or begin again
    PUBLISH = auto()  # the target owns it: tell everyone
    COMPARE = auto()  # nobody serves it: who has everything?
    RETRY = auto()  # a node is silent: ask again, then declare it pending
    CONFLICT = auto()


VIEWS: Final[dict[VBucketState | None, View]] = {
    VBucketState.ACTIVE: View.ACTIVE,
    VBucketState.REPLICA: View.PASSIVE,
    VBucketState.PENDING: View.PASSIVE,
    VBucketState.DEAD: View.DEAD,
    None: View.ABSENT,
}

_NOT_ACTIVE: Final = (View.PASSIVE, View.DEAD, View.ABSENT)

DECISIONS: Final[dict[tuple[View, View], Decision]] = {
    (View.ACTIVE, View.ACTIVE): Decision.CONFLICT,
    **{(View.ACTIVE, view): Decision.COPY for view in _NOT_ACTIVE},
    (View.ACTIVE, View.SILENT): Decision.RETRY,
    **{(view, View.ACTIVE): Decision.PUBLISH for view in (*_NOT_ACTIVE, View.SILENT)},
    **{(View.DEAD, view): Decision.COMPARE for view in _NOT_ACTIVE},
    (View.DEAD, View.SILENT): Decision.RETRY,
    **{(View.SILENT, view): Decision.RETRY for view in (*_NOT_ACTIVE, View.SILENT)},
    **{(View.PASSIVE, view): Decision.CONFLICT for view in _NOT_ACTIVE},
    **{(View.ABSENT, view): Decision.CONFLICT for view in _NOT_ACTIVE},
    # The source gave it up already: the target owns it, and will say so when it answers.
    (View.PASSIVE, View.SILENT): Decision.RETRY,
    (View.ABSENT, View.SILENT): Decision.RETRY,
}
"""(copy at the source, copy at the target) -> where an active copy's move goes on."""

REPLICA_DECISIONS: Final[dict[tuple[View, View], Decision]] = {
    **{(View.ACTIVE, view): Decision.COPY for view in _NOT_ACTIVE},
    (View.ACTIVE, View.SILENT): Decision.RETRY,
    **{(View.SILENT, view): Decision.RETRY for view in View},
    **{(view, other): Decision.CONFLICT for view in _NOT_ACTIVE for other in View},
    (View.ACTIVE, View.ACTIVE): Decision.CONFLICT,
}
"""The same for a replica's move: the producer stays active whatever happens."""

TELLING: Final = (MarkerSeen, MarkerAcknowledged, StateSent, StreamAsked, RolledBack)


WITHOUT_STREAM: Final = (
    Step.WRITING,
    Step.INSPECTING,
    Step.REOPENING,
    Step.PROMOTING,
    Step.PREPARING,
    Step.ARMING,
    Step.PUBLISHING,
    Step.DROPPING,
    Step.RESTORING,
    Step.FORGETTING,
    Step.WAITING,
)
"""Steps with no stream of their own: what the link does is no business of theirs."""
OF_STREAMS: Final = (StreamAdded, StreamRefused, StreamClosed, StreamEnded, StreamLost)


class Mover:
    """One move, from whatever state it is found in to its end."""

    def __init__(self, move: Move, *, attempts_max: int = ATTEMPTS) -> None:
        """Stand before the first step."""
        self.move = move
        self.step = Step.WRITING
        self.ending: Ending | None = None
        self.text = ""
        self.attempts = 0
        self._attempts_max = attempts_max
        self.items_left: int | None = None
        self.backing_out = False
        self._fresh = False
        self._target_is_active = False
        self._drops: list[str] = []
        self._left_behind: list[str] = []
        self._stillness = Stillness()
        self._waited_seconds = 0.0
        self._reached_seqno = 0
        self._restarts = 0
        self._is_restarting = False
        self._given_up = ""

    @property
    def is_finished(self) -> bool:
        """Whether no event is expected any more."""
        return self.step is Step.FINISHED

    def start(self) -> list[Action]:
        """The first action."""
        return [WriteJournal(step=Step.WRITING)]

    def back_out(self) -> None:
        """Undo what can be undone, at the next safe place.

        A takeover that has begun is let finish: it is short, and its outcome is one owner.
        """
        self.backing_out = True

    def break_off(self, text: str) -> None:
        """Leave it as it is, for --resume: the manager itself cannot go on."""
        self._finish(Ending.PENDING, text)

    def receive(self, event: Event) -> list[Action]:
        """Take an event; what is to be done now."""
        if self.is_finished or isinstance(event, TELLING):
            return []
        if isinstance(event, StateAnswered):
            good = event.status == Status.SUCCESS
            self._target_is_active = good and event.state == VBucketState.ACTIVE
            return []
        handle = self.TABLE.get((self.step, type(event)))
        if handle is None:
            raise LocalProtocolError(
                f"{type(event).__name__} in step {self.step.value} of the move {self.move}"
            )
        return handle(self, event)

    # -- where to begin --------------------------------------------------------------------------

    def _written(self, _event: Event) -> list[Action]:
        return self._forget(Ending.BACKED_OUT) if self.backing_out else self._link()

    def _link(self, _event: Event | None = None) -> list[Action]:
        self.step = Step.LINKING
        self._target_is_active = False
        fresh, self._fresh = self._fresh, False
        return [OpenLinks(fresh=fresh)]

    def _inspect(self, event: Event) -> list[Action]:
        # Without a link what the nodes say may still decide, or has to be declared.
        if isinstance(event, LinkLost):
            self.text = event.text
        self.step = Step.INSPECTING
        return [AskCopies()]

    def _decide(self, event: Event) -> list[Action]:
        assert isinstance(event, CopiesSeen)
        views = (_view(event.producer), _view(event.target))
        if self._is_only_a_drop() and views[0] is View.ACTIVE:
            return self._arm()
        table = DECISIONS if self.move.kind is Kind.ACTIVE else REPLICA_DECISIONS
        return self.DECIDED[table[views]](self, event)

    def _is_only_a_drop(self) -> bool:
        """Whether the move makes no copy: a replica nobody wants goes away."""
        return self.move.kind is Kind.REPLICA and self.move.target in self.move.before

    def _conflict(self, event: CopiesSeen) -> list[Action]:
        words = f"{_words(event.producer)} and {_words(event.target)}"
        return self._finish(Ending.CONFLICT, f"{words}; a person must decide who owns it")

    def _declare(self, event: CopiesSeen) -> list[Action]:
        copies = ((self.move.producer, event.producer), (self.move.target, event.target))
        silent = [name for name, copy in copies if copy is None]
        known = [_words(copy) for _, copy in copies if copy is not None]
        return self._again("; ".join([f"{' and '.join(silent)} cannot be asked", *known]))

    def _compare(self, event: CopiesSeen) -> list[Action]:
        source, target = event.producer, event.target
        assert source is not None
        assert target is not None
        if covers(source, target):
            self.step = Step.REOPENING
            return [self._activate(self.move.producer, self.move.before)]
        if target.is_complete and covers(target, source):
            self.step = Step.PROMOTING
            return [self._activate(self.move.target, self.move.after)]
        return self._finish(
            Ending.CONFLICT,
            f"{_words(source)} at seqno {source.high_seqno}, {_words(target)} at seqno "
            f"{target.high_seqno}, and neither has everything the other has",
        )

    def _activate(self, node: str, chain: Chain) -> SetState:
        return SetState(node=node, state=VBucketState.ACTIVE, topology=chain)

    # -- the copy --------------------------------------------------------------------------------

    def _copy(self, _event: Event | None = None) -> list[Action]:
        if self.backing_out:
            return self._restore()
        self.step = Step.PREPARING
        return [SetState(node=self.move.target, state=VBucketState.REPLICA)]

    def _add(self, _event: Event) -> list[Action]:
        self.step = Step.ADDING
        self._is_restarting = False
        return [AddStream(flags=0)]

    def _follow(self, _event: Event) -> list[Action]:
        self.step = Step.CATCHING_UP
        self._stillness.reset()
        return [AskCopies()]

    def _measure(self, event: Event) -> list[Action]:
        assert isinstance(event, CopiesSeen)
        if event.producer is None or event.target is None:
            return self._again("a node stopped answering")
        self.items_left = max(0, event.producer.high_seqno - event.target.high_seqno)
        if not self.backing_out and not self._is_near(event.target, self.items_left):
            place = (event.target.high_seqno, event.target.snapshot_end)
            if not self._stillness.look(self._waited_seconds, place, event.passed):
                return [Wait(seconds=POLL_SECONDS)]
            self._restart(event.target, self.items_left)
        self.step = Step.CLOSING
        return [CloseStream()]

    def _restart(self, target: Copy, lag: int) -> None:
        """The stream is closed next: a new one follows, or none when several brought nothing."""
        if target.high_seqno > self._reached_seqno:
            self._reached_seqno, self._restarts = target.high_seqno, 0
        seconds = self._stillness.seconds(self._waited_seconds)
        self.text = (
            f"the copy on {target.node} stood at seqno {target.high_seqno} for {seconds:.0f} s, "
            f"with {lag} seqnos to come"
        )
        self._is_restarting = self._restarts < RESTARTS_MAX
        self._restarts += 1
        if not self._is_restarting:
            self._given_up = f"{self.text}, after {RESTARTS_MAX} new streams"
            self.backing_out = True

    def _is_near(self, target: Copy, lag: int) -> bool:
        """A takeover brings the rest; a replica must be able to serve when it is called upon."""
        if self.move.kind is Kind.ACTIVE:
            return lag <= CLOSE_ENOUGH
        return lag <= CLOSE_ENOUGH and target.is_complete

    def _ask_again(self, _event: Event) -> list[Action]:
        self._waited_seconds += POLL_SECONDS
        return [AskCopies()]

    def _closed(self, event: Event) -> list[Action]:
        if self.backing_out:
            return self._restore()
        if self._is_restarting:
            return self._add(event)
        if self.move.kind is Kind.REPLICA:
            return self._arm()
        self.step = Step.TAKING_OVER
        return [WriteJournal(step=Step.TAKING_OVER)]

    # -- the takeover ----------------------------------------------------------------------------

    def _take_over(self, _event: Event) -> list[Action]:
        return [AddStream(flags=int(StreamFlag.TAKEOVER))]

    def _nothing(self, _event: Event) -> list[Action]:
        return []

    def _taken_over(self, event: Event) -> list[Action]:
        assert isinstance(event, StreamEnded)
        if event.reason == StreamEndReason.CLOSED:
            return []  # the stream before it, whose end was on its way when the takeover was added
        if event.reason == StreamEndReason.FINISHED and self._target_is_active:
            return self._arm()
        return self._again(f"the takeover ended with reason {event.reason}", fresh=True)

    def _arm(self, _event: Event | None = None) -> list[Action]:
        """Give the active copy its new chain; before the map, so that durable writes know it."""
        self.step = Step.ARMING
        owner = self.move.after[0]
        assert owner is not None
        return [self._activate(owner, self.move.after)]

    def _publish(self, _event: Event) -> list[Action]:
        self.step = Step.PUBLISHING
        first = (self.move.target, self.move.producer)
        return [PublishMap(chain=self.move.after, first=first)]

    def _published(self, event: Event) -> list[Action]:
        assert isinstance(event, MapPublished)
        self.items_left = 0
        self._left_behind = list(event.missing)
        self._drops = list(self.move.dropped)
        self.step = Step.DROPPING
        if self.move.kept_as_replica:
            assert self.move.source is not None
            return [SetState(node=self.move.source, state=VBucketState.REPLICA)]
        return self._drop_next()

    def _drop_next(self, _event: Event | None = None) -> list[Action]:
        if self._drops:
            return [DropCopy(node=self._drops.pop(0))]
        if self._left_behind:
            names = ", ".join(dict.fromkeys(self._left_behind))
            why = f" ({self.text})" if self.text else ""
            return self._finish(
                Ending.PENDING, f"{self.move.after[0]} owns it; {names} is still to be told{why}"
            )
        return self._forget(Ending.DONE)

    def _drop_failed(self, event: Event) -> list[Action]:
        assert isinstance(event, Refused)
        self._left_behind.append(event.node)
        self.text = event.text
        return self._drop_next()

    # -- ends ------------------------------------------------------------------------------------

    def _restore(self) -> list[Action]:
        """The source owns it: the target gives up what this move gave it."""
        self.step = Step.RESTORING
        if self.move.target in self.move.before:
            return [SetState(node=self.move.target, state=VBucketState.REPLICA)]
        return [DropCopy(node=self.move.target)]

    def _restored(self, event: Event) -> list[Action]:
        left = f"{self.move.target} may hold a copy" if isinstance(event, Refused) else ""
        if self._given_up:
            return self._forget(Ending.GIVEN_UP, "; ".join(filter(None, (self._given_up, left))))
        return self._forget(Ending.BACKED_OUT, left)

    def _forget(self, ending: Ending, text: str = "") -> list[Action]:
        self.step = Step.FORGETTING
        self.ending, self.text = ending, text
        return [ForgetMove()]

    def _forgotten(self, _event: Event) -> list[Action]:
        assert self.ending is not None
        return self._finish(self.ending, self.text)

    def _finish(self, ending: Ending, text: str = "") -> list[Action]:
        self.step = Step.FINISHED
        self.ending, self.text = ending, text
        return [Finish(ending=ending, text=text)]

    def _again(self, text: str, *, fresh: bool = False) -> list[Action]:
        """Begin again from what the copies say, after a while; give up after many times."""
        self.attempts += 1
        self.text = text
        self._fresh = self._fresh or fresh
        limit = self._attempts_max
        if self.backing_out:
            limit = min(limit, ATTEMPTS_BACKING_OUT)
        if self.attempts >= limit:
            return self._finish(Ending.PENDING, text)
        self.step = Step.WAITING
        seconds = min(WAIT_SECONDS * 2 ** (self.attempts - 1), WAIT_SECONDS_MAX)
        return [Wait(seconds=seconds)]

    def _failed(self, event: Event) -> list[Action]:
        assert isinstance(event, LinkLost | Refused | StreamRefused)
        # Whatever broke in a takeover, nothing of it may happen after the copies are read.
        return self._again(event.text, fresh=self.step is Step.TAKING_OVER)

    def _ended(self, event: Event) -> list[Action]:
        assert isinstance(event, StreamEnded)
        return self._again(f"the stream ended with reason {event.reason}")

    def _lost(self, event: Event) -> list[Action]:
        assert isinstance(event, StreamLost)
        text = f"the copy on {self.move.target} was changed by others, and its stream was closed"
        return self._again(text, fresh=self.step is Step.TAKING_OVER)

    def _ended_early(self, event: Event) -> list[Action]:
        """The end of a stream that is being closed, or one before it: the close is answered yet."""
        assert isinstance(event, StreamEnded | StreamLost)
        return []

    def _stuck(self, _event: Event) -> list[Action]:
        return self._again(f"nothing happened while {self.step.value}", fresh=True)

    # -- the tables --------------------------------------------------------------------------------

    DECIDED: ClassVar[dict[Decision, Callable[[Mover, CopiesSeen], list[Action]]]] = {
        Decision.COPY: _copy,
        Decision.PUBLISH: _arm,
        Decision.COMPARE: _compare,
        Decision.RETRY: _declare,
        Decision.CONFLICT: _conflict,
    }

    TABLE: ClassVar[dict[tuple[Step, type[Event]], Callable[[Mover, Event], list[Action]]]] = {
        (Step.WRITING, JournalWritten): _written,
        (Step.LINKING, LinksOpened): _inspect,
        (Step.LINKING, LinkLost): _inspect,
        (Step.INSPECTING, CopiesSeen): _decide,
        (Step.REOPENING, StateSet): _copy,
        (Step.REOPENING, Refused): _failed,
        (Step.PROMOTING, StateSet): _publish,
        (Step.PROMOTING, Refused): _failed,
        (Step.PREPARING, StateSet): _add,
        (Step.PREPARING, Refused): _failed,
        (Step.ADDING, StreamAdded): _follow,
        (Step.ADDING, StreamRefused): _failed,
        (Step.ADDING, StreamEnded): _ended_early,
        (Step.ADDING, StreamLost): _ended_early,
        (Step.ADDING, LinkLost): _failed,
        (Step.ADDING, TimedOut): _stuck,
        (Step.CATCHING_UP, CopiesSeen): _measure,
        (Step.CATCHING_UP, TimePassed): _ask_again,
        (Step.CATCHING_UP, StreamEnded): _ended,
        (Step.CATCHING_UP, StreamLost): _lost,
        (Step.CATCHING_UP, LinkLost): _failed,
        (Step.CLOSING, StreamClosed): _closed,
        (Step.CLOSING, StreamEnded): _ended_early,
        (Step.CLOSING, StreamLost): _ended_early,
        (Step.CLOSING, LinkLost): _failed,
        (Step.CLOSING, TimedOut): _stuck,
        (Step.TAKING_OVER, JournalWritten): _take_over,
        (Step.TAKING_OVER, StreamAdded): _nothing,
        (Step.TAKING_OVER, StreamRefused): _failed,
        (Step.TAKING_OVER, StreamEnded): _taken_over,
        (Step.TAKING_OVER, StreamLost): _lost,
        (Step.TAKING_OVER, LinkLost): _failed,
        (Step.TAKING_OVER, TimedOut): _stuck,
        (Step.ARMING, StateSet): _publish,
        (Step.ARMING, Refused): _failed,
        (Step.PUBLISHING, MapPublished): _published,
        (Step.DROPPING, StateSet): _drop_next,
        (Step.DROPPING, CopyDropped): _drop_next,
        (Step.DROPPING, Refused): _drop_failed,
        (Step.RESTORING, StateSet): _restored,
        (Step.RESTORING, CopyDropped): _restored,
        (Step.RESTORING, Refused): _restored,
        (Step.FORGETTING, JournalWritten): _forgotten,
        (Step.WAITING, TimePassed): _link,
        **dict.fromkeys([(step, LinkLost) for step in WITHOUT_STREAM], _nothing),
        # What came while it waited may be read when it links again.
        **dict.fromkeys(
            [(step, kind) for step in (*WITHOUT_STREAM, Step.LINKING) for kind in OF_STREAMS],
            _nothing,
        ),
    }
    """(step, kind of event) -> what follows; a pair that is missing is an error of ours."""


def _view(copy: Copy | None) -> View:
    return View.SILENT if copy is None else VIEWS[copy.state]


def _words(copy: Copy | None) -> str:
    return "an unknown copy" if copy is None else f"{copy.node} has it {copy.word}"
