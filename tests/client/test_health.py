"""Health: numbers per vbucket, and as metrics."""

from __future__ import annotations

from headrace.client.bucket import Bucket, connect
from headrace.client.health import METRICS, VBucketHealth
from headrace.client.writer import Document
from headrace.node.config import BucketConfig, NodeConfig
from headrace.store import BucketSettings
from tests.node.running import RunningNode, running


def connected(node: RunningNode) -> Bucket:
    return connect(f"couchbase://127.0.0.1:{node.port}/default")


def test_lag_falls_to_nothing_and_metrics_say_so() -> None:
    with (
        running(NodeConfig(buckets=(BucketConfig(settings=BucketSettings(vbuckets=4)),))) as node,
        connected(node) as bucket,
    ):
        with bucket.writer() as writer:
            for number in range(100):
                writer.put(Document(b"k%d" % number, b"1"))
        reader = bucket.changes(until="now")
        before = reader.health
        assert before.lag_items == 100
        assert before.links == 0
        assert {one.state for one in before.vbuckets} == {"waiting"}
        assert sum(batch.num_rows for batch in reader) == 100
        after = reader.health
        assert after.lag_items == 0
        assert after.items == 100
        assert after.size > 0
        for one in after.vbuckets:
            assert (one.state, one.lag_seconds, one.stuck_reason) == ("done", 0.0, "")
            assert one.backfill_progress == 1.0
            assert one.snapshot == "between snapshots"
        text = after.to_prometheus()
        assert "# TYPE headrace_consumer_lag_items gauge" in text
        assert 'headrace_consumer_stuck{vbucket="3"} 0' in text
        assert text.endswith("\n")


def test_every_metric_is_a_number_of_the_health() -> None:
    assert set(METRICS) <= set(VBucketHealth.__slots__)
