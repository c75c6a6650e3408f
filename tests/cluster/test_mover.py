"""The mover: every road through a move, told by scripts of events."""

from __future__ import annotations

import itertools

import pytest

from headrace.cluster.copies import Copy
from headrace.cluster.mover import (
    ATTEMPTS,
    CLOSE_ENOUGH,
    DECISIONS,
    OF_STREAMS,
    POLL_SECONDS,
    REPLICA_DECISIONS,
    RESTARTS_MAX,
    WAIT_SECONDS_MAX,
    Event,
    Mover,
    View,
)
from headrace.cluster.planning import Kind, Move, active_move, chain_moves
from headrace.cluster.proxy import (
    MarkerSeen,
    StateAnswered,
    StateSent,
    StreamAdded,
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
from headrace.cluster.stillness import STILL_SECONDS, STILL_SECONDS_IN_LINE
from headrace.errors import LocalProtocolError
from headrace.history import BranchId, FailoverEntry, FailoverLog, Seqno
from headrace.wire.opcodes import StreamEndReason, VBucketState

S = VBucketState
LOG = FailoverLog((FailoverEntry(BranchId(7), Seqno(0)),))
OTHER_LOG = FailoverLog((FailoverEntry(BranchId(8), Seqno(0)),))
MOVE = active_move(3, ("a",), "b")
SWAP = active_move(3, ("a", "b"), "b")
(REPLICA,) = chain_moves(3, ("a", "c"), ("a", "b"))


def copy(
    node: str, state: S | None, high: int = 100, *, end: int = 0, log: FailoverLog = LOG
) -> Copy:
    return Copy(
        node=node,
        vbucket=3,
        state=state,
        high_seqno=high,
        snapshot_end=max(high, end),
        log=log if state is not None else None,
    )


def seen(source: Copy | S | None, target: Copy | S | None) -> CopiesSeen:
    """What both nodes say: a copy, a state, or None for a node that has no copy."""
    one = source if isinstance(source, Copy) else copy("a", source)
    other = target if isinstance(target, Copy) else copy("b", target)
    return CopiesSeen(producer=one, target=other)


def walk(mover: Mover, *events: Event) -> list[Action]:
    """Tell events; the actions of the last."""
    actions: list[Action] = []
    for event in events:
        actions = mover.receive(event)
    return actions


def inspected(move: Move = MOVE) -> Mover:
    """A mover that has asked for the copies."""
    mover = Mover(move)
    assert mover.start() == [WriteJournal(step=Step.WRITING)]
    assert walk(mover, JournalWritten()) == [OpenLinks(fresh=False)]
    assert walk(mover, LinksOpened()) == [AskCopies()]
    return mover


def following(move: Move = MOVE) -> Mover:
    """A mover whose stream stands."""
    mover = inspected(move)
    assert walk(mover, seen(S.ACTIVE, None)) == [SetState(node="b", state=S.REPLICA)]
    assert walk(mover, StateSet()) == [AddStream(flags=0)]
    assert walk(mover, StreamAdded(vbucket=3)) == [AskCopies()]
    return mover


def taking_over(move: Move = MOVE) -> Mover:
    """A mover in the takeover conversation."""
    mover = following(move)
    assert walk(mover, seen(S.ACTIVE, S.REPLICA)) == [CloseStream()]
    assert walk(mover, StreamClosed(vbucket=3)) == [WriteJournal(step=Step.TAKING_OVER)]
    assert walk(mover, JournalWritten()) == [AddStream(flags=1)]
    return mover


TAKEOVER: tuple[Event, ...] = (
    StreamAdded(vbucket=3),
    MarkerSeen(vbucket=3, start_seqno=1, end_seqno=2, flags=9),
    StateSent(vbucket=3, state=S.PENDING),
    StateAnswered(vbucket=3, state=S.PENDING, status=0),
    StateSent(vbucket=3, state=S.ACTIVE),
    StateAnswered(vbucket=3, state=S.ACTIVE, status=0),
    StreamEnded(vbucket=3, reason=0),
)


def ended(mover: Mover, ending: Ending, actions: list[Action]) -> str:
    (action,) = actions
    assert isinstance(action, Finish)
    assert action.ending is ending is mover.ending
    assert mover.is_finished
    return action.text


# -- the whole road --------------------------------------------------------------------------------


def test_a_move_goes_from_the_first_step_to_the_last() -> None:
    mover = taking_over()
    arm = walk(mover, *TAKEOVER)
    assert arm == [SetState(node="b", state=S.ACTIVE, topology=("b",))]
    assert walk(mover, StateSet()) == [PublishMap(chain=("b",), first=("b", "a"))]
    assert walk(mover, MapPublished()) == [DropCopy(node="a")]
    assert walk(mover, CopyDropped()) == [ForgetMove()]
    assert ended(mover, Ending.DONE, walk(mover, JournalWritten())) == ""


def test_an_owner_that_stays_as_a_replica_is_made_one() -> None:
    mover = taking_over(SWAP)
    walk(mover, *TAKEOVER, StateSet())
    assert walk(mover, MapPublished()) == [SetState(node="a", state=S.REPLICA)]
    assert walk(mover, StateSet()) == [ForgetMove()]


def test_a_replica_moves_without_a_takeover() -> None:
    mover = following(REPLICA)
    assert walk(mover, seen(S.ACTIVE, S.REPLICA)) == [CloseStream()]
    arm = walk(mover, StreamClosed(vbucket=3))
    assert arm == [SetState(node="a", state=S.ACTIVE, topology=("a", "b"))]
    assert walk(mover, StateSet()) == [PublishMap(chain=("a", "b"), first=("b", "a"))]
    assert walk(mover, MapPublished()) == [DropCopy(node="c")]


def test_a_replica_nobody_wants_goes_without_a_stream() -> None:
    (move,) = chain_moves(3, ("a", "b", "c"), ("a",))
    mover = inspected(move)
    arm = walk(mover, seen(S.ACTIVE, S.ACTIVE))
    assert arm == [SetState(node="a", state=S.ACTIVE, topology=("a",))]
    assert walk(mover, StateSet(), MapPublished()) == [DropCopy(node="b")]
    assert walk(mover, CopyDropped()) == [DropCopy(node="c")]


def test_a_target_far_behind_is_waited_for() -> None:
    mover = following()
    near = 100 - CLOSE_ENOUGH
    assert walk(mover, seen(S.ACTIVE, copy("b", S.REPLICA, near - 1))) == [Wait(seconds=0.05)]
    assert mover.items_left == CLOSE_ENOUGH + 1
    assert walk(mover, TimePassed()) == [AskCopies()]
    assert walk(mover, seen(S.ACTIVE, copy("b", S.REPLICA, near, end=100))) == [CloseStream()]


def test_a_replica_is_waited_for_until_its_snapshot_is_whole() -> None:
    mover = following(REPLICA)
    half = copy("b", S.REPLICA, 99, end=100)
    assert walk(mover, seen(S.ACTIVE, half)) == [Wait(seconds=0.05)]


def test_the_end_of_the_stream_before_does_not_end_the_takeover() -> None:
    mover = taking_over()
    late = StreamEnded(vbucket=3, reason=StreamEndReason.CLOSED)
    assert walk(mover, late) == []
    assert walk(mover, *TAKEOVER) == [SetState(node="b", state=S.ACTIVE, topology=("b",))]


# -- where to begin: every pair of copies ----------------------------------------------------------


def test_there_is_a_decision_for_every_pair_of_copies() -> None:
    every = set(itertools.product(View, View))
    assert set(DECISIONS) == every
    assert set(REPLICA_DECISIONS) == every


@pytest.mark.parametrize("target", [None, S.REPLICA, S.PENDING, S.DEAD])
def test_while_the_source_owns_it_the_target_becomes_a_replica_again(target: S | None) -> None:
    assert walk(inspected(), seen(S.ACTIVE, target)) == [SetState(node="b", state=S.REPLICA)]


@pytest.mark.parametrize("source", [None, S.DEAD, S.REPLICA, S.PENDING])
def test_once_the_target_owns_it_everyone_is_told(source: S | None) -> None:
    mover = inspected()
    arm = walk(mover, seen(source, S.ACTIVE))
    assert arm == [SetState(node="b", state=S.ACTIVE, topology=("b",))]
    assert mover.step is Step.ARMING


def test_two_owners_are_a_conflict_and_nothing_is_changed() -> None:
    mover = inspected()
    text = ended(mover, Ending.CONFLICT, walk(mover, seen(S.ACTIVE, S.ACTIVE)))
    assert "a has it active and b has it active" in text


@pytest.mark.parametrize("target", [S.PENDING, S.REPLICA, S.DEAD, None])
def test_a_source_that_has_everything_serves_again(target: S | None) -> None:
    mover = inspected()
    held = copy("b", target, 90) if target is not None else copy("b", None)
    reopen = walk(mover, seen(S.DEAD, held))
    assert reopen == [SetState(node="a", state=S.ACTIVE, topology=("a",))]
    assert walk(mover, StateSet()) == [SetState(node="b", state=S.REPLICA)], "and begins again"


def test_a_target_that_is_ahead_and_whole_becomes_the_owner() -> None:
    mover = inspected()
    promote = walk(mover, seen(copy("a", S.DEAD, 90), copy("b", S.PENDING, 100)))
    assert promote == [SetState(node="b", state=S.ACTIVE, topology=("b",))]
    assert walk(mover, StateSet()) == [PublishMap(chain=("b",), first=("b", "a"))]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (copy("a", S.DEAD, 90), copy("b", S.PENDING, 100, end=110)),
        (copy("a", S.DEAD, 90, log=OTHER_LOG), copy("b", S.PENDING, 100)),
    ],
)
def test_when_neither_has_everything_a_person_decides(source: Copy, target: Copy) -> None:
    mover = inspected()
    text = ended(mover, Ending.CONFLICT, walk(mover, seen(source, target)))
    assert "neither has everything" in text


