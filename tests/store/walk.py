"""A random walk over a bucket beside the dumb model, with readers that check what they get."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from headrace.errors import StoreFull
from headrace.store import (
    AT_REST,
    BackfillOutcome,
    Bucket,
    BucketSettings,
    Transform,
    VBucket,
)
from headrace.store.model import SEQNO_LIMIT
from headrace.wire.messages import (
    Abort,
    Commit,
    Deletion,
    Expiration,
    Mutation,
    Prepare,
    SystemEvent,
)
from headrace.wire.opcodes import SystemEventId, VBucketState
from tests.store.crash_disk import CrashDisk, Died
from tests.store.dumb_model import DumbVBucket, Fact
from tests.store.frames import check_chunk, seqno_of

VBUCKETS: Final = 2
SETTINGS: Final = BucketSettings(
    vbuckets=VBUCKETS,
    memory_quota=2 * 1024 * 1024,
    segment_bytes=64 * 1024,
    journal_bytes_max=64 * 1024,
    block_bytes=4 * 1024,
    checkpoint_items_max=20,
    rewind_seqnos=30,
)
PLAIN: Final = Transform(opaque=7, sync_writes=False)
SECOND: Final = 1_000_000_000


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 1_700_000_000 * SECOND

    def __call__(self) -> int:
        """Unix nanoseconds."""
        self.now += 1_000_000
        return self.now


class Receiver:
    """A consumer of one vbucket: holds what it was sent, checks it at every snapshot end."""

    def __init__(self, walk: Walk, number: int, transform: Transform) -> None:
        self._walk = walk
        self.number = number
        self._transform = transform
        self._restart()

    def _restart(self) -> None:
        self.state: dict[bytes, tuple[int, bytes]] = {}
        self._pending: dict[bytes, bytes] = {}
        self.read = 0
        self._seen: set[bytes] = set()
        self._generation = self._walk.generations[self.number]
        self._open()

    def _open(self) -> None:
        vbucket = self._walk.vbucket(self.number)
        self.cursor = vbucket.open_cursor("receiver", after=self.read)
        self.backfill = None
        if self.cursor.gap_end:
            # From disk a commit is always sent as the mutation it made.
            from_disk = replace(self._transform, commits=False)
            self.backfill = vbucket.backfill(after=self.read, transform=from_disk)
            self._seen = set()

    def lost_store(self) -> None:
        """The store was opened again: resume, or start again if history or a snapshot was lost."""
        whole = self._walk.generations[self.number] == self._generation and self.at_boundary
        if whole and self.read <= self._walk.models[self.number].high:
            self._open()
        else:
            self._restart()

    @property
    def at_boundary(self) -> bool:
        """Whether the receiver is between snapshots."""
        return self.backfill is None and self.cursor.at_end

    def step(self, limit: int) -> bool:
        """Take one chunk; whether there was one."""
        if self._walk.generations[self.number] != self._generation:
            self._restart()
        if self.backfill is not None:
            return self._step_disk(limit)
        if self._was_dropped():
            if not self.cursor.at_end:
                self._restart()
            else:
                self.cursor.close()
                self._open()
            return True
        if self.cursor.at_end:
            snapshot = self.cursor.snapshot(self._transform)
            if snapshot is None:
                return False
            assert self.read < snapshot.first <= snapshot.end
            self._seen = set()
            self._end = snapshot.end
            self._visible = snapshot.visible_end
            self._last = 0
        chunk = self.cursor.take(limit, self._transform)
        if chunk is None:
            assert self._was_dropped()
            return True
        for message in check_chunk(chunk):
            self._apply(message)
            self._last = seqno_of(message)
        self.read = chunk.read_seqno
        if self.cursor.at_end:
            assert self.read == self._end
            assert self._last == self._visible
            self._check(self._end)
        return True

    def _was_dropped(self) -> bool:
        return self.cursor.dropped

    def _step_disk(self, limit: int) -> bool:
        backfill = self.backfill
        assert backfill is not None
        chunk = backfill.read(limit)
        if chunk is not None:
            for message in check_chunk(chunk):
                self._apply(message)
            self.read = chunk.read_seqno
            return True
        if backfill.outcome is BackfillOutcome.COMPLETE:
            self.read = max(self.read, backfill.end)
            self._check(backfill.end)
            self.cursor.close()
            self._open()
        else:
            assert backfill.outcome in (BackfillOutcome.PURGED, BackfillOutcome.ROLLED_BACK)
            self._restart()
        return True

    def _apply(self, message: object) -> None:
        assert message.opaque == self._transform.opaque  # type: ignore[attr-defined]
        model = self._walk.models[self.number]
        seqno = seqno_of(message)  # type: ignore[arg-type]
        fact = model.fact(seqno)
        key = getattr(message, "key", b"")
        if not isinstance(message, (SystemEvent, Prepare, Abort)):
            assert key not in self._seen, "a snapshot names a key once"
            self._seen.add(key)
        if isinstance(message, Mutation):
            assert fact.kind in ("set", "commit")
            self.state[key] = (seqno, message.value)
            self._pending.pop(key, None)
        elif isinstance(message, (Deletion, Expiration)):
            assert fact.kind == ("delete" if isinstance(message, Deletion) else "expire")
            self.state.pop(key, None)
        elif isinstance(message, Prepare):
            self._pending[key] = message.value
        elif isinstance(message, Abort):
            self._pending.pop(key, None)
        elif isinstance(message, Commit):
            assert message.prepared_seqno == fact.prepared
            self.state[key] = (seqno, self._pending.pop(key))
        else:
            assert isinstance(message, SystemEvent)
            gone = fact.key[0]
            self.state = {k: v for k, v in self.state.items() if k[0] != gone}

    def _check(self, end: int) -> None:
        assert self.state == self._walk.models[self.number].state(end), f"at snapshot end {end}"


class Walk:
    """One bucket, its models and its readers, driven by a seed."""

    def __init__(self, seed: int, settings: BucketSettings = SETTINGS) -> None:
        self.random = random.Random(seed)
        self.clock = Clock()
        self.settings = settings
        self.disk = CrashDisk()
        self.models = [DumbVBucket() for _ in range(VBUCKETS)]
        self.generations = [0] * VBUCKETS
        self.persisted = [0] * VBUCKETS
        self.may_lose = [SEQNO_LIMIT] * VBUCKETS
        """Where a truncation under way would cut, should the machine die in the middle of it."""
        self.bucket = self._open()
        self.bucket.create_vbuckets(VBucketState.ACTIVE)
        self.receivers: list[Receiver] = []

    def _open(self) -> Bucket:
        return Bucket.open(
            None,
            self.settings,
            disk=self.disk,
            clock=self.clock,
            entropy=self.random.randbytes,
        )

    def vbucket(self, number: int) -> VBucket:
        """The vbucket with that number."""
        return self.bucket.vbucket(number)

    def add_receivers(self) -> None:
        """Readers with and without sync writes, on every vbucket."""
        for number in range(VBUCKETS):
            for transform in (AT_REST, PLAIN, Transform(commits=True)):
                self.receivers.append(Receiver(self, number, transform))

    # -- one step -------------------------------------------------------------------------------

    def step(self) -> None:
        """Do one random thing; survive a machine that dies and a disk that is full."""
        name, *_ = self.random.choices(list(STEPS), list(STEPS.values()))
        try:
            getattr(self, name)()
        except Died:
            self.crash()
        except StoreFull:
            if self.bucket.core.closed:
                self.crash()
        self.may_lose = [SEQNO_LIMIT] * VBUCKETS

    def _pick(self) -> tuple[int, VBucket, DumbVBucket, bytes]:
        number = self.random.randrange(VBUCKETS)
        model = self.models[number]
        collection = 0 if model.has_ended(9) else self.random.choice((0, 0, 0, 9))
        key = bytes([collection]) + b"k%d" % self.random.randrange(12)
        return number, self.vbucket(number), model, key

    def set(self) -> None:
        """Store a key."""
        _, vbucket, model, key = self._pick()
        if key in model.pending():
            return
        value = self.random.randbytes(self.random.choice((0, 3, 50, 900, 6000)))
        meta = vbucket.meta(key)
        change = vbucket.store(key, value, flags=5, expiry=self.random.choice((0, 2**31)))
        assert change.rev == (meta.rev if meta else vbucket.max_deleted_rev) + 1
        model.add(Fact(change.seqno, "set", key, value))

    def delete(self) -> None:
        """Delete a key, whether it is there or not."""
        _, vbucket, model, key = self._pick()
        if key in model.pending():
            return
        model.add(Fact(vbucket.delete(key).seqno, "delete", key))

    def expire(self) -> None:
        """Expire a key."""
        _, vbucket, model, key = self._pick()
        if key in model.state(model.high) and key not in model.pending():
            model.add(Fact(vbucket.expire(key).seqno, "expire", key))

    def prepare(self) -> None:
        """Begin a sync write."""
        _, vbucket, model, key = self._pick()
        if key not in model.pending():
            value = self.random.randbytes(20)
            model.add(Fact(vbucket.prepare(key, value, level=1).seqno, "prepare", key, value))

    def complete(self) -> None:
        """Commit or abort a sync write."""
        _, vbucket, model, _ = self._pick()
        pending = model.pending()
        if pending:
            key = self.random.choice(sorted(pending))
            if self.random.random() < 0.6:
                seqno = vbucket.commit_prepare(key).seqno
                model.add(Fact(seqno, "commit", key, prepared=pending[key]))
            else:
                seqno = vbucket.abort_prepare(key).seqno
                model.add(Fact(seqno, "abort", key, prepared=pending[key]))

    def collection(self) -> None:
        """End or begin collection 9."""
        _, vbucket, model, _ = self._pick()
        if any(key[0] == 9 for key in model.pending()):
            return
        event = SystemEventId.END_COLLECTION
        if model.has_ended(9) or self.random.random() < 0.3:
            event = SystemEventId.BEGIN_COLLECTION
        value = (1).to_bytes(8, "big") + (8).to_bytes(4, "big") + (9).to_bytes(4, "big")
        seqno = vbucket.system_event(
            event, version=0, subject=9, key=b"name" if event == 0 else b"", value=value
        ).seqno
        model.add(Fact(seqno, "begin" if event == 0 else "end", b"\x09"))

    def commit(self) -> None:
        """Make everything durable."""
        self.bucket.commit()
        self._note_persisted()

    def _note_persisted(self) -> None:
        for number, model in enumerate(self.models):
            assert self.vbucket(number).persisted_seqno == model.high
            self.persisted[number] = model.high

    def seal(self) -> None:
        """Move the journal into blocks."""
        self.bucket.seal()
        self._note_persisted()

    def compact(self) -> None:
        """Forget what may be forgotten."""
        self.bucket.compact(
            self.random.choice((None, 0, 1)), drop_deletes=self.random.random() < 0.5
        )
        self._note_persisted()

    def close_checkpoint(self) -> None:
        """Close a checkpoint by hand."""
        self._pick()[1].close_checkpoint()

    def read(self) -> None:
        """Let a reader take a chunk."""
        if self.receivers:
            self.random.choice(self.receivers).step(self.random.choice((1, 300, 5000, 100_000)))

    def restart(self) -> None:
        """Close and open again."""
        logs = [self.vbucket(number).failover_log for number in range(VBUCKETS)]
        self.bucket.close()
        self.disk = self.disk.reborn()
        self.bucket = self._open()
        assert not self.bucket.was_unclean
        assert logs == [self.vbucket(number).failover_log for number in range(VBUCKETS)]
        self._note_persisted()
        self.after_restart()

    def crash(self) -> None:
        """Go away without a word, and come back."""
        self.bucket.abandon()
        self.disk = self.disk.reborn()
        self.come_back()

    def come_back(self) -> None:
        """Open after a crash: what was durable is there, on a new branch."""
        self.bucket = self._open()
        for number, model in enumerate(self.models):
            vbucket = self.vbucket(number)
            durable = min(self.persisted[number], self.may_lose[number])
            assert durable <= vbucket.high_seqno <= model.high
            if vbucket.high_seqno < model.high or self.may_lose[number] < model.high:
                self.generations[number] += 1
            model.cut(vbucket.high_seqno)
            self.persisted[number] = vbucket.high_seqno
            # Dying after the last commit of a close is a clean stop.
            if self.bucket.was_unclean:
                assert vbucket.failover_log.newest.seqno == vbucket.high_seqno
        self.after_restart()

    def after_restart(self) -> None:
        """Everything is as the model says; readers go on."""
        self.check()
        for receiver in self.receivers:
            receiver.lost_store()

    def failover(self) -> None:
        """Lose the last few changes on purpose."""
        number, vbucket, model, _ = self._pick()
        to = max(vbucket.rewind_seqno, model.high - self.random.randrange(25))
        self.may_lose[number] = to
        log = vbucket.failover(to)
        assert log.newest.seqno == to
        self._lost(number, to)

    def rollback(self) -> None:
        """Roll back as a replica does."""
        number, vbucket, model, _ = self._pick()
        to = max(0, model.high - self.random.randrange(60))
        expected = to if to >= vbucket.rewind_seqno else 0
        self.may_lose[number] = expected
        reached = vbucket.rollback(to)
        assert reached == expected
        self._lost(number, reached)

    def _lost(self, number: int, to: int) -> None:
        model = self.models[number]
        if to < model.high:
            self.generations[number] += 1
            model.cut(to)
        for other in range(VBUCKETS):
            self.persisted[other] = self.vbucket(other).persisted_seqno
        assert self.vbucket(number).high_seqno == to

    # -- checks ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Every key of every vbucket is as the model says."""
        for number, model in enumerate(self.models):
            vbucket, living = self.vbucket(number), model.state(model.high)
            assert vbucket.high_seqno == model.high
            assert vbucket.item_count == len(living)
            for key, (seqno, value) in living.items():
                item = vbucket.get(key)
                assert item is not None
                assert (item.seqno, item.value, item.deleted) == (seqno, value, False)
            pending = {one.key: one.seqno for one in vbucket.all_pending()}
            assert pending == model.pending()

    def drain(self) -> None:
        """Let every reader come to its end, and look at its state there."""
        for receiver in self.receivers:
            for _ in range(10_000):
                if not receiver.step(100_000):
                    break
            else:
                raise AssertionError("a reader never came to its end")
            model = self.models[receiver.number]
            assert receiver.state == model.state(model.high)


STEPS: Final = {
    "set": 120,
    "delete": 25,
    "expire": 8,
    "prepare": 12,
    "complete": 14,
    "collection": 2,
    "commit": 20,
    "seal": 3,
    "compact": 2,
    "close_checkpoint": 4,
    "read": 90,
    "restart": 1,
    "crash": 1,
    "failover": 1,
    "rollback": 1,
}
