"""OPEN over a socket: roles, names, and input that is heard while data flows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.node.config import NodeConfig
from headrace.node.users import Role, User, Users
from headrace.wire import admin, kv, messages
from headrace.wire.opcodes import SEQNO_MAX, OpenFlag, Status
from tests.node.client import Client
from tests.node.running import SMALL, RunningNode, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.wire.message import Request


@pytest.fixture
def own() -> Iterator[RunningNode]:
    """A node of this test's own."""
    with running(NodeConfig(buckets=(SMALL,))) as node:
        yield node


def stream(vbucket: int = 0, start: int = 0) -> messages.StreamRequest:
    return messages.StreamRequest(
        vbucket=vbucket,
        flags=0,
        start_seqno=start,
        end_seqno=SEQNO_MAX,
        vb_uuid=0,
        snap_start_seqno=start,
        snap_end_seqno=start,
    )


def test_what_is_written_is_streamed(own: RunningNode) -> None:
    with Client(own.port) as writer, Client(own.port) as reader:
        writer.set(b"before", b"1")
        reader.open_producer()
        reader.send(stream())
        assert isinstance(reader.receive(), messages.StreamRequestReply)
        assert isinstance(reader.receive(), messages.SnapshotMarker)
        first = reader.receive()
        assert isinstance(first, messages.Mutation)
        assert (first.key, first.value, first.by_seqno) == (b"before", b"1", 1)
        writer.set(b"after", b"2")
        assert isinstance(reader.receive(), messages.SnapshotMarker)
        second = reader.receive()
        assert isinstance(second, messages.Mutation)
        assert second.key == b"after"


@pytest.mark.parametrize(
    "request_",
    [
        stream(),
        messages.CloseStream(),
        messages.GetFailoverLog(),
        messages.Control(key=b"enable_noop", value=b"true"),
        messages.BufferAck(ack_bytes=1),
        messages.AddStream(flags=0),
    ],
    ids=lambda request: type(request).__name__,
)
def test_change_stream_messages_need_an_open_connection(client: Client, request_: Request) -> None:
    assert client.status(request_) == Status.EINVAL
    assert client.status(admin.KvNoop()) == Status.SUCCESS


def test_a_second_open_is_refused_and_documents_can_still_be_read(own: RunningNode) -> None:
    with Client(own.port) as client:
        client.open_producer()
        again = messages.Open(key=b"again", flags=OpenFlag.PRODUCER)
        assert client.status(again) == Status.EINVAL
        assert client.status(kv.Get(key=b"none")) == Status.KEY_ENOENT
        assert client.status(admin.SelectBucket(key=b"default")) == Status.EINVAL


def test_who_opens_a_name_closes_the_one_who_had_it(own: RunningNode) -> None:
    with Client(own.port) as first, Client(own.port) as second:
        first.open_producer(b"name")
        second.open_producer(b"name")
        assert first.is_closed()
        assert second.status(admin.KvNoop()) == Status.SUCCESS
        assert second.stats("dcp")["ep_dcp_count"] == "1"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (messages.Open(key=b"", flags=1), Status.EINVAL),
        (messages.Open(key=b"n", flags=0x8001), Status.EINVAL),
        (messages.Open(key=b"n" * 251, flags=1), Status.EINVAL),
        (messages.Open(key=b"n", flags=0x200), Status.EINVAL),
        (
            messages.Open(key=b"n", flags=1, value=b'{"consumer_name":"b"}', datatype=1),
            Status.EINVAL,
        ),
    ],
)
def test_an_open_that_cannot_be_is_refused(
    own: RunningNode, request_: messages.Open, status: Status
) -> None:
    with Client(own.port) as client:
        assert client.status(request_) == status
        client.open_producer()


