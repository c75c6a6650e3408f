"""Clients nobody here wrote, unmodified, against our node: they take it for the real thing."""

from __future__ import annotations

import datetime
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from headrace.node.config import NodeConfig
from headrace.node.tls import make_certificate
from headrace.node.users import Role, User, Users
from headrace.wire import admin
from headrace.wire.opcodes import Feature
from tests.node.client import Client
from tests.node.running import SMALL, RunningNode, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.interop

USER = "Administrator"
PASSWORD = "of this test"  # noqa: S105 - of a node that lives for one test
TOOLS = ("cp", "cat", "rm", "stat", "touch", "exist", "flush", "capable")
MANIFEST = (
    b'{"uid":"1","scopes":[{"name":"_default","uid":"0","collections":['
    b'{"name":"_default","uid":"0"}]},{"name":"shop","uid":"8","collections":['
    b'{"name":"orders","uid":"9"}]}]}'
)


@pytest.fixture(scope="module", params=["couchbase", "couchbases"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningNode, str, Path | None]]:
    """A durable node that insists on a login; its address, without and with TLS."""
    directory = tmp_path_factory.mktemp("node")
    users = Users((User(name=USER, password=PASSWORD, role=Role.ADMIN),))
    tls = make_certificate(directory / "tls") if request.param == "couchbases" else None
    config = NodeConfig(buckets=(SMALL,), users=users, tls=tls, data=directory / "data")
    with running(config) as node:
        with Client(node.port) as client:
            client.login(USER, PASSWORD)
            request_ = admin.SetCollectionsManifest(value=MANIFEST)
            client.ask(request_, admin.SetCollectionsManifestReply)
        port = node.node.ports.tls if tls is not None else node.port
        yield node, f"{request.param}://127.0.0.1:{port}", tls.certificate if tls else None


@pytest.fixture(scope="module")
def bucket(served: tuple[RunningNode, str, Path | None]) -> Iterator[Any]:
    """The bucket `default` as the official SDK opens it."""
    pytest.importorskip("couchbase", reason="PyPI's couchbase is not installed")
    from couchbase.auth import PasswordAuthenticator
    from couchbase.cluster import Cluster
    from couchbase.options import ClusterOptions

    _, address, certificate = served
    trust = {} if certificate is None else {"cert_path": str(certificate)}
    options = ClusterOptions(PasswordAuthenticator(USER, PASSWORD, **trust))
    cluster = Cluster(address, options)
    cluster.wait_until_ready(seconds(10))
    yield cluster.bucket("default")
    cluster.close()


@pytest.fixture
def collection(bucket: Any) -> Any:  # noqa: ANN401 - the SDK has its own types
    """Its default collection."""
    return bucket.default_collection()


def seconds(number: int) -> datetime.timedelta:
    return datetime.timedelta(seconds=number)


def test_the_sdk_writes_reads_replaces_and_removes(collection: Any) -> None:  # noqa: ANN401
    from couchbase.exceptions import DocumentExistsException, DocumentNotFoundException

    collection.upsert("basic", {"a": [1, "zwei", None]})
    assert collection.get("basic").content_as[dict] == {"a": [1, "zwei", None]}
    collection.replace("basic", {"b": 2})
    assert collection.get("basic").content_as[dict] == {"b": 2}
    with pytest.raises(DocumentExistsException):
        collection.insert("basic", {})
    assert collection.exists("basic").exists
    collection.remove("basic")
    assert not collection.exists("basic").exists
    with pytest.raises(DocumentNotFoundException):
        collection.get("basic")
    with pytest.raises(DocumentNotFoundException):
        collection.replace("basic", {})


def test_the_sdk_is_told_of_a_cas_mismatch(collection: Any) -> None:  # noqa: ANN401
    from couchbase.exceptions import CasMismatchException
    from couchbase.options import RemoveOptions, ReplaceOptions

    old = collection.upsert("cas", {"v": 1}).cas
    new = collection.replace("cas", {"v": 2}, ReplaceOptions(cas=old)).cas
    with pytest.raises(CasMismatchException):
        collection.replace("cas", {"v": 3}, ReplaceOptions(cas=old))
    with pytest.raises(CasMismatchException):
        collection.remove("cas", RemoveOptions(cas=old))
    collection.remove("cas", RemoveOptions(cas=new))


def test_the_sdk_touches_and_reads_the_expiry(collection: Any) -> None:  # noqa: ANN401
    from couchbase.options import GetOptions, UpsertOptions

    collection.upsert("expiry", {}, UpsertOptions(expiry=seconds(1000)))
    first = collection.get("expiry", GetOptions(with_expiry=True)).expiry_time
    collection.touch("expiry", seconds(5000))
    second = collection.get("expiry", GetOptions(with_expiry=True)).expiry_time
    assert second > first
    assert collection.get_and_touch("expiry", seconds(10)).content_as[dict] == {}


