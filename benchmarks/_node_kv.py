"""How much CPU does the node spend on a document, against memcached?

`node.kv_vs_memcached.get` and `.set`: a node in memory (`headrace serve --memory`, a process of
its own) and Debian's `memcached -t 1` are sent the same pipelines by this process over loopback:
1,000 requests at a time (GET, or SET with values of 256 bytes, 10,000 keys), the replies read
whole before the next pipeline. The CPU time of all threads of each server is read from the kernel
before and after; the servers take turns, and the value is the median of the rounds' ratios,
memcached's over ours: 1.0 would mean that a document costs the same. The node's share includes
accepting the change for streams; memcached keeps no history.

Left out: TLS, logins, datatypes, the client's own time.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.harness import Run, Skip, Value, figure

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS: Final = 10_000
PIPELINE: Final = 1_000
VALUE: Final = bytes(range(256))
START_SECONDS: Final = 60.0
HEADER: Final = 24
ROOT: Final = Path(__file__).resolve().parent.parent


class Server:
    """A server process and one connection to it."""

    def __init__(self, pid: int, port: int) -> None:
        """Connect; the process is its starter's to stop."""
        self._tasks = Path(f"/proc/{pid}/task")
        self._link = socket.create_connection(("127.0.0.1", port), 30)
        self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(4 << 20)

    def cpu_seconds(self) -> float:
        """CPU time of all threads so far."""
        total = 0
        for task in self._tasks.iterdir():
            with contextlib.suppress(FileNotFoundError):
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9

    def run(self, pipelines: list[bytes], reply_size: int) -> float:
        """Send each pipeline and read its replies; the CPU seconds the server spent."""
        before = self.cpu_seconds()
        for pipeline in pipelines:
            self._link.sendall(pipeline)
            left = reply_size
            while left:
                size = self._link.recv_into(self._buffer, left)
                if size == 0:
                    raise ConnectionResetError("the server closed the connection")
                left -= size
        return self.cpu_seconds() - before

    def close(self) -> None:
        """Let go of the connection."""
        self._link.close()


def pipelines_of(kind: str) -> tuple[list[bytes], int]:
    """Pipelines over all keys, and the size of the replies to each."""
    from headrace.wire import kv
    from headrace.wire.codec import encode
    from headrace.wire.dialect import Dialect

    requests = []
    for number in range(KEYS):
        key = b"key-%06d" % number
        request = kv.Set(key=key, value=VALUE) if kind == "set" else kv.Get(key=key)
        requests.append(encode(request, Dialect.DCP_7))
    reply = HEADER if kind == "set" else HEADER + 4 + len(VALUE)
    joined = [b"".join(requests[at : at + PIPELINE]) for at in range(0, KEYS, PIPELINE)]
    return joined, reply * PIPELINE


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def _process(command: list[str], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(  # noqa: S603 - our own command and memcached
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(START_SECONDS)


@contextlib.contextmanager
def memcached() -> Iterator[Server]:
    """Debian's memcached with one worker thread."""
    program = shutil.which("memcached")
    if program is None:
        raise Skip("memcached is not installed")
    port = _free_port()
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    command = [program, "-t", "1", "-m", "256", "-l", "127.0.0.1", "-p", str(port), *user]
    with _process(command) as process, contextlib.closing(_connect(process, port)) as server:
        yield server


def _connect(process: subprocess.Popen[bytes], port: int) -> Server:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return Server(process.pid, port)
        except ConnectionRefusedError:
            if time.monotonic() > deadline or process.poll() is not None:
                raise
            time.sleep(0.02)


@contextlib.contextmanager
def node() -> Iterator[Server]:
    """Our node in memory."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "port"
        code = "from headrace.cli import main; main()"
        arguments = ["serve", "--memory", "--port", "0", "--port-file", str(file)]
        source = str(ROOT / "src")
        with _process([sys.executable, "-c", code, *arguments], PYTHONPATH=source) as process:
            deadline = time.monotonic() + START_SECONDS
            while not file.exists():
                if time.monotonic() > deadline or process.poll() is not None:
                    raise TimeoutError("the node does not start")
                time.sleep(0.02)
            with contextlib.closing(_connect(process, int(file.read_text()))) as server:
                yield server


def _compare(run: Run, kind: str) -> Value:
    if not Path("/proc/self/schedstat").exists():
        raise Skip("the kernel tells no CPU time of other processes")
    rounds = run.pick(full=9, quick=3)
    turns = run.pick(full=20, quick=2)
    stored, stored_reply = pipelines_of("set")
    asked, reply = pipelines_of(kind)
    ratios = []
    with node() as ours, memcached() as theirs:
        for server in (ours, theirs):
            # Everything is there, compiled and warm before anything is measured.
            server.run(stored * 2, stored_reply)
            server.run(asked, reply)
        for place in range(rounds):
            order = (ours, theirs) if place % 2 else (theirs, ours)
            spent = {server: server.run(asked * turns, reply) for server in order}
            ratios.append(spent[theirs] / spent[ours])
    return Value(statistics.median(ratios), rounds)


@figure("node.kv_vs_memcached.get", unit="ratio", goal=0.4, better="higher")
def get_against_memcached(run: Run) -> Value:
    """Pipelined GET: memcached's CPU time over ours."""
    return _compare(run, "get")


@figure("node.kv_vs_memcached.set", unit="ratio", goal=0.4, better="higher")
def set_against_memcached(run: Run) -> Value:
    """Pipelined SET: memcached's CPU time over ours."""
    return _compare(run, "set")