@pytest.mark.parametrize(
    "request_",
    [
        messages.AddStream(flags=0),
        messages.StreamEnd(reason=0),
        messages.Noop(),
        messages.SetVBucketState(state=1),
    ],
    ids=lambda request: type(request).__name__,
)
def test_a_message_of_the_other_role_closes_the_connection(
    own: RunningNode, request_: Request
) -> None:
    with Client(own.port) as client:
        client.open_producer()
        client.send(request_)
        assert client.is_closed()
    with Client(own.port) as client:
        assert client.status(admin.KvNoop()) == Status.SUCCESS, "the node lives"


def test_a_close_is_heard_while_a_long_stream_runs(own: RunningNode) -> None:
    value = bytes(256 * 1024)
    with Client(own.port) as writer, Client(own.port) as reader:
        for number in range(200):
            writer.set(b"k%d" % number, value)
        reader.open_producer()
        reader.send(stream())
        assert isinstance(reader.receive(), messages.StreamRequestReply)
        reader.send(messages.CloseStream(vbucket=0))
        seen = 0
        while not isinstance(message := reader.receive(), messages.CloseStreamReply):
            seen += isinstance(message, messages.Mutation)
        assert seen < 200, "the close overtook the data"


def test_a_stream_sees_the_state_change(own: RunningNode) -> None:
    with Client(own.port) as admin_client, Client(own.port) as reader:
        reader.open_producer()
        reader.send(stream(1))
        assert isinstance(reader.receive(), messages.StreamRequestReply)
        admin_client.ask(admin.SetVBucket(vbucket=1, state=4), admin.SetVBucketReply)
        ended = reader.receive()
        assert isinstance(ended, messages.StreamEnd)
        assert ended.reason == 2


def test_without_the_producers_flag_our_end_consumes(own: RunningNode) -> None:
    with Client(own.port) as manager, Client(own.port) as watcher:
        watcher.ask(admin.SetVBucket(vbucket=1, state=2), admin.SetVBucketReply)
        name = messages.Open(key=b"repl", flags=0, value=b'{"consumer_name":"b"}', datatype=1)
        manager.ask(name, messages.OpenReply)
        manager.send(messages.AddStream(vbucket=1))
        asked = manager.receive()
        assert isinstance(asked, messages.Control)
        assert asked.key == b"connection_buffer_size"
        assert isinstance(manager.receive(), admin.GetErrorMap)
        found = watcher.stats("dcp")
        assert found["eq_dcpq:repl:type"] == "consumer"
        assert found["eq_dcpq:repl:stream_1_state"] == "pending"
        counts = ("ep_dcp_count", "ep_dcp_producer_count", "ep_dcp_consumer_count")
        assert [found[one] for one in counts] == ["1", "0", "1"]
        assert watcher.stats("dcpagg e")["r:consumer_count"] == "1"
        watcher.open_producer(b"repl")
        assert manager.is_closed(), "one namespace for both roles"
        while watcher.stats("dcp")["ep_dcp_consumer_count"] != "0":
            pass


def test_a_consumer_changes_our_vbuckets_and_needs_the_admins_role() -> None:
    users = Users((User(name="w", password="x", role=Role.WRITE),))  # noqa: S106 - of this test
    with (
        running(NodeConfig(buckets=(SMALL,), users=users)) as node,
        Client(node.port) as client,
    ):
        client.login("w", "x")
        client.ask(admin.SelectBucket(key=b"default"), admin.SelectBucketReply)
        assert client.status(messages.Open(key=b"n", flags=0)) == Status.EACCESS


def test_a_stream_request_on_a_consumers_connection_closes_it(own: RunningNode) -> None:
    with Client(own.port) as client:
        client.ask(messages.Open(key=b"repl", flags=0), messages.OpenReply)
        client.send(stream())
        assert client.is_closed()


def test_a_gone_connection_frees_its_name(own: RunningNode) -> None:
    with Client(own.port) as first:
        first.open_producer(b"freed")
    with Client(own.port) as second:
        while second.stats("dcp")["ep_dcp_count"] != "0":
            pass
