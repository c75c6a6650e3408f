"""headrace tables: look at the tables of a sync and keep them small.

``compact`` turns many small files into few, ``retain`` also forgets old versions, ``vacuum``
deletes files that no version needs any more. Each may run beside a sync: a turn that both want to
be the next is given to one of them and refused to the other, which then says so; nothing is lost.
Only ``vacuum`` with fewer hours than a turn takes could delete what a running turn is about to
commit, so less than an hour has to be forced.

Results go to standard output, progress to standard error: a bar where that is a terminal, lines
elsewhere.

Imports: errors, cli.bars, cli.sync, spark.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from headrace.cli.bars import BarRunner
from headrace.cli.sync import WITHOUT_SPARK, checked_master, runner_of
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.spark.jobs import Runner, Task
    from headrace.spark.tables.changes import ChangesTable
    from headrace.spark.tables.delta import Table
    from headrace.spark.tables.state import StateTable

FORCED_HOURS: Final = 1
SHOWN: Final = 20
Record = dict[str, object]

table_dir = click.argument("table_dir", type=click.Path(path_type=Path, file_okay=False))
as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
dry_run = click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
master = click.option(
    "--master",
    default=WITHOUT_SPARK,
    show_default=True,
    callback=checked_master,
    help=f"Spark master that does the work; {WITHOUT_SPARK}: this process does.",
)


class ToldRunner:
    """Runs tasks some at a time, and tells after each how many are done."""

    def __init__(self, runner: Runner, what: str) -> None:
        """Run them on another runner."""
        self._runner = runner
        self._what = what

    @property
    def width(self) -> int:
        """As many as the other one."""
        return self._runner.width

    def run(self, tasks: Sequence[Task]) -> list[str]:
        """The answers, in the order of the tasks."""
        answers: list[str] = []
        for start in range(0, len(tasks), self.width):
            answers += self._runner.run(tasks[start : start + self.width])
            click.echo(f"{self._what}: {len(answers)} of {len(tasks)} parts", err=True)
        return answers


@contextmanager
def told_runner(on_master: str, directory: Path, what: str) -> Iterator[Runner]:
    """A runner that tells what it does."""
    with runner_of(on_master, directory) as runner:
        yield BarRunner(runner, what) if sys.stderr.isatty() else ToldRunner(runner, what)


def opened(directory: Path) -> tuple[ChangesTable, StateTable]:
    """The tables of a directory; StoreError if it has none. There may be no `state`."""
    from headrace.spark.tables.state import StateTable
    from headrace.spark.tables.views import STATE, open_changes

    return open_changes(directory), StateTable(directory / STATE)


def tell(record: Mapping[str, object], *, as_json: bool, line: str) -> None:
    """Print a result, for a script or for a person."""
    click.echo(json.dumps(record) if as_json else line)


def size_text(size: int) -> str:
    """A number of bytes for people."""
    return f"{size / 1e6:,.1f} MB"


@click.group("tables")
def command() -> None:
    """Look at the tables of a sync, and keep them small."""


# -- show ------------------------------------------------------------------------------------------


@command.command("show")
@table_dir
@as_json
def show(table_dir: Path, as_json: bool) -> None:
    """Tell what the tables in TABLE_DIR hold and where they stand."""
    changes, state = opened(table_dir)
    published, shape = changes.published(), changes.shape()
    positions = published.vector.values()
    record: Record = {
        "source": changes.table.settings().get("source", ""),
        "turn": published.turn,
        "vbuckets": shape.vbuckets,
        "parts": shape.parts,
        "seqnos": sum(position.seqno for position in positions),
        "rolled_back_vbuckets": sum(position.epoch > 0 for position in positions),
        "changes": _contents(changes.table),
    }
    if state.exists:
        record["state"] = {"turn": state.turn, **_contents(state.table)}
    if as_json:
        click.echo(json.dumps(record))
        return
    for name, value in record.items():
        click.echo(f"{name.replace('_', ' '):22} {_text_of(value)}")


def _text_of(value: object) -> str:
    if not isinstance(value, dict):
        return f"{value:,}" if isinstance(value, int) else str(value)
    shown = {**value, "bytes": size_text(int(value["bytes"]))}
    return ", ".join(f"{name} {_text_of(one)}" for name, one in shown.items())


def _contents(table: Table) -> Record:
    from headrace.spark.tables.changes import POSITIONS_PART
    from headrace.spark.tables.state import is_tail

    files = [file for file in table.files() if file.part != POSITIONS_PART]
    return {
        "version": table.version,
        "files": len(files),
        "tails": sum(map(is_tail, files)),
        "rows": sum(file.rows for file in files),
        "bytes": sum(file.size for file in files),
    }


# -- compact and retain ----------------------------------------------------------------------------


@command.command("compact")
@table_dir
@master
@dry_run
@as_json
def compact(table_dir: Path, master: str, dry_run: bool, as_json: bool) -> None:
    """Write parts with several files anew as one, and merge the tails of `state`."""
    _compact("compact", table_dir, master, None, dry_run=dry_run, as_json=as_json)


@command.command("retain")
@table_dir
@click.option("--days", type=click.FloatRange(min=0), help="Keep every version this young.")
@click.option("--since", metavar="TIME", help="Keep every version since then (ISO 8601).")
@master
@dry_run
@as_json
def retain(
    table_dir: Path,
    days: float | None,
    since: str | None,
    master: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Compact, and forget versions that were superseded or withdrawn before a time.

    The latest living version of every key stays, however old. A rollback to before that time is
    still taken right: the vbuckets that it hits are streamed again from their beginning.
    """
    keep_since = since_of(days, since, datetime.now(UTC))
    _compact("retain", table_dir, master, keep_since, dry_run=dry_run, as_json=as_json)


