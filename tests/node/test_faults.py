"""Every lever, seen from the other end of a socket."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from headrace.errors import ConfigError
from headrace.testing import running_node
from headrace.wire import admin, kv, messages
from headrace.wire.frame import HEADER_SIZE
from headrace.wire.message import ErrorReply
from headrace.wire.opcodes import MarkerFlag, Opcode, Status, StreamEndReason, VBucketState
from tests.node.client import Client
from tests.node.fault_kit import Consumer, fill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.testing import RunningNode

WAIT_SECONDS = 20.0


@pytest.fixture
def node() -> Iterator[RunningNode]:
    """A node in memory: each test breaks its own."""
    with running_node() as started:
        yield started


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[RunningNode]:
    """A node with files."""
    with running_node(data=tmp_path / "data") as started:
        yield started


def eventually(look: Callable[[], bool]) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not look():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def is_from_disk(marker: messages.SnapshotMarker) -> bool:
    return bool((marker.flags or 0) & MarkerFlag.DISK)


def number_of(node: RunningNode, name: str) -> str:
    """The number of the connection with that name."""
    (found,) = (
        connection.session.number
        for connection in node.faults.on_loop(node.faults.connections)
        if connection.session.stream_name == name.encode()
    )
    return str(found)


# -- history ---------------------------------------------------------------------------------------


def test_a_failover_ends_streams_and_rolls_the_reader_back(node: RunningNode) -> None:
    fill(node.port, 50, vbucket=3)
    with Consumer(node.port, vbucket=3) as consumer:
        consumer.accept()
        consumer.until_seqno(50)
        old = consumer.log[0]
        result = node.faults.failover(vbucket=3, lose=20)
        assert (result["seqno"], result["high_seqno"]) == (30, 50)
        assert consumer.until_end().reason == StreamEndReason.STATE_CHANGED
        reply = consumer.stream()
        assert isinstance(reply, messages.RollbackReply)
        assert reply.rollback_seqno <= 30
        consumer.start_over()
        consumer.accept()
        assert [(entry.uuid, entry.seqno) for entry in consumer.log[1:]] == [(old.uuid, old.seqno)]
        assert consumer.log[0].seqno == 30
        fill(node.port, 5, vbucket=3, prefix="new")
        consumer.until_seqno(35)
        assert len(consumer.documents) == 35


def test_a_failover_to_a_seqno_keeps_that_seqno(node: RunningNode) -> None:
    fill(node.port, 10)
    node.faults.failover(vbucket=0, seqno=4)
    with Client(node.port) as client:
        assert client.status(kv.Get(key=b"k3")) == Status.SUCCESS
        assert client.status(kv.Get(key=b"k4")) == Status.KEY_ENOENT


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"vbucket": 9, "lose": 1}, "vbucket 9 of bucket default does not exist"),
        ({"vbucket": 0, "lose": 5}, "cannot fail over to seqno -5"),
        ({"vbucket": 0, "seqno": 1}, "cannot fail over to seqno 1"),
        ({"vbucket": 0}, "needs seqno or lose"),
        ({"vbucket": 0, "lose": 0, "bucket": "x"}, "bucket x is unknown; there are: default"),
    ],
)
def test_a_failover_that_cannot_be_says_why(
    node: RunningNode, arguments: dict[str, int], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        node.faults.failover(**arguments)  # type: ignore[arg-type]


def test_a_rollback_is_forced_once_and_only_on_who_is_beyond_it(node: RunningNode) -> None:
    fill(node.port, 20)
    with Consumer(node.port) as consumer:
        node.faults.rollback(vbucket=0, seqno=12)
        consumer.accept(end=20)  # from 0: at or below the seqno passes
        consumer.until_end()
        assert consumer.seqno == 20
        reply = consumer.stream()
        assert isinstance(reply, messages.RollbackReply)
        assert reply.rollback_seqno == 12
        consumer.seqno = 12
        consumer.accept(end=20)
        consumer.until_end()
        assert consumer.seqno == 20
        consumer.accept()


def test_a_rollback_of_another_vbucket_is_not_ours(node: RunningNode) -> None:
    fill(node.port, 5)
    node.faults.rollback(vbucket=1, seqno=0)
    with Consumer(node.port) as consumer:
        consumer.accept(end=5)
        consumer.until_end()
        consumer.accept()


def test_a_purge_moves_the_purge_seqno_and_rolls_old_readers_back(durable: RunningNode) -> None:
    fill(durable.port, 10)
    with Consumer(durable.port) as consumer, Client(durable.port) as client:
        consumer.accept(end=10)
        consumer.until_end()
        for number in range(5):
            client.ask(kv.Delete(key=f"k{number}".encode()), kv.DeleteReply)
        client.set(b"last", b"v")
        consumer.seqno, consumer.snapshot = 10, (10, 10)
        assert durable.faults.purge(vbucket=0)["purge_seqnos"] == {"0": 15}
        reply = consumer.stream()
        assert isinstance(reply, messages.RollbackReply)
        assert reply.rollback_seqno == 0
        consumer.seqno, consumer.snapshot = 0, (0, 0)
        consumer.documents.clear()
        consumer.accept(end=16)
        consumer.until_end()
        assert set(consumer.documents) == {b"k5", b"k6", b"k7", b"k8", b"k9", b"last"}


def test_a_dropped_cursor_sends_the_stream_to_the_disk_and_back(durable: RunningNode) -> None:
    window = {"supports_cursor_dropping": "true", "connection_buffer_size": "100"}
    with Consumer(durable.port, controls=window) as consumer:
        consumer.accept()
        fill(durable.port, 10)
        consumer.until_seqno(1)  # the window is full: the rest waits in memory
        with Client(durable.port) as client:
            client.ask(admin.SeqnoPersistence(seqno=10), admin.SeqnoPersistenceReply)
        assert not any(is_from_disk(marker) for marker in consumer.markers())
        number = number_of(durable, "sync:one")
        assert durable.faults.drop_cursor(vbucket=0, connection="sync:*") == {
            "dropped": [f"{number}:0"]
        }
        consumer.client.send(messages.Control(key=b"connection_buffer_size", value=b"0"))
        consumer.until_seqno(10)
        assert any(is_from_disk(marker) for marker in consumer.markers())
        fill(durable.port, 1, prefix="live")
        consumer.until_seqno(11)
        assert not is_from_disk(consumer.markers()[-1])
        assert len(consumer.documents) == 11


def test_no_cursor_to_drop_is_a_sentence(node: RunningNode) -> None:
    with pytest.raises(ConfigError, match="no stream of these has a cursor"):
        node.faults.drop_cursor()


def test_a_state_is_set_and_streams_end(node: RunningNode) -> None:
    with Consumer(node.port) as consumer:
        consumer.accept()
        node.faults.set_state(vbucket=0, state=VBucketState.DEAD)
        assert consumer.until_end().reason == StreamEndReason.STATE_CHANGED
        reply = consumer.stream()
        assert isinstance(reply, ErrorReply)
        assert reply.status == Status.NOT_MY_VBUCKET
    with pytest.raises(ConfigError, match=r"vbucket 4, allowed 0\.\.3"):
        node.faults.set_state(vbucket=4, state=1)


# -- connections -----------------------------------------------------------------------------------


def test_a_paused_connection_hears_and_says_nothing_until_resumed(node: RunningNode) -> None:
    with Consumer(node.port) as consumer:
        consumer.accept()
        node.faults.pause(connection="sync:one")
        fill(node.port, 3)
        consumer.client.send(messages.GetFailoverLog(vbucket=0))
        consumer.client.socket.settimeout(0.1)
        with pytest.raises(TimeoutError):
            consumer.step()
        consumer.client.socket.settimeout(WAIT_SECONDS)
        node.faults.resume(connection="sync:one")
        consumer.until_seqno(3)


def test_a_pause_may_end_by_itself(node: RunningNode) -> None:
    with Consumer(node.port) as consumer:
        consumer.accept()
        node.faults.pause(connection="sync:one", seconds=0.05)
        fill(node.port, 3)
        consumer.until_seqno(3)


def test_a_paused_reader_holds_no_more_than_the_limit(node: RunningNode) -> None:
    with Consumer(node.port) as consumer:
        consumer.accept()
        node.faults.pause(connection="sync:one")
        fill(node.port, 40, size=1024 * 1024)
        (connection,) = (
            one for one in node.node.connections if one.session.stream_name == b"sync:one"
        )
        transport = node.faults.transport_of(connection)
        assert transport is not None
        assert transport.get_write_buffer_size() < 8 * 1024 * 1024
        node.faults.resume(connection="sync:one")
        consumer.until_seqno(40)


def test_a_slow_connection_gets_everything_in_the_end(node: RunningNode) -> None:
    fill(node.port, 20, size=1000)
    with Consumer(node.port) as consumer:
        node.faults.slow(connection="sync:*", rate=200_000)
        begun = time.monotonic()
        consumer.accept(end=20)
        consumer.until_end()
        assert len(consumer.documents) == 20
        # No more than the rate, whatever the machine: 20 kB at 200 kB/s.
        assert time.monotonic() - begun >= 0.05


def test_a_cut_is_at_once(node: RunningNode) -> None:
    with Consumer(node.port) as consumer, Consumer(node.port, name="other") as other:
        consumer.accept()
        node.faults.cut(connection="sync:*")
        assert consumer.client.is_closed()
        other.accept()


def test_a_cut_after_so_many_bytes_lets_exactly_those_through(node: RunningNode) -> None:
    fill(node.port, 50)
    with Consumer(node.port) as consumer:
        node.faults.cut(connection=number_of(node, "sync:one"), size=1000)
        consumer.client.send(consumer.request())
        received = b""
        while data := consumer.client.socket.recv(1 << 16):
            received += data
        assert len(received) == 1000


def test_a_cut_in_the_middle_of_a_frame_leaves_half_of_one(node: RunningNode) -> None:
    fill(node.port, 50)
    with Consumer(node.port) as consumer:
        consumer.accept()
        consumer.until_seqno(50)
        node.faults.cut(connection="sync:one", middle=True)
        fill(node.port, 1, prefix="more")
        unfinished = consumer.until_lost()
        assert unfinished > 0
        assert consumer.seqno == 50


def test_a_cut_in_the_middle_after_so_many_bytes_is_inside_a_frame(node: RunningNode) -> None:
    fill(node.port, 50)
    with Consumer(node.port) as consumer:
        node.faults.cut(connection="sync:one", size=1000, middle=True)
        consumer.accept()
        assert consumer.until_lost() >= HEADER_SIZE
        assert 0 < consumer.seqno < 50


def test_nobody_of_that_name_is_a_sentence(node: RunningNode) -> None:
    with pytest.raises(ConfigError, match="no connection is 'nobody'"):
        node.faults.cut(connection="nobody")


def test_requests_are_refused_with_the_status_so_often(node: RunningNode) -> None:
    node.faults.refuse(opcode=Opcode.SET, status=Status.ETMPFAIL, count=2, vbucket=1)
    with Client(node.port) as client:
        statuses = [client.status(kv.Set(key=b"a", value=b"b", vbucket=1)) for _ in range(3)]
        assert statuses == [Status.ETMPFAIL, Status.ETMPFAIL, Status.SUCCESS]
    assert node.node.serves_runs, "the fast road is open again"


def test_a_stream_request_is_refused(node: RunningNode) -> None:
    node.faults.refuse(opcode=Opcode.STREAM_REQ, status=Status.ENOMEM, connection="sync:*")
    with Consumer(node.port, name="other") as other, Consumer(node.port) as consumer:
        other.accept()
        reply = consumer.stream()
        assert isinstance(reply, ErrorReply)
        assert reply.status == Status.ENOMEM
        consumer.accept()


def test_a_refusal_with_not_my_vbucket_carries_the_map(node: RunningNode) -> None:
    node.faults.refuse(opcode=Opcode.GET, status=Status.NOT_MY_VBUCKET)
    with Client(node.port) as client:
        assert b"vBucketServerMap" in client.refusal(kv.Get(key=b"a")).value


@pytest.mark.parametrize(
    ("opcode", "status", "sentence"),
    [
        (Opcode.STREAM_REQ, Status.ROLLBACK, "use the lever rollback"),
        (Opcode.BUFFER_ACK, Status.EINVAL, "never answered"),
    ],
)
def test_a_refusal_that_makes_no_sense_is_refused(
    node: RunningNode, opcode: Opcode, status: Status, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        node.faults.refuse(opcode=opcode, status=status)


# -- the disk --------------------------------------------------------------------------------------


def test_persistence_stops_and_starts(durable: RunningNode) -> None:
    durable.faults.stop_persistence()
    fill(durable.port, 1)
    with Client(durable.port) as client:
        log = client.ask(messages.FailoverLogRequest(vbucket=0), messages.FailoverLogReply)
        ask = admin.ObserveSeqno(vbucket=0, vb_uuid=log.failover_log[0].uuid)
        assert client.ask(ask, admin.ObserveSeqnoReply).persisted_seqno == 0
        durable.faults.start_persistence()
        client.ask(admin.SeqnoPersistence(seqno=1), admin.SeqnoPersistenceReply)
        assert client.ask(ask, admin.ObserveSeqnoReply).persisted_seqno == 1


def test_a_bucket_in_memory_has_no_persistence_to_stop(node: RunningNode) -> None:
    with pytest.raises(ConfigError, match="lives in memory alone"):
        node.faults.stop_persistence()


def test_delayed_commits_are_late_but_made(durable: RunningNode) -> None:
    durable.faults.delay_commits(seconds=0.2)
    begun = time.monotonic()
    fill(durable.port, 1)
    with Client(durable.port) as client:
        client.ask(admin.SeqnoPersistence(seqno=1), admin.SeqnoPersistenceReply)
    assert time.monotonic() - begun >= 0.2
    with pytest.raises(ConfigError, match=r"allowed 0\.\.10"):
        durable.faults.delay_commits(seconds=11.0)


@pytest.mark.parametrize(("when_durable", "kept"), [(False, 3), (True, 4)])
def test_a_crash_at_a_commit_keeps_what_was_durable(
    durable: RunningNode, when_durable: bool, kept: int
) -> None:
    fill(durable.port, 3)
    with Client(durable.port) as client:
        client.ask(admin.SeqnoPersistence(seqno=3), admin.SeqnoPersistenceReply)
    with Consumer(durable.port) as consumer:
        consumer.accept()
        consumer.until_seqno(3)
        durable.faults.crash(durable=when_durable)
        fill(durable.port, 1, prefix="x")
        consumer.until_lost()
        assert durable.wait_crashed()
        durable.restart()
        saw, documents = consumer.seqno, dict(consumer.documents)
    with Consumer(durable.port, name="again") as again:
        again.log, again.seqno = consumer.log, saw
        again.snapshot, again.documents = consumer.snapshot, documents
        reply = again.stream()
        if isinstance(reply, messages.RollbackReply):
            assert saw > kept
            again.start_over()
            again.accept()
        assert len(again.log) == 2, "an unclean stop begins a branch"
        again.until_seqno(kept)
        assert len(again.documents) == kept


def test_a_crash_at_once(durable: RunningNode) -> None:
    with pytest.raises(Exception, match="crashed on demand"):
        durable.faults.crash(commits=0)
    assert durable.wait_crashed()


# -- triggers --------------------------------------------------------------------------------------


def test_a_seqno_trigger_is_exact(node: RunningNode) -> None:
    step = node.faults.add("at vbucket 3 seqno 50: fail over losing 20")
    fill(node.port, 60, vbucket=3)
    assert step.wait() == {**step.result, "high_seqno": 50, "seqno": 30}
    with Client(node.port) as client:
        log = client.ask(messages.FailoverLogRequest(vbucket=3), messages.FailoverLogReply)
        assert [entry.seqno for entry in log.failover_log] == [30, 0]
        keys = [f"k{number}".encode() for number in range(60)]
        there = [client.status(kv.Get(key=key, vbucket=3)) == Status.SUCCESS for key in keys]
        assert there == [True] * 30 + [False] * 20 + [True] * 10
    assert node.node.serves_runs


def test_a_pipelined_flight_does_not_outrun_a_seqno_trigger(node: RunningNode) -> None:
    step = node.faults.add("at vbucket 0 seqno 50: fail over losing 20")
    with Client(node.port) as client:
        client.send(*(kv.Set(key=b"k%d" % number, value=b"v") for number in range(200)))
        for _ in range(200):
            client.receive()
    assert step.wait()["high_seqno"] == 50


def test_a_sent_trigger_waits_for_the_reader(node: RunningNode) -> None:
    fill(node.port, 40)
    step = node.faults.add('at vbucket 0 sent 40 to "sync:*": fail over losing 10')
    with Consumer(node.port) as consumer:
        consumer.accept()
        consumer.until_end()
        assert consumer.seqno == 40
        assert step.wait()["seqno"] == 30


def test_mutations_are_counted_to_the_frame(node: RunningNode) -> None:
    fill(node.port, 100)
    step = node.faults.add('after 37 mutations to "sync:*": cut')
    with Consumer(node.port) as consumer:
        consumer.accept()
        assert consumer.until_lost() == 0
        assert consumer.seqno == 37
        step.wait()


def test_a_count_begins_anew_for_each_connection(node: RunningNode) -> None:
    fill(node.port, 30)
    with Consumer(node.port, name="sync:a") as first:
        first.accept(end=30)
        first.until_end()
        node.faults.add('after 5 mutations to "sync:*": cut')
        first.seqno, first.snapshot = 0, (0, 0)
        first.accept()
        first.until_lost()
        assert first.seqno == 5


def test_a_request_trigger_knows_who_asks_for_what(node: RunningNode) -> None:
    fill(node.port, 9, vbucket=2)
    step = node.faults.add("next stream-request vbucket 2: rollback to 4")
    with Consumer(node.port, vbucket=2) as consumer:
        consumer.seqno, consumer.snapshot = 9, (9, 9)
        reply = consumer.stream()
        assert isinstance(reply, messages.RollbackReply)
        assert reply.rollback_seqno == 4
        step.wait()


def test_a_request_trigger_may_cut_who_asks(node: RunningNode) -> None:
    node.faults.add("next stream-request: cut")
    with Consumer(node.port) as consumer:
        consumer.client.send(consumer.request())
        assert consumer.client.is_closed()


def test_a_commit_trigger_comes_after_that_commit(durable: RunningNode) -> None:
    step = durable.faults.add("at commit 2: set state vbucket 1 to replica")
    eventually(lambda: not _write_and_look(durable, step.state.value == "waiting"))
    assert step.wait() == {"vbucket": 1, "state": "replica"}


def _write_and_look(node: RunningNode, waits: bool) -> bool:
    fill(node.port, 1)
    return waits


def test_then_follows_the_step_above(node: RunningNode) -> None:
    first = node.faults.add("after 20ms: set state vbucket 1 to replica")
    second = node.faults.add("then after 10ms: set state vbucket 1 to dead")
    third = node.faults.add("then: set state vbucket 1 to active")
    third.wait()
    assert [step.state.value for step in (first, second, third)] == ["fired"] * 3


def test_a_step_that_fails_says_why_and_the_next_goes_on(node: RunningNode) -> None:
    first = node.faults.add("now: fail over vbucket 0 losing 3")
    second = node.faults.add("then: set state vbucket 1 to dead")
    with pytest.raises(ConfigError, match="cannot fail over to seqno -3"):
        first.wait()
    second.wait()


def test_clear_lifts_and_forgets(node: RunningNode) -> None:
    waiting = node.faults.add("at vbucket 0 seqno 10: crash")
    node.faults.refuse(opcode=Opcode.GET, status=Status.EBUSY)
    node.faults.delay_commits(seconds=1.0)
    with Consumer(node.port) as consumer:
        consumer.accept()
        node.faults.pause(connection="sync:one")
        assert node.faults.clear() == {"steps": 1, "answers": 1}
        fill(node.port, 20)
        consumer.until_seqno(20)
    with pytest.raises(ConfigError, match="was cancelled"):
        waiting.wait()
    assert node.node.serves_runs


def test_a_lever_with_a_trigger_from_python(node: RunningNode) -> None:
    step = node.faults.when("at vbucket 1 seqno 5", "failover", lose=2)
    fill(node.port, 5, vbucket=1)
    assert step.wait()["seqno"] == 3
    with pytest.raises(ConfigError, match="lever 'explode' is unknown; there are: failover"):
        node.faults.when("now", "explode")
    with pytest.raises(ConfigError, match="cut takes no speed; its parameters: connection, size"):
        node.faults.when("now", "cut", speed=1)


def test_levers_may_be_pulled_from_many_threads(node: RunningNode) -> None:
    fill(node.port, 10)
    failures: list[BaseException] = []

    def pull(number: int) -> None:
        try:
            for _ in range(10):
                node.faults.set_state(vbucket=number, state=VBucketState.REPLICA)
                node.faults.set_state(vbucket=number, state=VBucketState.ACTIVE)
        except BaseException as error:  # noqa: BLE001 - raised below, on the test's thread
            failures.append(error)

    threads = [threading.Thread(target=pull, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert failures == []


def test_a_node_without_faults_has_none() -> None:
    from headrace.node.config import NodeConfig
    from tests.node.running import SMALL, running

    with running(NodeConfig(buckets=(SMALL,))) as started:
        assert started.node.faults is None
        assert started.node.hosts["default"].bucket.core.disk.__class__.__name__ == "MemoryDisk"
