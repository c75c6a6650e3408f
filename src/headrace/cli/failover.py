"""headrace failover: promote the replicas of a node that is gone.

Per vbucket the living copy with the most complete history becomes active; a new branch begins at
the end of its last complete snapshot, so consumers that saw more are rolled back to there. The new
map goes to every node that answers. What may be lost is said first.

Imports: cli.managing, cluster.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.exits import Exit
from headrace.cli.managing import cluster_options, run_managing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.cluster.journal import Journal
    from headrace.cluster.manager import Cluster
    from headrace.cluster.operations import Promotion

ROWS_SHOWN = 24


@click.command("failover")
@cluster_options
@click.argument("node")
@click.option("--force", is_flag=True, help="Also if it answers, or vbuckets are lost.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and stop.")
def command(**options: Any) -> None:  # noqa: ANN401 - click's own words
    """Promote the replicas of NODE, which is gone, and tell everyone."""

    async def work(cluster: Cluster, journal: Journal) -> int:
        from headrace.cluster.operations import fail_over, plan_failover

        dead = cluster.file.node(options["node"]).name
        await cluster.load(tolerant=True)
        plan = await plan_failover(cluster, dead, force=options["force"])
        missing: tuple[str, ...] = ()
        if not options["dry_run"]:
            missing = await fail_over(cluster, dead, plan)
            for entry in journal.entries:
                if dead in (entry.move.producer, entry.move.target):
                    journal.forget(entry.bucket, entry.move.vbucket)
        show(plan, missing, options)
        return Exit.PENDING if missing else Exit.OK

    run_managing(options, work)


def show(plan: Sequence[Promotion], missing: Sequence[str], options: dict[str, Any]) -> None:
    """Print what is done, or would be."""
    taken = [one for one in plan if one.owner_changes]
    lost = sum(one.may_be_lost for one in taken)
    if options["as_json"]:
        rows = [
            {
                "vbucket": one.vbucket,
                "before": list(one.before),
                "after": list(one.after),
                "promoted": one.promoted,
                "known_seqno": one.known_seqno,
                "kept_seqno": one.kept_seqno,
            }
            for one in plan
        ]
        click.echo(json.dumps({"vbuckets": rows, "not_told": list(missing)}))
        return
    for one in [one for one in taken if one.may_be_lost or one.promoted is None][:ROWS_SHOWN]:
        who = one.promoted or "nobody has a copy"
        click.echo(
            f"vb {one.vbucket}: {who}, up to seqno {one.kept_seqno}; {one.known_seqno} is known"
        )
    done = "would be promoted" if options["dry_run"] else "promoted"
    click.echo(
        f"{len(taken)} vbuckets {done}, {len(plan) - len(taken)} lose a replica; "
        f"{lost} seqnos known to have existed are not in the promoted copies"
    )
    for name in missing:
        click.echo(f"  {name} does not answer and keeps the old map until it is told", err=True)
