"""The cluster map over HTTP, for clients that begin there instead of with GET_CLUSTER_CONFIG.

    GET  /pools/default                        the nodes
    GET  /pools/default/nodeServices           the nodes and their ports
    GET  /pools/default/b/B                    the map of bucket B
    GET  /pools/default/buckets/B              the same
    GET  /pools/default/bs/B                   the map, and each newer one, until the client goes
    GET  /pools/default/bucketsStreaming/B     the same

Rules. What is told here is what GET_CLUSTER_CONFIG tells. In a stream each map is one chunk that
ends with four newlines; a client that does not read gets the newest map when it does.

Imports: node.config.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.node.config import VERSION

if TYPE_CHECKING:
    from headrace.node.bucket_host import BucketHost
    from headrace.node.server import Node

STREAMS_MAX: Final = 1_000
"""Clients that may follow maps over HTTP at once."""
WRITE_SECONDS_MAX: Final = 60.0
"""How long a client may take to read a map."""
_PAGE: Final = re.compile(
    r"/pools/default(?:/(?P<nodes>nodeServices)"
    r"|/(?P<once>b|buckets)/(?P<bucket>[^/]+)"
    r"|/(?P<stream>bs|bucketsStreaming)/(?P<streamed>[^/]+))?"
)


@dataclass(frozen=True, slots=True)
class Page:
    """What is asked for: the nodes, or a bucket's map, once or as a stream."""

    bucket: str | None = None
    streams: bool = False
    services: bool = False


def find_page(path: str) -> Page | None:
    """The page a path asks for; None if it is none of these."""
    match = _PAGE.fullmatch(path)
    if match is None:
        return None
    return Page(
        bucket=match["bucket"] or match["streamed"],
        streams=match["stream"] is not None,
        services=match["nodes"] is not None,
    )


def nodes_page(node: Node, page: Page, address: str) -> bytes:
    """The nodes, for a client that connected to ``address``."""
    told = node.map_of(None, address)
    if page.services:
        return told
    nodes = [
        {
            "hostname": f"{entry['hostname']}:{entry['services']['mgmt']}",
            "ports": {"direct": entry["services"].get("kv", entry["services"].get("kvSSL"))},
            "clusterMembership": "active",
            "status": "healthy",
            "version": VERSION,
            "thisNode": bool(entry.get("thisNode")),
        }
        for entry in json.loads(told)["nodesExt"]
    ]
    return json.dumps(
        {
            "name": "default",
            "nodes": nodes,
            "buckets": {"uri": "/pools/default/buckets"},
            "nodeServicesUri": "/pools/default/nodeServices",
        }
    ).encode()


class MapStreams:
    """Clients that are told every map of a bucket."""

    def __init__(self, node: Node) -> None:
        """Start with none."""
        self._node = node
        self._waiting: dict[asyncio.Task[object], tuple[BucketHost, asyncio.Event]] = {}

    @property
    def is_full(self) -> bool:
        """Whether no more clients are taken."""
        return len(self._waiting) >= STREAMS_MAX

    def map_changed(self, host: BucketHost) -> None:
        """A bucket has a newer map."""
        for one, event in self._waiting.values():
            if one is host:
                event.set()

    def stop(self) -> None:
        """Let every client go."""
        for task in self._waiting:
            task.cancel()

    async def follow(self, writer: asyncio.StreamWriter, host: BucketHost, address: str) -> None:
        """Send a client each map of a bucket until it goes or the bucket does."""
        task, event = asyncio.current_task(), asyncio.Event()
        assert task is not None
        self._waiting[task] = host, event
        try:
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=utf-8\r\n"
                b"Transfer-Encoding: chunked\r\n\r\n"
            )
            while not host.closed:
                event.clear()
                told = self._node.map_of(host, address) + b"\n\n\n\n"
                writer.write(b"%x\r\n%b\r\n" % (len(told), told))
                async with asyncio.timeout(WRITE_SECONDS_MAX):
                    await writer.drain()
                await event.wait()
            writer.write(b"0\r\n\r\n")
        finally:
            del self._waiting[task]
