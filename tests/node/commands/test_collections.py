"""Collections over a socket: manifests, ids, keys with and without a prefix."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from headrace.node.config import NodeConfig
from headrace.wire import admin, kv, messages
from headrace.wire.opcodes import Feature, Status
from headrace.wire.values import join_collection
from tests.node.client import Client
from tests.node.running import SMALL, RunningNode, running

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT: dict[str, object] = {"name": "_default", "uid": "0"}
FRUIT: dict[str, object] = {"name": "fruit", "uid": "9", "maxTTL": 60}


def manifest(uid: str, *collections: dict[str, object], scopes: int = 0) -> bytes:
    extra = [
        {"name": f"scope{number}", "uid": f"{8 + number:x}", "collections": []}
        for number in range(scopes)
    ]
    default = {"name": "_default", "uid": "0", "collections": list(collections)}
    return json.dumps({"uid": uid, "scopes": [default, *extra]}).encode()


@pytest.fixture
def own() -> Iterator[RunningNode]:
    """A node whose manifest this test may change."""
    with running(NodeConfig(buckets=(SMALL,))) as node:
        yield node


@pytest.fixture
def fresh(own: RunningNode) -> Iterator[Client]:
    """A connection to it that knows collections."""
    with Client(own.port) as client:
        client.hello(Feature.COLLECTIONS, Feature.JSON, Feature.XERROR)
        yield client


def apply(client: Client, value: bytes) -> int:
    return client.status(admin.SetCollectionsManifest(value=value))


def test_a_bucket_begins_with_the_default_collection(fresh: Client) -> None:
    reply = fresh.ask(admin.GetCollectionsManifest(), admin.GetCollectionsManifestReply)
    assert json.loads(reply.value) == json.loads(manifest("0", DEFAULT))
    named = fresh.ask(admin.GetCollectionId(value=b"_default._default"), admin.GetCollectionIdReply)
    assert (named.manifest_uid, named.collection_id) == (0, 0)
    assert fresh.status(admin.GetCollectionId(value=b".")) == Status.SUCCESS


def test_a_created_collection_is_found_written_and_dropped(fresh: Client) -> None:
    assert apply(fresh, manifest("1", DEFAULT, FRUIT)) == Status.SUCCESS
    named = fresh.ask(admin.GetCollectionId(value=b"_default.fruit"), admin.GetCollectionIdReply)
    assert (named.manifest_uid, named.collection_id) == (1, 9)
    key = join_collection(9, b"apple")
    fresh.set(key, b"red")
    assert fresh.get(key).value == b"red"
    assert fresh.status(kv.Get(key=join_collection(0, b"apple"))) == Status.KEY_ENOENT
    assert apply(fresh, manifest("2", DEFAULT)) == Status.SUCCESS
    refusal = fresh.refusal(kv.Get(key=key))
    assert refusal.status == Status.UNKNOWN_COLLECTION
    assert json.loads(refusal.value)["manifest_uid"] == "2"


def test_a_longest_ttl_bounds_every_expiry(fresh: Client) -> None:
    apply(fresh, manifest("1", DEFAULT, FRUIT))
    key = join_collection(9, b"pear")
    fresh.set(key, b"v")
    meta = fresh.ask(kv.GetMeta(key=key), kv.GetMetaReply)
    assert meta.expiration > 0


def test_every_vbucket_gets_the_events_in_order(fresh: Client) -> None:
    apply(fresh, manifest("1", DEFAULT, FRUIT, scopes=1))
    stats = fresh.stats("vbucket-seqno")
    assert [stats[f"vb_{number}:high_seqno"] for number in range(4)] == ["2"] * 4


def test_a_client_without_collections_sees_the_default_collection_alone(
    own: RunningNode, fresh: Client
) -> None:
    apply(fresh, manifest("1", DEFAULT, FRUIT))
    fresh.set(join_collection(0, b"shared"), b"v")
    with Client(own.port) as old:
        assert old.get(b"shared").value == b"v"
        old.set(b"\x09apple", b"w")
    assert fresh.status(kv.Get(key=join_collection(9, b"apple"))) == Status.KEY_ENOENT
    assert fresh.get(join_collection(0, b"\x09apple")).value == b"w"


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (b"not json", Status.EINVAL),
        (b"[]", Status.EINVAL),
        (manifest("xyz", DEFAULT), Status.EINVAL),
        (manifest("1", DEFAULT, {"name": "a", "uid": "3"}), Status.EINVAL),
        (manifest("1", DEFAULT, {"name": "_a b", "uid": "9"}, FRUIT), Status.EINVAL),
        (manifest("1", DEFAULT, {"name": "a b", "uid": "9"}), Status.EINVAL),
        (manifest("1", DEFAULT, FRUIT, FRUIT), Status.EINVAL),
        (manifest("0", DEFAULT, FRUIT), Status.CANNOT_APPLY_MANIFEST),
        (json.dumps({"uid": "1", "scopes": []}).encode(), Status.EINVAL),
    ],
)
def test_a_manifest_that_makes_no_sense_changes_nothing(
    fresh: Client, value: bytes, status: Status
) -> None:
    assert apply(fresh, value) == status
    reply = fresh.ask(admin.GetCollectionsManifest(), admin.GetCollectionsManifestReply)
    assert json.loads(reply.value)["uid"] == "0"


def test_ids_cannot_change_their_names_and_uids_only_grow(fresh: Client) -> None:
    apply(fresh, manifest("5", DEFAULT, FRUIT))
    assert apply(fresh, manifest("5", DEFAULT, FRUIT)) == Status.SUCCESS
    assert apply(fresh, manifest("4", DEFAULT)) == Status.CANNOT_APPLY_MANIFEST
    renamed = manifest("6", DEFAULT, {"name": "other", "uid": "9"})
    assert apply(fresh, renamed) == Status.CANNOT_APPLY_MANIFEST
    assert apply(fresh, manifest("6", FRUIT)) == Status.SUCCESS
    assert apply(fresh, manifest("7", DEFAULT, FRUIT)) == Status.CANNOT_APPLY_MANIFEST


def test_names_that_are_not_there_say_which_part(fresh: Client) -> None:
    for name, status in (
        (b"nope.fruit", Status.UNKNOWN_SCOPE),
        (b"_default.nope", Status.UNKNOWN_COLLECTION),
        (b"nodot", Status.EINVAL),
        (b"a.b.c", Status.EINVAL),
    ):
        assert fresh.status(admin.GetCollectionId(value=name)) == status
    assert fresh.status(admin.GetScopeId(value=b"nope")) == Status.UNKNOWN_SCOPE
    found = fresh.ask(admin.GetScopeId(value=b"_default"), admin.GetScopeIdReply)
    assert found.scope_id == 0


@pytest.mark.parametrize("key", [b"\xff\xff\xff\xff\xff\x01k", b"\x80\x00k", b"\x00"])
def test_a_key_with_a_broken_prefix_is_refused(fresh: Client, key: bytes) -> None:
    assert fresh.status(kv.Get(key=key)) == Status.EINVAL


def test_a_map_change_is_pushed_to_who_asked(own: RunningNode, fresh: Client) -> None:
    with Client(own.port) as listener:
        listener.hello(Feature.DUPLEX, Feature.CLUSTERMAP_CHANGE)
        apply(fresh, manifest("1", DEFAULT, FRUIT))
        pushed = listener.receive()
        assert isinstance(pushed, messages.ClustermapChange)
        assert pushed.key == b"default"
        assert json.loads(pushed.value)["collectionsManifestUid"] == "1"
        listener.send_bytes(bytes.fromhex("8301") + bytes(22))
        assert listener.status(admin.KvNoop()) == Status.SUCCESS