def since_of(days: float | None, since: str | None, now: datetime) -> datetime:
    """The time that ``--days`` or ``--since`` names."""
    from headrace.spark.options import start_time

    if (days is None) == (since is None):
        raise ConfigError("retain needs --days or --since, and not both")
    if days is not None:
        try:
            return now - timedelta(days=days)
        except OverflowError:
            raise ConfigError(f"--days is {days}, which is before the year 1") from None
    found = start_time(str(since))
    if found is None:
        raise ConfigError(f"--since is {since!r}, expected a time such as 2026-01-31T12:00:00Z")
    return found


def _compact(
    what: str,
    directory: Path,
    master: str,
    keep_since: datetime | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    from headrace.spark.tables import upkeep

    changes, state = opened(directory)
    record: Record = {"dry_run": dry_run}
    if keep_since is not None:
        record["keep_since"] = keep_since.isoformat()
    if dry_run:
        chosen = upkeep.choose(changes, state, everything=keep_since is not None)
        files, rows = len(chosen.files), sum(file.rows for file in chosen.files)
        record |= {"files": files, "parts": len(chosen.parts), "rows": rows, "tails": chosen.tails}
        line = f"would write {files} files of {len(chosen.parts)} parts anew, {rows:,} rows"
        tell(record, as_json=as_json, line=f"{line}, and merge {chosen.tails} tails of state")
        return
    with told_runner(master, directory, what) as runner:
        done = upkeep.compact(changes, runner, keep_since=keep_since, state=state)
    line = f"{done.files_before} files became {done.files_after}"
    if keep_since is not None:
        line += f", {done.rows_before:,} rows became {done.rows_after:,}"
    tell({**record, **asdict(done)}, as_json=as_json, line=line)


# -- vacuum ----------------------------------------------------------------------------------------


@command.command("vacuum")
@table_dir
@click.option(
    "--hours",
    type=click.IntRange(min=0),
    default=168,
    show_default=True,
    help="Keep files that a version of the last hours needs.",
)
@click.option("--force", is_flag=True, help=f"Allow less than {FORCED_HOURS} hour: no sync runs.")
@dry_run
@as_json
def vacuum(table_dir: Path, hours: int, force: bool, dry_run: bool, as_json: bool) -> None:
    """Delete files that no version of the last hours needs, and those of turns that died."""
    if hours < FORCED_HOURS and not force:
        raise ConfigError(
            f"--hours is {hours}: files of a turn that runs now could be deleted; allowed from "
            f"{FORCED_HOURS}, or with --force where no sync runs"
        )
    changes, state = opened(table_dir)
    deleted: dict[str, list[str]] = {}
    size = 0
    for name, table in _named_tables(changes, state):
        # Delta's log goes on naming files that an earlier vacuum deleted.
        named = table.vacuum(hours=hours, dry_run=True)
        found = [path for path in named if (table.path / path).is_file()]
        size += sum((table.path / path).stat().st_size for path in found)
        if found and not dry_run:
            table.vacuum(hours=hours)
        deleted[name] = found
        click.echo(f"vacuum: {name} done", err=True)
    count = sum(map(len, deleted.values()))
    record = {"dry_run": dry_run, "files": count, "bytes": size, "deleted": deleted}
    did = "would delete" if dry_run else "deleted"
    lines = [f"{did} {count} files, {size_text(size)}"]
    if dry_run:
        lines += [f"  {name}/{path}" for name in deleted for path in deleted[name]][:SHOWN]
        lines += [f"  ... and {count - SHOWN} more"] if count > SHOWN else []
    tell(record, as_json=as_json, line="\n".join(lines))


def _named_tables(changes: ChangesTable, state: StateTable) -> list[tuple[str, Table]]:
    found = [("changes", changes.table)]
    return [*found, ("state", state.table)] if state.exists else found
