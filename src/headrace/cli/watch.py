"""headrace watch: the live page of any source of change streams.

Nothing is installed at the source: it is asked for seqnos, failover logs and statistics, and unless
told otherwise a consumer of our own follows its changes without their values. The page listens on
loopback and changes nothing.

Imports: cli.connecting, client, web.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.connecting import connected, source_options, take_source

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.client.bucket import Bucket
    from headrace.web.client_source import Following


@click.command("watch")
@source_options
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of the page; 0: any.")
@click.option("--no-follow", is_flag=True, help="Ask for statistics, open no change streams.")
@click.option(
    "--tables",
    type=click.Path(path_type=Path, file_okay=False),
    multiple=True,
    help="Tables of `headrace sync` to show; may be repeated.",
)
@click.option(
    "--url-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the page's address here once it is there.",
)
def command(**options: Any) -> None:  # noqa: ANN401 - click's own words
    """Show a live page of a bucket: vbuckets, lag, connections, failovers."""
    source = take_source(options)
    with connected(**source) as bucket:

        def ready(url: str) -> None:
            if options["url_file"] is not None:
                write_address(options["url_file"], url)
            click.echo(f"headrace watches {bucket.name} of {source['url']}")
            click.echo(f"  live page     {url}")
            click.echo("  Ctrl-C ends it")

        following = None if options["no_follow"] else follow(bucket)
        try:
            asyncio.run(
                show(
                    bucket,
                    title=str(source["url"]),
                    port=options["port"],
                    tables=options["tables"],
                    following=following,
                    ready=ready,
                )
            )
        finally:
            if following is not None:
                following.stop()


def write_address(path: Path, url: str) -> None:
    """Write the address in one step, for scripts that wait for it."""
    from headrace.errors import ConfigError

    draft = path.with_name(path.name + ".new")
    try:
        draft.write_text(f"{url}\n", encoding="ascii")
        draft.replace(path)
    except OSError as error:
        raise ConfigError(f"file {path} cannot be written: {error.strerror}") from error


def follow(bucket: Bucket) -> Following:
    """A consumer of our own that reads everything from now on and keeps nothing."""
    from headrace.web.client_source import Following

    name = f"headrace-watch:{secrets.token_hex(4)}"
    reader = bucket.changes(
        since="now",
        no_value=True,
        whole=False,
        name=name,
        on_rollback=lambda _: None,
    )
    following = Following(reader, name)
    following.start()
    return following


async def show(
    bucket: Bucket,
    *,
    title: str,
    port: int,
    tables: tuple[Path, ...],
    following: Following | None,
    ready: Callable[[str], None],
) -> None:
    """Serve the page until SIGTERM or SIGINT."""
    from headrace.web.client_source import ClientSource
    from headrace.web.server import PageConfig, WebServer

    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    # Off the main thread (tests) there are no signals to take.
    with contextlib.suppress(ValueError, RuntimeError):
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
    async with (
        ClientSource(bucket, title=title, following=following) as source,
        WebServer(source, PageConfig(port=port, tables=tables)) as page,
    ):
        ready(page.url)
        await stopped.wait()
