"""headrace replicate: keep replicas of vbuckets on other nodes, until stopped.

    headrace replicate CLUSTER_FILE                       as many replicas as the file wants
    headrace replicate CLUSTER_FILE SRC DST --vbuckets L  these, from one of its nodes to another
    headrace replicate URL URL --bucket B --vbuckets L    the same, without file, map or chains

Imports: cli.managing, cluster.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.managing import JOURNAL
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.cluster.chains import Chain
    from headrace.cluster.manager import Cluster
    from headrace.cluster.replication import Replicator


@click.command("replicate")
@click.argument("places", nargs=-1, required=True, metavar="CLUSTER_FILE [SRC DST]")
@click.option("--vbuckets", default="all", show_default=True, help="Numbers and ranges, or all.")
@click.option("--bucket", metavar="NAME", help="Bucket, if the file names several.")
@click.option("--once", is_flag=True, help="Stop when every replica has caught up.")
@click.option("--json", "as_json", is_flag=True, help="A line a second, for a script.")
def command(**options: Any) -> None:  # noqa: ANN401 - click's own words
    """Keep replicas up to date: those CLUSTER_FILE wants, or from node SRC to node DST."""
    from headrace.cluster.cluster_file import read_cluster_file, two_nodes
    from headrace.cluster.manager import Cluster, Pair

    places = options["places"]
    if len(places) == 2:
        file = two_nodes(*places, bucket=options["bucket"])
        asyncio.run(_main(Pair(file, file.bucket(options["bucket"])), options))
        return
    if len(places) not in (1, 3):
        raise ConfigError(
            f"{len(places)} places; wanted is CLUSTER_FILE, CLUSTER_FILE SRC DST, or two URLs"
        )
    file = read_cluster_file(Path(places[0]))
    asyncio.run(_main(Cluster(file, file.bucket(options["bucket"])), options))


async def _main(cluster: Cluster, options: dict[str, Any]) -> None:
    from headrace.cluster.replication import Replicator, adopt

    shown = Shown(as_json=options["as_json"])
    try:
        await cluster.load()
        if cluster.has_map:
            await adopt(cluster, cluster.file.beside(JOURNAL))
        replicator = Replicator(
            cluster,
            cluster.file.beside(JOURNAL),
            wanted=lambda: wanted_chains(cluster, options),
            publishes=cluster.has_map,
            on_look=shown.show,
        )
        task = asyncio.ensure_future(replicator.run(once=options["once"]))
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
        await task
        shown.sum_up(replicator)
    except asyncio.CancelledError:
        click.echo("headrace: stopped; replicas stay as they are", err=True)
    finally:
        shown.end()
        await cluster.close()


def wanted_chains(cluster: Cluster, options: dict[str, Any]) -> dict[int, Chain]:
    """The chains the options ask for, beside those of the map."""
    from headrace.cluster.operations import parse_vbuckets
    from headrace.cluster.planning import replicated

    chosen = parse_vbuckets(options["vbuckets"], cluster.chains.vbuckets)
    file, rows = cluster.file, cluster.chains.rows
    if len(options["places"]) == 1:
        # A node that does not answer keeps the replicas it has, and is given no new ones.
        living = [name for name in file.staying if name not in cluster.silent]
        grown = replicated(cluster.chains, living, file.replicas)
        return {vbucket: grown[vbucket] for vbucket in chosen if vbucket in grown}
    names = options["places"][1:] if cluster.has_map else file.names
    source, target = (file.node(name).name for name in names)
    if source == target:
        raise ConfigError(f"SRC and DST are both {source}; copies are on different nodes")
    return {
        vbucket: (*rows[vbucket], target)
        for vbucket in chosen
        if rows[vbucket][0] == source and target not in rows[vbucket]
    }


class Shown:
    """How far replicas are: a line that lives, or one JSON object per look."""

    def __init__(self, *, as_json: bool) -> None:
        """Nothing is shown yet."""
        from rich.console import Console
        from rich.live import Live

        self._as_json = as_json
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, refresh_per_second=4, transient=False)
        self._began = time.monotonic()
        if not as_json and self._console.is_terminal:
            self._live.start()

    def show(self, replicator: Replicator) -> None:
        """Draw the state after a look; what was begun again is a line of its own."""
        notices = replicator.take_notices()
        if self._as_json:
            click.echo(json.dumps({**record(replicator), "notices": notices}))
            return
        for text in notices:
            self._console.print(f"headrace: {text}", markup=False, highlight=False, soft_wrap=True)
        if self._console.is_terminal:
            self._live.update(table(replicator))

    def sum_up(self, replicator: Replicator) -> None:
        """Say how it ended, where nothing was drawn."""
        if not self._as_json and not self._console.is_terminal:
            found = record(replicator)
            seconds = time.monotonic() - self._began
            click.echo(
                f"{found['caught_up']} of {found['streams']} replicas have caught up, "
                f"in {seconds:.1f} s"
            )

    def end(self) -> None:
        """Stop drawing."""
        if self._live.is_started:
            self._live.stop()


def record(replicator: Replicator) -> dict[str, object]:
    """The state as plain data."""
    return {
        "streams": len(replicator.feeds),
        "streaming": sum(one.state == "streaming" for one in replicator.feeds.values()),
        "caught_up": sum(one.is_caught_up for one in replicator.feeds.values()),
        "lag": replicator.lag,
        "revision": replicator.cluster.chains.revision,
        "problems": replicator.problems,
    }


def table(replicator: Replicator) -> Any:  # noqa: ANN401 - a renderable of rich
    """The state as a table, a row per pair of nodes."""
    from rich.console import Group
    from rich.table import Table

    drawn = Table("from", "to", "streams", "streaming", "caught up", "lag")
    for pair in sorted({one.pair for one in replicator.feeds.values()}):
        feeds = [one for one in replicator.feeds.values() if one.pair == pair]
        drawn.add_row(
            *pair,
            str(len(feeds)),
            str(sum(one.state == "streaming" for one in feeds)),
            str(sum(one.is_caught_up for one in feeds)),
            f"{sum(one.lag for one in feeds):,}",
        )
    return Group(drawn, *replicator.problems[:8])
