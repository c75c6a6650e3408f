"""DocumentWriter: many documents into a bucket, pipelined, each to the node that has its vbucket.

Quiet writes: a node answers only what it refuses, and a NOOP behind every batch says that
everything before it is done. Batches of all nodes are in flight at once, one per node.

Rules
- What a node cannot take now (busy, out of memory, vbucket moved) is written again after a pause
  that grows, at most `ATTEMPTS_MAX` times; a refusal that will not change is raised.
- Two writes of one key keep their order unless the first had to be written again.
- `flush` returns when everything put before is acknowledged; leaving the block flushes.

Imports: client.kv, errors, wire.
"""

from __future__ import annotations

import time
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import ConfigError, ConnectionLost, StatusError
from headrace.protocol.handshake import refusal
from headrace.wire.opcodes import Datatype, Feature, Magic, Opcode, Status
from headrace.wire.values import join_collection, vbucket_of

if TYPE_CHECKING:
    from types import TracebackType

    from headrace.client.address import NodeAddress
    from headrace.client.bucket import Bucket
    from headrace.client.kv import KvConnection

BATCH_DOCUMENTS: Final = 2_000
BATCH_SIZE: Final = 1 << 20
ATTEMPTS_MAX: Final = 12
PAUSE_SECONDS: Final = 0.02
PAUSE_SECONDS_MAX: Final = 2.0
KEY_SIZE_MAX: Final = 250
VALUE_SIZE_MAX: Final = 20 << 20
AGAIN: Final = frozenset({Status.ETMPFAIL, Status.ENOMEM, Status.EBUSY, Status.NOT_MY_VBUCKET})

_HEADER: Final = Struct(">BBHBBHIIQ")
_STORE: Final = Struct(">BBHBBHIIQII")


class Document(NamedTuple):
    """One write; ``value`` None deletes."""

    key: bytes
    value: bytes | None
    expiry: int = 0
    flags: int = 0
    collection_id: int = 0
    is_json: bool = False


