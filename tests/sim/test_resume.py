"""Slices of `python -m tests.soak.resume`: cut, failed over, killed, and resumed from saved tokens.

HEADRACE_SOAK_SEED chooses another day.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from headrace.client.bucket import connect
from headrace.testing import running_node
from tests.soak import stall
from tests.soak.resume import Campaign, Harm, Plan
from tests.soak.slow import slow_application

if TYPE_CHECKING:
    from pathlib import Path

SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "1"))


def campaign(directory: Path, plan: Plan) -> Campaign:
    """Run it; a failure names the plan, its seed among it."""
    made = Campaign(directory, plan)
    made.run()
    return made


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("vbuckets", "cuts"), [(64, 60), (1024, 6)])
def test_a_consumer_cut_at_random_points_gets_every_change_once(
    vbuckets: int, cuts: int, tmp_path: Path
) -> None:
    plan = Plan(documents=20_000, vbuckets=vbuckets, cuts=cuts, seed=SEED, comparisons=1)
    made = campaign(tmp_path, plan)
    assert made.counts["ended: died"] > 0
    assert made.model.counts["rollbacks"] == 0, "nothing was lost, so nothing is withdrawn"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_consumer_follows_failovers_and_rollbacks_to_the_same_state(tmp_path: Path) -> None:
    plan = Plan(documents=20_000, vbuckets=64, cuts=30, seed=SEED, harm=Harm.FAILOVERS)
    made = campaign(tmp_path, plan)
    assert made.model.counts["withdrawn"] > 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_consumer_follows_a_node_through_kill_9(tmp_path: Path) -> None:
    plan = Plan(documents=5_000, vbuckets=64, cuts=4, seed=SEED, harm=Harm.KILLS, comparisons=1)
    made = campaign(tmp_path, plan)
    assert made.counts["kill -9"] > 0


@pytest.mark.slow
def test_a_slow_application_makes_its_producer_wait_and_loses_nothing(tmp_path: Path) -> None:
    """Its checks are in `Report.check`."""
    report = slow_application(tmp_path, documents=20_000, window=1 << 20, seconds=6.0)
    assert report.rows == 20_000


@pytest.mark.parametrize(
    ("serves", "found"), [(True, "2 calm and 0 restless"), (False, "0 calm and 2 restless")]
)
def test_a_life_in_which_nothing_moves_is_ended_and_says_whether_it_could_have(
    serves: bool, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stall, "STALL_SECONDS", 2)
    monkeypatch.setattr(stall, "RESTLESS_SECONDS_MAX", 2)
    monkeypatch.setattr(stall, "TICK_SECONDS", 0.05)
    # However busy the machine of this test is, whether the node answers is what counts here.
    monkeypatch.setattr(stall, "LATE_SECONDS", 60.0)
    monkeypatch.setattr(stall, "ANSWER_SECONDS_MAX", 60.0)
    with running_node() as node:
        url = f"{node.connection_string}/default"
        with connect(url) as bucket, bucket.changes() as reader:
            waiting = threading.Thread(target=list, args=(reader,), name="the application")
            waiting.start()
            asked = url if serves else "couchbase://127.0.0.1:1/default"
            report = stall.Stall(reader, asked, lambda: 0).watch(threading.Event())
            waiting.join(60.0)
            assert not waiting.is_alive(), "the reader is closed"
    assert found in report
    assert "vbucket=0" in report, "where every vbucket stands"
    assert "thread the application" in report


def test_a_life_that_is_over_is_left_alone() -> None:
    over = threading.Event()
    over.set()
    with running_node() as node:
        url = f"{node.connection_string}/default"
        with connect(url) as bucket, bucket.changes() as reader:
            assert not stall.Stall(reader, url, lambda: 0).watch(over)
