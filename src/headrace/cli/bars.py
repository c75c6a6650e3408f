"""Bars for what takes its time: on a terminal, and nowhere else.

Rules
- A bar is drawn on standard error, and only where that is a terminal: a pipe, a file and whoever
  reads ``--json`` see nothing of it. `Bar` is the same to its owner whether it is drawn or not.
- A bar is taken away when its work ends. Results stay on the screen, progress does not.
- It draws on a copy of standard error of its own: while Spark starts, the original is a file.

Imports: spark.jobs.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.progress import Progress, TaskID

    from headrace.spark.jobs import Runner, Task

LOOK_SECONDS: Final = 0.25
"""How often Spark is asked how many tasks are done."""
RATE_FROM_SECONDS: Final = 1.0
"""A rate of less time than this says nothing."""


class Bar:
    """How much of something is done; ``total`` None: nobody knows how much there is."""

    def __init__(
        self, progress: Progress | None, what: str, total: int | None, *, unit: str, rate: bool
    ) -> None:
        """Nothing is done yet; ``progress`` None: nothing is drawn."""
        self._progress, self._total, self._unit, self._rate = progress, total, unit, rate
        self._began = time.monotonic()
        self._task: TaskID | None = None
        self.done = 0
        if progress is not None:
            self._task = progress.add_task(what, total=total, told="")

    @property
    def is_drawn(self) -> bool:
        """Whether anybody sees it."""
        return self._progress is not None

    def advance(self, count: int = 1) -> None:
        """So much more is done."""
        self.reach(self.done + count)

    def reach(self, done: int) -> None:
        """So much is done altogether."""
        self.done = done
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=done, told=self.told())

    def say(self, line: str) -> None:
        """Write a line to standard error; it stays, above the bar."""
        if self._progress is None:
            click.echo(line, err=True)
        else:
            self._progress.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def told(self) -> str:
        """The same in words."""
        if not self._unit:
            return ""
        of = f"{self.done:,}" if self._total is None else f"{self.done:,} of {self._total:,}"
        seconds = time.monotonic() - self._began
        if self._rate and seconds >= RATE_FROM_SECONDS:
            return f"{of} {self._unit}, {self.done / seconds:,.0f}/s"
        return f"{of} {self._unit}"


@contextmanager
def bar(
    what: str, *, total: int | None = None, unit: str = "", rate: bool = False, shown: bool = True
) -> Iterator[Bar]:
    """A bar until the block ends; without a total it moves, and tells what is done so far."""
    if not shown or not sys.stderr.isatty():
        yield Bar(None, what, total, unit=unit, rate=rate)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8") as copy:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[told]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=Console(file=copy), transient=True) as progress:
            yield Bar(progress, what, total, unit=unit, rate=rate)


# -- tasks -----------------------------------------------------------------------------------------


class Tracker(Protocol):
    """What of Spark's status tracker is used, under Spark's names."""

    def getActiveStageIds(self) -> list[int]:
        """The stages that run."""
        ...

    def getStageInfo(self, stageId: int) -> object:
        """What is known of one; None when it is gone."""
        ...


class BarRunner:
    """Runs tasks on another runner, with a bar of how many are done."""

    def __init__(self, runner: Runner, what: str, *, unit: str = "parts") -> None:
        """``what`` is being done to each ``unit``."""
        self._runner, self._what, self._unit = runner, what, unit

    @property
    def width(self) -> int:
        """As many as the other one."""
        return self._runner.width

    def run(self, tasks: Sequence[Task]) -> list[str]:
        """The answers, in the order of the tasks."""
        from headrace.spark.jobs import ConnectRunner, LocalRunner

        total = None if isinstance(self._runner, ConnectRunner) else len(tasks)
        with bar(self._what, total=total, unit=self._unit if total else "") as shown:
            shown.reach(0)
            if not shown.is_drawn or total is None:
                return self._runner.run(tasks)
            if isinstance(self._runner, LocalRunner):
                return self._one_by_one(tasks, shown)
            with watched(tracker_of_spark(), shown):
                return self._runner.run(tasks)

    def _one_by_one(self, tasks: Sequence[Task], shown: Bar) -> list[str]:
        answers: list[str] = []
        for task in tasks:
            answers += self._runner.run([task])
            shown.advance()
        return answers


def tracker_of_spark() -> Tracker | None:
    """The status tracker of the session that runs, if one does."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    return None if session is None else session.sparkContext.statusTracker()


@contextmanager
def watched(tracker: Tracker | None, shown: Bar) -> Iterator[None]:
    """Let a bar show how many tasks of the stages that run are done, until the block ends."""
    if tracker is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_watch, args=(tracker, shown, ended.wait), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch(tracker: Tracker, shown: Bar, ended: Callable[[float], bool]) -> None:
    while not ended(LOOK_SECONDS):
        try:
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        except Exception:  # noqa: BLE001 - Py4J raises classes of its own when the JVM is gone
            return
        done = sum(int(getattr(stage, "numCompletedTasks", 0)) for stage in stages)
        # Between two stages nothing runs: what was done stays done.
        shown.reach(max(shown.done, done))
