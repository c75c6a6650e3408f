"""Notices: one sentence for what happened to many vbuckets, each told once."""

from __future__ import annotations

from headrace.cluster.notices import NOTICES_MAX, Notices


def test_the_same_for_many_vbuckets_is_one_sentence() -> None:
    notices = Notices()
    for vbucket in (3, 1, 2, 9, 2):
        notices.add("a", "b", vbucket, "gone")
    notices.add("b", "a", 1, "gone")
    notices.add("a", "b", 1, "late")
    assert notices.take() == ["a -> b, vb 1-3, 9: gone", "b -> a, vb 1: gone", "a -> b, vb 1: late"]
    assert notices.take() == []


def test_what_nobody_takes_is_kept_to_a_limit_and_counted() -> None:
    notices = Notices()
    for number in range(NOTICES_MAX + 5):
        notices.add("a", "b", 1, f"for the {number}. time")
    taken = notices.take()
    assert len(taken) == NOTICES_MAX + 1
    assert taken[-1] == "and 5 more of the kind"
    assert notices.take() == []
