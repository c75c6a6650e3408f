"""`headrace sync` as a user runs it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.cli.sync import columns_of, stderr_to
from headrace.errors import ConfigError, ConnectionLost
from headrace.spark.tables.changes import ChangesTable
from headrace.testing import running_node
from tests.spark.conftest import SOURCE, numbered, url_of, write

if TYPE_CHECKING:
    from collections.abc import Iterator

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


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_and_the_node_killed_at_any_moment_lose_and_double_nothing(
    tmp_path: Path,
) -> None:
    seed = 7
    draw = random.Random(seed)
    killed = 0
    with running_node(vbuckets=4, data=tmp_path / "data") as node, Churn(node):
        follower = follower_of(node, tmp_path / "tables", "local[2]")
        try:
            wait_for_turn(tmp_path / "tables", 1)
            for kill in range(KILLS):
                time.sleep(draw.uniform(0.1, 0.6))
                if kill % 4 == 3:
                    node.crash()
                    node.restart()
                else:
                    killed += kill_one_worker(follower.pid, draw)
            turn = ChangesTable(tmp_path / "tables" / "changes").table.turn
            wait_for_turn(tmp_path / "tables", turn + 2)
            assert follower.poll() is None, "the sync lives on"
            assert killed >= KILLS // 4, "workers were there to be killed"
        finally:
            follower.kill()
            follower.wait()
    with running_node(vbuckets=4, data=tmp_path / "data") as node:
        assert_whole(node, tmp_path / "tables")


def processes() -> dict[int, tuple[int, str]]:
    """Every process: its parent and its command."""
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(path.name)] = (parent, command)
    return found


def kill_one_worker(driver: int, draw: random.Random) -> bool:
    """Kill one of the Python workers below a driver; False if it has none just now."""
    known = processes()
    workers = [pid for pid, (_, command) in known.items() if "pyspark.daemon" in command]
    below = [pid for pid in workers if driver in ancestors(pid, known)]
    with contextlib.suppress(ProcessLookupError, IndexError):
        os.kill(draw.choice(below), signal.SIGKILL)
        return True
    return False


def ancestors(pid: int, known: dict[int, tuple[int, str]]) -> set[int]:
    found = set()
    while pid in known:
        pid = known[pid][0]
        found.add(pid)
    return found


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


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_executors_in_processes_of_their_own_get_the_package(
    node: RunningNode, tmp_path: Path
) -> None:
    write(node, numbered(200))
    command = [sys.executable, "-m", "headrace", "sync", url_of(node), str(tmp_path)]
    done = subprocess.run(
        [*command, "--master", "local-cluster[2,1,1024]"],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert "turn 1: 200 rows" in done.stderr, done.stderr
    assert_whole(node, tmp_path)
