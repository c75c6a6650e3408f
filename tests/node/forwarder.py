"""A manager's link between two nodes, as plain as can be: it passes frames on, unread.

Both ends are opened under one name; what the consumer's node sends goes to the producer's, and
back. ADD_STREAM and CLOSE_STREAM are the manager's own: their replies stay here. `held` is
the road from producer to consumer: cleared, a test can look at a moment in between.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
from typing import TYPE_CHECKING

from headrace.wire.codec import decode
from headrace.wire.dialect import Dialect
from headrace.wire.message import ErrorReply, Reply
from headrace.wire.messages import AddStream, AddStreamReply, CloseStream, Open, OpenReply
from headrace.wire.opcodes import Datatype, Feature, Opcode, OpenFlag, StreamFlag
from tests.node.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from headrace.wire.frame import Frame
    from headrace.wire.message import Message
    from tests.node.running import RunningNode

FEATURES = (
    Feature.XATTR,
    Feature.XERROR,
    Feature.SELECT_BUCKET,
    Feature.SNAPPY,
    Feature.JSON,
    Feature.ALT_REQUEST,
    Feature.SYNC_REPLICATION,
    Feature.COLLECTIONS,
)
OWN = frozenset({Opcode.ADD_STREAM, Opcode.CLOSE_STREAM})
WAIT_SECONDS = 20.0


class Forwarder:
    """One pair of connections and the two threads between them."""

    def __init__(
        self,
        source: RunningNode,
        target: RunningNode,
        *,
        name: str = "replication:a->b:default",
        consumer: str = "b",
    ) -> None:
        self.source, self.target = Client(source.port), Client(target.port)
        self.replies: queue.Queue[Message] = queue.Queue()
        self.passed: list[Frame] = []
        """Frames of the producer's end that were passed on."""
        self.held = threading.Event()
        self.held.set()
        self.stops_at: Callable[[Frame], bool] = lambda _: False
        """Before which frame of the producer's the road is closed."""
        flags = OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES
        for end, more, value in (
            (self.target, 0, json.dumps({"consumer_name": consumer}).encode()),
            (self.source, OpenFlag.PRODUCER, b""),
        ):
            end.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.hello(*FEATURES)
            datatype = Datatype.JSON if value else 0
            request = Open(key=name.encode(), flags=flags | more, value=value, datatype=datatype)
            end.ask(request, OpenReply)
        self._threads = [
            threading.Thread(target=self._pass, args=ends, daemon=True)
            for ends in ((self.source, self.target), (self.target, self.source))
        ]
        for thread in self._threads:
            thread.start()

    def _pass(self, come: Client, go: Client) -> None:
        try:
            while True:
                frame = come.receive_frame()
                if frame.is_reply and frame.opcode in OWN:
                    self.replies.put(decode(frame, Dialect.DCP_7))
                    continue
                if come is self.source:
                    if self.stops_at(frame):
                        self.held.clear()
                    self.held.wait()
                    self.passed.append(frame)
                go.send_bytes(frame.to_bytes())
        except (EOFError, OSError):
            for end in (come, go):
                end.shut()

    def add_stream(self, vbucket: int, *, takeover: bool = False) -> AddStreamReply:
        """Let the target ask for a stream; its reply, which must be a success."""
        flags = StreamFlag.TAKEOVER if takeover else StreamFlag(0)
        self.target.send(AddStream(vbucket=vbucket, flags=flags))
        reply = self.replies.get(timeout=WAIT_SECONDS)
        assert isinstance(reply, AddStreamReply), reply
        return reply

    def close_stream(self, vbucket: int) -> None:
        """Close it at both ends: neither tells the other."""
        for end in (self.target, self.source):
            end.send(CloseStream(vbucket=vbucket))
            reply = self.replies.get(timeout=WAIT_SECONDS)
            assert isinstance(reply, Reply)
            assert not isinstance(reply, ErrorReply), reply

    def break_off(self) -> None:
        """Cut both connections; what is held is lost."""
        for end in (self.source, self.target):
            end.shut()

    def close(self) -> None:
        self.held.set()
        for end in (self.source, self.target):
            end.shut()
        for thread in self._threads:
            thread.join(WAIT_SECONDS)
        for end in (self.source, self.target):
            end.close()

    def __enter__(self) -> Forwarder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
