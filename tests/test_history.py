"""The rules of branches, tokens and boundaries, beside models too simple to be wrong."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.history import (
    BOUNDARIES_MAX,
    LOG_ENTRIES_MAX,
    NO_SEQNO,
    SEQNO_MAX,
    ZERO,
    Boundaries,
    BranchId,
    FailoverEntry,
    FailoverLog,
    ResumeToken,
    Seqno,
    SnapshotRange,
)

A, B, C, D = BranchId(0xA), BranchId(0xB), BranchId(0xC), BranchId(0xD)


def pairs(log: FailoverLog) -> list[tuple[int, int]]:
    return [(entry.uuid, entry.seqno) for entry in log]


def snapshot(start: int, end: int) -> SnapshotRange:
    return SnapshotRange(Seqno(start), Seqno(end))


def token(branch: int, seqno: int, start: int, end: int, log: FailoverLog | None) -> ResumeToken:
    return ResumeToken(BranchId(branch), Seqno(seqno), snapshot(start, end), log=log)


def boundaries(*seqnos: int, limit: int = BOUNDARIES_MAX) -> Boundaries:
    found = Boundaries(limit=limit)
    for seqno in seqnos:
        found = found.recorded(Seqno(seqno), A)
    return found


# -- failover log -------------------------------------------------------------------------------


def test_a_new_vbucket_has_one_branch_that_begins_at_zero() -> None:
    assert pairs(FailoverLog.created(A)) == [(A, 0)]


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ([], "0 entries, allowed 1..25"),
        ([(1, 0)] * (LOG_ENTRIES_MAX + 1), "26 entries, allowed 1..25"),
        ([(2, 3), (1, 4)], "begins later"),
        ([(0, 0)], "uuid 0x0"),
        ([(1 << 64, 0)], "uuid 0x1"),
        ([(1, -1)], "seqno -1"),
        ([(1, 1 << 64)], "seqno 18446744073709551616"),
    ],
)
def test_an_unsound_log_is_refused(entries: list[tuple[int, int]], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        FailoverLog.of(*entries)


def test_promotion_adds_a_branch_at_the_last_complete_snapshot_and_drops_later_ones() -> None:
    log = FailoverLog.of((B, 7), (A, 0))
    assert pairs(log.promoted(C, complete_end=Seqno(9))) == [(C, 9), (B, 7), (A, 0)]
    assert pairs(log.promoted(C, complete_end=Seqno(7))) == [(C, 7), (B, 7), (A, 0)]
    assert pairs(log.promoted(C, complete_end=Seqno(6))) == [(C, 6), (A, 0)]


def test_a_full_log_forgets_its_oldest_branch_on_promotion() -> None:
    log = FailoverLog.of(*((100 + n, 100 - n) for n in range(LOG_ENTRIES_MAX)))
    grown = log.promoted(A, complete_end=Seqno(200))
    assert len(grown) == LOG_ENTRIES_MAX
    assert grown.newest == FailoverEntry(A, Seqno(200))
    assert grown.entries[1:] == log.entries[:-1]


@pytest.mark.parametrize(
    ("persisted", "begins"),
    [(9, 9), (10, 9), (8, 4)],
)
def test_an_unclean_restart_branches_at_the_end_of_a_whole_snapshot_else_at_its_start(
    persisted: int, begins: int
) -> None:
    log = FailoverLog.of((A, 0)).restarted_uncleanly(
        B, snapshot=snapshot(4, 9), persisted=Seqno(persisted)
    )
    assert pairs(log) == [(B, begins), (A, 0)]


def test_a_takeover_changes_nothing() -> None:
    log = FailoverLog.of((B, 7), (A, 0))
    assert log.taken_over() == log


def test_an_accepted_stream_replaces_the_log() -> None:
    theirs = FailoverLog.of((B, 7), (A, 0))
    assert FailoverLog.created(C).replaced_by(theirs) == theirs


def test_a_rollback_drops_the_branches_above_it() -> None:
    log = FailoverLog.of((C, 9), (B, 7), (A, 0))
    assert pairs(log.rolled_back(Seqno(8), uuid=D)) == [(B, 7), (A, 0)]
    assert pairs(log.rolled_back(Seqno(7), uuid=D)) == [(B, 7), (A, 0)]
    assert pairs(log.rolled_back(Seqno(6), uuid=D)) == [(A, 0)]


def test_a_rollback_to_zero_begins_a_new_history() -> None:
    log = FailoverLog.of((C, 9), (B, 7), (A, 0))
    assert pairs(log.rolled_back(NO_SEQNO, uuid=D)) == [(D, 0)]


def test_a_rollback_below_every_remembered_branch_begins_a_new_one_there() -> None:
    assert pairs(FailoverLog.of((C, 9)).rolled_back(Seqno(5), uuid=D)) == [(D, 5)]


@pytest.mark.parametrize(
    ("found", "kept", "erased"),
    [
        ([(A, 3), (0, 2), (B, 1)], [(A, 3), (B, 1)], 1),
        ([(A, 3), (B, 5), (C, 4), (D, 2)], [(A, 3), (D, 2)], 2),
        ([(A, 3), (B, 3)], [(A, 3), (B, 3)], 0),
    ],
)
def test_loading_erases_unsound_entries_and_counts_them(
    found: list[tuple[int, int]], kept: list[tuple[int, int]], erased: int
) -> None:
    log, count = FailoverLog.loaded(found)
    assert pairs(log) == kept
    assert count == erased


def test_a_log_with_nothing_sound_cannot_be_loaded() -> None:
    with pytest.raises(ValueError, match="without a sound entry, 2 erased"):
        FailoverLog.loaded([(0, 3), (0, 0)])


def test_a_longer_log_is_loaded_without_its_oldest() -> None:
    log, erased = FailoverLog.loaded((1 + n, 100 - n) for n in range(40))
    assert len(log) == LOG_ENTRIES_MAX
    assert log.newest.uuid == 1
    assert erased == 0


def test_a_history_ends_where_the_next_newer_begins_and_the_newest_at_high() -> None:
    log = FailoverLog.of((C, 9), (B, 7), (A, 0))
    assert [log.upper(uuid, Seqno(20)) for uuid in (A, B, C, D, 0)] == [7, 9, 20, None, None]
    assert log.holds(B, 9)
    assert not log.holds(B, 10)
    assert not log.holds(D, 1)


def test_a_uuid_that_occurs_twice_is_found_at_its_oldest_place() -> None:
    assert FailoverLog.of((A, 9), (B, 7), (A, 0)).upper(A, Seqno(20)) == 7


@pytest.mark.parametrize(
    ("seqno", "branch"), [(1, A), (7, A), (8, B), (9, B), (10, C), (99, C), (0, A)]
)
def test_an_item_belongs_to_the_branch_it_was_written_on(seqno: int, branch: BranchId) -> None:
    assert FailoverLog.of((C, 9), (B, 7), (A, 0)).branch_at(Seqno(seqno)) == branch


class Copy:
    """A copy of a vbucket in a world of failures: every item it holds, and its log."""

    def __init__(self, items: list[int], log: FailoverLog) -> None:
        self.items = items
        self.log = log

    @property
    def high(self) -> Seqno:
        return Seqno(len(self.items))

    def shares(self, other: Copy) -> int:
        """The truth: how many items at the front are the same."""
        same = 0
        for mine, theirs in zip(self.items, other.items, strict=False):
            if mine != theirs:
                break
            same += 1
        return same


def world(rng: random.Random, steps: int) -> list[Copy]:
    """Copies that write, copy each other and are promoted, at random."""
    copies = [Copy([], FailoverLog.created(BranchId(1)))]
    for step in range(steps):
        copy = rng.choice(copies)
        match rng.randrange(3):
            case 0:
                copy.items.extend(step * 100 + n for n in range(rng.randrange(1, 4)))
            case 1:
                cut = rng.randrange(len(copy.items) + 1)
                copies.append(Copy(copy.items[:cut], copy.log))
                copies[-1].log = copy.log.promoted(BranchId(step + 2), complete_end=Seqno(cut))
            case _:
                cut = rng.randrange(len(copy.items) + 1)
                del copy.items[cut:]
                copy.log = copy.log.promoted(BranchId(step + 2), complete_end=Seqno(cut))
    return copies


@pytest.mark.parametrize("seed", range(200))
def test_two_logs_never_prove_more_than_both_copies_share(seed: int) -> None:
    copies = world(random.Random(seed), steps=15)
    for one in copies:
        for other in copies:
            proved = one.log.shared_with(other.log, high=one.high, other_high=other.high)
            assert proved == one.shares(other), f"seed {seed}: {one.log} and {other.log}"


@pytest.mark.parametrize("seed", range(20))
def test_logs_that_forgot_still_never_prove_too_much(seed: int) -> None:
    copies = world(random.Random(seed), steps=120)[-12:]
    for one in copies:
        for other in copies:
            proved = one.log.shared_with(other.log, high=one.high, other_high=other.high)
            assert proved <= one.shares(other), f"seed {seed}: {one.log} and {other.log}"


# -- resume token -------------------------------------------------------------------------------


def test_a_token_outside_its_snapshot_is_refused() -> None:
    for seqno in (2, 10):
        with pytest.raises(ValueError, match="outside its snapshot"):
            token(A, seqno, 3, 9, None)


def test_an_item_moves_the_token_and_the_end_of_its_snapshot_completes_it() -> None:
    inside = ZERO.accepted(FailoverLog.of((A, 0))).advanced(Seqno(4), snapshot(1, 9))
    assert (inside.branch, inside.seqno, inside.snapshot) == (A, 4, snapshot(1, 9))
    assert not inside.is_boundary
    whole = inside.advanced(Seqno(9), snapshot(1, 9))
    assert whole.snapshot == snapshot(9, 9)
    assert whole.is_boundary


def test_a_token_never_moves_back_or_stays_when_it_advances() -> None:
    at = token(A, 4, 1, 9, None)
    for seqno in (3, 4):
        with pytest.raises(ValueError, match=f"cannot advance to {seqno}"):
            at.advanced(Seqno(seqno), snapshot(1, 9))


def test_equal_positions_are_equal_tokens() -> None:
    assert token(A, 9, 3, 9, None) == token(A, 9, 9, 9, None)


def test_an_accepted_token_speaks_of_the_newest_branch() -> None:
    log = FailoverLog.of((B, 3), (A, 0))
    assert token(A, 3, 3, 3, None).accepted(log).branch == B


def test_a_purge_seqno_stays_until_a_marker_brings_another() -> None:
    first = ZERO.advanced(Seqno(1), snapshot(1, 1), purge_seqno=Seqno(7))
    assert first.advanced(Seqno(2), snapshot(2, 2)).purge_seqno == 7
    assert first.advanced(Seqno(2), snapshot(2, 2), purge_seqno=Seqno(8)).purge_seqno == 8


def test_a_token_rolled_back_forgets_the_branches_above() -> None:
    log = FailoverLog.of((C, 9), (B, 7), (A, 0))
    at = ResumeToken(C, Seqno(12), snapshot(10, 20), Seqno(4), log)
    back = at.rolled_back(Seqno(8))
    assert back == ResumeToken(B, Seqno(8), snapshot(8, 8), log=FailoverLog.of((B, 7), (A, 0)))
    assert at.rolled_back(NO_SEQNO) == ZERO
    with pytest.raises(ValueError, match="cannot roll back to 13"):
        at.rolled_back(Seqno(13))


def test_a_token_rolled_back_below_a_short_log_keeps_the_oldest_name() -> None:
    back = token(C, 12, 12, 12, FailoverLog.of((C, 9))).rolled_back(Seqno(5))
    assert (back.branch, back.seqno) == (C, 5)


def test_at_the_start_of_a_branch_the_older_branch_is_tried_with_the_same_position() -> None:
    """As real replicas do: their newest entry's seqno is the position itself."""
    log = FailoverLog.of((B, 7), (A, 0))
    tries = list(token(B, 7, 7, 7, log).on_older_branches(boundaries(3, 7)))
    assert [(t.branch, t.seqno) for t in tries] == [(A, 7)]


