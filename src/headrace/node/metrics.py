"""Prometheus metrics: the text format, on a loopback port of its own.

The format is a few lines of text per metric, so it is written here rather than by a library that
keeps global state (decision 0008). One request is answered per connection; nothing but
``GET /metrics`` is.

Imports: wire.opcodes, node.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import ConfigError
from headrace.wire.frame import opcode_name
from headrace.wire.opcodes import Magic, VBucketState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.node.server import Node

REQUEST_SIZE_MAX: Final = 8 * 1024
REQUEST_SECONDS_MAX: Final = 5.0
HOST: Final = "127.0.0.1"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Sample(NamedTuple):
    """One number of a metric, told apart by its labels."""

    labels: dict[str, str]
    value: float


class Metric(NamedTuple):
    """A metric: its name, kind (counter or gauge), help and samples."""

    name: str
    kind: str
    help: str
    samples: list[Sample]


def render(metrics: Iterable[Metric]) -> str:
    """The metrics in the text format."""
    lines = []
    for metric in metrics:
        lines.append(f"# HELP {metric.name} {metric.help}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for sample in metric.samples:
            labels = ",".join(f'{name}="{_escaped(text)}"' for name, text in sample.labels.items())
            place = f"{{{labels}}}" if labels else ""
            value = sample.value
            lines.append(f"{metric.name}{place} {int(value) if value == int(value) else value}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def collect(node: Node) -> Iterator[Metric]:
    """Every metric of a node, now."""
    counters = node.counters
    for name, kind, text, value in (
        ("headrace_connections", "gauge", "Open connections.", len(node.connections)),
        ("headrace_connections_total", "counter", "Connections accepted.", counters.connections),
        ("headrace_received_bytes_total", "counter", "Bytes received.", counters.bytes_received),
        ("headrace_sent_bytes_total", "counter", "Bytes sent.", counters.bytes_sent),
        (
            "headrace_bulk_bytes_total",
            "counter",
            "Bytes of requests that a store answered in runs.",
            counters.bulk_bytes,
        ),
        ("headrace_failed_logins_total", "counter", "Logins refused.", counters.failed_logins),
        ("headrace_start_time_seconds", "gauge", "When the node started.", node.started_at),
    ):
        yield Metric(name, kind, text, [Sample({}, value)])
    yield Metric(
        "headrace_requests_total",
        "counter",
        "Requests answered, by opcode.",
        [
            Sample({"opcode": opcode_name(Magic.REQUEST, number)}, count)
            for number, count in enumerate(_requests(node))
            if count
        ],
    )
    yield from _of_buckets(node)


def _requests(node: Node) -> list[int]:
    """Requests by opcode: those answered one by one and those the stores served in bulk."""
    found = list(node.counters.requests)
    for host in node.hosts.values():
        found = [one + bulk for one, bulk in zip(found, host.bucket.bulk_counts, strict=False)]
    return found


def _of_buckets(node: Node) -> Iterator[Metric]:
    hosts = list(node.hosts.values())
    numbers: dict[str, list[Sample]] = {}
    for host in hosts:
        label = {"bucket": host.name}
        for name, value in host.bucket.statistics().items():
            numbers.setdefault(name, []).append(Sample(label, value))
    for name, samples in numbers.items():
        yield Metric(f"headrace_bucket_{name}", "gauge", f"Store: {name}.", samples)
    yield Metric(
        "headrace_bucket_streams",
        "gauge",
        "Change-stream connections.",
        [Sample({"bucket": host.name}, len(host.listeners)) for host in hosts],
    )
    yield Metric(
        "headrace_bucket_documents",
        "gauge",
        "Documents in active vbuckets.",
        [
            Sample(
                {"bucket": host.name},
                sum(
                    vbucket.item_count
                    for vbucket in host.bucket.vbuckets
                    if vbucket.state == VBucketState.ACTIVE
                ),
            )
            for host in hosts
        ],
    )


class MetricsServer:
    """The HTTP port of the metrics."""

    def __init__(self, node: Node) -> None:
        """Not listening yet."""
        self._node = node
        self._server: asyncio.Server | None = None

    async def start(self, port: int) -> int:
        """Listen on loopback; the port taken."""
        try:
            self._server = await asyncio.start_server(
                self._answer, HOST, port, limit=REQUEST_SIZE_MAX
            )
        except OSError as error:
            raise ConfigError(f"cannot listen on {HOST}:{port}: {error.strerror}") from error
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            try:
                async with asyncio.timeout(REQUEST_SECONDS_MAX):
                    head = await reader.readuntil(b"\r\n\r\n")
                status, body = self._page(head)
            except asyncio.LimitOverrunError:
                status, body = "431 Request Header Fields Too Large", ""
            content = body.encode()
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\n"
                f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode()
                + content
            )
            await writer.drain()
        writer.close()

    def _page(self, head: bytes) -> tuple[str, str]:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or words[0] != b"GET":
            return "405 Method Not Allowed", ""
        if words[1].partition(b"?")[0] != b"/metrics":
            return "404 Not Found", ""
        return "200 OK", render(collect(self._node))
