"""The proxy: every byte across, our own requests in between, and what it saw."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from headrace.capture.conversation import Direction
from headrace.capture.source import open_source
from headrace.capture.walk import walk
from headrace.cluster.proxy import (
    OWN_OPAQUE_FIRST,
    QUEUE_SIZE_MAX,
    MarkerAcknowledged,
    MarkerSeen,
    Proxy,
    RolledBack,
    Side,
    StateAnswered,
    StateSent,
    StreamAdded,
    StreamAsked,
    StreamClosed,
    StreamEnded,
    StreamLost,
    StreamRefused,
)
from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire import messages as m
from headrace.wire.codec import decode, encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import HEADER_SIZE, split_frames
from headrace.wire.message import ErrorReply
from headrace.wire.opcodes import Opcode, VBucketState

if TYPE_CHECKING:
    from headrace.capture.walk import Item
    from headrace.wire.message import Message

CAPTURES: Final = Path(__file__).parent.parent / "captures"
D7: Final = Dialect.DCP_7


def sent(proxy: Proxy, side: Side) -> bytes:
    return b"".join(proxy.take_output(side))


def mutation(vbucket: int, seqno: int, opaque: int = 9, size: int = 20) -> bytes:
    message = m.Mutation(
        vbucket=vbucket, opaque=opaque, by_seqno=seqno, rev_seqno=1, key=b"k", value=b"v" * size
    )
    return encode(message, D7)


def request(vbucket: int, opaque: int) -> bytes:
    message = m.StreamRequest(
        vbucket=vbucket,
        opaque=opaque,
        start_seqno=5,
        end_seqno=2**64 - 1,
        snap_start_seqno=5,
        snap_end_seqno=5,
    )
    return encode(message, D7)


def refused(opcode: int, opaque: int, status: int) -> bytes:
    return encode(ErrorReply(opcode=opcode, opaque=opaque, status=status), D7)


# -- bytes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_every_byte_passes_in_order_for_every_split(seed: int) -> None:
    random_ = random.Random(seed)
    frames = [mutation(v, s, size=random_.choice([0, 10, 3000])) for v in (1, 2) for s in (3, 4)]
    frames += [encode(m.Noop(opaque=5), D7), encode(m.StreamEnd(vbucket=1, reason=0), D7)]
    random_.shuffle(frames)
    data = b"".join(frames)
    proxy, out = Proxy(), b""
    at = 0
    while at < len(data):
        size = random_.choice([1, 5, 23, 24, 25, 100, 5000])
        proxy.receive(Side.PRODUCER, data[at : at + size])
        at += size
        out += sent(proxy, Side.CONSUMER)
        split_frames(out)  # only whole frames have left
    assert out == data
    assert sent(proxy, Side.PRODUCER) == b""
    assert proxy.passed[Side.PRODUCER] == len(data)
    assert {int(proxy.items[1]), int(proxy.items[2])} == {2}


def test_a_frame_larger_than_any_buffer_passes_in_pieces_too() -> None:
    data = mutation(1, 7, size=20 << 20)
    proxy = Proxy()
    for at in range(0, len(data), 1 << 20):
        assert proxy.queued(Side.CONSUMER) == 0
        proxy.receive(Side.PRODUCER, data[at : at + (1 << 20)])
    assert sent(proxy, Side.CONSUMER) == data
    assert int(proxy.seqnos[1]) == 7


def test_more_notable_frames_than_one_walk_lists_all_pass() -> None:
    data = encode(m.Noop(opaque=1), D7) * 10_000
    proxy = Proxy()
    proxy.receive(Side.PRODUCER, data)
    assert sent(proxy, Side.CONSUMER) == data


def test_a_side_is_not_read_while_too_much_waits_for_the_other() -> None:
    proxy = Proxy()
    data = mutation(1, 7, size=1 << 20)
    while proxy.may_read(Side.PRODUCER):
        proxy.receive(Side.PRODUCER, data)
    assert QUEUE_SIZE_MAX <= proxy.queued(Side.CONSUMER) < QUEUE_SIZE_MAX + 2 * len(data)
    assert proxy.may_read(Side.CONSUMER), "acknowledgements go the other way"
    proxy.take_output(Side.CONSUMER)
    assert proxy.may_read(Side.PRODUCER)


def test_what_is_no_header_ends_the_proxy_for_good() -> None:
    proxy = Proxy()
    with pytest.raises(RemoteProtocolError, match="the consumer node sent 4854") as caught:
        proxy.receive(Side.CONSUMER, b"HTTP/1.1 400 Bad Request\r\n")
    assert caught.value.fatal
    with pytest.raises(RemoteProtocolError):
        proxy.receive(Side.PRODUCER, mutation(1, 1))


def test_a_frame_nobody_understands_passes() -> None:
    marker = bytearray(encode(m.SnapshotMarker(start_seqno=1, end_seqno=2, flags=1), D7))
    marker[4] = 7  # extras of a length no dialect has
    proxy = Proxy()
    proxy.receive(Side.PRODUCER, bytes(marker))
    assert sent(proxy, Side.CONSUMER) == bytes(marker)
    assert proxy.take_events() == []


# -- requests of ours ------------------------------------------------------------------------------


def own_opaque(proxy: Proxy, side: Side, kind: type[Message]) -> int:
    (frame,) = split_frames(sent(proxy, side))
    assert isinstance(decode(frame, D7), kind)
    assert frame.opaque > OWN_OPAQUE_FIRST
    return frame.opaque


def test_the_reply_to_our_request_goes_no_further() -> None:
    proxy = Proxy()
    proxy.add_stream(3, flags=1)
    opaque = own_opaque(proxy, Side.CONSUMER, m.AddStream)
    reply = encode(m.AddStreamReply(opaque=opaque, stream_opaque=77), D7)
    before, after = request(3, 77), encode(m.BufferAck(ack_bytes=5), D7)
    proxy.receive(Side.CONSUMER, before + reply + after)
    assert sent(proxy, Side.PRODUCER) == before + after
    assert proxy.take_events() == [
        StreamAsked(vbucket=3, start_seqno=5),
        StreamAdded(vbucket=3),
    ]


def test_the_same_reply_with_another_opaque_passes() -> None:
    proxy = Proxy()
    proxy.add_stream(3)
    reply = encode(m.AddStreamReply(opaque=1, stream_opaque=77), D7)
    proxy.receive(Side.CONSUMER, reply)
    assert sent(proxy, Side.PRODUCER) == reply
    assert proxy.take_events() == []


def test_a_refused_stream_is_told_with_its_status() -> None:
    proxy = Proxy()
    proxy.add_stream(3)
    opaque = own_opaque(proxy, Side.CONSUMER, m.AddStream)
    proxy.receive(Side.CONSUMER, refused(Opcode.ADD_STREAM, opaque, 0x07))
    assert proxy.take_events() == [
        StreamRefused(vbucket=3, status=0x07, text="NOT_MY_VBUCKET (0x07)")
    ]
    assert sent(proxy, Side.PRODUCER) == b""


LOG: Final = (m.FailoverEntry(uuid=1, seqno=0),)
ACCEPTED: Final = encode(m.StreamRequestReply(opaque=77, failover_log=LOG), D7)


@pytest.mark.parametrize(
    "answer", [ACCEPTED, refused(Opcode.STREAM_REQ, 77, 0x02)], ids=["accepted", "exists"]
)
def test_a_refused_stream_that_the_producer_has_is_closed_there_first(answer: bytes) -> None:
    proxy = Proxy()
    proxy.add_stream(3)
    opaque = own_opaque(proxy, Side.CONSUMER, m.AddStream)
    proxy.receive(Side.CONSUMER, request(3, 77))
    proxy.receive(Side.PRODUCER, answer)
    sent(proxy, Side.PRODUCER)
    proxy.take_events()
    proxy.receive(Side.CONSUMER, refused(Opcode.ADD_STREAM, opaque, 0x07) + request(3, 78))
    close, later = split_frames(sent(proxy, Side.PRODUCER))
    assert isinstance(decode(close, D7), m.CloseStream)
    assert (close.vbucket, later.opaque) == (3, 78), "it cannot hit the stream that is asked next"
    assert proxy.take_events() == [StreamAsked(vbucket=3, start_seqno=5)]
    proxy.receive(Side.PRODUCER, encode(m.CloseStreamReply(opaque=close.opaque), D7))
    assert proxy.take_events() == [
        StreamRefused(vbucket=3, status=0x07, text="NOT_MY_VBUCKET (0x07)")
    ]


@pytest.mark.parametrize("status", [0x07, 0x23])
def test_a_stream_that_the_producer_refused_is_not_closed_there(status: int) -> None:
    proxy = Proxy()
    proxy.add_stream(3)
    opaque = own_opaque(proxy, Side.CONSUMER, m.AddStream)
    proxy.receive(Side.CONSUMER, request(3, 77))
    proxy.receive(Side.PRODUCER, refused(Opcode.STREAM_REQ, 77, status))
    sent(proxy, Side.PRODUCER)
    proxy.receive(Side.CONSUMER, refused(Opcode.ADD_STREAM, opaque, status))
    assert sent(proxy, Side.PRODUCER) == b""
    assert isinstance(proxy.take_events()[-1], StreamRefused)


def test_a_stream_that_stands_is_not_closed_when_it_is_added_twice() -> None:
    proxy = Proxy()
    proxy.add_stream(3)
    first = own_opaque(proxy, Side.CONSUMER, m.AddStream)
    proxy.receive(Side.CONSUMER, request(3, 77))
    proxy.receive(Side.PRODUCER, ACCEPTED)
    proxy.receive(Side.CONSUMER, encode(m.AddStreamReply(opaque=first, stream_opaque=77), D7))
    sent(proxy, Side.PRODUCER)
    sent(proxy, Side.CONSUMER)
    proxy.add_stream(3)
    second = own_opaque(proxy, Side.CONSUMER, m.AddStream)
    proxy.receive(Side.CONSUMER, refused(Opcode.ADD_STREAM, second, 0x02))
    assert sent(proxy, Side.PRODUCER) == b""
    assert isinstance(proxy.take_events()[-1], StreamRefused)


@pytest.mark.parametrize("statuses", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_a_stream_is_closed_at_the_consumer_then_at_the_producer(statuses: tuple[int, int]) -> None:
    def reply(opaque: int, status: int) -> bytes:
        if status:
            return refused(Opcode.CLOSE_STREAM, opaque, status)
        return encode(m.CloseStreamReply(opaque=opaque), D7)

    proxy = Proxy()
    proxy.close_stream(3)
    first = own_opaque(proxy, Side.CONSUMER, m.CloseStream)
    assert sent(proxy, Side.PRODUCER) == b""
    proxy.receive(Side.CONSUMER, reply(first, statuses[0]))
    second = own_opaque(proxy, Side.PRODUCER, m.CloseStream)
    assert proxy.take_events() == []
    proxy.receive(Side.PRODUCER, reply(second, statuses[1]))
    assert proxy.take_events() == [StreamClosed(vbucket=3)]
    assert sent(proxy, Side.CONSUMER) == b"", "the reply was ours"


CLOSING: Final = encode(m.CloseStream(vbucket=3, opaque=91), D7)


@pytest.mark.parametrize(
    "answer",
    [encode(m.CloseStreamReply(opaque=91), D7), refused(Opcode.CLOSE_STREAM, 91, 0x01)],
)
def test_a_stream_the_consumer_gives_up_is_told_when_the_producer_has_closed_it(
    answer: bytes,
) -> None:
    proxy = Proxy()
    proxy.receive(Side.CONSUMER, request(3, 77))
    proxy.receive(Side.PRODUCER, ACCEPTED)
    sent(proxy, Side.PRODUCER)
    sent(proxy, Side.CONSUMER)
    proxy.take_events()
    proxy.receive(Side.CONSUMER, CLOSING)
    assert sent(proxy, Side.PRODUCER) == CLOSING, "as it is"
    assert proxy.take_events() == []
    proxy.receive(Side.PRODUCER, answer)
    assert sent(proxy, Side.CONSUMER) == answer, "the request was not ours"
    assert proxy.take_events() == [StreamLost(vbucket=3)]


def test_the_late_end_of_a_stream_the_consumer_gave_up_is_not_that_of_the_next() -> None:
    proxy = Proxy()
    proxy.receive(Side.CONSUMER, request(3, 77) + CLOSING + request(3, 92))
    proxy.receive(Side.PRODUCER, ACCEPTED + encode(m.CloseStreamReply(opaque=91), D7))
    proxy.take_events()
    old = encode(m.StreamEnd(vbucket=3, reason=1, opaque=77), D7)
    sent(proxy, Side.CONSUMER)
    proxy.receive(Side.PRODUCER, old)
    assert sent(proxy, Side.CONSUMER) == old
    assert proxy.take_events() == []
    proxy.receive(Side.PRODUCER, encode(m.StreamEnd(vbucket=3, reason=2, opaque=92), D7))
    assert proxy.take_events() == [StreamEnded(vbucket=3, reason=2)]


@pytest.mark.parametrize("is_refused", [True, False])
def test_the_end_of_a_stream_that_is_closed_here_is_not_told(is_refused: bool) -> None:
    """It may come late, when the next stream of the vbucket stands."""
    proxy = Proxy()
    proxy.add_stream(3)
    opaque = own_opaque(proxy, Side.CONSUMER, m.AddStream)
    proxy.receive(Side.CONSUMER, request(3, 77))
    proxy.receive(Side.PRODUCER, ACCEPTED)
    if is_refused:
        proxy.receive(Side.CONSUMER, refused(Opcode.ADD_STREAM, opaque, 0x07))
    else:
        added = m.AddStreamReply(opaque=opaque, stream_opaque=77)
        proxy.receive(Side.CONSUMER, encode(added, D7))
        sent(proxy, Side.CONSUMER)
        proxy.close_stream(3)
        closing = own_opaque(proxy, Side.CONSUMER, m.CloseStream)
        proxy.receive(Side.CONSUMER, encode(m.CloseStreamReply(opaque=closing), D7))
    proxy.take_events()
    end = encode(m.StreamEnd(vbucket=3, reason=1, opaque=77), D7)
    sent(proxy, Side.CONSUMER)
    proxy.receive(Side.PRODUCER, end)
    assert sent(proxy, Side.CONSUMER) == end, "the node that consumes is told"
    assert proxy.take_events() == []


def test_what_is_remembered_of_streams_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cluster.proxy.STREAMS_MAX", 4)
    proxy = Proxy()
    for opaque in range(100, 140, 2):
        closing = encode(m.CloseStream(vbucket=3, opaque=opaque + 1), D7)
        proxy.receive(Side.CONSUMER, request(3, opaque) + closing)
    answers = [encode(m.CloseStreamReply(opaque=opaque), D7) for opaque in range(101, 141, 2)]
    proxy.take_events()
    proxy.receive(Side.PRODUCER, b"".join(answers))
    assert proxy.take_events() == [StreamLost(vbucket=3)] * 4


def test_requests_without_reply_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cluster.proxy.OWN_MAX", 2)
    proxy = Proxy()
    proxy.add_stream(1)
    proxy.add_stream(2)
    with pytest.raises(LocalProtocolError, match="2 requests without reply, limit 2"):
        proxy.add_stream(3)


# -- what goes by ----------------------------------------------------------------------------------


def test_a_rollback_a_marker_and_its_answer_are_seen() -> None:
    proxy = Proxy()
    proxy.receive(Side.CONSUMER, request(3, 77))
    proxy.receive(
        Side.PRODUCER,
        encode(m.RollbackReply(opaque=77, rollback_seqno=2), D7)
        + encode(m.SnapshotMarker(vbucket=3, start_seqno=1, end_seqno=9, flags=8, opaque=77), D7),
    )
    proxy.receive(Side.CONSUMER, encode(m.SnapshotMarkerReply(opaque=77), D7))
    assert proxy.take_events() == [
        StreamAsked(vbucket=3, start_seqno=5),
        RolledBack(vbucket=3, seqno=2),
        MarkerSeen(vbucket=3, start_seqno=1, end_seqno=9, flags=8),
        MarkerAcknowledged(vbucket=3),
    ]


@pytest.mark.parametrize("dialect", [Dialect.UPR_DRAFT, Dialect.DCP_3, Dialect.DCP_7])
def test_states_are_told_in_the_released_numbering_whatever_the_dialect(dialect: Dialect) -> None:
    proxy = Proxy(dialect=dialect)
    asked = m.StreamRequest(
        vbucket=3, opaque=77, start_seqno=0, end_seqno=9, snap_start_seqno=0, snap_end_seqno=0
    )
    if dialect is Dialect.UPR_DRAFT:
        asked = m.StreamRequest(vbucket=3, opaque=77, start_seqno=0, end_seqno=9, high_seqno=0)
    proxy.receive(Side.CONSUMER, encode(asked, dialect))
    told = m.SetVBucketState(vbucket=3, opaque=77, state=VBucketState.PENDING)
    proxy.receive(Side.PRODUCER, encode(told, dialect))
    proxy.receive(Side.CONSUMER, encode(m.SetVBucketStateReply(opaque=77), dialect))
    proxy.receive(Side.PRODUCER, encode(m.StreamEnd(vbucket=3, opaque=77, reason=0), dialect))
    assert proxy.take_events()[1:] == [
        StateSent(vbucket=3, state=VBucketState.PENDING),
        StateAnswered(vbucket=3, state=VBucketState.PENDING, status=0),
        StreamEnded(vbucket=3, reason=0),
    ]


# -- a recorded manager ----------------------------------------------------------------------------

MANAGER_TO = {Direction.CLIENT_TO_SERVER: "to", Direction.SERVER_TO_CLIENT: "from"}


def recorded(file: str) -> list[tuple[Side, str, Item]]:
    """What passed between a recorded manager and its two nodes, after both were opened."""
    dialect = Dialect.DCP_5 if "_605" in file else D7
    opened: dict[int, Side] = {}
    found = []
    with open_source(str(CAPTURES / file)) as source:
        for item in walk(source, dialect):
            port = item.connection.client.port if item.connection.client is not None else 0
            message = item.message
            if isinstance(message, m.Open) and message.key.startswith(b"replication"):
                opened[port] = Side.PRODUCER if message.flags & 1 else Side.CONSUMER
            elif port in opened and not isinstance(message, m.OpenReply):
                found.append((opened[port], MANAGER_TO[item.direction], item))
    return found


@pytest.mark.parametrize(
    "file",
    [
        "17a_replication_605.pcap",
        "17a_replication_665.pcap",
        "17a_replication_665_durable.pcap",
        "17b_takeover_605.pcap",
        "17b_takeover_665.pcap",
        "17b_takeover_665_durable.pcap",
        "17d_replication_collections_665.pcap",
    ],
)
def test_the_proxy_sends_what_a_recorded_manager_sent(file: str) -> None:
    proxy = Proxy(dialect=Dialect.DCP_5 if "_605" in file else D7)
    expected: dict[Side, list[bytes]] = {Side.PRODUCER: [], Side.CONSUMER: []}
    ours: list[Message] = []
    for side, way, item in recorded(file):
        assert item.frame is not None
        own = item.frame.opcode in (Opcode.ADD_STREAM, Opcode.CLOSE_STREAM)
        if own and way == "to":
            ours.append(item.message)  # type: ignore[arg-type] # a frame that was understood
        elif way == "to":
            expected[side].append(item.frame.to_bytes())
        elif not own:
            proxy.receive(side, item.frame.to_bytes())
    assert any(isinstance(message, m.AddStream) for message in ours)
    for side, frames in expected.items():
        got = [frame.to_bytes() for frame in split_frames(sent(proxy, side))]
        # A recording may end while a frame is on its way; nothing is out of order or changed.
        assert frames == got[: len(frames)]
        assert len(got) - len(frames) <= 2
    if "takeover" in file:
        kinds = [
            (type(event).__name__, getattr(event, "state", None))
            for event in proxy.take_events()
            if isinstance(event, StateSent | StateAnswered | StreamEnded)
        ]
        assert kinds == [
            ("StateSent", VBucketState.PENDING),
            ("StateAnswered", VBucketState.PENDING),
            ("StateSent", VBucketState.ACTIVE),
            ("StateAnswered", VBucketState.ACTIVE),
            ("StreamEnded", None),
        ]


def test_a_header_is_held_until_it_is_whole() -> None:
    proxy = Proxy()
    frame = mutation(1, 1)
    proxy.receive(Side.PRODUCER, frame[: HEADER_SIZE - 1])
    proxy.receive(Side.PRODUCER, frame[HEADER_SIZE - 1 : HEADER_SIZE + 3])
    assert sent(proxy, Side.CONSUMER) == b""
    proxy.receive(Side.PRODUCER, frame[HEADER_SIZE + 3 :])
    assert sent(proxy, Side.CONSUMER) == frame