def test_an_older_branch_is_never_named_above_its_end() -> None:
    log = FailoverLog.of((C, 9), (B, 7), (A, 0))
    tries = list(token(C, 15, 12, 20, log).on_older_branches(boundaries(2, 5, 8, 11)))
    assert [(t.branch, t.seqno, t.snapshot) for t in tries] == [
        (B, 8, snapshot(8, 8)),
        (A, 5, snapshot(5, 5)),
    ]


def test_a_snapshot_that_straddles_a_branch_is_left_for_a_boundary() -> None:
    log = FailoverLog.of((B, 7), (A, 0))
    tries = list(token(B, 6, 3, 9, log).on_older_branches(boundaries(2)))
    assert [(t.branch, t.seqno) for t in tries] == [(A, 2)]


def test_without_a_boundary_or_a_log_no_older_branch_is_tried() -> None:
    log = FailoverLog.of((B, 7), (A, 0))
    assert list(token(B, 9, 9, 9, log).on_older_branches(Boundaries())) == []
    assert list(token(B, 9, 9, 9, None).on_older_branches(boundaries(3))) == []
    assert list(ZERO.on_older_branches(boundaries(3))) == []


seqnos = st.integers(min_value=0, max_value=SEQNO_MAX)
uuids = st.integers(min_value=1, max_value=SEQNO_MAX)


