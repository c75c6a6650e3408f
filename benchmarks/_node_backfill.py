"""How fast does the node stream a bucket from disk, and how late are live changes?

`node.backfill_vs_sendall.SIZE`: a real node (its event loop on a thread of this process) with 64
vbuckets on disk, documents of SIZE bytes, streamed from 0 to the latest over one loopback
connection; against `sendall` of a constant megabyte over loopback until the same number of bytes is
through. In both cases the receiver is the same other process, which does nothing but `recv_into` a
4 MB buffer until the bytes are there. Wall time of the whole transfer, in turns; 1.0 would mean
that reading, filtering and framing cost nothing. The node was started anew before the first
transfer, so nothing is in its memory; the file is in the page cache.

`node.live_latency_ms.p50` and `.p99`: the time from sending a SET to receiving its mutation on a
stream of another connection, both of this thread, one write at a time, on a node in memory.

Left out: TLS, decoding at the receiver, several consumers at once.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.harness import Clock, Run, Skip, Value, figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.node.server import Node

VBUCKETS: Final = 64
CONSTANT: Final = 1 << 20
START_SECONDS: Final = 120.0
LIVE_WRITES: Final = 2_000

RECEIVER: Final = """
import socket, sys
buffer = bytearray(4 << 20)
for line in sys.stdin:
    port, total, prelude = line.split()
    link = socket.create_connection(("127.0.0.1", int(port)))
    link.sendall(bytes.fromhex(prelude))
    left = int(total)
    while left > 0:
        got = link.recv_into(buffer)
        if not got:
            break
        left -= got
    link.close()
    print(left, flush=True)
"""


@contextmanager
def running_node(data: Path | None) -> Iterator[tuple[Node, Callable[[Callable[[], None]], None]]]:
    """A node on a thread of its own, and a way to run something on that thread."""
    from headrace.node.config import BucketConfig, NodeConfig
    from headrace.node.server import Node
    from headrace.store import BucketSettings

    # The index of four million small documents needs more than a node has by default.
    settings = BucketSettings(vbuckets=VBUCKETS, memory_quota=1 << 30)
    config = NodeConfig(data=data, buckets=(BucketConfig(settings=settings),))
    ready, stopped = threading.Event(), asyncio.Event()
    found: list[tuple[Node, asyncio.AbstractEventLoop]] = []

    async def serve() -> None:
        async with Node(config) as node:
            found.append((node, asyncio.get_running_loop()))
            ready.set()
            await stopped.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    if not ready.wait(START_SECONDS):
        raise Skip(f"the node did not start within {START_SECONDS:.0f} s")
    node, loop = found[0]

    def on_loop(work: Callable[[], None]) -> None:
        async def call() -> None:
            work()

        asyncio.run_coroutine_threadsafe(call(), loop).result(START_SECONDS)

    try:
        yield node, on_loop
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(START_SECONDS)


def stream_requests(name: bytes) -> bytes:
    """OPEN and a request for every vbucket, from 0 to the latest."""
    from headrace.wire.codec import encode
    from headrace.wire.dialect import Dialect
    from headrace.wire.messages import Open, StreamRequest
    from headrace.wire.opcodes import SEQNO_MAX, OpenFlag, StreamFlag

    requests = [encode(Open(flags=OpenFlag.PRODUCER, key=name), Dialect.DCP_7)]
    for vbucket in range(VBUCKETS):
        request = StreamRequest(
            vbucket=vbucket,
            opaque=vbucket,
            flags=StreamFlag.TO_LATEST,
            start_seqno=0,
            end_seqno=SEQNO_MAX,
            snap_start_seqno=0,
            snap_end_seqno=0,
        )
        requests.append(encode(request, Dialect.DCP_7))
    return b"".join(requests)


def size_of_streams(port: int) -> int:
    """Bytes the node sends for `stream_requests`, counted to the last STREAM_END."""
    link = socket.create_connection(("127.0.0.1", port))
    link.sendall(stream_requests(b"count"))
    held, total, ends = bytearray(), 0, 0
    while ends < VBUCKETS:
        held += link.recv(4 << 20)
        at = 0
        while len(held) - at >= 24:
            size = 24 + int.from_bytes(held[at + 8 : at + 12], "big")
            if len(held) - at < size:
                break
            ends += held[at : at + 2] == b"\x80\x55"
            at += size
        total += at
        del held[:at]
    link.close()
    return total


def fill(data: Path, size: int, total: int) -> None:
    """A node's data directory with about ``total`` bytes of documents of ``size`` bytes."""
    count = total // (24 + 31 + 11 + size) // VBUCKETS
    value = b"x" * size
    with running_node(data) as (node, on_loop):

        def write() -> None:
            host = node.default_host()
            assert host is not None
            for vbucket in host.bucket.vbuckets:
                for number in range(count):
                    vbucket.store(b"\0key-%06d" % number, value)
                host.bucket.commit()
            host.bucket.seal()

        on_loop(write)


def send_constant(listener: socket.socket, total: int) -> None:
    """Send that many bytes to the next one who connects."""
    link, _ = listener.accept()
    link.recv(1)
    block = bytes(CONSTANT)
    left = total
    while left > 0:
        link.sendall(block[: min(left, CONSTANT)])
        left -= CONSTANT
    link.close()


