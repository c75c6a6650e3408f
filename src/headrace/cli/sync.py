"""headrace sync: keep the tables of a bucket up to date, once or for ever.

What it prints goes to standard error: a bar where that is a terminal, a line per turn elsewhere,
and a line per vbucket that was rolled back. Ctrl-C and SIGTERM end it after the turn that is
running; the next run goes on from there. Spark's own words go to ``spark.log`` in the table's
directory.

Imports: errors, spark, cli.bars.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from headrace.cli.bars import bar
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.spark.client_feed import ClientFactory
    from headrace.spark.jobs import Runner
    from headrace.spark.sync import Sync, Turn

SPARK_LOG: Final = "spark.log"
WITHOUT_SPARK: Final = "none"
ROLLBACKS_SHOWN: Final = 10
MASTER: Final = re.compile(
    r"local(?:\[(?:\d+|\*)(?:,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|"
    r"spark://[^\s,]+:\d+(?:,[^\s,]+:\d+)*|yarn|(?:k8s|sc)://\S+"
)
PARTS_MAX: Final = 1024


def checked_master(context: click.Context, parameter: click.Parameter, master: str) -> str:
    """The master, if it is one: Spark would take seconds to refuse it, in pages of words."""
    del context, parameter
    if master != WITHOUT_SPARK and not MASTER.fullmatch(master):
        raise click.BadParameter(
            f"{master!r}; allowed: {WITHOUT_SPARK}, local, local[N], local[*], "
            "local-cluster[N,CORES,MEGABYTES], spark://HOST:PORT, sc://HOST, yarn, k8s://URL"
        )
    return master


def source_options(command: Callable[..., object]) -> Callable[..., object]:
    """The options every command with a source has."""
    for option in (
        click.option("--user", help="Who we are; the password comes from HEADRACE_PASSWORD."),
        click.option(
            "--password-file",
            "--credentials",
            "credentials",
            type=click.Path(path_type=Path, dir_okay=False),
            help="File with the password; or with the user and, on the next line, the password.",
        ),
        click.option("--bucket", metavar="NAME", help="Bucket, if the URL names none."),
        click.option(
            "--master",
            default="local[*]",
            show_default=True,
            callback=checked_master,
            help=f"Spark master, sc:// of Spark Connect, or {WITHOUT_SPARK}: in this process.",
        ),
        click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark."),
    ):
        command = option(command)
    return command


def factory_of(
    url: str,
    user: str | None,
    credentials: Path | None,
    collections: tuple[str, ...] = (),
    bucket: str | None = None,
) -> ClientFactory:
    """How tasks open the source."""
    from headrace.spark.client_feed import ClientFactory
    from headrace.spark.credentials import find_credentials

    found = find_credentials(user=user, file=credentials)
    return ClientFactory(
        url, bucket, user=found.user, password=found.password, collections=collections
    )


@contextlib.contextmanager
def runner_of(
    master: str, directory: Path, conf: tuple[str, ...] = (), *, shown: bool = True
) -> Iterator[Runner]:
    """What runs the tasks; Spark's words go to a file beside the tables.

    ``shown``: a bar while Spark starts; not for whoever draws on the same terminal.
    """
    from headrace.spark.jobs import LocalRunner, runner_on

    settings = settings_of(conf)

    if master == WITHOUT_SPARK:
        yield LocalRunner()
        return
    from headrace.spark.session import is_connect, is_one_process, session, ship

    directory.mkdir(parents=True, exist_ok=True)
    with bar("starting Spark", shown=shown), stderr_to(directory / SPARK_LOG):
        spark = session(master=master, settings=settings)
        if not is_one_process(master) and not is_connect(master):
            ship(spark)
    try:
        yield runner_on(spark)
    finally:
        spark.stop()


def settings_of(texts: tuple[str, ...]) -> dict[str, str]:
    """Keys and values of ``--conf key=value``."""
    found = {}
    for text in texts:
        key, mark, value = text.partition("=")
        if not mark or not key.startswith("spark."):
            raise ConfigError(
                f"--conf is {text!r}, expected KEY=VALUE, for example spark.executor.memory=2g"
            )
        found[key] = value
    return found


@contextlib.contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Send standard error of this process, and of those it starts, to a file for a while."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def stopped_by_signals(sync: Sync) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM end the loop, and the second one the process."""

    def stop(number: int, frame: object) -> None:
        del frame
        signal.signal(number, before[signal.Signals(number)])
        click.echo("stopping after this turn; once more to stop at once", err=True)
        sync.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Reporter:
    """Tells what turns do: a bar on a terminal, lines elsewhere."""

    def __init__(self, *, follow: bool) -> None:
        """Start with nothing done."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._console = Console(stderr=True)
        self._follow = follow
        self._rows = self._turns = 0
        self._seconds = 0.0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("sync", total=None, told="")

    def __enter__(self) -> Reporter:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away and sum up."""
        self._bar.stop()
        rate = self._rows / self._seconds if self._seconds else 0.0
        self._console.print(
            f"{self._turns} turns, {self._rows:,} rows, {rate:,.0f} rows/s", highlight=False
        )

    def take(self, turn: Turn | None) -> None:
        """Tell one turn; None is a look that found nothing."""
        if turn is None:
            self._bar.update(self._task, told="up to date")
            return
        self._turns += 1
        self._rows += turn.rows
        self._seconds += turn.seconds
        rate = turn.rows / turn.seconds if turn.seconds else 0.0
        told = f"turn {turn.number}: {turn.rows:,} rows, {rate:,.0f} rows/s, lag {turn.lag:,}"
        self._bar.update(self._task, completed=self._rows, total=self._rows + turn.lag, told=told)
        if not self._console.is_terminal:
            self._console.print(told, highlight=False)
        self._tell_rollbacks(turn)
        for vbucket, reason in list(turn.unfinished.items())[:ROLLBACKS_SHOWN]:
            self._console.print(f"vbucket {vbucket} did not finish: {reason}", highlight=False)

    def _tell_rollbacks(self, turn: Turn) -> None:
        for one in turn.withdrawals[:ROLLBACKS_SHOWN]:
            self._console.print(
                f"rollback: vbucket {one.vbucket} from {one.from_seqno} to {one.to_seqno}, "
                f"branch {one.dead_branch:016x} ended, now {one.branch:016x}",
                highlight=False,
            )
        if len(turn.withdrawals) > ROLLBACKS_SHOWN:
            more = len(turn.withdrawals) - ROLLBACKS_SHOWN
            self._console.print(f"rollback: {more} more vbuckets", highlight=False)