@st.composite
def tokens(draw: st.DrawFn) -> ResumeToken:
    start, at, end = sorted(draw(st.tuples(seqnos, seqnos, seqnos)))
    begins = sorted(draw(st.lists(seqnos, max_size=LOG_ENTRIES_MAX)), reverse=True)
    log = FailoverLog.of(*((draw(uuids), begin) for begin in begins)) if begins else None
    branch = log.newest.uuid if log else BranchId(draw(uuids))
    return ResumeToken(branch, Seqno(at), snapshot(start, end), Seqno(draw(seqnos)), log)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(tokens())
def test_a_token_survives_its_text_and_the_text_is_canonical(found: ResumeToken) -> None:
    text = found.to_text()
    again = ResumeToken.from_text(text)
    assert again == found
    assert again.to_text() == text
    assert json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")) == text


def test_the_text_of_a_token_is_this_one_for_ever() -> None:
    """Tokens are stored by users: a change of this text needs a new format number."""
    at = ResumeToken(
        BranchId(0xF58BCDD94BD5),
        Seqno(5),
        snapshot(1, 12),
        Seqno(SEQNO_MAX),
        FailoverLog.of((7, 0)),
    )
    assert at.to_text() == (
        '{"branch":"0000f58bcdd94bd5","format":1,"log":[["0000000000000007","0"]],'
        '"purge_seqno":"18446744073709551615","seqno":"5","snapshot":["1","12"]}'
    )


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("format", 2, "format 2, this release reads 1"),
        ("format", True, "format True"),
        ("seqno", 5, "seqno is 5, expected a decimal string"),
        ("seqno", "05", "seqno is '05'"),
        ("seqno", "-5", "seqno is '-5'"),
        ("seqno", "18446744073709551616", "expected a decimal string of 0..18446744073709551615"),
        ("branch", "F58BCDD94BD5", "expected 16 lower-case hex digits"),
        ("branch", "0000F58BCDD94BD5", "expected 16 lower-case hex digits"),
        ("branch", "zzzzzzzzzzzzzzzz", "expected 16 lower-case hex digits"),
        ("snapshot", ["1"], "snapshot has 1 items"),
        ("snapshot", "1", "snapshot is a str"),
        ("snapshot", ["6", "12"], "outside its snapshot"),
        ("log", [["0000000000000000", "0"]], "uuid 0x0"),
        ("more", 1, "has keys"),
    ],
)
def test_a_text_we_did_not_write_is_refused_with_the_reason(
    key: str, value: object, complaint: str
) -> None:
    good = token(7, 5, 1, 12, FailoverLog.of((7, 0))).to_json()
    with pytest.raises(ValueError, match=complaint):
        ResumeToken.from_json({**good, key: value})


