"""Two real nodes and a manager's link between them: replication, takeovers, durable writes."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from headrace.node.config import NodeConfig
from headrace.wire import admin, kv
from headrace.wire.frame import FrameInfo
from headrace.wire.message import ErrorReply
from headrace.wire.opcodes import (
    DurabilityLevel,
    Feature,
    FrameInfoId,
    Opcode,
    Status,
    VBucketState,
)
from tests.node.client import Client
from tests.node.forwarder import Forwarder
from tests.node.running import SMALL, RunningNode, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.store import VBucket

WAIT_SECONDS = 20.0
WRITER_FEATURES = (Feature.JSON, Feature.ALT_REQUEST, Feature.SYNC_REPLICATION, Feature.XERROR)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[RunningNode, RunningNode]]:
    """Two nodes with disks; vbucket 0 is active on the first and a replica on the second."""
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(running(NodeConfig(buckets=(SMALL,), data=tmp_path / name)))
            for name in ("a", "b")
        )
        with Client(second.port) as client:
            client.ask(admin.DelVBucket(), admin.DelVBucketReply)
            client.ask(admin.SetVBucket(state=VBucketState.REPLICA), admin.SetVBucketReply)
        yield first, second


def copy_of(node: RunningNode) -> VBucket:
    return node.node.hosts["default"].bucket.vbucket(0)


def until(what: Callable[[], bool]) -> None:
    """Wait for something that must happen."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not what():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.002)


def set_topology(node: RunningNode, text: bytes) -> None:
    with Client(node.port) as client:
        client.hello(Feature.JSON)
        request = admin.SetVBucket(state=VBucketState.ACTIVE, value=text, datatype=1)
        client.ask(request, admin.SetVBucketReply)


def durable(key: bytes, level: int, *, milliseconds: int = 15_000) -> kv.Set:
    data = bytes([level]) + milliseconds.to_bytes(2, "big")
    info = FrameInfo(FrameInfoId.DURABILITY, data)
    return kv.Set(key=key, value=b"v", frame_infos=(info,))


# -- takeover --------------------------------------------------------------------------------------


def test_a_vbucket_changes_its_node_and_no_write_is_lost(
    pair: tuple[RunningNode, RunningNode],
) -> None:
    """A client writes all the time, and goes to the other node when it is sent away."""
    first, second = pair
    written: list[bytes] = []
    stop = threading.Event()
    failed: list[object] = []

    def write() -> None:
        with Client(first.port) as here, Client(second.port) as there:
            client, number = here, 0
            while not stop.is_set():
                key = b"key-%d" % number
                reply = client.call(kv.Set(key=key, value=key))
                if isinstance(reply, kv.SetReply):
                    written.append(key)
                    number += 1
                elif isinstance(reply, ErrorReply) and reply.status == Status.NOT_MY_VBUCKET:
                    client = there if client is here else here
                else:
                    failed.append(reply)
                    return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        until(lambda: len(written) > 200)
        with Forwarder(first, second) as link:
            link.add_stream(0)
            until(lambda: copy_of(second).high_seqno > 100)
            link.close_stream(0)
            link.add_stream(0, takeover=True)
            until(lambda: copy_of(second).state is VBucketState.ACTIVE)
            seen = len(written)
            until(lambda: len(written) > seen + 200)
    finally:
        stop.set()
        writer.join(WAIT_SECONDS)
    assert failed == []
    assert copy_of(first).state is VBucketState.DEAD
    assert copy_of(second).failover_log == copy_of(first).failover_log, "no new branch"
    assert copy_of(second).high_seqno == len(written), "none twice"
    with Client(second.port) as client:
        for key in written:
            assert client.get(key).value == key


def test_a_client_waits_while_neither_serves_and_is_served_by_the_new_owner(
    pair: tuple[RunningNode, RunningNode],
) -> None:
    first, second = pair
    with Client(first.port) as client:
        client.set(b"k", b"v")
    with Forwarder(first, second) as link, Client(second.port) as waiting:
        link.stops_at = lambda frame: (
            frame.opcode == Opcode.SET_VBUCKET_STATE and frame.extras[0] == VBucketState.ACTIVE
        )
        link.add_stream(0, takeover=True)
        until(lambda: not link.held.is_set())
        assert copy_of(first).state is VBucketState.DEAD
        assert copy_of(second).state is VBucketState.PENDING
        waiting.send(kv.Get(key=b"k"), kv.Set(key=b"l"))
        with Client(first.port) as client:
            assert client.status(kv.Get(key=b"k")) == Status.NOT_MY_VBUCKET
        link.stops_at = lambda _: False
        link.held.set()
        reply = waiting.receive()
        assert isinstance(reply, kv.GetReply)
        assert reply.value == b"v"
        assert isinstance(waiting.receive(), kv.SetReply)
        until(lambda: link.passed[-1].opcode == Opcode.STREAM_END)
    assert link.passed[-1].extras == bytes(4), "finished"
    asked = [frame for frame in link.passed if frame.opcode == Opcode.SET_VBUCKET_STATE]
    assert [frame.extras[0] for frame in asked] == [VBucketState.PENDING, VBucketState.ACTIVE]


