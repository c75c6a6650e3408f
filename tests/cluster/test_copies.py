"""Copies as nodes tell them, and which of two has everything."""

from __future__ import annotations

import pytest

from headrace.cluster.copies import Copy, covers, read_copy
from headrace.history import BranchId, FailoverEntry, FailoverLog, Seqno
from headrace.wire.opcodes import VBucketState


def log(*entries: tuple[int, int]) -> FailoverLog:
    return FailoverLog(tuple(FailoverEntry(BranchId(u), Seqno(s)) for u, s in entries))


def copy(high: int, *entries: tuple[int, int], end: int = 0) -> Copy:
    return Copy(
        node="n",
        vbucket=0,
        state=VBucketState.DEAD,
        high_seqno=high,
        snapshot_end=max(high, end),
        log=log(*entries) if entries else None,
    )


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (copy(10, (1, 0)), copy(10, (1, 0)), True),
        (copy(10, (1, 0)), copy(7, (1, 0)), True),
        (copy(7, (1, 0)), copy(10, (1, 0)), False),
        (copy(7, (1, 0)), copy(0, (9, 0)), True),
        (copy(7, (1, 0)), copy(3, (9, 0)), False),
        (copy(12, (2, 8), (1, 0)), copy(8, (1, 0)), True),
        (copy(12, (2, 8), (1, 0)), copy(9, (1, 0)), False),
        (copy(9, (1, 0)), copy(12, (2, 8), (1, 0)), False),
        (copy(12, (2, 8), (1, 0)), copy(10, (2, 8), (1, 0)), True),
        (copy(12, (3, 9), (1, 0)), copy(10, (2, 8), (1, 0)), False),
        (copy(5), copy(4, (1, 0)), False),
    ],
)
def test_a_copy_covers_another_that_holds_nothing_beyond_where_they_part(
    one: Copy, other: Copy, expected: bool
) -> None:
    assert covers(one, other) is expected


def test_a_copy_is_read_from_what_its_node_tells() -> None:
    stats = {
        "vb_3": "replica",
        "vb_3:high_seqno": "20",
        "vb_3:abs_high_seqno": "17",
        "vb_3:complete_seqno": "12",
        "vb_3:last_persisted_seqno": "15",
        "vb_3:num_entries": "2",
        "vb_3:0:id": "77",
        "vb_3:0:seq": "5",
        "vb_3:1:id": "66",
        "vb_3:1:seq": "0",
        "vb_4": "active",
    }
    found = read_copy("a", 3, stats)
    assert found.state is VBucketState.REPLICA
    assert (found.high_seqno, found.snapshot_end, found.persisted_seqno) == (17, 20, 15)
    assert not found.is_complete
    assert found.complete_seqno == 12
    assert found.log == log((77, 5), (66, 0))
    assert found.word == "replica"


def test_a_node_that_tells_nothing_has_no_copy() -> None:
    found = read_copy("a", 3, {"vb_4": "active"})
    assert (found.state, found.word) == (None, "absent")
    assert covers(copy(1, (1, 0)), found)


def test_a_complete_copy_is_complete_to_its_end() -> None:
    assert copy(9, (1, 0)).complete_seqno == 9
