"""What `stats dcp` tells of a consuming connection."""

from __future__ import annotations

from headrace.node.replica_statistics import STATE_NAMES
from headrace.node.replica_stream import State
from tests.node.replica_kit import Consumer, Pair, replica_host
from tests.node.stream_kit import make_host, put


def test_a_connection_and_its_streams() -> None:
    active = make_host()
    put(active.bucket.vbucket(0), "a", "b", "c")
    pair = Pair(active, Consumer(replica_host()))
    pair.add(0)
    pair.settle()
    found = dict(pair.consumer.replica.statistics(1010.0))
    assert (found["type"], found["num_streams"], found["idle_seconds"]) == ("consumer", "1", "10")
    assert found["items_received"] == found["stream_0_items_received"] == "3"
    assert found["stream_0_state"] == "reading"
    assert found["stream_0_last_received_seqno"] == found["stream_0_cur_snapshot_end"] == "3"
    assert found["stream_0_cur_snapshot_type"] == "memory"
    assert int(found["unacked_bytes"]) > 0
    assert found["max_buffer_bytes"] == str(pair.consumer.replica.window.window)


def test_every_state_has_a_name_and_a_stream_without_a_marker_none() -> None:
    assert set(STATE_NAMES) == set(State)
    consumer = Consumer(replica_host())
    consumer.add(1)
    found = dict(consumer.replica.statistics(1000.0))
    assert (found["stream_1_state"], found["stream_1_cur_snapshot_type"]) == ("pending", "none")
