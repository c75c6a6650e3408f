"""The collector is left alone while a task works, and is as it was afterwards."""

from __future__ import annotations

import gc

import pytest

from headrace.spark.collector import OBJECTS_MAX, calm_collector


def test_cycles_are_looked_for_seldom_and_then_as_before() -> None:
    before = gc.get_threshold()
    with calm_collector():
        assert gc.get_threshold() == (OBJECTS_MAX, *before[1:])
    assert gc.get_threshold() == before


def test_a_task_that_fails_leaves_the_collector_as_it_was() -> None:
    before = gc.get_threshold()
    with pytest.raises(OSError, match="gone"), calm_collector():
        raise OSError("gone")
    assert gc.get_threshold() == before


def test_a_collector_that_was_told_to_wait_longer_or_for_ever_is_left_so() -> None:
    before = gc.get_threshold()
    try:
        for told in (0, 2 * OBJECTS_MAX):
            gc.set_threshold(told)
            with calm_collector():
                assert gc.get_threshold()[0] == told
    finally:
        gc.set_threshold(*before)
