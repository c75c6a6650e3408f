"""The numbers: counted in the tables, and right."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from headrace.demo.losing import Loss, withdrawn
from headrace.demo.record import Record, Sample, TurnSeen
from headrace.demo.summary import Failover, Summary, freshness, machine, summed_up, told
from headrace.spark.client_feed import ClientFactory
from headrace.spark.jobs import LocalRunner
from headrace.spark.verify import verify
from tests.demo.tables import pipeline, rolled_back

if TYPE_CHECKING:
    from pathlib import Path


def seen(number: int, at: float) -> TurnSeen:
    return TurnSeen(time=at, number=number, rows=10, bytes=100, files=1, seconds=0.5, rollbacks=0)


def summary_of(directory: Path) -> Summary:
    record = Record()
    record.add_sample(Sample(time=0, written=50, landed=0, highs={0: 50}, positions={0: 0}))
    for number in (1, 2, 3):
        record.add_turn(seen(number, float(number)))
    with pipeline(directory) as found:
        taken = withdrawn(directory, rolled_back(found))
        report = verify(ClientFactory(found.url), directory, LocalRunner())
    failover = Failover(loss=Loss(0, 50, 40, taken.branch), withdrawn=taken, at=1.0, seconds=0.5)
    return summed_up(
        directory,
        record,
        report,
        writes={"all": 51, "insert": 41, "update": 10},
        failover=failover,
        seconds=3.0,
        spark_start_seconds=0.0,
        verify_seconds=0.1,
        wall_minus_record=time.time(),
    )


def test_the_summary_counts_what_is_in_the_tables(tmp_path: Path) -> None:
    found = summary_of(tmp_path)
    assert found.events == {"mutation": 51, "rollback": 1}
    assert sum(found.documents.values()) == 41
    assert (found.verified_keys, found.differences, found.newer) == (41, 0, 0)
    assert found.agrees
    assert found.lag_peak == 50
    assert (found.turns, found.rows) == (3, 30)
    assert found.table_bytes > 0


def test_a_difference_or_something_not_judged_is_no_agreement(tmp_path: Path) -> None:
    found = summary_of(tmp_path)
    assert not replace(found, differences=1).agrees
    assert not replace(found, newer=1).agrees


def test_the_words_hold_the_numbers(tmp_path: Path) -> None:
    found = summary_of(tmp_path)
    words = dict(told(found))
    assert words["shop"] == "51 writes: 41 inserts, 10 updates, 0 deletes"
    assert words["changes"] == "51 mutations, 1 rollback"
    assert words["rollback"].startswith("vbucket 0 lost 10 seqnos; 0.5 s later")
    assert "0 differences" in words["proof"]
    assert found.to_json()["agrees"] is True


def test_freshness_is_the_time_from_cas_to_turn() -> None:
    record = Record()
    record.add_turn(seen(1, 2.0))
    record.add_turn(seen(2, 5.0))
    clock = 1_700_000_000.0
    changes = pa.table(
        {
            "turn": pa.array([1, 2, 3], pa.int64()),
            "cas": pa.array([int((clock + at) * 1e9) for at in (1.0, 1.0, 1.0)], pa.int64()),
        }
    )
    found = freshness(changes, record, clock)
    assert found == pytest.approx([1.0, 4.0], abs=1e-3), "a turn nobody saw is left out"
    assert len(freshness(changes.slice(0, 0), record, clock)) == 0
    assert len(freshness(changes, Record(), clock)) == 0


def test_the_machine_names_what_the_numbers_depend_on() -> None:
    assert {"python", "cores", "pyarrow", "headrace"} <= set(machine())
