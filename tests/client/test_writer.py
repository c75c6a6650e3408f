"""DocumentWriter: many documents, each where it belongs."""

from __future__ import annotations

import json

import pytest

from headrace.client.bucket import Bucket, connect
from headrace.client.writer import BATCH_DOCUMENTS, Document
from headrace.errors import ConfigError
from headrace.node.config import BucketConfig, NodeConfig
from headrace.store import BucketSettings
from headrace.wire import admin
from tests.node.running import RunningNode, running

FOUR = (BucketConfig(settings=BucketSettings(vbuckets=4)),)


def connected(node: RunningNode) -> Bucket:
    return connect(f"couchbase://127.0.0.1:{node.port}/default")


def test_documents_deletions_and_collections_arrive_where_they_belong() -> None:
    with running(NodeConfig(buckets=FOUR)) as node, connected(node) as bucket:
        manifest = {
            "uid": "1",
            "scopes": [
                {
                    "name": "_default",
                    "uid": "0",
                    "collections": [
                        {"name": "_default", "uid": "0"},
                        {"name": "beer", "uid": "8"},
                    ],
                }
            ],
        }
        with bucket.kv(bucket.cluster_map.nodes[0]) as link:
            link.ask(
                admin.SetCollectionsManifest(value=json.dumps(manifest).encode()),
                admin.SetCollectionsManifestReply,
            )
        count = BATCH_DOCUMENTS + 10
        with bucket.writer() as writer:
            for number in range(count):
                writer.put(Document(b"k%d" % number, b'{"n":1}', is_json=True, flags=7))
            writer.put(Document(b"k0", None))
            writer.put(Document(b"absent", None))
            writer.put(Document(b"pils", b"1", collection_id=8, expiry=2_000_000_000))
        assert (writer.written, writer.missing) == (count + 3, 1)
        rows = {
            row["key"]: row
            for batch in bucket.changes(until="now", kinds=["mutation", "deletion"])
            for row in batch.to_pylist()
        }
        assert rows[b"k0"]["event"] == 2
        assert (rows[b"k1"]["flags"], rows[b"k1"]["datatype"]) == (7, 1)
        assert (rows[b"pils"]["collection_id"], rows[b"pils"]["expiry"]) == (8, 2_000_000_000)
        assert len(rows) == count + 1


def test_what_no_node_takes_is_refused_before_it_is_sent() -> None:
    with (
        running(NodeConfig(buckets=FOUR)) as node,
        connected(node) as bucket,
        bucket.writer() as writer,
    ):
        with pytest.raises(ConfigError, match=r"key of 0 bytes, allowed 1\.\.250"):
            writer.put(Document(b"", b""))
        with pytest.raises(ConfigError, match="limit"):
            writer.put(Document(b"k", bytes((20 << 20) + 1)))
