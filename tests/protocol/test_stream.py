"""One stream at the consumer's end: every state x message, and a consumer that forgets nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.history import (
    ZERO,
    Boundaries,
    BranchId,
    FailoverLog,
    ResumeToken,
    Seqno,
    SnapshotRange,
)
from headrace.protocol.stream import (
    KINDS,
    SEQNO_FIELDS,
    TRANSITIONS,
    ConsumerStream,
    Kind,
    State,
    Step,
)
from headrace.wire import messages as m
from headrace.wire.message import Request
from headrace.wire.opcodes import MarkerFlag, Status, StreamEndReason
from tests.protocol.scripting import ITEMS, item

OPAQUE: Final = 0x77
LOG: Final = FailoverLog.of((0xA, 0))
START: Final = ZERO.accepted(LOG)


def marker(
    start: int, end: int, flags: int = MarkerFlag.MEMORY, purge: int | None = None
) -> Request:
    return m.SnapshotMarker(
        opaque=OPAQUE, start_seqno=start, end_seqno=end, flags=flags, purge_seqno=purge
    )


def mutation(seqno: int) -> Request:
    return m.Mutation(opaque=OPAQUE, by_seqno=seqno, key=b"key")


def oso(flags: int) -> Request:
    return m.OsoSnapshot(opaque=OPAQUE, oso_flags=flags)


def end(reason: int = StreamEndReason.FINISHED) -> Request:
    return m.StreamEnd(opaque=OPAQUE, reason=reason)


EMPTY_MARKER: Final = m.SnapshotMarker(opaque=OPAQUE)


def stream(token: ResumeToken = START, **more: Boundaries | Seqno) -> ConsumerStream:
    return ConsumerStream(token, opaque=OPAQUE, **more)  # type: ignore[arg-type]


def advance(subject: ConsumerStream, first: int, last: int) -> None:
    subject.advance(Seqno(first), Seqno(last))


def walk(subject: ConsumerStream, *messages: Request) -> list[State]:
    return [subject.receive(message).state for message in messages]


# -- every state x message ------------------------------------------------------------------------

WAYS_INTO: Final[dict[State, tuple[Request, ...]]] = {
    State.OPEN: (),
    State.MARKED: (marker(1, 9),),
    State.IN_SNAPSHOT: (marker(1, 9), mutation(2)),
    State.DRAFT_MARKED: (EMPTY_MARKER,),
    State.IN_DRAFT_SNAPSHOT: (EMPTY_MARKER, mutation(2)),
    State.OSO: (oso(1),),
    State.ENDED: (end(),),
}

SENT: Final[dict[str, Request]] = {
    "marker": marker(3, 12),
    "empty": EMPTY_MARKER,
    "item": mutation(5),
    "last": mutation(9),
    "oso1": oso(1),
    "oso2": oso(2),
    "state": m.SetVBucketState(opaque=OPAQUE, state=3),
    "cache": m.CacheTransfer(opaque=OPAQUE, items=()),
    "cached": m.CacheTransferEnd(opaque=OPAQUE),
    "flush": m.Flush(opaque=OPAQUE),
    "end": end(),
}

# The law, as a person would draw it. Columns: messages of SENT; rows: states; "." is the peer's
# error. The last item of a marker is only the last where a marker is in force.
LAW: Final = """
      marker empty item last oso1 oso2 state cache cached flush end
