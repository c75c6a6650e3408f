"""The front door of the store: open, use, keep up, close a bucket.

A bucket joins the parts: core (tables, arena, locks), journal (commits, sealing), vbuckets, and
the upkeep its owner asks for. It has at most one thread of its own, the committer, and only if
asked.

Imports: errors, store, wire.opcodes.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, StoreError
from headrace.history import FailoverLog
from headrace.store import layout as at
from headrace.store import records, truncation
from headrace.store.changes import signed
from headrace.store.committer import Committer
from headrace.store.compaction import Compaction, Purge
from headrace.store.core import GROWTH_SHARE, Core
from headrace.store.disk import Batch, LmdbDisk, MemoryDisk, Table
from headrace.store.journal import Journal
from headrace.store.lookup import Lookup
from headrace.store.model import SEQNO_LIMIT
from headrace.store.opening import Opening, read_bucket_record, stored_settings
from headrace.store.requests import Requests
from headrace.store.settings import BucketSettings
from headrace.store.upkeep import Upkeep
from headrace.store.vbucket import VBucket

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path
    from types import TracebackType

    from headrace.store.disk import Disk
    from headrace.store.model import CommitReport, CompactionReport
    from headrace.store.native import Bytes, Words
    from headrace.wire.opcodes import VBucketState


class Bucket:
    """A bucket: up to 1,024 vbuckets on one LMDB environment, or in memory alone.

    Make it with `Bucket.open`; it is its own context manager.
    """

    def __init__(
        self,
        disk: Disk,
        settings: BucketSettings | None,
        clock: Callable[[], int],
        entropy: Callable[[int], bytes],
    ) -> None:
        """Read everything from the disk, then mark it as in use; see `open`."""
        record = read_bucket_record(disk)
        self.settings = stored_settings(record, settings, disk.path)
        self.core = Core(self.settings, disk, clock, entropy)
        self._vbuckets: dict[int, VBucket] = {}
        self._lookup = Lookup(self.core)
        self.journal = Journal(self.core, self._vbuckets)
        opening = Opening(self.core, self._lookup, self.journal, self._vbuckets)
        opening.load()
        self.uuid: str = record["uuid"] if record else entropy(16).hex()
        """32 hex digits, given once."""
        self.was_unclean = record is not None and not opening.was_clean
        """The last owner did not close it: active vbuckets began a new branch."""
        self._properties = opening.properties
        self._changed_properties: set[str] = set()
        self._marks: list[tuple[bytes, object]] = []
        self._committer = Committer(self.commit, self.core.wake, self._is_busy)
        self._upkeep = Upkeep(self.core, self._vbuckets)
        self._requests = Requests(self.core)
        self.core.make_room = self._make_room
        self.core.commit_now = self._commit_now
        self.core.truncate = self._truncate
        self.journal.add_more = self._add_marks
        self._mark_in_use(opening)

    @classmethod
    def open(
        cls,
        path: Path | None,
        settings: BucketSettings | None = None,
        *,
        clock: Callable[[], int] = time.time_ns,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
        disk: Disk | None = None,
    ) -> Bucket:
        """Open or create the bucket in directory ``path``; None keeps everything in memory.

        ``settings`` None: those it was created with; the number of vbuckets cannot change
        (ConfigError). ``clock`` gives unix nanoseconds, ``entropy(n)`` n random bytes. Raises
        StoreLocked, StoreVersion, CorruptRecord, StoreFull; nothing was touched then. A new bucket
        has no vbuckets: see `create_vbucket`. ``disk`` replaces the path (tests).
        """
        if disk is None:
            limit = (settings or BucketSettings()).map_bytes_max
            disk = MemoryDisk() if path is None else LmdbDisk(path, map_bytes_max=limit)
        try:
            return cls(disk, settings, clock, entropy)
        except BaseException:
            disk.close()
            raise

    def _mark_in_use(self, opening: Opening) -> None:
        if self.was_unclean:
            with self.core.lock:
                opening.begin_branches()
        self._marks = [
            (
                records.BUCKET_KEY,
                {
                    "format": records.FORMAT,
                    "uuid": self.uuid,
                    "settings": self.settings.to_json(),
                },
            ),
            (records.CLEAN_KEY, False),
        ]
        self._commit_now()

    def _add_marks(self, batch: Batch) -> None:
        """Put what is the bucket's own into a commit."""
        for key, value in self._marks:
            batch.put(Table.META, key, records.pack_meta(key, value))
        for name in self._changed_properties:
            key = records.property_key(name)
            batch.put(Table.META, key, records.pack_meta(key, self._properties.get(name)))

    # -- vbuckets -------------------------------------------------------------------------------

    @property
    def durable(self) -> bool:
        """Whether anything survives the process.

        False for a bucket in memory alone: its persisted seqno moves with each commit, so that
        streams from "disk" work, but a node must refuse writes that ask for persistence.
        """
        return self.core.disk.durable

    def vbucket(self, vbucket: int) -> VBucket:
        """The vbucket with that number; KeyError if it does not exist."""
        return self._vbuckets[vbucket]

    def find(self, vbucket: int) -> VBucket | None:
        """The vbucket with that number, or None."""
        return self._vbuckets.get(vbucket)

    @property
    def vbuckets(self) -> list[VBucket]:
        """Those that exist, by number."""
        return [self._vbuckets[number] for number in sorted(self._vbuckets)]

    def visible_seqnos(self, states: Collection[VBucketState]) -> list[tuple[int, int]]:
        """(vbucket, `VBucket.max_visible_seqno`) of those in one of these states, by number."""
        wanted = {int(state) for state in states}
        rows = self.core.tables.vbuckets[:, (at.V_STATE, at.V_VISIBLE)].tolist()
        return [(number, row[1]) for number, row in enumerate(rows) if row[0] in wanted]

    def create_vbucket(self, vbucket: int, state: VBucketState) -> VBucket:
        """A new, empty vbucket with a one-entry failover log, durable; ValueError if it exists."""
        with self.core.structure:
            created = self._create(vbucket, state)
            self._commit_now()
        return created

    def create_vbuckets(self, state: VBucketState) -> None:
        """Create all that are missing, in one commit."""
        with self.core.structure:
            for number in range(self.settings.vbuckets):
                if number not in self._vbuckets:
                    self._create(number, state)
            self._commit_now()

    def _create(self, number: int, state: VBucketState) -> VBucket:
        if number in self._vbuckets:
            raise ValueError(f"vbucket {number} exists")
        if not 0 <= number < self.settings.vbuckets:
            raise ValueError(f"vbucket {number}, allowed 0..{self.settings.vbuckets - 1}")
        with self.core.lock:
            log = FailoverLog.created(self.core.new_branch())
            vbucket = VBucket(self.core, self._lookup, number, log)
            vbucket.row[:] = 0
            vbucket.row[at.V_STATE] = int(state)
            vbucket.row[at.V_CHECKPOINT] = 1
            vbucket.row[at.V_CHECKPOINT_START] = 1
            vbucket.row[at.V_BRANCH] = signed(log.newest.uuid)
            # Frames of an earlier vbucket with this number may still lie in the journal.
            vbucket.sealed_commit = self.journal.next_commit
            vbucket.record_changed = True
            self._vbuckets[number] = vbucket
        return vbucket

    def delete_vbucket(self, vbucket: int) -> None:
        """Forget a vbucket, durably; KeyError if it does not exist."""
        with self.core.structure:
            found = self._vbuckets[vbucket]
            truncation.delete(self.journal, found)
            del self._vbuckets[vbucket]
        self.core.announce(vbucket)

    def flush(self) -> None:
        """Empty every vbucket: each starts again at seqno 0 with a new one-entry log, durably."""
        with self.core.structure:
            for vbucket in self.vbuckets:
                log = FailoverLog.created(self.core.new_branch())

                def take(vbucket: VBucket = vbucket, log: FailoverLog = log) -> None:
                    vbucket.begin_branch(log)

                truncation.truncate(self.journal, vbucket, 0, take)
        for vbucket in self.vbuckets:
            self.core.announce(vbucket.id)

    def _truncate(
        self,
        vbucket: int,
        to: int,
        change_log: Callable[[], None],
        check: Callable[[], None] | None,
    ) -> None:
        truncation.truncate(self.journal, self._vbuckets[vbucket], to, change_log, check)

    # -- durability -----------------------------------------------------------------------------

    def commit(self) -> CommitReport:
        """Make everything accepted so far durable; then callbacks run. One sync.

        With persistence stopped it does nothing. Raises StoreFull (nothing lost: still in memory).
        """
        self._check_open()
        return self._commit(forced=False)

    def _commit_now(self) -> None:
        self._check_open()
        self._commit(forced=True)

    def _commit(self, *, forced: bool) -> CommitReport:
        with self.core.structure:
            if not forced and not self.journal.enabled:
                return self.journal.commit()
            properties = set(self._changed_properties)
            marks = list(self._marks)
            report = self.journal.commit(forced=forced)
            self._changed_properties -= properties
            self._marks = [mark for mark in self._marks if mark not in marks]
        return report

    def start_committer(self, *, delay_seconds: float = 0.002) -> None:
        """Commit on a thread of our own, at most ``delay_seconds`` after a change."""
        self._check_open()
        self._committer.start(delay_seconds)

    def stop_committer(self) -> None:
        """Stop that thread; what was accepted is not committed by this."""
        self._committer.stop()

    @property
    def failure(self) -> HeadraceError | None:
        """Why the last commit on the committer thread failed; None when it did not."""
        return self._committer.failure

    @property
    def persistence(self) -> bool:
        """False after `stop_persistence`: changes stay in memory, bounded by the quota."""
        return self.journal.enabled

    def stop_persistence(self) -> None:
        """Changes stay in memory until `start_persistence`.

        Changes of state, branches and truncations are still written at once, with all before them.
        """
        with self.core.structure:
            self.journal.enabled = False

    def start_persistence(self) -> None:
        """Commits make durable again."""
        with self.core.structure:
            self.journal.enabled = True
        self.core.wake.set()

    def _is_busy(self) -> bool:
        return self.journal.is_sealing and self.journal.enabled

    def _make_room(self, size: int) -> None:
        """Free memory for ``size`` more bytes of frames, or raise StoreFull."""
        core = self.core
        spare = max(size, self.settings.segment_bytes)
        with core.lock:
            fits = core.release(force=False, spare=spare)
            left = self.settings.memory_quota - core.memory_used() - spare
            if left >= 0 and fits:
                return
            spacious = left * GROWTH_SHARE >= self.settings.memory_quota
            if spacious and self.journal.frees_soon(core.arena.high + spare):
                return
        if self.journal.enabled:
            with core.structure:
                self._commit(forced=False)
                self.journal.seal()
        with core.lock:
            core.release(force=True, spare=spare)
            core.room_or_refuse(size)

    def _check_open(self) -> None:
        if self.core.closed:
            raise StoreError(f"{self.core.disk.path} is closed")

    # -- being told -----------------------------------------------------------------------------

    def on_change(self, listener: Callable[[int], None] | None) -> None:
        """Call ``listener(vbucket)`` after changes were accepted, on the changing thread.

        Called again only after some cursor of that vbucket looked for news: a burst of writes is
        one call. One listener; None removes it. Truncations, state changes and dropped cursors call
        it, too.
        """
        with self.core.lock:
            self.core.listener = listener
            self.core.told = [False] * self.settings.vbuckets

    # -- upkeep ---------------------------------------------------------------------------------

    def expire_due(self, now: int, *, limit: int = 10_000) -> int:
        """Expire keys of active vbuckets whose expiry is at or before ``now`` (unix seconds).

        System xattrs stay in the tombstone's value. Returns how many; ``limit`` reached: call
        again.
        """
        return self._upkeep.expire_due(now, limit)

    def compact(
        self,
        vbucket: int | None = None,
        *,
        purge_before: int | None = None,
        purge_before_seqno: int | None = None,
        drop_deletes: bool = False,
    ) -> list[CompactionReport]:
        """Rewrite blocks without dead frames and purge tombstones deleted before ``purge_before``
        (unix seconds; None: the settings' purge age). ``drop_deletes``: all of them. The tombstone
        at the high seqno is kept.
        """
        self._check_open()
        now = self.core.clock() // 1_000_000_000
        before = now - self.settings.purge_age_seconds if purge_before is None else purge_before
        if drop_deletes:
            before = 2**32
        limit = SEQNO_LIMIT if purge_before_seqno is None else purge_before_seqno
        with self.core.structure:
            chosen = self.vbuckets if vbucket is None else [self._vbuckets[vbucket]]
            self._commit(forced=True)
            self.journal.seal()
            return [Compaction(self.journal, one, Purge(before, limit)).run() for one in chosen]

    def seal(self) -> int:
        """Move every accepted frame into blocks now; bytes moved."""
        self._check_open()
        with self.core.structure:
            return self.journal.seal()

    def maintain(self, *, budget_seconds: float = 0.05) -> bool:
        """Background work for about that long: sealing steps, then the compaction of vbuckets where
        it pays; True if more is left. Call it now and then, from any thread."""
        stop = time.monotonic() + budget_seconds
        while self._maintain_once():
            if time.monotonic() >= stop:
                return True
        return False

    def _maintain_once(self) -> bool:
        self._check_open()
        with self.core.structure:
            if self._is_busy():
                self._commit(forced=False)
                return True
            wasteful = self._upkeep.most_wasteful()
            if wasteful is None or not self.journal.enabled:
                return False
            now = self.core.clock() // 1_000_000_000
            purge = Purge(now - self.settings.purge_age_seconds, SEQNO_LIMIT)
            Compaction(self.journal, wasteful, purge).run()
        return True

    @property
    def memory_used(self) -> int:
        """Bytes of arena, recent items, key index, block rows and output."""
        with self.core.lock:
            return self.core.memory_used()

    def hold_outside(self, change: int) -> int:
        """Count so many bytes more (or less) that the owner holds for readers; bytes held now."""
        self.core.outside_bytes += change
        return self.core.outside_bytes

    def statistics(self) -> dict[str, int]:
        """Numbers for stats and metrics: see docs/storage.md for their names."""
        with self.core.lock:
            return {
                **self._upkeep.statistics(),
                "journal_bytes": self.journal.bytes,
                "journal_entries": len(self.journal.entries),
                "next_commit": self.journal.next_commit,
            }

    # -- bulk -----------------------------------------------------------------------------------

    def serve_requests(
        self,
        requests: bytes | memoryview,
        *,
        now: int,
        collections: Words | None = None,
        held: Bytes | None = None,
        mutation_tokens: bool = False,
        datatypes: bool = False,
        value_size_max: int = 20 * 1024 * 1024,
        max_ttl: int = 0,
    ) -> tuple[memoryview, int]:
        """Answer the longest prefix of plain requests; (joined replies, bytes consumed).

        Plain: GET, GETQ, GETK, GETKQ, SET, SETQ and NOOP with magic 80, to an active vbucket whose
        bulk service is not held back (`VBucket.hold_bulk`, prepares in flight). Stops before the
        first other request, and before one that needs the disk: the owner answers that one and
        calls again. ``collections``: keys carry their collection id (else they get the default's),
        and these ids, sorted, are plain. ``held``: a byte per vbucket, not 0 where the owner wants
        to see every request. ``now``: unix seconds. ``datatypes``: the connection understands
        JSON; values that are compressed or have xattrs stop the run. ``max_ttl``: longest life in
        seconds, 0 for any.
        """
        return self._requests.serve(
            requests,
            now=now,
            collections=collections,
            held=held,
            mutation_tokens=mutation_tokens,
            datatypes=datatypes,
            value_size_max=value_size_max,
            max_ttl=max_ttl,
        )

    @property
    def bulk_runs(self) -> int:
        """Calls of `serve_requests` so far; `bulk_counts` changes with them only."""
        return self._requests.runs

    @property
    def bulk_counts(self) -> list[int]:
        """Requests served in bulk so far: by opcode, then reads that hit and reads that missed."""
        counts: list[int] = self._requests.counts.tolist()
        return counts

    # -- small things kept with the bucket ------------------------------------------------------

    def get_property(self, name: str) -> object | None:
        """A JSON value the owner keeps with the bucket."""
        return self._properties.get(name)

    def set_property(self, name: str, value: object) -> None:
        """Keep a JSON value, durable with the next commit."""
        with self.core.structure:
            self._properties[name] = value
            self._changed_properties.add(name)
        self.core.wake.set()

    # -- end ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit, mark the stop as clean, let go of the files; idempotent."""
        self._committer.stop()
        with self.core.structure:
            if self.core.closed:
                return
            try:
                with self.core.lock:
                    for vbucket in self._vbuckets.values():
                        vbucket.record_changed = True
                self._marks = [(records.CLEAN_KEY, True)]
                self._commit(forced=True)
            finally:
                self._let_go()

    def abandon(self) -> None:
        """Let go of the files without committing, as a crash would."""
        self._committer.stop()
        with self.core.structure:
            if not self.core.closed:
                self._let_go()

    def _let_go(self) -> None:
        core = self.core
        with core.lock:
            core.closed = True
            lost = [callback for v in self._vbuckets.values() for callback in v.waiting.above(-1)]
        core.disk.close()
        for callback in lost:
            callback(False)

    def __enter__(self) -> Bucket:
        """The bucket itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()
