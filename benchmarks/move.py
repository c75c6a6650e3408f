"""What it costs to move a vbucket from node to node, and how long its clients wait.

Two real nodes as processes of their own, on loopback, with data on disk and 64 vbuckets; the
manager is `headrace move` in a third process, four moves at once. Every run moves all vbuckets
there, the next one back; each vbucket holds 500 documents of 256 bytes.

`move.seconds.idle`: the seconds `headrace move` reports (its start and its imports left out),
divided by the number of vbuckets; nobody writes. `move.seconds.busy`: the same while a client in
this process writes to all vbuckets in turn without pause.

`move.client_pause_ms.p50` and `.p99`: what that client sees. It writes to the node its map names;
when it is told NOT_MY_VBUCKET it takes the map that comes with the refusal and tries again after a
millisecond. A vbucket's pause is the longest time between a write that was sent and its success;
the percentiles are over the vbuckets of all runs.

`move.proxy_vs_raw_forward`: the proxy between two TCP connections against a loop that receives and
sends the same bytes, thread CPU time, frames of about 300 bytes in megabyte chunks.

Left out: TLS, logins, the SDK's own retries (`tests/interop/test_cluster.py` prints those).
"""

from __future__ import annotations

import functools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.harness import Clock, Run, Value, figure
from benchmarks.replica import node_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.client.address import NodeAddress
    from headrace.client.kv import KvConnection

VBUCKETS: Final = 64
DOCUMENTS: Final = 500
DOCUMENT_BYTES: Final = 256
RETRY_SECONDS: Final = 0.001
WAIT_SECONDS: Final = 120.0
CHUNK: Final = 1 << 20
ROOT: Final = Path(__file__).resolve().parent.parent


class Client:
    """Writes to every vbucket in turn, follows the map it is told, and times each write."""

    def __init__(self, ports: tuple[int, int]) -> None:
        from headrace.client.access import Access
        from headrace.client.address import NodeAddress
        from headrace.client.kv import KvConnection

        self.longest = [0.0] * VBUCKETS
        self.writes = 0
        self._links: dict[NodeAddress, KvConnection] = {}
        for port in ports:
            node = NodeAddress("127.0.0.1", port)
            link = KvConnection.open(node, Access(), bucket="default", collections=False)
            self._links[node] = link
        self._learn(next(iter(self._links.values())).cluster_map() or b"")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Client:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for link in self._links.values():
            link.close()

    def _learn(self, data: bytes) -> None:
        from headrace.client.topology import read_map

        if data:
            self._map = read_map(data, connected=next(iter(self._links)))

    def _run(self) -> None:
        while not self._stop.is_set():
            for vbucket in range(VBUCKETS):
                began = time.perf_counter()
                while not self._write(vbucket):
                    time.sleep(RETRY_SECONDS)
                taken = time.perf_counter() - began
                self.longest[vbucket] = max(self.longest[vbucket], taken)
                self.writes += 1

    def _write(self, vbucket: int) -> bool:
        from headrace.wire import kv
        from headrace.wire.message import ErrorReply

        node = self._map.node_of(vbucket)
        if node is None:
            return False
        request = kv.Set(vbucket=vbucket, key=b"busy-%d" % vbucket, value=b"x" * DOCUMENT_BYTES)
        (reply,) = self._links[node].ask_all([request])
        if isinstance(reply, ErrorReply):
            self._learn(reply.value)
            return False
        return True


@dataclass
class Cluster:
    """Two nodes, the file that names them, and who has the vbuckets now."""

    path: Path
    ports: tuple[int, int]
    there: str = "a"
    told: dict[str, list[float]] = field(default_factory=dict)

    def move(self) -> float:
        """Move everything to the other node; seconds per vbucket."""
        target = "b" if self.there == "a" else "a"
        said = json.loads(_managed("move", str(self.path), "--vbuckets", "all", "--to", target))
        assert all(row["ending"] == "done" for row in said["moves"]), said
        self.there = target
        return float(said["seconds"]) / VBUCKETS


