"""What was seen: lags, rates, and a record that stays small."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.demo import record as module
from headrace.demo.record import Record, Sample, TurnSeen, rates

if TYPE_CHECKING:
    import pytest


def sample(time: float, *, written: int = 0, high: int = 0, position: int = 0) -> Sample:
    return Sample(time=time, written=written, landed=0, highs={0: high}, positions={0: position})


def test_lag_is_what_the_node_has_and_the_tables_do_not() -> None:
    one = Sample(time=0, written=0, landed=0, highs={0: 10, 1: 5, 2: 7}, positions={0: 4, 1: 9})
    assert one.lags == {0: 6, 1: 0, 2: 7}
    assert one.lag == 13
    assert one.worst(2) == [(2, 7), (0, 6)]


def test_a_full_record_becomes_coarse_and_keeps_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLES_MAX", 8)
    record = Record()
    for number in range(100):
        record.add_sample(sample(float(number)))
    times = [one.time for one in record.samples]
    assert len(times) < 8
    assert times[0] == 0
    assert times == sorted(times)
    assert times[-1] > 60


def test_the_first_marks_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MARKS_MAX", 2)
    record = Record()
    for text in "abc":
        record.mark(0, "kind", text)
    assert [mark.text for mark in record.marks] == ["a", "b"]


def test_turns_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TURNS_MAX", 1)
    record = Record()
    turn = TurnSeen(time=0, number=1, rows=1, bytes=1, files=1, seconds=1, rollbacks=0)
    record.add_turn(turn)
    record.add_turn(turn)
    assert record.turns == [turn]


def test_a_rate_is_the_change_between_samples() -> None:
    samples = [sample(0, written=0), sample(2, written=10), sample(2, written=12)]
    assert rates(samples, "written") == [(2, 5.0)]


def test_the_peak_of_nothing_is_nothing() -> None:
    record = Record()
    assert record.lag_peak() == 0
    record.add_sample(sample(0, high=9, position=2))
    assert record.lag_peak() == 7