def test_a_link_that_breaks_in_between_leaves_the_states_as_they_are(
    pair: tuple[RunningNode, RunningNode],
) -> None:
    first, second = pair
    with Client(first.port) as client:
        client.set(b"k", b"v")
    with Forwarder(first, second) as link:
        link.stops_at = lambda frame: (
            frame.opcode == Opcode.SET_VBUCKET_STATE and frame.extras[0] == VBucketState.ACTIVE
        )
        link.add_stream(0, takeover=True)
        until(lambda: not link.held.is_set())
        link.break_off()
    until(lambda: len(first.node.connections) + len(second.node.connections) == 0)
    assert copy_of(first).state is VBucketState.DEAD
    assert copy_of(second).state is VBucketState.PENDING
    assert copy_of(second).high_seqno == copy_of(first).high_seqno


# -- durable writes --------------------------------------------------------------------------------


@pytest.mark.parametrize("level", DurabilityLevel)
def test_a_durable_write_is_on_the_replica_when_it_is_answered(
    pair: tuple[RunningNode, RunningNode], level: DurabilityLevel
) -> None:
    first, second = pair
    set_topology(first, b'{"topology":[["a","b"]]}')
    with Forwarder(first, second) as link, Client(first.port) as client:
        client.hello(*WRITER_FEATURES)
        link.add_stream(0)
        for number in range(20):
            client.ask(durable(b"key-%d" % number, level), kv.SetReply)
            copy = copy_of(second)
            assert copy.high_prepared_seqno == copy_of(first).high_prepared_seqno
            if level is DurabilityLevel.PERSIST_TO_MAJORITY:
                assert copy.persisted_seqno >= copy.high_prepared_seqno
        until(lambda: copy_of(second).high_seqno == copy_of(first).high_seqno)
        assert copy_of(second).all_pending() == []
        assert copy_of(second).item_count == 20


def test_a_durable_write_waits_for_its_replica_and_is_given_up_when_it_does_not_come(
    pair: tuple[RunningNode, RunningNode],
) -> None:
    first, second = pair
    set_topology(first, b'{"topology":[["a","b"]]}')
    with Client(first.port) as client, Client(first.port) as other:
        client.hello(*WRITER_FEATURES)
        client.send(durable(b"k", DurabilityLevel.MAJORITY, milliseconds=300))
        until(lambda: copy_of(first).pending(b"\0k") is not None)
        assert other.status(kv.Set(key=b"k")) == Status.SYNC_WRITE_IN_PROGRESS
        reply = client.receive()
        assert isinstance(reply, ErrorReply)
        assert reply.status == Status.SYNC_WRITE_AMBIGUOUS
        assert other.status(kv.Get(key=b"k")) == Status.KEY_ENOENT
        with Forwarder(first, second) as link:
            link.add_stream(0)
            client.ask(durable(b"k", DurabilityLevel.MAJORITY), kv.SetReply)
    set_topology(first, b'{"topology":[["a",null]]}')
    with Client(first.port) as client:
        client.hello(*WRITER_FEATURES)
        refused = client.status(durable(b"k", DurabilityLevel.MAJORITY))
        assert refused == Status.DURABILITY_IMPOSSIBLE


def test_a_prepare_in_flight_is_completed_by_the_new_owner(
    pair: tuple[RunningNode, RunningNode],
) -> None:
    first, second = pair
    # A third node that never comes: the write stays in flight.
    set_topology(first, b'{"topology":[["a","b","c","d"]]}')
    with Forwarder(first, second) as link, Client(first.port) as client:
        client.hello(*WRITER_FEATURES)
        link.add_stream(0)
        client.send(durable(b"k", DurabilityLevel.MAJORITY))
        until(lambda: copy_of(second).pending(b"\0k") is not None)
        link.close_stream(0)
        link.add_stream(0, takeover=True)
        reply = client.receive()
        assert isinstance(reply, ErrorReply)
        assert reply.status == Status.SYNC_WRITE_AMBIGUOUS
        until(lambda: copy_of(second).state is VBucketState.ACTIVE)
        with Client(second.port) as there:
            assert there.get(b"k").value == b"v"
    assert copy_of(second).all_pending() == []


def test_a_replica_that_is_promoted_commits_what_it_holds_once_its_own_replicas_have_it(
    pair: tuple[RunningNode, RunningNode],
) -> None:
    first, second = pair
    set_topology(first, b'{"topology":[["a","b","c","d"]]}')
    with Forwarder(first, second) as link, Client(first.port) as client:
        client.hello(*WRITER_FEATURES)
        link.add_stream(0)
        client.send(durable(b"k", DurabilityLevel.MAJORITY))
        until(lambda: copy_of(second).pending(b"\0k") is not None)
    set_topology(second, b'{"topology":[["b","e"]]}')
    with Client(second.port) as there:
        assert there.status(kv.Get(key=b"k")) == Status.SYNC_WRITE_RE_COMMIT
        assert there.status(kv.Set(key=b"k")) == Status.SYNC_WRITE_RE_COMMIT
        assert there.status(kv.Set(key=b"other")) == Status.SUCCESS
        assert there.stats("vbucket-details 0")["vb_0:topology"] == '[["b", "e"]]'
        set_topology(second, b'{"topology":[["b"]]}')
        assert there.get(b"k").value == b"v"
