"""Random histories through a replica: whoever reads from it gets the truth at every snapshot end.

The world of tests/sim/test_producer.py with a second node whose copy of the vbucket follows the
first by a real `Replica`, haltingly: the link is cut anywhere, either node is restarted or loses
what it had not persisted, the first fails over, both purge, and now and then the second is promoted
as it is and the first follows it. Consumers read from whichever is the replica.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import pytest

from headrace.store import Bucket, Transform
from headrace.wire.codec import decode
from headrace.wire.dialect import Dialect
from headrace.wire.messages import AddStreamReply, Deletion, Expiration, Mutation
from headrace.wire.opcodes import VBucketState
from tests.node.replica_kit import Consumer as ReplicaEnd
from tests.node.replica_kit import Pair, frames_of, replica_host
from tests.node.stream_kit import Copy, Host, seqno_of
from tests.sim.test_producer import SEEDS, STEPS, Consumer, Model, World

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.wire.message import Message

CONNECTS_MAX = 50
KINDS = ("all", "fruit", "sync", "legacy")
DOCUMENTS = (Mutation, Deletion, Expiration)


def above(host: Host, seqno: int) -> list[Message]:
    """Every item that a node holds above a seqno."""
    host.bucket.commit()
    view = host.bucket.vbucket(0).backfill(after=seqno, transform=Transform())
    found: list[Message] = []
    while (chunk := view.read(1 << 20)) is not None:
        found += [decode(frame, Dialect.DCP_7) for frame in frames_of(chunk.data)]
    return found


class PairedWorld(World):
    """Consumers read from a replica that is fed, haltingly, by the active node."""

    def __init__(self, seed: int, path: Path | None) -> None:
        super().__init__(seed, path)
        self.replica_path = None if path is None else path.with_name("replica")
        self.replica = replica_host(self.replica_path, vbuckets=1)
        self.replica.manifest = self.host.manifest
        self.link: Pair | None = None
        self.consumers = [Consumer(kind, Copy()) for kind in KINDS]
        self.replica_model = Model()
        """What was true on the active node when the replica last heard of it."""

    def step(self) -> None:
        chance = self.rng.random()
        if chance < 0.35:
            self.feed()
        elif chance < 0.37 and self.replica_path is not None:
            self.reopen_replica(self.rng.choice([Bucket.close, Bucket.abandon]))
        elif chance < 0.38:
            self.swap()
        else:
            super().step()

    # -- the link ---------------------------------------------------------------------------------

    def connect_link(self) -> Pair:
        self.cut_link()
        self.link = Pair(self.host, ReplicaEnd(self.replica, bulk=self.rng.random() < 0.7))
        self.link.add()
        (reply,) = self.link.replies
        assert isinstance(reply, AddStreamReply), reply
        return self.link

    def cut_link(self) -> None:
        if self.link is not None:
            assert self.link.producer.closed_reason is None, self.link.producer.closed_reason
            replica = self.link.consumer.replica
            assert replica.closed_reason is None, replica.closed_reason
            self.link.close()
            self.link = None

    def feed(self) -> None:
        if self.link is None or not self.link.producer.streams or self.rng.random() < 0.1:
            self.connect_link()
        self.replica_model = deepcopy(self.model)
        assert self.link is not None
        self.link.carry(self.rng.choice([1, 100, 1000, 100_000]))
        chance = self.rng.random()
        if chance < 0.4:
            self.replica.bucket.commit()
        elif chance < 0.6:
            self.replica.bucket.seal()

    # -- accidents --------------------------------------------------------------------------------

    def reopen_replica(self, stop: Callable[[Bucket], None]) -> None:
        for consumer in self.consumers:
            consumer.disconnect()
        self.cut_link()
        stop(self.replica.bucket)
        manifest = self.replica.manifest
        self.replica = Host(Bucket.open(self.replica_path))
        self.replica.manifest = manifest

    def swap(self) -> None:
        """The replica is promoted, perhaps inside a snapshot; the active node follows it."""
        for consumer in self.consumers:
            consumer.disconnect()
        self.cut_link()
        whole = self.replica.bucket.vbucket(0).complete_seqno
        old = self.model
        self.model = deepcopy(self.replica_model)
        self.model.truncate(whole)
        self.replica.set_state(0, VBucketState.ACTIVE)
        for message in above(self.replica, whole):
            value = message.value if isinstance(message, Mutation) else None
            key = getattr(message, "key", b"") if isinstance(message, DOCUMENTS) else b""
            self.model.add(seqno_of(message), key, value)
        self.host.set_state(0, VBucketState.REPLICA)
        self.replica_model = old
        self.host, self.replica = self.replica, self.host
        self.path, self.replica_path = self.replica_path, self.path

    def fail_over(self) -> None:
        self.cut_link()
        vbucket = self.vbucket
        seqno = vbucket.unsettled.boundary(self.rng.randint(0, vbucket.high_seqno))
        if seqno >= max(1, vbucket.rewind_seqno):
            vbucket.failover(seqno)
            self.model.truncate(seqno)
            self.host.feed.tell(0)

    def promote(self) -> None:
        self.cut_link()
        super().promote()

    def _reopen(self, stop: Callable[[], None]) -> None:
        self.cut_link()
        super()._reopen(stop)

    def compact(self) -> None:
        for host in (self.host, self.replica):
            host.bucket.compact(drop_deletes=self.rng.random() < 0.5)

    # -- the readers ------------------------------------------------------------------------------

    def read(self) -> None:
        consumer = self.rng.choice(self.consumers)
        if consumer.peer is not None:
            consumer.read(self.replica_model, self.rng.choice([1, 100, 1000, 100_000]))

    def connect(self) -> None:
        consumer = self.rng.choice(self.consumers)
        if self.replica.bucket.vbucket(0).initial_disk_snapshot:
            return
        if consumer.peer is None or consumer.copy.ended is not None:
            consumer.disconnect()
            consumer.connect(self.replica, self.rng)

    def settle(self) -> None:
        for _ in range(CONNECTS_MAX):
            link = self.connect_link()
            link.settle()
            if link.producer.streams:
                break
        replica = self.replica.bucket.vbucket(0)
        assert replica.high_seqno == self.vbucket.high_seqno
        assert replica.complete_seqno == replica.high_seqno
        assert replica.failover_log == self.vbucket.failover_log
        assert replica.all_pending() == self.vbucket.all_pending()
        self.cut_link()
        active, self.host = self.host, self.replica
        self.host.bucket.commit()
        super().settle()
        self.host = active
        self.replica.bucket.close()


@pytest.mark.parametrize("disk", ["memory", "lmdb"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_replica_is_as_true_a_source_as_the_active_node(
    seed: int, disk: str, tmp_path: Path
) -> None:
    world = PairedWorld(seed, tmp_path / "bucket" if disk == "lmdb" else None)
    for _ in range(STEPS):
        world.step()
    world.settle()
    world.host.bucket.close()
