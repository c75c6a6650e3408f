"""A task's account: positions move at boundaries, rollbacks become rows, torn rows are known."""

from __future__ import annotations

from headrace.history import BranchId, FailoverLog, Seqno, VBucketId
from headrace.spark.feed import Completed, Finished, Opened, RolledBack, Rows, Span
from headrace.spark.positions import START
from headrace.spark.progress import Progress, whole_rows
from tests.spark.producer import Item, batch_of

VB = VBucketId(2)
LOG = FailoverLog.of((1111, 0))
NEW = FailoverLog.of((2222, 4), (1111, 0))


def rows(*seqnos: int, end: int) -> Rows:
    items = [Item(seqno, b"k%d" % seqno, b"v") for seqno in seqnos]
    return Rows(batch_of(VB, items, start=1, end=end))


def started(end: int = 20) -> Progress:
    progress = Progress([Span(VB, START, Seqno(end))])
    assert progress.take(Opened(VB, Seqno(0), LOG)) is None
    return progress


def test_rows_alone_do_not_move_a_position() -> None:
    progress = started()
    published = progress.take(rows(1, 2, 3, end=9))
    assert published is not None
    assert published.column("seqno").to_pylist() == [1, 2, 3]
    assert progress.positions[VB].seqno == 0
    progress.take(Completed(VB, Seqno(9)))
    assert progress.positions[VB].seqno == 9


def test_a_rollback_is_a_row_and_what_follows_is_in_a_new_epoch() -> None:
    progress = started()
    for news in (rows(1, 4, end=4), Completed(VB, Seqno(4)), rows(5, 9, end=9)):
        progress.take(news)
    progress.take(Completed(VB, Seqno(9)))
    told = progress.take(RolledBack(VB, Seqno(9), Seqno(4), BranchId(1111), NEW))
    assert told is not None
    assert told.to_pylist()[0]["seqno"] == 4
    progress.take(Opened(VB, Seqno(4), NEW))
    after = progress.take(rows(5, 6, end=6))
    assert after is not None
    assert after.column("epoch").to_pylist() == [1, 1]
    assert after.column("branch").to_pylist() == [2222, 2222]
    assert progress.withdrawals[0].from_seqno == 9


def test_rows_of_a_torn_snapshot_are_cut_and_whole_ones_are_kept() -> None:
    progress = started()
    batches = [progress.take(rows(1, 4, end=4))]
    progress.take(Completed(VB, Seqno(4)))
    batches.append(progress.take(rows(5, 6, end=9)))
    progress.take(Finished(VB, False, "the link went"))
    assert progress.unfinished == {VB: "the link went"}
    found = [one for one in batches if one is not None]
    kept = [
        seqno
        for one in whole_rows(iter(found), progress.cut())
        for seqno in one["seqno"].to_pylist()
    ]
    assert kept == [1, 4]


def test_torn_rows_before_a_rollback_are_cut_though_later_ones_pass_them() -> None:
    progress = started()
    torn = progress.take(rows(1, 2, 3, end=9))
    told = progress.take(RolledBack(VB, Seqno(3), Seqno(0), BranchId(1111), NEW))
    progress.take(Opened(VB, Seqno(0), NEW))
    new = progress.take(rows(2, 5, end=5))
    progress.take(Completed(VB, Seqno(5)))
    batches = [one for one in (torn, told, new) if one is not None]
    found = [row for one in whole_rows(iter(batches), progress.cut()) for row in one.to_pylist()]
    assert [(row["epoch"], row["seqno"], row["event"]) for row in found] == [
        (1, 0, "rollback"),
        (1, 2, "mutation"),
        (1, 5, "mutation"),
    ]


def test_a_span_with_nothing_to_read_is_finished_from_the_start() -> None:
    assert Progress([Span(VB, START, Seqno(0))]).unfinished == {}
    assert set(Progress([Span(VB, START, Seqno(1))]).unfinished) == {VB}
