"""headrace history: the life of one key, from a table or from a source.

A table knows every version that was streamed, and the rollbacks that ended some of them; a source
knows what it still has. Times are those of the node's clock, in UTC.

Imports: spark, cli.bars, cli.exits, cli.sync.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from headrace.cli.bars import bar
from headrace.cli.exits import Exit
from headrace.cli.sync import factory_of

if TYPE_CHECKING:
    from headrace.spark.lives import Moment

VALUE_WIDTH: Final = 60


def line_of(moment: Moment) -> str:
    """One moment as a line."""
    if moment.event == "rollback":
        return (
            f"epoch {moment.epoch}  rollback of vbucket {moment.vbucket} to {moment.seqno}, "
            f"branch {moment.branch:016x} lives on"
        )
    time = moment.time.isoformat(timespec="milliseconds") if moment.time else "-"
    value = "" if moment.value is None else repr(moment.value)[1:]
    if len(value) > VALUE_WIDTH:
        value = f"{value[:VALUE_WIDTH]}..."
    dead = "  withdrawn" if moment.dead else ""
    return (
        f"epoch {moment.epoch}  seqno {moment.seqno}  branch {moment.branch:016x}  {time}  "
        f"{moment.event}  rev {moment.rev}  {value}{dead}".rstrip()
    )


def record_of(moment: Moment) -> dict[str, object]:
    """One moment as plain data; a value that is no JSON is text."""
    value: object = None
    if moment.value is not None:
        try:
            value = json.loads(moment.value)
        except ValueError:
            value = moment.value.decode("utf-8", "backslashreplace")
    return {
        "vbucket": moment.vbucket,
        "epoch": moment.epoch,
        "seqno": moment.seqno,
        "branch": f"{moment.branch:016x}",
        "time": moment.time.isoformat() if moment.time else None,
        "event": moment.event,
        "rev": moment.rev,
        "value": value,
        "withdrawn": moment.dead,
    }


@click.command("history")
@click.argument("place", metavar="URL|TABLE_DIR")
@click.argument("key")
@click.option("--user", help="Who we are; the password comes from HEADRACE_PASSWORD.")
@click.option(
    "--password-file",
    "--credentials",
    "credentials",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the password; or with the user and, on the next line, the password.",
)
@click.option("--bucket", metavar="NAME", help="Bucket, if the URL names none.")
@click.option(
    "--collection-id", type=click.IntRange(0), help="Only this collection's document of that name."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object per version.")
def command(
    place: str,
    key: str,
    user: str | None,
    credentials: Path | None,
    bucket: str | None,
    collection_id: int | None,
    as_json: bool,
) -> None:
    """Print the life of one KEY, oldest first, with branches and rollbacks."""
    from headrace.spark.lives import life_in_source, life_in_table

    if "://" in place:
        factory = factory_of(place, user, credentials, bucket=bucket)
        with bar("reading its vbucket"):
            moments = life_in_source(factory, key, collection_id=collection_id)
    else:
        moments = life_in_table(place, key, collection_id=collection_id)
    for moment in moments:
        click.echo(json.dumps(record_of(moment)) if as_json else line_of(moment))
    if not any(moment.event != "rollback" for moment in moments):
        click.echo(f"headrace: {key!r} is not in {place}", err=True)
        sys.exit(Exit.FAILED)
