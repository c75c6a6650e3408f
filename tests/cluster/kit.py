"""Nodes on threads, a cluster file that names them, and a manager that can be killed."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.client.access import Access
from headrace.client.address import NodeAddress
from headrace.client.bucket import connect
from headrace.client.changes import Change, Rollback
from headrace.client.kv import KvConnection
from headrace.cluster.cluster_file import ClusterFile, read_cluster_file
from headrace.cluster.journal import Journal
from headrace.cluster.manager import Cluster
from headrace.cluster.operations import parse_vbuckets, plan_move
from headrace.cluster.planning import chain_moves
from headrace.cluster.runner import Runner
from headrace.errors import StatusError
from headrace.node.config import BucketConfig, NodeConfig
from headrace.store import BucketSettings
from headrace.testing import RunningNode, running_node
from headrace.wire import admin, kv
from headrace.wire.opcodes import VBucketState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from headrace.cluster.chains import Chain
    from headrace.cluster.mover import Mover
    from headrace.cluster.planning import Move

ACCESS = Access(connect_seconds=5.0, answer_seconds=10.0)
SECONDS_MAX = 30.0


@dataclass
class Nodes:
    """Running nodes by name, and the cluster file that names them."""

    path: Path
    running: dict[str, RunningNode] = field(default_factory=dict)

    @property
    def file(self) -> ClusterFile:
        return read_cluster_file(self.path)

    def write_file(self, *, replicas: int = 0, names: str = "", leaving: str = "") -> None:
        lines = [f"replicas = {replicas}"]
        for name in names or self.running:
            port = self.running[name].port
            lines += [f"[nodes.{name}]", f'url = "couchbase://127.0.0.1:{port}"']
            if name in leaving:
                lines.append("leaving = true")
        self.path.write_text("\n".join(lines) + "\n")

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.running.values())
        return f"couchbase://{hosts}/default"

    def link(self, name: str) -> KvConnection:
        address = NodeAddress("127.0.0.1", self.running[name].port)
        return KvConnection.open(address, ACCESS, bucket="default", collections=False)

    def put(self, name: str, vbucket: int, keys: range, value: bytes = b"1") -> None:
        """Write documents and wait until they are on disk."""
        with self.link(name) as link:
            requests = [kv.Set(vbucket=vbucket, key=key_of(n), value=value) for n in keys]
            assert all(isinstance(reply, kv.SetReply) for reply in link.ask_all(requests))
            high = link.seqnos()[vbucket]
            link.ask(
                admin.SeqnoPersistence(vbucket=vbucket, seqno=high), admin.SeqnoPersistenceReply
            )

    def held(self, name: str, vbucket: int, keys: range) -> set[int]:
        """Which documents an active copy has."""
        with self.link(name) as link:
            replies = link.ask_all([kv.Get(vbucket=vbucket, key=key_of(n)) for n in keys])
            return {n for n, reply in zip(keys, replies, strict=True) if reply.status == 0}

    def state(self, name: str, vbucket: int) -> VBucketState | None:
        with self.link(name) as link:
            try:
                reply = link.ask(admin.GetVBucket(vbucket=vbucket), admin.GetVBucketReply)
            except StatusError:
                return None
            return VBucketState(reply.state)

    def states(self, vbucket: int) -> dict[str, VBucketState | None]:
        return {name: self.state(name, vbucket) for name in self.running}

    def log(self, name: str, vbucket: int) -> list[tuple[int, int]]:
        """A copy's failover log, newest first."""
        with self.link(name) as link:
            stats = link.stats(f"failovers {vbucket}")
        count = int(stats[f"vb_{vbucket}:num_entries"])
        return [
            (int(stats[f"vb_{vbucket}:{n}:id"]), int(stats[f"vb_{vbucket}:{n}:seq"]))
            for n in range(count)
        ]


def key_of(number: int) -> bytes:
    return b"key-%06d" % number