OPEN  MARK   DRAFT .    .    OSO  .    OPEN  OPEN  OPEN   OPEN  ENDED
MARK  MARK   .     SNAP OPEN .    .    .     .     .      .     ENDED
SNAP  MARK   .     SNAP OPEN .    .    .     .     .      .     ENDED
DRAFT .      DRAFT INDR INDR .    .    DRAFT .     .      DRAFT ENDED
INDR  .      DRAFT INDR INDR .    .    INDR  .     .      INDR  ENDED
OSO   .      .     OSO  OSO  .    OPEN .     .     .      .     ENDED
ENDED .      .     .    .    .    .    .     .     .      .     .
BROK  .      .     .    .    .    .    .     .     .      .     .
"""
SHORT: Final = dict(
    zip(["OPEN", "MARK", "SNAP", "DRAFT", "INDR", "OSO", "ENDED", "BROK"], State, strict=True)
)
HEAD, *ROWS = (line.split() for line in LAW.strip().splitlines())
CELLS: Final = [
    (SHORT[row[0]], name, SHORT.get(after))
    for row in ROWS
    for name, after in zip(HEAD, row[1:], strict=True)
]


def in_state(state: State) -> ConsumerStream:
    subject = stream()
    if state is State.BROKEN:
        subject.state = state
        return subject
    for message in WAYS_INTO[state]:
        subject.receive(message)
    assert subject.state is state
    return subject


@pytest.mark.parametrize(("before", "name", "after"), CELLS)
def test_every_state_takes_exactly_the_messages_the_law_allows(
    before: State, name: str, after: State | None
) -> None:
    subject = in_state(before)
    token, held = subject.token, subject.boundaries
    if after is not None:
        assert subject.receive(SENT[name]).state is after
        assert subject.state is after
        return
    with pytest.raises(RemoteProtocolError, match=f"while {before.name}"):
        subject.receive(SENT[name])
    assert subject.state is State.BROKEN
    assert (subject.token, subject.boundaries) == (token, held), "a refused message moves nothing"


def test_the_law_names_every_state_and_every_kind() -> None:
    assert [SHORT[row[0]] for row in ROWS] == list(State)
    assert {kind for _, kind in TRANSITIONS} == set(Kind)
    assert len(CELLS) == len(State) * len(SENT)


def test_every_message_of_a_stream_has_a_kind() -> None:
    known = {*SEQNO_FIELDS, *KINDS, m.SnapshotMarker, m.OsoSnapshot}
    of_a_producer = {
        cls
        for cls in vars(m).values()
        if isinstance(cls, type)
        and issubclass(cls, Request)
        and "Sent by: a producer" in (cls.__doc__ or "")
    }
    assert of_a_producer - known == {m.Noop}, "a noop belongs to the connection"


def test_a_message_that_is_none_of_a_streams_breaks_it() -> None:
    with pytest.raises(RemoteProtocolError, match="Noop is no message of a stream"):
        stream().receive(m.Noop(opaque=OPAQUE))


# -- single rules ---------------------------------------------------------------------------------


def test_a_marker_alone_does_not_move_the_token() -> None:
    """The connection may drop between a marker and its first mutation."""
    subject = stream()
    assert walk(subject, marker(1, 3)) == [State.MARKED]
    assert subject.token == START


@pytest.mark.parametrize("name", ITEMS)
def test_every_kind_of_item_moves_the_token(name: str) -> None:
    subject = stream()
    subject.receive(marker(3, 9))
    message = item(name, 4, OPAQUE, *([3] if name in ("commit", "abort") else []))
    assert subject.receive(message) == Step(Kind.ITEM, State.IN_SNAPSHOT)
    assert (subject.token.seqno, subject.token.snapshot) == (4, SnapshotRange(Seqno(3), Seqno(9)))


@pytest.mark.parametrize("name", ITEMS)
def test_every_kind_of_item_can_complete_a_snapshot(name: str) -> None:
    subject = stream()
    subject.receive(marker(3, 9))
    message = item(name, 9, OPAQUE, *([3] if name in ("commit", "abort") else []))
    assert subject.receive(message) == Step(Kind.LAST_ITEM, State.OPEN, completed=True)
    assert subject.boundaries.greatest(Seqno(100)) == 9


@pytest.mark.parametrize("name", ITEMS)
def test_no_item_has_seqno_zero(name: str) -> None:
    subject = stream()
    subject.receive(marker(0, 9))
    message = item(name, 0, OPAQUE, *([0] if name in ("commit", "abort") else []))
    with pytest.raises(RemoteProtocolError, match="with seqno 0, allowed from 1"):
        subject.receive(message)


@pytest.mark.parametrize("seqno", [2, 10])
def test_an_item_outside_its_marker_is_out_of_range(seqno: int) -> None:
    subject = stream()
    subject.receive(marker(3, 9))
    with pytest.raises(RemoteProtocolError, match=r"outside its snapshot 3\.\.9") as caught:
        subject.receive(mutation(seqno))
    assert caught.value.status == Status.ERANGE
    assert subject.token == START


@pytest.mark.parametrize("seqno", [4, 5])
def test_an_item_that_does_not_rise_is_out_of_range(seqno: int) -> None:
    subject = stream()
    walk(subject, marker(3, 9), mutation(5))
    with pytest.raises(RemoteProtocolError, match="must be above 5") as caught:
        subject.receive(mutation(seqno))
    assert caught.value.status == Status.ERANGE


def test_a_marker_wholly_below_the_position_is_out_of_range() -> None:
    subject = stream()
    walk(subject, marker(1, 9), mutation(9))
    with pytest.raises(RemoteProtocolError, match="lies below the last seqno 9") as caught:
        subject.receive(marker(3, 9))
    assert caught.value.status == Status.ERANGE


def test_a_marker_that_runs_backwards_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="from 9 to 3"):
        stream().receive(marker(9, 3))


@pytest.mark.parametrize("start", [0, 4, 5, 6, 8])
def test_a_first_marker_may_start_below_at_or_above_the_position(start: int) -> None:
    subject = stream(ResumeToken.at_boundary(BranchId(0xA), Seqno(5), LOG))
    walk(subject, marker(start, 9), mutation(8))
    assert subject.token.snapshot == SnapshotRange(Seqno(start), Seqno(9))


@pytest.mark.parametrize(
    ("markers", "held"),
    [
        ([(1, 10)], (1, 10)),
        ([(3, 9)], (1, 10)),
        ([(6, 12)], (1, 12)),
        ([(0, 8)], (0, 10)),
        ([(6, 12), (8, 20)], (1, 20)),
    ],
)
def test_a_snapshot_that_is_held_in_part_only_grows(
    markers: list[tuple[int, int]], held: tuple[int, int]
) -> None:
    """Resumed at 5 in 1..10: older versions of keys are missing until everything has come."""
    inside = ResumeToken(BranchId(0xA), Seqno(5), SnapshotRange(Seqno(1), Seqno(10)), log=LOG)
    subject = stream(inside)
    for seqno, (start, last) in enumerate(markers, start=6):
        walk(subject, marker(start, last))
        assert subject.token.seqno < seqno, "not before an item of it"
        advance(subject, max(start, seqno), max(start, seqno))
    assert subject.token.snapshot == SnapshotRange(Seqno(held[0]), Seqno(held[1]))
    assert not subject.boundaries


def test_another_streams_opaque_is_refused_with_its_own_status() -> None:
    subject = stream()
    with pytest.raises(RemoteProtocolError, match="opaque 0x1, the stream has 0x77") as caught:
        subject.receive(replace(marker(1, 2), opaque=1))
    assert caught.value.status == Status.KEY_EEXISTS


def test_an_oso_message_has_one_of_two_flags() -> None:
    for flags in (0, 3, 4):
        with pytest.raises(RemoteProtocolError, match="allowed 0x1 and 0x2"):
            stream().receive(oso(flags))


def test_an_out_of_order_snapshot_stands_at_the_highest_seqno_at_its_end() -> None:
    subject = stream()
    walk(subject, oso(1), mutation(9), mutation(2), mutation(5))
    assert (subject.token, subject.last_seqno) == (START, 9)
    assert subject.receive(oso(2)).completed
    assert subject.token == START.advanced(Seqno(9), SnapshotRange(Seqno(9), Seqno(9)))


def test_the_place_a_stream_starts_from_is_a_boundary_if_the_token_says_so() -> None:
    whole = ResumeToken.at_boundary(BranchId(0xA), Seqno(5), LOG)
    assert [mark.seqno for mark in stream(whole).boundaries] == [5]
    inside = ResumeToken(BranchId(0xA), Seqno(5), SnapshotRange(Seqno(1), Seqno(10)), log=LOG)
    assert not stream(inside).boundaries
    assert not stream(START).boundaries, "0 is always one and need not be kept"


def test_a_purge_seqno_comes_with_the_first_item_of_its_snapshot_and_stays() -> None:
    subject = stream()
    subject.receive(marker(1, 2, MarkerFlag.DISK, purge=40))
    assert subject.token.purge_seqno == 0
    walk(subject, mutation(1), mutation(2), marker(3, 3), mutation(3))
    assert subject.token.purge_seqno == 40


def test_boundaries_name_the_branch_their_item_was_written_on() -> None:
    log = FailoverLog.of((0xB, 5), (0xA, 0))
    subject = stream(ZERO.accepted(log))
    walk(subject, marker(1, 5), mutation(5), marker(6, 6), mutation(6))
    assert [(mark.branch, mark.seqno) for mark in subject.boundaries] == [(0xA, 5), (0xB, 6)]
    assert subject.token.branch == 0xB


@pytest.mark.parametrize(("flags", "acks"), [(MarkerFlag.MEMORY, False), (MarkerFlag.ACK, True)])
def test_a_marker_is_acknowledged_at_its_last_item_if_it_asks(flags: int, acks: bool) -> None:
    subject = stream()
    steps = [
        subject.receive(message) for message in (marker(1, 2, flags), mutation(1), mutation(2))
    ]
    assert [step.ack for step in steps] == [False, False, acks]


@pytest.mark.parametrize(
    ("wanted", "reason", "seqno"),
    [
        (100, StreamEndReason.FINISHED, 9),
        (9, StreamEndReason.FINISHED, 9),
        (8, StreamEndReason.FINISHED, 4),
        (100, StreamEndReason.STATE_CHANGED, 4),
        (100, StreamEndReason.CLOSED, 4),
    ],
)
def test_a_finished_stream_completes_a_snapshot_whose_end_is_hidden(
    wanted: int, reason: int, seqno: int
) -> None:
    subject = stream(end_seqno=Seqno(wanted))
    walk(subject, marker(1, 9), mutation(4))
    completed = subject.receive(end(reason)).completed
    assert (subject.token.seqno, subject.token.is_boundary) == (seqno, completed)
    assert completed is (seqno == 9)


def test_a_run_of_items_is_checked_at_both_ends() -> None:
    for first, last in ((2, 5), (5, 10), (1, 12)):
        subject = stream()
        subject.receive(marker(3, 9))
        with pytest.raises(RemoteProtocolError, match=r"outside its snapshot 3\.\.9"):
            advance(subject, first, last)
        assert subject.state is State.BROKEN
    subject = stream()
    walk(subject, marker(3, 9), mutation(5))
    with pytest.raises(RemoteProtocolError, match="must be above 5"):
        advance(subject, 5, 6)
    with pytest.raises(LocalProtocolError, match="from 6 down to 5"):
        advance(stream(), 6, 5)
    with pytest.raises(RemoteProtocolError, match="while OPEN"):
        advance(stream(), 1, 2)


@given(st.data())
def test_runs_and_single_items_lead_to_the_same_place(data: st.DataObject) -> None:
    """The bulk road and the message road."""
    one, run = stream(), stream()
    at = 0
    for _ in range(data.draw(st.integers(1, 6))):
        seqnos = sorted(data.draw(st.sets(st.integers(at + 1, at + 40), min_size=1, max_size=8)))
        tail = data.draw(st.integers(0, 2))
        announced = marker(seqnos[0], seqnos[-1] + tail)
        one.receive(announced)
        run.receive(announced)
        for seqno in seqnos:
            one.receive(mutation(seqno))
        cut = data.draw(st.integers(0, len(seqnos) - 1))
        if cut:
            advance(run, seqnos[0], seqnos[cut - 1])
        advance(run, seqnos[cut], seqnos[-1])
        at = seqnos[-1] + tail
        assert (one.token, one.boundaries, one.state) == (run.token, run.boundaries, run.state)


# -- the truth: a producer that deduplicates, splits and hides; boundaries that must hold ----------


class Source:
    """A vbucket that was never lost: all writes, in order; some are hidden from the consumer."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.writes: list[tuple[str, int] | None] = []

    def write(self) -> None:
        for _ in range(self.rng.randrange(1, 8)):
            hidden = self.rng.random() < 0.15
            self.writes.append(None if hidden else (self.rng.choice("abcd"), len(self.writes)))

    def state(self, seqno: int) -> dict[str, int]:
        return dict(write for write in self.writes[:seqno] if write is not None)

    def snapshots(self, after: int, start: int) -> list[tuple[Request, list[tuple[int, str, int]]]]:
        """What a stream from ``after`` sends: disk to a point, then memory, each deduplicated."""
        high = len(self.writes)
        cuts = {high}
        if high - after > 2:
            cuts |= {self.rng.randrange(after + 1, high) for _ in range(self.rng.randrange(3))}
        sent, low = [], after
        for cut in sorted(cuts):
            last = {w[0]: n for n, w in enumerate(self.writes[:cut], start=1) if w is not None}
            items = [
                (n, w[0], w[1])
                for n, w in enumerate(self.writes[:cut], start=1)
                if w is not None and n > low and last[w[0]] == n
            ]
            sent.append((marker(min(start, low + 1) if low == after else low + 1, cut), items))
            low = cut
        return sent


