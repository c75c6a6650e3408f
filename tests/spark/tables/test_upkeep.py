"""Compaction keeps everything; retention keeps every state that can still be rolled back to."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from headrace.spark.jobs import LocalRunner
from headrace.spark.sync import Sync, SyncOptions
from headrace.spark.tables.upkeep import compact
from headrace.spark.tables.views import arrow_changes, arrow_state
from tests.spark.producer import CAS_BASE, InMemory, Producer

if TYPE_CHECKING:
    from pathlib import Path

ALL_OLD = datetime(2100, 1, 1, tzinfo=UTC)


def grown(path: Path, *, turns: int = 6) -> tuple[Producer, Sync]:
    producer = Producer.with_vbuckets(4)
    sync = Sync(InMemory(producer), path, LocalRunner(), SyncOptions(parts=2))
    draw = random.Random(5)
    for turn in range(turns):
        for _ in range(20):
            vb = draw.randrange(4)
            if draw.random() < 0.2:
                producer.delete(vb, draw.choice("abcd"))
            else:
                producer.put(vb, draw.choice("abcd"), f"{turn} {draw.random()}")
        if turn == 3:
            producer.fail_over(1, producer.histories[1].high - 2)
        list(sync.once())
    return producer, sync


def places(path: Path, *, withdrawn: bool = True) -> list[tuple[int, int, int, int]]:
    rows = arrow_changes(path, withdrawn=withdrawn).to_pylist()
    return sorted((row["vbucket"], row["epoch"], row["seqno"], row["turn"]) for row in rows)


def state(path: Path) -> dict[tuple[int, str], str]:
    return {(r["vbucket"], r["key"]): r["value"].decode() for r in arrow_state(path).to_pylist()}


def test_compaction_keeps_every_row_and_every_position_in_fewer_files(tmp_path: Path) -> None:
    producer, sync = grown(tmp_path)
    before, vector = places(tmp_path), sync.changes.published().vector
    done = compact(sync.changes, LocalRunner())
    assert (done.files_before, done.files_after) == (12, 2)
    assert places(tmp_path) == before
    assert sync.changes.published().vector == vector
    list(sync.once())
    assert state(tmp_path) == producer.state()
    assert compact(sync.changes, LocalRunner()).rows_after == 0, "nothing to do"


def test_the_sync_goes_on_after_it(tmp_path: Path) -> None:
    producer, sync = grown(tmp_path)
    compact(sync.changes, LocalRunner())
    producer.put(0, "a", "after")
    producer.fail_over(2, producer.histories[2].high - 1)
    producer.put(2, "z", "new branch")
    list(sync.once())
    assert state(tmp_path) == producer.state()


def test_forgetting_keeps_the_latest_version_of_each_key(tmp_path: Path) -> None:
    producer, sync = grown(tmp_path)
    done = compact(sync.changes, LocalRunner(), keep_since=ALL_OLD)
    assert done.rows_after < done.rows_before
    kept = arrow_changes(tmp_path).to_pylist()
    assert {(r["vbucket"], r["key"]): r["value"].decode() for r in kept} == producer.state()
    sync.state.path.rename(tmp_path / "aside")
    again = Sync(InMemory(producer), tmp_path, LocalRunner(), SyncOptions(parts=2))
    list(again.once())
    assert state(tmp_path) == producer.state(), "a state made anew from what is left"


@pytest.mark.parametrize("cut", range(0, 30, 3))
def test_a_rollback_after_forgetting_is_right_above_and_below_the_horizon(
    tmp_path: Path, cut: int
) -> None:
    producer, sync = grown(tmp_path)
    since = datetime.fromtimestamp((CAS_BASE + cut * 1000) / 1e9, UTC)
    compact(sync.changes, LocalRunner(), keep_since=since)
    for vb in range(4):
        high = producer.histories[vb].high
        producer.fail_over(vb, max(0, high - cut))
        producer.put(vb, "n", "new")
    list(sync.once())
    assert state(tmp_path) == producer.state()
