"""Sync writes of one vbucket."""

from __future__ import annotations

import random

import pytest

from headrace.store import Pending
from headrace.store import layout as at
from headrace.store import prepares as module
from headrace.store.plain import PREPARE_FIELDS, build_frame, split_frame
from headrace.store.prepares import Prepares, pending_of


def pending(key: bytes, seqno: int) -> Pending:
    """A prepare in flight."""
    return Pending(key, b"v", seqno, 1, 1, 0, 0, 0, False, 1)


def test_what_completes_a_prepare_supersedes_it() -> None:
    pairs: list[tuple[int, int, int]] = []
    prepares = Prepares(lambda *numbers: pairs.append(numbers))
    prepares.prepared(pending(b"a", 1), 101)
    prepares.prepared(pending(b"b", 2), 102)
    assert (len(prepares), prepares.high_prepared, prepares.high_completed) == (2, 2, 0)
    prepares.committed(b"b", 3)
    prepares.aborted(b"a", 4, 104)
    assert pairs == [(2, 102, 3), (1, 101, 4)]
    assert (len(prepares), prepares.high_completed) == (0, 2)
    prepares.prepared(pending(b"a", 5), 105)
    assert pairs[2:] == [(4, 104, 5)], "the next prepare supersedes the abort"


def test_completing_nothing_is_nothing() -> None:
    prepares = Prepares(lambda *_: (_ for _ in ()).throw(AssertionError))
    prepares.committed(b"a", 1)
    prepares.aborted(b"a", 2, 0)
    assert prepares.get(b"a") is None


def test_a_purged_abort_supersedes_nothing_any_more() -> None:
    prepares = Prepares(lambda *_: (_ for _ in ()).throw(AssertionError))
    prepares.aborted(b"a", 2, 0)
    prepares.forget_aborts({2})
    prepares.prepared(pending(b"a", 3), 0)


def test_prepares_are_listed_by_seqno() -> None:
    prepares = Prepares(lambda *_: None)
    for key, seqno in ((b"z", 1), (b"a", 2), (b"m", 3)):
        prepares.prepared(pending(key, seqno), 0)
    assert [one.seqno for one in prepares.all()] == [1, 2, 3]
    prepares.clear()
    assert (prepares.all(), prepares.high_prepared) == ([], 0)


def test_a_frame_at_rest_holds_all_of_a_prepare() -> None:
    frame = build_frame(
        at.PREPARE,
        vbucket=0,
        extras=PREPARE_FIELDS.pack(5, 6, 7, 8, 0, 0, 1, 3),
        key=b"\0k",
        value=b"v",
        datatype=1,
        cas=9,
    )
    assert pending_of(split_frame(frame)) == Pending(b"\0k", b"v", 5, 9, 6, 7, 8, 1, True, 3)


def naive_completed_at(history: list[tuple[int, int | None]], end: int) -> int:
    """The highest prepare up to ``end`` at or below which nothing is in flight at ``end``."""
    seen = [(prepared, done) for prepared, done in history if prepared <= end]
    in_flight = [prepared for prepared, done in seen if done is None or done > end]
    done = [prepared for prepared, at_ in seen if at_ is not None and at_ <= end]
    below = min(in_flight, default=end + 1)
    return max((prepared for prepared in done if prepared < below), default=0)


@pytest.mark.parametrize("seed", range(50))
def test_a_view_is_told_of_no_completion_that_lies_behind_its_end(seed: int) -> None:
    chance = random.Random(seed)
    prepares = Prepares(lambda *_: None)
    history: dict[int, int | None] = {}
    open_: dict[bytes, int] = {}
    for seqno in range(1, 60):
        if open_ and chance.random() < 0.5:
            key = chance.choice(sorted(open_))
            history[open_.pop(key)] = seqno
            if chance.random() < 0.5:
                prepares.committed(key, seqno)
            else:
                prepares.aborted(key, seqno, 0)
        else:
            key = b"%d" % seqno
            open_[key], history[seqno] = seqno, None
            prepares.prepared(pending(key, seqno), 0)
        for end in range(1, seqno + 1):
            told = prepares.completed_at(end)
            least = naive_completed_at(list(history.items()), end)
            assert least <= told, f"seed {seed}: at {end}"
            open_at = [p for p, d in history.items() if p <= end and (d is None or d > end)]
            assert told < min(open_at, default=end + 1), f"seed {seed}: at {end}"


def test_a_view_that_ends_before_what_is_remembered_is_told_of_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RECENT_MAX", 1)
    prepares = Prepares(lambda *_: None)
    for seqno in (1, 3, 5):
        prepares.prepared(pending(b"k", seqno), 0)
        prepares.committed(b"k", seqno + 1)
    assert [prepares.completed_at(end) for end in (3, 4, 6)] == [0, 4, 5], "5 is above"