@pytest.mark.parametrize("target", [None, S.REPLICA, S.DEAD])
def test_a_source_that_is_neither_active_nor_dead_is_a_conflict(target: S | None) -> None:
    for source in (S.REPLICA, None):
        mover = inspected()
        ended(mover, Ending.CONFLICT, walk(mover, seen(source, target)))


@pytest.mark.parametrize(
    "event",
    [
        CopiesSeen(producer=None, target=copy("b", S.PENDING)),
        CopiesSeen(producer=copy("a", S.DEAD), target=None),
        CopiesSeen(producer=copy("a", S.ACTIVE), target=None),
        CopiesSeen(producer=None, target=None),
    ],
)
def test_a_node_that_stays_silent_leaves_a_declared_pending_state(event: CopiesSeen) -> None:
    mover = inspected()
    waits = []
    for _ in range(ATTEMPTS - 1):
        (wait,) = walk(mover, event)
        assert isinstance(wait, Wait)
        waits.append(wait.seconds)
        assert walk(mover, TimePassed()) == [OpenLinks(fresh=False)]
        assert walk(mover, LinkLost(text="nothing listens")) == [AskCopies()]
    assert waits == sorted(waits)
    assert waits[-1] == WAIT_SECONDS_MAX
    text = ended(mover, Ending.PENDING, walk(mover, event))
    assert "cannot be asked" in text


