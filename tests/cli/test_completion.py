"""Completion: the scripts are there, bash completes with its own, and nothing heavy is loaded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.cli import COMMANDS
from headrace.cli.completion import SHELLS
from tests.cli.node_for_commands import call
from tests.test_layers import HEAVY_FOR_HELP, loaded_by

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = Path(__file__).resolve().parents[2] / "src"
MARKS = {"bash": "complete -o nosort -F", "zsh": "#compdef headrace", "fish": "complete --no-files"}

TRY = """
eval "$(headrace completion bash)"
COMP_WORDS=(%s); COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); COMPREPLY=()
_headrace_completion headrace
printf '%%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_its_script(shell: str) -> None:
    script = call("completion", shell).stdout
    assert MARKS[shell] in script
    assert "_HEADRACE_COMPLETE" in script


@pytest.fixture
def complete(tmp_path: Path) -> Callable[[str], list[str]]:
    """What bash offers for words typed so far."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not here")
    program = tmp_path / "headrace"
    program.write_text(
        f"#!/bin/sh\nexec {sys.executable} -c "
        '\'import sys; sys.argv[0] = "headrace"; from headrace.cli import main; main()\' "$@"\n',
        encoding="utf-8",
    )
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(SOURCE),
    }

    def ask(words: str) -> list[str]:
        done = subprocess.run(
            [bash, "-c", TRY % words],
            capture_output=True,
            text=True,
            env=environment,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout.split()

    return ask


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("headrace ver", ["verify"]),
        ("headrace fault fail", ["failover"]),
        ("headrace serve --memory-", ["--memory-quota-mb"]),
        ("headrace decode --dialect upr", ["upr-draft", "upr-2014"]),
        ("headrace completion f", ["fish"]),
    ],
)
def test_bash_completes_commands_options_and_choices(
    complete: Callable[[str], list[str]], words: str, offered: list[str]
) -> None:
    assert complete(words) == offered


def test_bash_offers_every_command(complete: Callable[[str], list[str]]) -> None:
    assert complete('headrace ""') == list(COMMANDS)


def test_completing_loads_nothing_heavy() -> None:
    code = (
        "import os\n"
        "os.environ |= {'_HEADRACE_COMPLETE': 'bash_complete', 'COMP_WORDS': 'headrace s', "
        "'COMP_CWORD': '1'}\n"
        "from headrace.cli import main\n"
        "try:\n    main(prog_name='headrace')\n"
        "except SystemExit as done:\n    assert not done.code\n"
    )
    assert loaded_by(code, HEAVY_FOR_HELP, SOURCE) == set()
