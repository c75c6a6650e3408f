"""Many connections with many streams each, and one reader that never reads.

Three doubts: every stream of a crowd gets every change; memory stays within the quota and a little
per stream; a reader that stops reading costs others nothing and still gets everything once it
reads again.
"""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.wire import kv, messages
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import HEADER_SIZE
from headrace.wire.opcodes import SEQNO_MAX, Magic, Opcode, OpenFlag
from tests.node.client import Client
from tests.soak.node_process import Process, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

VBUCKETS: Final = 64
QUIET_SECONDS: Final = 60.0
"""How long the crowd may wait for the next byte."""
STREAM_BYTES: Final = 8 * 1024
"""Memory a stream may cost: its objects, its cursor, its share of buffers."""
CONNECTION_BYTES: Final = 128 * 1024
RECEIVE_SIZE: Final = 256 * 1024
_MUTATION: Final = (int(Magic.REQUEST), int(Opcode.MUTATION))


def reader_bytes(name: str, vbuckets: int = VBUCKETS) -> bytes:
    """Everything a reader sends: OPEN and a stream request for every vbucket."""
    requests: list[messages.Open | messages.StreamRequest] = [
        messages.Open(key=name.encode(), flags=OpenFlag.PRODUCER)
    ]
    requests += (
        messages.StreamRequest(
            vbucket=number,
            flags=0,
            start_seqno=0,
            end_seqno=SEQNO_MAX,
            vb_uuid=0,
            snap_start_seqno=0,
            snap_end_seqno=0,
            opaque=number + 1,
        )
        for number in range(vbuckets)
    )
    return b"".join(encode(request, Dialect.DCP_7) for request in requests)


@dataclass
class Reader:
    """One connection of the crowd."""

    link: socket.socket
    seqnos: list[int] = field(default_factory=lambda: [0] * VBUCKETS)
    held: bytes = b""
    mutations: int = 0

    def feed(self, data: bytes) -> None:
        """Take bytes: seqnos of a stream must rise."""
        data, at = self.held + data, 0
        while len(data) - at >= HEADER_SIZE:
            end = at + HEADER_SIZE + int.from_bytes(data[at + 8 : at + 12])
            if end > len(data):
                break
            if (data[at], data[at + 1]) == _MUTATION:
                vbucket = int.from_bytes(data[at + 6 : at + 8])
                seqno = int.from_bytes(data[at + 24 : at + 32])
                assert seqno > self.seqnos[vbucket], (vbucket, seqno, self.seqnos[vbucket])
                self.seqnos[vbucket] = seqno
                self.mutations += 1
            elif data[at] == Magic.REPLY:
                status = int.from_bytes(data[at + 6 : at + 8])
                assert status == 0, f"refused with {status:#x}"
            at = end
        self.held = data[at:]


class Crowd:
    """Readers on one selector."""

    def __init__(self, port: int, count: int, name: str = "crowd") -> None:
        """Connect all; each asks for every vbucket."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.selector = selectors.DefaultSelector()
        self.readers: list[Reader] = []
        for number in range(count):
            link = socket.create_connection(("127.0.0.1", port), QUIET_SECONDS)
            link.sendall(reader_bytes(f"{name}:{number}"))
            link.setblocking(False)
            reader = Reader(link)
            self.readers.append(reader)
            self.selector.register(link, selectors.EVENT_READ, reader)

    def read_until(self, highs: list[int]) -> None:
        """Read until every stream of everyone has reached its seqno."""
        waiting = {id(reader) for reader in self.readers if reader.seqnos != highs}
        while waiting:
            ready = self.selector.select(QUIET_SECONDS)
            assert ready, f"{len(waiting)} readers wait for ever"
            for key, _ in ready:
                reader: Reader = key.data
                data = reader.link.recv(RECEIVE_SIZE)
                assert data, "a reader was disconnected"
                reader.feed(data)
                if reader.seqnos == highs:
                    waiting.discard(id(reader))

    def close(self) -> None:
        """Disconnect all."""
        self.selector.close()
        for reader in self.readers:
            reader.link.close()


def write(client: Client, count: int, *, first: int, size: int) -> None:
    """Write ``count`` new documents to every vbucket, in flights."""
    for number in range(first, first + count):
        value = b"%08d" % number * (size // 8)
        client.send(
            *(
                kv.Set(key=b"k%d" % number, value=value, vbucket=vbucket)
                for vbucket in range(VBUCKETS)
            )
        )
        for _ in range(VBUCKETS):
            reply = client.receive()
            assert isinstance(reply, kv.SetReply), reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a crowd cost."""

    connections: int
    mutations: int
    seconds: float
    cpu_seconds: float
    start_bytes: int
    peak_bytes: int


