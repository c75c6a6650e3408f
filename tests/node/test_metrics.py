"""The metrics page: the text format, and nothing but it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from headrace.node.config import NodeConfig
from headrace.node.metrics import Metric, Sample, render
from tests.node.client import Client
from tests.node.running import SMALL, RunningNode, running

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def measured() -> Iterator[RunningNode]:
    """A node with a metrics port."""
    with running(NodeConfig(buckets=(SMALL,), metrics_port=0)) as node:
        yield node


def fetch(node: RunningNode, request: bytes) -> tuple[str, str]:
    assert node.node.metrics_port is not None
    with socket.create_connection(("127.0.0.1", node.node.metrics_port), 10) as link:
        link.sendall(request)
        data = b""
        while chunk := link.recv(65536):
            data += chunk
    head, _, body = data.decode().partition("\r\n\r\n")
    return head.split("\r\n")[0], body


def test_the_page_counts_what_happened(measured: RunningNode) -> None:
    with Client(measured.port) as client:
        client.set(b"k", b"v")
        client.stats()
        status, body = fetch(measured, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert status == "HTTP/1.1 200 OK"
    lines = body.splitlines()
    assert "headrace_connections 1" in lines
    assert 'headrace_bucket_documents{bucket="default"} 1' in lines
    assert 'headrace_requests_total{opcode="STAT"} 1' in lines
    names = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    assert len(names) == sum(line.startswith("# TYPE") for line in lines), "each metric once"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"junk\r\n\r\n", "405"),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", "431"),
    ],
)
def test_anything_else_is_refused(measured: RunningNode, request_: bytes, status: str) -> None:
    try:
        found, _ = fetch(measured, request_)
    except ConnectionResetError:
        # The node answered and closed while we were still sending.
        assert status == "431"
    else:
        assert found.split()[1] == status


def test_labels_are_escaped() -> None:
    metric = Metric("m", "gauge", "Help.", [Sample({"a": 'q"\\\n'}, 1.5)])
    assert render([metric]) == '# HELP m Help.\n# TYPE m gauge\nm{a="q\\"\\\\\\n"} 1.5\n'
