"""headrace load: write documents into a bucket, from a file or made up.

Files: JSON lines, CSV (a header names the fields), Parquet. The document's key is a field
(``--key id``, or a template such as ``user::{id}``), or the row's number. Made-up documents
(``--generate N``) are repeatable by ``--seed``: sizes, skewed keys, deletes and expiry as told.
``--rate R`` spreads them over time: a turn of writes every `TURN_SECONDS`, and after a stall as
many more as it takes to be on time again.

Imports: cli.bars, cli.connecting, cli.documents, client.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.bars import bar
from headrace.cli.connecting import connected, source_options, take_source
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.client.bucket import Bucket
    from headrace.client.writer import Document

SHOW_EVERY: Final = 1_000
TURN_SECONDS: Final = 0.02
"""How far ahead of its rate a load writes: what one flush is worth."""


@click.command("load")
@source_options
@click.argument(
    "file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option("--format", "kind", type=click.Choice(["jsonl", "csv", "parquet"]), help="Of FILE.")
@click.option("--key-field", "--document-key", "key_form", help="Field, or a form: user::{id}.")
@click.option("--generate", type=click.IntRange(1), metavar="N", help="Make up N writes.")
@click.option(
    "--keys", type=click.IntRange(1), metavar="N", help="Over so many keys.  [default: as many]"
)
@click.option(
    "--size",
    type=click.IntRange(16, 20 << 20),
    default=256,
    show_default=True,
    help="Bytes of a made-up document.",
)
@click.option("--skew", type=click.FloatRange(0), default=0.0, help="0: all keys alike; 1: Zipf.")
@click.option("--deletes", type=click.FloatRange(0, 1), default=0.0, help="Share of deletions.")
@click.option("--expiring", type=click.FloatRange(0, 1), default=0.0, help="Share that expires.")
@click.option("--expiry", type=click.IntRange(0), default=0, help="Seconds until it does.")
@click.option("--prefix", default="doc-", show_default=True, help="What made-up keys begin with.")
@click.option(
    "--seed", type=int, default=1, show_default=True, help="The same seed, the same documents."
)
@click.option(
    "--rate", type=click.FloatRange(0, min_open=True), help="Writes a second.  [default: no limit]"
)
@click.option("--collection", help="scope.collection to write into.")
def command(**options: Any) -> None:  # noqa: ANN401 - click's own words
    """Write documents: the lines of FILE, or made up."""
    source = take_source(options)
    if (options["file"] is None) == (options["generate"] is None):
        raise ConfigError("give either FILE or --generate N")
    with connected(**source) as bucket:
        load(bucket, options)


def load(bucket: Bucket, options: dict[str, Any]) -> None:
    """Write as the options say, with a progress bar where there is a terminal."""
    from headrace.cli.documents import generated, read_documents

    collection_id = 0
    if options["collection"]:
        collection_id = bucket.manifest().collection_id(options["collection"])
    total: int | None
    if options["generate"] is not None:
        total = options["generate"]
        documents: Iterable[Document] = generated(
            options["generate"],
            keys=options["keys"] or options["generate"],
            size=options["size"],
            skew=options["skew"],
            deletes=options["deletes"],
            expiring=options["expiring"],
            expiry=options["expiry"],
            prefix=options["prefix"],
            seed=options["seed"],
        )
    else:
        documents, total = read_documents(
            options["file"], options["kind"], options["key_form"], expiry=options["expiry"]
        )
    _write(bucket, documents, total, collection_id, rate=options["rate"])


def _write(
    bucket: Bucket,
    documents: Iterable[Document],
    total: int | None,
    collection_id: int,
    *,
    rate: float | None,
) -> None:
    began = time.monotonic()
    with (
        bar("writing", total=total, unit="writes", rate=True) as shown,
        bucket.writer() as writer,
    ):
        for number, document in enumerate(documents):
            if rate is not None and (ahead := early(number, rate, time.monotonic() - began)):
                writer.flush()
                shown.reach(writer.written)
                time.sleep(ahead)
            writer.put(document._replace(collection_id=collection_id))
            if number % SHOW_EVERY == 0:
                shown.reach(writer.written)
        writer.flush()
    seconds = max(time.monotonic() - began, 1e-6)
    missing = f", {writer.missing:,} deletions found nothing" if writer.missing else ""
    click.echo(
        f"{writer.written:,} writes, {writer.size:,} bytes in {seconds:.1f} s "
        f"({writer.written / seconds:,.0f}/s){missing}"
    )


def early(number: int, rate: float, seconds: float) -> float:
    """How long to wait before the write of this number, counted from 0; 0.0 within a turn."""
    ahead = number / rate - seconds
    return ahead if ahead >= TURN_SECONDS else 0.0
