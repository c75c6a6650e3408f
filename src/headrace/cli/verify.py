"""headrace verify: hold the tables against their source, item by item.

Exit code 0: no difference. 1: differences, each on a line of standard output. On a terminal a bar
says how many parts of the tables have been compared.

Imports: spark, cli.bars, cli.exits, cli.sync.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import click

from headrace.cli.bars import BarRunner
from headrace.cli.exits import Exit
from headrace.cli.sync import factory_of, runner_of, source_options

SHOWN_DEFAULT: Final = 100


@click.command("verify")
@click.argument("url")
@click.argument("table_dir", type=click.Path(path_type=Path, file_okay=False))
@source_options
@click.option(
    "--show",
    type=click.IntRange(0),
    default=SHOWN_DEFAULT,
    show_default=True,
    help="Lines at most.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    url: str,
    table_dir: Path,
    user: str | None,
    credentials: Path | None,
    bucket: str | None,
    master: str,
    conf: tuple[str, ...],
    show: int,
    as_json: bool,
) -> None:
    """Compare the tables in TABLE_DIR with the bucket at URL and report every difference."""
    from headrace.spark.tables.views import open_state
    from headrace.spark.verify import verify

    factory = factory_of(url, user, credentials, bucket=bucket)
    open_state(table_dir)  # what is no table is said before Spark takes its seconds
    with runner_of(master, table_dir, conf) as runner:
        report = verify(factory, table_dir, BarRunner(runner, "comparing"))
    if as_json:
        shown = replace(report, differences=report.differences[:show])
        click.echo(json.dumps(asdict(shown)))
        sys.exit(Exit.FAILED if report.count else Exit.OK)
    for difference in report.differences[:show]:
        click.echo(str(difference))
    if report.count > min(show, len(report.differences)):
        click.echo(f"... and {report.count - min(show, len(report.differences))} more")
    newer = f", {report.newer:,} changed since and not judged" if report.newer else ""
    click.echo(
        f"{report.documents:,} documents compared, {report.rows:,} rows of changes, "
        f"{report.count:,} differences{newer}"
    )
    if report.count:
        sys.exit(Exit.FAILED)
