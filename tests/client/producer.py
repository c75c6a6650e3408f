"""A scripted producer: a server in a thread that shakes hands properly and streams what it is told.

A script is a function of a stream request (and how many there were before) that yields steps:
messages to send, `CUT` (close the link), `SILENCE` (say nothing more). The opaque and the vbucket
of the request are put into every message.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from headrace.client.bucket import Bucket, connect
from headrace.history import FailoverLog
from headrace.wire import admin
from headrace.wire import messages as m
from headrace.wire.codec import decode, encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import FrameBuffer
from headrace.wire.message import ErrorReply, Message, Reply, Request
from headrace.wire.opcodes import Feature, Opcode, Status

CUT: Final = "cut"
SILENCE: Final = "silence"
DIALECT: Final = Dialect.DCP_7
LOG: Final = FailoverLog.of((0xAAAA, 0))
COLLECTIONS: Final = int(Feature.COLLECTIONS)

MANIFEST: Final = json.dumps(
    {
        "uid": "2",
        "scopes": [
            {
                "name": "_default",
                "uid": "0",
                "collections": [{"name": "_default", "uid": "0"}, {"name": "beer", "uid": "8"}],
            },
            {"name": "shop", "uid": "9", "collections": [{"name": "orders", "uid": "a"}]},
        ],
    }
).encode()

Step = Message | str
Script = Callable[[m.StreamRequest, int], Iterable[Step]]


def wire_log(log: FailoverLog) -> tuple[m.FailoverEntry, ...]:
    return tuple(m.FailoverEntry(entry.uuid, entry.seqno) for entry in log)


def accept(log: FailoverLog = LOG) -> m.StreamRequestReply:
    return m.StreamRequestReply(failover_log=wire_log(log))


def rollback(seqno: int) -> m.RollbackReply:
    return m.RollbackReply(rollback_seqno=seqno)


def marker(start: int, end: int, flags: int = 1) -> m.SnapshotMarker:
    return m.SnapshotMarker(start_seqno=start, end_seqno=end, flags=flags)


def mutation(seqno: int, key: bytes | None = None, value: bytes = b'{"a":1}') -> m.Mutation:
    key = b"k%d" % seqno if key is None else key
    return m.Mutation(by_seqno=seqno, rev_seqno=1, cas=seqno << 16, key=b"\0" + key, value=value)


def mutations(first: int, last: int) -> Iterator[m.Mutation]:
    return (mutation(seqno) for seqno in range(first, last + 1))


def said(*steps: Step) -> tuple[Step, ...]:
    """These steps, as what they are."""
    return steps


def end(reason: int = 0) -> m.StreamEnd:
    return m.StreamEnd(reason=reason)


class Producer:
    """Listens on a free port of this machine until it is closed."""

    def __init__(
        self,
        script: Script,
        *,
        seqnos: dict[int, int] | None = None,
        log: FailoverLog = LOG,
        vbuckets: int = 1,
        features: frozenset[int] = frozenset({COLLECTIONS, int(Feature.XATTR)}),
        uuid: str = "00112233445566778899aabbccddeeff",
    ) -> None:
        self.script = script
        self.seqnos = dict.fromkeys(range(vbuckets), 0) | (seqnos or {})
        self.log = log
        self.vbuckets = vbuckets
        self.features = features
        self.uuid = uuid
        self.requests: list[m.StreamRequest] = []
        self.controls: dict[str, str] = {}
        self.acknowledged = 0
        self.persisted = 0
        self.noops_answered = 0
        self.dcp_links = 0
        self.heard = threading.Condition()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        self._links: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"couchbase://127.0.0.1:{self.port}/default"

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for link in self._links:
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()
        self._thread.join(5)
        for thread in self._threads:
            thread.join(5)

    def connect(self) -> Bucket:
        return connect(self.url, connect_seconds=5)

    def wait_for(self, test: Callable[[], bool], seconds: float = 20.0) -> bool:
        with self.heard:
            return self.heard.wait_for(test, seconds)

    def _accept(self) -> None:
        while not self._closed:
            try:
                link, _ = self._server.accept()
            except OSError:
                return
            self._links.append(link)
            thread = threading.Thread(target=self._serve, args=(link,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, link: socket.socket) -> None:
        session = Session(self, link)
        frames = FrameBuffer()
        try:
            while data := link.recv(1 << 16):
                frames.feed(data)
                for frame in frames:
                    message = decode(frame, DIALECT)
                    with self.heard:
                        session.take(message)
                        self.heard.notify_all()
        except OSError:
            pass
        finally:
            link.close()


class Session:
    """One link of the producer."""

    def __init__(self, producer: Producer, link: socket.socket) -> None:
        self.producer = producer
        self.link = link
        self.silent = False

    def send(self, message: Message) -> None:
        self.link.sendall(encode(message, DIALECT))

    def take(self, message: Message) -> None:
        if self.silent:
            return
        producer = self.producer
        if isinstance(message, m.BufferAck):
            producer.acknowledged += message.ack_bytes
        elif isinstance(message, m.NoopReply):
            producer.noops_answered += 1
        elif isinstance(message, m.StreamRequest):
            self.stream(message)
        elif isinstance(message, Request):
            self.send(self.answer(message))

    def answer(self, request: Request) -> Reply:
        producer = self.producer
        opaque = request.opaque
        if isinstance(request, admin.Hello):
            granted = tuple(f for f in request.features if f in producer.features)
            return admin.HelloReply(opaque=opaque, features=granted)
        if isinstance(request, admin.SelectBucket):
            return admin.SelectBucketReply(opaque=opaque)
        if isinstance(request, m.Open):
            producer.dcp_links += 1
            return m.OpenReply(opaque=opaque)
        if isinstance(request, m.Control):
            producer.controls[request.key.decode()] = request.value.decode()
            return m.ControlReply(opaque=opaque)
        if isinstance(request, m.GetAllVbSeqnos):
            lines = tuple(m.VBucketSeqno(v, s) for v, s in sorted(producer.seqnos.items()))
            return m.GetAllVbSeqnosReply(opaque=opaque, seqnos=lines)
        if isinstance(request, m.FailoverLogRequest):
            return m.FailoverLogReply(opaque=opaque, failover_log=wire_log(producer.log))
        if isinstance(request, admin.GetClusterConfig):
            return admin.GetClusterConfigReply(opaque=opaque, value=self.cluster_map())
        if isinstance(request, admin.GetCollectionsManifest):
            return admin.GetCollectionsManifestReply(opaque=opaque, value=MANIFEST)
        if isinstance(request, admin.ObserveSeqno):
            return admin.ObserveSeqnoReply(
                opaque=opaque,
                observed_vbucket=request.vbucket,
                vb_uuid=request.vb_uuid,
                persisted_seqno=producer.persisted,
                high_seqno=producer.seqnos[request.vbucket],
            )
        return ErrorReply(opaque=opaque, opcode=Opcode.STAT, status=Status.KEY_ENOENT)

    def cluster_map(self) -> bytes:
        producer = self.producer
        return json.dumps(
            {
                "rev": 1,
                "name": "default",
                "uuid": producer.uuid,
                "nodesExt": [{"services": {"kv": producer.port, "mgmt": 8091}, "thisNode": True}],
                "vBucketServerMap": {
                    "serverList": [f"$HOST:{producer.port}"],
                    "vBucketMap": [[0]] * producer.vbuckets,
                },
            }
        ).encode()

    def stream(self, request: m.StreamRequest) -> None:
        producer = self.producer
        before = len(producer.requests)
        producer.requests.append(request)
        for step in producer.script(request, before):
            if step == CUT:
                self.link.shutdown(socket.SHUT_RDWR)
                return
            if step == SILENCE:
                self.silent = True
                return
            assert isinstance(step, Message)
            named = dataclasses.replace(step, opaque=step.opaque or request.opaque)
            if isinstance(named, Request):
                named = dataclasses.replace(named, vbucket=request.vbucket)
            self.send(named)
