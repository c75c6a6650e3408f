"""What a node tells of itself, asked of a node that runs: statistics and metrics.

The node has a consumer that follows a vbucket, and one connection on which it is itself the
consumer, so that every group has something to tell. Numbers and names of that moment are exchanged
for what they stand for.

Imports: client, node, testing, wire.
"""

from __future__ import annotations

import inspect
import re
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headrace.client.bucket import connect
from headrace.client.writer import Document
from headrace.node.commands import stats
from headrace.node.metrics import collect
from headrace.testing import running_node
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.messages import AddStream, Open
from headrace.wire.opcodes import VBucketState
from headrace.wire.values import vbucket_of
from tools.docs_tables import cell, code, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.client.bucket import Bucket
    from headrace.testing import RunningNode

CONSUMER: Final = "docs:consumer"
REPLICA: Final = "docs:replica"
STREAM_SECONDS_MAX: Final = 30.0
KEY: Final = next(key for key in (b"a", b"b", b"c", b"d") if vbucket_of(key, 2) == 0)
STREAM_NAMES: Final = frozenset(
    {"eq_dcpq:NAME:stream_N_last_sent_seqno", "eq_dcpq:NAME:stream_N_last_received_seqno"}
)
"""Both kinds of streams have been seen."""
# Told once per opcode, per vbucket, per connection: the place where the number stands.
_EXCHANGES: Final = (
    (re.compile(r"^vb_[01](?=$|:)"), "vb_N"),
    (re.compile(r"(?<=:)0(?=:)"), "N"),
    (re.compile(r"^eq_dcpq:docs:\w+"), "eq_dcpq:NAME"),
    (re.compile(r"stream_[01]_"), "stream_N_"),
    (re.compile(r"^docs:(?!total:)"), "PREFIX:"),
)


@contextmanager
def busy_node() -> Iterator[tuple[RunningNode, Bucket]]:
    """A node with a document, a consumer, and a connection on which it is the consumer."""
    with (
        running_node(vbuckets=2) as node,
        connect(f"{node.connection_string}/default") as bucket,
        bucket.writer() as writer,
        socket.create_connection(("127.0.0.1", node.port), STREAM_SECONDS_MAX) as link,
    ):
        writer.put(Document(KEY, b"{}"))
        writer.flush()
        follow = bucket.follow(since="beginning", vbuckets=(0,), name=CONSUMER)
        next(iter(follow))
        node.faults.set_state(vbucket=1, state=VBucketState.REPLICA)
        # Without the flag PRODUCER the node's end consumes; nobody answers what it then asks for.
        link.sendall(encode(Open(opaque=1, key=REPLICA.encode(), flags=0), Dialect.DCP_7))
        link.sendall(encode(AddStream(opaque=2, vbucket=1, flags=0), Dialect.DCP_7))
        yield node, bucket


def statistics_page() -> str:
    """Return the page of STAT."""
    parts = [
        "STAT with a key asks for a group; each name and value is a reply of its own, and an empty "
        "one ends them. In names `N` stands for a vbucket's or an entry's number, `NAME` for a "
        "connection, `PREFIX` for the part of its name before the separator.\n",
        "From Python: `bucket.stats(group)`.\n",
    ]
    with busy_node() as (_, bucket):
        for group in stats.GROUPS:
            parts += _group(bucket, group)
    return "\n".join(parts)


def _group(bucket: Bucket, group: str) -> Iterator[str]:
    function = stats.GROUPS[group]
    yield f"## {group or 'without a key'}\n"
    yield f"{cell(inspect.getdoc(function) or '')}\n"
    asked = {"dcp-vbtakeover": f"dcp-vbtakeover 0 {CONSUMER}"}.get(group, group)
    deadline = time.monotonic() + STREAM_SECONDS_MAX
    names: list[str] = []
    while time.monotonic() < deadline:
        (found,) = bucket.stats(asked).values()
        names = list(dict.fromkeys(_general(name) for name in found))
        if group != "dcp" or set(names) >= STREAM_NAMES:
            break
    if not names:
        yield "Answers with no names.\n"
    else:
        yield " ".join(code(name) for name in names) + "\n"


def _general(name: str) -> str:
    for pattern, text in _EXCHANGES:
        name = pattern.sub(text, name)
    return name


def metrics_page() -> str:
    """Return the page of the metrics."""
    with busy_node() as (node, _):
        found = list(collect(node.node))
    rows = []
    for metric in found:
        labels = ", ".join(sorted({name for sample in metric.samples for name in sample.labels}))
        rows.append((code(metric.name), metric.kind, cell(labels), cell(metric.help)))
    return (
        "`headrace serve --metrics-port N` answers `GET /metrics` on loopback in Prometheus' text "
        "format.\n\n" + table(("metric", "kind", "labels", "meaning"), rows)
    )
