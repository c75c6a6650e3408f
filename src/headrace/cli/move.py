"""headrace move: hand vbuckets from one node to another, under load, without losing a write.

A move is written to a journal beside the cluster file before it begins and forgotten when it is
over. Whatever dies in between (a node, the link, this command), `headrace move --resume` looks at
both copies and finishes, forward or back.

Imports: cli.exits, cli.managing, cluster.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.exits import Exit
from headrace.cli.managing import (
    cluster_options,
    moving_options,
    report,
    run_managing,
    run_moves,
    show_plan,
    under_way,
)
from headrace.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from headrace.cluster.journal import Journal
    from headrace.cluster.manager import Cluster
    from headrace.cluster.planning import Move


@click.command("move")
@cluster_options
@click.option("--vbuckets", metavar="LIST", help="Numbers and ranges (0-31,40), or all.")
@click.option("--from", "source", metavar="NODE", help="Who has them [whoever does].")
@click.option("--to", "target", metavar="NODE", help="Who gets them.")
@click.option("--resume", is_flag=True, help="Finish the moves that were interrupted.")
@moving_options
def command(**options: Any) -> None:  # noqa: ANN401 - click's own words
    """Move vbuckets of CLUSTER_FILE from node to node."""
    if options["resume"] == bool(options["vbuckets"] or options["source"] or options["target"]):
        raise ConfigError("give either --vbuckets and --to, or --resume")
    if not options["resume"] and not (options["vbuckets"] and options["target"]):
        raise ConfigError("give --vbuckets and --to")

    async def work(cluster: Cluster, journal: Journal) -> int:
        moves = await planned(cluster, journal, options)
        if options["dry_run"]:
            show_plan(moves, as_json=options["as_json"])
            return 0
        if options["resume"] and not moves and not options["as_json"]:
            click.echo("nothing was interrupted")
            return Exit.OK
        await cluster.adopt(under_way(cluster, journal))
        began = time.monotonic()
        movers = await run_moves(cluster, journal, moves, options)
        return report(movers, as_json=options["as_json"], seconds=time.monotonic() - began)

    run_managing(options, work)


async def planned(cluster: Cluster, journal: Journal, options: dict[str, Any]) -> list[Move]:
    """The moves of the journal, or the ones asked for."""
    from headrace.cluster.operations import parse_vbuckets, plan_move

    entries = [entry for entry in journal.entries if entry.bucket == cluster.bucket]
    if options["resume"]:
        await cluster.load(tolerant=True)
        return [entry.move for entry in entries]
    if entries:
        raise ClusterError(
            f"{len(entries)} moves were interrupted; finish them first: headrace move "
            f"{cluster.file.path} --resume"
        )
    target = cluster.file.node(options["target"]).name
    source = cluster.file.node(options["source"]).name if options["source"] else None
    chains = await cluster.load()
    vbuckets = parse_vbuckets(options["vbuckets"], chains.vbuckets)
    return plan_move(chains, vbuckets, source=source, target=target)
