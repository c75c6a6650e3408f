"""Cluster maps: addresses for us, whatever form they come in."""

from __future__ import annotations

import json

import pytest

from headrace.client.address import NodeAddress
from headrace.client.topology import NOBODY, ClusterMap, read_map
from headrace.errors import RemoteProtocolError

HERE = NodeAddress("10.0.0.1", 11210)
MAP: dict[str, object] = {
    "rev": 7,
    "revEpoch": 2,
    "name": "default",
    "uuid": "abc",
    "bucketCapabilities": ["dcp", "collections"],
    "vBucketServerMap": {
        "serverList": ["$HOST:11210", "10.0.0.2:11210"],
        "vBucketMap": [[0, 1], [1, 0], [-1, 0]],
    },
    "nodesExt": [
        {"services": {"kv": 11210, "kvSSL": 11207}, "thisNode": True},
        {
            "services": {"kv": 11999, "kvSSL": 11998},
            "hostname": "10.0.0.2",
            "alternateAddresses": {"external": {"hostname": "out.example", "ports": {"kv": 31210}}},
        },
    ],
}


def text(**changes: object) -> bytes:
    return json.dumps(MAP | changes).encode()


def test_a_map_tells_where_every_vbucket_is() -> None:
    found = read_map(text(), connected=HERE)
    assert found.nodes == (HERE, NodeAddress("10.0.0.2", 11999))
    assert [found.node_of(v) for v in range(4)] == [HERE, found.nodes[1], None, None]
    assert found.active == (0, 1, NOBODY)
    assert found.vbuckets_of(HERE) == (0,)
    assert (found.age, found.uuid, found.vbuckets) == ((2, 7), "abc", 3)
    assert not found.is_memory_only


def test_tls_takes_the_ports_of_the_extended_nodes() -> None:
    found = read_map(text(), connected=HERE, tls=True)
    assert [node.port for node in found.nodes] == [11207, 11998]


def test_external_addresses_are_taken_when_asked_for_or_when_we_came_by_one() -> None:
    outside = [
        {"services": {"kv": 1}, "alternateAddresses": {"external": {"hostname": "out.one"}}},
        {"services": {"kv": 1}, "alternateAddresses": {"external": {"hostname": "out.two"}}},
    ]
    by_name = read_map(text(nodesExt=outside), connected=NodeAddress("out.two", 1))
    assert [node.host for node in by_name.nodes] == ["out.one", "out.two"]
    asked = read_map(text(nodesExt=outside), connected=HERE, network="external")
    assert asked.nodes == by_name.nodes
    refused = read_map(
        text(nodesExt=outside), connected=NodeAddress("out.two", 1), network="default"
    )
    assert refused.nodes[1].host == "10.0.0.2"


def test_memory_only_buckets_say_so_in_one_of_two_ways() -> None:
    assert read_map(text(bucketType="ephemeral"), connected=HERE).is_memory_only
    assert read_map(text(bucketCapabilities=["ephemeral"]), connected=HERE).is_memory_only


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "no JSON"),
        (b"[]", "is a list"),
        (b"{}", "without vBucketServerMap"),
        (text(vBucketServerMap={"serverList": [], "vBucketMap": []}), "of 0 vbuckets"),
        (text(vBucketServerMap={"serverList": ["a:1"], "vBucketMap": [[1]]}), r"row \[1\] for 1"),
        (text(vBucketServerMap={"serverList": 1, "vBucketMap": []}), "serverList is no list"),
        (text(rev="x"), "rev is 'x'"),
        (
            text(nodesExt=[], vBucketServerMap={"serverList": ["a"], "vBucketMap": [[0]]}),
            "host:port",
        ),
    ],
)
def test_a_map_that_cannot_be_read_is_an_error_that_says_why(data: bytes, part: str) -> None:
    with pytest.raises(RemoteProtocolError, match=part):
        read_map(data, connected=HERE)


def test_a_map_without_a_tls_port_is_refused_inside_tls() -> None:
    nodes = [{"services": {"kv": 1}}, {"services": {"kv": 1}}]
    with pytest.raises(RemoteProtocolError, match="without a TLS port"):
        read_map(text(nodesExt=nodes), connected=HERE, tls=True)


def test_a_server_without_a_map_has_every_vbucket_it_lists() -> None:
    found = ClusterMap.of_one(HERE, [0, 2])
    assert found.vbuckets == 3
    assert [found.node_of(v) for v in range(3)] == [HERE, None, HERE]
