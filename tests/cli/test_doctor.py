"""headrace doctor: a line per check, JSON for scripts, 1 if something is in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.doctor import closing, line_of
from headrace.cli.finding import failure, good, warning
from tests.cli.node_for_commands import call, node_url

SOURCE = Path(__file__).resolve().parents[2] / "src"


def test_an_installation_that_works_is_told_line_by_line() -> None:
    lines = call("doctor").stdout.splitlines()
    assert lines[0].startswith("ok    python         Python 3.")
    assert "checks passed" in lines[-1]


def test_a_bucket_is_checked_as_well() -> None:
    with node_url() as url:
        told = json.loads(call("doctor", url, "--json").stdout)
    assert told["ok"] is True
    assert [one["check"] for one in told["findings"]][-1] == "clock"


def test_what_is_in_the_way_is_exit_code_1_and_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    done = call("doctor", "--data", str(file), code=1)
    assert "fail  data" in done.stdout
    assert done.stderr == f"headrace: 1 of 11 checks failed; data: {file} is no directory\n"
    told = json.loads(call("doctor", "--data", str(file), "--json", code=1).stdout)
    assert told["ok"] is False


@pytest.mark.timeout(300)
def test_spark_is_started_for_real() -> None:
    """In a process of its own: a session that others of this process share would be stopped."""
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "doctor", "--spark", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = json.loads(done.stdout)["findings"][-1]
    assert (last["check"], last["verdict"]) == ("spark session", "ok")


def test_advice_stands_under_its_finding() -> None:
    told = line_of(warning("java", "none was found", "install one"))
    assert told.splitlines()[1].strip() == "-> install one"
    assert "\n" not in line_of(good("java", "Java 21"))


@pytest.mark.parametrize(
    ("findings", "words"),
    [
        ([good("a", "x")], "1 checks passed"),
        ([good("a", "x"), warning("b", "x", "y")], "2 checks passed, 1 with a warning"),
        ([failure("a", "x", "y"), good("b", "x")], "1 of 2 checks failed; a: x"),
        ([failure("a", "x", ""), failure("b", "z", "")], "2 of 2 checks failed; first a: x"),
    ],
)
def test_the_last_line_sums_up(findings: list[object], words: str) -> None:
    assert closing(findings) == words  # type: ignore[arg-type] # parametrize knows no types
