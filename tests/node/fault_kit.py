"""A consumer for tests of faults: it streams one vbucket and keeps what it was told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.wire import messages
from headrace.wire.message import ErrorReply
from headrace.wire.opcodes import SEQNO_MAX
from tests.node.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.wire.message import Message

DOCUMENT_BYTES = 10


def fill(port: int, count: int, *, vbucket: int = 0, prefix: str = "k", size: int = 0) -> None:
    """Write so many different keys, one request at a time in one flight."""
    with Client(port) as client:
        for number in range(count):
            key = f"{prefix}{number}".encode()
            client.set(key, b"v" * max(size, DOCUMENT_BYTES), vbucket=vbucket)


@dataclass
class Consumer:
    """One change-stream connection, one vbucket."""

    port: int
    name: str = "sync:one"
    vbucket: int = 0
    controls: dict[str, str] = field(default_factory=dict)
    documents: dict[bytes, bytes] = field(default_factory=dict)
    seqno: int = 0
    snapshot: tuple[int, int] = (0, 0)
    log: tuple[messages.FailoverEntry, ...] = ()
    seen: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client = Client(self.port)
        self.client.open_producer(self.name.encode())
        for key, value in self.controls.items():
            request = messages.Control(key=key.encode(), value=value.encode())
            self.client.ask(request, messages.ControlReply)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def request(self, *, end: int = SEQNO_MAX) -> messages.StreamRequest:
        start, stop = self.snapshot
        if self.seqno >= stop:
            start = stop = self.seqno
        return messages.StreamRequest(
            vbucket=self.vbucket,
            flags=0,
            start_seqno=self.seqno,
            end_seqno=end,
            vb_uuid=self.log[0].uuid if self.log else 0,
            snap_start_seqno=start,
            snap_end_seqno=stop,
        )

    def stream(self, *, end: int = SEQNO_MAX) -> Message:
        """Ask for the stream; the reply, whatever it is."""
        reply = self.client.call(self.request(end=end))
        if isinstance(reply, messages.StreamRequestReply):
            self.log = reply.failover_log
        return reply

    def start_over(self) -> None:
        """Forget everything, as after ROLLBACK 0."""
        self.seqno, self.snapshot, self.log = 0, (0, 0), ()
        self.documents.clear()

    def accept(self, *, end: int = SEQNO_MAX) -> None:
        """Ask for the stream, which must be accepted."""
        reply = self.stream(end=end)
        assert isinstance(reply, messages.StreamRequestReply), reply

    def step(self) -> Message:
        """Take one message of the stream."""
        message = self.client.receive()
        self.seen.append(message)
        if isinstance(message, messages.SnapshotMarker):
            self.snapshot = (message.start_seqno or 0, message.end_seqno or 0)
        elif isinstance(message, messages.Mutation):
            self.documents[message.key] = message.value
            self.seqno = message.by_seqno
        elif isinstance(message, messages.Deletion):
            self.documents.pop(message.key, None)
            self.seqno = message.by_seqno
        return message

    def until(self, done: Callable[[Message], bool]) -> Message:
        """Take messages up to the first that is wanted."""
        while True:
            message = self.step()
            assert not isinstance(message, ErrorReply), message
            if done(message):
                return message

    def until_seqno(self, seqno: int) -> None:
        while self.seqno < seqno:
            self.step()

    def until_end(self) -> messages.StreamEnd:
        message = self.until(lambda one: isinstance(one, messages.StreamEnd))
        assert isinstance(message, messages.StreamEnd)
        return message

    def until_lost(self) -> int:
        """Take everything until the link is gone; bytes of the frame that was not finished."""
        try:
            while True:
                self.step()
        except (EOFError, ConnectionResetError):
            frames = self.client._frames
            return len(frames._data) - frames._at

    def markers(self) -> list[messages.SnapshotMarker]:
        return [one for one in self.seen if isinstance(one, messages.SnapshotMarker)]
