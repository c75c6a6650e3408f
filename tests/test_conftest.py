"""What tests/conftest.py promises, seen from outside: in CI nothing foreign is skipped silently."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
SAMPLE: Final = """
import pytest
from hypothesis import settings

@pytest.mark.interop
def test_with_a_foreign_tool():
    pytest.skip("no such tool here")

@pytest.mark.interop
@pytest.mark.skipif(True, reason="no such tool either")
def test_with_another():
    pass

@pytest.mark.browser
def test_in_a_browser():
    pytest.skip("no browser here")

@pytest.mark.slow
def test_on_a_cluster():
    pytest.skip("no cluster here")

def test_of_our_own():
    pytest.skip("not today")

def test_draws():
    print("derandomize:", settings().derandomize)
"""


def outcome(ci: str, directory: Path) -> str:
    """Run the sample under our conftest and return what pytest printed."""
    path = directory / "test_sample.py"
    path.write_text(SAMPLE, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-s", "-c"]
    command += [str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), str(path)]
    environment = {**os.environ, "CI": ci, "PYTHONPATH": os.pathsep.join(["src", "."])}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    return done.stdout + done.stderr


def test_a_missing_tool_is_a_visible_skip_at_home(tmp_path: Path) -> None:
    shown = outcome("", tmp_path)
    assert "1 passed, 5 skipped" in shown
    assert "no such tool here" in shown
    assert "derandomize: False" in shown


@pytest.mark.parametrize("value", ["true", "True"])
def test_a_missing_tool_is_a_failure_in_ci(value: str, tmp_path: Path) -> None:
    shown = outcome(value, tmp_path)
    assert "3 failed, 1 passed, 1 skipped, 1 error" in shown
    assert "an interop test may not skip where CI=true: Skipped: no such tool here" in shown
    assert "a browser test may not skip where CI=true: Skipped: no browser here" in shown
    assert "a slow test may not skip where CI=true: Skipped: no cluster here" in shown
    assert "no such tool either" in shown
    assert "derandomize: True" in shown
