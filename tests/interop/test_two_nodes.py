"""Two nodes behind one map: the official SDK and our own client follow it without a restart."""

from __future__ import annotations

import datetime
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from headrace.client.bucket import connect
from headrace.client.writer import Document
from headrace.node.config import BucketConfig, NodeConfig
from headrace.node.users import Role, User, Users
from headrace.store import BucketSettings
from headrace.wire import admin
from headrace.wire.opcodes import Datatype, Feature, VBucketState
from headrace.wire.values import vbucket_of
from tests.node.client import Client
from tests.node.forwarder import Forwarder
from tests.node.maps import Manager, given, hand_made
from tests.node.running import RunningNode, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.interop

VBUCKETS = 64
USER = "Administrator"
PASSWORD = "of this test"  # noqa: S105 - of nodes that live for one test


@pytest.fixture
def nodes() -> Iterator[list[RunningNode]]:
    """Two open nodes that know nothing of each other."""
    login = Users((User(name=USER, password=PASSWORD, role=Role.ADMIN),))
    bucket = BucketConfig(settings=BucketSettings(vbuckets=VBUCKETS))
    with ExitStack() as stack:
        yield [
            stack.enter_context(running(NodeConfig(buckets=(bucket,), login=login)))
            for _ in range(2)
        ]


@pytest.fixture
def manager(nodes: list[RunningNode]) -> Manager:
    """Half of the vbuckets here, half of them there."""
    made = Manager(nodes, VBUCKETS)
    made.split()
    return made


@contextmanager
def opened(port: int) -> Iterator[Any]:
    """The default collection as the official SDK opens it."""
    pytest.importorskip("couchbase", reason="PyPI's couchbase is not installed")
    from couchbase.auth import PasswordAuthenticator
    from couchbase.cluster import Cluster
    from couchbase.options import ClusterOptions

    options = ClusterOptions(PasswordAuthenticator(USER, PASSWORD))
    cluster = Cluster(f"couchbase://127.0.0.1:{port}", options)
    cluster.wait_until_ready(datetime.timedelta(seconds=20))
    yield cluster.bucket("default").default_collection()
    cluster.close()


@pytest.fixture
def collection(manager: Manager) -> Iterator[Any]:
    """The SDK, by way of the first node."""
    with opened(manager.nodes[0].port) as found:
        yield found


def names(count: int, prefix: str = "key") -> list[str]:
    return [f"{prefix}-{number}" for number in range(count)]


def items_of(manager: Manager, node: int) -> int:
    """Documents a node holds."""
    found = manager.nodes[node].call(
        lambda: sum(
            one.item_count for one in manager.nodes[node].node.hosts["default"].bucket.vbuckets
        )
    )
    assert isinstance(found, int)
    return found


def test_the_sdk_writes_and_reads_on_both_nodes(manager: Manager, collection: Any) -> None:  # noqa: ANN401
    for name in names(200):
        collection.upsert(name, {"of": name})
    for name in names(200):
        assert collection.get(name).content_as[dict] == {"of": name}
    assert items_of(manager, 0) + items_of(manager, 1) == 200
    assert min(items_of(manager, 0), items_of(manager, 1)) > 50


def test_the_sdk_follows_a_vbucket_that_changes_its_node(
    manager: Manager,
    collection: Any,  # noqa: ANN401
) -> None:
    name = names(1)[0]
    vbucket = vbucket_of(name.encode(), VBUCKETS)
    first = manager.owner[vbucket]
    collection.upsert(name, {"turn": 0})
    for turn in range(1, 5):
        manager.switch(vbucket, 1 - manager.owner[vbucket])
        # Nothing was copied: the document is written anew, wherever its vbucket is now.
        collection.upsert(name, {"turn": turn})
        assert collection.get(name).content_as[dict] == {"turn": turn}
    assert manager.owner[vbucket] == first
    others = names(100, "other")
    for other in others:
        collection.upsert(other, {})
    assert all(collection.exists(other).exists for other in others)


def test_our_client_follows_it_too(manager: Manager) -> None:
    with connect(f"couchbase://127.0.0.1:{manager.nodes[0].port}/default") as bucket:
        with bucket.writer() as writer:
            for name in names(200):
                writer.put(Document(key=name.encode(), value=b"{}"))
            writer.flush()
            assert min(items_of(manager, 0), items_of(manager, 1)) > 50
            seen = {
                row["key"] for batch in bucket.changes(until="now") for row in batch.to_pylist()
            }
            assert len(seen) == 200
            moved = vbucket_of(b"key-0", VBUCKETS)
            manager.switch(moved, 1 - manager.owner[moved])
            writer.put(Document(key=b"key-0", value=b"[]"))
            writer.flush()
        assert bucket.cluster_map.revision == manager.revision
        node = manager.nodes[manager.owner[moved]]
        assert bucket.cluster_map.node_of(moved) == bucket.cluster_map.nodes[manager.owner[moved]]
        assert node.port == bucket.cluster_map.nodes[manager.owner[moved]].port
        rows = [row for batch in bucket.changes(until="now") for row in batch.to_pylist()]
        assert [row["value"] for row in rows if row["vbucket"] == moved] == [b"[]"]


def test_the_sdks_durable_writes_are_met_by_a_replica(tmp_path: Path) -> None:
    from couchbase.durability import Durability, ServerDurability
    from couchbase.options import UpsertOptions

    login = Users((User(name=USER, password=PASSWORD, role=Role.ADMIN),))
    bucket = BucketConfig(settings=BucketSettings(vbuckets=4))
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(
                running(NodeConfig(buckets=(bucket,), login=login, data=tmp_path / name))
            )
            for name in ("a", "b")
        )
        link = stack.enter_context(Forwarder(first, second))
        for vbucket in range(4):
            with Client(first.port) as here, Client(second.port) as there:
                here.hello(Feature.JSON)
                chain = admin.SetVBucket(
                    vbucket=vbucket,
                    state=VBucketState.ACTIVE,
                    value=b'{"topology":[["a","b"]]}',
                    datatype=Datatype.JSON,
                )
                here.ask(chain, admin.SetVBucketReply)
                there.ask(admin.DelVBucket(vbucket=vbucket), admin.DelVBucketReply)
                replica = admin.SetVBucket(vbucket=vbucket, state=VBucketState.REPLICA)
                there.ask(replica, admin.SetVBucketReply)
            link.add_stream(vbucket)
        nodes = (first, second)
        content = hand_made(
            [node.port for node in nodes],
            [[0, 1]] * 4,
            management=[node.node.ports.management or 0 for node in nodes],
        )
        for node in nodes:
            with Client(node.port) as client:
                client.ask(given(content), admin.SetClusterConfigReply)
        collection = stack.enter_context(opened(first.port))
        for level in (
            Durability.MAJORITY,
            Durability.MAJORITY_AND_PERSIST_TO_ACTIVE,
            Durability.PERSIST_TO_MAJORITY,
        ):
            options = UpsertOptions(durability=ServerDurability(level))
            for name in names(20, str(level)):
                collection.upsert(name, {"of": name}, options)
                copy = second.node.hosts["default"].bucket.vbucket(vbucket_of(name.encode(), 4))
                held = copy.pending(b"\0" + name.encode()) or copy.get(b"\0" + name.encode())
                assert held is not None, "the replica has at least the prepare"
