"""headrace doctor: what works here, what does not, and what to do about it.

Without a URL the installation is checked, with one the way to that bucket as well. Exit codes: 0
nothing is in the way (warnings name what only some commands need), 1 something is.

Imports: cli.finding, cli.installation, cli.reaching, cli.connecting.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.connecting import access_words, source_options, take_source
from headrace.cli.exits import Exit
from headrace.cli.finding import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

COLOURS: Final = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}
CHECK_WIDTH: Final = 15


@click.command("doctor")
@partial(source_options, url_required=False)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default=".",
    metavar="DIR",
    help="Where data will be kept: is there room, may we write?  [default: here]",
)
@click.option("--spark", "with_spark", is_flag=True, help="Start Spark to be sure.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(data: Path, with_spark: bool, as_json: bool, **options: Any) -> None:  # noqa: ANN401 - click's own words
    """Check this installation and, with a URL, the way to a bucket."""
    source = take_source(options)
    found: list[Finding] = []
    for finding in findings(source, data, with_spark=with_spark):
        found.append(finding)
        if not as_json:
            click.echo(line_of(finding))
    failed = sum(one.verdict is Verdict.FAIL for one in found)
    if as_json:
        click.echo(
            json.dumps({"ok": not failed, "findings": [one.to_json() for one in found]}, indent=2)
        )
    elif not failed:
        click.echo(closing(found))
    if failed:
        click.echo(f"headrace: {closing(found)}", err=True)
        sys.exit(Exit.FAILED)


def findings(source: dict[str, Any], data: Path, *, with_spark: bool) -> Iterator[Finding]:
    """Everything there is to check, as it is found."""
    from headrace.cli import installation

    yield from installation.examine(data, with_spark=with_spark)
    if source["url"] is not None:
        from headrace.cli import reaching

        yield from reaching.examine(source["url"], source["bucket"], access_words(source))


def line_of(finding: Finding) -> str:
    """A finding as a line, with what to do on a second one."""
    verdict = click.style(f"{finding.verdict.value:<4}", fg=COLOURS[finding.verdict], bold=True)
    line = f"{verdict}  {finding.check:<{CHECK_WIDTH}}{finding.found}"
    return f"{line}\n{'':<{6 + CHECK_WIDTH}}-> {finding.advice}" if finding.advice else line


def closing(found: list[Finding]) -> str:
    """All findings in a sentence."""
    failed = sum(one.verdict is Verdict.FAIL for one in found)
    warned = sum(one.verdict is Verdict.WARN for one in found)
    if failed:
        first = next(one for one in found if one.verdict is Verdict.FAIL)
        told = f"{failed} of {len(found)} checks failed"
        return f"{told}; {'first ' if failed > 1 else ''}{first.check}: {first.found}"
    if warned:
        return f"{len(found)} checks passed, {warned} with a warning"
    return f"{len(found)} checks passed"
