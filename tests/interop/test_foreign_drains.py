"""DCP clients nobody here wrote drain our node and agree with our consumer, item by item.

The programs are tests/interop/foreign; `tools.foreign_clients` builds them. What is compared of
every item: kind, vbucket, seqno, cas, revision, collection, key, value, flags, expiry.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from headrace.client.bucket import Bucket, connect
from headrace.client.changes import Change
from headrace.client.writer import Document
from headrace.columns.schema import Event
from headrace.history import Boundaries
from headrace.node.config import BucketConfig, NodeConfig
from headrace.node.users import Role, User, Users
from headrace.protocol.talk import Position
from headrace.store import BucketSettings
from headrace.wire import admin
from tests.node.client import Client
from tests.node.running import RunningNode, running
from tools.foreign_clients import PROGRAMS, ToolMissing, command_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from headrace.client.tokens import TokenSet

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

USER: Final = "Administrator"
PASSWORD: Final = "of this test"  # noqa: S105 - of a node that lives for one test
RUN_SECONDS: Final = 200
SETTLE_SECONDS: Final = 30.0
DOCUMENTS: Final = 3_000
EXPIRING: Final = 40
COLLECTION: Final = 9
MANIFEST: Final = (
    b'{"uid":"1","scopes":[{"name":"_default","uid":"0","collections":['
    b'{"name":"_default","uid":"0"}]},{"name":"shop","uid":"8","collections":['
    b'{"name":"orders","uid":"9"}]}]}'
)


class Item(NamedTuple):
    """One change of a document, as every client tells it."""

    kind: str
    vbucket: int
    seqno: int
    cas: int
    rev: int
    collection: int
    key: bytes
    value: bytes
    flags: int
    expiry: int


# -- the node --------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A node, its bucket's URL and a bucket of ours on it."""

    node: RunningNode
    url: str
    bucket: Bucket


@contextmanager
def served(vbuckets: int, data: Path | None = None) -> Iterator[Place]:
    config = NodeConfig(
        buckets=(BucketConfig(settings=BucketSettings(vbuckets=vbuckets)),),
        users=Users((User(name=USER, password=PASSWORD, role=Role.ADMIN),)),
        data=data,
        expiry_pager_seconds=0.2,
    )
    with running(config) as node:
        url = f"couchbase://127.0.0.1:{node.port}/default"
        with connect(url, user=USER, password=PASSWORD) as bucket:
            yield Place(node, url, bucket)


def write(bucket: Bucket, documents: Iterable[Document]) -> None:
    with bucket.writer() as writer:
        for document in documents:
            writer.put(document)


def load(bucket: Bucket) -> None:
    """Documents of every size, updated, deleted, deleted and made again, expired."""

    def key(number: int) -> bytes:
        return f"user::{number}::\u00fc".encode()

    def body(number: int, fill: int) -> bytes:
        return b'{"n":%d,"fill":"%s"}' % (number, b"x" * fill)

    everyone = range(DOCUMENTS)
    write(bucket, (Document(key(n), body(n, n % 700), is_json=True, flags=n) for n in everyone))
    write(bucket, (Document(key(n), bytes([n % 256]) * (n % 50)) for n in everyone[::5]))
    write(bucket, (Document(key(n), None) for n in everyone[::7]))
    write(bucket, (Document(key(n), b"again", flags=2**32 - 1) for n in everyone[::21]))
    write(bucket, [Document(b"empty", b""), Document(b"large", b"L" * 3_000_000)])
    write(bucket, (Document(b"later::%d" % n, b"1", expiry=2**31 - 1) for n in range(EXPIRING)))
    write(bucket, (Document(b"soon::%d" % n, b"1", expiry=1) for n in range(EXPIRING)))
    deadline = time.monotonic() + SETTLE_SECONDS
    while sum(item.kind == "expiration" for item in ours(bucket)) < EXPIRING:
        assert time.monotonic() < deadline, "documents whose time is over did not expire"
        time.sleep(0.2)


def add_collection(node: RunningNode) -> None:
    with Client(node.port) as client:
        client.login(USER, PASSWORD)
        request = admin.SetCollectionsManifest(value=MANIFEST)
        client.ask(request, admin.SetCollectionsManifestReply)


# -- our clients -----------------------------------------------------------------------------------


def ours(bucket: Bucket, since: TokenSet | None = None) -> list[Item]:
    """Everything, or what is after tokens, as Arrow batches."""
    found: list[Item] = []
    names = ("event", "vbucket", "seqno", "cas", "rev", "collection_id", "key", "value", "flags")
    for batch in bucket.changes(since=since or "beginning", until="now"):
        columns = (batch.column(name).to_pylist() for name in (*names, "expiry"))
        found.extend(
            Item(Event(event).name.lower(), vbucket, seqno, cas, rev, collection or 0, *rest)
            for event, vbucket, seqno, cas, rev, collection, *rest in zip(*columns, strict=True)
            if event <= Event.EXPIRATION
        )
    return [item._replace(flags=item.flags or 0, expiry=item.expiry or 0) for item in found]


def our_objects(bucket: Bucket) -> list[Item]:
    """Everything, one object per change."""
    return [
        Item(
            *(one.kind.value, one.vbucket, one.seqno, one.cas, one.rev, one.collection_id or 0),
            *(one.key, one.value, one.flags, one.expiry),
        )
        for one in bucket.follow(since="beginning", until="now")
        if isinstance(one, Change) and one.kind.value in {"mutation", "deletion", "expiration"}
    ]


