"""What a replica is given, and that the node's own bucket gives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.errors import StoreError
from headrace.node.bucket_host import BucketHost
from headrace.node.config import BucketConfig
from headrace.node.replica_context import ReplicaSettings
from headrace.store import Bucket, BucketSettings
from headrace.wire.opcodes import VBucketState
from tests.node.replica_kit import Consumer, Pair, told_to_go_back
from tests.node.stream_kit import put

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.node.replica_context import Host


def test_work_is_done_at_once_unless_the_node_says_how() -> None:
    done: list[object] = []
    ReplicaSettings().off_loop(lambda: 7, done.append)
    assert done == [7]


def test_a_rollback_that_comes_after_its_connection_leaves_the_next_stream_alone() -> None:
    waiting: list[Callable[[], object]] = []
    lost = told_to_go_back(ReplicaSettings(off_loop=lambda work, _: waiting.append(work)))
    lost.close()
    again = Pair(lost.active, Consumer(lost.consumer.host))
    again.add()
    source, copy = again.active.bucket.vbucket(0), again.consumer.host.bucket.vbucket(0)
    put(source, "c", "d")
    again.settle()
    assert copy.high_seqno == source.high_seqno == 3
    (work,) = waiting
    with pytest.raises(StoreError, match="no longer wanted"):
        work()
    put(source, "e")
    again.settle()
    assert copy.high_seqno == source.high_seqno == 4


def test_the_nodes_bucket_is_a_host() -> None:
    config = BucketConfig(settings=BucketSettings(vbuckets=1))
    with Bucket.open(None, config.settings) as bucket:
        bucket.create_vbuckets(VBucketState.REPLICA)
        host: Host = BucketHost(config, bucket)
        assert host.inbound == {}
        log = bucket.vbucket(0).failover_log
        taken = host.set_state(0, VBucketState.ACTIVE, takeover=True)
        assert (taken.state, taken.failover_log) == (VBucketState.ACTIVE, log)