def test_a_token_that_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="is a list, expected a JSON object"):
        ResumeToken.from_text("[]")


# -- boundaries ---------------------------------------------------------------------------------


def test_the_greatest_boundary_at_or_below_is_found_and_zero_is_always_one() -> None:
    held = boundaries(3, 7, 9)
    assert [held.greatest(Seqno(at)) for at in (0, 2, 3, 6, 7, 8, 100)] == [0, 0, 3, 3, 7, 7, 9]


def test_a_boundary_off_the_producers_history_does_not_count() -> None:
    held = Boundaries().recorded(Seqno(3), A).recorded(Seqno(7), A).recorded(Seqno(9), B)
    fork_after_five = FailoverLog.of((C, 5), (A, 0))
    assert held.greatest(Seqno(100), fork_after_five) == 3
    assert held.greatest(Seqno(100), FailoverLog.of((B, 7), (A, 0))) == 9
    assert held.greatest(Seqno(100), FailoverLog.of((D, 0))) == 0


def test_recording_the_same_end_twice_changes_nothing() -> None:
    assert boundaries(3, 7, 7, 5) == boundaries(3, 7)


def test_a_rollback_drops_the_boundaries_above_it() -> None:
    assert boundaries(3, 7, 9).rolled_back(Seqno(7)) == boundaries(3, 7)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 1 << 30), min_size=1, max_size=200), st.integers(2, 12))
def test_thinned_boundaries_are_some_of_the_true_ones_and_hold_the_newest(
    steps: list[int], limit: int
) -> None:
    held, all_of_them, at = Boundaries(limit=limit), [0], 0
    for step in steps:
        at += step
        held = held.recorded(Seqno(at), A)
        all_of_them.append(at)
        assert len(held) <= limit
        assert held.greatest(SEQNO_MAX) == at
    for probe in all_of_them:
        found = held.greatest(Seqno(probe))
        assert found in all_of_them
        assert found <= probe


def test_after_many_even_snapshots_a_rollback_loses_at_most_twice_its_depth() -> None:
    """Dense near the head: going back d costs no more than 2 d, whatever d is."""
    held = Boundaries()
    for end in range(10, 200_000, 10):
        held = held.recorded(Seqno(end), A)
    newest = held.greatest(SEQNO_MAX)
    for depth in range(10, newest, 1_230):
        assert newest - held.greatest(Seqno(newest - depth)) <= 2 * depth + 10


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, SEQNO_MAX), max_size=40, unique=True))
def test_boundaries_survive_json(ends: list[int]) -> None:
    held = boundaries(*sorted(ends))
    assert Boundaries.from_json(json.loads(json.dumps(held.to_json()))) == held


def test_reading_with_a_smaller_limit_thins() -> None:
    assert len(Boundaries.from_json(boundaries(*range(1, 20)).to_json(), limit=4)) == 4
