"""What does a change cost our consumer, against reading the bytes and throwing them away?

One node (`headrace serve --memory`, a process of its own) holds the documents: 64 vbuckets, JSON
values of 64, 256 or 1024 bytes. Each reading streams all of them from the beginning to now over one
connection. CPU time of our process alone (the node's is not in it): the link, the handshake, the
questions before it, 64 streams and the keeper thread are. A reading is a gigabyte (what 256-byte
documents take on the wire: 850 MB), long enough that these do not matter much.

`stream_us`: what does matter where documents are few: CPU for one stream from its request to its
end (request, reply with its log, marker, a dozen rows, end, the position kept), in a bucket of
1,024 vbuckets, all else of such a reading included.

`arrow_vs_raw_recv`: `bucket.changes` in batches of whole snapshots, flow control on; against the
same streams requested by the same connection, read with `recv_into` a 4 MB buffer, never looked at
and not acknowledged. 1.0 would mean that framing, Arrow, snapshots and tokens are free.

`arrow_vs_go`, `arrow_vs_java` and their bounds `raw_recv_vs_go`, `raw_recv_vs_java`,
`objects_vs_arrow`, rates and memory of all readers: `_consumer_foreign.py` tells how.

All figures of one size fit into three minutes of a machine that does nothing else.

`arrow_memory`: highest resident size (VmHWM, which is of that process alone) of a process that
connects once and reads everything with `bucket.changes`, its libraries included. It is made of and
bounded by: the interpreter, numpy and Arrow; the kernel's loader; one receive buffer of 4 MB per
node; rows of unfinished snapshots (at most ``shelf_memory``; two backfills run at a time unless
they are small); what the producer may send ahead (``window``, 20 MB per node); and the blocks kept
for the next batches (`headrace.columns.block.POOL_SIZE_MAX`). How many documents there are does not
matter.

Both sides of `arrow_vs_raw_recv` read from the same node over the same kind of link in one process,
and only this process's CPU time counts, so that a node which is slower than its reader shows in
neither. Waiting costs both the same few calls; the raw reader wakes up more often, because ours
waits for megabytes while bytes pour in.
"""

from __future__ import annotations

import atexit
import functools
import re
import secrets
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks._consumer_foreign import (  # noqa: F401 - figures are found by being here
    arrow_cpu,
    arrow_memory,
    arrow_wall,
    drain,
    go_64,
    go_256,
    go_1024,
    go_cpu,
    go_memory,
    go_wall,
    java_64,
    java_256,
    java_1024,
    java_cpu,
    java_memory,
    java_undecoded_256,
    java_wall,
    objects_64,
    objects_256,
    objects_1024,
    objects_cpu,
    objects_memory,
    objects_wall,
    raw_cpu,
    raw_go_64,
    raw_go_256,
    raw_go_1024,
    raw_java_64,
    raw_java_256,
    raw_java_1024,
)
from benchmarks.harness import Run, Skip, Value, figure
from headrace.client.bucket import Bucket, connect
from headrace.client.bulk import BulkRoad, ObjectRoad
from headrace.client.dial import dial
from headrace.client.link import Link
from headrace.client.writer import Document
from headrace.history import Seqno, VBucketId
from headrace.protocol import events as e
from headrace.protocol.consumer import ConsumerConnection
from headrace.protocol.handshake import ConsumerSettings
from headrace.protocol.talk import StreamPlan
from headrace.wire.opcodes import StreamFlag

if TYPE_CHECKING:
    from collections.abc import Callable

BUFFER_SIZE: Final = 4 << 20
START_SECONDS: Final = 60.0
ENOUGH: Final = 0.99
"""Part of the bytes of one reading that counts as all of another."""
TARGET_SIZE: Final = 1 << 30
"""Bytes of values that a full run streams."""
LOGIN: Final = re.compile(r"(Administrator) / (\S+)")
LOGINS: Final[dict[str, tuple[str, str]]] = {}
"""URL of a node -> the login it told for clients that cannot do without."""
ROOT: Final = Path(__file__).resolve().parent.parent


