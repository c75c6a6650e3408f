"""The three rules, alone and then with a producer, in every position of what can happen."""

from __future__ import annotations

import functools
import itertools
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.history import (
    SEQNO_MAX,
    ZERO,
    Boundaries,
    BranchId,
    FailoverLog,
    ResumeToken,
    Seqno,
    SnapshotRange,
    VBucketId,
)
from headrace.spark.positions import (
    START,
    Claim,
    Position,
    Withdrawal,
    lag,
    living,
    vector_of,
    vector_text,
)
from tests.spark.producer import Producer
from tests.spark.worlds import SyncWorld

VB = VBucketId(3)
LOG = FailoverLog.of((1111, 0))
FORKED = FailoverLog.of((2222, 6), (1111, 0))


def at(*seqnos: int, log: FailoverLog = LOG) -> Position:
    position = START
    for seqno in seqnos:
        position = position.advanced(Seqno(seqno), log)
    return position


def test_a_position_inside_a_snapshot_is_refused() -> None:
    inside = ResumeToken(BranchId(1), Seqno(5), SnapshotRange(Seqno(3), Seqno(9)))
    with pytest.raises(ValueError, match="inside a snapshot"):
        Position(inside)


def test_a_position_moves_to_the_end_of_a_whole_snapshot_and_never_back() -> None:
    assert at(4, 9).seqno == 9
    with pytest.raises(ValueError, match="cannot advance to 8"):
        at(9).advanced(Seqno(8), LOG)


def test_a_rollback_goes_to_the_greatest_boundary_at_or_below() -> None:
    held = at(4, 9)
    position, withdrawal = held.rolled_back(VB, held.boundary_below(Seqno(6), FORKED), FORKED)
    assert position.seqno == 4, "the rows 5 and 6 came in the snapshot that straddles 6"
    assert (position.epoch, position.branch) == (1, 2222)
    assert withdrawal == Withdrawal(VB, 1, Seqno(4), Seqno(9), BranchId(1111), BranchId(2222))


def test_a_rollback_to_a_place_that_is_no_boundary_is_refused() -> None:
    with pytest.raises(ValueError, match="no boundary at seqno 6"):
        at(4, 9).rolled_back(VB, Seqno(6), FORKED)


def test_a_boundary_on_a_dead_branch_is_passed_over() -> None:
    held = at(4, 9)
    assert held.boundary_below(Seqno(9), FailoverLog.of((3333, 0))) == 0


@pytest.mark.parametrize(
    ("log", "high", "seqno"),
    [
        (LOG, 9, 9),
        (LOG, 20, 9),
        (FORKED, 20, 4),
        (FailoverLog.of((2222, 9), (1111, 0)), 12, 9),
        (FailoverLog.of((3333, 0)), 12, 0),
        (LOG, 5, 4),
    ],
)
def test_a_position_is_reconciled_as_the_producer_would_have_it(
    log: FailoverLog, high: int, seqno: int
) -> None:
    position, withdrawal = at(4, 9).reconciled(VB, log, high=Seqno(high))
    assert position.seqno == seqno
    assert (withdrawal is not None) == (seqno != 9)
    assert position.branch == log.newest.uuid


def test_an_epoch_that_comes_from_a_clock_still_rises() -> None:
    held = at(4, 9)
    assert held.rolled_back(VB, Seqno(4), LOG, epoch=77)[0].epoch == 77
    later = Position(held.token, 100, held.boundaries)
    assert later.rolled_back(VB, Seqno(4), LOG, epoch=77)[0].epoch == 101


def test_a_withdrawal_covers_older_epochs_above_its_boundary_only() -> None:
    withdrawal = Withdrawal(VB, 2, Seqno(4), Seqno(9), BranchId(1), BranchId(2))
    rows = [(0, 4), (0, 5), (1, 5), (2, 5), (3, 9)]
    assert living(rows, [withdrawal]) == [True, False, False, True, True]


def test_a_claim_that_is_no_boundary_returns_at_any_change_of_branch() -> None:
    claim = Claim(BranchId(1111), Seqno(12), at(4, 9))
    assert not claim.must_return(LOG)
    assert claim.must_return(FailoverLog.of((2222, 50), (1111, 0)))


def test_an_honest_claim_returns_only_when_its_place_is_gone() -> None:
    claim = Claim(BranchId(1111), Seqno(9), at(4, 9), known=True)
    assert not claim.must_return(FailoverLog.of((2222, 9), (1111, 0)))
    assert claim.must_return(FORKED)


def test_a_claim_behind_what_is_known_is_refused() -> None:
    with pytest.raises(ValueError, match="behind its boundary"):
        Claim(BranchId(1), Seqno(3), at(4))


def test_below_the_horizon_no_boundary_is_left() -> None:
    held = at(4, 9, 14).forgotten_below(Seqno(9))
    assert [mark.seqno for mark in held.boundaries] == [9, 14]
    assert held.boundary_below(Seqno(8), LOG) == 0


def test_a_vector_survives_text_and_numbers_are_not_rounded() -> None:
    huge = Position(
        ResumeToken.at_boundary(BranchId(SEQNO_MAX), SEQNO_MAX),
        2**63 - 1,
        Boundaries(limit=8).recorded(SEQNO_MAX, BranchId(SEQNO_MAX)),
    )
    vector = {VBucketId(1023): huge, VBucketId(0): at(4, 9), VBucketId(7): START}
    assert vector_of(vector_text(vector)) == vector
    assert "18446744073709551615" in vector_text(vector)