@contextlib.contextmanager
def node_of(data: Path, *, quota_mb: int) -> Iterator[Process]:
    """A node with 64 vbuckets that must still live at the end."""
    settings = Settings(
        vbuckets=VBUCKETS, quota_mb=quota_mb, journal_kb=4_096, segment_kb=512, block_kb=256
    )
    process = Process(data, settings)
    try:
        yield process
        assert process.is_alive, process.tail()
        assert process.stop() == 0, process.tail()
    finally:
        process.kill()


def many_readers(data: Path, *, connections: int, documents: int, size: int = 64) -> Report:
    """Everyone gets everything: half from the disk or memory, half live."""
    quota_mb = 64
    with node_of(data, quota_mb=quota_mb) as process, Client(process.port) as client:
        write(client, documents, first=0, size=size)
        start_bytes, begun = process.resident_bytes, time.monotonic()
        cpu = process.cpu_seconds
        crowd = Crowd(process.port, connections)
        try:
            crowd.read_until([documents] * VBUCKETS)
            write(client, documents, first=documents, size=size)
            crowd.read_until([2 * documents] * VBUCKETS)
            peak = process.resident_bytes
            allowed = connections * (CONNECTION_BYTES + VBUCKETS * STREAM_BYTES)
            assert peak - start_bytes <= quota_mb * 1024 * 1024 + allowed, (
                f"{connections} connections cost {(peak - start_bytes) // 1024} KiB"
            )
            return Report(
                connections=connections,
                mutations=sum(reader.mutations for reader in crowd.readers),
                seconds=time.monotonic() - begun,
                cpu_seconds=process.cpu_seconds - cpu,
                start_bytes=start_bytes,
                peak_bytes=peak,
            )
        finally:
            crowd.close()


PROCESS_BYTES = 8 * 1024 * 1024
"""What a working process takes besides any bucket: its interpreter, stacks, holes in its heap."""


def never_reading(
    data: Path, *, megabytes: int, quota_mb: int, readers: int = 2, sleepers: int = 1
) -> Report:
    """Several quotas of documents pass readers that do not read; at last they read it all.

    The report's seconds are those of the others.
    """
    size = 4_096
    documents = max(2, megabytes * 1024 * 1024 // size // VBUCKETS)
    with node_of(data, quota_mb=quota_mb) as process, Client(process.port) as client:
        crowd, sleeper = Crowd(process.port, readers), Crowd(process.port, sleepers, "sleeper")
        try:
            peak, begun = process.resident_bytes, time.monotonic()
            start_bytes, cpu = peak, process.cpu_seconds
            step = max(1, documents // 20)
            written = 0
            while written < documents:
                count = min(step, documents - written)
                write(client, count, first=written, size=size)
                written += count
                crowd.read_until([written] * VBUCKETS)
                peak = max(peak, process.resident_bytes)
            seconds, cpu = time.monotonic() - begun, process.cpu_seconds - cpu
            # What waits for slow readers counts in the quota: it is no reason for more.
            limit = quota_mb * 1024 * 1024 + PROCESS_BYTES
            assert peak - start_bytes <= limit, (
                f"{(peak - start_bytes) // 1024} KiB, limit {limit // 1024} KiB"
            )
            sleeper.read_until([documents] * VBUCKETS)
            for woken in sleeper.readers:
                assert woken.mutations == documents * VBUCKETS, "nothing is lost"
            return Report(
                connections=readers + sleepers,
                mutations=documents * VBUCKETS,
                seconds=seconds,
                cpu_seconds=cpu,
                start_bytes=start_bytes,
                peak_bytes=peak,
            )
        finally:
            crowd.close()
            sleeper.close()
