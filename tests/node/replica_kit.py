"""A replica and its producer, joined by encoded frames: what a manager's proxy does, without it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.node.producer import Producer
from headrace.node.replica import BULK_OPCODES, Replica
from headrace.wire.codec import decode, encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import FrameBuffer
from headrace.wire.messages import AddStream, CloseStream, Open
from headrace.wire.opcodes import Datatype, Feature, OpenFlag, VBucketState
from tests.node.stream_kit import Host, Session, make_host, put

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from headrace.node.replica_context import ReplicaSettings
    from headrace.wire.frame import Frame
    from headrace.wire.message import Message

NAME = b"replication:a->b:test"
FLAGS = OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES
FEATURES = (Feature.COLLECTIONS, Feature.SNAPPY, Feature.JSON, Feature.XATTR)
MANAGER_OPCODES = frozenset({0x51, 0x52})


def replica_host(path: Path | None = None, *, vbuckets: int = 4, **settings: int) -> Host:
    """A bucket whose vbuckets are replicas."""
    host = make_host(path, vbuckets=vbuckets, **settings)
    for vbucket in host.bucket.vbuckets:
        vbucket.set_state(VBucketState.REPLICA)
    return host


def frames_of(data: bytes | memoryview) -> list[Frame]:
    buffer = FrameBuffer()
    buffer.feed(data)
    return list(buffer)


@dataclass
class Consumer:
    """A replica's end as its owner drives it: frames in, messages out."""

    host: Host
    dialect: Dialect = Dialect.DCP_7
    features: Iterable[int] = FEATURES
    name: bytes = NAME
    consumer_name: str = "b"
    flags: int = int(FLAGS)
    settings: ReplicaSettings | None = None
    bulk: bool = True
    now: float = 1000.0
    sent: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.session = Session(self.dialect, frozenset(int(one) for one in self.features))
        self.replica = Replica(self.session, self.host, self.now, settings=self.settings)
        named = bool(self.consumer_name) and self.dialect is Dialect.DCP_7
        value = b'{"consumer_name": "%s"}' % self.consumer_name.encode() if named else b""
        self.tell(
            Open(
                flags=self.flags if self.dialect not in OLD else 0,
                key=self.name,
                opaque=1,
                value=value,
                datatype=int(Datatype.JSON) if value else 0,
            )
        )

    def tell(self, message: Message) -> list[Message]:
        """Give one message; what the replica sends at once."""
        return self.feed(encode(message, self.dialect))

    def feed(self, data: bytes | memoryview) -> list[Message]:
        """Give bytes as a connection does: runs of items at once, all else frame by frame."""
        view, at, out = memoryview(bytes(data)), 0, b""
        while at < len(view) and self.replica.closed_reason is None:
            if self.bulk and view[at] == 0x80 and view[at + 1] in BULK_OPCODES:
                used = self.replica.receive_bulk(view[at:], self.now)
                if used:
                    at += used
                    continue
            size = 24 + int.from_bytes(view[at + 8 : at + 12], "big")
            (frame,) = frames_of(view[at : at + size])
            if not frame.is_reply:
                self.replica.arrived(frame.opcode, frame.size)
            out += self.replica.handle(decode(frame, self.dialect), self.now)
            at += size
        out += self.replica.pull(1 << 20, self.now)
        return self._noted(out)

    def _noted(self, data: bytes) -> list[Message]:
        messages = [decode(frame, self.dialect) for frame in frames_of(data)]
        self.sent += messages
        return messages

    def add(self, vbucket: int = 0, flags: int = 0, *, opaque: int = 0x701) -> list[Message]:
        """ADD_STREAM."""
        return self.tell(AddStream(vbucket=vbucket, flags=flags, opaque=opaque))

    def close(self, vbucket: int = 0, *, opaque: int = 0x702) -> list[Message]:
        """CLOSE_STREAM."""
        return self.tell(CloseStream(vbucket=vbucket, opaque=opaque))

    def tick(self, seconds: float = 0.0) -> list[Message]:
        self.now += seconds
        return self._noted(self.replica.tick(self.now))


OLD = frozenset({Dialect.UPR_DRAFT, Dialect.UPR_2014, Dialect.DCP_3})


@dataclass
class Pair:
    """A producer and a consumer and the manager between them."""

    active: Host
    consumer: Consumer
    replies: list[Message] = field(default_factory=list)
    """What the consumer answered to the manager itself."""

    def __post_init__(self) -> None:
        self.session = Session(self.consumer.dialect, self.consumer.session.features)
        self.producer = Producer(self.session, self.active, self.consumer.now)
        flags = self.consumer.flags if self.consumer.dialect not in OLD else 0
        opened = Open(flags=flags | OpenFlag.PRODUCER, key=NAME, opaque=1)
        self.producer.handle(opened, self.consumer.now)
        assert self.producer.is_open

    def add(self, vbucket: int = 0, flags: int = 0) -> None:
        """ADD_STREAM, and carry what follows until the stream stands or is refused."""
        self._to_producer(self.consumer.add(vbucket, flags))

    def close_stream(self, vbucket: int = 0) -> None:
        """CLOSE_STREAM to both ends, as a manager does; their answers are its own."""
        self.consumer.close(vbucket)
        self.producer.handle(CloseStream(vbucket=vbucket, opaque=0x703), self.now)

    def _to_producer(self, messages: Iterable[Message]) -> None:
        for message in messages:
            data = encode(message, self.consumer.dialect)
            (frame,) = frames_of(data)
            if frame.is_reply and frame.opcode in MANAGER_OPCODES:
                self.replies.append(message)
                continue
            if frame.opcode == 0xFE:  # GET_ERROR_MAP: a session answers it, not a producer
                reply = bytes([0x81, 0xFE, 0, 0, 0, 0, 0, 1]) + bytes(4) + data[12:16] + bytes(8)
            else:
                reply = bytes(self.producer.handle(decode(frame, self.consumer.dialect), self.now))
            if reply:
                self._to_producer(self.consumer.feed(reply))

    @property
    def now(self) -> float:
        return self.consumer.now

    def carry(self, budget: int = 1 << 20) -> bool:
        """Take one pull from the producer to the consumer, and its answers back; whether any."""
        data = bytes(self.producer.pull(budget, self.now))
        self._to_producer(self.consumer.feed(data))
        return bool(data)

    def settle(self, budget: int = 1 << 20) -> None:
        """Carry until nothing moves."""
        for _ in range(100_000):
            wakes = self.session.wakes
            if not self.carry(budget) and wakes == self.session.wakes:
                return
        raise AssertionError("never settles")

    def close(self) -> None:
        self.producer.close()
        self.consumer.replica.close()


def told_to_go_back(settings: ReplicaSettings) -> Pair:
    """A pair whose replica holds seqno 2, which its producer lost: it is to go back to 1."""
    active, replica = make_host(), replica_host()
    source = active.bucket.vbucket(0)
    before = Pair(active, Consumer(replica))
    before.add()
    for name in ("a", "b"):
        put(source, name)
        before.settle()
    before.close()
    source.failover(1)
    pair = Pair(active, Consumer(replica, settings=settings))
    pair.add()
    return pair