@functools.cache
def node_with(value_size: int, documents: int, vbuckets: int = 64) -> str:
    """Start a node, fill it and return the URL of its bucket; it stops with this process."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-bench-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    port_file, log = directory / "port", directory / "log"
    command = [sys.executable, "-m", "headrace", "serve", "--memory", "--port", "0"]
    command += ["--port-file", str(port_file), "--vbuckets", str(vbuckets)]
    command += ["--memory-quota-mb", "6144"]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream)  # noqa: S603 - our words
    atexit.register(process.kill)
    deadline = time.monotonic() + START_SECONDS
    while not port_file.is_file() or not port_file.read_text(encoding="utf-8").strip():
        if process.poll() is not None or time.monotonic() > deadline:
            raise Skip("the node did not start")
        time.sleep(0.05)
    url = f"couchbase://127.0.0.1:{port_file.read_text(encoding='utf-8').strip()}/default"
    value = (b'{"name": "' + b"x" * value_size)[: value_size - 2] + b'"}'
    with opened(url) as bucket, bucket.writer() as writer:
        for number in range(documents):
            writer.put(Document(b"user::%012d" % number, value, is_json=True))
    found = LOGIN.search(log.read_text(encoding="utf-8"))
    if found is not None:
        LOGINS[url] = (found.group(1), found.group(2))
    return url


def opened(url: str) -> Bucket:
    """The bucket; the node is open to this machine, so nobody pays for a login."""
    return connect(url)


def source(run: Run, value_size: int, part: int = 1) -> tuple[str, int]:
    """The node to read and how many documents it holds, ``part`` times fewer than usual."""
    documents = run.pick(full=TARGET_SIZE // (value_size + 160), quick=2_000) // part
    return node_with(value_size, documents), documents


def read_arrow(url: str, documents: int) -> None:
    """Everything as batches."""
    with opened(url) as bucket:
        rows = sum(batch.num_rows for batch in bucket.changes(until="now"))
    assert rows == documents, rows


def read_raw(url: str, size: int) -> int:
    """The bytes of the same streams, thrown away; returns how many came until the last one."""
    with opened(url) as bucket:
        return read_streams(bucket, size)


def read_streams(bucket: Bucket, size: int) -> int:
    """Request every stream and read until nearly ``size`` bytes have come."""
    link = _streaming(bucket)
    link.socket.setblocking(True)
    buffer = memoryview(bytearray(BUFFER_SIZE))
    received = 0
    # How the node cuts snapshots differs a little from run to run, and so do the bytes.
    while received < size * ENOUGH:
        received += link.socket.recv_into(buffer)
    link.close()
    return received


@functools.cache
def stream_size(url: str) -> int:
    """The bytes that a reader of everything receives on its connection after the handshake."""
    with opened(url) as bucket:
        link = _streaming(bucket, BulkRoad)
        before = link.received
        ended = 0
        with selectors.DefaultSelector() as selector:
            selector.register(link.socket, selectors.EVENT_READ)
            while ended < bucket.vbuckets:
                selector.select(1.0)
                for taken in link.pump(now=time.monotonic()):
                    ended += sum(isinstance(piece, e.StreamEnded) for piece in taken.pieces)
                if link.lost is not None:
                    raise link.lost
        link.close()
        return link.received - before


def _streaming(
    bucket: Bucket, road: Callable[[ConsumerConnection], BulkRoad | ObjectRoad] = ObjectRoad
) -> Link:
    """A link on which every stream has been requested, without flow control."""
    node = bucket.cluster_map.nodes[0]
    settings = ConsumerSettings(
        name=f"bench:{secrets.token_hex(4)}",
        bucket=bucket.name,
        window=0,
    )
    now = time.monotonic()
    connection = ConsumerConnection(settings, now=now, nonce=secrets.token_hex(8))
    link = Link(dial(node, bucket.access), node, road(connection), opened_at=now)
    link.flush()
    with selectors.DefaultSelector() as selector:
        selector.register(link.socket, selectors.EVENT_READ)
        while connection.connected is None:
            selector.select(1.0)
            for _ in link.pump(now=time.monotonic()):
                pass
            if link.lost is not None:
                raise link.lost
    for vbucket, seqno in bucket.seqnos().items():
        plan = StreamPlan(
            vbucket=VBucketId(vbucket), end_seqno=Seqno(seqno), flags=StreamFlag.ACTIVE_ONLY
        )
        connection.request_stream(plan)
    link.flush()
    return link


def against_raw(run: Run, value_size: int) -> Value:
    """The Arrow consumer's speed as a part of reading the bytes."""
    url, documents = source(run, value_size)
    size = stream_size(url)
    return run.compare(lambda: read_arrow(url, documents), lambda: read_raw(url, size)).speed


@figure("consumer.arrow_vs_raw_recv.64", unit="ratio", goal=0.45, better="higher")
def raw_64(run: Run) -> Value:
    """Arrow against raw bytes, values of 64 bytes."""
    return against_raw(run, 64)


@figure("consumer.arrow_vs_raw_recv.256", unit="ratio", goal=0.45, better="higher")
def raw_256(run: Run) -> Value:
    """Arrow against raw bytes, values of 256 bytes."""
    return against_raw(run, 256)


@figure("consumer.arrow_vs_raw_recv.1024", unit="ratio", goal=0.45, better="higher")
def raw_1024(run: Run) -> Value:
    """Arrow against raw bytes, values of 1024 bytes."""
    return against_raw(run, 1024)


@figure("consumer.stream_us", unit="us", goal=None, better="lower")
def stream_us(run: Run) -> Value:
    """CPU for one stream of a dozen rows, from its request to its end."""
    vbuckets = run.pick(full=1024, quick=64)
    documents = 12 * vbuckets
    url = node_with(64, documents, vbuckets)
    taken = run.time(lambda: read_arrow(url, documents)).seconds
    return Value(taken.value / vbuckets * 1e6, taken.runs)


@figure("consumer.arrow_memory.256", unit="MB", goal=200, better="lower")
def memory_256(run: Run) -> Value:
    """Highest resident size of a process that reads everything as batches."""
    url, documents = source(run, 256)
    drain("arrow", 1, url, LOGINS[url])  # what the first process compiles, others find
    reading = drain("arrow", 1, url, LOGINS[url])
    assert reading.items == documents, reading
    return Value(reading.memory_mb, 1)