@pytest.mark.parametrize("attempts", [1, 2, 20])
def test_a_move_gives_up_after_as_many_attempts_as_it_was_given(attempts: int) -> None:
    mover = Mover(MOVE, attempts_max=attempts)
    walk(mover, JournalWritten(), LinkLost(text="nothing listens"))
    silent = CopiesSeen(producer=None, target=copy("b", S.PENDING))
    for _ in range(attempts - 1):
        (wait,) = walk(mover, silent)
        assert isinstance(wait, Wait)
        assert wait.seconds <= WAIT_SECONDS_MAX
        walk(mover, TimePassed(), LinkLost(text="nothing listens"))
    assert "cannot be asked" in ended(mover, Ending.PENDING, walk(mover, silent))


def test_a_silent_source_does_not_keep_the_target_from_being_told_to_all() -> None:
    mover = inspected()
    walk(mover, CopiesSeen(producer=None, target=copy("b", S.ACTIVE)), StateSet())
    drop = walk(mover, MapPublished(missing=("a",)))
    assert drop == [DropCopy(node="a")]
    end = walk(mover, Refused(node="a", text="nothing listens", reachable=False))
    assert ended(mover, Ending.PENDING, end) == (
        "b owns it; a is still to be told (nothing listens)"
    )


# -- what breaks in between ------------------------------------------------------------------------


