"""headrace tail: follow a bucket's changes.

By default from now on, one line per change, until it is stopped. With ``--tokens FILE`` it goes on
where it stopped last time, and keeps the tokens of what it has written in the file.

Imports: client, cli.bars, cli.connecting, cli.sinks.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.bars import bar
from headrace.cli.connecting import connected, parse_since, parse_until, source_options, take_source
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.cli.sinks import BatchSink, ChangeSink
    from headrace.client.bucket import Bucket
    from headrace.client.reader import Changes, Follow
    from headrace.client.tokens import TokenFile

COMMIT_SECONDS: Final = 1.0
KINDS: Final = (
    "mutation",
    "deletion",
    "expiration",
    "prepare",
    "commit",
    "abort",
    "system_event",
    "seqno_advanced",
)


@click.command("tail")
@source_options
@click.option("--since", help="beginning, now (default), a time, or a file of tokens.")
@click.option("--until", help="now, or a file of tokens; never when left out.")
@click.option("--tokens", type=click.Path(dir_okay=False), help="Go on from here; keep them here.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.option("--arrow", type=click.Path(dir_okay=False), help="Write an Arrow stream.")
@click.option("--parquet", type=click.Path(file_okay=False), help="Write Parquet files here.")
@click.option(
    "--rows-per-file",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    help="Of each Parquet file, about.",
)
@click.option("--limit", type=click.IntRange(1), help="Stop after this many changes.")
@click.option("--vbucket", "vbuckets", type=int, multiple=True, help="Only these; may be repeated.")
@click.option("--collection", "collections", multiple=True, help="scope.collection; repeatable.")
@click.option("--scope", help="Only the collections of this scope.")
@click.option("--key-prefix", help="Only keys that begin so.")
@click.option("--value-contains", help="Only values that hold this text.")
@click.option("--field", "fields", multiple=True, metavar="PATH=VALUE", help="Only documents so.")
@click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Only these kinds.")
@click.option("--no-value", is_flag=True, help="Keys and metadata alone.")
@click.option("--xattrs", is_flag=True, help="Extended attributes too.")
@click.option("--compression", is_flag=True, help="Ask for compressed values.")
@click.option("--sync-writes", is_flag=True, help="Prepares, commits and aborts too.")
@click.option("--out-of-order", is_flag=True, help="Let the producer send backfills unordered.")
@click.option("--history", is_flag=True, help="Every version where the bucket keeps them.")
@click.option(
    "--persisted-only", is_flag=True, help="Only what is on disk: no rollback after that."
)
@click.option("--name", help="Name of the connection at the node.")
def command(**options: Any) -> None:  # noqa: ANN401 - click's own words
    """Follow the changes of a bucket."""
    source = take_source(options)
    if sum(map(bool, (options["as_json"], options["arrow"], options["parquet"]))) > 1:
        raise ConfigError("--json, --arrow and --parquet are three places; choose one")
    if options["limit"] and (options["arrow"] or options["parquet"]):
        raise ConfigError(
            "--limit would cut a snapshot in two; use --until with --arrow, --parquet"
        )
    with connected(**source) as bucket:
        tail(bucket, options)


def tail(bucket: Bucket, options: dict[str, Any]) -> None:
    """Read as the options say until the end or an interrupt."""
    from headrace.client.tokens import TokenFile

    store = TokenFile(options["tokens"]) if options["tokens"] else None
    read = _read_options(options, store)
    try:
        if options["arrow"] or options["parquet"]:
            _write_batches(bucket.changes(**read, on_rollback="yield"), _batch_sink(options), store)
        else:
            sink = _change_sink(bucket, as_json=options["as_json"])
            _write_changes(bucket.follow(**read), sink, store, options["limit"])
    except KeyboardInterrupt:
        click.echo("stopped", err=True)


def _read_options(options: dict[str, Any], store: TokenFile | None) -> dict[str, Any]:
    kept = None if store is None else store.load()
    if kept is not None and options["since"] is not None:
        raise ConfigError(
            f"--tokens {options['tokens']} says where to go on; leave --since out, or name another "
            "file"
        )
    read: dict[str, Any] = {
        "since": kept or parse_since(options["since"] or "now"),
        "until": parse_until(options["until"]),
        "on_trouble": lambda trouble: click.echo(f"headrace: {trouble}", err=True),
        "where": _field_test(options["fields"]),
    }
    for name in (
        "no_value",
        "xattrs",
        "sync_writes",
        "out_of_order",
        "history",
        "persisted_only",
        "name",
        "scope",
        "collections",
    ):
        read[name] = options[name]
    for name in ("key_prefix", "value_contains", "compression", "kinds", "vbuckets"):
        if options[name]:
            read[name] = options[name]
    return read


def _field_test(fields: tuple[str, ...]) -> Callable[[dict[str, object]], bool] | None:
    """A test of documents by the values of fields, or None."""
    from headrace.cli.fields import field_test

    return field_test(fields) if fields else None


def _change_sink(bucket: Bucket, *, as_json: bool) -> ChangeSink:
    from headrace.cli.sinks import JsonLines, Lines

    names = _Names(bucket)
    if as_json:
        return JsonLines(sys.stdout, names)
    coloured = sys.stdout.isatty()
    return Lines(
        sys.stdout,
        lambda text, colour: click.style(text, fg=colour) if coloured else text,
        names,
    )


class _Names:
    """Names of collections by id; asked for when a new id turns up."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._known: dict[int, str] = {0: "_default._default"}

    def __call__(self, collection_id: int) -> str:
        if collection_id not in self._known:
            found = self._bucket.manifest().name_of(collection_id)
            self._known[collection_id] = found or f"{collection_id:#x}"
        return self._known[collection_id]


def _batch_sink(options: dict[str, Any]) -> BatchSink:
    from headrace.cli.sinks import ArrowFile, ParquetDirectory

    if options["arrow"]:
        return ArrowFile(Path(options["arrow"]))
    return ParquetDirectory(Path(options["parquet"]), options["rows_per_file"])


def _write_changes(
    reader: Follow, sink: ChangeSink, store: TokenFile | None, limit: int | None
) -> None:
    committed_at = time.monotonic()
    count = 0

    def commit() -> None:
        sink.commit()
        if store is not None:
            store.save(reader.tokens)

    try:
        for item in reader:
            sink.take(item)
            count += 1
            if limit is not None and count >= limit:
                break
            # People wait for lines; a disk need not be synced for each.
            if sys.stdout.isatty():
                sink.commit()
            if time.monotonic() - committed_at >= COMMIT_SECONDS:
                commit()
                committed_at = time.monotonic()
    finally:
        commit()
        sink.close()


def _write_batches(reader: Changes, sink: BatchSink, store: TokenFile | None) -> None:
    from headrace.client.changes import Rollback

    rows = 0
    try:
        with bar("reading", unit="rows", rate=True) as shown:
            for item in reader:
                if isinstance(item, Rollback):
                    shown.say(f"headrace: {item}")
                    sink.roll_back(item)
                    continue
                sink.take(item)
                rows += item.num_rows
                shown.reach(rows)
                if reader.is_covered and sink.commit() and store is not None:
                    store.save(reader.tokens)
    finally:
        # The rest of a snapshot that has begun to leave is here already.
        while not reader.is_covered and (item := next(reader, None)) is not None:
            sink.take(item)
            rows += item.num_rows
        sink.close()
        if store is not None:
            store.save(reader.tokens)
        click.echo(f"{rows:,} rows", err=True)