def record_of(turn: Turn) -> dict[str, object]:
    """A turn as plain data."""
    return {
        "turn": turn.number,
        "rows": turn.rows,
        "bytes": turn.bytes,
        "files": turn.files,
        "lag": turn.lag,
        "seconds": round(turn.seconds, 3),
        "rollbacks": [
            {
                "vbucket": one.vbucket,
                "from_seqno": one.from_seqno,
                "to_seqno": one.to_seqno,
                "dead_branch": f"{one.dead_branch:016x}",
                "branch": f"{one.branch:016x}",
            }
            for one in turn.withdrawals
        ],
        "unfinished": {str(vbucket): reason for vbucket, reason in turn.unfinished.items()},
    }


def columns_of(texts: tuple[str, ...]) -> dict[str, str]:
    """Paths and types of ``--column path:type``."""
    found = {}
    for text in texts:
        path, mark, kind = text.rpartition(":")
        if not mark or not path:
            raise ConfigError(f"--column is {text!r}, expected PATH:TYPE, for example age:bigint")
        found[path] = kind
    return found


@click.command("sync")
@click.argument("url")
@click.argument("table_dir", type=click.Path(path_type=Path, file_okay=False))
@click.option("--once/--follow", default=True, help="Stop when level with the source, or never.")
@source_options
@click.option("--collection", multiple=True, metavar="SCOPE.NAME", help="Only this collection.")
@click.option(
    "--parts",
    type=click.IntRange(1, PARTS_MAX),
    default=8,
    show_default=True,
    help="Parts of a new table.",
)
@click.option(
    "--rows-per-turn",
    type=click.IntRange(1),
    default=5_000_000,
    show_default=True,
    help="At most so many rows in one commit.",
)
@click.option("--state/--no-state", default=True, help="Keep the state table too.")
@click.option(
    "--rebuild-turns",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Turns after which a part of the state is merged.",
)
@click.option("--soft-deletes", is_flag=True, help="Keep deleted keys in state, marked.")
@click.option("--column", multiple=True, metavar="PATH:TYPE", help="A column from JSON, in state.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per turn.")
def command(
    url: str,
    table_dir: Path,
    once: bool,
    user: str | None,
    credentials: Path | None,
    bucket: str | None,
    master: str,
    conf: tuple[str, ...],
    collection: tuple[str, ...],
    parts: int,
    rows_per_turn: int,
    state: bool,
    rebuild_turns: int,
    soft_deletes: bool,
    column: tuple[str, ...],
    as_json: bool,
) -> None:
    """Keep the tables in TABLE_DIR level with the bucket at URL."""
    from headrace.spark.sync import Sync, SyncOptions
    from headrace.spark.tables.state import StateOptions

    factory = factory_of(url, user, credentials, collection, bucket)
    kept = StateOptions(rebuild_turns, soft_deletes, columns_of(column)) if state else None
    options = SyncOptions(parts=parts, rows_per_turn=rows_per_turn, state=kept)
    factory().close()  # a wrong address or password is said before Spark takes its seconds
    with runner_of(master, table_dir, conf) as runner:
        sync = Sync(factory, table_dir, runner, options)
        with stopped_by_signals(sync), Reporter(follow=not once) as reporter:
            try:
                for turn in sync.once() if once else sync.follow():
                    reporter.take(turn)
                    if as_json and turn is not None:
                        click.echo(json.dumps(record_of(turn)))
            finally:
                sync.close()