@contextmanager
def running_nodes(
    directory: Path,
    names: str = "ab",
    *,
    vbuckets: int = 4,
    replicas: int = 0,
    flush: bool = False,
) -> Iterator[Nodes]:
    """Nodes with data on disk, named by letters."""
    nodes = Nodes(directory / "cluster.toml")
    settings = BucketSettings(vbuckets=vbuckets)
    with ExitStack() as stack:
        for name in names:
            config = NodeConfig(
                data=directory / name,
                node_name=name,
                flush=flush,
                buckets=(BucketConfig(name="default", settings=settings),),
            )
            nodes.running[name] = stack.enter_context(running_node(config=config))
        nodes.write_file(replicas=replicas)
        yield nodes


@contextmanager
def managing(nodes: Nodes) -> Iterator[tuple[Cluster, Journal]]:
    """A cluster and its journal; use it inside a running loop."""
    file = nodes.file
    with Journal(file.beside("moves.json")) as journal:
        yield Cluster(file, "default"), journal


async def move(
    nodes: Nodes,
    vbuckets: str,
    target: str,
    *,
    place: str = "",
    pause: Callable[[Mover, str], Awaitable[None]] | None = None,
    at_once: int = 4,
    runner_of: Callable[[Runner], None] | None = None,
) -> list[Mover]:
    """Move as the command does; ``pause`` is called once, at ``place``."""
    with managing(nodes) as (cluster, journal):
        chains = await cluster.load()
        await cluster.adopt()
        moves = plan_move(
            cluster.chains, parse_vbuckets(vbuckets, chains.vbuckets), source=None, target=target
        )
        return await _run(cluster, journal, moves, place, pause, at_once, runner_of)


async def move_chain(
    nodes: Nodes,
    vbucket: int,
    wanted: Chain,
    *,
    place: str = "",
    pause: Callable[[Mover, str], Awaitable[None]] | None = None,
) -> list[Mover]:
    """Turn one chain of the map into another, as rebalancing does."""
    with managing(nodes) as (cluster, journal):
        chains = await cluster.load()
        moves = chain_moves(vbucket, chains.rows[vbucket], wanted)
        return await _run(cluster, journal, moves, place, pause, 4, None)


async def resume(nodes: Nodes) -> list[Mover]:
    """Finish what the journal holds, as `move --resume` does."""
    with managing(nodes) as (cluster, journal):
        await cluster.load(tolerant=True)
        await cluster.adopt({entry.move.vbucket for entry in journal.entries})
        moves = [entry.move for entry in journal.entries]
        return await _run(cluster, journal, moves, "", None, 4, None)


async def _run(
    cluster: Cluster,
    journal: Journal,
    moves: list[Move],
    place: str,
    pause: Callable[[Mover, str], Awaitable[None]] | None,
    at_once: int,
    runner_of: Callable[[Runner], None] | None,
) -> list[Mover]:
    seen: list[str] = []

    async def once(mover: Mover, where: str) -> None:
        if where in seen:
            return
        seen.append(where)
        assert pause is not None
        await pause(mover, where)

    runner = Runner(
        cluster,
        journal,
        at_once=at_once,
        pause=once if pause is not None else None,
        pauses_at=lambda where: where == place and where not in seen,
    )
    if runner_of is not None:
        runner_of(runner)
    try:
        movers = await runner.run(moves)
    finally:
        await cluster.close()
    assert place in ("", *seen), f"the move never came to {place}"
    return movers


def run(work: Awaitable[list[Mover]]) -> list[Mover]:
    """Run a manager to its end."""

    async def main() -> list[Mover]:
        return await work

    return asyncio.run(main())


class Reader:
    """A consumer of vbucket 1 on a thread; what it was told, in order."""

    def __init__(self, url: str) -> None:
        self.told: list[Change | Rollback] = []
        self._bucket = connect(url)
        self._changes = self._bucket.follow(since="beginning", on_rollback="yield", vbuckets=(1,))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for one in self._changes:
            if isinstance(one, Change | Rollback):
                self.told.append(one)

    def wait(self, count: int) -> None:
        limit = time.monotonic() + SECONDS_MAX
        while len(self.told) < count:
            assert time.monotonic() < limit, self.told
            time.sleep(0.02)

    def close(self) -> None:
        self._bucket.close()
        self._thread.join(10)
