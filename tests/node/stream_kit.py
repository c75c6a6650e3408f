"""A consumer's end for tests of the producer: bytes in, bytes out, no socket.

`Peer` speaks to a `Producer` through encoded frames in both directions. `Copy` is what a careful
consumer keeps of one vbucket: it checks every rule a stream must obey and knows its own boundaries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from headrace.node.feed import Feed
from headrace.node.manifest import FIRST, Manifest, changes, from_json
from headrace.node.producer import Producer
from headrace.node.refusal import Refusal
from headrace.store import Bucket, BucketSettings
from headrace.wire.codec import decode, encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import FrameBuffer
from headrace.wire.message import ErrorReply, Message, Reply, Request
from headrace.wire.messages import (
    Abort,
    BufferAck,
    Commit,
    Control,
    Deletion,
    Expiration,
    Mutation,
    Noop,
    Open,
    OsoSnapshot,
    Prepare,
    SeqnoAdvanced,
    SnapshotMarker,
    StreamEnd,
    StreamRequest,
    StreamRequestReply,
    SystemEvent,
)
from headrace.wire.opcodes import (
    SEQNO_MAX,
    Feature,
    MarkerFlag,
    OpenFlag,
    Status,
    SystemEventId,
    VBucketState,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from headrace.node.producer_context import ProducerSettings
    from headrace.store import VBucket

M = TypeVar("M", bound=Message)
ITEMS = (Mutation, Deletion, Expiration, SystemEvent, Prepare, Commit, Abort, SeqnoAdvanced)


class Host:
    """A bucket as a producer sees it, without a node around it."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.feed = Feed(bucket)
        self.manifest: Manifest = FIRST
        self.inbound: dict[int, object] = {}
        self.held: list[tuple[int, bool]] = []
        self.acknowledged: list[tuple[int, str, int]] = []

    def set_state(self, vbucket: int, state: VBucketState, *, takeover: bool = False) -> VBucket:
        """As the node does: durably, and everyone hears of it."""
        found = self.bucket.vbucket(vbucket)
        found.set_state(state, takeover=takeover)
        self.feed.tell(vbucket)
        return found

    def hold_writes(self, vbucket: int, *, held: bool) -> None:
        self.held.append((vbucket, held))

    def replica_joined(self, vbucket: int, name: str) -> None:
        self.acknowledged.append((vbucket, name, 0))

    def replica_acknowledged(self, vbucket: int, name: str, seqno: int) -> None:
        self.acknowledged.append((vbucket, name, seqno))

    def set_manifest(self, value: object) -> None:
        """Apply a manifest as the node does: events first, then the manifest."""
        new = from_json(value)
        for event in changes(self.manifest, new):
            for vbucket in self.bucket.vbuckets:
                if vbucket.state is VBucketState.ACTIVE:
                    vbucket.system_event(
                        event.event,
                        version=event.version,
                        subject=event.subject,
                        key=event.key,
                        value=event.value,
                    )
        self.manifest = new
        self.feed.tell_all()


def make_host(path: Path | None = None, *, vbuckets: int = 4, **settings: int) -> Host:
    """A bucket with active vbuckets; in memory unless a path is given."""
    bucket = Bucket.open(path, BucketSettings(vbuckets=vbuckets, **settings))
    bucket.create_vbuckets(VBucketState.ACTIVE)
    return Host(bucket)


def put(vbucket: VBucket, *names: str, collection: bytes = b"\0") -> None:
    for name in names:
        vbucket.store(collection + name.encode(), b"v-" + name.encode())


def restarted(host: Host, path: Path) -> Host:
    """The same bucket after a clean stop: nothing is in memory."""
    host.bucket.close()
    again = Host(Bucket.open(path))
    again.manifest = host.manifest
    return again


def disk_host(tmp_path: Path, *names: str) -> Host:
    path = tmp_path / "disk"
    host = make_host(path)
    put(host.bucket.vbucket(0), *names)
    return restarted(host, path)


@dataclass
class Session:
    """A connection as a producer sees it."""

    dialect: Dialect = Dialect.DCP_7
    features: frozenset[int] = frozenset()
    wakes: int = 0

    @property
    def collections(self) -> bool:
        return Feature.COLLECTIONS in self.features

    def wake(self) -> None:
        self.wakes += 1

    def not_my_vbucket(self) -> Refusal:
        return Refusal(Status.NOT_MY_VBUCKET, value=b'{"rev":1}')


