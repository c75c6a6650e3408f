"""What ``stats dcp`` tells of consuming connections: names and texts, as tools expect them.

Imports: node.replica_stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.node.replica_stream import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.node.replica import Replica
    from headrace.node.replica_stream import ReplicaStream

STATE_NAMES: Final = {
    State.WAITING: "pending",
    State.ASKED: "pending",
    State.ROLLING_BACK: "pending",
    State.OPEN: "reading",
    State.RECEIVING: "reading",
    State.TAKEN: "reading",
    State.CLOSED: "dead",
}


def replica_statistics(replica: Replica, now: float) -> Iterator[tuple[str, str]]:
    """Name and text of each number of a connection and of its streams."""
    window = replica.window
    yield "type", "consumer"
    yield "created", f"{replica.created_at:.0f}"
    yield "flags", str(replica.options.flags)
    yield "consumer_name", replica.options.consumer_name
    yield "items_received", str(replica.items_received)
    yield "total_bytes_received", str(replica.bytes_received)
    yield "total_backoffs", str(replica.backoffs)
    yield "last_receive_time", f"{replica.heard_at:.0f}"
    yield "idle_seconds", f"{max(0.0, now - replica.heard_at):.0f}"
    yield "flow_control", "enabled" if window.window else "disabled"
    yield "max_buffer_bytes", str(window.window)
    yield "unacked_bytes", str(window.held + window.freed)
    yield "total_acked_bytes", str(window.total_acknowledged)
    yield "last_buffer_ack_time", f"{replica.acknowledged_at or 0:.0f}"
    yield "num_streams", str(len(replica.streams))
    yield "pending_disconnect", "true" if replica.closed_reason is not None else "false"
    for stream in replica.streams.values():
        yield from stream_statistics(stream)


def stream_statistics(stream: ReplicaStream) -> Iterator[tuple[str, str]]:
    """Name and text of each number of one inbound stream."""
    vbucket, marker = stream.vbucket, stream.marker
    kind = "none"
    if marker is not None:
        kind = "disk" if stream.marker_from_disk else "memory"
    for name, value in (
        ("state", STATE_NAMES[stream.state]),
        ("flags", stream.flags),
        ("opaque", stream.opaque),
        ("start_seqno", stream.start_seqno),
        ("vb_uuid", vbucket.failover_log.newest.uuid),
        ("items_received", stream.items_received),
        ("last_received_seqno", vbucket.high_seqno),
        ("last_acked_prepare", stream.acknowledged_seqno),
        ("cur_snapshot_type", kind),
        ("cur_snapshot_start", marker.start if marker is not None else 0),
        ("cur_snapshot_end", marker.end if marker is not None else 0),
    ):
        yield f"stream_{vbucket.id}_{name}", str(value)
