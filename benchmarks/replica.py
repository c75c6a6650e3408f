"""What a replica costs: a node that follows another, against draining the same backfill.

Two real nodes as processes of their own, on loopback, A with 64 vbuckets on disk and documents of
256 bytes, B with the same vbuckets as empty replicas on disk. This process is the manager between
them: it opens both ends, adds the streams and forwards bytes both ways, as they come, without
looking into what A sends.

`replica.throughput_vs_backfill`: from the first ADD_STREAM until B says it has applied the last
seqno of every vbucket; against the same vbuckets streamed from A to a receiver in this process that
does nothing but `recv_into` a 4 MB buffer. Wall time of the whole transfer, in turns. On a machine
with two cores the three processes of the subject share them; the baseline has two.

`replica.latency_ms.p50` and `.p99`: from sending a SET to A until B, asked again and again for its
high seqnos (GET_ALL_VB_SEQNOS), has it; one write at a time, the questions' round trips included.

Left out: TLS, rollback, markers of many small snapshots.
"""

from __future__ import annotations

import functools
import selectors
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks._node_backfill import VBUCKETS, fill, size_of_streams, stream_requests
from benchmarks.harness import Run, Value, figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DOCUMENT_BYTES: Final = 256
BUFFER_BYTES: Final = 4 << 20
LATENCY_WRITES: Final = 1_000
WAIT_SECONDS: Final = 120.0
NAME: Final = b"replication:a->b:default"
REPLICA: Final = 2

NODE: Final = """
import asyncio, sys
from pathlib import Path
from headrace.node.config import BucketConfig, NodeConfig
from headrace.node.server import Node
from headrace.store import BucketSettings
async def main():
    settings = BucketSettings(vbuckets=int(sys.argv[2]))
    config = NodeConfig(data=Path(sys.argv[1]), buckets=(BucketConfig(settings=settings),))
    async with Node(config) as node:
        print(node.port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
asyncio.run(main())
"""


