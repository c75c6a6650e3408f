"""Takeovers: the conversations under tests/scripts/node, and those of real servers.

HEADRACE_REWRITE_SCRIPTS=1 writes the results found into the scripts; a person reads the diff.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from headrace.capture.conversation import Direction
from headrace.capture.source import open_source
from headrace.capture.walk import walk
from headrace.node.stream_states import State
from headrace.node.takeover import BACKED_UP_SECONDS, CATCH_UPS_MAX, Takeover
from headrace.store import Bucket
from headrace.wire import kv
from headrace.wire.dialect import Dialect
from headrace.wire.messages import (
    BufferAck,
    Control,
    Mutation,
    Prepare,
    SeqnoAcknowledged,
    SetVBucketState,
    SetVBucketStateReply,
    SnapshotMarker,
    SnapshotMarkerReply,
    StreamEnd,
    StreamRequest,
)
from headrace.wire.opcodes import Feature, MarkerFlag, OpenFlag, Status, StreamFlag, VBucketState
from tests.node.stream_kit import (
    Copy,
    Host,
    Peer,
    disk_host,
    kinds,
    make_host,
    only,
    put,
    refused,
    restarted,
)
from tests.node.takeover_script import frame_line, play

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.capture.walk import Item
    from headrace.wire.message import Message

TESTS: Final = Path(__file__).parents[1]
SCRIPTS: Final = sorted((TESTS / "scripts" / "node").glob("*.txt"))
TAKEOVER: Final = StreamFlag.TAKEOVER
ANSWERED: Final = SetVBucketStateReply(opaque=0x1000)
MARKED: Final = SnapshotMarkerReply(opaque=0x1000)


@pytest.fixture
def host() -> Iterator[Host]:
    made = make_host()
    yield made
    made.bucket.close()


# -- scripts ---------------------------------------------------------------------------------------


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 5


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_gives_the_results_it_says(path: Path, host: Host) -> None:
    text = path.read_text()
    found = play(text, host)
    if os.environ.get("HEADRACE_REWRITE_SCRIPTS"):
        path.write_text(found)
    assert found == text


# -- conversations of real servers -----------------------------------------------------------------

CAPTURES: Final = (
    "17b_takeover_605",
    "17b_takeover_665",
    "17b_takeover_665_durable",
    "17c_takeover_pending_665",
)
FROM_PRODUCER: Final = (SnapshotMarker, Mutation, SetVBucketState, StreamEnd)
TO_IT: Final = (
    Control,
    StreamRequest,
    SnapshotMarkerReply,
    SetVBucketStateReply,
    SeqnoAcknowledged,
)


@dataclass
class Recorded:
    """A takeover as the producer of a capture lived it: what reached it, and what it sent."""

    dialect: Dialect
    features: tuple[int, ...] = ()
    events: list[Message] = field(default_factory=list)
    """Client writes, and frames of both ends, in their order."""
    written: dict[int, bytes] = field(default_factory=dict)
    """Seqno and key of what the producer sent."""


def _source_port(items: list[Item]) -> int:
    """The client port of the connection to the producer: the one on which streams are requested."""
    for item in items:
        asked = isinstance(item.message, StreamRequest)
        if asked and item.direction is Direction.CLIENT_TO_SERVER and item.connection.client:
            return item.connection.client.port
    raise AssertionError("no stream is requested")


def recorded(name: str) -> Recorded:
    dialect = Dialect.DCP_5 if "605" in name else Dialect.DCP_7
    with open_source(str(TESTS / "captures" / f"{name}.pcap")) as source:
        items = [item for item in walk(source, dialect, strict=False) if item.message is not None]
    port = _source_port(items)
    collections = "605" not in name
    found = Recorded(dialect, (Feature.COLLECTIONS, Feature.JSON) if collections else ())
    for item in items:
        message = item.message
        assert item.connection.client is not None
        assert message is not None
        if item.connection.client.port == port and isinstance(message, FROM_PRODUCER + TO_IT):
            found.events.append(message)
            if isinstance(message, Mutation):
                found.written[message.by_seqno] = message.key
        elif isinstance(message, kv.SetReply) and message.seqno:
            found.events.append(message)
    return found


def shape(message: Message) -> str:
    """A frame without what depends on the other server's checkpoints and clock."""
    if isinstance(message, SnapshotMarker):
        flags = (message.flags or 0) & ~MarkerFlag.CHECKPOINT
        visible = message.max_visible_seqno
        return f"marker {message.start_seqno}-{message.end_seqno} {flags:02x} visible {visible}"
    if isinstance(message, Mutation):
        return f"mutation {message.by_seqno} {message.key!r}"
    return frame_line(message)


