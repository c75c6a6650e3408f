"""Maps: what clients need in them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from headrace.node.bucket_host import BucketHost
from headrace.node.cluster_map import (
    GivenMap,
    Identity,
    MapVersion,
    Ports,
    bucket_map,
    find_self,
    node_map,
    own_nodes,
    read_given,
    told_map,
)
from headrace.node.config import BucketConfig, NodeConfig
from headrace.node.refusal import Refusal
from headrace.node.users import Role, User, Users
from headrace.store import Bucket, BucketSettings
from headrace.testing import running_node
from headrace.wire import admin, kv, messages
from headrace.wire.opcodes import Feature, Status, VBucketState
from tests.node.client import Client
from tests.node.conftest import PASSWORD
from tests.node.maps import given, hand_made
from tests.node.running import SMALL, RunningNode, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VERSION = MapVersion(epoch=7, revision=3)


@pytest.fixture
def host() -> Iterator[BucketHost]:
    """A bucket with three vbuckets, the second a replica."""
    config = BucketConfig(settings=BucketSettings(vbuckets=3))
    with Bucket.open(None, config.settings) as bucket:
        bucket.create_vbuckets(VBucketState.ACTIVE)
        made = BucketHost(config, bucket)
        made.set_state(1, VBucketState.REPLICA)
        yield made


def test_vbuckets_that_are_not_active_here_have_no_node(host: BucketHost) -> None:
    found = json.loads(bucket_map(host, Ports(plain=1, tls=None), VERSION, "127.0.0.1"))
    assert found["vBucketServerMap"]["vBucketMap"] == [[0], [-1], [0]]
    assert (found["revEpoch"], found["rev"]) == (7, 3)
    assert "ephemeral" in found["bucketCapabilities"]


def test_an_address_of_version_6_is_bracketed(host: BucketHost) -> None:
    found = json.loads(bucket_map(host, Ports(plain=5, tls=None), VERSION, "::1"))
    assert found["vBucketServerMap"]["serverList"] == ["[::1]:5"]


def test_ports_are_told_as_services() -> None:
    assert Ports(plain=1, tls=None).services() == {"mgmt": 8091, "kv": 1}
    assert Ports(plain=None, tls=2).services() == {"mgmt": 8091, "mgmtSSL": 8091, "kvSSL": 2}
    found = json.loads(node_map(own_nodes(Ports(plain=1, tls=2), "h"), VERSION))
    assert found["nodesExt"][0]["services"]["kvSSL"] == 2
    assert found["nodesExt"][0]["thisNode"] is True


def test_a_later_epoch_beats_a_higher_revision() -> None:
    assert MapVersion(epoch=8, revision=1) > VERSION


# -- a map that is given ---------------------------------------------------------------------------

TWO = hand_made([11210, 11211], [[0, 1], [1, -1], [-1]])
ME = Identity(name="127.0.0.1:11211", host="127.0.0.1", ports=Ports(plain=11211, tls=None))


def read(content: object, *, epoch: int = 1, revision: int = 1) -> GivenMap:
    value = content if isinstance(content, bytes) else json.dumps(content).encode()
    version = MapVersion(epoch=epoch, revision=revision)
    return read_given(value, version, bucket="default", vbuckets=3)


def test_a_given_map_is_told_with_the_clients_address_and_our_own_entry(host: BucketHost) -> None:
    given = read(TWO, epoch=2, revision=9)
    found = json.loads(told_map(given, host, ME, "127.0.0.1"))
    assert (found["revEpoch"], found["rev"], found["name"]) == (2, 9, "default")
    assert found["vBucketServerMap"]["serverList"] == ["127.0.0.1:11210", "127.0.0.1:11211"]
    assert found["vBucketServerMap"]["vBucketMap"] == [[0, 1], [1, -1], [-1]]
    assert [entry.get("thisNode") for entry in found["nodesExt"]] == [None, True]
    assert [entry["hostname"] for entry in found["nodesExt"]] == ["127.0.0.1"] * 2
    assert found["uuid"] == host.bucket.uuid
    assert "ephemeral" in found["bucketCapabilities"]


def test_what_a_given_map_says_of_the_bucket_is_kept(host: BucketHost) -> None:
    told = {**TWO, "bucketCapabilities": ["dcp"], "uuid": "one for all nodes", "extra": 1}
    found = json.loads(told_map(read(told), host, ME, "h"))
    assert found["bucketCapabilities"] == ["dcp"]
    assert (found["uuid"], found["extra"]) == ("one for all nodes", 1)


def test_a_map_for_an_address_of_version_6_is_bracketed_where_ports_follow(
    host: BucketHost,
) -> None:
    found = json.loads(told_map(read(TWO), host, ME, "::1"))
    assert found["vBucketServerMap"]["serverList"][0] == "[::1]:11210"
    assert found["nodesExt"][0]["hostname"] == "::1"


SAME_PORTS = [
    {"hostname": "10.0.0.1", "services": {"kv": 11210}, "name": "one"},
    {"hostname": "10.0.0.2", "services": {"kv": 11210}, "name": "two"},
]
SERVERS = ["10.0.0.1:11210", "10.0.0.2:11210"]


@pytest.mark.parametrize(
    ("name", "host_", "port", "address", "found"),
    [
        ("two", "0.0.0.0", 11210, "x", 1),  # noqa: S104 - compared, not listened on
        ("10.0.0.2:11210", "0.0.0.0", 11210, "x", 1),  # noqa: S104
        ("other", "10.0.0.1", 11210, "x", 0),
        ("other", "0.0.0.0", 11210, "10.0.0.2", 1),  # noqa: S104
        ("other", "0.0.0.0", 11210, "x", None),  # noqa: S104
        ("other", "10.0.0.1", 4, "10.0.0.1", None),
    ],
)
def test_a_node_finds_itself_by_name_by_ports_or_by_host(
    name: str, host_: str, port: int, address: str, found: int | None
) -> None:
    me = Identity(name=name, host=host_, ports=Ports(plain=port, tls=None))
    assert find_self([dict(entry) for entry in SAME_PORTS], SERVERS, me, address) == found


def test_a_node_with_tls_alone_finds_itself_by_that_port() -> None:
    entries: list[dict[str, object]] = [
        {"hostname": "a", "services": {"kv": 1, "kvSSL": 2}},
        {"hostname": "a", "services": {"kv": 3, "kvSSL": 4}},
    ]
    me = Identity(name="?", host="?", ports=Ports(plain=None, tls=4))
    assert find_self(entries, ["a:1", "a:3"], me, "x") == 1


def changed(**fields: object) -> dict[str, object]:
    return {**TWO, **fields}


def with_rows(*rows: object) -> dict[str, object]:
    server = TWO["vBucketServerMap"]
    assert isinstance(server, dict)
    return changed(vBucketServerMap={**server, "vBucketMap": list(rows)})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"junk", "JSON"),
        (b"[]", "object"),
        (b"[" * 100_000, "JSON"),
        (changed(name="other"), "'other'"),
        (changed(vBucketServerMap=None), "serverList"),
        (changed(nodesExt=None), "nodesExt"),
        (changed(nodesExt=[{"services": {"kv": 1}}]), "nodesExt"),
        (changed(nodesExt=[{"services": {}}, {"services": {}}]), "services"),
        (with_rows([0], [0]), "2 vbuckets, this bucket has 3"),
        (with_rows([0], [0], []), "row 2"),
        (with_rows([0], [0], [2]), "row 2"),
        (with_rows([0], [1, 1], [0]), "row 1"),
        (with_rows([0], [True], [0]), "row 1"),
        (with_rows([0], ["0"], [0]), "row 1"),
        (with_rows([0, -1, -1, -1, -1], [0], [0]), "row 0"),
    ],
    ids=lambda one: str(one)[:40],
)
def test_a_map_that_is_none_is_refused_with_a_sentence(content: object, said: str) -> None:
    with pytest.raises(Refusal) as refused:
        read(content)
    assert refused.value.status == Status.EINVAL
    assert said in refused.value.context


@pytest.mark.parametrize(("epoch", "revision"), [(0, 1), (1, 0), (2**63, 1), (1, 2**63)])
def test_an_age_that_is_none_is_refused(epoch: int, revision: int) -> None:
    with pytest.raises(Refusal):
        read(TWO, epoch=epoch, revision=revision)


def test_a_newer_map_is_taken_the_same_one_passes_and_an_older_one_is_refused(
    host: BucketHost,
) -> None:
    pushed: list[MapVersion] = []
    host.on_map_change = lambda one: pushed.append(one.given_map.version if one.given_map else NONE)
    host.take_map(read(TWO, epoch=1, revision=5))
    host.take_map(read(TWO, epoch=1, revision=5))
    host.take_map(read(TWO, epoch=2, revision=1))
    assert [str(version) for version in pushed] == ["1.5", "2.1"]
    for older in (read(TWO, epoch=1, revision=99), read(with_rows([1], [1], [1]), epoch=2)):
        with pytest.raises(Refusal) as refused:
            host.take_map(older)
        assert refused.value.status == Status.ERANGE
        assert "2.1" in refused.value.context
    host.set_state(0, VBucketState.DEAD)
    assert len(pushed) == 2, "a given map does not follow the node's own states"


NONE = MapVersion(epoch=0, revision=0)


def test_a_given_map_outlives_the_process(tmp_path: Path) -> None:
    config = BucketConfig(settings=BucketSettings(vbuckets=3))
    given = read(TWO, epoch=3, revision=4)
    for number in range(2):
        with Bucket.open(tmp_path / "bucket", config.settings) as bucket:
            made = BucketHost(config, bucket)
            assert made.given_map == (given if number else None)
            made.take_map(given)


# -- over a socket ---------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RunningNode]:
    """A node of this test's own."""
    config = NodeConfig(buckets=(SMALL,), data=tmp_path / "data", node_name="here")
    with running(config) as node:
        yield node


