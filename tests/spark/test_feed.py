"""The rules of a feed, held against the client on a node and against the scripted one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.spark.client_feed import ClientFactory
from headrace.spark.feed import Completed, Feed, Finished, Opened, RolledBack, Rows, Span
from headrace.spark.positions import START
from tests.spark.conftest import numbered, url_of, write
from tests.spark.producer import Producer, ScriptedFeed

if TYPE_CHECKING:
    from headrace.history import Seqno, VBucketId
    from headrace.testing import RunningNode


def scripted() -> Feed:
    producer = Producer.with_vbuckets(8)
    for number in range(300):
        producer.put(number % 8, f"k{number % 40}", f"{number}")
        if number % 50 == 0:
            producer.cut(number % 8)
    return ScriptedFeed(producer)


def through_the_client(node: RunningNode) -> Feed:
    write(node, numbered(300))
    write(node, numbered(100, version=1))
    return ClientFactory(url_of(node))()


@pytest.mark.parametrize("kind", ["scripted", "client"])
def test_news_comes_in_the_order_the_rules_say(kind: str, node: RunningNode) -> None:
    feed = scripted() if kind == "scripted" else through_the_client(node)
    spans = [Span(vb, START, high) for vb, high in feed.high_seqnos().items() if high]
    opened: set[VBucketId] = set()
    completed: dict[VBucketId, Seqno] = {}
    seen: dict[int, int] = {}
    finished: list[VBucketId] = []
    for news in feed.drain(spans):
        if isinstance(news, Opened):
            opened.add(news.vbucket)
        elif isinstance(news, Rows):
            for vb, seqno in zip(
                news.batch.column("vbucket").to_pylist(),
                news.batch.column("seqno").to_pylist(),
                strict=True,
            ):
                assert vb in opened, "a row before its stream was opened"
                assert seqno > seen.get(vb, 0), "a row out of order"
                seen[vb] = seqno
        elif isinstance(news, Completed):
            assert news.seqno > completed.get(news.vbucket, 0)
            completed[news.vbucket] = news.seqno
        elif isinstance(news, Finished):
            finished.append(news.vbucket)
            assert news.complete
        else:
            assert not isinstance(news, RolledBack)
    feed.close()
    assert sorted(finished) == sorted(span.vbucket for span in spans), "each once"
    assert completed == {span.vbucket: span.end_seqno for span in spans}
    assert seen == {int(vb): seqno for vb, seqno in completed.items()}, "nothing behind the last"
