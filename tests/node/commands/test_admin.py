"""Vbucket states, compaction, persistence, buckets, FLUSH and VERBOSITY over a socket."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from headrace.node.config import NodeConfig
from headrace.node.logs import LOGGER
from headrace.wire import admin, kv
from headrace.wire.opcodes import Feature, Status, VBucketState
from tests.node.client import Client
from tests.node.running import SMALL, RunningNode, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RunningNode]:
    """A node of this test's own, with a disk; FLUSH is off."""
    with running(NodeConfig(buckets=(SMALL,), data=tmp_path / "data")) as node:
        yield node


@pytest.fixture
def fresh(own: RunningNode) -> Iterator[Client]:
    """A connection to it."""
    with Client(own.port) as client:
        client.hello(Feature.JSON)
        yield client


@pytest.mark.parametrize("state", [VBucketState.REPLICA, VBucketState.DEAD])
def test_only_active_vbuckets_serve_documents(fresh: Client, state: VBucketState) -> None:
    fresh.set(b"k", b"v")
    fresh.ask(admin.SetVBucket(state=state), admin.SetVBucketReply)
    assert fresh.ask(admin.GetVBucket(), admin.GetVBucketReply).state == state
    assert fresh.status(kv.Get(key=b"k")) == Status.NOT_MY_VBUCKET
    fresh.ask(admin.SetVBucket(state=VBucketState.ACTIVE), admin.SetVBucketReply)
    assert fresh.get(b"k").value == b"v"


def test_requests_to_a_pending_vbucket_wait_until_it_is_active(
    own: RunningNode, fresh: Client
) -> None:
    fresh.ask(admin.SetVBucket(state=VBucketState.PENDING), admin.SetVBucketReply)
    with Client(own.port) as waiting:
        waiting.send(kv.Set(key=b"later", value=b"v"), kv.Get(key=b"later"))
        fresh.ask(admin.SetVBucket(state=VBucketState.ACTIVE), admin.SetVBucketReply)
        assert isinstance(waiting.receive(), kv.SetReply)
        assert isinstance(waiting.receive(), kv.GetReply)


def test_a_peer_that_waits_and_goes_is_forgotten(own: RunningNode, fresh: Client) -> None:
    fresh.ask(admin.SetVBucket(state=VBucketState.PENDING), admin.SetVBucketReply)
    with Client(own.port) as waiting:
        waiting.send(kv.Set(key=b"never", value=b"v"))
        while len(own.node.connections) < 2:
            fresh.ask(admin.KvNoop(), admin.KvNoopReply)
    while len(own.node.connections) > 1:
        fresh.ask(admin.KvNoop(), admin.KvNoopReply)
    fresh.ask(admin.SetVBucket(state=VBucketState.ACTIVE), admin.SetVBucketReply)
    assert fresh.status(kv.Get(key=b"never")) == Status.KEY_ENOENT


def test_the_four_byte_state_of_older_tools_is_understood(fresh: Client) -> None:
    frame = bytes.fromhex("803d0000040000010000000400000001000000000000000000000002")
    fresh.send_bytes(frame)
    assert fresh.receive_frame().status == Status.SUCCESS
    state = fresh.ask(admin.GetVBucket(vbucket=1), admin.GetVBucketReply).state
    assert state == VBucketState.REPLICA