def backfill_against_sendall(run: Run, size: int) -> Value:
    """The node's backfill as a share of the speed of sendall."""
    total = run.pick(full=256 << 20, quick=4 << 20)
    with tempfile.TemporaryDirectory() as directory:
        data = Path(directory)
        fill(data, size, total)
        with (
            running_node(data) as (node, _),
            socket.create_server(("127.0.0.1", 0)) as listener,
            subprocess.Popen(  # noqa: S603 - our own interpreter and script
                [sys.executable, "-c", RECEIVER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as receiver,
        ):
            assert receiver.stdin is not None
            assert receiver.stdout is not None
            total = size_of_streams(node.port)
            names = iter(range(1 << 30))

            def receive(port: int, prelude: bytes) -> None:
                assert receiver.stdin is not None
                assert receiver.stdout is not None
                print(port, total, prelude.hex(), file=receiver.stdin, flush=True)
                left = receiver.stdout.readline()
                if left.strip() != "0" and not left.strip().startswith("-"):
                    raise RuntimeError(f"the receiver missed {left.strip()} of {total} bytes")

            def subject() -> None:
                receive(node.port, stream_requests(b"bench-%d" % next(names)))

            def baseline() -> None:
                port = listener.getsockname()[1]
                thread = threading.Thread(target=send_constant, args=(listener, total))
                thread.start()
                receive(port, b"!")
                thread.join()

            speed = run.compare(subject, baseline, clock=Clock.WALL).speed
            receiver.stdin.close()
            return speed


@figure("node.backfill_vs_sendall.64", unit="ratio", goal=None, better="higher")
def backfill_64(run: Run) -> Value:
    """Disk backfill of 64 vbuckets against sendall, documents of 64 bytes."""
    return backfill_against_sendall(run, 64)


@figure("node.backfill_vs_sendall.256", unit="ratio", goal=0.45, better="higher")
def backfill_256(run: Run) -> Value:
    """Disk backfill of 64 vbuckets against sendall, documents of 256 bytes."""
    return backfill_against_sendall(run, 256)


@figure("node.backfill_vs_sendall.1024", unit="ratio", goal=None, better="higher")
def backfill_1024(run: Run) -> Value:
    """Disk backfill of 64 vbuckets against sendall, documents of 1,024 bytes."""
    return backfill_against_sendall(run, 1024)


@functools.cache
def live_latencies(writes: int) -> list[float]:
    """Milliseconds from a SET to its mutation, sorted."""
    from headrace.wire.codec import encode
    from headrace.wire.dialect import Dialect
    from headrace.wire.messages import Open, StreamRequest
    from headrace.wire.opcodes import SEQNO_MAX, Opcode, OpenFlag

    request = StreamRequest(
        start_seqno=0, end_seqno=SEQNO_MAX, snap_start_seqno=0, snap_end_seqno=0
    )
    set_request = (
        bytes([0x80, Opcode.SET, 0, 3, 8, 0, 0, 0]) + (8 + 3 + 100).to_bytes(4, "big") + bytes(12)
    )
    with running_node(None) as (node, _):
        address = ("127.0.0.1", node.port)
        with (
            socket.create_connection(address) as writer,
            socket.create_connection(address) as reader,
        ):
            for link in (writer, reader):
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened = encode(Open(flags=OpenFlag.PRODUCER, key=b"live"), Dialect.DCP_7)
            reader.sendall(opened + encode(request, Dialect.DCP_7))
            frames = frames_of(reader)
            while next(frames) != (0x81, Opcode.STREAM_REQ):
                pass
            waits = []
            for number in range(writes):
                value = b"%0100d" % number
                began = time.perf_counter()
                writer.sendall(set_request + bytes(8) + b"key" + value)
                while next(frames) != (0x80, Opcode.MUTATION):
                    pass
                waits.append((time.perf_counter() - began) * 1000)
                writer.recv(4096)
    return sorted(waits)


def frames_of(link: socket.socket) -> Iterator[tuple[int, int]]:
    """Magic and opcode of each frame as it arrives."""
    held = bytearray()
    while True:
        while len(held) >= 24:
            size = 24 + int.from_bytes(held[8:12], "big")
            if len(held) < size:
                break
            kind = (held[0], held[1])
            del held[:size]
            yield kind
        held += link.recv(65_536)


def percentile(run: Run, share: float) -> Value:
    """The wait that this share of the writes does not exceed."""
    waits = live_latencies(run.pick(full=LIVE_WRITES, quick=50))
    return Value(waits[min(len(waits) - 1, int(len(waits) * share))], len(waits))


@figure("node.live_latency_ms.p50", unit="ms", goal=None, better="lower")
def live_median(run: Run) -> Value:
    """Half of the writes reach a consumer within this time."""
    return percentile(run, 0.50)


@figure("node.live_latency_ms.p99", unit="ms", goal=None, better="lower")
def live_tail(run: Run) -> Value:
    """All but one in a hundred writes reach a consumer within this time."""
    return percentile(run, 0.99)