def test_the_sdk_counts_and_joins_bytes(collection: Any) -> None:  # noqa: ANN401
    from couchbase.options import GetOptions, IncrementOptions, SignedInt64, UpsertOptions
    from couchbase.transcoder import RawBinaryTranscoder

    binary = collection.binary()
    if collection.exists("count").exists:
        collection.remove("count")
    start = IncrementOptions(initial=SignedInt64(40))
    assert binary.increment("count", start).content == 40
    assert binary.increment("count", start).content == 41
    assert binary.decrement("count").content == 40
    raw = RawBinaryTranscoder()
    collection.upsert("bytes", b"b", UpsertOptions(transcoder=raw))
    binary.append("bytes", b"c")
    binary.prepend("bytes", b"a")
    assert collection.get("bytes", GetOptions(transcoder=raw)).value == b"abc"


def test_the_sdk_works_on_parts_of_a_document(collection: Any) -> None:  # noqa: ANN401
    import couchbase.subdocument as sub
    from couchbase.exceptions import PathNotFoundException
    from couchbase.options import MutateInOptions

    collection.upsert("parts", {"a": {"list": [1, 2]}, "n": 1})
    result = collection.mutate_in(
        "parts",
        [
            sub.upsert("_meta.by", "test", xattr=True, create_parents=True),
            sub.upsert("x.y", 5, create_parents=True),
            sub.array_append("a.list", 3),
            sub.increment("n", 4),
            sub.remove("a.list[0]"),
        ],
    )
    assert result.content_as[int](3) == 5
    expected = {"a": {"list": [2, 3]}, "n": 5, "x": {"y": 5}}
    assert collection.get("parts").content_as[dict] == expected
    found = collection.lookup_in(
        "parts", [sub.get("_meta.by", xattr=True), sub.exists("nope"), sub.count("a.list")]
    )
    assert found.content_as[str](0) == "test"
    assert not found.exists(1)
    assert found.content_as[int](2) == 2
    with pytest.raises(PathNotFoundException):
        collection.lookup_in("parts", [sub.get("nope")]).content_as[str](0)
    upsert = MutateInOptions(store_semantics=sub.StoreSemantics.UPSERT)
    collection.mutate_in("parts-new", [sub.upsert("q", 1)], upsert)
    assert collection.get("parts-new").content_as[dict] == {"q": 1}


def test_the_sdk_uses_collections(bucket: Any, collection: Any) -> None:  # noqa: ANN401
    from couchbase.exceptions import CouchbaseException, DocumentNotFoundException
    from couchbase.options import GetOptions

    orders = bucket.scope("shop").collection("orders")
    orders.upsert("only there", {"sum": 3})
    assert orders.get("only there").content_as[dict] == {"sum": 3}
    with pytest.raises(DocumentNotFoundException):
        collection.get("only there")
    nowhere = bucket.scope("shop").collection("nowhere")
    with pytest.raises(CouchbaseException):
        nowhere.get("k", GetOptions(timeout=seconds(1)))


def test_the_sdk_makes_and_drops_collections(bucket: Any) -> None:  # noqa: ANN401
    from couchbase.exceptions import (
        CollectionAlreadyExistsException,
        CollectionNotFoundException,
        ScopeAlreadyExistsException,
    )

    manager = bucket.collections()
    manager.create_scope("made")
    with pytest.raises(ScopeAlreadyExistsException):
        manager.create_scope("made")
    manager.create_collection("made", "here")
    with pytest.raises(CollectionAlreadyExistsException):
        manager.create_collection("made", "here")
    collection = bucket.scope("made").collection("here")
    collection.upsert("k", {"v": 1})
    assert collection.get("k").content_as[dict] == {"v": 1}
    scopes = {scope.name: scope for scope in manager.get_all_scopes()}
    assert [one.name for one in scopes["made"].collections] == ["here"]
    manager.drop_collection("made", "here")
    with pytest.raises(CollectionNotFoundException):
        manager.drop_collection("made", "here")
    manager.drop_scope("made")


def test_the_sdk_finds_the_node_ready(bucket: Any) -> None:  # noqa: ANN401
    from couchbase.diagnostics import PingState, ServiceType

    told = bucket.ping()
    assert told.endpoints[ServiceType.KeyValue]
    for reports in told.endpoints.values():
        assert all(report.state == PingState.OK for report in reports)


def test_the_sdk_locks_and_unlocks(collection: Any) -> None:  # noqa: ANN401
    from couchbase.exceptions import CouchbaseException
    from couchbase.options import UpsertOptions

    collection.upsert("locked", {"v": 1})
    held = collection.get_and_lock("locked", seconds(20))
    with pytest.raises(CouchbaseException):
        collection.upsert("locked", {"v": 2}, UpsertOptions(timeout=seconds(1)))
    collection.unlock("locked", held.cas)
    collection.upsert("locked", {"v": 3})


