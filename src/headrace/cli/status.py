"""headrace status: where vbuckets and consumers stand, as a table that lives.

The node is asked: states and seqnos of its vbuckets, and for every consumer connected to it how far
each stream has come. With ``--tokens FILE`` the consumer those tokens belong to is shown too, even
while it is not connected.

Imports: cli.connecting, cli.texts, client.
"""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.connecting import connected, source_options, take_source
from headrace.cli.texts import several
from headrace.errors import StatusError

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from headrace.client.bucket import Bucket
    from headrace.client.tokens import TokenSet

VBUCKETS_SHOWN: Final = 24
BAR_WIDTH: Final = 24
_STREAM: Final = re.compile(r"eq_dcpq:(.+):stream_(\d+)(?:_sid\d+)?_(\w+)")
_CONNECTION: Final = re.compile(r"eq_dcpq:(.+):(\w+)")
_FIELD: Final = re.compile(r"vb_(\d+):(\w+)")


@dataclass(slots=True)
class VBucket:
    """One vbucket of the node."""

    vbucket: int
    state: str = "active"
    high_seqno: int = 0
    persisted_seqno: int = 0
    purge_seqno: int = 0
    uuid: str = ""


@dataclass(slots=True)
class Consumer:
    """One consumer: a connection, or a file of tokens."""

    name: str
    streams: dict[int, int] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    unacked: int = 0
    window: int = 0
    paused: bool = False

    def lag(self, highs: dict[int, int]) -> int:
        """Seqnos between where the consumer's streams are and where the node is."""
        return sum(max(0, highs.get(vb, seqno) - seqno) for vb, seqno in self.streams.items())

    def progress(self, highs: dict[int, int]) -> float:
        """Part of the history that has been sent; 1 when there is none."""
        total = sum(highs.get(vbucket, 0) for vbucket in self.streams)
        return 1.0 if not total else max(0.0, 1 - self.lag(highs) / total)


@dataclass(slots=True)
class Status:
    """What the nodes said at one moment."""

    bucket: str
    nodes: int
    vbuckets: list[VBucket]
    consumers: list[Consumer]

    @property
    def highs(self) -> dict[int, int]:
        """High seqno by vbucket."""
        return {one.vbucket: one.high_seqno for one in self.vbuckets}


@click.command("status")
@source_options
@click.option("--once", is_flag=True, help="Print one table and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object and end.")
@click.option("--tokens", type=click.Path(exists=True, dir_okay=False), help="Show this consumer.")
@click.option("--all", "everything", is_flag=True, help="Every vbucket, not only the first ones.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two looks.",
)
def command(**options: Any) -> None:  # noqa: ANN401 - click's own words
    """Show where vbuckets and consumers stand."""
    from headrace.client.tokens import TokenFile

    source = take_source(options)
    tokens = TokenFile(options["tokens"]).load() if options["tokens"] else None
    with connected(**source) as bucket:
        if options["as_json"]:
            click.echo(json.dumps(record(read_status(bucket, tokens))))
        elif options["once"] or not sys.stdout.isatty():
            from rich.console import Console

            Console().print(table(read_status(bucket, tokens), everything=options["everything"]))
        else:
            _live(bucket, tokens, options["interval"], everything=options["everything"])


def _live(bucket: Bucket, tokens: TokenSet | None, interval: float, *, everything: bool) -> None:
    from rich.live import Live

    try:
        with Live(refresh_per_second=4, screen=False) as live:
            while True:
                live.update(table(read_status(bucket, tokens), everything=everything))
                time.sleep(interval)
    except KeyboardInterrupt:
        return


def read_status(bucket: Bucket, tokens: TokenSet | None = None) -> Status:
    """Ask every node."""
    bucket.refresh()
    vbuckets: dict[int, VBucket] = {}
    consumers: dict[str, Consumer] = {}
    for stats in bucket.stats("vbucket-seqno").values():
        _read_vbuckets(stats, vbuckets)
    if not vbuckets:
        vbuckets = {v: VBucket(v, high_seqno=seqno) for v, seqno in bucket.seqnos().items()}
    try:
        for stats in bucket.stats("dcp").values():
            _read_consumers(stats, consumers)
    except StatusError:
        consumers = {}  # a node that keeps its connections to itself
    found = [*consumers.values()]
    if tokens is not None:
        found.append(Consumer("tokens", {v: tokens.seqno(v) for v in range(tokens.vbuckets)}))
    return Status(
        bucket=bucket.name,
        nodes=len(bucket.cluster_map.nodes),
        vbuckets=[vbuckets[v] for v in sorted(vbuckets)],
        consumers=found,
    )


