"""headrace rebalance: from the nodes and replicas a cluster file wants to the moves, and do them.

Moves that were interrupted are finished first; what is wanted is computed after them.

Imports: cli.managing, cluster.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.managing import (
    cluster_options,
    moving_options,
    report,
    run_managing,
    run_moves,
    show_plan,
    under_way,
)

if TYPE_CHECKING:
    from headrace.cluster.journal import Journal
    from headrace.cluster.manager import Cluster
    from headrace.cluster.mover import Mover


@click.command("rebalance")
@cluster_options
@moving_options
def command(**options: Any) -> None:  # noqa: ANN401 - click's own words
    """Spread the vbuckets of CLUSTER_FILE evenly: active copies and replicas, within one."""

    async def work(cluster: Cluster, journal: Journal) -> int:
        from headrace.cluster.operations import plan_rebalance
        from headrace.cluster.steps import Ending

        began = time.monotonic()
        movers: list[Mover] = []
        left = [entry.move for entry in journal.entries if entry.bucket == cluster.bucket]
        if not left or options["dry_run"]:
            await cluster.load()
        if options["dry_run"]:
            show_plan(left or plan_rebalance(cluster), as_json=options["as_json"])
            return 0
        if left:
            await cluster.load(tolerant=True)
            await cluster.adopt(under_way(cluster, journal))
            movers += await run_moves(cluster, journal, left, options)
        else:
            await cluster.adopt(under_way(cluster, journal))
        if all(mover.ending is Ending.DONE for mover in movers):
            moves = plan_rebalance(cluster)
            movers += await run_moves(cluster, journal, moves, options)
        return report(movers, as_json=options["as_json"], seconds=time.monotonic() - began)

    run_managing(options, work)
