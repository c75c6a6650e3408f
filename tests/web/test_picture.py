"""Pictures and their differences."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.web.picture import (
    BRANCH,
    COLUMNS,
    CONDITIONS,
    CONNECTIONS_SHOWN_MAX,
    NOBODY,
    SLOW,
    ConnectionView,
    Json,
    Picture,
    Rates,
    difference,
    empty_columns,
    rates_between,
    summary,
    whole,
)
from tests.web.pictures import picture


def applied(before: Json, change: Json) -> Json:
    """What a page does with a difference, written the plain way."""
    after = {name: list(values) for name, values in before.items()}  # type: ignore[call-overload]
    for name, told in change.items():
        assert isinstance(told, dict)
        if "all" in told:
            after[name] = list(told["all"])
        else:
            for place, value in zip(told["at"], told["to"], strict=True):
                after[name][place] = value
    return after


def plain(one: Picture) -> Json:
    return {**one.columns, BRANCH: one.branches}


@given(st.integers(0, 2**32), st.integers(1, 40), st.floats(0, 1))
def test_a_difference_leads_from_one_picture_to_the_next(
    seed: int, size: int, share: float
) -> None:
    chance = random.Random(seed)

    def drawn(base: Picture | None) -> Picture:
        columns, branches = empty_columns(size), ["a"] * size
        for name in COLUMNS:
            for place in range(size):
                if base is not None and chance.random() > share:
                    columns[name][place] = base.columns[name][place]
                else:
                    columns[name][place] = chance.randrange(9)
        return Picture(taken=0.0, time=0.0, columns=columns, branches=branches)

    old = drawn(None)
    new = drawn(old)
    assert applied(plain(old), difference(old, new)) == plain(new)


def test_nothing_changed_is_nothing_told() -> None:
    assert difference(picture(highs=(1, 2)), picture(highs=(1, 2))) == {}


def test_few_changes_are_places_and_many_are_the_whole_column() -> None:
    old = picture(highs=(1, 2, 3, 4))
    assert difference(old, picture(highs=(1, 2, 9, 4))) == {"high": {"at": [2], "to": [9]}}
    assert difference(old, picture(highs=(9, 8, 7, 4))) == {"high": {"all": [9, 8, 7, 4]}}


def test_a_bucket_of_another_size_is_told_whole() -> None:
    found = difference(picture(highs=(1,)), picture(highs=(1, 2)))
    assert set(found) == {*COLUMNS, BRANCH}
    assert found["high"] == {"all": [1, 2]}


def test_the_whole_has_every_column() -> None:
    assert set(whole(picture())) == {*COLUMNS, BRANCH}


def test_a_failover_is_not_negative_work() -> None:
    old, new = picture(0.0, highs=(100, 100)), picture(2.0, highs=(50, 140))
    assert rates_between(old, new).written == 20.0


def test_no_time_means_no_rates() -> None:
    assert rates_between(picture(1.0), picture(1.0, highs=(9, 9, 9, 9))) == Rates()


def test_a_new_connection_does_not_count_all_it_ever_sent() -> None:
    known = ConnectionView(key="1", name="a", items_sent=10, bytes_sent=100)
    later = replace(known, items_sent=30, bytes_sent=500)
    new = ConnectionView(key="2", name="b", items_sent=1_000_000)
    rates = rates_between(
        picture(0.0, connections=(known,)), picture(2.0, connections=(later, new))
    )
    assert (rates.sent, rates.bytes) == (10.0, 200.0)


def test_slow_connections_come_first_and_the_rest_is_counted() -> None:
    many = tuple(
        ConnectionView(key=str(n), name=str(n), lag=n) for n in range(CONNECTIONS_SHOWN_MAX + 5)
    )
    slow = ConnectionView(key="s", name="s", condition="full")
    told = summary(picture(connections=(*many, slow)), Rates())
    assert isinstance(told["connections"], list)
    assert told["connections"][0]["key"] == "s"
    assert told["connections"][0]["slow"] is True
    assert len(told["connections"]) == CONNECTIONS_SHOWN_MAX
    assert isinstance(told["totals"], dict)
    assert told["totals"]["connections"] == CONNECTIONS_SHOWN_MAX + 6


def test_lag_does_not_count_vbuckets_nobody_reads() -> None:
    assert picture(lag=(5, NOBODY, 0, 7)).lag == 12


@pytest.mark.parametrize("word", sorted(SLOW))
def test_every_slow_condition_has_its_sentence(word: str) -> None:
    assert CONDITIONS[word]