def four(node: RunningNode) -> dict[str, object]:
    """A map in which this node has two of four vbuckets."""
    return hand_made([1, node.port], [[0], [1], [0], [1]], names=("there", "here"))


def the_map(client: Client) -> dict[str, Any]:
    told = client.ask(admin.GetClusterConfig(), admin.GetClusterConfigReply).value
    content = json.loads(told)
    assert isinstance(content, dict)
    return content


def test_a_given_map_is_served_attached_and_pushed(own: RunningNode) -> None:
    with Client(own.port) as client, Client(own.port) as told, Client(own.port) as brief:
        told.hello(Feature.DUPLEX, Feature.CLUSTERMAP_CHANGE, Feature.JSON)
        brief.hello(Feature.DUPLEX, Feature.CLUSTERMAP_CHANGE_BRIEF)
        before = the_map(client)
        assert before["revEpoch"] == 0
        client.ask(given(four(own), epoch=1, revision=7), admin.SetClusterConfigReply)
        after = the_map(client)
        assert (after["revEpoch"], after["rev"]) == (1, 7)
        assert [entry.get("thisNode") for entry in after["nodesExt"]] == [None, True]
        for connection, has_value in ((told, True), (brief, False)):
            message = connection.receive()
            assert isinstance(message, messages.ClustermapChange)
            assert (message.epoch, message.revision, message.key) == (1, 7, b"default")
            assert bool(message.value) == has_value
        client.ask(admin.SetVBucket(state=VBucketState.DEAD), admin.SetVBucketReply)
        refusal = client.refusal(kv.Get(key=b"k"))
        assert refusal.status == Status.NOT_MY_VBUCKET
        assert json.loads(refusal.value) == after


