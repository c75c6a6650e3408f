"""How long a copy may stand still."""

from __future__ import annotations

from headrace.cluster.stillness import STILL_SECONDS, STILL_SECONDS_IN_LINE, Stillness


def test_a_copy_that_moves_is_never_still_however_slow_it_is() -> None:
    stillness = Stillness()
    for step in range(1000):
        assert not stillness.look(step * (STILL_SECONDS - 1), step, 0)


def test_a_copy_that_does_not_move_is_still_after_the_limit() -> None:
    stillness = Stillness()
    assert not stillness.look(100.0, 7, 0)
    assert not stillness.look(100.0 + STILL_SECONDS - 1, 7, 0)
    assert stillness.look(100.0 + STILL_SECONDS, 7, 0)
    assert stillness.seconds(100.0 + STILL_SECONDS) == STILL_SECONDS


def test_the_first_look_counts_nothing() -> None:
    stillness = Stillness()
    assert not stillness.look(1_000_000.0, 7, 0)
    assert stillness.seconds(1_000_000.0) == 0


def test_who_waits_in_line_has_longer_and_not_for_ever() -> None:
    stillness = Stillness()
    now, line = 0.0, 0
    while now < STILL_SECONDS_IN_LINE:
        assert not stillness.look(now, 7, line), now
        now, line = now + STILL_SECONDS / 2, line + 1
    assert stillness.look(now, 7, line)


def test_when_the_others_stand_too_the_short_limit_counts_from_there() -> None:
    stillness = Stillness()
    stillness.look(0.0, 7, 1)
    assert not stillness.look(40.0, 7, 2)
    assert not stillness.look(40.0 + STILL_SECONDS - 1, 7, 2)
    assert stillness.look(40.0 + STILL_SECONDS, 7, 2)


def test_a_reset_begins_anew() -> None:
    stillness = Stillness()
    stillness.look(0.0, 7, 0)
    stillness.reset()
    assert stillness.seconds(50.0) == 0
    assert not stillness.look(50.0, 7, 0)
    assert not stillness.look(50.0 + STILL_SECONDS - 1, 7, 0)