class Again:
    """Our producer in the place of the recorded one."""

    def __init__(self, told: Recorded, host: Host) -> None:
        self.told, self.host = told, host
        self.peer = Peer(
            host,
            dialect=told.dialect,
            features=told.features,
            flags=OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES,
            name=b"replication:a->b:default",
        )
        self.vbucket = next(one for one in told.events if isinstance(one, StreamRequest)).vbucket
        self.copy = host.bucket.vbucket(self.vbucket)
        self.sent: list[Message] = []
        self.due: list[int] = []
        self.expected: list[str] = []
        self.found: list[str] = []

    def write_up_to(self, seqno: int) -> None:
        """Write what the recorded clients wrote, at the seqnos it got; the rest is filler."""
        while self.copy.high_seqno < seqno:
            number = self.copy.high_seqno + 1
            key = self.told.written.get(number, b"filler-%d" % number)
            self.copy.store(key if self.told.features else b"\0" + key, b"{}")

    def play(self) -> None:
        for event in self.told.events:
            if isinstance(event, kv.SetReply):
                self.due.append(event.seqno or 0)
            elif isinstance(event, FROM_PRODUCER):
                self._compare(event)
            else:
                self._hear(event)

    def _hear(self, event: Message) -> None:
        if isinstance(event, StreamRequest):
            self.write_up_to(event.start_seqno)
            self.peer.stream(
                self.vbucket,
                event.start_seqno,
                uuid=self.peer.uuid(self.vbucket) if event.start_seqno else 0,
                flags=event.flags,
                opaque=event.opaque,
            )
            return
        if isinstance(event, SetVBucketStateReply) and self.due:
            # What was written while the other node became pending.
            self.write_up_to(max(self.due))
        self.peer.tell(event)

    def _compare(self, event: Message) -> None:
        if isinstance(event, SnapshotMarker):
            self.write_up_to(event.end_seqno or 0)
        if not self.sent:
            self.sent = self.peer.drain()
        self.expected.append(shape(event))
        self.found.append(shape(self.sent.pop(0)) if self.sent else "nothing")


@pytest.mark.parametrize("name", CAPTURES)
def test_a_takeover_goes_as_it_went_between_real_servers(name: str, host: Host) -> None:
    again = Again(recorded(name), host)
    again.play()
    assert again.found == again.expected
    assert again.sent == []
    assert again.peer.drain() == []
    assert again.copy.state is VBucketState.DEAD
    assert again.peer.producer.closed_reason is None
    states = [line for line in again.found if line.startswith("state")]
    assert states == ["state pending", "state active"]


# -- rules -----------------------------------------------------------------------------------------


def begin(host: Host, dialect: Dialect = Dialect.DCP_7, **more: object) -> Peer:
    peer = Peer(host, dialect=dialect, **more)  # type: ignore[arg-type]
    peer.stream(0, flags=TAKEOVER, opaque=0x1000)
    return peer


@pytest.mark.parametrize("state", [VBucketState.REPLICA, VBucketState.PENDING, VBucketState.DEAD])
def test_only_an_active_vbucket_is_handed_over(host: Host, state: VBucketState) -> None:
    host.bucket.vbucket(0).set_state(state)
    assert refused(Peer(host).request(0, flags=TAKEOVER)) == Status.NOT_MY_VBUCKET


