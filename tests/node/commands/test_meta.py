"""SET_WITH_META, ADD_WITH_META, DEL_WITH_META: the greater version wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.node.config import BucketConfig, ConflictResolution, NodeConfig
from headrace.store import BucketSettings
from headrace.wire import kv
from headrace.wire.opcodes import Datatype, Feature, MetaOption, Status
from headrace.wire.values import join_xattrs
from tests.node.client import Client
from tests.node.running import running

if TYPE_CHECKING:
    from collections.abc import Iterator

CAS = 0x1111_0000_0000_0000


@pytest.fixture
def last_write() -> Iterator[Client]:
    """A client of a bucket where the last write wins."""
    config = BucketConfig(
        settings=BucketSettings(vbuckets=1),
        conflict_resolution=ConflictResolution.LAST_WRITE,
    )
    with running(NodeConfig(buckets=(config,))) as node, Client(node.port) as client:
        yield client


def write(key: bytes, rev: int, cas: int, **fields: object) -> kv.SetWithMeta:
    return kv.SetWithMeta(
        key=key,
        rev_seqno=rev,
        meta_cas=cas,
        value=b"%d" % rev,
        **fields,  # type: ignore[arg-type]
    )


def test_the_metadata_brought_along_is_kept(client: Client) -> None:
    reply = client.ask(write(b"kept", 7, CAS, flags=3, expiration=2**31), kv.SetWithMetaReply)
    assert reply.cas == CAS
    meta = client.ask(kv.GetMeta(key=b"kept"), kv.GetMetaReply)
    assert (meta.rev_seqno, meta.cas, meta.flags, meta.expiration) == (7, CAS, 3, 2**31)


@pytest.mark.parametrize(
    ("rev", "cas", "status"),
    [
        (6, CAS, Status.SUCCESS),
        (5, CAS + 1, Status.SUCCESS),
        (5, CAS, Status.KEY_EEXISTS),
        (4, CAS + 9, Status.KEY_EEXISTS),
    ],
)
def test_the_revision_decides_before_the_cas(
    client: Client, rev: int, cas: int, status: Status
) -> None:
    key = f"conflict-{rev}-{cas}".encode()
    client.ask(write(key, 5, CAS), kv.SetWithMetaReply)
    assert client.status(write(key, rev, cas)) == status
    expected = b"%d" % rev if status == Status.SUCCESS else b"5"
    assert client.get(key).value == expected


@pytest.mark.parametrize(
    ("rev", "cas", "status"),
    [
        (4, CAS + 1, Status.SUCCESS),
        (6, CAS, Status.SUCCESS),
        (9, CAS - 1, Status.KEY_EEXISTS),
        (5, CAS, Status.KEY_EEXISTS),
    ],
)
def test_where_the_last_write_wins_the_cas_decides(
    last_write: Client, rev: int, cas: int, status: Status
) -> None:
    accept = MetaOption.FORCE_ACCEPT
    last_write.ask(write(b"lww", 5, CAS, options=accept), kv.SetWithMetaReply)
    assert last_write.status(write(b"lww", rev, cas, options=accept)) == status


def test_a_last_write_wins_bucket_insists_on_force_accept(last_write: Client) -> None:
    assert last_write.status(write(b"lww", 1, CAS)) == Status.EINVAL


def test_a_conflict_can_be_skipped_and_the_cas_made_anew(client: Client) -> None:
    client.ask(write(b"skip", 9, CAS), kv.SetWithMetaReply)
    skip = MetaOption.SKIP_CONFLICT_RESOLUTION
    assert client.ask(write(b"skip", 1, CAS, options=skip), kv.SetWithMetaReply).cas == CAS
    anew = skip | MetaOption.REGENERATE_CAS
    assert client.ask(write(b"skip", 1, CAS, options=anew), kv.SetWithMetaReply).cas != CAS
    alone = write(b"skip", 1, CAS, options=MetaOption.REGENERATE_CAS)
    assert client.status(alone) == Status.EINVAL


def test_a_delete_with_metadata_leaves_a_tombstone_even_of_what_never_was(client: Client) -> None:
    gone = kv.DelWithMeta(key=b"ghost", rev_seqno=4, meta_cas=CAS)
    assert client.ask(gone, kv.DelWithMetaReply).cas == CAS
    meta = client.ask(kv.GetMeta(key=b"ghost"), kv.GetMetaReply)
    assert (meta.deleted, meta.rev_seqno) == (1, 4)
    assert client.status(write(b"ghost", 3, CAS)) == Status.KEY_EEXISTS
    assert client.status(write(b"ghost", 5, CAS)) == Status.SUCCESS


def test_add_with_metadata_needs_a_key_that_does_not_live(client: Client) -> None:
    added = kv.AddWithMeta(key=b"added", rev_seqno=1, meta_cas=CAS, value=b"1")
    assert client.status(added) == Status.SUCCESS
    again = kv.AddWithMeta(key=b"added", rev_seqno=9, meta_cas=CAS + 9, value=b"2")
    assert client.status(again) == Status.KEY_EEXISTS


def test_xattrs_travel_with_the_value_and_are_not_shown_by_get(client: Client) -> None:
    client.hello(Feature.XATTR, Feature.JSON)
    value = join_xattrs({"_sync": b'{"a":1}'}, b"{}")
    request = kv.SetWithMeta(
        key=b"xattr", rev_seqno=1, meta_cas=CAS, value=value, datatype=Datatype.XATTR
    )
    client.ask(request, kv.SetWithMetaReply)
    found = client.get(b"xattr")
    assert (found.value, found.datatype) == (b"{}", Datatype.JSON)


def test_a_cas_of_zero_unknown_options_and_too_much_metadata_are_refused(client: Client) -> None:
    assert client.status(write(b"zero", 1, 0)) == Status.EINVAL
    assert client.status(write(b"opts", 1, CAS, options=0x8000)) == Status.EINVAL
    assert client.status(write(b"nmeta", 1, CAS, nmeta=99)) == Status.EINVAL