def test_all_nodes_are_told_before_a_bucket_is_selected(own: RunningNode) -> None:
    with Client(own.port) as client:
        client.ask(given(four(own)), admin.SetClusterConfigReply)
        client.hello(Feature.SELECT_BUCKET)
        found = the_map(client)
        assert "vBucketServerMap" not in found
        assert [entry["name"] for entry in found["nodesExt"]] == ["there", "here"]
        assert found["nodesExt"][1]["thisNode"] is True


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (given(b"junk"), Status.EINVAL),
        (given(b"{}", bucket=b"none"), Status.KEY_ENOENT),
    ],
    ids=["junk", "bucket"],
)
def test_what_is_no_map_of_ours_is_refused(
    own: RunningNode, request_: admin.SetClusterConfig, status: Status
) -> None:
    with Client(own.port) as client:
        assert client.status(request_) == status


def test_an_older_map_is_refused_over_a_socket_and_the_newer_one_stays(own: RunningNode) -> None:
    with Client(own.port) as client:
        client.ask(given(four(own), revision=7), admin.SetClusterConfigReply)
        refusal = client.refusal(given(four(own), revision=6))
        assert refusal.status == Status.ERANGE
        assert "1.6 is older than the one held, 1.7" in refusal.value.decode()
        assert the_map(client)["rev"] == 7


def test_only_an_administrator_gives_maps() -> None:
    users = Users((User(name="writer", password=PASSWORD, role=Role.WRITE),))
    with running(NodeConfig(buckets=(SMALL,), users=users)) as node, Client(node.port) as client:
        client.login("writer", PASSWORD)
        assert client.status(given(four(node))) == Status.EACCESS


def test_a_map_is_on_disk_when_its_reply_is_sent(tmp_path: Path) -> None:
    with running_node(data=tmp_path / "data") as node:
        content = hand_made([node.port], [[0]] * 4)
        with Client(node.port) as client:
            client.ask(given(content, revision=3), admin.SetClusterConfigReply)
        node.crash()
        node.restart()
        with Client(node.port) as client:
            assert the_map(client)["rev"] == 3
