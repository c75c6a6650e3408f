"""NodeSource: a page's questions answered by a node in this process, on its own event loop.

Nothing is asked over the wire and nothing is locked for long: numbers are read where they are kept.

Imports: node, web.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.node.producer_statistics import STATE_NAMES, items_sent
from headrace.web.picture import NOBODY, ConnectionView, Picture, empty_columns
from headrace.web.source import Unknown

if TYPE_CHECKING:
    from headrace.node.bucket_host import BucketHost
    from headrace.node.connection import Connection
    from headrace.node.producer import Producer
    from headrace.node.server import Node
    from headrace.node.stream import Stream
    from headrace.web.picture import Columns, Json

STREAMS_TOLD_MAX: Final = 200
"""Streams of one connection, or of one vbucket, in one answer."""


class NodeSource:
    """A node, as a page sees it."""

    kind = "node"

    def __init__(self, node: Node) -> None:
        """``node`` has started."""
        self._node = node

    @property
    def title(self) -> str:
        """Where the node listens."""
        node = self._node
        port = node.ports.plain if node.ports.plain is not None else node.ports.tls
        return f"{node.config.host}:{port}"

    def buckets(self) -> list[str]:
        """The node's buckets."""
        return list(self._node.hosts)

    def _host(self, name: str) -> BucketHost:
        host = self._node.hosts.get(name)
        if host is None:
            known = ", ".join(self._node.hosts) or "none"
            raise Unknown(f"bucket {name!r} is unknown; there are: {known}")
        return host

    async def look(self, bucket: str) -> Picture:
        """The bucket now."""
        host = self._host(bucket)
        columns = empty_columns(host.bucket.settings.vbuckets)
        branches = [""] * host.bucket.settings.vbuckets
        items = _fill(columns, branches, host)
        views = [
            self._view(connection, producer, columns) for connection, producer in self._peers(host)
        ]
        return Picture(
            taken=self._node.monotonic(),
            time=self._node.clock(),
            columns=columns,
            branches=branches,
            connections=tuple(views),
            clients=sum(
                1
                for one in self._node.connections
                if one.session.producer is None and one.session.selected is host
            ),
            items=items,
            memory=host.bucket.memory_used,
            quota=host.bucket.settings.memory_quota,
            notes=() if host.bucket.durable else (MEMORY_NOTE,),
        )

    def _peers(self, host: BucketHost) -> list[tuple[Connection, Producer]]:
        found = [
            (connection, connection.session.producer)
            for connection in self._node.connections
            if connection.session.producer is not None and connection.session.selected is host
        ]
        return sorted(found, key=lambda pair: pair[0].session.number)

    def _view(self, connection: Connection, producer: Producer, columns: Columns) -> ConnectionView:
        """One connection; its streams' places go into the columns."""
        highs, lags, counts = columns["high"], columns["lag"], columns["streams"]
        total, backfilling, worst, worst_lag = 0, 0, NOBODY, -1
        for stream in producer.streams.values():
            number = stream.vbucket
            lag = max(0, highs[number] - stream.read_seqno)
            total += lag
            backfilling += stream.is_backfilling
            if lag > worst_lag:
                worst, worst_lag = number, lag
            lags[number] = max(lags[number], lag)
            counts[number] += 1
        session = connection.session
        condition, limit = self._condition(connection, producer, total, backfilling)
        return ConnectionView(
            key=str(session.number),
            name=session.stream_name.decode("utf-8", "backslashreplace"),
            peer=session.peer,
            streams=len(producer.streams),
            backfilling=backfilling,
            lag=total,
            worst_vbucket=worst if worst_lag > 0 else NOBODY,
            worst_lag=max(0, worst_lag),
            outstanding=producer.window.outstanding,
            window=producer.window.window,
            bytes_sent=producer.bytes_sent,
            items_sent=items_sent(producer),
            condition=condition,
            limit=limit,
        )

    def _condition(
        self, connection: Connection, producer: Producer, lag: int, backfilling: int
    ) -> tuple[str, int]:
        """A word for how it is doing, and the bytes per second a lever allows (0: all)."""
        faults = self._node.faults
        transport = None if faults is None else faults.transport_of(connection)
        if transport is not None and transport.is_paused:
            return "paused", 0
        if transport is not None and transport.rate:
            return "slowed", int(transport.rate)
        if producer.is_paused:
            return "full", 0
        if not producer.streams:
            return "idle", 0
        if backfilling:
            return "backfilling", 0
        return ("sending" if lag else "level"), 0

    async def vbucket(self, bucket: str, vbucket: int) -> Json:
        """All about one vbucket."""
        host = self._host(bucket)
        found = host.bucket.find(vbucket)
        if found is None:
            raise Unknown(f"vbucket {vbucket} of bucket {bucket} is not here")
        streams = [
            _stream(stream, found.high_seqno)
            | {
                "connection": str(connection.session.number),
                "name": connection.session.stream_name.decode("utf-8", "backslashreplace"),
            }
            for connection, producer in self._peers(host)
            for stream in producer.streams.values()
            if stream.vbucket == vbucket
        ]
        return {
            "vbucket": vbucket,
            "state": found.state.name.lower(),
            "high": found.high_seqno,
            "persisted": host.persisted_seqno(found) if host.bucket.durable else None,
            "purge": found.purge_seqno,
            "rewind": found.rewind_seqno,
            "items": found.item_count,
            "tombstones": found.tombstone_count,
            "log": [
                {"branch": f"{entry.uuid:016x}", "seqno": entry.seqno}
                for entry in found.failover_log
            ],
            "streams": streams[:STREAMS_TOLD_MAX],
            "stream_count": len(streams),
        }

    async def connection(self, bucket: str, key: str) -> Json:
        """The streams of one connection, furthest behind first."""
        host = self._host(bucket)
        for connection, producer in self._peers(host):
            if str(connection.session.number) == key:
                ranked = sorted(
                    (-max(0, _high(host, stream) - stream.read_seqno), stream.key, stream)
                    for stream in producer.streams.values()
                )
                told = [
                    _stream(stream, _high(host, stream))
                    for _, _, stream in ranked[:STREAMS_TOLD_MAX]
                ]
                return {"streams": told, "stream_count": len(ranked)}
        raise Unknown(f"connection {key} is gone")