@dataclass
class Peer:
    """A consumer connected to a producer by nothing but bytes."""

    host: Host
    dialect: Dialect = Dialect.DCP_7
    features: Iterable[int] = ()
    flags: int = 0
    name: bytes = b"test"
    controls: dict[str, str] = field(default_factory=dict)
    settings: ProducerSettings | None = None
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.session = Session(self.dialect, frozenset(int(one) for one in self.features))
        self.producer = Producer(self.session, self.host, self.now, settings=self.settings)
        self._frames = FrameBuffer()
        self.opened = self.ask(Open(flags=self.flags | OpenFlag.PRODUCER, key=self.name, opaque=1))
        for key, value in self.controls.items():
            reply = self.control(key, value)
            assert reply.status == 0, f"control {key}={value}: {reply}"

    def _read(self, data: bytes | memoryview) -> list[Message]:
        self._frames.feed(data)
        return [decode(frame, self.dialect) for frame in self._frames]

    def tell(self, message: Message) -> list[Message]:
        """Send a message; what comes back at once."""
        self._sent = FrameBuffer()
        self._sent.feed(encode(message, self.dialect))
        (frame,) = self._sent
        return self._read(self.producer.handle(decode(frame, self.dialect), self.now))

    def ask(self, message: Message) -> Reply:
        """Send a request that is answered by exactly one reply."""
        (reply,) = self.tell(message)
        assert isinstance(reply, Reply)
        assert reply.opaque == message.opaque
        return reply

    def control(self, key: str, value: str) -> Reply:
        return self.ask(Control(key=key.encode(), value=value.encode(), opaque=2))

    def request(
        self,
        vbucket: int = 0,
        start: int = 0,
        *,
        end: int = SEQNO_MAX,
        uuid: int = 0,
        snapshot: tuple[int, int] | None = None,
        flags: int = 0,
        value: bytes = b"",
        opaque: int | None = None,
    ) -> Reply:
        low, high = snapshot if snapshot is not None else (start, start)
        draft = self.dialect is Dialect.UPR_DRAFT
        return self.ask(
            StreamRequest(
                vbucket=vbucket,
                opaque=0x1000 + vbucket if opaque is None else opaque,
                flags=flags,
                start_seqno=start,
                end_seqno=end,
                vb_uuid=uuid,
                snap_start_seqno=None if draft else low,
                snap_end_seqno=None if draft else high,
                high_seqno=0 if draft else None,
                value=value,
            )
        )

    def stream(self, vbucket: int = 0, start: int = 0, **more: object) -> StreamRequestReply:
        """Request a stream that is accepted."""
        reply = self.request(vbucket, start, **more)  # type: ignore[arg-type]
        assert isinstance(reply, StreamRequestReply), reply
        return reply

    def uuid(self, vbucket: int = 0) -> int:
        return self.host.bucket.vbucket(vbucket).failover_log.newest.uuid

    def pull(self, budget: int = 1 << 20) -> list[Message]:
        return self._read(self.producer.pull(budget, self.now))

    def drain(self, budget: int = 1 << 20, *, ack: bool = False) -> list[Message]:
        """Everything the producer has to send now; ``ack``: acknowledging all of it."""
        got: list[Message] = []
        for turn in range(100_000):
            wakes = self.session.wakes
            data = self.producer.pull(budget, self.now)
            ahead = self.producer.look_ahead(at_least=1)
            if ahead is not None and turn % 2:
                ahead.run()  # as another thread would; else the stream does it itself
            got += self._read(data)
            if data and ack:
                self.tell(BufferAck(ack_bytes=self.producer.window.outstanding))
            if not data and self.session.wakes == wakes:
                return got
        raise AssertionError("the producer never stops")

    def tick(self, seconds: float = 0.0) -> list[Message]:
        self.now += seconds
        return self._read(self.producer.tick(self.now))


def kinds(messages: Iterable[Message]) -> list[str]:
    """What came, in short: markers with range and flags, items with their seqno."""
    return [describe(message) for message in messages]


def describe(message: Message) -> str:
    if isinstance(message, SnapshotMarker):
        if message.start_seqno is None:
            return "marker"
        return f"marker {message.start_seqno}-{message.end_seqno} {message.flags:02x}"
    if isinstance(message, StreamEnd):
        return f"end {int(message.reason)}"
    if isinstance(message, Commit):
        return f"commit {message.commit_seqno}"
    if isinstance(message, Abort):
        return f"abort {message.abort_seqno}"
    if isinstance(message, OsoSnapshot):
        return f"oso {int(message.oso_flags)}"
    if isinstance(message, SystemEvent):
        return f"event {int(message.event)} {message.by_seqno}"
    if isinstance(message, SeqnoAdvanced):
        return f"advanced {message.by_seqno}"
    if isinstance(message, Mutation | Deletion | Expiration | Prepare):
        return f"{type(message).__name__.lower()} {message.by_seqno}"
    return type(message).__name__


def only(messages: Iterable[Message], kind: type[M]) -> list[M]:
    return [message for message in messages if isinstance(message, kind)]


