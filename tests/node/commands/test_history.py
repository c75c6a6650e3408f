"""OBSERVE_SEQNO, SEQNO_PERSISTENCE, GET_ALL_VB_SEQNOS and the failover log over a socket."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.node.config import NodeConfig
from headrace.wire import admin, kv, messages
from headrace.wire.frame import FrameInfo
from headrace.wire.opcodes import Feature, FrameInfoId, Status
from tests.node.client import Client
from tests.node.running import SMALL, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[Client]:
    """A client of a node with a disk."""
    config = NodeConfig(buckets=(SMALL,), data=tmp_path / "data")
    with running(config) as node, Client(node.port) as client:
        client.hello(Feature.MUTATION_SEQNO, Feature.ALT_REQUEST, Feature.COLLECTIONS)
        yield client


def log_of(client: Client, vbucket: int = 0) -> tuple[messages.FailoverEntry, ...]:
    request = messages.FailoverLogRequest(vbucket=vbucket)
    return client.ask(request, messages.FailoverLogReply).failover_log


def test_the_failover_log_names_the_branch_of_the_tokens(durable: Client) -> None:
    token = durable.set(b"\0k", b"v").vb_uuid
    assert [entry.uuid for entry in log_of(durable)] == [token]
    assert durable.status(messages.FailoverLogRequest(vbucket=99)) == Status.NOT_MY_VBUCKET


def test_a_seqno_is_answered_for_once_it_is_on_disk(durable: Client) -> None:
    seqno = durable.set(b"\0k", b"v").seqno or 0
    durable.ask(admin.SeqnoPersistence(seqno=seqno), admin.SeqnoPersistenceReply)
    uuid = log_of(durable)[0].uuid
    observed = durable.ask(admin.ObserveSeqno(vb_uuid=uuid), admin.ObserveSeqnoReply)
    assert observed.persisted_seqno >= seqno
    assert observed.high_seqno == seqno
    assert durable.status(admin.ObserveSeqno(vb_uuid=uuid + 1)) == Status.KEY_ENOENT


def test_a_branch_that_ended_is_told_with_where(durable: Client) -> None:
    old = log_of(durable)[0].uuid
    seqno = durable.set(b"\0k", b"v").seqno
    durable.ask(admin.SetVBucket(state=2), admin.SetVBucketReply)
    durable.ask(admin.SetVBucket(state=1), admin.SetVBucketReply)
    observed = durable.ask(admin.ObserveSeqno(vb_uuid=old), admin.ObserveSeqnoReply)
    assert (observed.failed_over, observed.old_vb_uuid) == (1, old)
    assert observed.old_high_seqno == seqno
    assert observed.vb_uuid == log_of(durable)[0].uuid != old


@pytest.mark.parametrize("level", [1, 2, 3])
def test_every_durability_level_is_met_on_a_disk(durable: Client, level: int) -> None:
    infos = (FrameInfo(FrameInfoId.DURABILITY, bytes([level])),)
    request = kv.Set(key=b"\0durable", value=b"v", frame_infos=infos)
    seqno = durable.ask(request, kv.SetReply).seqno or 0
    assert durable.get(b"\0durable").value == b"v"
    uuid = log_of(durable)[0].uuid
    observed = durable.ask(admin.ObserveSeqno(vb_uuid=uuid), admin.ObserveSeqnoReply)
    if level > 1:
        assert observed.persisted_seqno >= seqno - 1, "the prepare at least is on disk"


def test_requests_behind_one_that_waits_stay_in_order(durable: Client) -> None:
    infos = (FrameInfo(FrameInfoId.DURABILITY, b"\x03"),)
    durable.send(
        kv.Set(key=b"\0order", value=b"1", frame_infos=infos),
        kv.Get(key=b"\0order"),
        kv.Set(key=b"\0order", value=b"2"),
        kv.Get(key=b"\0order"),
    )
    replies = [durable.receive() for _ in range(4)]
    kinds = [type(reply) for reply in replies]
    assert kinds == [kv.SetReply, kv.GetReply, kv.SetReply, kv.GetReply]
    assert [reply.value for reply in replies if isinstance(reply, kv.GetReply)] == [b"1", b"2"]


def test_persistence_that_is_stopped_makes_a_durable_write_ambiguous(durable: Client) -> None:
    durable.ask(admin.StopPersistence(), admin.StopPersistenceReply)
    infos = (FrameInfo(FrameInfoId.DURABILITY, b"\x03\x00\x64"),)
    request = kv.Set(key=b"\0stuck", value=b"1", frame_infos=infos)
    assert durable.status(request) == Status.SYNC_WRITE_AMBIGUOUS
    assert durable.status(kv.Get(key=b"\0stuck")) == Status.KEY_ENOENT
    durable.ask(admin.StartPersistence(), admin.StartPersistenceReply)
    assert durable.status(request) == Status.SUCCESS


def test_a_key_with_a_durable_write_in_flight_takes_no_other(durable: Client) -> None:
    durable.ask(admin.StopPersistence(), admin.StopPersistenceReply)
    infos = (FrameInfo(FrameInfoId.DURABILITY, b"\x03\x03\xe8"),)
    durable.send(kv.Set(key=b"\0flight", value=b"1", frame_infos=infos))
    port = durable.socket.getpeername()[1]
    with Client(port) as other:
        other.hello(Feature.COLLECTIONS)
        seen = Status.SUCCESS
        for _ in range(1_000):
            seen = Status(other.status(kv.Get(key=b"\0flight")))
            if other.stats("vbucket-details 0")["vb_0:high_prepared_seqno"] != "0":
                break
        assert seen == Status.KEY_ENOENT
        refused = kv.Set(key=b"\0flight", value=b"2")
        assert other.status(refused) == Status.SYNC_WRITE_IN_PROGRESS
        other.ask(admin.StartPersistence(), admin.StartPersistenceReply)
    assert isinstance(durable.receive(), kv.SetReply)


def seqnos(
    client: Client, *, state: int | None = None, collection_id: int | None = None
) -> dict[int, int]:
    request = messages.GetAllVbSeqnos(state=state, collection_id=collection_id)
    reply = client.ask(request, messages.GetAllVbSeqnosReply)
    return {entry.vbucket: entry.seqno for entry in reply.seqnos}


def test_all_seqnos_by_state_and_collection(durable: Client) -> None:
    durable.set(b"\0k", b"v", vbucket=2)
    assert seqnos(durable) == {0: 0, 1: 0, 2: 1, 3: 0}
    durable.ask(admin.SetVBucket(vbucket=1, state=2), admin.SetVBucketReply)
    durable.ask(admin.SetVBucket(vbucket=3, state=4), admin.SetVBucketReply)
    assert set(seqnos(durable, state=0)) == {0, 1, 2}
    assert set(seqnos(durable, state=1)) == {0, 2}
    assert set(seqnos(durable, state=2)) == {1}
    assert set(seqnos(durable, state=4)) == {3}
    assert seqnos(durable, state=1, collection_id=0) == {0: 0, 2: 1}
    unknown = messages.GetAllVbSeqnos(state=1, collection_id=99)
    assert durable.status(unknown) == Status.UNKNOWN_COLLECTION
    assert durable.status(messages.GetAllVbSeqnos(state=7)) == Status.EINVAL


def test_a_memory_bucket_persists_nothing_and_says_so(client: Client) -> None:
    client.set(b"k", b"v")
    assert client.status(admin.SeqnoPersistence(seqno=1)) == Status.NOT_SUPPORTED
    uuid = log_of(client)[0].uuid
    observed = client.ask(admin.ObserveSeqno(vb_uuid=uuid), admin.ObserveSeqnoReply)
    assert observed.persisted_seqno == 0
    assert client.status(messages.GetAllVbSeqnos(state=1, collection_id=0)) == Status.EINVAL
