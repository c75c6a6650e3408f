"""`headrace fault` against a node that runs, and `headrace serve` with a scenario."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.cli.fault import TOKEN_VARIABLE
from headrace.node.config import NodeConfig
from headrace.node.fault_table import LEVERS, TRIGGERS
from headrace.node.faults import CRASH_EXIT_STATUS
from headrace.testing import running_node
from tests.node.client import Client
from tests.node.fault_kit import fill
from tests.node.running import SMALL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.testing import RunningNode

SOURCE = Path(__file__).resolve().parent.parent.parent / "src"
START_SECONDS = 60.0


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningNode]:
    """A node whose admin API is named by the environment."""
    with running_node(config=NodeConfig(buckets=(SMALL,), admin_port=0)) as started:
        assert started.node.admin is not None
        monkeypatch.setenv("HEADRACE_ADMIN", started.node.admin.url)
        monkeypatch.setenv(TOKEN_VARIABLE, started.node.admin.token)
        yield started


def run(*words: str) -> tuple[int, str]:
    """Exit status and everything written."""
    done = CliRunner().invoke(main, ["fault", *words])
    return done.exit_code, done.output


def test_the_list_needs_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_ADMIN", raising=False)
    status, text = run("list")
    assert status == 0
    assert all(lever.does in text for lever in LEVERS.values())
    status, text = run("list", "--json")
    assert set(json.loads(text)["levers"]) == set(LEVERS)
    assert set(json.loads(text)["triggers"]) == set(TRIGGERS)


@pytest.mark.parametrize("name", LEVERS)
def test_every_lever_has_a_command_with_its_parameters(name: str) -> None:
    status, text = run(name, "--help")
    assert status == 0
    assert all(f"--{parameter.name}" in text for parameter in LEVERS[name].parameters)


def test_a_vbucket_is_failed_over(node: RunningNode) -> None:
    fill(node.port, 50, vbucket=3)
    status, text = run("failover", "--vbucket", "3", "--lose", "20")
    assert status == 0, text
    assert "seqno  30" in text
    status, text = run("failover", "--vbucket", "3", "--seqno", "10", "--json")
    assert json.loads(text)["result"]["high_seqno"] == 30


def test_a_lever_waits_and_the_scenario_shows_it(node: RunningNode) -> None:
    assert run("failover", "--lose", "2", "--when", "at vbucket 1 seqno 5")[0] == 0
    assert run("line", "then: set state vbucket 2 to dead")[0] == 0
    fill(node.port, 5, vbucket=1)
    node.faults.steps.all[1].wait()
    status, text = run("--json", "show", "scenario")
    assert status == 0
    assert [step["state"] for step in json.loads(text)["steps"]] == ["fired", "fired"]
    status, text = run("show", "vbuckets")
    assert "vbucket=2  state=dead" in text


def test_a_flag_is_passed_on(node: RunningNode) -> None:
    with Client(node.port) as client:
        client.open_producer(b"sync:x")
        assert run("cut", "--connection", "sync:*", "--middle", "--size", "1000000")[0] == 0
        assert run("show", "connections")[0] == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("cut",), "cut needs connection"),
        (("cut", "--connection", "nobody"), "no connection is 'nobody'"),
        (("purge", "--vbucket", "x"), "vbucket is 'x'; allowed: 0..1023"),
        (("line", "now: bang"), "column 6: found 'bang'"),
    ],
)
def test_the_nodes_sentence_is_shown(
    node: RunningNode, words: tuple[str, ...], sentence: str
) -> None:
    status, text = run(*words)
    assert node.is_running
    assert status == 1
    assert text.startswith("headrace: ")
    assert sentence in text


def test_where_and_who_must_be_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, node: RunningNode
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "wrong")
    assert "give the token that was printed" in run("clear")[1]
    monkeypatch.delenv(TOKEN_VARIABLE)
    assert f"which token? set {TOKEN_VARIABLE}" in run("clear")[1]
    assert node.node.admin is not None
    (tmp_path / "token").write_text(node.node.admin.token + "\n", encoding="utf-8")
    assert run("--token-file", str(tmp_path / "token"), "clear")[0] == 0
    monkeypatch.setenv(TOKEN_VARIABLE, "x")
    assert "http://127.0.0.1:PORT" in run("--admin", "https://example.org", "clear")[1]
    assert "cannot be reached" in run("--admin", "http://127.0.0.1:1", "clear")[1]
    assert "cannot be read" in run("--admin", str(tmp_path / "none"), "clear")[1]
    assert "is not what --admin-file writes" in run("--admin", str(tmp_path / "token"), "clear")[1]
    monkeypatch.delenv("HEADRACE_ADMIN")
    assert "which node?" in run("clear")[1]


def test_serve_obeys_a_scenario_and_writes_the_admin_file(tmp_path: Path) -> None:
    (tmp_path / "day.txt").write_text(
        "at vbucket 1 seqno 10: fail over losing 4\nthen: set state vbucket 2 to replica\n",
        encoding="utf-8",
    )
    admin, port = tmp_path / "admin.json", tmp_path / "port"
    words = ["serve", "--data", str(tmp_path / "data"), "--port", "0", "--vbuckets", "4"]
    words += ["--admin-file", str(admin), "--port-file", str(port)]
    words += ["--scenario", str(tmp_path / "day.txt")]
    process = subprocess.Popen(
        [sys.executable, "-c", "from headrace.cli import main; main()", *words],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not (port.exists() and admin.exists()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert stat.S_IMODE(admin.stat().st_mode) == 0o600
        fill(int(port.read_text()), 12, vbucket=1)
        status, text = run("--admin", str(admin), "--json", "show", "vbuckets")
        assert status == 0, text
        vbuckets = json.loads(text)["buckets"]["default"]["vbuckets"]
        assert [entry["seqno"] for entry in vbuckets[1]["failover_log"]] == [6, 0]
        assert vbuckets[1]["high_seqno"] == 8
        assert vbuckets[2]["state"] == "replica"
        status, text = run("--admin", str(admin), "crash", "--commits", "0")
        assert (status, text) == (0, "crash  the node is gone\n"), "that is what was asked for"
        assert process.wait(START_SECONDS) == CRASH_EXIT_STATUS
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        shown, _ = process.communicate(timeout=START_SECONDS)
    assert "export HEADRACE_ADMIN=http://127.0.0.1:" in shown


def test_a_scenario_with_a_mistake_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "day.txt").write_text("now: clear\nat noon: purge\n", encoding="utf-8")
    words = ["serve", "--memory", "--scenario", str(tmp_path / "day.txt")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    assert "day.txt, line 2, column 4: found 'noon', expected" in done.output
