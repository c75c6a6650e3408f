"""Who is logged in, and for how long."""

from __future__ import annotations

from headrace.web.sessions import (
    AGE_SECONDS_MAX,
    FAILURE_SECONDS,
    FAILURES_MAX,
    IDLE_SECONDS_MAX,
    SESSIONS_MAX,
    Sessions,
    cookie_value,
)
from tests.web.page_kit import ADMIN


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_is_found_by_its_name_alone() -> None:
    sessions = Sessions(Clock())
    name, session = sessions.open(ADMIN)
    assert sessions.find(name) is session
    assert sessions.find(session.token) is None
    assert sessions.find("") is None
    sessions.close(name)
    assert sessions.find(name) is None
    sessions.close(name)


def test_only_the_sessions_own_token_is_carried() -> None:
    sessions = Sessions(Clock())
    (_, one), (_, two) = sessions.open(ADMIN), sessions.open(ADMIN)
    assert one.carries(one.token)
    assert not one.carries(two.token)
    assert not one.carries("")
    assert not one.carries("\u20ac")


def test_a_session_ends_when_it_is_not_used() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    name, _ = sessions.open(ADMIN)
    clock.now = IDLE_SECONDS_MAX
    assert sessions.find(name) is not None
    clock.now += IDLE_SECONDS_MAX
    assert sessions.find(name) is not None
    clock.now += IDLE_SECONDS_MAX + 1
    assert sessions.find(name) is None


def test_a_session_ends_however_busy_it_is() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    name, _ = sessions.open(ADMIN)
    while clock.now <= AGE_SECONDS_MAX:
        assert sessions.find(name) is not None
        clock.now += IDLE_SECONDS_MAX
    assert sessions.find(name) is None


def test_the_oldest_of_too_many_is_forgotten() -> None:
    sessions = Sessions(Clock())
    names = [sessions.open(ADMIN)[0] for _ in range(SESSIONS_MAX + 1)]
    assert sessions.find(names[0]) is None
    assert sessions.find(names[1]) is not None


def test_after_too_many_failures_nobody_may_try_for_a_while() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    for _ in range(FAILURES_MAX):
        assert sessions.may_try
        sessions.failed()
    assert not sessions.may_try
    clock.now = FAILURE_SECONDS + 1
    assert sessions.may_try


def test_a_cookie_is_found_among_others() -> None:
    assert cookie_value("a=1; s=two; b=3", "s") == "two"
    assert cookie_value("xs=1", "s") == ""
    assert cookie_value("", "s") == ""
