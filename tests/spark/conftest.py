"""One Spark session for the whole run, nodes to read from, and documents to put there."""

from __future__ import annotations

import os
from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.client.bucket import connect
from headrace.client.writer import Document
from headrace.testing import RunningNode, running_node

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

SOURCE = Path(__file__).resolve().parents[2] / "src"
ROOT = SOURCE.parent


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session all tests share: to start one takes seconds."""
    # Workers are new interpreters: they find this tree, installed or not, and the tests' helpers.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(SOURCE), str(ROOT)])
    from headrace.spark.session import session

    # Relative paths are the JVM's, which stays where it was started: not among our sources.
    with chdir(tmp_path_factory.mktemp("spark")):
        quiet = {"spark.log.level": "ERROR"}
        running = session("headrace tests", master="local[2]", settings=quiet)
    yield running
    running.stop()


@pytest.fixture
def node() -> Iterator[RunningNode]:
    """A node with a small empty bucket, in memory."""
    with running_node(vbuckets=8) as started:
        yield started


def url_of(node: RunningNode) -> str:
    return f"{node.connection_string}/default"


def write(node: RunningNode, documents: Iterable[tuple[str, bytes | None]]) -> None:
    """Put documents into the node's bucket; None deletes."""
    with connect(url_of(node)) as bucket, bucket.writer() as writer:
        for key, value in documents:
            writer.put(Document(key.encode(), value, is_json=True))


def numbered(
    count: int, *, prefix: str = "doc", version: int = 0
) -> list[tuple[str, bytes | None]]:
    return [
        (f"{prefix}-{number}", b'{"n": %d, "version": %d}' % (number, version))
        for number in range(count)
    ]
