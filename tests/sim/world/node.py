"""A node of the simulation: the real store, sessions, producers and replicas, without a socket.

Everything a node does happens in events: bytes that arrive, a group commit, upkeep. A crash drops
the process's memory between two events or inside a commit; the disk's tables stay.
"""

from __future__ import annotations

from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.node.bucket_host import BucketHost
from headrace.node.cluster_map import Ports
from headrace.node.config import BucketConfig, NodeConfig
from headrace.node.replica import BULK_OPCODES
from headrace.node.replies import Later
from headrace.node.server import Node
from headrace.node.session import Session
from headrace.store import Bucket, BucketSettings
from headrace.wire.codec import decode, encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import HEADER_SIZE, FrameBuffer, body_lengths, cut
from headrace.wire.opcodes import Feature, Opcode, VBucketState
from tests.sim.world.core import EPOCH_NANOSECONDS, START_SECONDS, Situation, Timer, World
from tests.sim.world.disk import Crashed, SimulatedDisk, no_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.node.replies import Answer
    from headrace.store import VBucket
    from headrace.wire.frame import Frame
    from headrace.wire.message import Message, Request
    from tests.sim.world.network import End
    from tests.sim.world.truth import Truth, VBucketTruth

BUCKET = "default"
KEYS = 5
"""Keys per vbucket: few, so that versions supersede each other."""
SETTINGS = {
    "memory_quota": 4 << 20,
    "segment_bytes": 64 << 10,
    "journal_bytes_max": 64 << 10,
    "block_bytes": 4096,
    "rewind_seqnos": 8,
    "purge_age_seconds": 0,
}
CHECKPOINT_ITEMS = (4, 16)
"""Where checkpoints are long, a snapshot leaves out more than it sends."""
SLICES = (120, 400, 4096)
BUSY_THREADS = 0.2
"""Share of work for a thread that waits long for one: what it was meant for may be over then."""
_REQUEST = 0x80
_NOTHING: Mapping[bytes, int] = MappingProxyType({})


def keys_of(vbucket: int) -> list[bytes]:
    """The keys of a vbucket, as writers name them."""
    return [b"v%d-%d" % (vbucket, number) for number in range(KEYS)]


