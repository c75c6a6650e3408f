"""A stored bucket and what its store does not know: locks, collections, names, who is listening.

Rules:

* A lock gives a document a CAS of its own, known to the one who locked it; any other writer gets
  LOCKED until the time is up. The lock's CAS stays good after that until the document changes, as
  in released servers: the one who locked and was slow is not told of a conflict that never was.
* One namespace of change-stream names per bucket: who opens a name closes the one who had it.
* The newest manifest is kept with the bucket and with each vbucket; its system events are written
  to every active vbucket in the order of their numbers.

* Whoever changes a vbucket does it here, so that the `Feed` and the cluster map follow.

Everything here runs on the event loop's thread.

Imports: store, wire.opcodes, node.config, node.feed, node.manifest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headrace.node.feed import Feed
from headrace.node.manifest import DEFAULT_ID, FIRST, Manifest, changes, from_json
from headrace.wire.opcodes import VBucketState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.history import FailoverLog
    from headrace.node.config import BucketConfig
    from headrace.node.producer import Producer
    from headrace.store import Bucket, VBucket

LOCK_SECONDS_DEFAULT: Final = 15
LOCK_SECONDS_MAX: Final = 30
LOCKS_MAX: Final = 100_000
"""Locks remembered; the oldest is forgotten first."""
BLOCKED_MAX: Final = 10_000
"""Requests that may wait for pending vbuckets at once."""
_MANIFEST: Final = "manifest"


class Lock(NamedTuple):
    """A lock: its own CAS, the document's CAS when it was taken, and when it ends (monotonic)."""

    cas: int
    document_cas: int
    until: float


class Listener(Protocol):
    """A change-stream connection, as far as its bucket must know it."""

    @property
    def producer(self) -> Producer | None:
        """Its producer, until it is gone."""

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
        """Take over an open bucket: its manifest is read, its waiting prepares are committed."""
        self.config = config
        self.name = config.name
        self.bucket = bucket
        self.counters = Counters()
        self.closed = False
        self.revision = 1
        self.listeners: dict[bytes, Listener] = {}
        self._locks: dict[tuple[int, bytes], Lock] = {}
        self._blocked: dict[int, list[Callable[[], None]]] = {}
        self.on_map_change: Callable[[BucketHost], None] | None = None
        kept = bucket.get_property(_MANIFEST)
        self.manifest = FIRST if kept is None else from_json(kept)
        self._complete_prepares()
        self.feed = Feed(bucket)

    # -- changes ---------------------------------------------------------------------------------

    def map_changed(self) -> None:
        """A new revision of the cluster map is due."""
        self.revision += 1
        if self.on_map_change is not None:
            self.on_map_change(self)

    def _complete_prepares(self) -> None:
        """Commit what a stopped node left prepared: one node alone is its own majority."""
        for vbucket in self.bucket.vbuckets:
            if vbucket.state == VBucketState.ACTIVE:
                for prepared in vbucket.all_pending():
                    vbucket.commit_prepare(prepared.key)

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
    def is_plain(self) -> bool:
        """Whether plain reads and writes of the default collection need no rule of this class."""
        default = self.manifest.collections.get(DEFAULT_ID)
        return (
            not self._locks
            and default is not None
            and not default.max_ttl
            and not self.config.max_ttl
        )

    def lock(self, vbucket: int, key: bytes, lock: Lock) -> None:
        """Lock a document, replacing an older lock of it."""
        self._locks.pop((vbucket, key), None)
        if len(self._locks) >= LOCKS_MAX:
            del self._locks[next(iter(self._locks))]
        self._locks[vbucket, key] = lock

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
        """Forget the lock of a document."""
        self._locks.pop((vbucket, key), None)

    def sweep_locks(self, now: float, *, kept_seconds: float = 3_600.0) -> None:
        """Forget locks that ended long ago."""
        old = [place for place, lock in self._locks.items() if lock.until + kept_seconds < now]
        for place in old:
            del self._locks[place]

    # -- vbuckets --------------------------------------------------------------------------------

    def persisted_seqno(self, vbucket: VBucket) -> int:
        """How far a vbucket would survive a crash; nothing of a bucket in memory does."""
        return vbucket.persisted_seqno if self.bucket.durable else 0

    def set_state(self, vbucket: int, state: VBucketState) -> VBucket:
        """Give a vbucket a state, creating it if need be, and tell everyone concerned."""
        found = self.bucket.find(vbucket)
        if found is None:
            found = self.bucket.create_vbucket(vbucket, state)
            found.set_manifest(self.manifest.to_json())
        elif found.state != state:
            found.set_state(state)
        self._state_changed(vbucket)
        return found

    def fail_over(self, vbucket: int, seqno: int) -> FailoverLog:
        """Lose what a vbucket has above a seqno and tell everyone; ValueError as the store's."""
        log = self.bucket.vbucket(vbucket).failover(seqno)
        self.feed.tell(vbucket)
        return log

    def delete_vbucket(self, vbucket: int) -> None:
        """Forget a vbucket and tell everyone concerned; KeyError if it does not exist."""
        self.bucket.delete_vbucket(vbucket)
        self._state_changed(vbucket)

    def _state_changed(self, vbucket: int) -> None:
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
        self.feed.tell_all()

    # -- collections -----------------------------------------------------------------------------

    def apply_manifest(self, new: Manifest) -> int:
        """Make ``new`` the bucket's manifest; the number of system events each vbucket got."""
        events = changes(self.manifest, new)
        if new == self.manifest:
            return 0
        kept = new.to_json()
        for vbucket in self.bucket.vbuckets:
            if vbucket.state == VBucketState.ACTIVE:
                for event in events:
                    vbucket.system_event(
                        event.event,
                        version=event.version,
                        subject=event.subject,
                        key=event.key,
                        value=event.value,
                    )
                vbucket.set_manifest(kept)
        self.bucket.set_property(_MANIFEST, kept)
        self.manifest = new
        self.feed.tell_all()
        self.map_changed()
        return len(events)