def test_a_stream_that_leaves_something_out_hands_nothing_over(host: Host) -> None:
    empty = Peer(host, flags=OpenFlag.NO_VALUE)
    assert refused(empty.request(0, flags=TAKEOVER)) == Status.EINVAL
    from_disk = TAKEOVER | StreamFlag.DISK_ONLY
    assert refused(Peer(host).request(0, flags=from_disk)) == Status.EINVAL
    filtered = Peer(host, features=[Feature.COLLECTIONS], controls={"enable_noop": "true"})
    only_one = b'{"collections":["0"]}'
    assert refused(filtered.request(0, flags=TAKEOVER, value=only_one)) == Status.EINVAL


STATE_BYTES: Final = {
    Dialect.UPR_DRAFT: (b"\2", b"\1"),
    Dialect.UPR_2014: (b"\3", b"\1"),
    Dialect.DCP_3: (b"\3", b"\1"),
    Dialect.DCP_5: (b"\3", b"\1"),
    Dialect.DCP_7: (b"\3", b"\1"),
}


@pytest.mark.parametrize("dialect", Dialect)
def test_states_are_numbered_as_the_dialect_does(host: Host, dialect: Dialect) -> None:
    put(host.bucket.vbucket(0), "a")
    peer = begin(host, dialect)
    acknowledges = dialect not in (Dialect.UPR_DRAFT, Dialect.UPR_2014)
    states: list[bytes] = []
    for _ in range(2):
        data = bytes(peer.producer.pull(1 << 20, 0.0))
        if acknowledges and not states:
            assert data[:2] == b"\x80\x56"
            peer.tell(MARKED)
            data = bytes(peer.producer.pull(1 << 20, 0.0))
        states.append(data[-1:])
        assert data[-25:-23] == b"\x80\x5b"
        peer.tell(ANSWERED)
    assert tuple(states) == STATE_BYTES[dialect]
    assert kinds(peer.drain()) == ["end 0"]


def test_a_backfill_comes_first_and_its_marker_asks_for_nothing(tmp_path: Path) -> None:
    host = disk_host(tmp_path, "a", "b")
    peer = begin(host)
    got = peer.drain()
    (marker,) = only(got, SnapshotMarker)
    assert not (marker.flags or 0) & MarkerFlag.ACK
    assert isinstance(got[-1], SetVBucketState), "nothing is left, no answer is outstanding"
    host.bucket.close()


def test_a_cursor_is_not_dropped_once_the_sending_began(host: Host) -> None:
    put(host.bucket.vbucket(0), "a")
    peer = begin(host)
    (stream,) = peer.producer.streams.values()
    peer.drain()
    assert stream.state is State.TAKEOVER_SEND
    assert not stream.drop_cursor()


def test_a_state_change_from_outside_ends_the_takeover(host: Host) -> None:
    put(host.bucket.vbucket(0), "a")
    peer = begin(host)
    peer.drain()
    peer.tell(MARKED)
    peer.drain()
    host.set_state(0, VBucketState.REPLICA)
    peer.tell(ANSWERED)
    assert kinds(peer.drain()) == ["end 2"]
    assert host.bucket.vbucket(0).state is VBucketState.REPLICA, "ours no more, so not ours to kill"


def test_the_copy_is_dead_on_disk_before_the_other_is_asked_to_be_active(tmp_path: Path) -> None:
    host = make_host(tmp_path / "bucket")
    put(host.bucket.vbucket(0), "a")
    peer = begin(host)
    peer.drain()
    peer.tell(MARKED)
    assert kinds(peer.drain()) == ["SetVBucketState"]
    put(host.bucket.vbucket(0), "b")
    peer.tell(ANSWERED)
    host.bucket.abandon()
    again = Host(Bucket.open(tmp_path / "bucket"))
    assert again.bucket.vbucket(0).state is VBucketState.DEAD
    assert again.bucket.vbucket(0).high_seqno == 2, "with every item that came before"
    again.bucket.close()