class ServerEnd:
    """A connection at the node: what `headrace.node.connection` is, in events."""

    def __init__(self, node: SimNode, end: End, name: str) -> None:
        self.node, self.world, self.name = node, node.world, name
        self.end_ = end
        end.owner = self
        assert node.process is not None
        self.session = Session(
            node.process,
            self,
            number=node.process.next_connection_number(),
            peer=name,
            address="127.0.0.1",
            encrypted=False,
            loopback=True,
        )
        self.is_closed = False
        self._held = bytearray()
        self._waiting: Later | None = None
        self._pumping = False
        self._tick: Timer | None = None
        node.ends.append(self)

    # -- network ---------------------------------------------------------------------------------

    def on_bytes(self, data: bytes) -> None:
        self._held += data
        self.node.guarded(self._turn)

    def on_lost(self, reason: str) -> None:
        self._close(reason)

    def _close(self, reason: str) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        if self._tick is not None:
            self._tick.cancel()
        if self._waiting is not None:
            self._waiting.forget()
        if self in self.node.ends:
            self.node.ends.remove(self)
        self.session.close()
        self.world.say(self.node.name, f"{self.name} is gone: {reason}")

    # -- the session's link ----------------------------------------------------------------------

    def call_soon(self, function: Callable[[], None]) -> None:
        self._later(0.0, function)

    def call_later(self, seconds: float, function: Callable[[], None]) -> Timer:
        return self._later(seconds, function)

    def _later(self, seconds: float, function: Callable[[], None]) -> Timer:
        life = self.node.life

        def run() -> None:
            if self.node.life == life:
                self.node.guarded(function)

        return self.world.at(seconds, run)

    def off_loop(self, function: Callable[[], object], then: Callable[[object], None]) -> None:
        def work() -> None:
            try:
                result = function()
            except Exception as error:  # noqa: BLE001 - handed to whoever asked, as a node does
                result = error
            self._later(self.world.delay(), lambda: then(result))

        is_busy = self.world.chance(BUSY_THREADS)
        self._later(self.world.delay(0.05, 0.6) if is_busy else self.world.delay(), work)

    def wake(self) -> None:
        if not self._pumping and not self.is_closed:
            self._pumping = True
            self._later(0.0, self._pump)

    def send(self, data: bytes) -> None:
        self.end_.send(bytes(data))

    def end(self, reason: str) -> None:
        """Close at once."""
        if not self.is_closed:
            self.end_.close()
            self._close(reason)

    # -- frames ----------------------------------------------------------------------------------

    def _turn(self) -> None:
        while not self.is_closed and self._waiting is None and not self.session.closing:
            if len(self._held) < HEADER_SIZE:
                break
            view = memoryview(bytes(self._held))
            if view[0] == _REQUEST and view[1] in BULK_OPCODES:
                used = self.session.receive_bulk(view)
                self.node.observe()
                if used:
                    del self._held[:used]
                    continue
            parts = body_lengths(view)
            size = HEADER_SIZE + parts[3]
            if len(view) < size:
                break
            frame = cut(view, 0, parts)
            del self._held[:size]
            self._note(frame)
            outcome = self.session.receive(frame)
            self.node.observe()
            if isinstance(outcome, Later):
                self._waiting = outcome
                outcome.then(partial(self._answered, frame))
            elif outcome:
                self.send(outcome)
        if self.session.closing and not self.is_closed:
            self.end(self.session.closing)
        elif self.session.stream_end is not None:
            self.wake()

    def _note(self, frame: Frame) -> None:
        """Count the stream requests that do not go to a vbucket's owner."""
        if frame.opcode != Opcode.STREAM_REQ or frame.is_reply or self.node.bucket is None:
            return
        copy = self.node.bucket.find(frame.vbucket)
        if copy is None or copy.state is not VBucketState.REPLICA:
            return
        self.world.count(Situation.REPLICA_ASKED)
        if copy.initial_disk_snapshot:
            self.world.count(Situation.REPLICA_ASKED_FILLING)
        elif is_inside(copy):
            self.world.count(Situation.REPLICA_ASKED_INSIDE)

    def _answered(self, frame: Frame, answer: Answer) -> None:
        self._waiting = None
        if not self.is_closed:
            self.send(self.session.finish(frame, answer))
            self.call_soon(self._turn)

    def _pump(self) -> None:
        self._pumping = False
        stream_end = self.session.stream_end
        if stream_end is None or self.is_closed:
            return
        if not self.end_.has_room:
            self.end_.when_room(self.wake)
            return
        now = self.session.monotonic
        self.send(stream_end.tick(now))
        parts = stream_end.pull_parts(self.world.random.choice(SLICES), now)
        for part in parts:
            self.send(bytes(part))
        if parts:
            self.wake()
        if stream_end.closed_reason is not None:
            self.end(stream_end.closed_reason)
            return
        due = stream_end.next_tick(now)
        if self._tick is not None:
            self._tick.cancel()
        self._tick = None if due is None else self._later(due - now, self._pump)