def test_a_link_lost_while_copying_begins_again_on_any_link() -> None:
    mover = following()
    assert walk(mover, LinkLost(text="gone")) == [Wait(seconds=0.25)]
    assert walk(mover, TimePassed()) == [OpenLinks(fresh=False)]
    assert walk(mover, LinksOpened()) == [AskCopies()]


@pytest.mark.parametrize("told", range(len(TAKEOVER)))
@pytest.mark.parametrize(
    "broken",
    [
        LinkLost(text="gone"),
        TimedOut(),
        StreamRefused(vbucket=3, status=0x86, text="ETMPFAIL"),
        StreamEnded(vbucket=3, reason=StreamEndReason.STATE_CHANGED),
        StreamLost(vbucket=3),
    ],
)
def test_a_takeover_that_breaks_anywhere_is_judged_on_fresh_links(told: int, broken: Event) -> None:
    mover = taking_over()
    walk(mover, *TAKEOVER[:told])
    assert walk(mover, broken) == [Wait(seconds=0.25)]
    assert walk(mover, TimePassed()) == [OpenLinks(fresh=True)], "nothing old may still arrive"
    assert walk(mover, LinksOpened()) == [AskCopies()]


@pytest.mark.parametrize("status", [0x07, 0x22])
def test_a_target_that_refused_to_be_active_is_not_believed(status: int) -> None:
    mover = taking_over()
    walk(mover, *TAKEOVER[:4], StateAnswered(vbucket=3, state=S.ACTIVE, status=status))
    assert walk(mover, StreamEnded(vbucket=3, reason=0)) == [Wait(seconds=0.25)]


def test_an_answer_from_before_the_link_broke_counts_no_more() -> None:
    mover = taking_over()
    walk(mover, *TAKEOVER[:6], LinkLost(text="gone"), TimePassed(), LinksOpened())
    walk(mover, seen(S.ACTIVE, S.REPLICA), StateSet(), StreamAdded(vbucket=3))
    walk(mover, seen(S.ACTIVE, S.REPLICA), StreamClosed(vbucket=3), JournalWritten())
    assert walk(mover, StreamEnded(vbucket=3, reason=0)) == [Wait(seconds=0.5)]


@pytest.mark.parametrize("step", [Step.ADDING, Step.CATCHING_UP, Step.CLOSING])
def test_a_stream_that_fails_is_tried_again(step: Step) -> None:
    event: Event = StreamEnded(vbucket=3, reason=2)
    if step is Step.ADDING:
        mover = inspected()
        walk(mover, seen(S.ACTIVE, None), StateSet())
        event = StreamRefused(vbucket=3, status=2, text="KEY_EEXISTS")
    else:
        mover = following()
        if step is Step.CLOSING:
            walk(mover, seen(S.ACTIVE, S.REPLICA))
            event = TimedOut()
    assert mover.step is step
    assert walk(mover, event) == [Wait(seconds=0.25)]


def test_what_a_stream_says_while_the_move_waits_may_be_read_when_it_links_again() -> None:
    mover = inspected()
    walk(mover, seen(S.ACTIVE, None), StateSet())
    walk(mover, StreamRefused(vbucket=3, status=7, text="NOT_MY_VBUCKET"), TimePassed())
    assert mover.step is Step.LINKING
    assert walk(mover, StreamEnded(vbucket=3, reason=StreamEndReason.CLOSED)) == []
    assert walk(mover, LinksOpened()) == [AskCopies()]


@pytest.mark.parametrize("step", [Step.PREPARING, Step.REOPENING, Step.PROMOTING, Step.ARMING])
def test_an_order_that_is_refused_is_tried_again(step: Step) -> None:
    mover = inspected()
    pairs = {
        Step.PREPARING: seen(S.ACTIVE, None),
        Step.REOPENING: seen(S.DEAD, S.PENDING),
        Step.PROMOTING: seen(copy("a", S.DEAD, 90), copy("b", S.PENDING, 100)),
        Step.ARMING: seen(S.DEAD, S.ACTIVE),
    }
    walk(mover, pairs[step])
    assert mover.step is step
    assert walk(mover, Refused(node="b", text="ETMPFAIL")) == [Wait(seconds=0.25)]


