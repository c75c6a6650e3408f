"""`headrace demo` as a person runs it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import demo as module
from headrace.cli.demo import next_commands, programs
from tests.cli.node_for_commands import call
from tests.demo.test_summary import summary_of

SOURCE = Path(__file__).resolve().parents[2] / "src"
QUICK = ("--seconds", "3", "--documents", "400", "--rate", "400", "--vbuckets", "4")
END_SECONDS_MAX = 240


@pytest.fixture(autouse=True)
def _tree_for_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))


def start(*words: str) -> subprocess.Popen[str]:
    """A demo in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", "demo", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def of_demo(directory: Path) -> list[str]:
    """Command lines of processes that name a demo's directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in words and int(path.parent.name) != os.getpid():
            found.append(words)
    return found


def test_it_ends_with_tables_a_report_and_a_summary(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = call("demo", "--out", str(out), "--master", "none", *QUICK)
    assert "tables and source agree, item by item" in done.stdout
    assert {one.name for one in out.iterdir()} == {
        "node",
        "node.log",
        "report.html",
        "summary.json",
        "tables",
    }
    assert json.loads((out / "summary.json").read_text(encoding="utf-8"))["agrees"] is True
    assert (out / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_summary_as_json_is_all_there_is_on_standard_output(tmp_path: Path) -> None:
    done = call("demo", "--out", str(tmp_path / "out"), "--master", "none", "--json", *QUICK)
    assert json.loads(done.stdout)["differences"] == 0


def test_a_difference_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from headrace.demo.run import Demo

    run = Demo.run
    monkeypatch.setattr(Demo, "run", lambda self: replace(run(self), differences=2))
    done = call("demo", "--out", str(tmp_path / "out"), "--master", "none", *QUICK, code=1)
    assert "2 differences" in done.stdout


def test_without_spark_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "pyspark" else name)
    done = call("demo", code=1)
    assert done.stderr.startswith("headrace: pyspark not installed; pip install")


@pytest.mark.timeout(300)
def test_ctrl_c_stops_it_with_130_and_nothing_is_left(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start("--out", str(out), "--seconds", "500", "--documents", "400", "--rate", "200")
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            if "shop      opens" in line:
                break
        # As a terminal does: to everyone in the foreground.
        os.killpg(process.pid, signal.SIGINT)
        said, errors = process.communicate(timeout=END_SECONDS_MAX)
    assert process.returncode == 130, errors
    assert "nothing is left running" in said
    assert "Traceback" not in errors
    assert of_demo(out) == []


@pytest.mark.timeout(400)
def test_it_works_with_spark(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start("--out", str(out), "--master", "local[2]", "--json", *QUICK)
    with process:
        said, errors = process.communicate(timeout=END_SECONDS_MAX)
    assert process.returncode == 0, errors
    summary = json.loads(said)
    assert summary["agrees"] is True
    assert summary["failover"]["withdrawn"]["rows"] > 0
    assert (out / "tables" / "spark.log").exists()
    assert of_demo(out) == []


def test_the_next_commands_work_as_they_are_printed(tmp_path: Path) -> None:
    summary = summary_of(tmp_path / "tables")
    history, query, _ = next_commands(tmp_path, summary)
    for line in (history, query):
        words = shlex.split(line)
        done = subprocess.run(words, capture_output=True, text=True, timeout=END_SECONDS_MAX)
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_programs_are_named_as_this_shell_finds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: str(Path(sys.executable).with_name(name)))
    monkeypatch.setattr(Path, "exists", lambda _: True)
    assert programs() == ("headrace", Path(sys.executable).name)
    monkeypatch.setattr("shutil.which", lambda _: None)
    headrace, python = programs()
    assert headrace.endswith("/headrace")
    assert python.endswith(Path(sys.executable).name)
