"""Options: what cannot be is refused by name before anything is opened."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from headrace.client.access import Access
from headrace.client.bucket import Bucket, connect
from headrace.client.changes import Change, Kind
from headrace.client.options import PATIENCE_SECONDS, ReadOptions
from headrace.client.writer import Document
from headrace.columns.schema import Event
from headrace.errors import ConfigError
from headrace.node.config import BucketConfig, NodeConfig
from headrace.node.manifest import from_json
from headrace.store import BucketSettings
from headrace.wire import kv
from headrace.wire.frame import FrameInfo
from headrace.wire.message import ErrorReply
from headrace.wire.opcodes import Datatype, DurabilityLevel, Feature, FrameInfoId
from headrace.wire.values import inflate, join_xattrs, vbucket_of
from tests.node.client import Client
from tests.node.running import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.wire.message import Request


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"since": "yesterday"}, "since is 'yesterday', allowed: 'beginning', 'now', a TokenSet"),
        ({"until": "then"}, "until is 'then', allowed: 'now', None, a TokenSet"),
        ({"since": datetime(2026, 1, 1)}, "a time without a zone"),
        ({"collections": ("a",), "scope": "b"}, "one of them narrows a stream"),
        ({"window": 5}, "window is 5, allowed: 0 or from 4096"),
        ({"backfills_max": 0}, "backfills_max is 0"),
        ({"vbuckets": ()}, "vbuckets is empty"),
        ({"on_rollback": "ignore"}, "allowed: 'raise', 'yield' or a function"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        ReadOptions(**options)


def test_a_read_with_an_end_has_patience_and_an_endless_one_has_no_limit() -> None:
    assert ReadOptions(until="now").patience == PATIENCE_SECONDS
    assert ReadOptions().patience is None
    assert ReadOptions(until="now", patience_seconds=None).patience is None
    assert ReadOptions(patience_seconds=3.0).patience == 3.0


def test_options_become_what_a_connection_is_asked_for() -> None:
    options = ReadOptions(
        since=datetime(2026, 1, 1, tzinfo=UTC), xattrs=True, compression=True, history=True
    )
    settings = options.settings(Access(user="u"), "default")
    assert (settings.bucket, settings.user, settings.xattrs) == ("default", "u", True)
    assert (settings.snappy, settings.change_streams) == (True, True)
    assert ("backfill_order", "sequential") in settings.controls
    assert settings.name.startswith("headrace:")
    plain = ReadOptions(whole=False, name="mine").settings(Access(compression=True), "b")
    assert (plain.controls, plain.name, plain.snappy) == ((), "mine", True)


# -- options against a real node, by both roads ----------------------------------------------------

JSON_TEXT = b'{"text":"' + b"again and " * 100 + b'"}'
SHOP = {
    "uid": "1",
    "scopes": [
        {
            "name": "_default",
            "uid": "0",
            "collections": [{"name": "_default", "uid": "0"}, {"name": "fruit", "uid": "9"}],
        }
    ],
}


@contextmanager
def bucket_of(settings: BucketSettings, data: Path | None = None) -> Iterator[Bucket]:
    """A bucket whose node has the collection ``fruit``."""
    config = NodeConfig(buckets=(BucketConfig(settings=settings),), data=data)
    with running(config) as node:
        node.call(lambda: node.node.hosts["default"].apply_manifest(from_json(SHOP)))
        with connect(f"couchbase://127.0.0.1:{node.port}/default") as bucket:
            yield bucket


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with bucket_of(BucketSettings(vbuckets=2), tmp_path) as found:
        yield found


def ask(bucket: Bucket, *requests: Request) -> None:
    (node,) = bucket.cluster_map.nodes
    with bucket.kv(node) as link:
        for reply in link.ask_all(requests):
            assert not isinstance(reply, ErrorReply), reply


def put(bucket: Bucket, *documents: Document) -> None:
    with bucket.writer() as writer:
        for document in documents:
            writer.put(document)


def rows(bucket: Bucket, **options: object) -> list[dict[str, Any]]:
    """Everything up to now, from batches."""
    read = bucket.changes(until="now", **options)
    return [row for batch in read for row in batch.to_pylist()]


def objects(bucket: Bucket, **options: object) -> list[Change]:
    """Everything up to now, one by one."""
    read = bucket.follow(None, since="beginning", until="now", **options)
    return [one for one in read if isinstance(one, Change)]


def test_compressed_values_are_inflated_unless_that_is_refused(bucket: Bucket) -> None:
    put(bucket, Document(b"k", JSON_TEXT, is_json=True))
    options: dict[str, object] = {
        "compression": True,
        "controls": [("force_value_compression", "true")],
    }
    (packed,) = (row for row in rows(bucket, inflate=False, **options) if row["key"] == b"k")
    assert packed["datatype"] & Datatype.SNAPPY
    assert len(packed["value"]) < len(JSON_TEXT) // 4
    assert inflate(packed["value"]) == JSON_TEXT
    (row,) = (row for row in rows(bucket, **options) if row["key"] == b"k")
    assert (row["value"], row["datatype"]) == (JSON_TEXT, Datatype.JSON)
    (change,) = (one for one in objects(bucket, **options) if one.key == b"k")
    assert change.value == JSON_TEXT


def test_history_brings_every_version_that_was_kept(tmp_path: Path) -> None:
    settings = BucketSettings(vbuckets=1, history_bytes=1 << 20)
    with bucket_of(settings, tmp_path) as bucket:
        for version in range(5):
            put(bucket, Document(b"k", b"%d" % version))
        every = [b"%d" % version for version in range(5)]
        kept = [row["value"] for row in rows(bucket, history=True) if row["key"] == b"k"]
        assert kept == every
        assert [one.value for one in objects(bucket, history=True) if one.key == b"k"] == every
        assert [row["value"] for row in rows(bucket) if row["key"] == b"k"] == [b"4"]


def test_rows_of_a_stream_with_an_id_carry_it(bucket: Bucket) -> None:
    put(bucket, *(Document(b"k%d" % number, b"1") for number in range(10)))
    options: dict[str, object] = {"stream_id": 7, "collections": ("_default",)}
    found = rows(bucket, **options)
    assert len(found) == 10
    assert {row["stream_id"] for row in found} == {7}
    assert len(objects(bucket, **options)) == 10


def test_sync_writes_are_seen_in_their_parts_by_those_who_ask(bucket: Bucket) -> None:
    majority = (FrameInfo(FrameInfoId.DURABILITY, bytes([DurabilityLevel.MAJORITY])),)
    vbucket = vbucket_of(b"k", 2)
    features = (Feature.COLLECTIONS, Feature.ALT_REQUEST, Feature.SYNC_REPLICATION)
    (node,) = bucket.cluster_map.nodes
    with Client(node.port) as client:
        client.hello(*features)
        write = kv.Set(key=b"\0k", value=b"1", vbucket=vbucket, frame_infos=majority)
        client.ask(write, kv.SetReply)
    parts = [one.kind for one in objects(bucket, sync_writes=True) if one.vbucket == vbucket]
    assert parts[-2:] in ([Kind.PREPARE, Kind.COMMIT], [Kind.PREPARE, Kind.MUTATION])
    plain = [one.kind for one in objects(bucket) if one.key == b"k"]
    assert plain == [Kind.MUTATION]
    assert [row["value"] for row in rows(bucket) if row["key"] == b"k"] == [b"1"]


def test_xattrs_come_when_they_are_asked_for_and_stay_away_otherwise(bucket: Bucket) -> None:
    value = join_xattrs({"_mine": b'{"a":1}'}, b'{"b":2}')
    meta = kv.SetWithMeta(
        key=b"\0k",
        value=value,
        datatype=Datatype.JSON | Datatype.XATTR,
        vbucket=vbucket_of(b"k", 2),
        flags=0,
        expiration=0,
        rev_seqno=1,
        meta_cas=1 << 60,
    )
    ask(bucket, meta)
    (with_xattrs,) = (one for one in objects(bucket, xattrs=True) if one.key == b"k")
    assert (with_xattrs.xattrs, with_xattrs.value) == ({"_mine": b'{"a":1}'}, b'{"b":2}')
    (without,) = (one for one in objects(bucket) if one.key == b"k")
    assert (without.xattrs, without.value) == (None, b'{"b":2}')


def test_out_of_order_backfills_end_at_the_same_state(tmp_path: Path) -> None:
    settings = BucketSettings(vbuckets=2)
    with bucket_of(settings, tmp_path) as bucket:
        put(bucket, *(Document(b"d%d" % number, b"1") for number in range(200)))
        put(bucket, *(Document(b"f%d" % number, b"1", collection_id=9) for number in range(30)))
    # A node that was started anew has everything on disk, nothing in memory.
    with bucket_of(settings, tmp_path) as bucket:
        found, ordered = [
            [
                row
                for row in rows(bucket, collections=("fruit",), out_of_order=out_of_order)
                if row["event"] == Event.MUTATION
            ]
            for out_of_order in (True, False)
        ]
    assert any(row["snapshot_end"] is None for row in found), "nothing came out of order"
    assert all(row["snapshot_end"] is not None for row in ordered)
    assert {row["key"] for row in found} == {b"f%d" % number for number in range(30)}
    assert {row["key"] for row in ordered} == {row["key"] for row in found}
