"""The producer as its owner drives it: requests, replies, the window, noops, the end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from headrace.node.producer_context import ProducerSettings
from headrace.protocol.flow import NOOP_OPAQUE_BASE
from headrace.wire.dialect import Dialect
from headrace.wire.message import ErrorReply, stream_id_info
from headrace.wire.messages import (
    Abort,
    AddStream,
    BufferAck,
    BufferAckReply,
    CacheTransferEnd,
    CloseStream,
    CloseStreamReply,
    Commit,
    Control,
    Deletion,
    Expiration,
    FailoverEntry,
    GetFailoverLog,
    GetFailoverLogReply,
    Mutation,
    Noop,
    NoopReply,
    Open,
    OpenReply,
    Prepare,
    RollbackReply,
    SeqnoAcknowledged,
    SetVBucketState,
    SetVBucketStateReply,
    SnapshotMarker,
    SnapshotMarkerReply,
    StreamEnd,
    StreamRequestReply,
    SystemEvent,
)
from headrace.wire.opcodes import Feature, OpenFlag, Status, StreamFlag, VBucketState
from tests.node.stream_kit import Host, Peer, kinds, make_host, only, refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.wire.message import Message

KEY = b"\0key-%04d"


@pytest.fixture
def host() -> Iterator[Host]:
    made = make_host()
    yield made
    made.bucket.close()


def fill(host: Host, count: int, *, vbucket: int = 0, size: int = 20, first: int = 0) -> None:
    for number in range(first, first + count):
        host.bucket.vbucket(vbucket).store(KEY % number, b"v" * size)


# -- OPEN ------------------------------------------------------------------------------------------


def test_an_open_is_answered_and_a_second_one_refused(host: Host) -> None:
    peer = Peer(host)
    assert isinstance(peer.opened, OpenReply)
    assert peer.producer.is_open
    assert refused(peer.ask(Open(flags=1, key=b"again", opaque=9))) == Status.EINVAL
    assert peer.producer.closed_reason is None


def test_an_open_with_flags_that_contradict_each_other_opens_nothing(host: Host) -> None:
    peer = Peer(host, flags=OpenFlag.NO_VALUE | OpenFlag.NO_VALUE_KEEP_DATATYPE)
    assert refused(peer.opened) == Status.EINVAL
    assert not peer.producer.is_open


def test_a_refusal_says_why_to_those_who_read_json(host: Host) -> None:
    peer = Peer(host, features=[Feature.JSON])
    reply = peer.control("enable_noop", "maybe")
    assert isinstance(reply, ErrorReply)
    assert "maybe" in json.loads(reply.value)["error"]["context"]
    silent = Peer(host).control("enable_noop", "maybe")
    assert isinstance(silent, ErrorReply)
    assert silent.value == b""


# -- roles -----------------------------------------------------------------------------------------

FOREIGN: list[Message] = [
    AddStream(flags=0),
    StreamEnd(reason=0),
    SnapshotMarker(start_seqno=1, end_seqno=1, flags=1),
    Mutation(key=b"k", by_seqno=1),
    Deletion(key=b"k", by_seqno=1, nmeta=0),
    Expiration(key=b"k", by_seqno=1, delete_time=0),
    SetVBucketState(state=VBucketState.ACTIVE),
    Noop(opaque=1),
    SystemEvent(by_seqno=1, event=0, version=0),
    Prepare(key=b"k", by_seqno=1, durability=1),
    Commit(key=b"k", prepared_seqno=1, commit_seqno=2),
    Abort(key=b"k", prepared_seqno=1, abort_seqno=2),
    CacheTransferEnd(),
]


@pytest.mark.parametrize("message", FOREIGN, ids=lambda one: type(one).__name__)
def test_a_message_of_the_other_role_closes_without_an_answer(host: Host, message: Message) -> None:
    peer = Peer(host)
    assert peer.tell(message) == []
    assert peer.producer.closed_reason is not None
    assert type(message).__name__ in peer.producer.closed_reason
    assert peer.tell(GetFailoverLog(vbucket=0)) == []


FORGIVEN = [
    (0x57, Status.NOT_MY_VBUCKET, False, True),
    (0x57, Status.STREAM_NOT_FOUND, True, True),
    (0x57, Status.OPAQUE_NO_MATCH, True, True),
    (0x57, Status.KEY_ENOENT, False, True),
    (0x57, Status.KEY_EEXISTS, False, True),
    (0x57, Status.KEY_ENOENT, True, False),
    (0x57, Status.KEY_EEXISTS, True, False),
    (0x62, Status.KEY_ENOENT, False, False),
    (0x63, Status.KEY_ENOENT, False, False),
    (0x55, Status.KEY_ENOENT, True, True),
    (0x57, Status.ERANGE, False, False),
    (0x57, Status.EINVAL, False, False),
    (0x57, Status.ENOMEM, False, False),
    (0x56, Status.EINVAL, False, True),
    (0x5B, Status.EINVAL, False, True),
]


@pytest.mark.parametrize(("opcode", "status", "v7", "lives"), FORGIVEN)
def test_an_error_reply_is_forgiven_or_ends_the_connection(
    host: Host, opcode: int, status: Status, v7: bool, lives: bool
) -> None:
    peer = Peer(host, controls={"v7_dcp_status_codes": "true"} if v7 else {})
    assert peer.tell(ErrorReply(opcode=opcode, status=status)) == []
    assert (peer.producer.closed_reason is None) == lives


@pytest.mark.parametrize("reply", [SnapshotMarkerReply(), SetVBucketStateReply(), BufferAckReply()])
def test_replies_that_nobody_waits_for_are_taken(host: Host, reply: Message) -> None:
    peer = Peer(host)
    assert peer.tell(reply) == []
    assert peer.producer.closed_reason is None


# -- stream requests -------------------------------------------------------------------------------


def test_an_accepted_request_carries_the_failover_log(host: Host) -> None:
    peer = Peer(host)
    reply = peer.stream(1)
    entry = host.bucket.vbucket(1).failover_log.newest
    assert reply.failover_log == (FailoverEntry(entry.uuid, entry.seqno),)
    assert reply.opaque == 0x1001


def test_a_second_stream_of_a_vbucket_is_refused_while_the_first_lives(host: Host) -> None:
    peer = Peer(host)
    peer.stream(0)
    assert refused(peer.request(0)) == Status.KEY_EEXISTS
    peer.ask(CloseStream(vbucket=0, opaque=3))
    peer.stream(0)


STATES = [(VBucketState.PENDING, 0), (VBucketState.DEAD, 0), (VBucketState.REPLICA, 0x10)]


@pytest.mark.parametrize(("state", "flags"), STATES)
def test_a_vbucket_that_cannot_be_a_source_is_not_ours(
    host: Host, state: VBucketState, flags: int
) -> None:
    host.bucket.vbucket(2).set_state(state)
    reply = Peer(host).request(2, flags=flags)
    assert isinstance(reply, ErrorReply)
    assert (reply.status, reply.value) == (Status.NOT_MY_VBUCKET, b'{"rev":1}')


def test_a_vbucket_that_does_not_exist_is_not_ours(host: Host) -> None:
    assert refused(Peer(host).request(77)) == Status.NOT_MY_VBUCKET
    assert refused(Peer(host).ask(GetFailoverLog(vbucket=77))) == Status.NOT_MY_VBUCKET


def test_a_replica_can_be_a_source(host: Host) -> None:
    host.bucket.vbucket(2).set_state(VBucketState.REPLICA)
    Peer(host).stream(2)


@pytest.mark.parametrize(
    ("start", "end", "snapshot"), [(5, 2, (5, 5)), (3, 9, (4, 6)), (5, 9, (1, 3))]
)
def test_a_range_that_contradicts_itself_is_refused(
    host: Host, start: int, end: int, snapshot: tuple[int, int]
) -> None:
    fill(host, 10)
    peer = Peer(host)
    reply = peer.request(0, start, end=end, uuid=peer.uuid(), snapshot=snapshot)
    assert refused(reply) == Status.ERANGE


@pytest.mark.parametrize("flags", [OpenFlag.INCLUDE_XATTRS])
def test_xattrs_need_noop_first(host: Host, flags: int) -> None:
    peer = Peer(host, flags=flags)
    assert refused(peer.request(0)) == Status.NOT_SUPPORTED
    peer.control("enable_noop", "true")
    peer.stream(0)


def test_collections_need_noop_first(host: Host) -> None:
    peer = Peer(host, features=[Feature.COLLECTIONS])
    assert refused(peer.request(0)) == Status.NOT_SUPPORTED
    peer.control("enable_noop", "true")
    peer.stream(0)


FLAGS = [
    (StreamFlag.NO_VALUE, Status.EINVAL),
    (0x200, Status.EINVAL),
    (StreamFlag.CACHE_TRANSFER, Status.NOT_SUPPORTED),
]


@pytest.mark.parametrize(("flags", "status"), FLAGS)
def test_a_stream_flag_that_is_not_served_is_refused(
    host: Host, flags: int, status: Status
) -> None:
    assert refused(Peer(host).request(0, flags=flags)) == status


def test_a_value_without_collections_is_invalid(host: Host) -> None:
    assert refused(Peer(host).request(0, value=b'{"uid":"0"}')) == Status.EINVAL


def test_a_full_backfill_memory_refuses_new_streams(host: Host) -> None:
    peer = Peer(host, settings=ProducerSettings(backfill_is_full=lambda: True))
    assert refused(peer.request(0)) == Status.ENOMEM


def test_a_consumer_that_saw_more_is_rolled_back(host: Host) -> None:
    fill(host, 10)
    peer = Peer(host)
    assert peer.request(0, 62, uuid=peer.uuid()) == RollbackReply(opaque=0x1000, rollback_seqno=10)
    assert peer.request(0, 9, uuid=0x1122) == RollbackReply(opaque=0x1000, rollback_seqno=0)
    assert peer.request(0, 9, uuid=0) == RollbackReply(opaque=0x1000, rollback_seqno=0)
    assert peer.request(0, 0, uuid=0x1122, flags=StreamFlag.STRICT_UUID) == RollbackReply(
        opaque=0x1000, rollback_seqno=0
    )
    peer.stream(0, 0, uuid=0x1122)


def test_from_latest_starts_at_the_high_seqno(host: Host) -> None:
    fill(host, 10)
    peer = Peer(host)
    peer.stream(0, 0, flags=StreamFlag.FROM_LATEST)
    assert peer.drain() == []
    fill(host, 1, first=20)
    assert kinds(peer.drain()) == ["marker 10-11 05", "mutation 11"]


def test_a_thousand_requests_may_be_pipelined() -> None:
    host = make_host(vbuckets=1024)
    peer = Peer(host)
    for vbucket in range(1024):
        host.bucket.vbucket(vbucket).store(b"\0k", b"v")
    for vbucket in range(1024):
        peer.stream(vbucket, flags=StreamFlag.TO_LATEST)
    messages = peer.drain()
    assert len(only(messages, StreamEnd)) == 1024
    assert {message.vbucket for message in only(messages, Mutation)} == set(range(1024))
    assert peer.producer.streams == {}
    host.bucket.close()


def test_the_draft_may_call_an_unknown_branch_missing(host: Host) -> None:
    fill(host, 3)
    strict = ProducerSettings(unknown_branch_is_enoent=True)
    peer = Peer(host, dialect=Dialect.UPR_DRAFT, settings=strict)
    assert refused(peer.request(0, 2, uuid=77)) == Status.KEY_ENOENT
    lenient = Peer(host, dialect=Dialect.UPR_DRAFT)
    assert isinstance(lenient.request(0, 2, uuid=77), RollbackReply)


# -- closing a stream ------------------------------------------------------------------------------


def test_closing_a_stream_that_is_not_there_is_refused(host: Host) -> None:
    assert refused(Peer(host).ask(CloseStream(vbucket=0))) == Status.KEY_ENOENT
    newer = Peer(host, controls={"v7_dcp_status_codes": "true"})
    assert refused(newer.ask(CloseStream(vbucket=0))) == Status.STREAM_NOT_FOUND


def test_a_closed_stream_ends_silently_unless_asked_otherwise(host: Host) -> None:
    peer = Peer(host)
    peer.stream(0)
    assert isinstance(peer.ask(CloseStream(vbucket=0)), CloseStreamReply)
    fill(host, 1)
    assert peer.drain() == []
    peer.control("send_stream_end_on_client_close_stream", "true")
    peer.stream(1)
    peer.ask(CloseStream(vbucket=1))
    assert kinds(peer.drain()) == ["end 1"]


def test_a_close_is_obeyed_in_the_middle_of_a_backfill(host: Host) -> None:
    fill(host, 100, size=1000)
    peer = Peer(host)
    peer.stream(0)
    got = peer.pull(5_000)
    assert 2 <= len(got) < 10
    peer.ask(CloseStream(vbucket=0))
    assert peer.drain() == []


# -- failover log, acknowledgements ----------------------------------------------------------------


def test_the_failover_log_is_told_newest_first(host: Host) -> None:
    vbucket = host.bucket.vbucket(0)
    fill(host, 5)
    vbucket.set_state(VBucketState.REPLICA)
    vbucket.set_state(VBucketState.ACTIVE)
    reply = Peer(host).ask(GetFailoverLog(vbucket=0))
    assert isinstance(reply, GetFailoverLogReply)
    assert [entry.seqno for entry in reply.failover_log] == [5, 0]


def test_seqnos_are_acknowledged_by_sync_replicas_only(host: Host) -> None:
    fill(host, 3)
    ack = SeqnoAcknowledged(vbucket=0, prepared_seqno=3)
    assert refused(Peer(host).ask(ack)) == Status.EINVAL
    peer = Peer(host, controls={"enable_sync_writes": "true", "consumer_name": "b"})
    peer.stream(0)
    peer.drain()
    assert peer.tell(ack) == []
    assert peer.producer.streams[0, 0].acknowledged_seqno == 3
    peer.tell(SeqnoAcknowledged(vbucket=0, prepared_seqno=4))
    assert peer.producer.closed_reason is not None


# -- flow control ----------------------------------------------------------------------------------


def test_data_stops_when_the_window_is_full_and_goes_on_with_acks(host: Host) -> None:
    fill(host, 30, size=60)
    window = 1024
    peer = Peer(host, controls={"connection_buffer_size": str(window)})
    peer.stream(0, flags=StreamFlag.TO_LATEST)
    seqnos: list[int] = []
    for _ in range(100):
        messages = peer.drain()
        outstanding = peer.producer.window.outstanding
        seqnos += [message.by_seqno for message in only(messages, Mutation)]
        if only(messages, StreamEnd):
            break
        assert window <= outstanding < window + 24 + 31 + 9 + 60
        peer.tell(BufferAck(ack_bytes=outstanding))
    assert seqnos == list(range(1, 31))


def test_every_byte_of_a_request_counts(host: Host) -> None:
    fill(host, 3)
    peer = Peer(host, controls={"connection_buffer_size": "100000"})
    peer.stream(0, flags=StreamFlag.TO_LATEST)
    sent = 0
    while data := peer.producer.pull(1 << 20, peer.now):
        sent += len(data)
    assert peer.producer.window.outstanding == sent


def test_a_stream_end_waits_for_the_window(host: Host) -> None:
    peer = Peer(host, controls={"connection_buffer_size": "10"})
    peer.stream(0, end=0)
    peer.stream(1, end=0)
    assert kinds(peer.drain()) == ["end 0"]
    peer.stream(0, end=0)
    assert peer.drain() == []
    peer.tell(BufferAck(ack_bytes=28))
    assert kinds(peer.drain()) == ["end 0"]


def test_an_ack_of_more_than_was_sent_counts_as_all(host: Host) -> None:
    peer = Peer(host, controls={"connection_buffer_size": "10"})
    peer.tell(BufferAck(ack_bytes=10**9))
    assert peer.producer.window.outstanding == 0


def test_window_zero_switches_flow_control_off(host: Host) -> None:
    fill(host, 30)
    peer = Peer(host, controls={"connection_buffer_size": "10"})
    peer.stream(0, flags=StreamFlag.TO_LATEST)
    peer.drain()
    peer.control("connection_buffer_size", "0")
    assert len(only(peer.drain(), StreamEnd)) == 1


def test_an_ack_wakes_the_owner(host: Host) -> None:
    peer = Peer(host)
    wakes = peer.session.wakes
    peer.tell(BufferAck(ack_bytes=1))
    assert peer.session.wakes > wakes


def test_prepares_do_not_overshoot_by_their_surplus(host: Host) -> None:
    vbucket = host.bucket.vbucket(0)
    for number in range(200):
        vbucket.prepare(KEY % number, b"", level=1)
    peer = Peer(host, controls={"enable_sync_writes": "true", "connection_buffer_size": "5000"})
    peer.stream(0)
    peer.drain()
    assert 5000 <= peer.producer.window.outstanding < 5000 + 24 + 31 + 9 + 2


# -- noop ------------------------------------------------------------------------------------------


def test_a_noop_is_sent_every_interval_while_it_is_answered(host: Host) -> None:
    peer = Peer(host, controls={"enable_noop": "true", "set_noop_interval": "2"})
    assert peer.tick() == []
    assert peer.producer.next_tick(peer.now) == peer.now + 2
    (first,) = peer.tick(2)
    assert first == Noop(opaque=NOOP_OPAQUE_BASE)
    assert peer.tick(2) == []
    peer.tell(NoopReply(opaque=first.opaque))
    (second,) = peer.tick(2)
    assert second.opaque == first.opaque + 1


def test_a_noop_flows_when_the_window_is_full(host: Host) -> None:
    fill(host, 30)
    controls = {"connection_buffer_size": "10", "enable_noop": "true", "set_noop_interval": "1"}
    peer = Peer(host, controls=controls)
    peer.stream(0)
    peer.drain()
    assert peer.producer.window.is_full
    outstanding = peer.producer.window.outstanding
    assert kinds(peer.tick(1)) == ["Noop"]
    assert peer.producer.window.outstanding == outstanding


def test_a_noop_reply_to_no_question_closes(host: Host) -> None:
    peer = Peer(host, controls={"enable_noop": "true"})
    peer.tell(NoopReply(opaque=5))
    assert peer.producer.closed_reason is not None


def test_a_silent_peer_is_given_up(host: Host) -> None:
    settings = ProducerSettings(idle_timeout_seconds=10)
    peer = Peer(host, controls={"enable_noop": "true"}, settings=settings)
    peer.tick(39)
    assert peer.producer.closed_reason is None
    peer.tick(1)
    assert peer.producer.closed_reason is not None


def test_without_noop_nothing_is_due(host: Host) -> None:
    peer = Peer(host)
    assert peer.tick(10_000) == []
    assert peer.producer.next_tick(peer.now) is None
    assert peer.producer.closed_reason is None


def test_a_window_that_stays_full_may_end_the_connection(host: Host) -> None:
    fill(host, 30)
    settings = ProducerSettings(stuck_seconds=720)
    peer = Peer(host, controls={"connection_buffer_size": "10"}, settings=settings)
    peer.stream(0)
    peer.drain()
    peer.tick(719)
    assert peer.producer.closed_reason is None
    peer.tick(1)
    assert peer.producer.closed_reason is not None


# -- turns -----------------------------------------------------------------------------------------


def test_streams_of_a_connection_take_turns() -> None:
    host = make_host(vbuckets=2)
    for vbucket in (0, 1):
        for number in range(400):
            host.bucket.vbucket(vbucket).store(KEY % number, b"v" * 4096)
    peer = Peer(host)
    peer.stream(0)
    peer.stream(1)
    order = [message.vbucket for message in only(peer.drain(), Mutation)]
    assert order.count(0) == order.count(1) == 400
    assert order.index(1) < 300, "the first stream had one turn, not the whole connection"
    host.bucket.close()


@pytest.mark.parametrize(("priority", "least"), [("low", 1), ("medium", 2), ("high", 3)])
def test_priority_bounds_a_pull(host: Host, priority: str, least: int) -> None:
    fill(host, 1000, size=10_000)
    peer = Peer(host, controls={"set_priority": priority})
    peer.stream(0)
    size = len(peer.producer.pull(1 << 30, peer.now))
    bounds = {"low": 1 << 16, "medium": 1 << 22, "high": 1 << 23}
    assert size < bounds[priority] + 20_000
    assert size > bounds[priority] // 4
    assert least


# -- stream ids ------------------------------------------------------------------------------------


def test_streams_with_ids_share_a_vbucket(host: Host) -> None:
    controls = {"enable_noop": "true", "enable_stream_id": "true"}
    peer = Peer(host, features=[Feature.COLLECTIONS], controls=controls)
    fill(host, 1)
    peer.stream(0, value=b'{"collections":["0"],"sid":1}', opaque=51)
    peer.stream(0, value=b'{"collections":["0"],"sid":2}', opaque=52)
    assert refused(peer.request(0, value=b'{"collections":["0"],"sid":2}')) == Status.KEY_EEXISTS
    messages = peer.drain()
    mutations = only(messages, Mutation)
    assert {(one.opaque, one.stream_id) for one in mutations} == {(51, 1), (52, 2)}
    assert {one.stream_id for one in only(messages, SnapshotMarker)} == {1, 2}
    assert refused(peer.ask(CloseStream(vbucket=0))) == Status.STREAM_ID_INVALID
    close = CloseStream(vbucket=0, frame_infos=(stream_id_info(2),))
    assert isinstance(peer.ask(close), CloseStreamReply)
    assert list(peer.producer.streams) == [(0, 1)]


def test_a_close_with_an_id_where_there_are_none_is_refused(host: Host) -> None:
    peer = Peer(host)
    peer.stream(0)
    close = CloseStream(vbucket=0, frame_infos=(stream_id_info(1),))
    assert refused(peer.ask(close)) == Status.STREAM_ID_INVALID


# -- the end ---------------------------------------------------------------------------------------


def test_a_closed_producer_lets_go_of_everything(host: Host) -> None:
    fill(host, 10)
    peer = Peer(host)
    peer.stream(0)
    peer.pull(10)
    peer.producer.close()
    peer.producer.close()
    assert host.feed.watchers(0) == 0
    fill(host, 1)
    assert peer.drain() == []
    assert peer.tell(Control(key=b"enable_noop", value=b"true")) == []


def test_a_change_wakes_the_owner_once_until_it_looks(host: Host) -> None:
    peer = Peer(host)
    peer.stream(0)
    peer.drain()
    wakes = peer.session.wakes
    fill(host, 50)
    assert peer.session.wakes == wakes + 1
    assert len(only(peer.drain(), Mutation)) == 50


def test_a_stream_reply_comes_before_its_data(host: Host) -> None:
    fill(host, 1)
    peer = Peer(host)
    assert isinstance(peer.request(0), StreamRequestReply)
    assert kinds(peer.pull()) == ["marker 0-1 05", "mutation 1"]


def test_a_pull_that_sent_everything_leaves_nothing_to_come_back_for(host: Host) -> None:
    fill(host, 3, size=100)
    peer = Peer(host)
    peer.stream(0)
    seen = [peer.producer.has_more]
    for number in (3, 4):
        peer.drain()
        seen.append(peer.producer.has_more)
        fill(host, 1, first=number)
        seen.append(peer.producer.has_more)
    assert seen == [True, False, True, False, True]