@contextmanager
def node_process(data: Path) -> Iterator[int]:
    """A node in a process of its own; its port."""
    with subprocess.Popen(  # noqa: S603 - our own interpreter and script
        [sys.executable, "-c", NODE, str(data), str(VBUCKETS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(WAIT_SECONDS)


def encoded(*messages: object) -> bytes:
    """Frames of dcp-7."""
    from headrace.wire.codec import encode
    from headrace.wire.dialect import Dialect

    return b"".join(encode(message, Dialect.DCP_7) for message in messages)  # type: ignore[arg-type]


def frame_from(link: socket.socket) -> tuple[int, bytes]:
    """Status and body of the next frame."""
    head = link.recv(24, socket.MSG_WAITALL)
    size = int.from_bytes(head[8:12], "big")
    body = link.recv(size, socket.MSG_WAITALL) if size else b""
    return int.from_bytes(head[6:8], "big"), body


def ask(link: socket.socket, message: object) -> bytes:
    """The body of the answer to one request."""
    link.sendall(encoded(message))
    status, body = frame_from(link)
    if status:
        raise RuntimeError(f"{type(message).__name__} was answered with status {status:#x}")
    return body


def seqnos(link: socket.socket, state: int) -> int:
    """The sum of the high seqnos of the vbuckets in a state."""
    from headrace.wire.messages import GetAllVbSeqnos

    body = ask(link, GetAllVbSeqnos(state=state))
    return sum(int.from_bytes(body[at + 2 : at + 10], "big") for at in range(0, len(body), 10))


def make_replicas(link: socket.socket) -> None:
    """Every vbucket an empty replica."""
    from headrace.wire.admin import DelVBucket, SetVBucket

    for vbucket in range(VBUCKETS):
        with suppress(RuntimeError):
            ask(link, DelVBucket(vbucket=vbucket))
        ask(link, SetVBucket(vbucket=vbucket, state=REPLICA))


class Manager:
    """Both ends, and the thread that forwards between them."""

    def __init__(self, producer: int, consumer: int) -> None:
        """Open both connections and begin to forward."""
        from headrace.wire.admin import Hello
        from headrace.wire.messages import Open
        from headrace.wire.opcodes import Feature, OpenFlag

        self.links = [
            socket.create_connection(("127.0.0.1", port)) for port in (producer, consumer)
        ]
        features = (Feature.COLLECTIONS, Feature.SNAPPY, Feature.JSON, Feature.XATTR)
        flags = OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES
        for link, role in zip(self.links, (OpenFlag.PRODUCER, 0), strict=True):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ask(link, Hello(key=b"manager", features=features))
            ask(link, Open(flags=flags | role, key=NAME))
        self._thread = threading.Thread(target=self._forward, daemon=True)
        self._thread.start()

    def add_streams(self) -> None:
        """ADD_STREAM for every vbucket."""
        from headrace.wire.messages import AddStream

        self.links[1].sendall(encoded(*(AddStream(vbucket=one) for one in range(VBUCKETS))))

    def _forward(self) -> None:
        producer, consumer = self.links
        buffer, held = memoryview(bytearray(BUFFER_BYTES)), bytearray()
        with selectors.DefaultSelector() as selector:
            for link in self.links:
                selector.register(link, selectors.EVENT_READ)
            with suppress(OSError):
                while True:
                    for key, _ in selector.select():
                        if key.fileobj is producer:
                            size = producer.recv_into(buffer)
                            if not size:
                                return
                            consumer.sendall(buffer[:size])
                            continue
                        data = consumer.recv(1 << 16)
                        if not data:
                            return
                        held += data
                        producer.sendall(_for_producer(held))

    def close(self) -> None:
        """Break both connections."""
        for link in self.links:
            link.shutdown(socket.SHUT_RDWR)
        self._thread.join(WAIT_SECONDS)
        for link in self.links:
            link.close()


def _for_producer(held: bytearray) -> bytes:
    """The whole frames of what the consumer sent, without its answers to the manager."""
    kept, at = [], 0
    while len(held) - at >= 24:
        size = 24 + int.from_bytes(held[at + 8 : at + 12], "big")
        if len(held) - at < size:
            break
        if held[at : at + 2] != b"\x81\x51":
            kept.append(bytes(held[at : at + size]))
        at += size
    del held[:at]
    return b"".join(kept)


def wait_for(link: socket.socket, total: int) -> None:
    """Until B has applied everything."""
    deadline = time.monotonic() + WAIT_SECONDS
    while seqnos(link, REPLICA) < total:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the replica did not catch up within {WAIT_SECONDS:.0f} s")
        time.sleep(0.002)


@figure("replica.throughput_vs_backfill", unit="ratio", goal=0.5, better="higher")
def throughput(run: Run) -> Value:
    """64 vbuckets applied on a replica, against draining their backfill."""
    size = run.pick(full=128 << 20, quick=2 << 20)
    with tempfile.TemporaryDirectory() as directory:
        source, target = Path(directory) / "a", Path(directory) / "b"
        fill(source, DOCUMENT_BYTES, size)
        with (
            node_process(source) as producer,
            node_process(target) as consumer,
            socket.create_connection(("127.0.0.1", consumer)) as control,
        ):
            with socket.create_connection(("127.0.0.1", producer)) as link:
                total = seqnos(link, 1)
            wire_bytes = size_of_streams(producer)
            names = iter(range(1 << 30))
            buffer = bytearray(BUFFER_BYTES)

            def subject() -> None:
                manager = Manager(producer, consumer)
                manager.add_streams()
                wait_for(control, total)
                manager.close()

            def baseline() -> None:
                with socket.create_connection(("127.0.0.1", producer)) as link:
                    link.sendall(stream_requests(b"bench-%d" % next(names)))
                    left = wire_bytes
                    while left > 0:
                        left -= link.recv_into(buffer)

            return in_turns(run, subject, baseline, before=lambda: make_replicas(control))


def in_turns(
    run: Run,
    subject: Callable[[], None],
    baseline: Callable[[], None],
    *,
    before: Callable[[], None],
) -> Value:
    """The subject's speed as a share of the baseline's; ``before`` each round, not counted.

    `Run.compare` repeats short calls, and a replica that is filled cannot be filled again.
    """
    ratios = []
    for number in range(run.runs + 1):
        before()
        spent = {}
        for call in (subject, baseline) if number % 2 else (baseline, subject):
            began = time.perf_counter()
            call()
            spent[call] = time.perf_counter() - began
        ratios.append(spent[baseline] / spent[subject])
    ratios = sorted(ratios[1:])  # the first round warms both nodes
    return Value(ratios[len(ratios) // 2], len(ratios))


@functools.cache
def latencies(writes: int) -> list[float]:
    """Milliseconds from a SET on A to its seqno on B, sorted."""
    from headrace.wire.kv import Set

    waits = []
    with (
        tempfile.TemporaryDirectory() as directory,
        node_process(Path(directory) / "a") as producer,
        node_process(Path(directory) / "b") as consumer,
        socket.create_connection(("127.0.0.1", producer)) as writer,
        socket.create_connection(("127.0.0.1", consumer)) as control,
    ):
        for link in (writer, control):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        make_replicas(control)
        manager = Manager(producer, consumer)
        manager.add_streams()
        for number in range(writes):
            request = encoded(Set(key=b"key-%d" % number, value=b"x" * 100))
            began = time.perf_counter()
            writer.sendall(request)
            while seqnos(control, REPLICA) <= number:
                pass
            waits.append((time.perf_counter() - began) * 1000)
            frame_from(writer)
        manager.close()
    return sorted(waits)


def percentile(run: Run, share: float) -> Value:
    """The wait that this share of the writes does not exceed."""
    waits = latencies(run.pick(full=LATENCY_WRITES, quick=50))
    return Value(waits[min(len(waits) - 1, int(len(waits) * share))], len(waits))


@figure("replica.latency_ms.p50", unit="ms", goal=None, better="lower")
def latency_median(run: Run) -> Value:
    """Half of the writes are on the replica within this time."""
    return percentile(run, 0.50)


@figure("replica.latency_ms.p99", unit="ms", goal=None, better="lower")
def latency_tail(run: Run) -> Value:
    """All but one in a hundred writes are on the replica within this time."""
    return percentile(run, 0.99)