def test_a_deleted_vbucket_is_gone_and_can_be_made_again(fresh: Client) -> None:
    fresh.set(b"k", b"v")
    fresh.ask(admin.DelVBucket(value=b"async=0"), admin.DelVBucketReply)
    assert fresh.status(admin.GetVBucket()) == Status.NOT_MY_VBUCKET
    assert fresh.status(admin.DelVBucket()) == Status.NOT_MY_VBUCKET
    fresh.ask(admin.SetVBucket(state=1), admin.SetVBucketReply)
    assert fresh.status(kv.Get(key=b"k")) == Status.KEY_ENOENT


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (admin.SetVBucket(vbucket=4, state=1), Status.ERANGE),
        (admin.SetVBucket(state=9), Status.EINVAL),
        (admin.SetVBucket(state=1, value=b"{}"), Status.EINVAL),
        (admin.SetVBucket(state=1, value=b'{"topology":[["a"]]}', datatype=1), Status.SUCCESS),
        (admin.SetVBucket(state=1, value=b'{"topology":[["a","b"]]}', datatype=1), 0),
        (admin.SetVBucket(state=1, value=b'{"topology":[["a","a"]]}', datatype=1), Status.EINVAL),
        (admin.SetVBucket(state=1, value=b'{"topology":[[null]]}', datatype=1), Status.EINVAL),
        (admin.SetVBucket(state=1, value=b'{"topology":[]}', datatype=1), Status.EINVAL),
        (admin.SetVBucket(state=2, value=b'{"topology":[["a"]]}', datatype=1), Status.EINVAL),
        (admin.SetVBucket(state=1, value=b'{"other":1}', datatype=1), Status.EINVAL),
        (admin.SetVBucket(state=1, value=b"junk", datatype=1), Status.EINVAL),
        (admin.DelVBucket(value=b"async=2"), Status.EINVAL),
        (admin.GetVBucket(vbucket=99), Status.NOT_MY_VBUCKET),
        (admin.CompactDb(vbucket=99), Status.NOT_MY_VBUCKET),
        (admin.FlushAll(), Status.NOT_SUPPORTED),
        (admin.CreateBucket(key=b"a b"), Status.EINVAL),
        (admin.CreateBucket(key=b"../up"), Status.EINVAL),
        (admin.CreateBucket(key=b"default"), Status.KEY_EEXISTS),
        (admin.CreateBucket(key=b"x", value=b"ep.so\0max_vbuckets=zero"), Status.EINVAL),
        (admin.DeleteBucket(key=b"none"), Status.KEY_ENOENT),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(fresh: Client, request_: admin.SetVBucket, status: int) -> None:
    assert fresh.status(request_) == status


def test_compaction_purges_what_is_asked(fresh: Client) -> None:
    for number in range(10):
        fresh.set(b"k%d" % number, b"v")
    for number in range(9):
        fresh.ask(kv.Delete(key=b"k%d" % number), kv.DeleteReply)
    fresh.set(b"last", b"v")
    fresh.ask(admin.CompactDb(drop_deletes=1), admin.CompactDbReply)
    assert int(fresh.stats("vbucket-details 0")["vb_0:purge_seqno"]) > 0
    assert fresh.get(b"k9").value == b"v"


def test_buckets_come_and_go(own: RunningNode, fresh: Client, tmp_path: Path) -> None:
    made = admin.CreateBucket(key=b"orders", value=b"ep.so\0max_vbuckets=2;")
    fresh.ask(made, admin.CreateBucketReply)
    listed = fresh.ask(admin.ListBuckets(), admin.ListBucketsReply).value.split()
    assert listed == [b"default", b"orders"]
    with Client(own.port) as other:
        other.ask(admin.SelectBucket(key=b"orders"), admin.SelectBucketReply)
        other.set(b"k", b"v")
        fresh.ask(admin.DeleteBucket(key=b"orders"), admin.DeleteBucketReply)
        assert other.status(kv.Get(key=b"k")) == Status.NO_BUCKET
    assert not (tmp_path / "data" / "orders").exists()


def test_flush_empties_the_bucket_where_it_is_allowed(client: Client) -> None:
    client.set(b"flushed", b"v")
    client.ask(admin.FlushAll(), admin.FlushAllReply)
    assert client.status(kv.Get(key=b"flushed")) == Status.KEY_ENOENT
    client.send(admin.FlushAll(quiet=True), admin.KvNoop())
    assert isinstance(client.receive(), admin.KvNoopReply)
    assert client.status(admin.FlushAll(expiration=9)) == Status.NOT_SUPPORTED


def test_verbosity_sets_how_much_is_logged(client: Client) -> None:
    before = LOGGER.level
    try:
        client.ask(admin.Verbosity(level=2), admin.VerbosityReply)
        assert LOGGER.level == logging.DEBUG
        client.ask(admin.Verbosity(level=0), admin.VerbosityReply)
        assert LOGGER.level == logging.WARNING
    finally:
        LOGGER.setLevel(before)
