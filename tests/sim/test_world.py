"""The simulation: seeds hold, runs repeat exactly, and the bugs it is for are found.

`make sim` runs thousands of seeds; this is a slice of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.world.bugs import BUGS, planted
from tests.sim.world.core import Situation, World
from tests.sim.world.network import WINDOW_BYTES, Network
from tests.sim.world.runs import Outcome, outcomes, run_seed
from tests.sim.world.truth import VBucketTruth

ROOT = Path(__file__).resolve().parents[2]
SEEDS = range(1, 1 + int(os.environ.get("HEADRACE_WORLD_SEEDS", "40")))
RARE = {Situation.REPLICA_ASKED_FILLING}
"""Situations that a few dozen seeds may miss."""
FINDERS = 100
"""Seeds within which each planted bug is found here; `make sim BUG=all` gives them a thousand."""


@pytest.fixture(scope="module")
def ran() -> list[Outcome]:
    return [run_seed(seed) for seed in SEEDS]


class Keeper:
    """An end that keeps what comes."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def on_bytes(self, data: bytes) -> None:
        self._pieces.append(data)

    def on_lost(self, reason: str) -> None:
        raise AssertionError(reason)


def test_seeds_hold(ran: list[Outcome]) -> None:
    assert not [(one.seed, one.failure) for one in ran if one.failure]


@pytest.mark.parametrize("situation", [one for one in Situation if one not in RARE])
def test_seeds_come_where_bugs_hide(ran: list[Outcome], situation: Situation) -> None:
    assert sum(one.counts[situation] for one in ran)


def test_a_slow_connection_keeps_a_sender_waiting_and_brings_all_in_small_pieces() -> None:
    world = World(1)
    connection = Network(world).connect("slow")
    pieces: list[bytes] = []
    sender, reader = connection.ends
    reader.owner = Keeper(pieces)
    connection.slow_down()
    assert connection.pace is not None
    sent = bytes(range(256)) * 2
    sender.send(sent)
    told: list[float] = []
    sender.when_room(lambda: told.append(world.now))
    had_room = [sender.has_room]
    world.run_until(world.now + 60.0)
    assert b"".join(pieces) == sent
    assert max(map(len, pieces)) <= connection.pace.bytes_max < WINDOW_BYTES
    had_room.append(sender.has_room)
    assert had_room == [False, True]
    assert len(told) == 1


def test_seeds_run_on_several_processes() -> None:
    found = {one.seed: one.failure for one in outcomes(range(1, 5), 2, "")}
    assert found == dict.fromkeys(range(1, 5), "")


@pytest.mark.parametrize("name", [name for name, bug in BUGS.items() if not bug.is_rare])
def test_a_planted_bug_is_found(name: str) -> None:
    with planted(name):
        assert any(run_seed(seed).failure for seed in range(1, FINDERS + 1)), BUGS[name].text


def trace_in_another_process(seed: int, hash_seed: str) -> bytes:
    command = [sys.executable, "-m", "tests.sim.world", "--seed", str(seed)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    found = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, check=True, timeout=120
    )
    return found.stdout


def test_a_seed_tells_the_same_story_in_every_process() -> None:
    stories = {trace_in_another_process(7, hash_seed) for hash_seed in ("1", "2")}
    assert len(stories) == 1
    assert b"everything held" in stories.pop()


def test_the_readme_names_every_bug() -> None:
    text = (ROOT / "tests" / "sim" / "README.md").read_text(encoding="utf-8")
    assert [name for name, bug in BUGS.items() if f"| `{name}` | {bug.text} |" not in text] == []


def test_the_truth_of_a_branch_is_what_its_log_says() -> None:
    truth = VBucketTruth(0)
    truth.logs = {1: ((1, 0),), 2: ((2, 2), (1, 0))}
    for seqno, value in ((1, b"a"), (2, b"b"), (3, b"lost")):
        truth.accept(1, seqno, b"k", value)
    truth.accept(2, 3, b"other", b"kept")
    assert truth.state(1, 3) == {b"k": b"lost"}
    assert truth.state(2, 3) == {b"k": b"b", b"other": b"kept"}
    truth.persisted.add((1, 3))
    with pytest.raises(AssertionError, match="was persisted and is gone"):
        truth.check_kept(2, 3)


def test_the_truth_knows_the_last_deletion_of_every_key_that_may_be_purged() -> None:
    truth = VBucketTruth(0)
    truth.logs = {7: ((7, 0),), 9: ((9, 3), (7, 0))}
    for seqno, key, value in ((1, b"a", None), (2, b"b", b""), (3, b"a", None), (4, b"b", None)):
        truth.accept(7, seqno, key, value)
    truth.accept(9, 5, b"c", None)
    assert [truth.deletions(7, last) for last in (0, 2, 3, 9)] == [
        {},
        {b"a": 1},
        {b"a": 3},
        {b"a": 3, b"b": 4},
    ]
    assert truth.deletions(9, 9) == {b"a": 3, b"c": 5}, "b was deleted on a branch that ended"
    assert truth.deletions(8, 9) == {}
