"""Questions and orders to one node, without keeping the event loop waiting.

A node is asked over one ordinary connection (`headrace.client.kv`), which blocks, so the asking is
done on a thread; one question at a time.

Rules
- A lost connection is made again once for the same question: every question here may be repeated.
- A node that cannot be reached is a ConnectionLost, a refusal a StatusError with the node's words.
- An active copy is never deleted.

Imports: errors, wire, client, cluster.copies, cluster.chains.
"""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, TypeVar

from headrace.client.kv import KvConnection
from headrace.cluster.chains import Chain, Chains, to_json
from headrace.cluster.copies import Copy, read_copy
from headrace.errors import ClusterError, ConnectionLost, StatusError
from headrace.wire import admin
from headrace.wire.opcodes import Datatype, Status, VBucketState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.cluster.cluster_file import ClusterNode

T = TypeVar("T")


class ManagedNode:
    """One node of the cluster, in one bucket."""

    def __init__(self, node: ClusterNode, bucket: str) -> None:
        """Know it; it is connected to with the first question."""
        self.name = node.name
        self.node = node
        self.bucket = bucket
        self._connection: KvConnection | None = None
        self._lock = asyncio.Lock()
        self._is_closed = False
        self._guard = threading.Lock()

    async def close(self) -> None:
        """End the connection, for good; also one that a cancelled question is still opening."""
        with self._guard:
            self._is_closed = True
            if self._connection is not None:
                self._connection.close()

    async def _ask(self, work: Callable[[KvConnection], T]) -> T:
        async with self._lock:
            return await asyncio.to_thread(self._work, work)

    def _work(self, work: Callable[[KvConnection], T]) -> T:
        known = self._connection is not None and not self._connection.is_closed
        try:
            return work(self._connected())
        except ConnectionLost:
            if not known:
                raise
        return work(self._connected())  # the node may have been started again

    def _connected(self) -> KvConnection:
        if self._connection is None or self._connection.is_closed:
            opened = KvConnection.open(self.node.address, self.node.access, bucket=self.bucket)
            with self._guard:
                self._connection = opened
                if self._is_closed:
                    opened.close()
                    raise ConnectionLost(f"node {self.name} is no longer asked")
        return self._connection

    # -- questions -------------------------------------------------------------------------------

    async def cluster_map(self) -> bytes:
        """The map the node serves."""
        return await self._ask(lambda connection: connection.cluster_map() or b"")

    async def copy(self, vbucket: int) -> Copy:
        """The node's copy of one vbucket."""

        def work(connection: KvConnection) -> Copy:
            stats: dict[str, str] = {}
            try:
                for group in GROUPS:
                    stats |= connection.stats(f"{group} {vbucket}")
            except StatusError as error:
                if error.status != Status.NOT_MY_VBUCKET:
                    raise
                return Copy(node=self.name, vbucket=vbucket)
            return read_copy(self.name, vbucket, stats)

        return await self._ask(work)

    async def copies(self, vbuckets: int) -> list[Copy]:
        """The node's copies of all vbuckets."""

        def work(connection: KvConnection) -> list[Copy]:
            stats: dict[str, str] = {}
            for group in GROUPS:
                stats |= connection.stats(group)
            return [read_copy(self.name, number, stats) for number in range(vbuckets)]

        return await self._ask(work)

    # -- orders ----------------------------------------------------------------------------------

    async def set_state(self, vbucket: int, state: VBucketState, chain: Chain = ()) -> None:
        """Give the copy a state, creating it if need be; an active one may be given its chain."""
        topology = chain if state == VBucketState.ACTIVE else ()
        value = json.dumps({"topology": [list(topology)]}).encode() if topology else b""

        def work(connection: KvConnection) -> None:
            connection.ask(
                admin.SetVBucket(
                    vbucket=vbucket,
                    state=int(state),
                    value=value,
                    datatype=Datatype.JSON if value else Datatype.RAW,
                ),
                admin.SetVBucketReply,
            )

        await self._ask(work)

    async def drop(self, vbucket: int, *, empty: bool = False) -> None:
        """Delete the copy; one that is active only if it is wanted ``empty`` and is."""

        def work(connection: KvConnection) -> None:
            state = _state(connection, vbucket)
            if state is None:
                return
            if state == VBucketState.ACTIVE and not empty:
                raise ClusterError(f"{self.name} has vbucket {vbucket} active; it is not deleted")
            dead = admin.SetVBucket(vbucket=vbucket, state=int(VBucketState.DEAD))
            connection.ask(dead, admin.SetVBucketReply)
            if empty:
                _check_empty(connection, self.name, vbucket)
            request = admin.DelVBucket(vbucket=vbucket, value=b"async=0")
            connection.ask(request, admin.DelVBucketReply)

        await self._ask(work)

    async def give_map(self, chains: Chains) -> None:
        """Give the node a map to keep and to serve."""
        request = admin.SetClusterConfig(
            epoch=chains.epoch,
            revision=chains.revision,
            key=chains.bucket.encode(),
            value=to_json(chains),
        )
        await self._ask(lambda connection: _order(connection, request))


GROUPS: Sequence[str] = ("vbucket-details", "vbucket-seqno", "failovers")
"""The statistics a copy is read from; the second has the later word on what both tell."""


def _order(connection: KvConnection, request: admin.SetClusterConfig) -> None:
    connection.ask(request, admin.SetClusterConfigReply)


def _state(connection: KvConnection, vbucket: int) -> VBucketState | None:
    try:
        reply = connection.ask(admin.GetVBucket(vbucket=vbucket), admin.GetVBucketReply)
    except StatusError as error:
        if error.status != Status.NOT_MY_VBUCKET:
            raise
        return None
    return VBucketState(reply.state)


def _check_empty(connection: KvConnection, name: str, vbucket: int) -> None:
    stats = connection.stats(f"vbucket-details {vbucket}")
    high = int(stats.get(f"vb_{vbucket}:high_seqno", "0"))
    if high:
        active = admin.SetVBucket(vbucket=vbucket, state=int(VBucketState.ACTIVE))
        connection.ask(active, admin.SetVBucketReply)
        raise ClusterError(
            f"{name} has vbucket {vbucket} with {high} changes of its own; only a node without "
            "documents can join"
        )
