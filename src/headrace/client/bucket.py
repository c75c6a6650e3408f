"""connect and Bucket: the front door for applications.

    with headrace.connect("couchbase://127.0.0.1/default", user="u", password="p") as bucket:
        for batch in bucket.changes(since="beginning", until="now"):
            ...

A Bucket holds one connection for questions per node it asks; readers have their own. Errors of
connecting are sentences that name the cause, within ``connect_seconds`` per node named.

Imports: client.*, errors, history, protocol, wire.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from headrace.client.access import Tls, access_of
from headrace.client.address import NodeAddress, parse_address
from headrace.client.kv import KvConnection
from headrace.client.manifest import Manifest, read_manifest
from headrace.client.plan import changes_of, follow_of
from headrace.client.tokens import TokenSet
from headrace.client.topology import ClusterMap, read_map
from headrace.client.writer import DocumentWriter
from headrace.errors import CannotConnect, ConfigError, ConnectionLost, HeadraceError
from headrace.history import Boundaries, FailoverLog, ResumeToken, Seqno
from headrace.protocol.talk import Position

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from headrace.client.access import Access
    from headrace.client.reader import Changes, Follow
    from headrace.wire.dialect import Dialect


def connect(
    url: str,
    *,
    user: str | None = None,
    password: str | None = None,
    bucket: str | None = None,
    tls: Tls | None = None,
    dialect: Dialect | str | None = None,
    connect_seconds: float | None = None,
) -> Bucket:
    """Connect to a bucket; the connection string's path names it, or ``bucket`` does.

    SCRAM proves the password without sending it; PLAIN is used inside TLS only. ``tls`` names
    certificates, which the string's options may do as well. ``dialect`` overrides what the
    handshake finds out.
    """
    address = parse_address(url)
    name = bucket or address.bucket
    if name is None:
        raise ConfigError(f"{address} names no bucket; write {address}/BUCKET or name it")
    access = access_of(
        address,
        user=user,
        password=password,
        tls=tls,
        connect_seconds=connect_seconds,
        dialect=dialect,
    )
    return Bucket(address.nodes, access, name)


class Bucket:
    """One bucket of a cluster: questions to it, and readers of its changes."""

    def __init__(self, nodes: tuple[NodeAddress, ...], access: Access, name: str) -> None:
        """Connect to the first node that answers and learn the cluster map."""
        self.name = name
        self.access = access
        self._lock = threading.Lock()
        self._links: dict[NodeAddress, KvConnection] = {}
        self._readers: list[Changes | Follow] = []
        first = self._first(nodes)
        self.cluster_map = self._learn(first)

    # -- opening and closing --------------------------------------------------------------------

    def _first(self, nodes: tuple[NodeAddress, ...]) -> KvConnection:
        errors: list[HeadraceError] = []
        for node in nodes:
            try:
                link = KvConnection.open(node, self.access, bucket=self.name)
            except CannotConnect as error:
                errors.append(error)
                continue
            self._links[node] = link
            return link
        if len(errors) == 1:
            raise errors[0]
        raise CannotConnect("; ".join(str(error) for error in errors))

    def _learn(self, link: KvConnection) -> ClusterMap:
        data = link.cluster_map()
        if data is None:
            return ClusterMap.of_one(link.node, link.seqnos(), bucket=self.name)
        return read_map(
            data,
            connected=link.node,
            tls=self.access.tls is not None,
            network=self.access.network,
        )

    def close(self) -> None:
        """Close every connection and every reader."""
        for reader in self._readers:
            reader.close()
        self._readers.clear()
        with self._lock:
            for link in self._links.values():
                link.close()
            self._links.clear()

    def __enter__(self) -> Bucket:
        """Close at the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        del kind, error, trace
        self.close()

    async def __aenter__(self) -> Bucket:
        """Close at the end of the block, in asyncio."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close."""
        self.close()

    # -- questions ------------------------------------------------------------------------------

    @property
    def uuid(self) -> str:
        """The bucket's uuid, "" from a server that has no cluster map."""
        return self.cluster_map.uuid

    @property
    def vbuckets(self) -> int:
        """How many vbuckets the bucket has."""
        return self.cluster_map.vbuckets

    def refresh(self) -> ClusterMap:
        """Ask for the cluster map again and keep the newest."""
        with self._lock:
            found = self._learn(self._any())
            if found.age >= self.cluster_map.age:
                self.cluster_map = found
        return self.cluster_map

    def seqnos(self) -> dict[int, int]:
        """The high seqno of every active vbucket, over all nodes."""
        found: dict[int, int] = {}
        for node in self._active_nodes():
            with self._lock:
                found.update(self._link(node).seqnos())
        return found

    def failover_logs(self, vbuckets: Iterable[int] | None = None) -> dict[int, FailoverLog]:
        """Failover logs of vbuckets, all of them unless named."""
        wanted = range(self.vbuckets) if vbuckets is None else list(vbuckets)
        by_node: dict[NodeAddress, list[int]] = {}
        for vbucket in wanted:
            node = self.cluster_map.node_of(vbucket)
            if node is not None:
                by_node.setdefault(node, []).append(vbucket)
        found: dict[int, FailoverLog] = {}
        for node, some in by_node.items():
            with self._lock:
                found.update(self._link(node).failover_logs(some))
        return found

    def persisted(self, branches: dict[int, int]) -> dict[int, int]:
        """The seqno up to which branches (vbucket -> uuid) are on disk on every node that has them.

        A vbucket whose branch nobody knows any more is left out.
        """
        by_node: dict[NodeAddress, dict[int, int]] = {}
        for vbucket, uuid in branches.items():
            row = self.cluster_map.copies[vbucket] if self.cluster_map.copies else (0,)
            for index in row:
                if index >= 0:
                    node = self.cluster_map.nodes[index]
                    by_node.setdefault(node, {})[vbucket] = uuid
        found: dict[int, int] = {}
        for node, some in by_node.items():
            with self._lock:
                replies = self._link(node).persisted(some)
            for vbucket, reply in replies.items():
                seqno = reply.persisted_seqno
                if reply.old_high_seqno is not None:
                    seqno = min(seqno, reply.old_high_seqno)
                found[vbucket] = min(seqno, found.get(vbucket, seqno))
        return found

    def manifest(self) -> Manifest:
        """The collections there are."""
        with self._lock:
            return read_manifest(self._any().manifest())

    def stats(self, group: str = "") -> dict[NodeAddress, dict[str, str]]:
        """A group of statistics of every node."""
        found = {}
        for node in self._active_nodes():
            with self._lock:
                found[node] = self._link(node).stats(group)
        return found

    def tokens_now(self) -> TokenSet:
        """Where a consumer that holds everything there is now would stand."""
        seqnos, logs = self.seqnos(), self.failover_logs()
        positions = {}
        for vbucket, log in logs.items():
            seqno = Seqno(seqnos.get(vbucket, 0))
            token = ResumeToken.at_boundary(log.newest.uuid, seqno, log)
            marks = Boundaries().recorded(seqno, log.branch_at(seqno)) if seqno else Boundaries()
            positions[vbucket] = Position(token, marks)
        return TokenSet(
            bucket=self.name, uuid=self.uuid, vbuckets=self.vbuckets, positions=positions
        )

    def tokens_at_beginning(self) -> TokenSet:
        """Where a consumer that holds nothing stands."""
        return TokenSet(bucket=self.name, uuid=self.uuid, vbuckets=self.vbuckets)

    def kv(self, node: NodeAddress, *, collections: bool = True) -> KvConnection:
        """A new connection to a node, for whoever closes it."""
        return KvConnection.open(node, self.access, bucket=self.name, collections=collections)

    def writer(self) -> DocumentWriter:
        """A writer of many documents."""
        return DocumentWriter(self)

    # -- readers --------------------------------------------------------------------------------

    def changes(self, **options: object) -> Changes:
        """Changes in bulk, as Arrow batches of whole snapshots; see `headrace.client.reader`.

        Options are those of `headrace.client.options.ReadOptions` and the filters ``key_prefix``,
        ``value_contains``, ``kinds``, ``where``, ``expression``.
        """
        reader = changes_of(self, options)
        self._readers.append(reader)
        return reader

    def follow(self, tokens: TokenSet | None = None, **options: object) -> Follow:
        """Changes one by one as they happen, from ``tokens`` or as ``since`` says.

        Iterate with ``for`` or ``async for``; a Rollback comes before the changes of a new branch.
        """
        if tokens is not None:
            options["since"] = tokens
        reader = follow_of(self, options)
        self._readers.append(reader)
        return reader

    # -- connections ----------------------------------------------------------------------------

    def _active_nodes(self) -> list[NodeAddress]:
        cluster_map = self.cluster_map
        return [cluster_map.nodes[index] for index in sorted(set(cluster_map.active)) if index >= 0]

    def _any(self) -> KvConnection:
        """Some connection that answers; call it under the lock."""
        errors: list[HeadraceError] = []
        for node in [*self._links, *self.cluster_map.nodes]:
            try:
                return self._link(node)
            except ConnectionLost as error:
                errors.append(error)
        raise errors[-1]

    def _link(self, node: NodeAddress) -> KvConnection:
        """The connection to a node, opened again if it was lost; call it under the lock."""
        link = self._links.get(node)
        if link is None or link.is_closed:
            link = self._links[node] = KvConnection.open(node, self.access, bucket=self.name)
        return link
