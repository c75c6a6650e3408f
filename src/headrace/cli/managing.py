"""What the commands that manage a cluster share: the cluster file, bars, Ctrl-C, endings.

Imports: cluster, errors, cli.exits.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from headrace.cli.exits import Exit
from headrace.cluster.cluster_file import read_cluster_file
from headrace.cluster.journal import Journal
from headrace.cluster.manager import Cluster
from headrace.cluster.mover import ATTEMPTS, ATTEMPTS_MAX
from headrace.cluster.runner import AT_ONCE, AT_ONCE_MAX, Runner
from headrace.cluster.steps import Ending, Step
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from headrace.cluster.cluster_file import ClusterFile
    from headrace.cluster.mover import Mover
    from headrace.cluster.planning import Move

Function = TypeVar("Function", bound="Callable[..., object]")
T = TypeVar("T")

JOURNAL: Final = "moves.json"
REFRESH_PER_SECOND: Final = 8
MOVES_SHOWN: Final = 12
PLACES: Final = (
    *(step.value for step in Step if step is not Step.FINISHED),
    "pending-sent",
    "pending-answered",
    "active-sent",
    "active-answered",
    "ended",
)
"""Where a move can be held, for tests: its steps, and the places inside a takeover."""


def cluster_options(function: Function) -> Function:
    """Add CLUSTER_FILE, --bucket and --json."""
    decorators = (
        click.argument("cluster_file", type=click.Path(dir_okay=False, path_type=Path)),
        click.option("--bucket", metavar="NAME", help="Bucket, if the file names several."),
        click.option("--json", "as_json", is_flag=True, help="One object, for a script."),
    )
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


def moving_options(function: Function) -> Function:
    """Add what every command that moves vbuckets has."""
    decorators = (
        click.option(
            "--at-once",
            type=click.IntRange(1, AT_ONCE_MAX),
            default=AT_ONCE,
            show_default=True,
            help="Moves side by side.",
        ),
        click.option(
            "--attempts",
            type=click.IntRange(1, ATTEMPTS_MAX),
            default=ATTEMPTS,
            show_default=True,
            help="Attempts before a move is left to --resume.",
        ),
        click.option("--dry-run", is_flag=True, help="Say what would be done, and stop."),
        click.option(
            "--pause-at",
            type=click.Choice(PLACES),
            multiple=True,
            hidden=True,
            help="Stand still there, until a line comes on standard input.",
        ),
    )
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


@contextmanager
def opened_journal(file: ClusterFile) -> Iterator[Journal]:
    """The journal beside the cluster file, ours alone."""
    with Journal(file.beside(JOURNAL)) as journal:
        yield journal


def run_managing(
    options: dict[str, Any], work: Callable[[Cluster, Journal], Awaitable[int]]
) -> None:
    """Read the cluster file, hold the journal, do the work for the bucket, exit as it says."""
    file = read_cluster_file(options["cluster_file"])
    bucket = file.bucket(options["bucket"])

    async def main() -> int:
        cluster = Cluster(file, bucket)
        try:
            with opened_journal(file) as journal:
                check_revision(file)
                return await work(cluster, journal)
        finally:
            await cluster.close()

    code = asyncio.run(main())
    if code:
        raise SystemExit(code)


def under_way(cluster: Cluster, journal: Journal) -> set[int]:
    """The vbuckets whose moves the journal holds."""
    return {one.move.vbucket for one in journal.entries if one.bucket == cluster.bucket}


def check_revision(file: ClusterFile) -> None:
    """Refuse a cluster file older than the one last acted upon: a stale copy."""
    path = file.beside("revision")
    try:
        seen = int(path.read_text(encoding="ascii"))
    except (FileNotFoundError, ValueError):
        seen = 0
    if file.revision < seen:
        raise ConfigError(
            f"{file.path} has revision {file.revision}, and revision {seen} was acted upon "
            f"already; count it up when the file is edited"
        )
    if file.revision > seen:
        path.write_text(f"{file.revision}\n", encoding="ascii")


# -- running moves -------------------------------------------------------------------------------


async def run_moves(
    cluster: Cluster, journal: Journal, moves: Sequence[Move], options: dict[str, Any]
) -> list[Mover]:
    """Run moves with bars; Ctrl-C backs out, a second one leaves them to --resume."""
    bars = Bars(shown=not options["as_json"])
    places = options["pause_at"]
    held: set[str] = set()

    async def pause(mover: Mover, where: str) -> None:
        if where in held:
            return
        held.add(where)
        click.echo(f"paused at {where} of vbucket {mover.move.vbucket}", err=True)
        await asyncio.to_thread(sys.stdin.readline)

    runner = Runner(
        cluster,
        journal,
        at_once=options["at_once"],
        attempts_max=options["attempts"],
        on_step=bars.show,
        pause=pause if places else None,
        pauses_at=lambda where: where in places and where not in held,
    )
    with bars, interrupted(runner.back_out):
        return await runner.run(moves)


@contextmanager
def interrupted(back_out: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C asks to back out; a second one breaks off."""
    loop = asyncio.get_running_loop()
    main = asyncio.current_task()
    asked: list[bool] = []

    def on_interrupt() -> None:
        if asked and main is not None:
            main.cancel()
            return
        asked.append(True)
        click.echo("headrace: backing out; Ctrl-C again leaves it to --resume", err=True)
        back_out()

    loop.add_signal_handler(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


class Bars:
    """A bar per move that is under way, with items left and an estimate; and one for all."""

    def __init__(self, *, shown: bool) -> None:
        """Draw only where a terminal is."""
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[told]}"),
            console=console,
            refresh_per_second=REFRESH_PER_SECOND,
            disable=not shown or not console.is_terminal,
            transient=True,
        )
        self._tasks: dict[int, Any] = {}
        self._began: dict[int, tuple[float, int]] = {}

    def __enter__(self) -> Bars:
        """Begin to draw."""
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bars away."""
        self._progress.stop()

    def show(self, mover: Mover) -> None:
        """Draw where a move stands."""
        vbucket = mover.move.vbucket
        if mover.is_finished:
            task = self._tasks.pop(vbucket, None)
            if task is not None:
                self._progress.remove_task(task)
            return
        if vbucket not in self._tasks:
            if len(self._tasks) >= MOVES_SHOWN:
                return
            self._tasks[vbucket] = self._progress.add_task(str(mover.move), told="", total=None)
        left = mover.items_left
        told = mover.step.value if left is None else self._told(vbucket, mover.step, left)
        first = self._began.get(vbucket)
        if first is not None and first[1]:
            done = first[1] - (left or 0)
            self._progress.update(self._tasks[vbucket], total=first[1], completed=max(0, done))
        self._progress.update(self._tasks[vbucket], told=told)

    def _told(self, vbucket: int, step: Step, left: int) -> str:
        now = time.monotonic()
        began, first = self._began.setdefault(vbucket, (now, left))
        done, seconds = first - left, now - began
        text = f"{step.value}, {left:,} items left"
        if done > 0 and seconds > 1:
            text += f", about {left * seconds / done:,.0f} s"
        return text


# -- endings -------------------------------------------------------------------------------------


def report(movers: Sequence[Mover], *, as_json: bool, seconds: float) -> int:
    """Say how moves ended; the exit code."""
    counts = Counter(mover.ending for mover in movers)
    if as_json:
        rows = [
            {
                "vbucket": mover.move.vbucket,
                "kind": mover.move.kind.value,
                "from": mover.move.source,
                "to": mover.move.target,
                "ending": mover.ending.value if mover.ending else "not begun",
                "text": mover.text,
            }
            for mover in movers
        ]
        click.echo(json.dumps({"seconds": round(seconds, 3), "moves": rows}))
    else:
        words = [f"{count} {ending.value}" for ending, count in counts.items() if ending]
        click.echo(f"{len(movers)} moves in {seconds:.1f} s: {', '.join(words) or 'none begun'}")
        for mover in movers:
            if mover.ending not in (Ending.DONE, None) and mover.text:
                click.echo(f"  {mover.move}: {mover.ending.value}: {mover.text}", err=True)
    if counts[Ending.CONFLICT] or counts[Ending.GIVEN_UP]:
        return Exit.FAILED
    if counts[Ending.PENDING]:
        return Exit.PENDING
    return Exit.INTERRUPTED if counts[Ending.BACKED_OUT] or counts[None] else Exit.OK


def show_plan(moves: Sequence[Move], *, as_json: bool) -> None:
    """Print a plan."""
    if as_json:
        rows = [
            {
                "vbucket": move.vbucket,
                "kind": move.kind.value,
                "from": move.source,
                "to": move.target,
                "before": list(move.before),
                "after": list(move.after),
            }
            for move in moves
        ]
        click.echo(json.dumps({"moves": rows}))
        return
    for move in moves:
        click.echo(str(move))
    click.echo(f"{len(moves)} moves")