HUGE = Position(
    ResumeToken(
        BranchId(SEQNO_MAX),
        SEQNO_MAX,
        SnapshotRange.at(SEQNO_MAX),
        Seqno(SEQNO_MAX - 1),
        FailoverLog.of((SEQNO_MAX, SEQNO_MAX), (1, 0)),
    ),
    2**63 - 1,
    Boundaries(limit=8).recorded(Seqno(1), BranchId(1)).recorded(SEQNO_MAX, BranchId(SEQNO_MAX)),
)


@pytest.mark.parametrize("position", [START, at(4), at(4, 9, 14), HUGE])
def test_a_position_survives_its_text_and_its_way_to_the_driver(
    position: Position,
) -> None:
    assert Position.from_text(position.to_text()) == position
    assert Position.unpacked(json.loads(json.dumps(position.packed()))) == position


@given(st.permutations(range(12)))
def test_equal_vectors_give_equal_text(order: list[int]) -> None:
    vector = {VBucketId(vb): at(vb + 1) for vb in order}
    assert vector_text(vector) == vector_text({VBucketId(vb): at(vb + 1) for vb in range(12)})


@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"format":2}', '{"format":1,"vbuckets":{"0":{"format":9}}}']
)
def test_another_format_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="format"):
        vector_of(text)


def test_lag_counts_what_the_source_has_more() -> None:
    highs = {VBucketId(0): Seqno(10), VBucketId(1): Seqno(5), VBucketId(2): Seqno(1)}
    assert lag({VBucketId(0): at(4), VBucketId(2): at(9)}, highs) == 6 + 5


def test_the_start_is_zero() -> None:
    assert START.token == ZERO
    assert START.seqno == 0


# -- the dedup trap: a key changed inside a snapshot that a failover then cuts in two --------------

PHASES = ("before plan", "after plan", "after read", "after commit")


def trap(*, snapshot_end: int, fork: int, cut_again: bool) -> Producer:
    """Keys a, b, c written over and over; a snapshot ends where told, or nowhere."""
    producer = Producer.with_vbuckets(1)
    for number in range(1, 9):
        producer.put(0, "abc"[number % 3], f"old {number}")
        if number == snapshot_end:
            producer.cut(0)
        if cut_again and number == fork:
            producer.cut(0)
    return producer


def after_fork(producer: Producer, fork: int, *, writes: int) -> None:
    producer.fail_over(0, fork)
    for number in range(writes):
        producer.put(0, "bcd"[number % 3], f"new {number}")


CASES = list(itertools.product(range(9), range(9), (0, 1, 4), PHASES, (False, True)))


def test_the_dedup_trap_in_every_position_of_cut_plan_read_and_commit() -> None:
    for snapshot_end, fork, writes, phase, cut_again in CASES:
        producer = trap(snapshot_end=snapshot_end, fork=fork, cut_again=cut_again)
        world = SyncWorld(producer)

        def act(one: Producer, fork: int = fork, writes: int = writes) -> None:
            after_fork(one, fork, writes=writes)

        world.turn(
            after_plan=act if phase == "after plan" else None,
            after_read=act if phase == "after read" else None,
        ) if phase != "before plan" else act(producer)
        if phase == "after commit":
            act(producer)
        world.settle()
        assert world.state() == producer.state(), (snapshot_end, fork, writes, phase, cut_again)


@pytest.mark.parametrize("break_after", range(1, 6))
def test_the_dedup_trap_when_the_link_breaks_inside_a_snapshot(break_after: int) -> None:
    for fork, writes in itertools.product(range(9), (0, 1, 4)):
        producer = trap(snapshot_end=5, fork=fork, cut_again=False)
        world = SyncWorld(producer, break_after=break_after)
        fail_over = functools.partial(after_fork, fork=fork, writes=writes)
        producer.plot = [lambda _: None, fail_over]
        world.turn()
        producer.plot = []
        world.settle()
        assert world.state() == producer.state(), (break_after, fork, writes)


def test_a_turn_that_was_not_committed_changes_nothing() -> None:
    producer = trap(snapshot_end=4, fork=0, cut_again=False)
    world = SyncWorld(producer)
    world.turn(commit=False)
    assert (world.rows, world.vector) == ([], {})
    world.settle()
    assert world.state() == producer.state()


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_the_table_comes_to_the_producers_state(seed: int) -> None:
    draw = random.Random(seed)
    producer = Producer.with_vbuckets(3)

    def happen(one: Producer) -> None:
        for _ in range(draw.randrange(6)):
            vb = draw.randrange(3)
            what = draw.random()
            if what < 0.55:
                one.put(vb, draw.choice("abcd"), f"{draw.random()}")
            elif what < 0.7:
                one.delete(vb, draw.choice("abcd"))
            elif what < 0.85:
                one.cut(vb)
            elif what < 0.97:
                one.fail_over(vb, draw.randrange(one.histories[vb].high + 1))
            else:
                one.purge(vb)

    world = SyncWorld(producer, break_after=draw.choice([None, 1, 3]))
    for _ in range(25):
        happen(producer)
        world.turn(
            after_plan=happen if draw.random() < 0.5 else None,
            after_read=happen if draw.random() < 0.5 else None,
            commit=draw.random() < 0.8,
        )
    world.settle()
    assert world.state() == producer.state(), f"seed {seed}"
    named = [(r["vbucket"], r["epoch"], r["seqno"], r["event"] == "rollback") for r in world.rows]
    assert len(named) == len(set(named)), f"seed {seed}: a row twice"