def test_a_manager_that_cannot_go_on_leaves_the_move_to_resume() -> None:
    mover = taking_over()
    mover.break_off("no room for the journal")
    assert (mover.ending, mover.text) == (Ending.PENDING, "no room for the journal")
    assert walk(mover, *TAKEOVER) == []


def test_an_event_that_cannot_come_now_is_our_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="MapPublished in step inspecting"):
        walk(inspected(), MapPublished())


@pytest.mark.parametrize("step", list(Step))
def test_a_link_that_goes_is_no_mistake_in_any_step(step: Step) -> None:
    mover = Mover(MOVE)
    mover.step = step
    mover.ending = Ending.DONE if step is Step.FORGETTING else None
    walk(mover, LinkLost(text="gone"))


LATE: dict[type, Event] = {
    StreamAdded: StreamAdded(vbucket=3),
    StreamRefused: StreamRefused(vbucket=3, status=7, text="NOT_MY_VBUCKET"),
    StreamClosed: StreamClosed(vbucket=3),
    StreamEnded: StreamEnded(vbucket=3, reason=StreamEndReason.CLOSED),
    StreamLost: StreamLost(vbucket=3),
}


@pytest.mark.parametrize("kind", OF_STREAMS)
def test_what_the_stream_before_says_while_a_move_is_written_down_is_let_go(kind: type) -> None:
    """Two moves of one vbucket follow each other on one link."""
    mover = Mover(MOVE)
    mover.start()
    assert walk(mover, LATE[kind]) == []
    assert mover.step is Step.WRITING
    assert walk(mover, JournalWritten()) == [OpenLinks(fresh=False)]


@pytest.mark.parametrize("step", list(Step))
def test_a_copy_that_others_change_is_no_mistake_in_any_step(step: Step) -> None:
    mover = Mover(MOVE)
    mover.step = step
    walk(mover, StreamLost(vbucket=3))


def test_a_copy_that_others_change_is_begun_again() -> None:
    mover = following()
    assert walk(mover, StreamLost(vbucket=3)) == [Wait(seconds=0.25)]
    assert mover.text == "the copy on b was changed by others, and its stream was closed"
    assert walk(mover, TimePassed(), LinksOpened()) == [AskCopies()]


# -- copies that stand still -----------------------------------------------------------------------


def poll(mover: Mover, seconds: float, *, high: int, passed: int = 0) -> list[Action]:
    """Let the copy stand at a seqno for so long; the first actions that are no waiting."""
    for _ in range(round(seconds / POLL_SECONDS)):
        target = copy("b", S.REPLICA, high)
        actions = walk(
            mover, CopiesSeen(producer=copy("a", S.ACTIVE), target=target, passed=passed)
        )
        if actions != [Wait(seconds=POLL_SECONDS)]:
            return actions
        assert walk(mover, TimePassed()) == [AskCopies()]
    return []


def test_a_copy_that_moves_is_waited_for_however_slow_it_is() -> None:
    mover = following()
    for high in range(30):
        assert poll(mover, STILL_SECONDS - 1, high=high) == []
    assert mover.step is Step.CATCHING_UP


def test_a_copy_that_stands_still_gets_a_new_stream_on_the_same_link() -> None:
    mover = following()
    assert poll(mover, STILL_SECONDS + 1, high=5) == [CloseStream()]
    assert mover.text == "the copy on b stood at seqno 5 for 30 s, with 95 seqnos to come"
    assert walk(mover, StreamClosed(vbucket=3)) == [AddStream(flags=0)]
    assert walk(mover, StreamAdded(vbucket=3)) == [AskCopies()]
    assert poll(mover, STILL_SECONDS - 1, high=5) == [], "the new stream has its own time"
    assert walk(mover, seen(S.ACTIVE, S.REPLICA)) == [CloseStream()]
    assert walk(mover, StreamClosed(vbucket=3)) == [WriteJournal(step=Step.TAKING_OVER)]


def test_a_copy_that_waits_while_others_move_on_its_link_is_given_longer() -> None:
    mover = following()
    for passed in range(round(STILL_SECONDS_IN_LINE / 20) - 1):
        assert poll(mover, 20, high=5, passed=passed) == []
    assert poll(mover, STILL_SECONDS + 1, high=5) == [CloseStream()]


