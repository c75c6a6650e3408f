"""The cluster map over HTTP: once, and for as long as a client stays."""

from __future__ import annotations

import http.client
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from headrace.node import management_maps
from headrace.node.config import NodeConfig
from headrace.node.management_maps import Page, find_page
from headrace.wire import admin
from tests.node.client import Client
from tests.node.maps import given, hand_made
from tests.node.running import SMALL, RunningNode, running

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def own() -> Iterator[RunningNode]:
    """An open node."""
    with running(NodeConfig(buckets=(SMALL,))) as node:
        yield node


def port_of(node: RunningNode) -> int:
    port = node.node.ports.management
    assert port is not None
    return port


def get(node: RunningNode, path: str) -> tuple[int, Any]:
    link = http.client.HTTPConnection("127.0.0.1", port_of(node), timeout=20)
    link.request("GET", path)
    reply = link.getresponse()
    told = json.loads(reply.read())
    link.close()
    return reply.status, told


def give(node: RunningNode, revision: int) -> None:
    content = hand_made([node.port, 1], [[0], [1], [0], [1]])
    with Client(node.port) as client:
        client.ask(given(content, revision=revision), admin.SetClusterConfigReply)


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("/pools/default", Page()),
        ("/pools/default/nodeServices", Page(services=True)),
        ("/pools/default/b/x", Page(bucket="x")),
        ("/pools/default/buckets/x", Page(bucket="x")),
        ("/pools/default/bs/x", Page(bucket="x", streams=True)),
        ("/pools/default/bucketsStreaming/x", Page(bucket="x", streams=True)),
        ("/pools/default/buckets/x/scopes", None),
        ("/pools/default/b/", None),
        ("/pools/defaults", None),
    ],
)
def test_a_path_names_a_page_or_none(path: str, page: Page | None) -> None:
    assert find_page(path) == page


@pytest.mark.parametrize("kind", ["b", "buckets"])
def test_the_map_is_the_one_clients_get_otherwise(own: RunningNode, kind: str) -> None:
    with Client(own.port) as client:
        for revision in (0, 1):
            if revision:
                give(own, revision)
            told = client.ask(admin.GetClusterConfig(), admin.GetClusterConfigReply).value
            assert get(own, f"/pools/default/{kind}/default") == (200, json.loads(told))
    assert get(own, f"/pools/default/{kind}/none")[0] == 404


def test_the_nodes_are_listed_with_their_ports(own: RunningNode) -> None:
    give(own, 1)
    status, told = get(own, "/pools/default/nodeServices")
    assert status == 200
    assert [entry["services"]["kv"] for entry in told["nodesExt"]] == [own.port, 1]
    status, told = get(own, "/pools/default")
    assert [entry["ports"]["direct"] for entry in told["nodes"]] == [own.port, 1]
    assert [entry["thisNode"] for entry in told["nodes"]] == [True, False]
    assert get(own, "/pools")[1]["pools"] == [{"name": "default", "uri": "/pools/default"}]


class Stream:
    """A client that follows the map of the bucket `default`."""

    def __init__(self, node: RunningNode) -> None:
        self.link = socket.create_connection(("127.0.0.1", port_of(node)), 20)
        self.link.sendall(b"GET /pools/default/bs/default HTTP/1.1\r\nHost: x\r\n\r\n")
        self.reply = http.client.HTTPResponse(self.link)
        self.reply.begin()

    def next_map(self) -> dict[str, Any]:
        data = b""
        while not data.endswith(b"\n\n\n\n"):
            part = self.reply.read1(1 << 16)
            assert part, "the stream ended"
            data += part
        told = json.loads(data)
        assert isinstance(told, dict)
        return told

    def close(self) -> None:
        self.reply.close()
        self.link.close()


def test_a_stream_tells_each_newer_map(own: RunningNode) -> None:
    stream = Stream(own)
    assert stream.next_map()["revEpoch"] == 0
    for revision in (1, 2):
        give(own, revision)
        told = stream.next_map()
        assert (told["revEpoch"], told["rev"]) == (1, revision)
    stream.close()


def test_a_stream_too_many_is_refused(own: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(management_maps, "STREAMS_MAX", 1)
    stream = Stream(own)
    stream.next_map()
    assert get(own, "/pools/default/bs/default")[0] == 503
    stream.close()


def test_a_node_stops_under_a_stream() -> None:
    with running(NodeConfig(buckets=(SMALL,))) as node:
        stream = Stream(node)
        stream.next_map()
    assert stream.link.recv(1 << 16) == b""
    stream.close()