def test_the_sdk_writes_durably(collection: Any) -> None:  # noqa: ANN401
    from couchbase.durability import Durability, ServerDurability
    from couchbase.options import UpsertOptions

    for level in (
        Durability.MAJORITY,
        Durability.MAJORITY_AND_PERSIST_TO_ACTIVE,
        Durability.PERSIST_TO_MAJORITY,
    ):
        done = collection.upsert("durable", {}, UpsertOptions(durability=ServerDurability(level)))
        assert done.mutation_token() is not None


def test_the_sdk_reads_many_at_once(collection: Any) -> None:  # noqa: ANN401
    documents = {f"many-{number}": {"n": number} for number in range(200)}
    assert collection.upsert_multi(documents).all_ok
    found = collection.get_multi(list(documents)).results
    assert {key: one.content_as[dict] for key, one in found.items()} == documents


# -- plain memcached clients ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain() -> Iterator[RunningNode]:
    """An open node in memory, as memcached tools expect."""
    login = Users((User(name=USER, password=PASSWORD, role=Role.ADMIN),))
    with running(NodeConfig(buckets=(SMALL,), flush=True, login=login)) as node:
        yield node


@pytest.mark.parametrize("login", [{}, {"username": USER, "password": PASSWORD}])
def test_a_plain_memcached_client_works(plain: RunningNode, login: dict[str, str]) -> None:
    bmemcached = pytest.importorskip("bmemcached", reason="python-binary-memcached is missing")
    client = bmemcached.Client((f"127.0.0.1:{plain.port}",), **login)
    assert client.set("k", "value")
    assert client.get("k") == "value"
    assert client.add("k", "other") is False
    assert client.replace("k", {"a": 1})
    assert client.get("k") == {"a": 1}
    value, cas = client.gets("k")
    assert client.cas("k", "new", cas)
    assert not client.cas("k", "newer", cas)
    assert client.set_multi({"a": 1, "b": 2}) == []
    assert client.get_multi(["a", "b", "none"]) == {"a": 1, "b": 2}
    assert client.incr("counter", 5) == 0
    assert client.incr("counter", 5) == 5
    assert client.decr("counter", 2) == 3
    assert client.delete("k")
    assert client.get("k") is None
    assert any(client.stats().values())
    assert client.flush_all()
    assert client.get("a") is None
    client.disconnect_all()
    assert value


def path_of(tool: str) -> str | None:
    """A tool of libmemcached; Debian calls them memccp, others memcp."""
    return shutil.which(f"memc{tool}") or shutil.which(f"mem{tool}")


def run(tool: str, port: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [path_of(tool) or tool, f"--servers=127.0.0.1:{port}", "--binary", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.fixture
def tool_port(plain: RunningNode) -> int:
    """The node's port, if libmemcached's tools are here."""
    missing = [tool for tool in TOOLS if path_of(tool) is None]
    if missing:
        pytest.skip(f"libmemcached-tools lacks {', '.join(missing)}")
    return plain.port


def test_libmemcached_tools_copy_show_touch_and_remove(tool_port: int, tmp_path: Path) -> None:
    file = tmp_path / "document.txt"
    file.write_text("from a file")
    copied = run("cp", tool_port, str(file))
    assert copied.returncode == 0, copied.stderr
    assert run("cat", tool_port, file.name).stdout.strip() == "from a file"
    assert run("exist", tool_port, file.name).returncode == 0
    assert run("touch", tool_port, "--expire=1000", file.name).returncode == 0
    assert run("rm", tool_port, file.name).returncode == 0
    assert run("cat", tool_port, file.name).stdout.strip() == ""
    assert run("exist", tool_port, file.name).returncode != 0


def test_libmemcached_tools_read_statistics_and_flush(tool_port: int, tmp_path: Path) -> None:
    file = tmp_path / "flushed.txt"
    file.write_text("x")
    run("cp", tool_port, str(file))
    told = run("stat", tool_port)
    assert "curr_items" in told.stdout
    assert run("flush", tool_port).returncode == 0
    assert run("cat", tool_port, "flushed.txt").stdout.strip() == ""


def test_the_capability_test_of_libmemcached_passes_but_for_one_difference(
    tool_port: int,
) -> None:
    """A delete's reply carries the tombstone's CAS here, as in Couchbase; memcached has none."""
    command = [path_of("capable") or "", "-b", "-h", "127.0.0.1", "-p", str(tool_port)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    lines = told.stdout.splitlines()
    assert sum(line.count("[pass]") for line in lines) == 26, told.stdout
    assert "1 of 27 tests failed" in told.stderr
    assert any(line.startswith("binary delete  ") and "deleteq" in line for line in lines)


def test_a_client_that_knows_nothing_of_features_gets_none(plain: RunningNode) -> None:
    with Client(plain.port) as client:
        stored = client.set(b"bare", b'{"a":1}')
        assert stored.seqno is None
        assert client.get(b"bare").datatype == 0
        assert client.hello(Feature.JSON) == (Feature.JSON,)
        assert client.get(b"bare").datatype == 1
