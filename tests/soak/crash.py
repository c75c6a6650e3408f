"""kill -9 under write load, again and again, on the same files.

Each round: a node process starts on what the last one left; writers write and delete, some with
durability, someone compacts, someone asks what is persisted, consumers stream; then the process is
killed at a random moment. The next process answers without load, and this must hold:

- what was reported persisted is there: the key's version is that one or a later one;
- a write that was answered as durable is there, or a later one of its key; its seqno may be another
  one, because what is durable is the prepare, which the next process commits anew;
- every version there is one that somebody wrote;
- within one branch of one vbucket no seqno ever stands for two different changes, whoever saw it:
  writers by their mutation tokens, consumers by their streams;
- the branch begun after the crash starts at or above everything that was reported persisted;
- every consumer, rolled back or not, arrives at the same state as one that starts from nothing.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

from headrace.wire import admin, kv, messages
from headrace.wire.frame import FrameInfo
from headrace.wire.message import ErrorReply
from headrace.wire.opcodes import DurabilityLevel, Feature, FrameInfoId, Status
from tests.node.client import Client
from tests.soak.copy import ATTEMPTS_MAX, Copy
from tests.soak.node_process import VBUCKETS, Process, Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.soak.copy import Event

KEYS: Final = 300
DURABLE_KEYS: Final = 20
WRITERS: Final = 2
FLIGHT: Final = 16
"""Writes sent before their replies are read."""
FLIGHTS_BEFORE_RETURN: Final = 40
PAUSE_SECONDS: Final = 0.002
LOST: Final = (EOFError, ConnectionError, TimeoutError, OSError)
CHOICES: Final = (
    Settings(commit_delay=0.05),
    Settings(commit_delay=0.002, journal_kb=64, block_kb=16, segment_kb=64, quota_mb=4),
    Settings(commit_delay=0.02, journal_kb=256, block_kb=64, segment_kb=256, quota_mb=8),
    Settings(),
)

Place = tuple[int, int, int]
"""Vbucket, branch, seqno."""


@dataclass
class Ledger:
    """Everything anybody was told, over all rounds."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    changes: dict[Place, tuple[bytes, bytes | None]] = field(default_factory=dict)
    """What stands at a place of a history."""
    written: set[tuple[int, bytes, bytes | None]] = field(default_factory=set)
    """What was sent, answered or not."""
    promised: dict[tuple[int, bytes], int] = field(default_factory=dict)
    """The last seqno of a key that was reported persisted."""
    durable: dict[tuple[int, bytes], int] = field(default_factory=dict)
    """The last number written to a key with durability, and answered."""
    persisted: dict[int, int] = field(default_factory=dict)
    """The last seqno of a vbucket that was reported persisted."""
    acknowledged: dict[tuple[int, int], list[tuple[int, bytes]]] = field(default_factory=dict)
    """Vbucket, branch -> seqnos and keys that were answered and not yet reported persisted."""

    def told(self, place: Place, key: bytes, value: bytes | None) -> None:
        """Somebody saw a change at a place: everybody must see the same."""
        with self.lock:
            before = self.changes.setdefault(place, (key, value))
        assert before == (key, value), f"{place} is {before} and {(key, value)}"

    def answered(self, place: Place, key: bytes) -> None:
        """A write was answered."""
        vbucket, branch, seqno = place
        with self.lock:
            self.acknowledged.setdefault((vbucket, branch), []).append((seqno, key))

    def reported(self, vbucket: int, branch: int, seqno: int) -> None:
        """The node said that everything up to a seqno is persisted."""
        with self.lock:
            self.persisted[vbucket] = max(self.persisted.get(vbucket, 0), seqno)
            waiting = self.acknowledged.get((vbucket, branch), [])
            left = []
            for one in waiting:
                if one[0] <= seqno:
                    place = (vbucket, one[1])
                    self.promised[place] = max(self.promised.get(place, 0), one[0])
                else:
                    left.append(one)
            self.acknowledged[vbucket, branch] = left


