"""Random histories against a dumb model: every stream is legal, every snapshot end is the truth.

A vbucket is written, persisted, compacted, restarted, crashed and failed over at random while
consumers with random filters, windows and patience connect, read, drop off inside snapshots and
come back with what they hold. The model is a list of changes; the truth at a seqno is what
replaying the list up to it gives. A consumer's state must equal it at every snapshot end.
"""

from __future__ import annotations

import os
import random
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from headrace.node.producer_context import ProducerSettings
from headrace.store import Bucket
from headrace.wire.messages import BufferAck, RollbackReply, StreamRequestReply
from headrace.wire.opcodes import Feature, OpenFlag, StreamFlag, VBucketState
from tests.node.stream_kit import Copy, Host, Peer, make_host

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 120
SEEDS = int(os.environ.get("HEADRACE_SEEDS", "25"))
KEYS = 12
ROLLBACKS_MAX = 50
FRUIT = 9
MANIFEST = {
    "uid": "1",
    "scopes": [
        {
            "name": "_default",
            "uid": "0",
            "collections": [{"name": "_default", "uid": "0"}, {"name": "fruit", "uid": "9"}],
        }
    ],
}


@dataclass
class Model:
    """A vbucket as a list of (seqno, key, value); None is a delete, key b"" changes nothing."""

    changes: list[tuple[int, bytes, bytes | None]] = field(default_factory=list)

    def add(self, seqno: int, key: bytes, value: bytes | None) -> None:
        assert not self.changes or seqno > self.changes[-1][0]
        self.changes.append((seqno, key, value))

    def truncate(self, seqno: int) -> None:
        self.changes = [change for change in self.changes if change[0] <= seqno]

    def at(self, seqno: int) -> dict[bytes, bytes]:
        state: dict[bytes, bytes] = {}
        for number, key, value in self.changes:
            if number > seqno or not key:
                continue
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
        return state


@dataclass
class Consumer:
    """One consumer: what it is entitled to, what it holds, its connection if there is one."""

    kind: str
    copy: Copy = field(default_factory=Copy)
    boundaries: dict[int, Copy] = field(default_factory=dict)
    peer: Peer | None = None

    def expected(self, model: Model, seqno: int) -> dict[bytes, bytes]:
        state = model.at(seqno)
        if self.kind == "legacy":
            return {key[1:]: value for key, value in state.items() if key[0] == 0}
        if self.kind == "fruit":
            return {key: value for key, value in state.items() if key[0] == FRUIT}
        return state

    def connect(self, host: Host, rng: random.Random) -> None:
        controls = {"connection_buffer_size": str(rng.choice([0, 60, 300, 5000]))}
        if self.kind == "sync":
            controls["enable_sync_writes"] = "true"
            if rng.random() < 0.5:
                controls["consumer_name"] = "b"
        features = [] if self.kind in ("legacy",) else [Feature.COLLECTIONS]
        if features:
            controls["enable_noop"] = "true"
        self.peer = Peer(
            host,
            features=features,
            flags=OpenFlag.INCLUDE_DELETE_TIMES,
            controls=controls,
            name=self.kind.encode(),
            settings=ProducerSettings(),
        )
        self._request(rng)

    def _request(self, rng: random.Random) -> None:
        assert self.peer is not None
        value = b'{"collections":["9"]}' if self.kind == "fruit" else b""
        flags = rng.choice([0, 0, StreamFlag.TO_LATEST, StreamFlag.DISK_ONLY])
        for _ in range(ROLLBACKS_MAX):
            copy = self.copy
            reply = self.peer.request(
                0, copy.seqno, uuid=copy.uuid, snapshot=copy.snapshot, flags=flags, value=value
            )
            if isinstance(reply, StreamRequestReply):
                copy.uuid = reply.failover_log[0].uuid
                copy.ended, copy.marker = None, None
                copy.keys.clear()
                return
            if not isinstance(reply, RollbackReply):
                # DISK_ONLY below what we hold: the range is refused, ask without it.
                assert flags, reply
                flags = 0
                continue
            self._roll_back(reply.rollback_seqno)
        raise AssertionError("rolled back for ever")

    def _roll_back(self, seqno: int) -> None:
        assert seqno < self.copy.seqno or seqno == 0
        self.boundaries = {at: copy for at, copy in self.boundaries.items() if at <= seqno}
        best = max(self.boundaries, default=0)
        if best == self.copy.seqno:  # the branch is unknown: nothing we hold is proven
            best, self.boundaries = 0, {}
        uuid = self.copy.uuid if best else 0
        fresh = Copy(of_replica=self.copy.of_replica)
        self.copy = deepcopy(self.boundaries[best]) if best else fresh
        self.copy.uuid = uuid

    def read(self, model: Model, budget: int) -> bool:
        """Take what the producer sends in one pull; whether anything came."""
        assert self.peer is not None
        messages = self.peer.pull(budget)
        for message in messages:
            if self.copy.receive(message):
                boundary = truth = self.copy.boundary
                purge = self.peer.host.bucket.vbucket(0).purge_seqno
                if self.kind == "legacy" and self.copy.state != self.expected(model, boundary):
                    # It cannot be told of a seqno without an item: where the last tombstones were
                    # purged, what it has is the state at their end (and a return is rolled back).
                    truth = max(boundary, purge)
                assert self.copy.state == self.expected(model, truth), f"at {boundary}"
                self.boundaries[boundary] = deepcopy(self.copy)
        return bool(messages)

    def catch_up(self, model: Model) -> None:
        """Read, acknowledging everything, until nothing comes."""
        assert self.peer is not None
        for _ in range(10_000):
            wakes = self.peer.session.wakes
            outstanding = self.peer.producer.window.outstanding
            if outstanding:
                self.peer.tell(BufferAck(ack_bytes=outstanding))
                wakes = self.peer.session.wakes
            if not self.read(model, 4096) and wakes == self.peer.session.wakes:
                return
        raise AssertionError("never caught up")

    def disconnect(self) -> None:
        if self.peer is not None:
            self.peer.producer.close()
            self.peer = None