def restarted(mover: Mover, high: int) -> list[Action]:
    assert poll(mover, STILL_SECONDS + 1, high=high) == [CloseStream()]
    actions = walk(mover, StreamClosed(vbucket=3))
    if actions == [AddStream(flags=0)]:
        walk(mover, StreamAdded(vbucket=3))
    return actions


def test_a_move_whose_copy_never_comes_further_is_undone_and_says_where_it_stood() -> None:
    mover = following()
    for _ in range(RESTARTS_MAX):
        assert restarted(mover, 5) == [AddStream(flags=0)]
        assert poll(mover, 1, high=0) == [], "rolled back and filled again is not further"
    assert restarted(mover, 5) == [DropCopy(node="b")]
    assert walk(mover, CopyDropped()) == [ForgetMove()]
    text = ended(mover, Ending.GIVEN_UP, walk(mover, JournalWritten()))
    assert text == (
        "the copy on b stood at seqno 5 for 30 s, with 95 seqnos to come, after 3 new streams"
    )


def test_a_copy_that_comes_further_with_every_stream_is_not_given_up() -> None:
    mover = following()
    for high in range(1, 4 * RESTARTS_MAX):
        assert restarted(mover, high) == [AddStream(flags=0)]


# -- backing out -----------------------------------------------------------------------------------


def test_a_move_that_has_not_begun_is_forgotten() -> None:
    mover = Mover(MOVE)
    mover.start()
    mover.back_out()
    assert walk(mover, JournalWritten()) == [ForgetMove()]
    ended(mover, Ending.BACKED_OUT, walk(mover, JournalWritten()))


def test_a_copy_that_was_made_for_the_move_is_dropped() -> None:
    mover = following()
    mover.back_out()
    assert walk(mover, seen(S.ACTIVE, copy("b", S.REPLICA, 1))) == [CloseStream()]
    assert walk(mover, StreamClosed(vbucket=3)) == [DropCopy(node="b")]
    assert walk(mover, CopyDropped()) == [ForgetMove()]
    ended(mover, Ending.BACKED_OUT, walk(mover, JournalWritten()))


def test_a_replica_that_was_there_before_stays_one() -> None:
    mover = following(SWAP)
    mover.back_out()
    walk(mover, seen(S.ACTIVE, S.REPLICA))
    assert walk(mover, StreamClosed(vbucket=3)) == [SetState(node="b", state=S.REPLICA)]
    assert walk(mover, StateSet()) == [ForgetMove()]


def test_a_takeover_that_has_begun_goes_to_its_end() -> None:
    mover = taking_over()
    mover.back_out()
    assert walk(mover, *TAKEOVER, StateSet()) == [PublishMap(chain=("b",), first=("b", "a"))]
    walk(mover, MapPublished(), CopyDropped())
    ended(mover, Ending.DONE, walk(mover, JournalWritten()))


def test_a_takeover_that_broke_is_undone_when_backing_out() -> None:
    mover = taking_over()
    mover.back_out()
    walk(mover, *TAKEOVER[:4], LinkLost(text="gone"), TimePassed(), LinksOpened())
    assert walk(mover, seen(S.DEAD, S.PENDING)) == [
        SetState(node="a", state=S.ACTIVE, topology=("a",))
    ]
    assert walk(mover, StateSet()) == [DropCopy(node="b")]
    forget = walk(mover, Refused(node="b", text="nothing listens", reachable=False))
    assert forget == [ForgetMove()]
    text = ended(mover, Ending.BACKED_OUT, walk(mover, JournalWritten()))
    assert text == "b may hold a copy"


def test_backing_out_does_not_wait_long_for_a_silent_node() -> None:
    mover = inspected()
    mover.back_out()
    silent = CopiesSeen(producer=None, target=None)
    walk(mover, silent, TimePassed(), LinkLost(text="gone"))
    ended(mover, Ending.PENDING, walk(mover, silent))


def test_kinds_of_moves_are_what_they_say() -> None:
    assert (MOVE.kind, REPLICA.kind) == (Kind.ACTIVE, Kind.REPLICA)