class DocumentWriter:
    """Writes documents; use it as a context manager."""

    def __init__(self, bucket: Bucket) -> None:
        """Nothing is opened before the first batch."""
        self.written = 0
        self.missing = 0
        self.size = 0
        self._bucket = bucket
        self._links: dict[NodeAddress, KvConnection] = {}
        self._waiting: dict[NodeAddress, list[Document]] = {}
        self._sizes: dict[NodeAddress, int] = {}
        # Keys without a collection prefix are what nodes take fastest.
        self._collections = False

    def __enter__(self) -> DocumentWriter:
        """Flush and close at the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Flush, unless the block failed, and close."""
        del error, trace
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def put(self, document: Document) -> None:
        """Write a document, soon."""
        key, value = document.key, document.value
        if not 0 < len(key) <= KEY_SIZE_MAX:
            raise ConfigError(f"key of {len(key)} bytes, allowed 1..{KEY_SIZE_MAX}")
        if value is not None and len(value) > VALUE_SIZE_MAX:
            raise ConfigError(f"document {key!r} of {len(value)} bytes, limit {VALUE_SIZE_MAX}")
        if document.collection_id and not self._collections:
            self.flush()
            self.close()
            self._collections = True
        self._queue(document)

    def _queue(self, document: Document) -> None:
        node = self._node_of(document.key)
        waiting = self._waiting.setdefault(node, [])
        waiting.append(document)
        size = self._sizes.get(node, 0) + len(document.key) + len(document.value or b"")
        self._sizes[node] = size
        if len(waiting) >= BATCH_DOCUMENTS or size >= BATCH_SIZE:
            self._send(node)

    def flush(self) -> None:
        """Wait until everything is acknowledged."""
        while any(self._waiting.values()):
            for node in list(self._waiting):
                self._send(node)

    def close(self) -> None:
        """Close the connections; what was not flushed may be lost."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    def _node_of(self, key: bytes) -> NodeAddress:
        cluster_map = self._bucket.cluster_map
        for attempt in range(ATTEMPTS_MAX):
            node = cluster_map.node_of(vbucket_of(key, cluster_map.vbuckets))
            if node is not None:
                return node
            time.sleep(_pause(attempt))
            cluster_map = self._bucket.refresh()
        raise ConnectionLost(f"no node has the vbucket of key {key!r} active")

    def _send(self, node: NodeAddress) -> None:
        batch, self._waiting[node] = self._waiting.get(node, []), []
        self._sizes[node] = 0
        for attempt in range(ATTEMPTS_MAX):
            if not batch:
                return
            batch, reason = self._send_once(node, batch)
            if not batch:
                return
            time.sleep(_pause(attempt))
            if reason == Status.NOT_MY_VBUCKET:
                self._bucket.refresh()
                moved = [one for one in batch if self._node_of(one.key) != node]
                batch = [one for one in batch if self._node_of(one.key) == node]
                for one in moved:
                    self._waiting.setdefault(self._node_of(one.key), []).append(one)
        if batch:
            raise ConnectionLost(
                f"{node} refused {len(batch)} writes {ATTEMPTS_MAX} times; is it out of memory?"
            )

    def _send_once(
        self, node: NodeAddress, batch: list[Document]
    ) -> tuple[list[Document], int | None]:
        """Write a batch; what must be written again, and why."""
        try:
            link = self._link(node)
            replies = link.write_quietly(self._encode(link, batch), len(batch))
        except ConnectionLost:
            self._links.pop(node, None)
            return batch, None
        again: list[Document] = []
        reason: int | None = None
        for opaque, reply in replies:
            document = batch[opaque]
            if document.value is None and reply.status == Status.KEY_ENOENT:
                self.missing += 1
            elif reply.status in AGAIN:
                again.append(document)
                reason = reply.status
            else:
                raise refusal(reply, f"{node} refused key {document.key!r}")
        self.written += len(batch) - len(again)
        done = {id(one) for one in again}
        self.size += sum(
            len(one.key) + len(one.value or b"") for one in batch if id(one) not in done
        )
        return again, reason

    def _encode(self, link: KvConnection, batch: list[Document]) -> list[bytes]:
        vbuckets = self._bucket.vbuckets
        prefixed = Feature.COLLECTIONS in link.features
        typed = Feature.JSON in link.features
        parts: list[bytes] = []
        for opaque, one in enumerate(batch):
            key = join_collection(one.collection_id, one.key) if prefixed else one.key
            if one.collection_id and not prefixed:
                raise StatusError(
                    f"{link.node} has no collections",
                    status=Status.UNKNOWN_COLLECTION,
                    opcode=Opcode.SETQ,
                )
            vbucket = vbucket_of(one.key, vbuckets)
            if one.value is None:
                parts.append(
                    _HEADER.pack(
                        Magic.REQUEST, Opcode.DELETEQ, len(key), 0, 0, vbucket, len(key), opaque, 0
                    )
                )
                parts.append(key)
                continue
            datatype = Datatype.JSON if one.is_json and typed else 0
            parts.append(
                _STORE.pack(
                    Magic.REQUEST,
                    Opcode.SETQ,
                    len(key),
                    8,
                    datatype,
                    vbucket,
                    8 + len(key) + len(one.value),
                    opaque,
                    0,
                    one.flags,
                    one.expiry,
                )
            )
            parts += (key, one.value)
        parts.append(_HEADER.pack(Magic.REQUEST, Opcode.KV_NOOP, 0, 0, 0, 0, 0, len(batch), 0))
        return parts

    def _link(self, node: NodeAddress) -> KvConnection:
        link = self._links.get(node)
        if link is None or link.is_closed:
            link = self._links[node] = self._bucket.kv(node, collections=self._collections)
        return link


def _pause(attempt: int) -> float:
    return float(min(PAUSE_SECONDS * 2**attempt, PAUSE_SECONDS_MAX))
