"""Tables that a node's failover went through, for the tests of what is told about it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.client.bucket import connect
from headrace.client.writer import Document
from headrace.demo.following import COLUMNS
from headrace.spark.client_feed import ClientFactory
from headrace.spark.jobs import LocalRunner
from headrace.spark.sync import Sync, SyncOptions, Turn
from headrace.spark.tables.state import StateOptions
from headrace.testing import RunningNode, running_node

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.spark.positions import Withdrawal


@dataclass
class Pipeline:
    """A node, its tables, and a way to bring them level."""

    node: RunningNode
    directory: Path
    sync: Sync

    @property
    def url(self) -> str:
        return f"{self.node.connection_string}/default"

    def put(self, *pairs: tuple[str, bytes | None]) -> None:
        with connect(self.url) as bucket, bucket.writer() as writer:
            for key, value in pairs:
                writer.put(Document(key.encode(), value, is_json=True))

    def turns(self) -> list[Turn]:
        return list(self.sync.once())


@contextmanager
def pipeline(directory: Path, *, vbuckets: int = 1) -> Iterator[Pipeline]:
    """A node with one bucket in memory, and tables without Spark."""
    with running_node(vbuckets=vbuckets) as node:
        factory = ClientFactory(f"{node.connection_string}/default")
        sync = Sync(
            factory,
            directory,
            LocalRunner(),
            SyncOptions(parts=1, state=StateOptions(flatten=COLUMNS)),
        )
        try:
            yield Pipeline(node, directory, sync)
        finally:
            sync.close()


def order(status: str) -> bytes:
    return b'{"status": "%s", "total": 9.5}' % status.encode()


def rolled_back(found: Pipeline) -> Withdrawal:
    """Write 40 orders, ship 10 of them, lose those 10, and bring the tables level."""
    found.put(*((f"order::{number:08d}", order("paid")) for number in range(40)))
    found.turns()
    found.put(*((f"order::{number:08d}", order("shipped")) for number in range(10)))
    found.turns()
    found.node.faults.failover(vbucket=0, lose=10)
    found.put(("order::new", order("placed")))
    (withdrawal,) = [one for turn in found.turns() for one in turn.withdrawals]
    return withdrawal