class World:
    """A host, its model and its consumers, driven by one random number generator."""

    def __init__(self, seed: int, path: Path | None) -> None:
        self.rng = random.Random(seed)
        self.path = path
        self.host = make_host(
            path, vbuckets=1, checkpoint_items_max=self.rng.choice([3, 20, 10_000])
        )
        self.model = Model()
        self.host.set_manifest(MANIFEST)
        self.model.add(1, b"", None)
        kinds = ["legacy", "all", "fruit", "sync"]
        self.consumers = [Consumer(kind) for kind in kinds]

    @property
    def vbucket(self):  # type: ignore[no-untyped-def] # noqa: ANN201 - found anew after a restart
        return self.host.bucket.vbucket(0)

    def step(self) -> None:
        actions = [
            (self.write, 30),
            (self.durable, 6),
            (self.commit, 8),
            (self.tidy, 6),
            (self.compact, 3),
            (self.fail_over, 2),
            (self.promote, 2),
            (self.connect, 12),
            (self.read, 40),
            (self.acknowledge, 12),
            (self.disconnect, 4),
            (self.drop_cursors, 3),
        ]
        if self.path is not None:
            actions += [(self.restart, 2), (self.crash, 2)]
        (action,) = self.rng.choices(
            [one for one, _ in actions], weights=[weight for _, weight in actions]
        )
        action()

    def key(self) -> bytes:
        return self.rng.choice([b"\0", b"\x09"]) + b"k%d" % self.rng.randrange(KEYS)

    def write(self) -> None:
        for _ in range(self.rng.randrange(1, 8)):
            key = self.key()
            if self.vbucket.pending(key) is not None:
                continue
            kind = self.rng.random()
            if kind < 0.7:
                value = b"%d" % self.rng.randrange(10**9) * self.rng.choice([1, 30])
                self.model.add(self.vbucket.store(key, value).seqno, key, value)
            elif kind < 0.9:
                self.model.add(self.vbucket.delete(key).seqno, key, None)
            else:
                self.model.add(self.vbucket.expire(key).seqno, key, None)

    def durable(self) -> None:
        key = self.key()
        if self.vbucket.pending(key) is None:
            value = b"d%d" % self.rng.randrange(1000)
            self.model.add(self.vbucket.prepare(key, value, level=1).seqno, b"", None)
        prepared = self.vbucket.pending(key)
        if self.rng.random() < 0.5:
            self.model.add(self.vbucket.commit_prepare(key).seqno, key, prepared.value)
        elif self.rng.random() < 0.5:
            self.model.add(self.vbucket.abort_prepare(key).seqno, b"", None)

    def commit(self) -> None:
        self.host.bucket.commit()

    def tidy(self) -> None:
        self.rng.choice(
            [self.host.bucket.seal, self.vbucket.close_checkpoint, self.host.bucket.maintain]
        )()

    def compact(self) -> None:
        self.host.bucket.compact(drop_deletes=self.rng.random() < 0.5)

    def fail_over(self) -> None:
        vbucket = self.vbucket
        low = max(1, vbucket.rewind_seqno)
        if low > vbucket.high_seqno:
            return
        seqno = self.rng.randint(low, vbucket.high_seqno)
        vbucket.failover(seqno)
        self.model.truncate(seqno)
        self.host.feed.tell(0)

    def promote(self) -> None:
        self.vbucket.set_state(VBucketState.REPLICA)
        self.host.feed.tell(0)
        self.vbucket.set_state(VBucketState.ACTIVE)
        self.host.feed.tell(0)

    def restart(self) -> None:
        self._reopen(self.host.bucket.close)

    def crash(self) -> None:
        persisted = self.vbucket.persisted_seqno
        self._reopen(self.host.bucket.abandon)
        assert self.vbucket.high_seqno == persisted
        self.model.truncate(persisted)

    def _reopen(self, stop) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
        for consumer in self.consumers:
            consumer.disconnect()
        manifest = self.host.manifest
        stop()
        self.host = Host(Bucket.open(self.path))
        self.host.manifest = manifest

    def connect(self) -> None:
        consumer = self.rng.choice(self.consumers)
        ended = consumer.copy.ended is not None
        if consumer.peer is None or ended:
            consumer.disconnect()
            consumer.connect(self.host, self.rng)

    def read(self) -> None:
        consumer = self.rng.choice(self.consumers)
        if consumer.peer is not None:
            consumer.read(self.model, self.rng.choice([1, 100, 1000, 100_000]))

    def acknowledge(self) -> None:
        consumer = self.rng.choice(self.consumers)
        if consumer.peer is not None:
            size = self.rng.randint(0, consumer.peer.producer.window.outstanding)
            consumer.peer.tell(BufferAck(ack_bytes=size))

    def disconnect(self) -> None:
        self.rng.choice(self.consumers).disconnect()

    def drop_cursors(self) -> None:
        for consumer in self.consumers:
            if consumer.peer is not None and self.rng.random() < 0.5:
                for stream in consumer.peer.producer.streams.values():
                    stream.drop_cursor()
                consumer.peer.producer.vbucket_changed(0)

    def settle(self) -> None:
        """Everyone catches up; everyone has the truth."""
        for consumer in self.consumers:
            consumer.disconnect()
            consumer.connect(self.host, self.rng)
            consumer.catch_up(self.model)
            if consumer.copy.ended is not None:
                consumer.disconnect()
                while consumer.peer is None or consumer.copy.ended is not None:
                    consumer.disconnect()
                    consumer.connect(self.host, self.rng)
                    consumer.catch_up(self.model)
            assert consumer.copy.marker is None, "a snapshot was left unfinished"
            assert consumer.copy.state == consumer.expected(self.model, self.vbucket.high_seqno)
            consumer.disconnect()


@pytest.mark.parametrize("disk", ["memory", "lmdb"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_stream_is_legal_and_every_snapshot_end_is_the_truth(
    seed: int, disk: str, tmp_path: Path
) -> None:
    world = World(seed, tmp_path / "bucket" if disk == "lmdb" else None)
    for _ in range(STEPS):
        world.step()
    world.settle()
    world.host.bucket.close()