def seqno_of(message: Message) -> int:
    if isinstance(message, Commit):
        return message.commit_seqno
    if isinstance(message, Abort):
        return message.abort_seqno
    assert isinstance(message, ITEMS)
    return message.by_seqno  # type: ignore[union-attr]


class Illegal(AssertionError):
    """The producer broke a rule of the protocol."""


@dataclass
class Copy:
    """One vbucket as a careful consumer holds it.

    ``state`` is what it would publish if it could now; ``boundary`` the last seqno at which it may.
    """

    uuid: int = 0
    seqno: int = 0
    snapshot: tuple[int, int] = (0, 0)
    state: dict[bytes, bytes | None] = field(default_factory=dict)
    boundary: int = 0
    ended: int | None = None
    marker: tuple[int, int] | None = None
    flags: int = 0
    keys: set[bytes] = field(default_factory=set)
    prepared: dict[bytes, bytes | None] = field(default_factory=dict)
    """Prepares in flight: what their commit will make of the key."""
    of_replica: bool = False
    """A replica continues half a snapshot of its disk from memory, under one disk marker: a key may
    come from both."""

    @property
    def at_boundary(self) -> bool:
        return self.seqno == self.boundary

    def receive(self, message: Message) -> bool:
        """Take one message; True when a snapshot has just become whole."""
        if self.ended is not None:
            raise Illegal(f"{describe(message)} after the stream's end")
        if isinstance(message, StreamEnd):
            self.ended = int(message.reason)
            return False
        if isinstance(message, SnapshotMarker):
            self._begin(message)
            return False
        return self._item(message)

    def _begin(self, marker: SnapshotMarker) -> None:
        assert marker.start_seqno is not None
        assert marker.end_seqno is not None
        flags = marker.flags or 0
        if bool(flags & MarkerFlag.MEMORY) == bool(flags & MarkerFlag.DISK):
            raise Illegal(f"flags {flags:#x}: exactly one of memory and disk")
        if marker.start_seqno > marker.end_seqno or marker.end_seqno <= self.seqno:
            raise Illegal(f"{describe(marker)} after seqno {self.seqno}")
        if self.marker is not None and marker.start_seqno > self.marker[0]:
            raise Illegal(f"{describe(marker)} while {self.marker} is not finished")
        if not self.at_boundary and marker.start_seqno > self.snapshot[0]:
            raise Illegal(f"{describe(marker)} for a reader inside {self.snapshot}")
        self.marker = (marker.start_seqno, marker.end_seqno)
        self.flags = flags
        self.keys.clear()

    def _item(self, message: Message) -> bool:
        seqno = seqno_of(message)
        if self.marker is None:
            raise Illegal(f"{describe(message)} without a marker")
        if seqno <= self.seqno or not self.marker[0] <= seqno <= self.marker[1]:
            raise Illegal(f"{describe(message)} after {self.seqno} in {self.marker}")
        self.seqno, self.snapshot = seqno, self.marker
        self._apply(message)
        if seqno < self.marker[1]:
            return False
        self.boundary, self.marker, self.snapshot = seqno, None, (seqno, seqno)
        return True

    def _apply(self, message: Message) -> None:
        if isinstance(message, SystemEvent):
            if message.event == SystemEventId.END_COLLECTION:
                prefix = message.value[-1:]  # ids in these tests fit one byte
                gone = [key for key in self.state if key[:1] == prefix]
                for key in gone:
                    del self.state[key]
            return
        if isinstance(message, Prepare):
            self.prepared[message.key] = None if message.deleted else message.value
            return
        if isinstance(message, Abort):
            self.prepared.pop(message.key, None)
            return
        if isinstance(message, Commit):
            if message.key not in self.prepared:
                raise Illegal(f"{describe(message)} without its prepare")
            value = self.prepared.pop(message.key)
            self.state.pop(message.key, None)
            if value is not None:
                self.state[message.key] = value
            return
        if not isinstance(message, Mutation | Deletion | Expiration):
            return
        self.prepared.pop(message.key, None)
        may_repeat = self.flags & MarkerFlag.MAY_DUPLICATE_KEYS or (
            self.of_replica and self.flags & MarkerFlag.DISK
        )
        if message.key in self.keys and not may_repeat:
            raise Illegal(f"key {message.key!r} twice in {self.marker}")
        self.keys.add(message.key)
        if isinstance(message, Mutation):
            self.state[message.key] = message.value
        else:
            self.state.pop(message.key, None)


def refused(reply: Reply) -> int:
    """The status of a refusal."""
    assert isinstance(reply, ErrorReply), reply
    return reply.status


def is_noop(message: Message) -> bool:
    return isinstance(message, Noop) and isinstance(message, Request)
