"""Which vbuckets a turn reads, and which task reads them."""

from __future__ import annotations

from headrace.history import FailoverLog, Seqno, VBucketId
from headrace.spark.feed import Span
from headrace.spark.planning import plan_spans, plan_tasks, span_size
from headrace.spark.positions import START, Position
from headrace.spark.tables.changes import Shape

LOG = FailoverLog.of((1111, 0))


def at(seqno: int, log: FailoverLog = LOG) -> Position:
    return START.advanced(Seqno(seqno), log)


def highs(*seqnos: int) -> dict[VBucketId, Seqno]:
    return {VBucketId(vb): Seqno(seqno) for vb, seqno in enumerate(seqnos)}


def test_only_what_has_more_is_read() -> None:
    found = highs(10, 5, 0)
    vector = {VBucketId(0): at(10), VBucketId(1): at(3)}
    plan = plan_spans(vector, found, dict.fromkeys(found, LOG))
    assert [(span.vbucket, span.end_seqno) for span in plan.spans] == [(1, 5)]
    assert plan.settled == {}


def test_a_newer_branch_with_nothing_new_is_settled_without_reading() -> None:
    log = FailoverLog.of((2222, 10), (1111, 0))
    plan = plan_spans({VBucketId(0): at(10)}, highs(10), {VBucketId(0): log})
    assert plan.spans == ()
    assert plan.settled[VBucketId(0)].branch == 2222


def test_a_position_that_is_gone_is_taken_back_and_its_end_is_the_new_one() -> None:
    log = FailoverLog.of((2222, 4), (1111, 0))
    held = at(3).advanced(Seqno(10), LOG)
    (span,) = plan_spans({VBucketId(0): held}, highs(6), {VBucketId(0): log}).spans
    assert (span.position.seqno, span.end_seqno) == (3, 6)
    assert span.withdrawal is not None
    assert span.withdrawal.from_seqno == 10


def test_a_history_that_shrank_to_our_boundary_is_a_span_for_its_row_alone() -> None:
    log = FailoverLog.of((2222, 3), (1111, 0))
    held = at(3).advanced(Seqno(10), LOG)
    (span,) = plan_spans({VBucketId(0): held}, highs(3), {VBucketId(0): log}).spans
    assert span_size(span) == 0
    assert span.withdrawal is not None


def test_a_limit_chooses_vbuckets_and_always_at_least_one() -> None:
    found = highs(100, 10, 20)
    plan = plan_spans({}, found, dict.fromkeys(found, LOG), rows_max=35)
    assert ([span.vbucket for span in plan.spans], plan.left) == ([1, 2], 100)
    plan = plan_spans({}, highs(100), {VBucketId(0): LOG}, rows_max=35)
    assert plan.size == 100


def test_tasks_get_whole_parts_of_about_the_same_size() -> None:
    shape = Shape(vbuckets=64, parts=8)
    spans = [Span(VBucketId(vb), START, Seqno(100)) for vb in range(64)]
    tasks = plan_tasks(spans, shape, 3)
    assert len(tasks) == 3
    assert sorted(part for task in tasks for part, _ in task) == list(range(8))
    loads = [sum(len(group) for _, group in task) for task in tasks]
    assert max(loads) - min(loads) <= 8
    for task in tasks:
        for part, group in task:
            assert {shape.part_of(span.vbucket) for span in group} == {part}


def test_no_more_tasks_than_parts_with_work() -> None:
    spans = [Span(VBucketId(0), START, Seqno(5)), Span(VBucketId(1), START, Seqno(5))]
    assert len(plan_tasks(spans, Shape(64, 8), 4)) == 1
    assert plan_tasks([], Shape(64, 8), 4) == []
