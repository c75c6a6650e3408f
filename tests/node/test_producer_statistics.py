"""The numbers tools read of a producer."""

from __future__ import annotations

from headrace.node.producer_statistics import aggregate_statistics
from headrace.wire.messages import BufferAck
from tests.node.stream_kit import Peer, make_host, put


def test_a_connection_tells_of_itself_and_its_streams() -> None:
    host = make_host()
    put(host.bucket.vbucket(1), "a", "b", "c")
    controls = {"connection_buffer_size": "100000", "enable_noop": "true"}
    peer = Peer(host, controls=controls, name=b"app:1")
    peer.stream(1)
    peer.drain()
    peer.tell(BufferAck(ack_bytes=44))
    told = dict(peer.producer.statistics(peer.now))
    assert told["type"] == "producer"
    assert told["items_sent"] == "3"
    assert told["max_buffer_bytes"] == "100000"
    assert told["total_acked_bytes"] == "44"
    assert int(told["unacked_bytes"]) == int(told["total_bytes_sent"]) - 44
    assert (told["noop_enabled"], told["flow_control"], told["paused"]) == (
        "true",
        "enabled",
        "false",
    )
    assert told["num_streams"] == "1"
    assert told["stream_1_opaque"] == str(0x1001)
    assert told["stream_1_state"] == "in-memory"
    assert told["stream_1_last_sent_seqno"] == "3"
    assert told["stream_1_last_sent_snap_end_seqno"] == "3"
    assert told["stream_1_cursor_registered"] == "true"
    assert told["stream_1_vb_uuid"] == str(peer.uuid(1))
    host.bucket.close()


def test_connections_are_summed_by_the_head_of_their_names() -> None:
    host = make_host()
    put(host.bucket.vbucket(0), "a")
    peers = [Peer(host, name=name) for name in (b"app:1", b"app:2", b"other")]
    for peer in peers:
        peer.stream(0)
        peer.drain()
    sums = dict(aggregate_statistics(peer.producer for peer in peers))
    assert (sums["app:count"], sums["app:items_sent"]) == ("2", "2")
    assert (sums["_unknown_:count"], sums[":total:items_sent"]) == ("1", "3")
    host.bucket.close()
