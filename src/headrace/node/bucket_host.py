"""A stored bucket and what its store does not know: locks, collections, names, who is listening.

Rules:

* A lock gives a document a CAS of its own, known to the one who locked it; any other writer gets
  LOCKED until the time is up. The lock's CAS stays good after that until the document changes, as
  in released servers: the one who locked and was slow is not told of a conflict that never was.
* While a lock may be in force, requests for its vbucket are answered one by one, not in bulk. One
  that has ended holds nothing back: it speaks to writes with its own CAS only.
* One namespace of change-stream names per bucket: who opens a name closes the one who had it.
* The newest manifest is kept with the bucket and with each vbucket; its system events are written
  to every active vbucket in the order of their numbers.

* Whoever changes a vbucket does it here, so that the `Feed`, the cluster map and the durable writes
  in flight follow.

Everything here runs on the event loop's thread.

Imports: store, wire.opcodes, node.cluster_map, node.config, node.feed, node.manifest,
node.sync_writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from headrace.node.cluster_map import GivenMap, check_newer
from headrace.node.feed import Feed
from headrace.node.manifest import (
    DEFAULT_ID,
    FIRST,
    Manifest,
    catching_up,
    changes,
    from_json,
)
from headrace.node.sync_writes import SyncWrites
from headrace.store.requests import HITS, MISSES
from headrace.wire.opcodes import Opcode, VBucketState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from headrace.history import FailoverLog
    from headrace.node.config import BucketConfig
    from headrace.node.producer import Producer
    from headrace.node.replica import Replica
    from headrace.node.sync_writes import Topology
    from headrace.store import Bucket, VBucket
    from headrace.store.native import Bytes, Words

LOCK_SECONDS_DEFAULT: Final = 15
LOCK_SECONDS_MAX: Final = 30
LOCKS_MAX: Final = 100_000
"""Locks remembered; the oldest is forgotten first."""
BLOCKED_MAX: Final = 10_000
"""Requests that may wait for pending vbuckets at once."""
_MANIFEST: Final = "manifest"
MAP_PROPERTY: Final = "cluster_map"


class Lock(NamedTuple):
    """A lock: its own CAS, the document's CAS when it was taken, and when it ends (monotonic)."""

    cas: int
    document_cas: int
    until: float


class Listener(Protocol):
    """A change-stream connection, as far as its bucket must know it."""

    @property
    def producer(self) -> Producer | None:
        """Its producer, if it has one, until it is gone."""

    @property
    def replica(self) -> Replica | None:
        """Its replica, if it has one, until it is gone."""

    def end(self, reason: str) -> None:
        """Close the connection."""

    def stream_statistics(self) -> Iterable[tuple[str, str]]:
        """What `stats dcp` tells of it: names without the connection's prefix."""


@dataclass(slots=True)
class Counters:
    """How often what was done to a bucket."""

    get_hits: int = 0
    get_misses: int = 0
    writes: int = 0
    deletes: int = 0
    cas_hits: int = 0
    cas_misses: int = 0
    touches: int = 0


