"""headrace demo: a node, a shop that writes, the pipeline that follows, a failover, and the proof.

Progress and summary go to standard output, or with ``--json`` to standard error and the summary as
JSON to standard output. Exit codes: 0 tables and source agree, 1 they do not or something failed,
130 interrupted; whatever was started has been stopped by then.

Imports: errors, demo.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from headrace.cli.exits import Exit
from headrace.cli.sync import checked_master

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from headrace.demo.run import Demo
    from headrace.demo.summary import Summary

OUT_DEFAULT: Final = "headrace-demo"
NEEDED: Final = ("pyspark", "deltalake")


@click.command("demo")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=OUT_DEFAULT,
    show_default=True,
    metavar="DIR",
    help="Where tables, report and the node's data go.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(2, 86_400),
    default=40.0,
    show_default=True,
    help="How long the shop trades.",
)
@click.option(
    "--documents",
    type=click.IntRange(100, 5_000_000),
    default=20_000,
    show_default=True,
    help="Documents the shop opens with.",
)
@click.option(
    "--rate",
    type=click.IntRange(10, 100_000),
    default=1_000,
    show_default=True,
    help="Writes per second while it trades.",
)
@click.option(
    "--vbuckets",
    type=click.IntRange(1, 1024),
    default=64,
    show_default=True,
    help="Vbuckets of the node's bucket.",
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="The same seed, the same shop."
)
@click.option(
    "--master",
    default="local[*]",
    show_default=True,
    metavar="MASTER",
    callback=checked_master,
    help="Spark master, or none to land tables without Spark.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=0,
    show_default=True,
    help="Port of the node; 0 takes any free one.",
)
@click.option("--keep", is_flag=True, help="Trade on until Ctrl-C, then finish as always.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(out: Path, as_json: bool, **values: object) -> None:
    """Run a whole pipeline on this machine: node, workload, failover, tables, proof."""
    from headrace.errors import ConfigError

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} not installed; pip install 'headrace[spark]' brings them, "
            "and a Java with them"
        )
    from headrace.demo.run import Demo, Plan
    from headrace.demo.screen import Screen

    plan = Plan(directory=out, **values)  # type: ignore[arg-type] # named as the options are
    with _console(as_json) as console:
        try:
            demo = Demo(plan, lambda record: Screen(console, record), clock=time.monotonic)
            summary = demo.run()
            _leave(demo, summary)
        except KeyboardInterrupt:
            console.print("stopped; nothing is left running", highlight=False)
            sys.exit(Exit.INTERRUPTED)
        if as_json:
            click.echo(json.dumps(summary.to_json(), indent=2))
        else:
            tell(console, demo, summary)
    if not summary.agrees:
        sys.exit(Exit.FAILED)


@contextmanager
def _console(as_json: bool) -> Iterator[Console]:
    """Where progress goes: standard output, or standard error when that is for the summary."""
    from rich.console import Console

    if not as_json:
        yield Console()
        return
    # While Spark starts, what this process and the JVM write to standard error goes to a file.
    with os.fdopen(os.dup(2), "w", encoding="utf-8", buffering=1) as copy:
        yield Console(file=copy)


def _leave(demo: Demo, summary: Summary) -> None:
    """Write the report and the summary beside the tables."""
    from headrace.demo.report import page
    from headrace.demo.run import SUMMARY_FILE

    report = page(
        summary,
        demo.record,
        tables=demo.tables,
        commands=next_commands(_short(demo.directory), summary),
    )
    (demo.directory / "report.html").write_text(report, encoding="utf-8")
    text = json.dumps(summary.to_json(), indent=2) + "\n"
    (demo.directory / SUMMARY_FILE).write_text(text, encoding="utf-8")


def tell(console: Console, demo: Demo, summary: Summary) -> None:
    """Print the numbers, and what to try next."""
    from rich.table import Table

    from headrace.demo.summary import told

    table = Table(title="what happened", title_justify="left", show_header=False, box=None)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in told(summary):
        table.add_row(name, text)
    console.print()
    console.print(table, highlight=False)
    verdict = (
        "tables and source agree, item by item"
        if summary.agrees
        else f"{summary.differences} differences, {summary.newer} not judged"
    )
    console.print(f"\n{verdict}", style="bold green" if summary.agrees else "bold red")
    place = _short(demo.directory)
    console.print(f"\nreport   {place / 'report.html'}", highlight=False, soft_wrap=True)
    console.print(f"tables   {place / 'tables'}", highlight=False, soft_wrap=True)
    console.print("\ntry next", highlight=False)
    for line in next_commands(place, summary):
        console.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)


def next_commands(place: Path, summary: Summary) -> list[str]:
    """Three commands to go on with, of those this installation can run."""
    tables = place / "tables"
    example = None if summary.failover is None else summary.failover.withdrawn.example
    key = "order::00000001" if example is None else example.key
    program, python = programs()
    found = [f"{program} history {tables} {key}"]
    if find_spec("duckdb") is not None:
        query = "select status, count(*), sum(total) from state group by status order by 2"
        found.append(
            f'{python} -c "import duckdb; from headrace.spark.tables.views import duckdb_views; '
            f"c = duckdb.connect(); duckdb_views(c, '{tables}'); c.sql('{query}').show()\""
        )
    else:
        found.append(
            f'{python} -c "from headrace.spark.tables.views import arrow_state; '
            f"print(arrow_state('{tables}').group_by('status').aggregate([([], 'count_all')]))\""
        )
    found.append(
        f"{program} serve --data {place / 'node'} --port 11210 &\n"
        f"  {program} verify couchbase://127.0.0.1:11210/default {tables}"
    )
    return found


def programs() -> tuple[str, str]:
    """How to call `headrace` and this Python, from here: by name where the shell finds them."""
    python = Path(sys.executable)
    found = []
    for path in (python.with_name("headrace"), python):
        named = shutil.which(path.name)
        found.append(path.name if named == str(path) else str(_short(path)))
    if not python.with_name("headrace").exists():
        found[0] = f"{found[1]} -m headrace"
    return found[0], found[1]


def _short(path: Path) -> Path:
    """A path as one would type it from here."""
    try:
        return path.relative_to(Path.cwd().resolve())
    except ValueError:
        return path
