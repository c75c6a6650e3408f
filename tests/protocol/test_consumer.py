"""The whole consumer connection: any split of bytes, two roads, flow control, noop, liars."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headrace.errors import LocalProtocolError, RemoteProtocolError, StatusError
from headrace.history import FailoverLog, Seqno, SnapshotRange, VBucketId
from headrace.protocol import events as e
from headrace.protocol.consumer import ConsumerConnection
from headrace.protocol.handshake import ConsumerSettings
from headrace.protocol.talk import StreamPlan
from headrace.wire import admin
from headrace.wire import messages as m
from headrace.wire.codec import decode, encode
from headrace.wire.frame import Frame, split_frames
from headrace.wire.message import ErrorReply, Message, UnknownCommand, stream_id_info
from headrace.wire.opcodes import MarkerFlag, Opcode, Status, StreamEndReason
from tests.protocol.roads import (
    D7,
    LOG,
    SETTINGS,
    WINDOW,
    announce,
    ending,
    marker,
    opened,
    random_stream,
    sent,
    take_bulk,
    told,
)
from tests.protocol.scripting import VBUCKET, connected, item, size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# -- the byte stream ------------------------------------------------------------------------------


def conversation(opaque: int) -> list[Message]:
    return [
        m.StreamRequestReply(opaque=opaque, failover_log=LOG),
        marker(opaque, 1, 3),
        item("mutation", 1, opaque),
        m.Noop(opaque=99),
        item("deletion", 3, opaque),
        marker(opaque, 4, 9),
        item("prepare", 5, opaque),
        ending(opaque, StreamEndReason.STATE_CHANGED),
    ]


def test_a_conversation_is_told_in_the_order_of_its_bytes() -> None:
    connection = connected(SETTINGS)
    connection.request_stream(StreamPlan(vbucket=VBUCKET))
    (request,) = sent(connection)
    events = told(connection, *conversation(request.opaque))
    assert [type(event) for event in events] == [
        e.StreamOpened,
        e.SnapshotStarted,
        e.ItemReceived,
        e.ItemReceived,
        e.SnapshotCompleted,
        e.SnapshotStarted,
        e.ItemReceived,
        e.StreamEnded,
    ]
    assert connection.live == 0
    ended = events[-1]
    assert isinstance(ended, e.StreamEnded)
    assert ended.token == connection.position(VBUCKET).token
    assert ended.token.snapshot == SnapshotRange(Seqno(4), Seqno(9))


def test_every_split_of_the_bytes_tells_the_same() -> None:
    def run(cuts: Sequence[int]) -> tuple[list[e.Event], bytes]:
        connection = connected(SETTINGS)
        connection.request_stream(StreamPlan(vbucket=VBUCKET))
        (request,) = sent(connection)
        data = b"".join(encode(message, D7) for message in conversation(request.opaque))
        events: list[e.Event] = []
        for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
            events += connection.receive(data[start:end], now=0)
        return events, connection.take_output()

    whole = run(())
    size = sum(len(encode(message, D7)) for message in conversation(1))
    for cut in range(1, size):
        assert run((cut,)) == whole
    assert run(range(1, size)) == whole, "byte by byte"


def test_what_came_before_an_error_is_told_and_then_the_error() -> None:
    """Or the tokens would stand behind changes that nobody was told of."""
    connection, opaque = opened()
    events = told(
        connection, marker(opaque, 1, 3), item("mutation", 1, opaque), item("mutation", 1, opaque)
    )
    assert [type(event) for event in events] == [e.SnapshotStarted, e.ItemReceived]
    assert connection.position(VBUCKET).token.seqno == 1
    assert isinstance(connection.failure, RemoteProtocolError)
    assert connection.next_at() == 0
    calls: list[Callable[[], object]] = [
        lambda: connection.tick(now=1),
        lambda: connection.receive(b"", now=1),
        lambda: connection.receive_frame(Frame(magic=0x80, opcode=0x5C), now=1),
        lambda: connection.advance(opaque, VBUCKET, Seqno(2), Seqno(2), now=1),
        lambda: connection.announce(
            opaque, VBUCKET, Seqno(4), Seqno(9), flags=1, purge_seqno=None, now=1
        ),
    ]
    for call in calls:
        with pytest.raises(RemoteProtocolError, match="must be above 1"):
            call()


def test_an_error_with_nothing_before_it_is_raised_at_once() -> None:
    connection, opaque = opened()
    with pytest.raises(RemoteProtocolError, match="Mutation while OPEN"):
        told(connection, item("mutation", 1, opaque))


def test_bytes_that_are_no_frame_are_the_peers_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="magic"):
        connected(SETTINGS).receive(b"HTTP/1.1 400 Bad Request", now=0)


# -- two roads, one truth -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(150))
def test_both_roads_end_with_the_same_position_and_the_same_acknowledgements(seed: int) -> None:
    rng = random.Random(seed)
    (messages_road, opaque), (bulk_road, same) = opened(), opened()
    assert opaque == same
    data = b"".join(encode(message, D7) for message in random_stream(rng, opaque))
    events = messages_road.receive(data, now=0)
    held = sum(event.size for event in events if isinstance(event, e.ItemReceived))
    assert take_bulk(bulk_road, data) == held, f"seed {seed}"
    for road in (messages_road, bulk_road):
        road.processed(held, now=0)
        road.tick(now=100)
    assert messages_road.positions() == bulk_road.positions(), f"seed {seed}"
    assert messages_road.window.total_acknowledged == bulk_road.window.total_acknowledged
    assert messages_road.window.total_acknowledged == sum(
        size_of(decode(frame, D7), D7) for frame in split_frames(data)
    ), f"seed {seed}: everything is acknowledged once it is processed"
    assert messages_road.live == bulk_road.live


def test_a_run_that_breaks_a_rule_breaks_the_connection() -> None:
    connection, opaque = opened()
    told(connection, marker(opaque, 1, 3))
    with pytest.raises(RemoteProtocolError, match="outside its snapshot"):
        connection.advance(opaque, VBUCKET, Seqno(1), Seqno(4), now=0)
    with pytest.raises(RemoteProtocolError, match="outside its snapshot"):
        connection.tick(now=0)


@pytest.mark.parametrize(
    ("start", "end", "sentence"),
    [(9, 8, "from 9 to 8"), (1, 3, r"1\.\.3 lies below the last seqno 3")],
)
def test_a_marker_that_breaks_a_rule_breaks_the_connection(
    start: int, end: int, sentence: str
) -> None:
    """Told by its numbers or as a frame: the same sentence."""
    for told_as_numbers in (True, False):
        connection, opaque = opened()
        told(connection, marker(opaque, 1, 3), item("mutation", 3, opaque))
        bad = marker(opaque, start, end)
        with pytest.raises(RemoteProtocolError, match=sentence):
            announce(connection, bad) if told_as_numbers else told(connection, bad)
        with pytest.raises(RemoteProtocolError, match=sentence):
            connection.tick(now=0)


def test_what_is_told_by_numbers_must_be_of_the_streams_vbucket() -> None:
    connection, opaque = opened()
    other = replace(marker(opaque, 1, 3), vbucket=VBUCKET + 1)
    with pytest.raises(RemoteProtocolError, match=f"of the stream of vbucket {VBUCKET}"):
        announce(connection, other)
    assert connection.failure is not None


def test_a_marker_that_wants_an_answer_gets_it_behind_its_last_item() -> None:
    connection, opaque = opened()
    connection.take_output()
    asking = replace(marker(opaque, 1, 3), flags=int(MarkerFlag.ACK | 1))
    started = announce(connection, asking)
    assert started is not None
    assert (started.snapshot, started.flags) == (SnapshotRange(Seqno(1), Seqno(3)), 9)
    connection.advance(opaque, VBUCKET, Seqno(1), Seqno(2), now=0)
    assert sent(connection) == []
    connection.advance(opaque, VBUCKET, Seqno(3), Seqno(3), now=0)
    assert sent(connection) == [m.SnapshotMarkerReply(opaque=opaque)]


def test_what_comes_for_a_stream_that_was_closed_is_dropped() -> None:
    connection, opaque = opened()
    told(connection, marker(opaque, 1, 3))
    connection.close_stream(VBUCKET)
    assert connection.advance(opaque, VBUCKET, Seqno(1), Seqno(2), now=0) is None
    assert announce(connection, marker(opaque, 4, 5)) is None
    assert connection.failure is None


# -- flow control and noop ------------------------------------------------------------------------


def acknowledged(connection: ConsumerConnection) -> int:
    return sum(m_.ack_bytes for m_ in sent(connection) if isinstance(m_, m.BufferAck))


def test_an_item_is_acknowledged_when_it_is_processed_not_when_it_came() -> None:
    connection, opaque = opened()
    big = replace(item("mutation", 1, opaque), value=bytes(500))  # type: ignore[call-arg]
    events = told(connection, marker(opaque, 1, 3), big)
    assert acknowledged(connection) == 0
    received = events[-1]
    assert isinstance(received, e.ItemReceived)
    assert received.size == 24 + 31 + 3 + 500
    connection.processed(received.size, now=0)
    assert acknowledged(connection) == received.size + 44, "the marker was given back at once"


def test_a_prepare_counts_two_bytes_more() -> None:
    connection, opaque = opened()
    events = told(connection, marker(opaque, 1, 3), item("prepare", 1, opaque))
    received = events[-1]
    assert isinstance(received, e.ItemReceived)
    assert received.size == 24 + 31 + 3 + 2


def test_little_is_acknowledged_after_a_while() -> None:
    connection, opaque = opened()
    told(connection, marker(opaque, 1, 3))
    assert acknowledged(connection) == 0
    assert connection.next_at() == 5
    connection.tick(now=5)
    assert acknowledged(connection) == 44


def test_a_noop_is_answered_at_once_with_a_full_window() -> None:
    connection, opaque = opened()
    told(
        connection,
        marker(opaque, 1, 3),
        replace(item("mutation", 1, opaque), value=bytes(5_000)),  # type: ignore[call-arg]
    )
    assert connection.window.held > WINDOW
    told(connection, m.Noop(opaque=10_000_001))
    assert sent(connection) == [m.NoopReply(opaque=10_000_001)]


def test_a_noop_is_answered_during_the_handshake_too() -> None:
    connection = ConsumerConnection(SETTINGS, now=0, nonce="nonce")
    connection.take_output()
    told(connection, m.Noop(opaque=5))
    assert sent(connection) == [m.NoopReply(opaque=5)]


def test_without_a_window_nothing_is_counted() -> None:
    connection, opaque = opened(ConsumerSettings(name="test", window=0))
    told(connection, marker(opaque, 1, 3), item("mutation", 1, opaque))
    connection.processed(58, now=0)
    connection.tick(now=19)
    assert sent(connection) == []


def test_messages_of_a_closed_stream_are_dropped_and_acknowledged() -> None:
    connection, opaque = opened()
    connection.close_stream(VBUCKET)
    (close,) = sent(connection)
    events = told(connection, marker(opaque, 1, 300), item("mutation", 1, opaque), now=0)
    assert events == []
    events = told(connection, m.CloseStreamReply(opaque=close.opaque), ending(opaque, 1), now=6)
    assert [(type(event), getattr(event, "reason", None)) for event in events] == [
        (e.StreamEnded, StreamEndReason.CLOSED)
    ]
    assert acknowledged(connection) == 44 + 60 + 28
    assert connection.position(VBUCKET).token.seqno == 0


def test_a_close_that_finds_no_stream_ends_it_all_the_same() -> None:
    connection, _ = opened()
    connection.close_stream(VBUCKET)
    (close,) = sent(connection)
    refusal = ErrorReply(opaque=close.opaque, opcode=Opcode.CLOSE_STREAM, status=Status.KEY_ENOENT)
    (ended,) = told(connection, refusal)
    assert isinstance(ended, e.StreamEnded)


def test_a_stream_closed_before_its_reply_stays_closed() -> None:
    connection = connected(SETTINGS)
    connection.request_stream(StreamPlan(vbucket=VBUCKET))
    (request,) = sent(connection)
    connection.close_stream(VBUCKET)
    (close,) = sent(connection)
    assert told(connection, m.StreamRequestReply(opaque=request.opaque, failover_log=LOG)) == []
    (ended,) = told(connection, m.CloseStreamReply(opaque=close.opaque))
    assert isinstance(ended, e.StreamEnded)
    connection.request_stream(StreamPlan(vbucket=VBUCKET))


def test_a_silent_producer_is_noticed_once_a_stream_is_open() -> None:
    connection = connected(SETTINGS)
    assert connection.tick(now=1_000) == [], "older producers send no noop before a stream"
    connection.request_stream(StreamPlan(vbucket=VBUCKET))
    (request,) = sent(connection)
    told(connection, m.StreamRequestReply(opaque=request.opaque, failover_log=LOG), now=1_000)
    assert connection.next_at() == 1_040
    assert connection.tick(now=1_039) == []
    assert connection.tick(now=1_040) == [e.ProducerSilent(40.0)]
    told(connection, m.Noop(opaque=1), now=1_041)
    assert connection.tick(now=1_042) == []


def test_a_producer_that_refused_noop_is_never_silent() -> None:
    connection = ConsumerConnection(SETTINGS, now=0, nonce="nonce")
    while connection.connected is None:
        (frame,) = split_frames(connection.take_output())
        refuses = frame.opcode == Opcode.CONTROL
        reply = Frame(magic=0x81, opcode=frame.opcode, opaque=frame.opaque, vbucket=4 * refuses)
        connection.receive(reply.to_bytes(), now=0)
    assert len(connection.connected.refused) == 6
    connection.request_stream(StreamPlan(vbucket=VBUCKET))
    (request,) = sent(connection)
    told(connection, m.StreamRequestReply(opaque=request.opaque, failover_log=LOG))
    assert connection.next_at() is None
    assert connection.tick(now=10_000) == []
    assert connection.window.window == 0, "a window that was refused is none"


# -- questions and answers ------------------------------------------------------------------------


def test_streams_are_pipelined_and_answered_in_any_order() -> None:
    connection = connected(SETTINGS)
    for number in range(100):
        connection.request_stream(StreamPlan(vbucket=VBucketId(number)))
    requests = sent(connection)
    rng = random.Random(5)
    rng.shuffle(requests)
    for request in requests:
        assert isinstance(request, m.StreamRequest)
        (event,) = told(connection, m.StreamRequestReply(opaque=request.opaque, failover_log=LOG))
        assert isinstance(event, e.StreamOpened)
        assert event.vbucket == request.vbucket
    assert connection.live == 100


def test_data_of_one_stream_may_come_before_the_reply_of_another() -> None:
    connection, opaque = opened()
    connection.request_stream(StreamPlan(vbucket=VBucketId(6)))
    (request,) = sent(connection)
    events = told(
        connection,
        marker(opaque, 1, 1),
        item("mutation", 1, opaque),
        m.StreamRequestReply(opaque=request.opaque, failover_log=LOG),
    )
    assert [type(event) for event in events] == [
        e.SnapshotStarted,
        e.ItemReceived,
        e.SnapshotCompleted,
        e.StreamOpened,
    ]


def test_what_cannot_be_asked_now_changes_nothing() -> None:
    fresh = ConsumerConnection(SETTINGS, now=0, nonce="nonce")
    fresh.take_output()
    asks: list[Callable[[], object]] = [
        lambda: fresh.request_stream(StreamPlan(vbucket=VBUCKET)),
        lambda: fresh.ask_seqnos(),
    ]
    for ask in asks:
        with pytest.raises(LocalProtocolError, match="before the handshake is over"):
            ask()
    connection, _ = opened()
    with pytest.raises(LocalProtocolError, match="already streamed or asked for"):
        connection.request_stream(StreamPlan(vbucket=VBUCKET))
    with pytest.raises(LocalProtocolError, match="an id is given exactly when"):
        connection.request_stream(StreamPlan(vbucket=VBucketId(6), stream_id=1))
    with pytest.raises(LocalProtocolError, match="no live stream to close"):
        connection.close_stream(VBucketId(6))
    connection.close_stream(VBUCKET)
    with pytest.raises(LocalProtocolError, match="already streamed or asked for"):
        connection.request_stream(StreamPlan(vbucket=VBUCKET))
    with pytest.raises(LocalProtocolError, match="no live stream to close"):
        connection.close_stream(VBUCKET)
    assert sent(fresh) == []
    assert [type(message) for message in sent(connection)] == [m.CloseStream]


def test_an_ended_stream_may_be_asked_for_again() -> None:
    connection, opaque = opened()
    told(connection, ending(opaque, StreamEndReason.STATE_CHANGED))
    connection.request_stream(StreamPlan(vbucket=VBUCKET))
    (request,) = sent(connection)
    assert request.opaque != opaque


def test_logs_seqnos_and_cluster_maps_are_asked_for_and_told() -> None:
    connection = connected(SETTINGS)
    connection.ask_failover_log(VBUCKET)
    connection.ask_seqnos(state=1)
    connection.ask_cluster_map()
    log, seqnos, cluster_map = sent(connection)
    assert log == m.GetFailoverLog(opaque=log.opaque, vbucket=VBUCKET)
    lines = (m.VBucketSeqno(0, 12), m.VBucketSeqno(1, 1 << 40))
    events = told(
        connection,
        admin.GetClusterConfigReply(opaque=cluster_map.opaque, value=b'{"rev":1}'),
        m.GetAllVbSeqnosReply(opaque=seqnos.opaque, seqnos=lines),
        m.GetFailoverLogReply(opaque=log.opaque, failover_log=LOG),
    )
    assert events == [
        e.ClusterMapTold(cluster_map=b'{"rev":1}', pushed=False),
        e.SeqnosTold(lines),
        e.FailoverLogTold(vbucket=VBUCKET, log=FailoverLog.of((0xA, 0))),
    ]


def test_a_refused_question_is_an_event() -> None:
    connection = connected(SETTINGS)
    connection.ask_failover_log(VBUCKET)
    (request,) = sent(connection)
    (event,) = told(
        connection,
        ErrorReply(opaque=request.opaque, opcode=Opcode.GET_FAILOVER_LOG, status=0x07),
    )
    assert isinstance(event, e.RequestRefused)
    assert (event.vbucket, event.status) == (VBUCKET, Status.NOT_MY_VBUCKET)


def test_a_reply_nobody_asked_for_is_the_peers_fault() -> None:
    connection = connected(SETTINGS)
    with pytest.raises(RemoteProtocolError, match="opaque 0x9 that nobody asked for"):
        told(connection, m.StreamRequestReply(opaque=9, failover_log=LOG))


def test_a_reply_to_an_acknowledgement_is_tolerated() -> None:
    connection = connected(SETTINGS)
    refusal = ErrorReply(opcode=Opcode.BUFFER_ACK, status=Status.EINVAL)
    assert told(connection, m.BufferAckReply(), refusal) == []


def test_a_handshake_reply_to_another_question_is_the_peers_fault() -> None:
    connection = ConsumerConnection(SETTINGS, now=0, nonce="nonce")
    with pytest.raises(RemoteProtocolError, match="opaque 77 during the handshake, expected 2"):
        told(connection, admin.HelloReply(opaque=77))


def test_a_refused_handshake_ends_the_connection() -> None:
    connection = ConsumerConnection(SETTINGS, now=0, nonce="nonce")
    told(connection, admin.HelloReply(opaque=2))
    refusal = ErrorReply(opaque=3, opcode=Opcode.OPEN, status=Status.EACCESS)
    with pytest.raises(StatusError, match="'test' was refused"):
        told(connection, refusal)
    with pytest.raises(StatusError, match="'test' was refused"):
        connection.tick(now=0)


def test_an_unknown_request_is_answered_so() -> None:
    connection = connected(SETTINGS)
    told(connection, UnknownCommand(opaque=9, opcode=0xEE))
    assert sent(connection) == [ErrorReply(opaque=9, opcode=0xEE, status=Status.UNKNOWN_COMMAND)]
    told(connection, UnknownCommand(opaque=9, opcode=0x55, magic=0x82))
    assert sent(connection) == [], "the server's own requests need no answer"


def test_a_pushed_cluster_map_is_told() -> None:
    connection = connected(SETTINGS)
    pushed = m.ClustermapChange(opaque=1, epoch=1, revision=7, key=b"default", value=b'{"rev":7}')
    assert told(connection, pushed) == [e.ClusterMapTold(cluster_map=b'{"rev":7}', pushed=True)]


# -- stream ids -----------------------------------------------------------------------------------


def test_two_streams_of_one_vbucket_are_told_apart_by_their_ids() -> None:
    connection = connected(ConsumerSettings(name="test", stream_ids=True))
    for number in (1, 2):
        plan = StreamPlan(vbucket=VBUCKET, collections=(8,), stream_id=number)
        connection.request_stream(plan)
    one, two = sent(connection)
    told(connection, m.StreamRequestReply(opaque=one.opaque, failover_log=LOG))
    told(connection, m.StreamRequestReply(opaque=two.opaque, failover_log=LOG))
    infos = (stream_id_info(2),)
    events = told(
        connection,
        replace(marker(two.opaque, 1, 9), frame_infos=infos),
        replace(item("mutation", 4, two.opaque), frame_infos=infos),
    )
    assert [event.stream_id for event in events if isinstance(event, e.StreamEvent)] == [2, 2]
    assert connection.position(VBUCKET, 1).token.seqno == 0
    assert connection.position(VBUCKET, 2).token.seqno == 4
    connection.close_stream(VBUCKET, 2)
    (close,) = sent(connection)
    assert close.frame_infos == infos


def test_a_deletion_whose_stream_id_the_header_forgot_is_read() -> None:
    """A real server's slip: framing extras in the body, not counted in the header."""
    connection = connected(ConsumerSettings(name="test", stream_ids=True))
    connection.request_stream(StreamPlan(vbucket=VBUCKET, collections=(8,), stream_id=2))
    (request,) = sent(connection)
    told(connection, m.StreamRequestReply(opaque=request.opaque, failover_log=LOG))
    told(connection, replace(marker(request.opaque, 1, 9), frame_infos=(stream_id_info(2),)))
    sound = replace(item("deletion", 9, request.opaque), frame_infos=(stream_id_info(2),))
    data = bytearray(encode(sound, D7))
    data[2] = 0
    events = connection.receive(data, now=0)
    assert [type(event) for event in events] == [e.ItemReceived, e.SnapshotCompleted]
    assert events[0] == e.ItemReceived(
        vbucket=VBUCKET,
        stream_id=2,
        message=sound,
        seqno=Seqno(9),
        size=len(data),
        token=connection.position(VBUCKET, 2).token,
    )