def test_prepares_in_flight_travel(host: Host) -> None:
    host.bucket.vbucket(0).prepare(b"\0k", b"v", level=1)
    peer = begin(host, controls={"enable_sync_writes": "true", "consumer_name": "b"})
    got = peer.drain()
    assert [one.by_seqno for one in only(got, Prepare)] == [1]
    peer.tell(MARKED)
    peer.drain()
    peer.tell(ANSWERED)
    peer.drain()
    peer.tell(ANSWERED)
    assert kinds(peer.drain()) == ["end 0"]


def test_writers_that_are_faster_than_answers_do_not_keep_a_takeover_from_going_on(
    host: Host,
) -> None:
    peer, copy = begin(host), host.bucket.vbucket(0)
    sent: list[str] = []
    for number in range(20):
        put(copy, f"key-{number}")
        sent += kinds(peer.drain())
        peer.tell(MARKED)
    asked = sent.index("SetVBucketState")
    assert sum(line.startswith("marker") for line in sent[:asked]) == CATCH_UPS_MAX
    peer.tell(ANSWERED)
    rest = kinds(peer.drain())
    assert [line for line in [*sent, *rest] if line.startswith("mutation")] == [
        f"mutation {seqno}" for seqno in range(1, 21)
    ]


def test_writers_are_released_when_the_connection_goes(host: Host) -> None:
    put(host.bucket.vbucket(0), "a")
    peer = begin(host)
    peer.drain()
    peer.tick(BACKED_UP_SECONDS + 1)
    assert host.held == [(0, True)]
    peer.producer.close()
    assert host.held == [(0, True), (0, False)]


def test_two_takeovers_of_a_vbucket_have_one_winner(host: Host) -> None:
    put(host.bucket.vbucket(0), "a")
    first, second = begin(host, name=b"first"), begin(host, name=b"second")
    for peer in (first, second):
        peer.drain()
        peer.tell(MARKED)
        assert kinds(peer.drain()) == ["SetVBucketState"]
    first.tell(ANSWERED)
    second.tell(ANSWERED)
    assert kinds(second.drain()) == ["end 2"]
    assert kinds(first.drain()) == ["SetVBucketState"]


def test_several_vbuckets_are_handed_over_on_one_connection(host: Host) -> None:
    peer = Peer(host)
    for number in range(3):
        put(host.bucket.vbucket(number), "a")
        peer.stream(number, flags=TAKEOVER, opaque=0x2000 + number)
    peer.drain()
    for number in (2, 0, 1):
        peer.tell(SnapshotMarkerReply(opaque=0x2000 + number))
        for wanted in (VBucketState.PENDING, VBucketState.ACTIVE):
            (asked,) = peer.drain()
            assert isinstance(asked, SetVBucketState)
            assert (asked.vbucket, asked.state) == (number, wanted)
            peer.tell(SetVBucketStateReply(opaque=0x2000 + number))
        assert kinds(peer.drain()) == ["end 0"]
        assert host.bucket.vbucket(number).state is VBucketState.DEAD
    assert not peer.producer.takeovers


def test_statistics_tell_since_when_and_what_is_outstanding(host: Host) -> None:
    put(host.bucket.vbucket(0), "a")
    peer = begin(host)
    peer.drain()
    told = dict(peer.producer.statistics(peer.now))
    assert told["stream_0_state"] == "takeover-send"
    assert told["stream_0_takeover_since"] == "1000"
    assert told["stream_0_takeover_state"] == "pending"
    assert told["stream_0_snapshot_marker_acks_outstanding"] == "1"


def test_a_dialect_without_acknowledged_markers_counts_none() -> None:
    takeover = Takeover(acknowledges=False)
    assert not takeover.expects_answer()
    assert takeover.is_acknowledged


