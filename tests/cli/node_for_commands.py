"""A node with documents, and the command line as a person calls it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from click.testing import CliRunner, Result

from headrace.cli import main
from headrace.client.bucket import connect
from headrace.node.config import BucketConfig, NodeConfig
from headrace.store import BucketSettings
from tests.node.running import running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.client.writer import Document


@contextmanager
def node_url(vbuckets: int = 4) -> Iterator[str]:
    """The URL of a bucket of a running node."""
    settings = BucketSettings(vbuckets=vbuckets)
    with running(NodeConfig(buckets=(BucketConfig(settings=settings),))) as node:
        yield f"couchbase://127.0.0.1:{node.port}/default"


def put(url: str, *documents: Document) -> None:
    """Write documents."""
    with connect(url) as bucket, bucket.writer() as writer:
        for document in documents:
            writer.put(document)


def call(*words: str, code: int = 0) -> Result:
    """Call `headrace` and check its exit code."""
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == code, f"{result.output}{result.stderr}{result.exception!r}"
    return result