class Soak:
    """Rounds of killing on one directory."""

    def __init__(self, data: Path, seed: int) -> None:
        """Begin with nothing."""
        self.data, self.seed = data, seed
        self.random = Random(seed)
        self.ledger = Ledger()
        self.copies = [Copy(number) for number in range(VBUCKETS)]
        self.rounds = 0
        self.durable_writes = 0
        self.saw_more = 0
        """Rounds after which a consumer had seen what was lost."""
        self._stop = threading.Event()
        self._failures: list[BaseException] = []

    # -- one round -------------------------------------------------------------------------------

    def round(self) -> None:
        """Load a node, kill it, and check what the next one has."""
        settings = self.random.choice(CHOICES)
        process = Process(self.data, settings)
        try:
            self._load(process.port, self.random.uniform(0.05, 0.8), process)
        finally:
            process.kill()
        self.rounds += 1
        process = Process(self.data, self.random.choice(CHOICES))
        try:
            self._check(process.port)
        except (AssertionError, *LOST) as error:
            raise AssertionError(
                f"seed {self.seed}, round {self.rounds}: {error!r}\n{process.tail()}"
            ) from error
        finally:
            # Half of the checks end with a kill, too: a node that nobody wrote to.
            if self.random.random() < 0.5:
                process.kill()
            process.stop()

    def _load(self, port: int, seconds: float, process: Process) -> None:
        self._stop.clear()
        work: list[Callable[[int, Random], None]] = [
            *(self._write for _ in range(WRITERS)),
            self._write_durably,
            self._observe,
            self._compact,
            self._consume,
        ]
        threads = [
            threading.Thread(
                target=self._run, args=(one, port, Random(self.random.getrandbits(32)))
            )
            for one in work
        ]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        process.kill()
        self._stop.set()
        for thread in threads:
            thread.join(30.0)
            assert not thread.is_alive()
        if self._failures:
            raise AssertionError(f"seed {self.seed}, round {self.rounds + 1}") from self._failures[
                0
            ]

    def _run(self, work: Callable[[int, Random], None], port: int, random: Random) -> None:
        try:
            work(port, random)
        except LOST:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again on the main thread
            self._failures.append(error)

    # -- load ------------------------------------------------------------------------------------

    def _request(self, random: Random) -> tuple[kv.Set | kv.Delete, bytes | None]:
        vbucket, key = random.randrange(VBUCKETS), b"k%d" % random.randrange(KEYS)
        value = None if random.random() < 0.2 else random.randbytes(8).hex().encode() * 8
        with self.ledger.lock:
            self.ledger.written.add((vbucket, key, value))
        if value is None:
            return kv.Delete(key=key, vbucket=vbucket), None
        return kv.Set(key=key, value=value, vbucket=vbucket), value

    def _write(self, port: int, random: Random) -> None:
        with Client(port) as client:
            client.hello(Feature.MUTATION_SEQNO)
            while not self._stop.is_set():
                self._fly(client, random)
                time.sleep(PAUSE_SECONDS)

    def _fly(self, client: Client, random: Random) -> None:
        flight = [self._request(random) for _ in range(FLIGHT)]
        client.send(*(request for request, _ in flight))
        for request, value in flight:
            place = self._take_reply(client, request, value)
            if place is not None:
                self.ledger.answered(place, request.key)

    def _write_durably(self, port: int, random: Random) -> None:
        level = DurabilityLevel.PERSIST_TO_MAJORITY
        infos = (FrameInfo(FrameInfoId.DURABILITY, bytes([level])),)
        with Client(port) as client:
            client.hello(Feature.MUTATION_SEQNO, Feature.ALT_REQUEST, Feature.SYNC_REPLICATION)
            while not self._stop.is_set():
                vbucket, key = random.randrange(VBUCKETS), b"d%d" % random.randrange(DURABLE_KEYS)
                self.durable_writes += 1
                value = b"%d" % self.durable_writes
                with self.ledger.lock:
                    self.ledger.written.add((vbucket, key, value))
                request = kv.Set(key=key, value=value, vbucket=vbucket, frame_infos=infos)
                client.send(request)
                if self._take_reply(client, request, value) is not None:
                    self.ledger.durable[vbucket, key] = self.durable_writes

    def _take_reply(
        self, client: Client, request: kv.Set | kv.Delete, value: bytes | None
    ) -> Place | None:
        """Where the write stands; None when it was refused."""
        reply = client.receive()
        if isinstance(reply, ErrorReply):
            allowed = {Status.KEY_ENOENT, Status.SYNC_WRITE_IN_PROGRESS, Status.ETMPFAIL}
            assert reply.status in allowed | {Status.ENOMEM, Status.SYNC_WRITE_AMBIGUOUS}, reply
            return None
        assert isinstance(reply, kv.SetReply | kv.DeleteReply), reply
        assert reply.vb_uuid is not None
        assert reply.seqno is not None
        place = (request.vbucket, reply.vb_uuid, reply.seqno)
        self.ledger.told(place, request.key, value)
        return place

    def _observe(self, port: int, random: Random) -> None:
        with Client(port) as client:
            while not self._stop.is_set():
                vbucket = random.randrange(VBUCKETS)
                log = client.ask(
                    messages.FailoverLogRequest(vbucket=vbucket), messages.FailoverLogReply
                )
                branch = log.failover_log[0].uuid
                ask = admin.ObserveSeqno(vbucket=vbucket, vb_uuid=branch)
                reply = client.ask(ask, admin.ObserveSeqnoReply)
                self.ledger.reported(vbucket, branch, reply.persisted_seqno)
                if random.random() < 0.3 and reply.high_seqno > reply.persisted_seqno:
                    wait = admin.SeqnoPersistence(vbucket=vbucket, seqno=reply.high_seqno)
                    client.ask(wait, admin.SeqnoPersistenceReply)
                    self.ledger.reported(vbucket, branch, reply.high_seqno)

    def _compact(self, port: int, random: Random) -> None:
        with Client(port) as client:
            while not self._stop.is_set():
                time.sleep(random.uniform(0.0, 0.2))
                vbucket = random.randrange(VBUCKETS)
                client.ask(admin.CompactDb(vbucket=vbucket), admin.CompactDbReply)

    def _consume(self, port: int, random: Random) -> None:
        del random
        with Client(port) as client:
            client.open_producer(b"soak")
            for copy in self.copies:
                subscribe(client, copy, self.copies, self._seen)
            while True:
                take(client, self.copies, self._seen)

    def _seen(self, copy: Copy, event: Event) -> None:
        branch = copy.branch_of(event.seqno)
        if branch:
            self.ledger.told((copy.vbucket, branch, event.seqno), event.key, event.value)

    # -- afterwards ------------------------------------------------------------------------------

    def _check(self, port: int) -> None:
        if self.random.random() < 0.5:
            # The new branch outgrows what consumers saw of the old one before they return.
            with Client(port) as client:
                client.hello(Feature.MUTATION_SEQNO)
                for _ in range(FLIGHTS_BEFORE_RETURN):
                    self._fly(client, self.random)
        with Client(port) as client:
            client.open_producer(b"soak-check")
            fresh = [Copy(number) for number in range(VBUCKETS)]
            highs = {number: self._high(client, number) for number in range(VBUCKETS)}
            for copies in (fresh, self.copies):
                before = sum(copy.rollbacks for copy in copies)
                for copy in copies:
                    subscribe(client, copy, copies, self._seen, end=highs[copy.vbucket])
                while not all(copy.ended for copy in copies):
                    take(client, copies, self._seen)
                self.saw_more += copies is self.copies and before < sum(
                    copy.rollbacks for copy in copies
                )
            for copy, other in zip(self.copies, fresh, strict=True):
                self._check_vbucket(copy, other)

    def _high(self, client: Client, vbucket: int) -> int:
        log = client.ask(messages.GetFailoverLog(vbucket=vbucket), messages.GetFailoverLogReply)
        newest = log.failover_log[0]
        promised = self.ledger.persisted.get(vbucket, 0)
        assert newest.seqno >= promised, (
            f"vbucket {vbucket}: the new branch begins at {newest.seqno}, "
            f"{promised} was reported persisted"
        )
        ask = admin.ObserveSeqno(vbucket=vbucket, vb_uuid=newest.uuid)
        return client.ask(ask, admin.ObserveSeqnoReply).high_seqno

    def _check_vbucket(self, copy: Copy, fresh: Copy) -> None:
        number, there = copy.vbucket, fresh.state()
        for (vbucket, key), seqno in self.ledger.promised.items():
            if vbucket == number:
                assert key in there, f"vbucket {number}: {key!r} at {seqno} was promised"
                assert there[key][0] >= seqno, f"vbucket {number}: {key!r} at {seqno} was promised"
        for (vbucket, key), write in self.ledger.durable.items():
            if vbucket == number:
                _, value = there.get(key, (0, None))
                assert value is not None, f"vbucket {number}: {key!r} was durable"
                assert int(value) >= write, f"vbucket {number}: {key!r} = {write} was durable"
        for key, (_, value) in there.items():
            assert (number, key, value) in self.ledger.written, f"nobody wrote {key!r}: {value!r}"
        mine = copy.state()
        # A key that was deleted before anyone looked again may be unknown to either.
        different = {
            key: (mine.get(key), there.get(key))
            for key in mine.keys() | there.keys()
            if mine.get(key, (0, None))[1] != there.get(key, (0, None))[1]
        }
        assert not different, f"vbucket {number}: the consumer differs: {different}"


