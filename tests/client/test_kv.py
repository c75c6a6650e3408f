"""KvConnection: questions, pipelines, refusals, lost links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.client.access import Access
from headrace.client.address import NodeAddress
from headrace.client.kv import PIPELINE_MAX, KvConnection
from headrace.errors import ConnectionLost, StatusError
from headrace.node.config import BucketConfig, NodeConfig
from headrace.store import BucketSettings
from headrace.wire import kv
from headrace.wire.frame import Frame
from headrace.wire.message import ErrorReply
from headrace.wire.opcodes import Magic, Opcode, Status
from tests.client.producer import Producer
from tests.node.running import RunningNode, running

if TYPE_CHECKING:
    from collections.abc import Iterator

FOUR = (BucketConfig(settings=BucketSettings(vbuckets=4)),)


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    with running(NodeConfig(buckets=FOUR)) as running_node:
        yield running_node


@pytest.fixture
def link(node: RunningNode) -> Iterator[KvConnection]:
    address = NodeAddress("127.0.0.1", node.port)
    with KvConnection.open(address, Access(), bucket="default") as found:
        yield found


def test_more_requests_than_a_pipeline_holds_are_answered_in_order(link: KvConnection) -> None:
    requests = [kv.Get(key=b"\0absent-%d" % n) for n in range(PIPELINE_MAX + 50)]
    replies = link.ask_all(requests)
    assert len(replies) == len(requests)
    assert all(isinstance(reply, ErrorReply) for reply in replies)
    assert [reply.opaque for reply in replies] == [request.opaque for request in requests]


def test_a_refusal_is_an_error_with_its_status(link: KvConnection) -> None:
    with pytest.raises(StatusError, match="KEY_ENOENT") as caught:
        link.ask(kv.Get(key=b"\0absent"), kv.GetReply)
    assert caught.value.status == Status.KEY_ENOENT


def test_quiet_writes_tell_only_what_was_refused(link: KvConnection) -> None:
    noop = Frame(magic=Magic.REQUEST, opcode=Opcode.KV_NOOP, opaque=2).to_bytes()
    parts = [
        Frame(magic=Magic.REQUEST, opcode=Opcode.DELETEQ, opaque=n, key=b"\0none").to_bytes()
        for n in range(2)
    ]
    refused = link.write_quietly([*parts, noop], 2)
    assert [(opaque, reply.status) for opaque, reply in refused] == [
        (0, Status.KEY_ENOENT),
        (1, Status.KEY_ENOENT),
    ]


def test_a_frame_is_sent_as_it_is_and_its_status_told(link: KvConnection) -> None:
    frame = Frame(magic=Magic.REQUEST, opcode=Opcode.GET, opaque=77, key=b"\0absent")
    assert link.ask_raw(frame) == Status.KEY_ENOENT


def test_how_far_a_branch_is_on_disk(link: KvConnection) -> None:
    logs = link.failover_logs([0])
    found = link.persisted({0: logs[0].newest.uuid, 1: 12345})
    assert 0 in found, "a branch that nobody knows is left out"
    assert 1 not in found


def test_a_node_that_goes_away_is_a_lost_connection() -> None:
    with Producer(lambda *_: ()) as producer:
        address = NodeAddress("127.0.0.1", producer.port)
        link = KvConnection.open(address, Access(answer_seconds=5), bucket="default")
    with pytest.raises(ConnectionLost):
        link.seqnos()
    assert link.is_closed
