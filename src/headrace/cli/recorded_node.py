"""RecordedNode: a capture that answers like the node it was recorded from.

Every stream request of a live consumer is answered with what the recorded node answered to the
same request (vbucket, start, branch and snapshot), else to the next one recorded of that vbucket;
the data that followed is sent behind it. Everything else a consumer asks before it streams is
answered from the recording where it was asked there too, and plainly otherwise.

Rules
- Opaques are those of the live consumer; seqnos, markers, failover logs, values are the recorded
  ones, byte for byte.
- No password is checked: a recording holds no secrets.
- What was recorded is said as fast as it is taken: times are not kept.

Imports: capture, errors, wire.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from headrace.capture.conversation import Direction
from headrace.capture.source import open_source
from headrace.capture.walk import walk
from headrace.errors import CaptureError, HeadraceError
from headrace.wire import admin
from headrace.wire import messages as m
from headrace.wire.codec import decode, encode
from headrace.wire.frame import Frame, FrameBuffer
from headrace.wire.message import ErrorReply, Reply, Request
from headrace.wire.opcodes import Magic, Opcode, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.capture.walk import Item
    from headrace.wire.dialect import Dialect

RECEIVE_SIZE: Final = 64 << 10
STREAM_OPCODES: Final = frozenset(
    int(opcode)
    for opcode in (
        Opcode.STREAM_END,
        Opcode.SNAPSHOT_MARKER,
        Opcode.MUTATION,
        Opcode.DELETION,
        Opcode.EXPIRATION,
        Opcode.SYSTEM_EVENT,
        Opcode.PREPARE,
        Opcode.COMMIT,
        Opcode.ABORT,
        Opcode.SEQNO_ADVANCED,
        Opcode.OSO_SNAPSHOT,
    )
)


@dataclass(slots=True)
class RecordedStream:
    """One stream request of the recording: its answer, and what the node sent for it."""

    request: m.StreamRequest
    reply: Frame | None = None
    frames: list[Frame] = field(default_factory=list)
    used: bool = False

    def matches(self, asked: m.StreamRequest) -> bool:
        """Whether a live request asks for the same."""
        return (self.request.start_seqno, self.request.vb_uuid) == (
            asked.start_seqno,
            asked.vb_uuid,
        )


@dataclass(slots=True)
class Recording:
    """What a capture tells of the node."""

    dialect: Dialect
    features: frozenset[int] = frozenset()
    streams: list[RecordedStream] = field(default_factory=list)
    replies: dict[int, Frame] = field(default_factory=dict)

    @property
    def vbuckets(self) -> int:
        """One more than the highest vbucket that was streamed."""
        return max((one.request.vbucket for one in self.streams), default=0) + 1

    def stream_for(self, asked: m.StreamRequest) -> RecordedStream | None:
        """The recorded stream that answers a live request."""
        same = [one for one in self.streams if one.request.vbucket == asked.vbucket and one.reply]
        fitting = [one for one in same if one.matches(asked)]
        unused = [one for one in fitting if not one.used] or [one for one in same if not one.used]
        return next(iter(unused or fitting), None)

    def high_seqnos(self) -> dict[int, int]:
        """The highest seqno that was sent of every vbucket."""
        found: dict[int, int] = {}
        for one in self.streams:
            for frame in one.frames:
                message = decode(frame, self.dialect, strict=False)
                seqno = getattr(message, "by_seqno", None) or getattr(message, "commit_seqno", 0)
                vbucket = one.request.vbucket
                found[vbucket] = max(found.get(vbucket, 0), int(seqno or 0))
        return found


def read_recording(path: str, dialect: Dialect, *, connection: int | None = None) -> Recording:
    """Read a capture's conversation: the connection named, else the first that streams."""
    with open_source(path) as source:
        by_connection: dict[int, list[Item]] = {}
        for item in walk(source, dialect, strict=False):
            by_connection.setdefault(item.connection.number, []).append(item)
    for number, items in by_connection.items():
        found = _recording(items, dialect)
        if connection == number or (connection is None and found.streams):
            return found
    raise CaptureError(f"{path} holds no stream request; connections: {len(by_connection)}")