def default_only(items: list[Item]) -> list[Item]:
    return [item for item in items if item.collection == 0]


def agree(theirs: list[Item], items: list[Item], client: str) -> None:
    """Both told the same, each item once and each vbucket in order."""
    for one in (theirs, items):
        places = [(item.vbucket, item.seqno) for item in one]
        assert len(set(places)) == len(places), "an item came twice"
        by_vbucket: dict[int, int] = {}
        for vbucket, seqno in places:
            assert seqno > by_vbucket.get(vbucket, 0), f"vbucket {vbucket} went back to {seqno}"
            by_vbucket[vbucket] = seqno
    if client == "java":
        # It cannot set the open flag for delete times, without which expirations are deletions.
        items = [item._replace(kind=item.kind.replace("expiration", "deletion")) for item in items]
    assert sorted(theirs) == sorted(items)


# -- foreign clients -------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=PROGRAMS)
def client(request: pytest.FixtureRequest) -> str:
    """The name of a foreign client that is built."""
    name: str = request.param
    try:
        command_of(name)
    except ToolMissing as missing:
        pytest.skip(str(missing))
    return name


def started(client: str, url: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*command_of(client), *options, url],
        env={**os.environ, "DRAIN_USER": USER, "DRAIN_PASSWORD": PASSWORD},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str], told: str = "") -> list[Item]:
    """Everything a started client printed, once it is done."""
    try:
        out, errors = process.communicate(told, timeout=RUN_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, errors[-3000:]
    return [item_of(line) for line in out.splitlines()]


def drained(client: str, url: str, *options: str) -> list[Item]:
    return finished(started(client, url, *options))


def item_of(line: str) -> Item:
    kind, vbucket, seqno, cas, rev, collection, key, value, flags, expiry = line.split("\t")
    return Item(
        *(kind, int(vbucket), int(seqno), int(cas), int(rev), int(collection)),
        *(bytes.fromhex(key), bytes.fromhex(value), int(flags), int(expiry)),
    )


# -- tests -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[4, 64, 1024])
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """A loaded node, the middle one with its data on disk."""
    data = tmp_path_factory.mktemp("node") / "data" if request.param == 64 else None
    with served(request.param, data) as place:
        load(place.bucket)
        yield place


def test_what_is_drained_has_every_kind_of_change(loaded: Place) -> None:
    """Or else agreeing on it would say little."""
    items = ours(loaded.bucket)
    kinds = Counter(item.kind for item in items)
    assert set(kinds) == {"mutation", "deletion", "expiration"}
    assert kinds["expiration"] == EXPIRING
    assert sorted(items) == sorted(our_objects(loaded.bucket))


def test_a_foreign_client_drains_everything_and_agrees(client: str, loaded: Place) -> None:
    agree(drained(client, loaded.url), ours(loaded.bucket), client)


def test_a_client_that_knows_collections_gets_those_of_all(client: str) -> None:
    with served(64) as place:
        add_collection(place.node)
        write(place.bucket, (Document(b"k%d" % n, b"default") for n in range(300)))
        write(
            place.bucket,
            (Document(b"k%d" % n, b"order", collection_id=COLLECTION) for n in range(0, 300, 2)),
        )
        write(
            place.bucket,
            (Document(b"k%d" % n, None, collection_id=COLLECTION) for n in range(0, 300, 6)),
        )
        items = ours(place.bucket)
        assert {item.collection for item in items} == {0, COLLECTION}
        agree(drained(client, place.url, "--collections"), items, client)
        agree(drained(client, place.url), default_only(items), client)


def test_a_client_that_streams_while_documents_are_written_misses_none(client: str) -> None:
    """Everything is new at first sight: no key is written twice, so nothing may be left out."""
    with served(64) as place:
        write(place.bucket, (Document(b"old%d" % n, b"before") for n in range(500)))
        process = started(client, place.url, "--live")
        assert process.stderr is not None
        assert process.stderr.readline() == "streaming\n"
        write(place.bucket, (Document(b"new%d" % n, b"while") for n in range(2_000)))
        goal = "".join(f"{one} {seqno}\n" for one, seqno in place.bucket.seqnos().items() if seqno)
        items = ours(place.bucket)
        assert len(items) == 2_500
        agree(finished(process, goal), items, client)


def test_a_client_resumes_from_our_tokens_in_the_middle(client: str, tmp_path: Path) -> None:
    with served(64) as place:
        write(place.bucket, (Document(b"k%d" % n, b"first") for n in range(2_000)))
        histories: dict[int, list[Change]] = {}
        for one in place.bucket.follow(since="beginning", until="now"):
            if isinstance(one, Change):
                histories.setdefault(one.vbucket, []).append(one)
        middle = [history[len(history) // 2] for history in histories.values()]
        assert any(not change.token.is_boundary for change in middle)
        write(place.bucket, (Document(b"k%d" % n, b"second") for n in range(0, 2_000, 9)))
        file = tmp_path / "positions"
        file.write_text("".join(position_line(change) for change in middle))
        positions = {one.vbucket: Position(one.token, Boundaries()) for one in middle}
        tokens = replace(place.bucket.tokens_at_beginning(), positions=positions)
        items = ours(place.bucket, since=tokens)
        assert 0 < len(items) < 2_000
        agree(drained(client, place.url, "--from", str(file)), items, client)


def position_line(change: Change) -> str:
    token = change.token
    place = f"{token.seqno} {token.snapshot.start} {token.snapshot.end}"
    return f"{change.vbucket} {token.branch} {place}\n"