class BucketHost:
    """A bucket as the node serves it."""

    def __init__(self, config: BucketConfig, bucket: Bucket) -> None:
        """Take over an open bucket: its manifest and map are read, its prepares taken up."""
        self.config = config
        self.name = config.name
        self.bucket = bucket
        self._counters = Counters()
        self._bulk_runs, self._bulk_counted = bucket.bulk_runs, bucket.bulk_counts
        self._locked_until: NDArray[np.float64] = np.zeros(bucket.settings.vbuckets)
        self._plain: tuple[Manifest, Words] | None = None
        self.closed = False
        self.revision = 1
        self.listeners: dict[bytes, Listener] = {}
        self.inbound: dict[int, object] = {}
        """Which replica receives a vbucket: one stream each, whatever its connection."""
        self._locks: dict[tuple[int, bytes], Lock] = {}
        self._blocked: dict[int, list[Callable[[], None]]] = {}
        self.on_map_change: Callable[[BucketHost], None] | None = None
        kept = bucket.get_property(_MANIFEST)
        self.manifest = FIRST if kept is None else from_json(kept)
        self.given_map = GivenMap.from_property(bucket.get_property(MAP_PROPERTY))
        self.told_map: tuple[object, bytes] | None = None
        """The given map as it was last told, and to whom."""
        self._held: set[int] = set()
        self.sync_writes = SyncWrites(bucket)
        self.feed = Feed(bucket)

    # -- changes ---------------------------------------------------------------------------------

    def map_changed(self) -> None:
        """A new revision of the node's own map is due; a map that was given stays as it is."""
        self.revision += 1
        if self.given_map is None:
            self._tell_map()

    def take_map(self, given: GivenMap) -> None:
        """Keep a map that a manager gave, durable with the next commit; refused if it is older."""
        if check_newer(self.given_map, given):
            self.given_map = given
            self.bucket.set_property(MAP_PROPERTY, given.to_property())
            self._tell_map()

    def _tell_map(self) -> None:
        if self.on_map_change is not None:
            self.on_map_change(self)

    # -- names of change-stream connections ------------------------------------------------------

    def listen(self, name: bytes, listener: Listener) -> None:
        """Register a change-stream connection; the one that had the name is closed at once."""
        before = self.listeners.get(name)
        self.listeners[name] = listener
        if before is not None and before is not listener:
            before.end(f"a newer connection opened the name {name.decode('utf-8', 'replace')}")

    def unlisten(self, name: bytes, listener: Listener) -> None:
        """Forget a change-stream connection, if the name is still its own."""
        if self.listeners.get(name) is listener:
            del self.listeners[name]

    # -- locks -----------------------------------------------------------------------------------

    @property
    def has_locks(self) -> bool:
        """Whether any lock is remembered."""
        return bool(self._locks)

    @property
    def counters(self) -> Counters:
        """How often what was done, requests served in bulk included."""
        if self.bucket.bulk_runs != self._bulk_runs:
            self._bulk_runs = self.bucket.bulk_runs
            counts, before = self.bucket.bulk_counts, self._bulk_counted
            self._bulk_counted = counts
            counters = self._counters
            counters.get_hits += counts[HITS] - before[HITS]
            counters.get_misses += counts[MISSES] - before[MISSES]
            for opcode in (Opcode.SET, Opcode.SETQ):
                counters.writes += counts[opcode] - before[opcode]
        return self._counters

    @counters.setter
    def counters(self, counters: Counters) -> None:
        self._bulk_runs, self._bulk_counted = self.bucket.bulk_runs, self.bucket.bulk_counts
        self._counters = counters

    @property
    def plain_collections(self) -> Words:
        """Ids of the collections whose plain reads and writes need no rule of this class."""
        if self._plain is None or self._plain[0] is not self.manifest:
            found = () if self.config.max_ttl else self.manifest.collections.values()
            ids = sorted(one.id for one in found if not one.max_ttl)
            self._plain = self.manifest, np.array(ids, np.int64)
        return self._plain[1]

    @property
    def is_plain(self) -> bool:
        """Whether plain reads and writes of the default collection need no rule of this class."""
        plain = self.plain_collections
        return len(plain) > 0 and int(plain[0]) == DEFAULT_ID

    def locked_vbuckets(self, now: float) -> Bytes | None:
        """A byte per vbucket, 1 where a lock may be in force; None where none is anywhere."""
        if not self._locks:
            return None
        held = self._locked_until > now
        return held.view(np.uint8) if held.any() else None

    def lock(self, vbucket: int, key: bytes, lock: Lock) -> None:
        """Lock a document, replacing an older lock of it."""
        self._locks.pop((vbucket, key), None)
        if len(self._locks) >= LOCKS_MAX:
            del self._locks[next(iter(self._locks))]
        self._locks[vbucket, key] = lock
        self._locked_until[vbucket] = max(self._locked_until[vbucket], lock.until)

    def find_lock(self, vbucket: int, key: bytes, document_cas: int) -> Lock | None:
        """The lock of the document in this version, in force or not; others are forgotten."""
        if not self._locks:
            return None
        found = self._locks.get((vbucket, key))
        if found is not None and found.document_cas != document_cas:
            del self._locks[vbucket, key]
            return None
        return found

    def unlock(self, vbucket: int, key: bytes) -> None:
        """Forget the lock of a document; others of its vbucket hold back what they did."""
        self._locks.pop((vbucket, key), None)
        if not self._locks:
            self._locked_until.fill(0)

    def sweep_locks(self, now: float, *, kept_seconds: float = 3_600.0) -> None:
        """Forget locks that ended long ago."""
        old = [place for place, lock in self._locks.items() if lock.until + kept_seconds < now]
        for place in old:
            del self._locks[place]

    # -- vbuckets --------------------------------------------------------------------------------

    def persisted_seqno(self, vbucket: VBucket) -> int:
        """How far a vbucket would survive a crash; nothing of a bucket in memory does."""
        return vbucket.persisted_seqno if self.bucket.durable else 0

    def set_state(
        self,
        vbucket: int,
        state: VBucketState,
        *,
        takeover: bool = False,
        topology: Topology | None = None,
    ) -> VBucket:
        """Give a vbucket a state, durably, creating it if need be, and tell everyone concerned.

        ``takeover``: its history goes on where another node's ended. ``topology``: the chains of an
        active vbucket; without one it keeps those it has, or is this node's alone.
        """
        found = self.bucket.find(vbucket)
        if topology is not None:
            # Before it is active: the prepares it finds then are not this node's alone to decide.
            self.sync_writes.set_topology(vbucket, topology)
        if found is None:
            found = self.bucket.create_vbucket(vbucket, state)
            if state is VBucketState.ACTIVE:  # a copy learns its collections from its source
                found.set_manifest(self.manifest.to_json())
        elif found.state != state:
            found.set_state(state, takeover=takeover)
            if state is VBucketState.ACTIVE:
                self._bring_manifest(found, self.manifest)
        self._state_changed(vbucket)
        return found

    def hold_writes(self, vbucket: int, *, held: bool) -> None:
        """Tell writers of a vbucket to try again later, or no longer: a takeover must drain."""
        found = self.bucket.find(vbucket)
        if held:
            self._held.add(vbucket)
        else:
            self._held.discard(vbucket)
        if found is not None:
            found.hold_bulk(int(held))

    def holds_writes(self, vbucket: int) -> bool:
        """Whether writers of a vbucket are to try again later."""
        return vbucket in self._held

    def replica_joined(self, vbucket: int, name: str) -> None:
        """A consumer of this name begins a stream."""
        self.sync_writes.joined(vbucket, name)

    def replica_acknowledged(self, vbucket: int, name: str, seqno: int) -> None:
        """A consumer of this name has met every prepare up to a seqno."""
        self.sync_writes.acknowledged(vbucket, name, seqno)

    def fail_over(self, vbucket: int, seqno: int) -> FailoverLog:
        """Lose what a vbucket has above a seqno and tell everyone; ValueError as the store's."""
        log = self.bucket.vbucket(vbucket).failover(seqno)
        self.sync_writes.follow(vbucket)
        self.feed.tell(vbucket)
        return log

    def delete_vbucket(self, vbucket: int) -> None:
        """Forget a vbucket and tell everyone concerned; KeyError if it does not exist."""
        self.bucket.delete_vbucket(vbucket)
        self._state_changed(vbucket)

    def _state_changed(self, vbucket: int) -> None:
        self.sync_writes.follow(vbucket)
        self.feed.tell(vbucket)
        self.map_changed()
        for retry in self._blocked.pop(vbucket, []):
            retry()

    def block(self, vbucket: int, retry: Callable[[], None]) -> bool:
        """Call back once when the vbucket's state changes; False when too many wait already."""
        if sum(map(len, self._blocked.values())) >= BLOCKED_MAX:
            return False
        self._blocked.setdefault(vbucket, []).append(retry)
        return True

    def unblock(self, vbucket: int, retry: Callable[[], None]) -> None:
        """Do not call back."""
        waiting = self._blocked.get(vbucket, [])
        if retry in waiting:
            waiting.remove(retry)

    def flush(self) -> None:
        """Empty the bucket: every vbucket begins a new history."""
        self.bucket.flush()
        self._locks.clear()
        for vbucket in self.bucket.vbuckets:
            self.sync_writes.follow(vbucket.id)
        self.feed.tell_all()

    # -- collections -----------------------------------------------------------------------------

    def _bring_manifest(self, vbucket: VBucket, new: Manifest) -> None:
        """Write the events that lead an active vbucket from the manifest it knows to ``new``.

        One that came from another node may know more than this node does, or less.
        """
        known = from_json(vbucket.manifest) if vbucket.manifest else FIRST
        for event in catching_up(known, new):
            vbucket.system_event(
                event.event,
                version=event.version,
                subject=event.subject,
                key=event.key,
                value=event.value,
            )
        if known.uid <= new.uid:
            vbucket.set_manifest(new.to_json())

    def apply_manifest(self, new: Manifest) -> int:
        """Make ``new`` the bucket's manifest; the number of system events each vbucket got."""
        events = changes(self.manifest, new)
        if new == self.manifest:
            return 0
        kept = new.to_json()
        for vbucket in self.bucket.vbuckets:
            if vbucket.state == VBucketState.ACTIVE:
                self._bring_manifest(vbucket, new)
        self.bucket.set_property(_MANIFEST, kept)
        self.manifest = new
        self.feed.tell_all()
        self.map_changed()
        return len(events)