@pytest.mark.parametrize("seed", range(400))
def test_at_every_boundary_the_consumer_has_exactly_what_the_source_had_there(seed: int) -> None:
    """With links that drop anywhere, snapshots split anew on every stream, and hidden ends."""
    rng = random.Random(seed)
    source = Source(rng)
    token, boundaries = START, Boundaries()
    rows: dict[int, tuple[str, int]] = {}
    for _ in range(12):
        source.write()
        if len(source.writes) == token.seqno:
            continue
        subject = stream(token, boundaries=boundaries)
        patience = rng.choice([1, 3, 6, 1_000])
        for announced, items in source.snapshots(token.seqno, token.snapshot.start):
            subject.receive(announced)
            for seqno, key, value in items:
                if patience == 0:
                    break
                patience -= 1
                rows[seqno] = (key, value)
                if subject.receive(mutation(seqno)).completed:
                    check(rows, source, seqno, seed)
            if patience == 0:
                break
        else:
            if subject.receive(end()).completed:
                check(rows, source, subject.token.seqno, seed)
        token, boundaries = subject.token, subject.boundaries
    assert all(mark.seqno <= token.seqno for mark in boundaries)


def check(rows: dict[int, tuple[str, int]], source: Source, seqno: int, seed: int) -> None:
    held = dict(rows[at] for at in sorted(rows) if at <= seqno)
    assert held == source.state(seqno), f"seed {seed}, boundary {seqno}"