# -- by chance -------------------------------------------------------------------------------------


class Played:
    """A takeover whose events come in an order that chance chooses."""

    def __init__(self, host: Host, seed: int) -> None:
        self.chance = random.Random(seed)
        self.host, self.source = host, host.bucket.vbucket(0)
        window = self.chance.choice(["0", "100", "400"])
        self.peer = Peer(host, controls={"connection_buffer_size": window}, name=b"played")
        self.copy = Copy()
        self.acks: list[int] = []
        """Ends of the markers whose answers are due."""
        self.states: list[VBucketState] = []
        self.answers_due = 0

    def write(self) -> None:
        key = b"\0key-%d" % self.chance.randint(0, 12)
        if self.source.state is not VBucketState.ACTIVE:
            return
        if self.chance.random() < 0.25:
            self.source.delete(key)
        else:
            self.source.store(key, b"%d" % self.source.high_seqno)

    def pull(self) -> None:
        for message in self.peer.pull(self.chance.choice([60, 200, 5_000])):
            if isinstance(message, SetVBucketState):
                self.ask(VBucketState(message.state))
                continue
            if isinstance(message, SnapshotMarker) and (message.flags or 0) & MarkerFlag.ACK:
                self.acks.append(message.end_seqno or 0)
            self.copy.receive(message)

    def ask(self, state: VBucketState) -> None:
        assert not self.acks, "every marker was answered"
        assert self.copy.at_boundary
        if state is VBucketState.ACTIVE:
            assert self.source.state is VBucketState.DEAD
            assert self.copy.seqno == self.source.high_seqno, "with everything ever written"
        self.states.append(state)
        self.answers_due += 1

    def answer(self) -> None:
        if self.acks and self.copy.boundary >= self.acks[0]:
            self.acks.pop(0)
            self.peer.tell(MARKED)
        elif self.answers_due:
            self.answers_due -= 1
            self.peer.tell(ANSWERED)

    def acknowledge(self) -> None:
        self.peer.tell(BufferAck(ack_bytes=self.peer.producer.window.outstanding))

    def stir(self) -> None:
        """Something else happens: a commit, a cursor lost, an answer nobody waits for."""
        if self.chance.random() < 0.4:
            self.host.bucket.commit()
        for stream in self.peer.producer.streams.values():
            if self.chance.random() < 0.5:
                stream.drop_cursor()
        if not self.acks and self.chance.random() < 0.3:
            self.peer.tell(MARKED)
        if not self.answers_due and self.chance.random() < 0.3:
            self.peer.tell(ANSWERED)

    def play(self) -> None:
        for _ in range(self.chance.randint(0, 30)):
            self.write()
        if self.chance.random() < 0.5:
            self.host.bucket.commit()
        self.peer.stream(0, flags=TAKEOVER, opaque=0x1000)
        acts = [self.write, self.pull, self.pull, self.answer, self.acknowledge, self.stir]
        for _ in range(20_000):
            if self.copy.ended is not None:
                return
            self.chance.choice(acts)()
        raise AssertionError("it never ended")


@pytest.mark.parametrize("seed", range(80))
def test_a_takeover_ends_with_everything_handed_over(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "bucket" if seed % 2 else None
    host = make_host(path)
    if seed % 4 == 3:
        put(host.bucket.vbucket(0), *(f"old-{number}" for number in range(9)))
        assert path is not None
        host = restarted(host, path)
    played = Played(host, seed)
    played.play()
    assert played.copy.ended == 0
    assert played.states == [VBucketState.PENDING, VBucketState.ACTIVE]
    living = {}
    for key in {*played.copy.state, *(b"key-%d" % number for number in range(13))}:
        item = host.bucket.vbucket(0).get(b"\0" + key)
        if item is not None and not item.deleted:
            living[key] = item.value
    assert played.copy.state == living, f"seed {seed}"
    assert not played.peer.producer.takeovers
    host.bucket.close()