def _managed(*words: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own interpreter and command
        [sys.executable, "-m", "headrace", *words, "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        timeout=WAIT_SECONDS,
    )
    if done.returncode:
        raise RuntimeError(done.stderr or done.stdout)
    return done.stdout


@contextmanager
def cluster(documents: int) -> Iterator[Cluster]:
    """Two nodes, every vbucket on the first, filled."""
    from headrace.client.bucket import connect
    from headrace.client.writer import Document

    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        with node_process(directory / "a") as a, node_process(directory / "b") as b:
            path = directory / "cluster.toml"
            path.write_text(
                f'[nodes.a]\nurl = "couchbase://127.0.0.1:{a}"\n'
                f'[nodes.b]\nurl = "couchbase://127.0.0.1:{b}"\n'
            )
            with connect(f"couchbase://127.0.0.1:{a}/default") as bucket, bucket.writer() as writer:
                for number in range(documents * VBUCKETS):
                    writer.put(Document(b"key-%d" % number, b"v" * DOCUMENT_BYTES))
            yield Cluster(path, (a, b))


@functools.cache
def measured(runs: int, documents: int) -> dict[str, list[float]]:
    """Seconds per vbucket, idle and busy, and the pauses of the busy runs' client."""
    told: dict[str, list[float]] = {"idle": [], "busy": [], "pauses": []}
    with cluster(documents) as pair:
        pair.move()  # forms the cluster, warms caches
        for _ in range(runs):
            told["idle"].append(pair.move())
            with Client(pair.ports) as client:
                time.sleep(0.2)
                client.longest = [0.0] * VBUCKETS
                told["busy"].append(pair.move())
            told["pauses"] += client.longest
    return told


def _measured(run: Run) -> dict[str, list[float]]:
    return measured(run.pick(full=min(run.runs, 5), quick=1), run.pick(full=DOCUMENTS, quick=10))


@figure("move.seconds.idle", unit="s", goal=None, better="lower")
def idle(run: Run) -> Value:
    """One vbucket's move while nobody writes."""
    found = _measured(run)["idle"]
    return Value(statistics.median(found), len(found))


@figure("move.seconds.busy", unit="s", goal=None, better="lower")
def busy(run: Run) -> Value:
    """One vbucket's move under constant writes."""
    found = _measured(run)["busy"]
    return Value(statistics.median(found), len(found))


def _percentile(run: Run, share: float) -> Value:
    pauses = sorted(_measured(run)["pauses"])
    return Value(pauses[min(len(pauses) - 1, int(len(pauses) * share))] * 1e3, len(pauses))


@figure("move.client_pause_ms.p50", unit="ms", goal=None, better="lower")
def pause_median(run: Run) -> Value:
    """How long a client waits for a vbucket that moves, in half of the cases."""
    return _percentile(run, 0.50)


@figure("move.client_pause_ms.p99", unit="ms", goal=None, better="lower")
def pause_tail(run: Run) -> Value:
    """The same, in 99 of 100 cases."""
    return _percentile(run, 0.99)


# -- the proxy alone -------------------------------------------------------------------------------


def frames(size: int) -> bytes:
    """Mutations of about 300 bytes, markers in between."""
    from headrace.wire import messages as m
    from headrace.wire.codec import encode
    from headrace.wire.dialect import Dialect

    random_ = random.Random(1)
    parts, total, seqno = [], 0, 0
    while total < size:
        seqno += 1
        vbucket = seqno % VBUCKETS
        value = random_.randbytes(random_.randint(150, 300))
        message: object = m.Mutation(
            vbucket=vbucket,
            opaque=7,
            by_seqno=seqno,
            rev_seqno=1,
            key=b"key-%d" % seqno,
            value=value,
        )
        if seqno % 500 == 0:
            message = m.SnapshotMarker(
                vbucket=vbucket, opaque=7, start_seqno=seqno, end_seqno=seqno + 500, flags=1
            )
        parts.append(encode(message, Dialect.DCP_7))  # type: ignore[arg-type] # either of the two
        total += len(parts[-1])
    return b"".join(parts)


def _connected() -> tuple[socket.socket, socket.socket]:
    """The two ends of a connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    return one, other


@contextmanager
def between(data: bytes) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two sockets: one gives the data, the other takes everything."""
    source, near = _connected()
    far, sink = _connected()

    def drain() -> None:
        buffer = bytearray(CHUNK)
        while sink.recv_into(buffer):
            pass

    def feed() -> None:
        source.sendall(data)
        source.shutdown(socket.SHUT_WR)

    threads = [threading.Thread(target=feed), threading.Thread(target=drain)]
    for thread in threads:
        thread.start()
    try:
        yield near, far
    finally:
        far.shutdown(socket.SHUT_WR)
        for thread in threads:
            thread.join()
        for one in (source, near, far, sink):
            one.close()


def forward(data: bytes) -> None:
    """Receive and send, nothing else."""
    buffer = memoryview(bytearray(CHUNK))
    with between(data) as (near, far):
        while size := near.recv_into(buffer):
            far.sendall(buffer[:size])


def forward_through_proxy(data: bytes) -> None:
    """The same with the proxy in between."""
    from headrace.cluster.proxy import Proxy, Side

    proxy = Proxy()
    buffer = memoryview(bytearray(CHUNK))
    with between(data) as (near, far):
        while size := near.recv_into(buffer):
            proxy.receive(Side.PRODUCER, buffer[:size])
            for part in proxy.take_output(Side.CONSUMER):
                far.sendall(part)
            proxy.take_events()


@figure("move.proxy_vs_raw_forward", unit="ratio", goal=0.5, better="higher")
def proxy_speed(run: Run) -> Value:
    """How fast frames pass the proxy, as a share of plain receiving and sending."""
    data = frames(run.pick(full=64 << 20, quick=1 << 20))
    return run.compare(
        lambda: forward_through_proxy(data), lambda: forward(data), clock=Clock.THREAD
    ).speed
