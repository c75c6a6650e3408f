"""What ``stats dcp`` and ``stats dcpagg`` tell of producers: names and texts, as tools expect them.

Imports: node.stream_states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.node.replica import Replica
from headrace.node.stream_states import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.node.producer import Producer
    from headrace.node.stream import Stream

STATE_NAMES: Final = {
    State.PENDING: "pending",
    State.BACKFILLING: "backfilling",
    State.IN_MEMORY: "in-memory",
    State.TAKEOVER_SEND: "takeover-send",
    State.TAKEOVER_WAIT: "takeover-wait",
    State.DEAD: "dead",
}
NO_NAME: Final = "_unknown_"


def _truth(value: bool) -> str:
    return "true" if value else "false"


def items_sent(producer: Producer) -> int:
    """Items this connection sent, on streams that live and that ended."""
    living = sum(stream.items_sent for stream in producer.streams.values())
    return producer.items_sent_by_ended + living


def items_remaining(producer: Producer) -> int:
    """Items in memory that streams of this connection have still to look at."""
    return sum(stream.items_remaining for stream in producer.streams.values())


def producer_statistics(producer: Producer, now: float) -> Iterator[tuple[str, str]]:
    """Name and text of each number of a connection and of its streams."""
    controls, window = producer.controls, producer.window
    yield "type", "producer"
    yield "created", f"{producer.created_at:.0f}"
    yield "flags", str(producer.options.flags)
    yield "items_sent", str(items_sent(producer))
    yield "items_remaining", str(items_remaining(producer))
    yield "total_bytes_sent", str(producer.bytes_sent)
    yield "last_sent_time", f"{producer.sent_at or 0:.0f}"
    yield "last_receive_time", f"{producer.heard_at:.0f}"
    yield "idle_seconds", f"{max(0.0, now - producer.heard_at):.0f}"
    yield "noop_enabled", _truth(controls.noop)
    yield "noop_tx_interval", f"{controls.noop_interval_seconds:g}s"
    yield "noop_wait", _truth(producer.noop is not None and producer.noop.waiting is not None)
    yield "flow_control", "enabled" if window.window else "disabled"
    yield "max_buffer_bytes", str(window.window)
    yield "unacked_bytes", str(window.outstanding)
    yield "total_acked_bytes", str(window.total_acknowledged)
    yield "paused", _truth(producer.is_paused)
    yield "paused_current_reason", "BufferLogFull" if producer.is_paused else "ReadyListEmpty"
    yield "priority", controls.priority.value
    yield "backfill_order", controls.backfill_order.value
    yield "backfill_num_active", str(producer.schedule.backfills)
    yield "cursor_dropping", _truth(controls.cursor_dropping)
    yield "send_stream_end_on_client_close_stream", _truth(controls.end_on_close)
    yield "enable_expiry_opcode", _truth(controls.expiry_opcode)
    yield "synchronous_replication", _truth(controls.sync_replication)
    yield "num_streams", str(len(producer.streams))
    yield "num_dead_streams", "0"
    yield "pending_disconnect", _truth(producer.closed_reason is not None)
    for stream in producer.streams.values():
        yield from stream_statistics(stream)


def stream_statistics(stream: Stream) -> Iterator[tuple[str, str]]:
    """Name and text of each number of one stream."""
    accepted, stream_id = stream.accepted, stream.filter.stream_id
    prefix = f"stream_{stream.vbucket}"
    if stream_id is not None:
        prefix += f"_sid{stream_id}"
    for name, value in (
        ("state", STATE_NAMES[stream.state]),
        ("flags", int(stream.flags)),
        ("opaque", stream.shape.opaque),
        ("start_seqno", accepted.start),
        ("end_seqno", stream.end),
        ("vb_uuid", stream.branch),
        ("snap_start_seqno", accepted.snapshot.start),
        ("snap_end_seqno", accepted.snapshot.end),
        ("last_sent_seqno", stream.sent_seqno),
        ("last_read_seqno", stream.read_seqno),
        ("last_sent_snap_end_seqno", stream.markers.sent_end),
        ("backfill_disk_items", stream.backfill_items),
        ("backfill_mem_items", 0),
        ("backfill_sent", stream.backfill_items),
        ("memory_phase", stream.items_sent - stream.backfill_items),
        ("cursor_registered", _truth(stream.has_cursor)),
        ("items_ready", _truth(stream.is_queued)),
    ):
        yield f"{prefix}_{name}", str(value)
    takeover = stream.takeover
    if takeover is not None:
        yield f"{prefix}_takeover_since", f"{takeover.since or 0:.0f}"
        yield f"{prefix}_takeover_state", takeover.asks.name.lower()
        yield f"{prefix}_snapshot_marker_acks_outstanding", str(takeover.unacknowledged)


def aggregate_statistics(
    ends: Iterable[Producer | Replica], separator: str = ":"
) -> Iterator[tuple[str, str]]:
    """Sums of connections whose names agree up to the separator, and of all under ``_total``."""
    sums: dict[str, dict[str, int]] = {}
    for end in ends:
        head, found, _ = end.options.name.partition(separator)
        for group in (head if found else NO_NAME, f"{separator}total"):
            row = sums.setdefault(group, dict.fromkeys(AGGREGATED, 0))
            for name, value in zip(AGGREGATED, _numbers(end), strict=True):
                row[name] += value
    for group, row in sums.items():
        for name, value in row.items():
            yield f"{group}:{name}", str(value)


AGGREGATED: Final = (
    "count",
    "producer_count",
    "consumer_count",
    "items_sent",
    "items_remaining",
    "total_bytes",
    "unacked_bytes",
    "backoff",
)


def _numbers(end: Producer | Replica) -> tuple[int, ...]:
    if isinstance(end, Replica):
        window = end.window
        return (1, 0, 1, 0, 0, end.bytes_received, window.held + window.freed, end.backoffs)
    return (
        1,
        1,
        0,
        items_sent(end),
        items_remaining(end),
        end.bytes_sent,
        end.window.outstanding,
        0,
    )