def subscribe(
    client: Client,
    copy: Copy,
    copies: list[Copy],
    seen: Callable[[Copy, Event], None],
    *,
    end: int | None = None,
) -> None:
    """Ask for the stream of one of the copies until it is accepted, going back as told."""
    for _ in range(ATTEMPTS_MAX):
        client.send(copy.request() if end is None else copy.request(max(end, copy.seqno)))
        while True:
            reply = client.receive()
            if isinstance(reply, messages.StreamRequestReply | messages.RollbackReply | ErrorReply):
                break
            # Streams that were accepted before already talk.
            deliver(reply, copies, seen)
        if isinstance(reply, messages.StreamRequestReply):
            copy.log = reply.failover_log
            return
        assert isinstance(reply, messages.RollbackReply), reply
        copy.roll_back(reply.rollback_seqno)
    raise AssertionError(f"vbucket {copy.vbucket} is rolled back for ever")


def take(client: Client, copies: list[Copy], seen: Callable[[Copy, Event], None]) -> None:
    """Take one message for whom it is."""
    deliver(client.receive(), copies, seen)


def deliver(message: object, copies: list[Copy], seen: Callable[[Copy, Event], None]) -> None:
    """Give a stream's message to its copy."""
    assert isinstance(
        message,
        messages.SnapshotMarker | messages.Mutation | messages.Deletion | messages.StreamEnd,
    ), message
    for copy in copies:
        if copy.vbucket == message.vbucket:
            event = copy.receive(message)
            if event is not None:
                seen(copy, event)
