"""The node: listens, keeps its buckets, and stops without losing anything.

One event loop answers everyone. Off the loop, on threads of their own: each bucket's committer (the
store's), upkeep (sealing, compaction, expiry), and password hashing. A store may be called from any
thread, so none of this needs a lock here.

Stopping: listeners close, connections are told nothing more and closed when their replies are sent,
then every bucket commits and is marked as cleanly stopped.

Imports: errors, store, wire, node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError, HeadraceError
from headrace.node import config as limits
from headrace.node.admin_api import AdminServer
from headrace.node.bucket_host import MAP_PROPERTY, BucketHost
from headrace.node.cluster_map import (
    Identity,
    MapVersion,
    Ports,
    bucket_map,
    node_map,
    own_nodes,
    told_map,
    told_nodes,
)
from headrace.node.config import DEFAULT_BUCKET, BucketConfig, NodeConfig
from headrace.node.connection import Connection
from headrace.node.faults import Faults
from headrace.node.heap import use_one_heap
from headrace.node.logs import LOGGER, note
from headrace.node.look_ahead import Aside
from headrace.node.management import ManagementServer
from headrace.node.metrics import MetricsServer
from headrace.node.tls import server_context
from headrace.store import Bucket
from headrace.store.warm import warm
from headrace.wire.opcodes import VBucketState

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from headrace.node.cluster_map import GivenMap
    from headrace.node.users import Users

UPKEEP_THREADS: Final = 4
"""Two for upkeep, and more, so that a login does not wait behind a long compaction."""
ACCEPT_TURNS: Final = 10


@dataclass(slots=True)
class NodeCounters:
    """What a node has done since it started."""

    connections: int = 0
    bytes_received: int = 0
    bytes_sent: int = 0
    bulk_bytes: int = 0
    """Bytes of requests that the store answered in runs."""
    failed_logins: int = 0
    requests: list[int] = field(default_factory=lambda: [0] * 256)
    """Requests answered one by one, by opcode."""


class Node:
    """An embedded node: ``async with Node(config) as node: ... node.port``."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing is opened yet; ``clock`` gives unix seconds."""
        self.config = config
        self.clock = clock
        self.monotonic = monotonic
        self.started_at = clock()
        self.counters = NodeCounters()
        self.hosts: dict[str, BucketHost] = {}
        self.receive_buffer = memoryview(bytearray(limits.RECEIVE_SIZE))
        self.ports = Ports(plain=None, tls=None)
        self.serves_runs = True
        self.metrics_port: int | None = None
        self.faults: Faults | None = None
        self.crash: Callable[[], None] | None = None
        """What the lever crash does; None: end the process."""
        self.admin: AdminServer | None = None
        self._connections: set[Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._metrics: MetricsServer | None = None
        self._management = ManagementServer(self)
        self._upkeep: list[asyncio.Task[None]] = []
        self._threads: ThreadPoolExecutor | None = None
        self._aside: Aside | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the buckets and listen; what was opened is closed again when something fails."""
        self._loop = asyncio.get_running_loop()
        self._aside = Aside()
        self._threads = ThreadPoolExecutor(UPKEEP_THREADS, thread_name_prefix="headrace-node")
        if self._has_faults:
            self.faults = Faults(self, crash=self.crash)
        try:
            # Before anyone can connect: a kernel that is compiled later holds up everybody.
            await self._call(warm)
            for bucket in self.config.buckets:
                await self._call(self._open_bucket, bucket)
            await self._listen()
            if self.faults is not None:
                self.faults.load(self.config.scenario)
        except BaseException:
            await self.stop()
            raise
        self._upkeep = [
            self._loop.create_task(self._expire_forever()),
            self._loop.create_task(self._maintain_forever()),
            self._loop.create_task(self._sweep_forever()),
        ]
        note(
            "listening",
            host=self.config.host,
            port=self.ports.plain,
            tls_port=self.ports.tls,
            metrics_port=self.metrics_port,
            buckets=",".join(self.hosts),
            open=self.is_open,
        )

    async def stop(self, *, clean: bool = True) -> None:
        """Close everything; idempotent. Not ``clean``: commit nothing more, as a crash would."""
        self._stopping = True
        await self._stop_accepting()
        await self._management.stop()
        if self._metrics is not None:
            await self._metrics.stop()
        if self.admin is not None:
            await self.admin.stop()
        if self.faults is not None:
            self.faults.close()
        for task in self._upkeep:
            task.cancel()
        await asyncio.gather(*self._upkeep, return_exceptions=True)
        for connection in tuple(self._connections):
            if clean:
                connection.finish("the node stops")
            else:
                connection.end("the node crashed on demand")
        await self._drained()
        self._servers.clear()
        for name in tuple(self.hosts):
            host = self.hosts.pop(name)
            host.closed = True
            try:
                await self._call(self._close_bucket if clean else self._abandon_bucket, host)
            except HeadraceError as error:
                note("close_failed", logging.ERROR, bucket=name, reason=error)
        if self._threads is not None:
            self._threads.shutdown(wait=True)
        if self._aside is not None:
            self._aside.stop()
        note("stopped")

    async def _stop_accepting(self) -> None:
        # A socket accepted just before its server closes would never get a transport, nor be
        # closed: stop accepting first, and let what was accepted become connections.
        loop = asyncio.get_running_loop()
        for server in self._servers:
            for listening in server.sockets:
                loop.remove_reader(listening.fileno())
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
        for server in self._servers:
            server.close()

    async def _drained(self) -> None:
        deadline = time.monotonic() + limits.STOP_SECONDS
        while self._connections and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for connection in tuple(self._connections):
            connection.end("the node stops and the peer does not read")
        await asyncio.sleep(0)

    async def __aenter__(self) -> Node:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        await self.stop()

    async def serve(
        self,
        *,
        ready: Callable[[Node], None] | None = None,
        beside: AbstractAsyncContextManager[object] | None = None,
    ) -> None:
        """Start, call ``ready``, and run until SIGTERM or SIGINT; then stop.

        ``beside`` is entered before ``ready`` is called and left before the node stops. For a
        process of the node's own: its signals and its allocator are set up.
        """
        use_one_heap()
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        try:
            async with self, beside or contextlib.nullcontext():
                if ready is not None:
                    ready(self)
                await stopped.wait()
                note("stopping", reason="signal")
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def _listen(self) -> None:
        loop, config = asyncio.get_running_loop(), self.config
        plain = tls = None
        if config.port is not None:
            plain = await self._bind(loop, config.port, encrypted=False)
        if config.tls is not None:
            tls = await self._bind(loop, config.tls_port, encrypted=True)
        self.ports = Ports(plain=plain, tls=tls, **await self._listen_for_management())
        if config.metrics_port is not None:
            self._metrics = MetricsServer(self)
            self.metrics_port = await self._metrics.start(config.metrics_port)
        if config.admin_port is not None:
            self.admin = AdminServer(self, token=config.admin_token)
            await self.admin.start(config.admin_port)

    async def _listen_for_management(self) -> dict[str, int]:
        config = self.config
        ports: dict[str, int] = {}
        if config.management_port is None:
            return ports
        if config.port is not None:
            ports["management"] = await self._management.start(config.host, config.management_port)
        if config.tls is not None:
            context = server_context(config.tls)
            ports["management_tls"] = await self._management.start(config.host, 0, context)
        return ports

    async def _bind(self, loop: asyncio.AbstractEventLoop, port: int, *, encrypted: bool) -> int:
        context = None
        if encrypted:
            assert self.config.tls is not None
            context = server_context(self.config.tls)
        try:
            server = await loop.create_server(
                lambda: Connection(self, encrypted=encrypted),
                self.config.host,
                port,
                ssl=context,
                backlog=1024,
            )
        except OSError as error:
            # asyncio says the address once more, in its own words.
            reason = os.strerror(error.errno).lower() if error.errno else error.strerror
            raise ConfigError(f"cannot listen on {self.config.host}:{port}: {reason}") from error
        self._servers.append(server)
        number: int = server.sockets[0].getsockname()[1]
        return number

    @property
    def _has_faults(self) -> bool:
        config = self.config
        ports = (config.admin_port, config.web_port)
        return config.faults or bool(config.scenario) or any(port is not None for port in ports)

    # -- what sessions and connections ask -------------------------------------------------------

    @property
    def port(self) -> int:
        """Where it listens without TLS."""
        assert self.ports.plain is not None
        return self.ports.plain

    @property
    def is_open(self) -> bool:
        """Whether everyone who can connect may do everything."""
        return self.config.users is None

    @property
    def aside(self) -> Aside:
        """The thread that reads backfills ahead."""
        assert self._aside is not None
        return self._aside

    @property
    def users(self) -> Users | None:
        """Who may log in."""
        return self.config.users if self.config.users is not None else self.config.login

    @property
    def connections(self) -> frozenset[Connection]:
        """Those that are open."""
        return frozenset(self._connections)

    def next_connection_number(self) -> int:
        """A number for a new connection, for logs and statistics."""
        self.counters.connections += 1
        return self.counters.connections

    def admit(self, connection: Connection) -> bool:
        """Keep a connection, unless there are too many or the node stops."""
        self._connections.add(connection)
        return len(self._connections) <= limits.CONNECTIONS_MAX and not self._stopping

    def dismiss(self, connection: Connection) -> None:
        """A connection is gone."""
        self._connections.discard(connection)

    def default_host(self) -> BucketHost | None:
        """The bucket of a peer that selects none: `default`, or the only one there is."""
        if DEFAULT_BUCKET in self.hosts:
            return self.hosts[DEFAULT_BUCKET]
        return next(iter(self.hosts.values())) if len(self.hosts) == 1 else None

    def off_loop(self, function: Callable[[], object], then: Callable[[object], None]) -> None:
        """Call on a worker thread, then ``then(result)`` on the event loop's; errors are
        results."""
        assert self._loop is not None
        assert self._threads is not None
        loop = self._loop

        def work() -> None:
            try:
                result: object = function()
            except Exception as error:  # noqa: BLE001 - handed to whoever asked
                result = error
            with contextlib.suppress(RuntimeError):  # the loop closed meanwhile: nobody waits
                loop.call_soon_threadsafe(then, result)

        self._threads.submit(work)

    def _call_soon(self, function: Callable[[], None]) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop closed meanwhile: nobody waits
            self._loop.call_soon_threadsafe(function)

    async def _call(self, function: Callable[..., object], *arguments: object) -> object:
        assert self._loop is not None
        return await self._loop.run_in_executor(self._threads, function, *arguments)

    # -- the cluster map -------------------------------------------------------------------------

    def map_version(self, host: BucketHost | None) -> MapVersion:
        """How old the map of a bucket (or of the nodes alone) is."""
        given = self._newest_map() if host is None else host.given_map
        if given is not None:
            return given.version
        revision = 1 if host is None else host.revision
        return MapVersion(epoch=0, revision=int(self.started_at * 1000) + revision)

    def _newest_map(self) -> GivenMap | None:
        given = [host.given_map for host in self.hosts.values() if host.given_map is not None]
        return max(given, key=lambda one: one.version, default=None)

    @property
    def identity(self) -> Identity:
        """How this node knows itself in a map."""
        config, ports = self.config, self.ports
        listens = ports.plain if ports.plain is not None else ports.tls
        name = config.node_name or f"{config.host}:{listens}"
        return Identity(name=name, host=config.host, ports=ports)

    def map_of(self, host: BucketHost | None, address: str) -> bytes:
        """The map as JSON for a client that connected to ``address``."""
        version = self.map_version(host)
        if host is None:
            given = self._newest_map()
            own = own_nodes(self.ports, address)
            nodes = own if given is None else told_nodes(given, self.identity, address)
            return node_map(nodes, version)
        if host.given_map is None:
            return bucket_map(host, self.ports, version, address)
        key = (version, address, host.manifest.uid)
        if host.told_map is None or host.told_map[0] != key:
            host.told_map = key, told_map(host.given_map, host, self.identity, address)
        return host.told_map[1]

    def _push_map(self, host: BucketHost) -> None:
        for connection in tuple(self._connections):
            connection.session.push_map(host)
        self._management.maps.map_changed(host)

    # -- buckets ---------------------------------------------------------------------------------

    def _path_of(self, name: str) -> Path | None:
        return None if self.config.data is None else self.config.data / name

    def _open_bucket(self, config: BucketConfig) -> BucketHost:
        path = self._path_of(config.name)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        kept = config.as_created and path is not None and path.exists()
        bucket = Bucket.open(path, None if kept else config.settings)
        try:
            # A node that a manager gave a map may have no vbucket, and must not make up any.
            if not bucket.vbuckets and bucket.get_property(MAP_PROPERTY) is None:
                bucket.create_vbuckets(VBucketState.ACTIVE)
            host = BucketHost(config, bucket)
            if self.faults is not None:
                self.faults.adopt(host)
            bucket.start_committer(delay_seconds=self.config.commit_delay_seconds)
        except BaseException:
            bucket.close()
            raise
        host.on_map_change = self._push_map
        host.sync_writes.call_soon = self._call_soon
        self.hosts[config.name] = host
        note(
            "bucket_opened",
            bucket=config.name,
            durable=bucket.durable,
            vbuckets=len(bucket.vbuckets),
            unclean=bucket.was_unclean,
        )
        return host

    def _close_bucket(self, host: BucketHost) -> None:
        host.bucket.stop_committer()
        host.bucket.close()

    def _abandon_bucket(self, host: BucketHost) -> None:
        host.bucket.abandon()

    def create_bucket(self, config: BucketConfig) -> None:
        """Open one more bucket; ConfigError when there are enough or it exists."""
        if config.name in self.hosts:
            raise ConfigError(f"bucket {config.name} exists")
        if len(self.hosts) >= limits.BUCKETS_MAX:
            raise ConfigError(f"{len(self.hosts)} buckets, limit {limits.BUCKETS_MAX}")
        self._open_bucket(config)

    def retire(self, name: str) -> BucketHost | None:
        """Take a bucket from everyone: its change streams are closed. None if it is unknown."""
        host = self.hosts.pop(name, None)
        if host is not None:
            host.closed = True
            for listener in tuple(host.listeners.values()):
                listener.end(f"bucket {name} was deleted")
        return host

    def remove(self, host: BucketHost) -> None:
        """Close a retired bucket and remove its files; on a worker thread."""
        self._close_bucket(host)
        path = self._path_of(host.name)
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
        note("bucket_deleted", bucket=host.name)

    # -- upkeep ----------------------------------------------------------------------------------

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(self.config.expiry_pager_seconds)
            for host in tuple(self.hosts.values()):
                await self._tend(host, self._expire)

    async def _maintain_forever(self) -> None:
        while True:
            await asyncio.sleep(limits.MAINTAIN_SECONDS)
            for host in tuple(self.hosts.values()):
                await self._tend(host, self._maintain)

    async def _tend(self, host: BucketHost, work: Callable[[BucketHost], None]) -> None:
        try:
            await self._call(work, host)
        except HeadraceError as error:
            note("upkeep_failed", logging.ERROR, bucket=host.name, reason=error)
        except Exception:  # noqa: BLE001 - upkeep goes on with the next turn, and the log says why
            if not host.closed:
                LOGGER.exception("upkeep_failed", extra={"facts": {"bucket": host.name}})

    def _expire(self, host: BucketHost) -> None:
        now = int(self.clock())
        while not host.closed and host.bucket.expire_due(now, limit=10_000) >= 10_000:
            pass

    def _maintain(self, host: BucketHost) -> None:
        if not host.closed:
            host.bucket.maintain(budget_seconds=0.05)

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(limits.SWEEP_SECONDS)
            now = asyncio.get_running_loop().time()
            for connection in tuple(self._connections):
                connection.check_time(now)
            for host in self.hosts.values():
                host.sweep_locks(self.monotonic())
                host.sync_writes.retry()
                if (failure := host.bucket.failure) is not None:
                    note("commit_failed", logging.ERROR, bucket=host.name, reason=failure)
