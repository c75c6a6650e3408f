"""`headrace sync` as a user runs it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.cli.sync import columns_of, settings_of, stderr_to
from headrace.errors import ConfigError, ConnectionLost
from headrace.spark.tables.changes import ChangesTable
from headrace.testing import running_node
from tests.spark.conftest import SOURCE, numbered, url_of, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.testing import RunningNode

FOLLOW_SECONDS_MAX = 60
KILLS = 20


@pytest.fixture
def node() -> Iterator[RunningNode]:
    with running_node(vbuckets=4) as started:
        yield started


def headrace(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, list(arguments))
    return done.exit_code, done.output


def test_a_sync_tells_its_turns_and_a_second_one_has_nothing_to_do(
    node: RunningNode, tmp_path: Path
) -> None:
    write(node, numbered(120))
    code, output = headrace("sync", url_of(node), str(tmp_path), "--master", "none")
    assert code == 0, output
    assert "turn 1: 120 rows" in output
    assert "1 turns, 120 rows" in output
    code, output = headrace("sync", url_of(node), str(tmp_path), "--master", "none")
    assert "0 turns, 0 rows" in output


def test_a_rollback_is_told(node: RunningNode, tmp_path: Path) -> None:
    write(node, numbered(80))
    headrace("sync", url_of(node), str(tmp_path), "--master", "none")
    node.faults.failover(vbucket=1, lose=3)
    code, output = headrace("sync", url_of(node), str(tmp_path), "--master", "none")
    assert code == 0, output
    assert "rollback: vbucket 1 from" in output


def test_columns_and_soft_deletes_reach_the_table(node: RunningNode, tmp_path: Path) -> None:
    from headrace.spark.tables.views import arrow_state

    write(node, numbered(10))
    write(node, [("doc-3", None)])
    code, output = headrace(
        "sync",
        url_of(node),
        str(tmp_path),
        "--master",
        "none",
        "--soft-deletes",
        "--column",
        "n:bigint",
    )
    assert code == 0, output
    assert sum(n or 0 for n in arrow_state(tmp_path)["n"].to_pylist()) == sum(range(10)) - 3
    assert len(arrow_state(tmp_path, deleted=True)) == 10


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["couchbase://127.0.0.1:1/b", "x", "--master", "none"], "127.0.0.1"),
        (["couchbase://h/b", "x", "--column", "n"], "expected PATH:TYPE"),
        (["couchbase://h/b", "x", "--credentials", "nowhere"], "cannot be read"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], complaint: str) -> None:
    code, output = headrace("sync", *arguments)
    assert code == 1
    assert complaint in output
    assert "Traceback" not in output


def test_columns_are_paths_and_types() -> None:
    assert columns_of(("a.b:bigint", "c:string")) == {"a.b": "bigint", "c": "string"}
    with pytest.raises(ConfigError):
        columns_of((":string",))


def test_settings_of_spark_are_keys_and_values() -> None:
    assert settings_of(("spark.a=b=c", "spark.d=")) == {"spark.a": "b=c", "spark.d": ""}
    for text in ("spark.a", "a=b", "=b"):
        with pytest.raises(ConfigError, match="expected KEY=VALUE"):
            settings_of((text,))


def test_what_others_write_to_standard_error_goes_to_a_file(tmp_path: Path) -> None:
    with stderr_to(tmp_path / "log"):
        os.write(2, b"noise")
    assert (tmp_path / "log").read_bytes() == b"noise"


class Churn:
    """Documents written over and over while a block runs."""

    def __init__(self, node: RunningNode) -> None:
        self._node = node
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rounds = 0

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            self.rounds += 1
            try:
                write(self._node, numbered(60, version=self.rounds))
                write(self._node, [(f"doc-{self.rounds % 60}", None)])
            except (ConnectionLost, AssertionError):
                continue  # the node is down: the next round finds it again

    def __enter__(self) -> Churn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def follower_of(node: RunningNode, path: Path, master: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace", "sync", url_of(node), str(path)]
    return subprocess.Popen(
        [*command, "--follow", "--master", master, "--rebuild-turns", "3", "--parts", "3"],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stderr=subprocess.DEVNULL,
    )


def wait_for_turn(path: Path, turn: int) -> None:
    """Until the follower has committed that turn."""
    deadline = time.monotonic() + FOLLOW_SECONDS_MAX
    while time.monotonic() < deadline:
        table = ChangesTable(path / "changes")
        if table.table.exists and table.table.turn >= turn:
            return
        time.sleep(0.05)
    pytest.fail(f"turn {turn} was not committed in {FOLLOW_SECONDS_MAX} s")


def assert_whole(node: RunningNode, path: Path) -> None:
    code, output = headrace("sync", url_of(node), str(path), "--master", "none")
    assert code == 0, output
    code, output = headrace("verify", url_of(node), str(path), "--master", "none")
    assert code == 0, output
    assert " 0 differences" in output


@pytest.mark.slow
def test_a_driver_killed_at_any_moment_loses_and_doubles_nothing(
    node: RunningNode, tmp_path: Path
) -> None:
    seed = 20_260_131
    draw = random.Random(seed)
    with Churn(node):
        for kill in range(KILLS):
            follower = follower_of(node, tmp_path, "none")
            # Half of the kills hit a running loop, half hit its start.
            if kill % 2:
                wait_for_turn(tmp_path, kill)
            time.sleep(draw.uniform(0.0, 1.5))
            follower.kill()
            follower.wait()
    assert_whole(node, tmp_path)


def test_a_follower_is_stopped_by_a_signal_and_leaves_whole_tables(
    node: RunningNode, tmp_path: Path
) -> None:
    write(node, numbered(50))
    command = [sys.executable, "-m", "headrace", "sync", url_of(node), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    follower = subprocess.Popen(
        [*command, "--follow", "--master", "none"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert follower.stderr is not None
    try:
        assert "turn 1: 50 rows" in follower.stderr.readline()
        write(node, numbered(20, version=1))
        assert "turn 2: 20 rows" in follower.stderr.readline()
        time.sleep(0.2)
        follower.send_signal(signal.SIGTERM)
        rest = follower.stderr.read()
        assert follower.wait(FOLLOW_SECONDS_MAX) == 0, rest
        assert "2 turns, 70 rows" in rest
    finally:
        follower.kill()
        follower.wait()
        follower.stderr.close()
