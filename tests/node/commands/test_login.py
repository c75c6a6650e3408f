"""HELLO, SASL, SELECT_BUCKET, maps: what a client learns before it works."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from headrace.node.config import VERSION, BucketConfig, NodeConfig
from headrace.node.users import Role, User, Users
from headrace.protocol.scram import HASHES, PLAIN
from headrace.store import BucketSettings
from headrace.wire import admin, kv
from headrace.wire.opcodes import Feature, Status
from tests.node.client import Client
from tests.node.conftest import PASSWORD
from tests.node.running import RunningNode, running

if TYPE_CHECKING:
    from collections.abc import Iterator

ONE = BucketSettings(vbuckets=1)


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningNode]:
    """A node with three users and two buckets."""
    users = Users(
        (
            User(name="admin", password=PASSWORD, role=Role.ADMIN),
            User(name="reader", password=PASSWORD, role=Role.READ),
            User(name="writer", password=PASSWORD, buckets=frozenset({"orders"})),
        )
    )
    buckets = (BucketConfig(settings=ONE), BucketConfig(name="orders", settings=ONE))
    with running(NodeConfig(buckets=buckets, users=users)) as node:
        yield node


@pytest.fixture
def stranger(guarded: RunningNode) -> Iterator[Client]:
    """A connection that has not logged in."""
    with Client(guarded.port) as client:
        yield client


def test_hello_grants_what_is_there_in_the_order_asked_and_once(client: Client) -> None:
    asked = (Feature.JSON, Feature.UNORDERED, Feature.JSON, Feature.TRACING, Feature.XERROR, 999)
    assert client.hello(*asked) == (Feature.JSON, Feature.XERROR)


def test_each_hello_starts_over(client: Client) -> None:
    client.hello(Feature.MUTATION_SEQNO)
    assert client.set(b"over", b"1").seqno is not None
    client.hello(Feature.JSON)
    assert client.set(b"over", b"1").seqno is None


@pytest.mark.parametrize(
    "features",
    [
        (Feature.TCP_NODELAY, Feature.TCP_DELAY),
        (Feature.CLUSTERMAP_CHANGE,),
        (Feature.VATTR,),
    ],
)
def test_a_hello_that_contradicts_itself_is_refused(
    client: Client, features: tuple[int, ...]
) -> None:
    assert client.status(admin.Hello(features=features)) == Status.EINVAL


@pytest.mark.parametrize("mechanism", [*HASHES, PLAIN])
def test_every_mechanism_lets_the_right_password_in(guarded: RunningNode, mechanism: str) -> None:
    with Client(guarded.port) as client:
        assert client.login("admin", PASSWORD, mechanism) == Status.SUCCESS
        assert client.status(kv.Set(key=b"k", value=b"v")) == Status.SUCCESS


@pytest.mark.parametrize("mechanism", [*HASHES, PLAIN])
@pytest.mark.parametrize("user", ["admin", "nobody"])
def test_a_wrong_user_and_a_wrong_password_look_the_same(
    guarded: RunningNode, mechanism: str, user: str
) -> None:
    with Client(guarded.port) as client:
        assert client.login(user, "wrong", mechanism) == Status.AUTH_ERROR
        assert client.status(kv.Get(key=b"k")) == Status.EACCESS


def test_nothing_works_before_the_login_but_what_must(stranger: Client) -> None:
    assert stranger.hello(Feature.JSON) == (Feature.JSON,)
    assert stranger.status(admin.GetErrorMap(version=1)) == Status.SUCCESS
    assert stranger.status(admin.KvNoop()) == Status.SUCCESS
    for request in (
        kv.Get(key=b"k"),
        kv.Set(key=b"k", value=b"v"),
        admin.SelectBucket(key=b"default"),
        admin.GetClusterConfig(),
        admin.Stat(),
        admin.ListBuckets(),
        admin.Verbosity(level=0),
    ):
        assert stranger.status(request) == Status.EACCESS


def test_roles_bound_what_a_user_may_do(guarded: RunningNode) -> None:
    with Client(guarded.port) as client:
        client.login("reader", PASSWORD)
        assert client.status(kv.Get(key=b"no")) == Status.KEY_ENOENT
        assert client.status(kv.Set(key=b"k", value=b"v")) == Status.EACCESS
        assert client.status(admin.SetVBucket(state=2)) == Status.EACCESS


def test_a_user_uses_only_its_own_buckets(guarded: RunningNode) -> None:
    with Client(guarded.port) as client:
        client.login("writer", PASSWORD)
        assert client.status(kv.Get(key=b"k")) == Status.NO_BUCKET
        assert client.status(admin.SelectBucket(key=b"default")) == Status.EACCESS
        assert client.status(admin.SelectBucket(key=b"orders")) == Status.SUCCESS
        assert client.status(kv.Set(key=b"k", value=b"v")) == Status.SUCCESS
        listed = client.ask(admin.ListBuckets(), admin.ListBucketsReply)
        assert listed.value == b"orders"


def test_buckets_do_not_see_each_other(guarded: RunningNode) -> None:
    with Client(guarded.port) as client:
        client.login("admin", PASSWORD)
        client.set(b"only here", b"v")
        client.ask(admin.SelectBucket(key=b"orders"), admin.SelectBucketReply)
        assert client.status(kv.Get(key=b"only here")) == Status.KEY_ENOENT
        assert client.status(admin.SelectBucket(key=b"none")) == Status.KEY_ENOENT


def test_ten_failed_logins_close_the_connection(stranger: Client) -> None:
    for _ in range(10):
        assert stranger.login("admin", "wrong", PLAIN) == Status.AUTH_ERROR
    assert stranger.is_closed()


def test_a_step_without_a_beginning_is_refused(stranger: Client) -> None:
    assert stranger.status(admin.SaslStep(key=b"SCRAM-SHA1", value=b"x")) == Status.EINVAL


@pytest.mark.parametrize("payload", [b"", b"n,,n=a", b"\xff", b"y,,n=a,r=b", b"a" * 10_000])
def test_a_login_that_makes_no_sense_fails_like_any_other(stranger: Client, payload: bytes) -> None:
    request = admin.SaslAuth(key=b"SCRAM-SHA256", value=payload)
    assert stranger.status(request) == Status.AUTH_ERROR


def test_a_huge_body_before_the_login_closes_the_connection(stranger: Client) -> None:
    header = bytes.fromhex("80010001080000000100000000000000") + bytes(8)
    stranger.send_bytes(header[:8] + (2 * 1024 * 1024).to_bytes(4, "big") + header[12:])
    assert stranger.is_closed()


def test_an_open_node_offers_a_login_too(client: Client) -> None:
    offered = client.ask(admin.SaslListMechs(), admin.SaslListMechsReply).value.decode()
    assert offered.split() == [*HASHES, PLAIN]
    assert client.login("Administrator", PASSWORD) == Status.SUCCESS
    assert client.status(kv.Set(key=b"open", value=b"v")) == Status.SUCCESS


def test_the_map_names_the_port_and_every_vbucket(client: Client, node: RunningNode) -> None:
    client.hello(Feature.JSON)
    reply = client.ask(admin.GetClusterConfig(), admin.GetClusterConfigReply)
    found = json.loads(reply.value)
    server = found["vBucketServerMap"]
    assert server["serverList"] == [f"127.0.0.1:{node.port}"]
    assert server["vBucketMap"] == [[0]] * 4
    assert found["nodesExt"][0]["services"]["kv"] == node.port
    assert "mgmt" in found["nodesExt"][0]["services"]


def test_the_map_is_not_sent_to_who_has_it(client: Client) -> None:
    value = client.ask(admin.GetClusterConfig(), admin.GetClusterConfigReply).value
    found = json.loads(value)
    known = admin.GetClusterConfig(known_epoch=found["revEpoch"], known_revision=found["rev"])
    assert client.ask(known, admin.GetClusterConfigReply).value == b""
    older = admin.GetClusterConfig(known_epoch=0, known_revision=found["rev"] - 1)
    assert client.ask(older, admin.GetClusterConfigReply).value == value


def test_a_client_that_will_select_a_bucket_is_sent_the_map_of_the_node(client: Client) -> None:
    client.hello(Feature.SELECT_BUCKET)
    before = json.loads(client.ask(admin.GetClusterConfig(), admin.GetClusterConfigReply).value)
    assert "vBucketServerMap" not in before
    assert before["nodesExt"]
    client.ask(admin.SelectBucket(key=b"default"), admin.SelectBucketReply)
    after = json.loads(client.ask(admin.GetClusterConfig(), admin.GetClusterConfigReply).value)
    assert after["name"] == "default"


def test_version_and_quit(client: Client) -> None:
    assert client.ask(admin.Version(), admin.VersionReply).value == VERSION.encode()
    client.ask(admin.Quit(), admin.QuitReply)
    assert client.is_closed()


def test_a_quiet_quit_closes_without_a_word(client: Client) -> None:
    client.send(admin.Quit(quiet=True))
    assert client.is_closed()


def test_the_error_map_has_the_version_asked_for_or_the_newest(client: Client) -> None:
    for asked, version in ((1, 1), (2, 2), (9, 2)):
        reply = client.ask(admin.GetErrorMap(version=asked), admin.GetErrorMapReply)
        assert json.loads(reply.value)["version"] == version
    assert client.status(admin.GetErrorMap(version=0)) == Status.EINVAL