class SimNode:
    """One node: up or down, with its disk."""

    def __init__(
        self, world: World, truth: Truth, name: str, port: int, *, checkpoint_items: int
    ) -> None:
        self.world, self.truth, self.name, self.port = world, truth, name, port
        self.settings = BucketSettings(
            vbuckets=len(truth.vbuckets), checkpoint_items_max=checkpoint_items, **SETTINGS
        )
        self.tables = no_tables()
        self.process: Node | None = None
        self.bucket: Bucket | None = None
        self.host: BucketHost | None = None
        self.ends: list[ServerEnd] = []
        self.life = 0
        self.is_failed_over = False
        """Declared dead: what it comes back with is not asked for."""
        self.dies_at_commit = ""
        self.clock_skew = 0
        self._seen: dict[int, int] = {}
        """Vbucket -> high seqno when it was last looked at."""
        self._looked: dict[int, tuple[object, ...]] = {}
        """Vbucket -> what it was then: most frames change nothing."""
        self._followed: dict[int, int] = {}
        """Vbucket that is no owner's -> the newest branch of its log."""

    # -- life ------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self.process is not None

    def start(self) -> None:
        """Open what is on the disk and serve."""
        assert not self.is_up
        self.life += 1
        config = NodeConfig(
            port=self.port, buckets=(BucketConfig(name=BUCKET, settings=self.settings),)
        )
        self.dies_at_commit = ""
        disk = SimulatedDisk(self.tables, self._dies)
        self.bucket = Bucket.open(
            None, self.settings, clock=self._clock, entropy=self._entropy, disk=disk
        )
        self.host = BucketHost(config.buckets[0], self.bucket)
        process = Node(
            config,
            clock=lambda: self._clock() / 1e9,
            monotonic=lambda: self.world.now,
        )
        process.ports = Ports(plain=self.port, tls=None)
        process.hosts[BUCKET] = self.host
        self.host.on_map_change = self._push_map
        self.host.sync_writes.call_soon = self._soon
        self.process = process
        self._seen.clear()
        self._looked.clear()
        self._followed.clear()
        how = "after a crash" if self.bucket.was_unclean else ""
        self.world.say(self.name, f"starts {how}")
        for vbucket in self.bucket.vbuckets:
            if is_inside(vbucket):
                self.world.count(Situation.REPLICA_RESTARTED_INSIDE)
        self.observe()
        self._keep_time(self.life)

    def _clock(self) -> int:
        seconds = self.world.now - START_SECONDS
        return EPOCH_NANOSECONDS + int(seconds * 1e9) + self.clock_skew

    def _entropy(self, size: int) -> bytes:
        return self.world.random.randbytes(size)

    def _dies(self) -> str:
        dies, self.dies_at_commit = self.dies_at_commit, ""
        return dies

    def _soon(self, function: Callable[[], None]) -> None:
        life = self.life
        self.world.at(0.0, lambda: self.guarded(function) if self.life == life else None)

    def _push_map(self, host: BucketHost) -> None:
        for end in tuple(self.ends):
            end.session.push_map(host)

    def crash(self, why: str = "crashes") -> None:
        """Lose the process, and everything it had not committed."""
        if not self.is_up:
            return
        self.world.say(self.name, why)
        assert self.bucket is not None
        self.life += 1
        self.process = None
        for end in tuple(self.ends):
            end.end_.close()
            end.is_closed = True
        self.ends.clear()
        self.bucket.abandon()
        self.bucket = self.host = None

    def crash_in_commit(self) -> None:
        self.world.count(Situation.CRASH_IN_COMMIT)
        self.crash("crashes in a commit")

    def stop(self) -> None:
        """Stop cleanly."""
        if not self.is_up:
            return
        assert self.bucket is not None
        self.guarded(self._stop)

    def _stop(self) -> None:
        assert self.bucket is not None
        self.world.say(self.name, "stops")
        for end in tuple(self.ends):
            end.end("the node stops")
        self.bucket.close()
        self.observe()
        self.life += 1
        self.process = self.bucket = self.host = None

    def guarded(self, function: Callable[[], None]) -> None:
        """Do something that may kill the node, and see what it did."""
        if not self.is_up:
            return
        try:
            function()
        except Crashed:
            self.crash_in_commit()
            return
        self.observe()

    def _keep_time(self, life: int) -> None:
        """Commit now and then; seldom at once."""

        def commit() -> None:
            if self.life != life or not self.is_up:
                return
            self.guarded(self._commit)
            self._keep_time(life)

        self.world.at(self.world.random.choice((0.02, 0.1, 0.5)), commit)

    def _commit(self) -> None:
        assert self.bucket is not None
        if self.bucket.persistence:
            self.bucket.commit()

    # -- what others do to it --------------------------------------------------------------------

    def accept(self, end: End, name: str) -> ServerEnd:
        return ServerEnd(self, end, name)

    def ask(self, request: Request) -> list[Message] | None:
        """Answer a request of an administrator at once, None: not; may raise Crashed."""
        assert self.process is not None
        session = Session(
            self.process,
            _Nothing(),
            number=self.process.next_connection_number(),
            peer="manager",
            address="127.0.0.1",
            encrypted=False,
            loopback=True,
        )
        session.negotiate({Feature.JSON, Feature.COLLECTIONS})
        frames = FrameBuffer()
        frames.feed(encode(request, Dialect.DCP_7))
        (frame,) = frames
        outcome = session.receive(frame)
        if isinstance(outcome, Later):
            answers: list[Answer] = []
            outcome.then(answers.append)
            assert self.bucket is not None
            self.bucket.commit()
            if not answers:
                return None  # persistence is stopped: the manager would wait in vain
            outcome = session.finish(frame, answers[0])
        replies = FrameBuffer()
        replies.feed(outcome)
        found = [decode(one, Dialect.DCP_7) for one in replies]
        self.observe()
        return found

    # -- what is true ----------------------------------------------------------------------------

    def observe(self) -> None:
        """Tell the truth what this node, as an owner, accepted and persisted since last time.

        Called behind every frame: what a copy was given and what it accepted itself never come in
        one frame, not even when a takeover's last message releases requests that waited for it.
        """
        if self.bucket is None:
            return
        for vbucket in self.bucket.vbuckets:
            high, state = vbucket.high_seqno, vbucket.state
            looked = (state, high, vbucket.persisted_seqno, vbucket.failover_log)
            if self._looked.get(vbucket.id) == looked:
                continue
            self._looked[vbucket.id] = looked
            seen = min(self._seen.get(vbucket.id, high), high)
            self._seen[vbucket.id] = high
            branch = int(vbucket.failover_log.newest.uuid)
            if state is not VBucketState.ACTIVE:
                self._followed[vbucket.id] = branch
                continue
            truth = self.truth[vbucket.id]
            followed = self._followed.pop(vbucket.id, 0)
            if branch not in truth.logs:
                self._promoted(truth, vbucket, seen, followed)
            truth.learn(vbucket.failover_log)
            if high > seen:
                self._accepted(truth, vbucket, branch, seen, high)
            persisted = vbucket.persisted_seqno
            truth.persisted.update(
                (branch, seqno) for seqno in truth.changes.get(branch, ()) if seqno <= persisted
            )

    @classmethod
    def _promoted(cls, truth: VBucketTruth, vbucket: VBucket, seen: int, followed: int) -> None:
        """A new branch begins at the end of a whole snapshot; what is held above it is its own.

        ``followed`` is the branch the copy was given its items on. The new log does not name it if
        it begins above the last whole snapshot. Such a copy may have died before anybody saw it:
        then there are two branches to learn of.
        """
        end, branches = seen, [followed, *(int(entry.uuid) for entry in vbucket.failover_log)]
        known = next((branch for branch in branches if branch in truth.logs), 0)
        purged = truth.deletions(known, vbucket.purge_seqno)
        for entry in vbucket.failover_log:
            if int(entry.uuid) in truth.logs or end == 0:
                break
            cls._accepted(truth, vbucket, int(entry.uuid), int(entry.seqno), end, purged)
            end = int(entry.seqno)

    @staticmethod
    def _accepted(
        truth: VBucketTruth,
        vbucket: VBucket,
        branch: int,
        after: int,
        end: int,
        purged: Mapping[bytes, int] = _NOTHING,
    ) -> None:
        """An owner's changes above ``after``, up to ``end``.

        ``purged``: deletions it may have forgotten, as it may what it received.
        """
        news: list[tuple[int, bytes, bytes | None]] = []
        for key in keys_of(vbucket.id):
            item = vbucket.get(b"\0" + key)
            if item is not None and after < item.seqno <= end:
                news.append((item.seqno, key, None if item.deleted else bytes(item.value)))
            elif item is None and after < purged.get(key, 0) <= end:
                news.append((purged[key], key, None))
        for seqno, key, value in sorted(news, key=lambda change: change[0]):
            truth.accept(branch, seqno, key, value)

    def contents(self, number: int) -> dict[bytes, bytes]:
        """The living documents of a vbucket."""
        assert self.bucket is not None
        vbucket = self.bucket.vbucket(number)
        found = {}
        for key in keys_of(number):
            item = vbucket.get(b"\0" + key)
            if item is not None and not item.deleted:
                found[key] = bytes(item.value)
        return found


def is_inside(vbucket: VBucket) -> bool:
    """Whether a copy holds items of a snapshot that is not whole."""
    told, high = vbucket.received, vbucket.high_seqno
    return told is not None and told.complete_before < high < told.end


class _Nothing:
    """The link of a session that answers at once."""

    def call_soon(self, function: Callable[[], None]) -> None:
        function()

    def call_later(self, seconds: float, function: Callable[[], None]) -> Timer:
        del seconds
        return Timer(function)

    def off_loop(self, function: Callable[[], object], then: Callable[[object], None]) -> None:
        then(function())

    def wake(self) -> None:
        pass

    def send(self, data: bytes) -> None:
        raise AssertionError(f"{len(data)} bytes nobody asked for")

    def end(self, reason: str) -> None:
        raise AssertionError(reason)
