"""The client as a feed, against a real node: whole snapshots, rollbacks, ends that move."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

from headrace.errors import CannotConnect
from headrace.history import Seqno, VBucketId
from headrace.spark.client_feed import ClientFactory
from headrace.spark.feed import Finished, News, Opened, RolledBack, Rows, Span
from headrace.spark.positions import START
from headrace.spark.progress import Progress
from tests.spark.conftest import numbered, url_of, write

if TYPE_CHECKING:
    from headrace.spark.client_feed import ClientFeed
    from headrace.testing import RunningNode


def drained(feed: ClientFeed, progress: Progress, spans: list[Span]) -> list[News]:
    found = []
    for news in feed.drain(spans):
        found.append(news)
        progress.take(news)
    return found


def spans_of(feed: ClientFeed) -> list[Span]:
    return [Span(vb, START, high) for vb, high in feed.high_seqnos().items() if high]


def test_a_drain_brings_every_document_and_every_vbucket_to_its_end(node: RunningNode) -> None:
    write(node, numbered(500))
    feed = ClientFactory(url_of(node))()
    spans = spans_of(feed)
    progress = Progress(spans)
    news = drained(feed, progress, spans)
    feed.close()
    assert sum(one.batch.num_rows for one in news if isinstance(one, Rows)) == 500
    assert {vb: one.seqno for vb, one in progress.positions.items()} == {
        span.vbucket: span.end_seqno for span in spans
    }
    assert progress.unfinished == {}
    opened = [one.vbucket for one in news if isinstance(one, Opened)]
    assert sorted(opened) == sorted(span.vbucket for span in spans), "each told once"


def test_a_failover_is_told_with_its_boundary_and_the_drain_ends(node: RunningNode) -> None:
    write(node, numbered(300))
    feed = ClientFactory(url_of(node))()
    spans = spans_of(feed)
    progress = Progress(spans)
    drained(feed, progress, spans)
    vb = spans[0].vbucket
    high = spans[0].end_seqno
    node.faults.failover(vbucket=int(vb), lose=5)
    # The end lies beyond what the new history has: a drain that waited for it would never end.
    again = [Span(vb, progress.positions[vb], Seqno(high + 50))]
    second = Progress(again)
    news = drained(feed, second, again)
    feed.close()
    (told,) = [one for one in news if isinstance(one, RolledBack)]
    assert told.from_seqno == high
    assert second.positions[vb].epoch == 1
    assert second.positions[vb].seqno == high - 5
    assert [one.complete for one in news if isinstance(one, Finished)] == [True]


def test_a_newer_branch_that_holds_our_place_ends_too(node: RunningNode) -> None:
    write(node, numbered(300))
    feed = ClientFactory(url_of(node))()
    vb, high = next((vb, high) for vb, high in feed.high_seqnos().items() if high)
    log = feed.failover_logs([vb])[vb]
    node.faults.failover(vbucket=int(vb), lose=3)
    span = Span(vb, START.accepted(log), high)
    progress = Progress([span])
    drained(feed, progress, [span])
    feed.close()
    assert progress.positions[vb].seqno == high - 3


def test_filters_reach_the_client(node: RunningNode) -> None:
    write(node, [*numbered(50), *numbered(30, prefix="other")])
    feed = ClientFactory(url_of(node), key_prefix="other-", kinds=("mutation",), no_value=True)()
    spans = spans_of(feed)
    news = drained(feed, Progress(spans), spans)
    feed.close()
    batches = [one.batch for one in news if isinstance(one, Rows)]
    keys = [key for one in batches for key in one.column("key").to_pylist()]
    assert len(keys) == 30
    assert {value for one in batches for value in one.column("value").to_pylist()} == {b""}


def test_a_factory_is_small_and_says_no_password() -> None:
    factory = ClientFactory("couchbase://host/b", user="u", password="secret")  # noqa: S106
    assert "secret" not in repr(factory)
    assert "secret" not in factory.describe()
    assert pickle.loads(pickle.dumps(factory)) == factory  # noqa: S301 - our own bytes


def test_a_source_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(CannotConnect, match=r"127\.0\.0\.1"):
        ClientFactory("couchbase://127.0.0.1:1/default")()


def test_no_spans_are_no_news(node: RunningNode) -> None:
    feed = ClientFactory(url_of(node))()
    assert list(feed.drain([])) == []
    assert feed.vbuckets() == [VBucketId(vb) for vb in range(8)]
    feed.close()