MEMORY_NOTE: Final = "This bucket lives in memory: nothing of it is ever persisted."


def _fill(columns: Columns, branches: list[str], host: BucketHost) -> int:
    """Put the numbers of every vbucket into the columns; the number of living documents."""
    items = 0
    state, high, persisted = columns["state"], columns["high"], columns["persisted"]
    purge, began = columns["purge"], columns["began"]
    durable = host.bucket.durable
    for vbucket in host.bucket.vbuckets:
        at = vbucket.id
        newest = vbucket.failover_log.newest
        # VBucketState counts from 1 in the order of `picture.STATES`.
        state[at] = vbucket.state.value
        high[at] = vbucket.high_seqno
        persisted[at] = vbucket.persisted_seqno if durable else 0
        purge[at] = vbucket.purge_seqno
        branches[at] = f"{newest.uuid:016x}"
        began[at] = newest.seqno
        items += vbucket.item_count
    return items


def _high(host: BucketHost, stream: Stream) -> int:
    vbucket = host.bucket.find(stream.vbucket)
    return stream.read_seqno if vbucket is None else vbucket.high_seqno


def _stream(stream: Stream, high: int) -> Json:
    marker = stream.markers.open
    return {
        "vbucket": stream.vbucket,
        "state": STATE_NAMES[stream.state],
        "sent": stream.sent_seqno,
        "read": stream.read_seqno,
        "lag": max(0, high - stream.read_seqno),
        "start": int(stream.accepted.start),
        "items": stream.items_sent,
        "snapshot": list(marker) if marker is not None else None,
        "snapshot_end": stream.markers.sent_end,
        "branch": f"{stream.branch:016x}",
    }
