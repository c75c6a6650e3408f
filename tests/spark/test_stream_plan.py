"""Micro-batches without Spark: plans, claims, reports; then all that can go wrong together."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from headrace.history import NO_BRANCH, FailoverLog, ResumeToken, Seqno, VBucketId
from headrace.spark.offsets import INITIAL, Offset
from headrace.spark.positions import START, Reached
from headrace.spark.stream_plan import (
    anchor,
    assignments,
    from_the_beginning,
    grouped,
    next_offset,
)
from tests.spark.producer import Producer
from tests.spark.test_positions import after_fork, trap
from tests.spark.worlds import StreamWorld

VB = VBucketId(0)
LOG = FailoverLog.of((1111, 0))


def plan(before: Offset, high: int, log: FailoverLog = LOG, **more: object) -> Offset:
    reports = more.pop("reports", {})
    return next_offset(
        before,
        {VB: Seqno(high)},
        {VB: log},
        reports,  # type: ignore[arg-type]
        now_ms=5000,
        **more,  # type: ignore[arg-type]
    )


def test_nothing_new_is_the_same_offset() -> None:
    first = plan(INITIAL, 10)
    assert plan(first, 10) is first


def test_the_first_batch_of_a_stream_from_the_beginning_reads_everything() -> None:
    (one,) = assignments(INITIAL, plan(INITIAL, 10))
    assert (one.claim.seqno, one.end_seqno, one.withdrawal) == (0, 10, None)


def test_a_read_of_everything_is_bound_to_no_branch_and_leaves_empty_vbuckets_out() -> None:
    (one,) = from_the_beginning({VB: Seqno(10), VBucketId(1): Seqno(0)})
    assert (one.vbucket, one.branch, one.claim.seqno, one.size) == (VB, NO_BRANCH, 0, 10)


def test_an_anchor_reads_nothing_and_the_next_batch_starts_there() -> None:
    token = ResumeToken.at_boundary(LOG.newest.uuid, Seqno(10), LOG)
    first = anchor({VB: token})
    assert assignments(INITIAL, first) == []
    (one,) = assignments(first, plan(first, 12))
    assert (one.claim.seqno, one.claim.honest.seqno, one.end_seqno) == (10, 10, 12)


def test_with_a_report_the_next_batch_begins_at_the_snapshots_end() -> None:
    first = plan(INITIAL, 10)
    reached = START.accepted(LOG).advanced(Seqno(13), LOG)
    second = plan(first, 20, reports={VB: Reached.boundary(reached)})
    (one,) = assignments(first, second)
    assert (one.claim.seqno, one.claim.honest.seqno) == (13, 13)


def test_without_a_report_the_next_batch_begins_where_the_last_was_to_end() -> None:
    first = plan(INITIAL, 10)
    (one,) = assignments(first, plan(first, 20))
    assert (one.claim.seqno, one.claim.honest.seqno) == (10, 0)
    assert one.claim.honest.epoch == 5000, "the task may have begun an epoch"


def test_without_a_report_any_new_branch_sends_back_to_what_is_known() -> None:
    first = plan(INITIAL, 10)
    reached = START.accepted(LOG).advanced(Seqno(10), LOG)
    second = plan(first, 20, reports={VB: Reached.boundary(reached)})
    third = plan(second, 25, FailoverLog.of((2222, 20), (1111, 0)))
    (one,) = assignments(second, third)
    assert one.withdrawal is not None
    assert (one.withdrawal.to_seqno, one.withdrawal.from_seqno, one.claim.seqno) == (10, 20, 10)
    assert one.withdrawal.epoch == 5001, "above the one a silent task may have begun"


def test_a_report_alone_is_kept_when_the_source_is_quiet() -> None:
    first = plan(INITIAL, 10)
    reached = START.accepted(LOG).advanced(Seqno(10), LOG)
    assert plan(first, 10, reports={VB: Reached.boundary(reached)}) is first
    settled = plan(first, 10, reports={VB: Reached.boundary(reached)}, settle=True)
    assert settled.entries[VB].claim.honest.seqno == 10
    assert assignments(first, settled) == []
    assert plan(settled, 10, reports={}, settle=True) is settled


def test_a_limit_is_divided_fairly_and_something_always_moves() -> None:
    highs = {VBucketId(vb): Seqno(high) for vb, high in enumerate((0, 3, 100, 100))}
    logs = dict.fromkeys(highs, LOG)
    offset = next_offset(INITIAL, highs, logs, {}, now_ms=1, rows_max=43)
    ends = [offset.entries[vb].claim.seqno for vb in sorted(highs)]
    assert ends == [0, 3, 20, 20]
    offset = next_offset(INITIAL, highs, logs, {}, now_ms=1, rows_max=1)
    assert sum(entry.claim.seqno for entry in offset.entries.values()) == 1


def test_an_empty_bucket_plans_nothing() -> None:
    assert next_offset(INITIAL, {}, {}, {}, now_ms=1) is INITIAL
    assert assignments(INITIAL, INITIAL) == []


def test_groups_are_few_balanced_and_whole() -> None:
    highs = {VBucketId(vb): Seqno(vb * 10) for vb in range(20)}
    offset = next_offset(INITIAL, highs, dict.fromkeys(highs, LOG), {}, now_ms=1)
    groups = grouped(assignments(INITIAL, offset), 3)
    assert sorted(one.vbucket for group in groups for one in group) == list(range(1, 20))
    sizes = [sum(one.size for one in group) for group in groups]
    assert max(sizes) - min(sizes) <= 190


def test_the_same_two_offsets_always_mean_the_same_batch() -> None:
    first = plan(INITIAL, 10)
    second = plan(first, 20)
    texts = [json.dumps(one.to_json()) for one in (first, second)]
    read = [Offset.from_json(json.loads(text)) for text in texts]
    assert assignments(*read) == assignments(first, second)


# -- with a producer, tasks and a sink -------------------------------------------------------------

PHASES = ("before", "after plan", "after read", "replayed")


@pytest.mark.parametrize("channel", [True, False], ids=["channel", "no channel"])
@pytest.mark.parametrize("rows_max", [None, 3], ids=["all", "limited"])
def test_the_dedup_trap_in_every_position(channel: bool, rows_max: int | None) -> None:
    cases = itertools.product(range(9), range(9), (0, 1, 4), PHASES)
    for snapshot_end, fork, writes, phase in cases:
        producer = trap(snapshot_end=snapshot_end, fork=fork, cut_again=False)
        world = StreamWorld(producer, channel=channel, rows_max=rows_max)

        def act(one: Producer, fork: int = fork, writes: int = writes) -> None:
            after_fork(one, fork, writes=writes)

        if phase == "before":
            world.batch()
            act(producer)
        world.batch(
            after_plan=act if phase in ("after plan", "replayed") else None,
            after_read=act if phase == "after read" else None,
            crash=phase == "replayed",
        )
        world.settle()
        assert world.state() == producer.state(), (snapshot_end, fork, writes, phase)


@pytest.mark.parametrize("channel", [True, False], ids=["channel", "no channel"])
@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_the_table_comes_to_the_producers_state(seed: int, channel: bool) -> None:
    draw = random.Random(seed)
    producer = Producer.with_vbuckets(3)

    def happen(one: Producer) -> None:
        for _ in range(draw.randrange(6)):
            vb = draw.randrange(3)
            what = draw.random()
            if what < 0.6:
                one.put(vb, draw.choice("abcd"), f"{draw.random()}")
            elif what < 0.75:
                one.delete(vb, draw.choice("abcd"))
            elif what < 0.88:
                one.cut(vb)
            else:
                one.fail_over(vb, draw.randrange(one.histories[vb].high + 1))

    world = StreamWorld(producer, channel=channel, rows_max=draw.choice([None, 2, 5]))
    for _ in range(25):
        happen(producer)
        if draw.random() < 0.1:
            world.reports = {}
        world.batch(
            after_plan=happen if draw.random() < 0.5 else None,
            after_read=happen if draw.random() < 0.3 else None,
            crash=draw.random() < 0.2,
        )
    world.settle()
    assert world.state() == producer.state(), f"seed {seed}"


def test_exact_batches_stop_where_they_were_planned_to() -> None:
    producer = trap(snapshot_end=0, fork=0, cut_again=False)
    world = StreamWorld(producer, exact=True, rows_max=7)
    world.batch()
    assert [row["seqno"] for row in world.table.values()] == [6, 7], "8 is in the snapshot too"
    (reached,) = world.reports.values()
    assert (reached.position.seqno, reached.seqno) == (0, 7), "a place inside is no boundary"
    world.settle()
    assert world.state() == producer.state()