_VBUCKET_FIELDS: Final = {
    "high_seqno": "high_seqno",
    "last_persisted_seqno": "persisted_seqno",
    "purge_seqno": "purge_seqno",
}


def _read_vbuckets(stats: dict[str, str], vbuckets: dict[int, VBucket]) -> None:
    for name, value in stats.items():
        found = _FIELD.fullmatch(name)
        if found is None:
            continue
        one = vbuckets.setdefault(int(found.group(1)), VBucket(int(found.group(1))))
        if found.group(2) in _VBUCKET_FIELDS and value.isdecimal():
            setattr(one, _VBUCKET_FIELDS[found.group(2)], int(value))
        elif found.group(2) == "uuid":
            one.uuid = f"{int(value):016x}" if value.isdecimal() else value


def _read_consumers(stats: dict[str, str], consumers: dict[str, Consumer]) -> None:
    for name, value in stats.items():
        stream = _STREAM.fullmatch(name)
        if stream is not None:
            one = consumers.setdefault(stream.group(1), Consumer(stream.group(1)))
            vbucket = int(stream.group(2))
            if stream.group(3) == "last_sent_seqno" and value.isdecimal():
                one.streams[vbucket] = int(value)
            elif stream.group(3) == "state":
                one.states[vbucket] = value
            continue
        found = _CONNECTION.fullmatch(name)
        if found is None:
            continue
        one = consumers.setdefault(found.group(1), Consumer(found.group(1)))
        if found.group(2) == "unacked_bytes" and value.isdecimal():
            one.unacked = int(value)
        elif found.group(2) == "max_buffer_bytes" and value.isdecimal():
            one.window = int(value)
        elif found.group(2) == "paused":
            one.paused = value == "true"


def record(status: Status) -> dict[str, object]:
    """The status as plain data."""
    highs = status.highs
    return {
        "bucket": status.bucket,
        "nodes": status.nodes,
        "vbuckets": [asdict(one) for one in status.vbuckets],
        "consumers": [
            asdict(one) | {"lag": one.lag(highs), "progress": one.progress(highs)}
            for one in status.consumers
        ],
    }


# -- for people ------------------------------------------------------------------------------------


def table(status: Status, *, everything: bool = False) -> Group:
    """The status as tables with bars."""
    from rich.console import Group
    from rich.table import Table

    highs = status.highs
    consumers = Table("consumer", "streams", "progress", "lag", "unacked", "", title="consumers")
    for one in status.consumers:
        share = one.progress(highs)
        states = ", ".join(sorted(set(one.states.values())))
        consumers.add_row(
            one.name,
            str(len(one.streams)),
            bar(share),
            f"{one.lag(highs):,}",
            f"{one.unacked:,} of {one.window:,}" if one.window else "-",
            "[yellow]waits for the consumer[/]" if one.paused and one.unacked else states,
        )
    counted = several(len(status.vbuckets), "vbucket")
    places = several(status.nodes, "node")
    vbuckets = Table(title=f"bucket {status.bucket}: {counted} on {places}")
    for name in ("vb", "state", "high", "persisted", "purge", "branch", "slowest consumer"):
        vbuckets.add_column(name, no_wrap=True)
    shown = status.vbuckets if everything else status.vbuckets[:VBUCKETS_SHOWN]
    for entry in shown:
        vbuckets.add_row(
            str(entry.vbucket),
            entry.state,
            f"{entry.high_seqno:,}",
            f"{entry.persisted_seqno:,}",
            f"{entry.purge_seqno:,}",
            entry.uuid,
            _slowest(status, entry),
        )
    parts: list[RenderableType] = [vbuckets]
    hidden = len(status.vbuckets) - len(shown)
    if hidden:
        total = sum(highs.values())
        parts.append(f"{hidden} more vbuckets (--all); {total:,} seqnos altogether")
    return Group(*parts, consumers if status.consumers else "no consumer is connected")


def _slowest(status: Status, entry: VBucket) -> str:
    places = [
        one.streams[entry.vbucket] for one in status.consumers if entry.vbucket in one.streams
    ]
    if not places:
        return "-"
    share = min(places) / entry.high_seqno if entry.high_seqno else 1.0
    return bar(min(1.0, share), BAR_WIDTH // 2)


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """A bar of the given share, with the number behind it."""
    full = int(share * width)
    colour = "green" if share >= 1 else "yellow"
    return f"[{colour}]{'█' * full}[/][dim]{'░' * (width - full)}[/] {share:6.1%}"