def _recording(items: list[Item], dialect: Dialect) -> Recording:
    found = Recording(dialect)
    streams: dict[int, RecordedStream] = {}
    for item in items:
        frame, message = item.frame, item.message
        if frame is None or message is None:
            continue
        if item.direction is Direction.CLIENT_TO_SERVER:
            if isinstance(message, m.StreamRequest):
                streams[message.opaque] = RecordedStream(message)
                found.streams.append(streams[message.opaque])
            continue
        if isinstance(message, admin.HelloReply):
            found.features = frozenset(message.features)
        elif frame.opcode == Opcode.STREAM_REQ and frame.is_reply:
            if frame.opaque in streams:
                streams[frame.opaque].reply = frame
        elif frame.opcode in STREAM_OPCODES and not frame.is_reply:
            if frame.opaque in streams:
                streams[frame.opaque].frames.append(frame)
        elif frame.is_reply and not frame.status:
            found.replies[frame.opcode] = frame
    return found


class RecordedNode:
    """Listens on this machine and answers as recorded."""

    def __init__(self, recording: Recording, *, port: int = 0) -> None:
        """Listen at once."""
        self.recording = recording
        self.requests: list[m.StreamRequest] = []
        self._server = socket.create_server(("127.0.0.1", port))
        self.port = int(self._server.getsockname()[1])
        self._links: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> RecordedNode:
        """Listen for the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close everything."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for link in self._links:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()
        self._thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._server.accept()
            except OSError:
                return
            self._links.append(link)
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        frames = FrameBuffer()
        with link, contextlib.suppress(OSError, HeadraceError):
            while data := link.recv(RECEIVE_SIZE):
                frames.feed(data)
                for frame in frames:
                    if not frame.is_reply:
                        link.sendall(b"".join(self._answer(frame)))

    def _answer(self, frame: Frame) -> Iterator[bytes]:
        recording = self.recording
        request = decode(frame, recording.dialect, strict=False)
        assert isinstance(request, Request)
        if isinstance(request, m.StreamRequest):
            yield from self._stream(request)
        elif isinstance(request, m.BufferAck):
            return
        else:
            yield self._reply(request, frame)

    def _stream(self, request: m.StreamRequest) -> Iterator[bytes]:
        self.requests.append(request)
        found = self.recording.stream_for(request)
        if found is None or found.reply is None:
            yield self._refuse(request, Opcode.STREAM_REQ, Status.NOT_MY_VBUCKET)
            return
        found.used = True
        yield replace(found.reply, opaque=request.opaque).to_bytes()
        for frame in found.frames:
            yield replace(frame, opaque=request.opaque).to_bytes()

    def _reply(self, request: Request, frame: Frame) -> bytes:
        recording = self.recording
        reply: Reply | None = None
        if isinstance(request, admin.Hello):
            granted = tuple(one for one in request.features if one in recording.features)
            reply = admin.HelloReply(features=granted)
        elif isinstance(request, admin.SaslListMechs):
            reply = admin.SaslListMechsReply(value=b"PLAIN")
        elif isinstance(request, admin.GetClusterConfig):
            reply = admin.GetClusterConfigReply(value=self._cluster_map())
        elif isinstance(request, m.GetAllVbSeqnos):
            highs = recording.high_seqnos()
            lines = tuple(m.VBucketSeqno(v, highs.get(v, 0)) for v in range(recording.vbuckets))
            reply = m.GetAllVbSeqnosReply(seqnos=lines)
        if reply is not None:
            return encode(replace(reply, opaque=request.opaque), recording.dialect)
        if frame.opcode in PLAIN_SUCCESS:
            return Frame(magic=Magic.REPLY, opcode=frame.opcode, opaque=frame.opaque).to_bytes()
        recorded = recording.replies.get(frame.opcode)
        if recorded is not None:
            return replace(recorded, opaque=frame.opaque).to_bytes()
        return self._refuse(request, frame.opcode, Status.UNKNOWN_COMMAND)

    def _refuse(self, request: Request, opcode: int, status: int) -> bytes:
        refused = ErrorReply(opaque=request.opaque, opcode=opcode, status=status)
        return encode(refused, self.recording.dialect)

    def _cluster_map(self) -> bytes:
        return json.dumps(
            {
                "rev": 1,
                "name": "default",
                "nodesExt": [{"services": {"kv": self.port, "mgmt": 8091}, "thisNode": True}],
                "vBucketServerMap": {
                    "serverList": [f"$HOST:{self.port}"],
                    "vBucketMap": [[0]] * self.recording.vbuckets,
                },
            }
        ).encode()


PLAIN_SUCCESS: Final = frozenset(
    int(opcode)
    for opcode in (
        Opcode.SASL_AUTH,
        Opcode.SELECT_BUCKET,
        Opcode.OPEN,
        Opcode.CONTROL,
        Opcode.CLOSE_STREAM,
    )
)
