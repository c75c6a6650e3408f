"""Bars: on a terminal while something works, nowhere else, and gone when it is done."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from headrace.cli.bars import Bar, BarRunner, bar, watched
from headrace.spark.jobs import LocalRunner
from tests.doc_commands import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SECONDS_MAX: Final = 60
HIDE_CURSOR: Final = "\x1b[?25l"
SHOW_CURSOR: Final = "\x1b[?25h"
SAID: Final = "vbucket [3] was rolled back\r\n"


def on_terminal(*words: str) -> tuple[int, str, str]:
    """Run Python with standard error on a terminal: exit code, output, what the terminal got."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=theirs,
        stdin=subprocess.DEVNULL,
        env=environment,
        text=True,
    )
    os.close(theirs)
    drawn: list[bytes] = []
    reading = threading.Thread(target=_drain, args=(ours, drawn))
    reading.start()
    try:
        output, _ = process.communicate(timeout=SECONDS_MAX)
    finally:
        process.kill()
        process.wait()
    reading.join()
    os.close(ours)
    return process.returncode, output, b"".join(drawn).decode()


def _drain(terminal: int, drawn: list[bytes]) -> None:
    while select.select([terminal], [], [], SECONDS_MAX)[0]:
        try:
            data = os.read(terminal, 65_536)
        except OSError:  # Linux says so when the other end is closed
            return
        if not data:
            return
        drawn.append(data)


def calling(*words: str) -> tuple[str, ...]:
    """The words that make Python call `headrace`."""
    return ("-c", "from headrace.cli import main; main()", *words)


def test_without_a_terminal_nothing_is_drawn(capfd: pytest.CaptureFixture[str]) -> None:
    with bar("working", total=3, unit="parts") as shown:
        shown.advance()
        assert not shown.is_drawn
        assert shown.done == 1
        assert capfd.readouterr() == ("", "")
        shown.say("something happened")
    assert capfd.readouterr() == ("", "something happened\n")


def test_a_bar_that_is_not_to_be_shown_is_not_drawn_on_a_terminal_either() -> None:
    code = (
        "from headrace.cli.bars import bar\n"
        "with bar('comparing', shown=False) as shown:\n"
        "    print(shown.is_drawn)\n"
    )
    assert on_terminal("-c", code) == (0, "False\n", "")


def test_a_bar_tells_how_much_of_what_is_done() -> None:
    shown = Bar(None, "writing", 1_000, unit="writes", rate=True)
    shown.reach(250)
    assert shown.told() == "250 of 1,000 writes", "the rate of no time at all is not told"
    endless = Bar(None, "reading", None, unit="rows", rate=False)
    endless.advance(2_000)
    assert endless.told() == "2,000 rows"
    assert Bar(None, "starting", None, unit="", rate=False).told() == ""


def test_a_bar_is_drawn_on_a_terminal_and_taken_away() -> None:
    code = (
        "from headrace.cli.bars import bar\n"
        "with bar('comparing', total=4, unit='parts') as shown:\n"
        "    shown.reach(3)\n"
        "    shown.say('vbucket [3] was rolled back')\n"
        "print('equal')\n"
    )
    assert_drawn(on_terminal("-c", code), "3 of 4 parts", SAID, output="equal\n")


def assert_drawn(ran: tuple[int, str, str], *texts: str, output: str) -> None:
    code, said, drawn = ran
    assert (code, said) == (0, output)
    assert [text for text in texts if text not in drawn] == []
    assert drawn.rfind(SHOW_CURSOR) > drawn.rfind(HIDE_CURSOR) >= 0
    assert drawn.endswith("\x1b[2K"), "its line is erased at the end"


def test_it_draws_on_while_standard_error_is_a_file(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys\n"
        "from headrace.cli.bars import bar\n"
        "from headrace.cli.sync import stderr_to\n"
        "with bar('starting Spark'), stderr_to(pathlib.Path(sys.argv[1])):\n"
        "    os.write(2, b'words of a JVM')\n"
    )
    log = tmp_path / "spark.log"
    assert_drawn(on_terminal("-c", code, str(log)), "starting Spark", output="")
    assert log.read_bytes() == b"words of a JVM"


@dataclass
class Numbered:
    number: int

    def __call__(self) -> str:
        return str(self.number)


def test_a_runner_with_a_bar_gives_the_same_answers_in_the_same_order() -> None:
    tasks = [Numbered(number) for number in (3, 1, 2)]
    runner = BarRunner(LocalRunner(), "counting")
    assert runner.run(tasks) == LocalRunner().run(tasks) == ["3", "1", "2"]
    assert runner.width == 1


@dataclass
class Stage:
    numCompletedTasks: int


class FakeTracker:
    """A job of two looks, then none that runs, then a JVM that is gone."""

    def __init__(self) -> None:
        self.looks = 0
        self.over = threading.Event()

    def getActiveStageIds(self) -> list[int]:
        self.looks += 1
        if self.looks > 3:
            self.over.set()
            raise ConnectionRefusedError
        return [[1], [1, 2], []][self.looks - 1]

    def getStageInfo(self, stageId: int) -> Stage | None:
        return Stage(2 * self.looks) if stageId == 1 else None


class Seen(Bar):
    """Remembers what it was told."""

    def __init__(self) -> None:
        super().__init__(None, "", 4, unit="parts", rate=False)
        self.reached: list[int] = []

    def reach(self, done: int) -> None:
        super().reach(done)
        self.reached.append(done)


def test_spark_is_asked_how_many_tasks_are_done_and_may_be_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.cli.bars.LOOK_SECONDS", 0.001)
    shown, tracker = Seen(), FakeTracker()
    with watched(tracker, shown):
        assert tracker.over.wait(SECONDS_MAX)
    assert shown.reached == [2, 4, 4], "what was done stays done"
    with watched(None, shown):
        pass


COMMANDS: Final[dict[str, tuple[Sequence[str], str]]] = {
    "load": (("load", "{url}", "--generate", "50"), "writing"),
    "tail": (
        ("tail", "{url}", "--since", "beginning", "--until", "now", "--arrow", "{out}"),
        "rea",
    ),
    "capture": (("capture", "{url}", "{out}"), "recording"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_that_take_long_show_a_bar_and_print_what_they_always_do(
    name: str, tmp_path: Path
) -> None:
    from tests.cli.node_for_commands import call, node_url

    words, drawn = COMMANDS[name]
    with node_url() as url:
        call("load", url, "--generate", "20")
        filled = [word.format(url=url, out=tmp_path / "out") for word in words]
        code, output, terminal = on_terminal(*calling(*filled))
        assert code == 0, terminal
        assert drawn in terminal
        assert "\x1b" not in output
        quiet = call(*filled)
        assert "\x1b" not in quiet.output + quiet.stderr
