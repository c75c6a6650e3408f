"""Real conversations, replayed: our machines take everything a real server ever said in them.

Every capture under tests/captures is read again and each of its streams is followed by the
consumer's machine. What the machine has taken in the end is compared with what index.jsonl says
two other readers found: seqnos, stream ends, rollback answers. The recorded requests are the
consumer's tokens.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from headrace.capture.source import open_source
from headrace.capture.walk import walk
from headrace.history import BranchId, ResumeToken, Seqno, SnapshotRange
from headrace.protocol.flow import ProducerWindow, counted_size
from headrace.protocol.stream import SEQNO_FIELDS, ConsumerStream, State
from headrace.protocol.talk import read_log
from headrace.wire import messages as m
from headrace.wire.dialect import Dialect
from headrace.wire.message import ErrorReply, Message, Request
from headrace.wire.opcodes import Opcode

if TYPE_CHECKING:
    from headrace.capture.conversation import Direction
    from headrace.wire.frame import Frame

CAPTURES: Final = Path(__file__).parent / "captures"
INDEX: Final[dict[str, dict[str, Any]]] = {
    row["file"]: row for row in map(json.loads, (CAPTURES / "index.jsonl").read_text().splitlines())
}


@dataclass
class Line:
    """One frame of a conversation, understood."""

    from_producer: bool
    frame: Frame
    message: Message


@cache
def conversations(name: str) -> dict[int, list[Line]]:
    """The frames of a capture by client port, in the order they were recorded."""
    found: dict[int, list[tuple[Direction, Frame, Message]]] = defaultdict(list)
    with open_source(str(CAPTURES / name)) as source:
        for item in walk(source, Dialect.DCP_7, strict=False):
            if item.frame is None or item.message is None or item.connection.client is None:
                continue
            found[item.connection.client.port].append((item.direction, item.frame, item.message))
    return {port: understood(frames) for port, frames in found.items()}


def understood(frames: list[tuple[Direction, Frame, Message]]) -> list[Line]:
    """The frames by role: the consumer is the end that asks for streams.

    Between two nodes the client of a connection may be the producer's voice.
    """
    consumers = {way for way, _, message in frames if isinstance(message, m.StreamRequest)}
    return [Line(way not in consumers, frame, message) for way, frame, message in frames]


@dataclass
class Replay:
    """A consumer that asks what the recorded one asked, and takes what came."""

    asked: dict[int, m.StreamRequest] = field(default_factory=dict)
    streams: dict[int, ConsumerStream] = field(default_factory=dict)
    ended: list[ConsumerStream] = field(default_factory=list)
    answers: list[tuple[int, int]] = field(default_factory=list)
    rollbacks: list[int] = field(default_factory=list)
    seqnos: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    ends: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    after_close: Counter[int] = field(default_factory=Counter)

    def take(self, line: Line) -> None:
        message = line.message
        if not line.from_producer:
            if isinstance(message, m.StreamRequest):
                self.asked[message.opaque] = message
            return
        if isinstance(message, Request):
            self.take_stream_message(message)
        elif line.frame.opcode == Opcode.STREAM_REQ:
            self.take_answer(message)

    def take_answer(self, message: Message) -> None:
        request = self.asked.pop(message.opaque)
        if isinstance(message, m.RollbackReply):
            self.answers.append((message.opaque, 0x23))
            self.rollbacks.append(message.rollback_seqno)
        elif isinstance(message, ErrorReply):
            self.answers.append((message.opaque, message.status))
        else:
            assert isinstance(message, m.StreamRequestReply)
            self.answers.append((message.opaque, 0))
            log = read_log(message.failover_log)
            self.streams[message.opaque] = ConsumerStream(
                token_of(request).accepted(log),
                opaque=message.opaque,
                end_seqno=Seqno(request.end_seqno),
            )

    def take_stream_message(self, message: Request) -> None:
        stream = self.streams.get(message.opaque)
        if stream is None:
            return
        stream.receive(message)
        if type(message) in SEQNO_FIELDS:
            seqno = getattr(message, SEQNO_FIELDS[type(message)])
            self.seqnos[message.vbucket].add(seqno)
            assert stream.last_seqno == seqno
        if isinstance(message, m.StreamEnd):
            self.ends[message.vbucket].append(f"{message.reason:#x}")
            self.ended.append(self.streams.pop(message.opaque))


def token_of(request: m.StreamRequest) -> ResumeToken:
    """The token a recorded request stood for."""
    start, end = request.snap_start_seqno, request.snap_end_seqno
    assert start is not None
    assert end is not None
    snapshot = SnapshotRange(Seqno(start), Seqno(end))
    return ResumeToken(BranchId(request.vb_uuid), Seqno(request.start_seqno), snapshot)


def replayed(name: str, port: int) -> Replay:
    replay = Replay()
    for line in conversations(name)[port]:
        replay.take(line)
    return replay


def streaming(name: str) -> list[tuple[int, dict[str, Any]]]:
    """The connections of a capture that asked for streams, as the index describes them."""
    return [
        (row["client_port"], row)
        for row in INDEX[name]["connections"]
        if any(key.startswith("DCP_STREAM_REQ") for key in (*row["c2s"], *row["s2c"]))
    ]


CASES: Final = [(name, port) for name in INDEX for port, _ in streaming(name)]


def expand(ranges: list[str]) -> set[int]:
    found: set[int] = set()
    for text in ranges:
        first, _, last = text.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


@pytest.mark.parametrize(("name", "port"), CASES)
def test_the_machine_takes_everything_a_real_server_sent(name: str, port: int) -> None:
    row = dict(streaming(name))[port]
    replay = replayed(name, port)
    assert [(f"{opaque:#x}", f"{status:#x}") for opaque, status in replay.answers] == [
        (answer["opaque"], answer["status"]) for answer in row.get("stream_answers", [])
    ]
    expected = row.get("vbuckets", {})
    assert {str(vb): found for vb, found in replay.seqnos.items() if found} == {
        vb: expand(facts["seqnos"]) for vb, facts in expected.items() if facts.get("seqnos")
    }
    assert {str(vb): ends for vb, ends in replay.ends.items()} == {
        vb: facts["stream_end_flags"]
        for vb, facts in expected.items()
        if facts.get("stream_end_flags")
    }


def test_there_is_something_to_replay() -> None:
    assert len(INDEX) == 62
    assert len(CASES) > 60


@pytest.mark.parametrize(("name", "port"), CASES)
def test_rollback_answers_are_read_as_the_index_has_them(name: str, port: int) -> None:
    row = dict(streaming(name))[port]
    expected = [a["rollback_to"] for a in row.get("stream_answers", []) if a["status"] == "0x23"]
    assert replayed(name, port).rollbacks == expected


@pytest.mark.parametrize(("name", "port"), CASES)
def test_a_stream_that_a_real_server_finished_stands_at_a_boundary(name: str, port: int) -> None:
    """Real servers finish the snapshot that holds the requested end."""
    for stream in replayed(name, port).ended:
        assert stream.state is State.ENDED
        assert stream.token.is_boundary
        assert stream.boundaries.greatest(stream.token.seqno) == stream.token.seqno


def windows() -> list[tuple[str, int, int]]:
    found = []
    for name in INDEX:
        for port, row in streaming(name):
            controls = {control[0]: control[1] for control in row.get("controls", [])}
            size = int(controls.get("connection_buffer_size", 0))
            if size and "DCP_BUFFER_ACK" in (*row["c2s"], *row["s2c"]):
                found.append((name, port, size))
    return found


@pytest.mark.parametrize(("name", "port", "size"), windows())
def test_a_real_producer_counts_its_window_as_ours_does(name: str, port: int, size: int) -> None:
    """It never sends into a window that is full by our count; nobody acknowledges more."""
    window = ProducerWindow(size)
    for line in conversations(name)[port]:
        message = line.message
        if isinstance(message, m.BufferAck):
            assert message.ack_bytes <= window.outstanding
            window.acknowledged(message.ack_bytes, now=0)
        elif line.from_producer and isinstance(message, Request):
            window.sent(counted_size(line.frame.opcode, line.frame.size), now=0)
    assert window.total_acknowledged > 0
