"""Durable writes with replicas: who must have what, in every order it can come."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import TYPE_CHECKING

import pytest

from headrace.node import sync_writes
from headrace.node.refusal import Refusal
from headrace.node.sync_writes import ALONE, SyncWrites, Topology, majority, read_topology
from headrace.store import Bucket, BucketSettings, Change
from headrace.wire.messages import SnapshotMarker
from headrace.wire.opcodes import DurabilityLevel, Status, StreamFlag, VBucketState
from tests.node.stream_kit import Host, Peer, make_host, only, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MAJORITY = DurabilityLevel.MAJORITY
ON_ACTIVE = DurabilityLevel.MAJORITY_AND_PERSIST_ON_ACTIVE
PERSIST = DurabilityLevel.PERSIST_TO_MAJORITY
SETTINGS = BucketSettings(vbuckets=2)


@dataclass
class Writer:
    """Makes durable writes in vbucket 0 and remembers what came of each."""

    bucket: Bucket
    syncs: SyncWrites
    outcomes: dict[bytes, Change | str] = field(default_factory=dict)
    seqnos: dict[bytes, int] = field(default_factory=dict)

    def write(self, name: str, level: int = MAJORITY) -> int:
        key = b"\0" + name.encode()
        vbucket = self.bucket.vbucket(0)
        self.syncs.check(0)
        prepared = vbucket.prepare(key, b"v-" + name.encode(), level=level)

        def done(outcome: Change | str) -> None:
            assert key not in self.outcomes, "answered once"
            self.outcomes[key] = outcome

        self.seqnos[key] = prepared.seqno
        self.syncs.begin(vbucket, prepared, key=key, level=level, done=done)
        return prepared.seqno

    @property
    def committed(self) -> set[str]:
        return {
            key[1:].decode() for key, said in self.outcomes.items() if not isinstance(said, str)
        }

    @property
    def ambiguous(self) -> set[str]:
        return {key[1:].decode() for key, said in self.outcomes.items() if isinstance(said, str)}


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    """A bucket on disk; nothing is persisted unless a test commits."""
    with Bucket.open(tmp_path / "bucket", SETTINGS) as bucket:
        bucket.create_vbuckets(VBucketState.ACTIVE)
        yield Writer(bucket, SyncWrites(bucket))


@pytest.fixture
def host() -> Iterator[Host]:
    made = make_host()
    yield made
    made.bucket.close()


def chain(*names: str | None) -> Topology:
    return Topology((names,))


# -- chains ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "needed"),
    [(1, 1), (2, 2), (3, 2), (4, 3)],
)
def test_a_majority_is_more_than_half_of_the_places(size: int, needed: int) -> None:
    names = tuple("abcd"[:size])
    assert majority(names) == needed
    topology = chain(*names)
    others = names[1:]
    for count in range(len(others) + 1):
        for met in combinations(others, count):
            acknowledged = dict.fromkeys(met, 5)
            assert topology.is_met(acknowledged, 5) == (1 + count >= needed)
            assert topology.is_met(acknowledged, 6) == (needed == 1)


def test_missing_nodes_count_as_places() -> None:
    assert chain("a", "b", None).is_possible
    assert not chain("a", None).is_possible
    assert not chain("a", None, None).is_possible
    assert not chain("a", "b", None, None).is_possible
    assert not Topology((("a", "b"), ("a", None))).is_possible


def test_two_chains_must_both_have_met() -> None:
    topology = Topology((("a", "b"), ("c", "a")))
    assert not topology.is_met({"b": 9}, 9)
    assert not topology.is_met({"c": 9}, 9)
    assert topology.is_met({"b": 9, "c": 9}, 9)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        [],
        [["a"], ["a"], ["a"]],
        [[]],
        ["a"],
        [[None, "b"]],
        [["a", ""]],
        [["a", 1]],
        [["a", "a"]],
        [["a", "b", "c", "d", "e"]],
        [["a", "b" * 251]],
    ],
    ids=str,
)
def test_a_topology_that_is_none_is_refused_with_a_sentence(value: object) -> None:
    with pytest.raises(Refusal) as refused:
        read_topology(value)
    assert refused.value.status == Status.EINVAL
    assert refused.value.context


def test_a_topology_is_read_as_it_is_told() -> None:
    value = [["a", "b", None], ["b", "a"]]
    assert read_topology(value).to_json() == value


# -- one write -------------------------------------------------------------------------------------


def test_a_node_alone_commits_a_majority_at_once(writer: Writer) -> None:
    writer.write("k")
    assert writer.committed == {"k"}
    assert writer.bucket.vbucket(0).high_completed_seqno == 1


@pytest.mark.parametrize("level", [ON_ACTIVE, PERSIST])
def test_a_node_alone_commits_the_other_levels_when_they_are_on_disk(
    writer: Writer, level: int
) -> None:
    writer.write("k", level)
    assert writer.committed == set()
    writer.bucket.commit()
    assert writer.committed == {"k"}


def test_a_replica_too_few_holds_a_write_until_it_acknowledges(writer: Writer) -> None:
    writer.syncs.set_topology(0, chain("a", "b"))
    seqno = writer.write("k")
    writer.syncs.acknowledged(0, "b", seqno - 1)
    writer.syncs.acknowledged(0, "stranger", seqno)
    writer.syncs.acknowledged(1, "b", seqno)
    assert writer.committed == set()
    writer.syncs.acknowledged(0, "b", seqno)
    assert writer.committed == {"k"}
    item = writer.bucket.vbucket(0).get(b"\0k")
    assert item is not None
    assert item.value == b"v-k"


@pytest.mark.parametrize("level", [ON_ACTIVE, PERSIST])
@pytest.mark.parametrize("disk_first", [True, False])
def test_a_level_that_asks_for_the_disk_needs_ours_and_the_replica(
    writer: Writer, level: int, disk_first: bool
) -> None:
    writer.syncs.set_topology(0, chain("a", "b"))
    seqno = writer.write("k", level)
    steps: list[Callable[[], object]] = [
        writer.bucket.commit,
        lambda: writer.syncs.acknowledged(0, "b", seqno),
    ]
    for step in steps if disk_first else reversed(steps):
        assert writer.committed == set()
        step()
    assert writer.committed == {"k"}


def test_a_write_that_can_never_be_met_is_refused_before_it_is_prepared(writer: Writer) -> None:
    writer.syncs.set_topology(0, chain("a", None))
    with pytest.raises(Refusal) as refused:
        writer.write("k")
    assert refused.value.status == Status.DURABILITY_IMPOSSIBLE
    assert writer.bucket.vbucket(0).high_seqno == 0


def test_a_write_too_many_is_refused(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_writes, "FLIGHTS_MAX", 1)
    writer.syncs.set_topology(0, chain("a", "b"))
    seqno = writer.write("one")
    with pytest.raises(Refusal) as refused:
        writer.write("two")
    assert refused.value.status == Status.ETMPFAIL
    writer.syncs.acknowledged(0, "b", seqno)
    writer.write("two")


def test_a_write_whose_time_is_up_is_aborted_and_ambiguous(writer: Writer) -> None:
    writer.syncs.set_topology(0, chain("a", "b"))
    seqno = writer.write("k")
    writer.syncs.time_out(0, seqno)
    assert writer.ambiguous == {"k"}
    assert writer.bucket.vbucket(0).pending(b"\0k") is None
    writer.syncs.acknowledged(0, "b", seqno)
    writer.syncs.time_out(0, seqno)
    assert writer.bucket.vbucket(0).get(b"\0k") is None, "an abort is for good"


def test_a_write_that_is_aborted_lets_those_behind_it_pass(writer: Writer) -> None:
    writer.syncs.set_topology(0, chain("a", "b"))
    first, second = writer.write("first", PERSIST), writer.write("second")
    writer.syncs.acknowledged(0, "b", second)
    assert writer.committed == set(), "the first is not on our disk"
    writer.syncs.time_out(0, first)
    assert (writer.committed, writer.ambiguous) == ({"second"}, {"first"})


def test_chains_that_come_to_have_too_few_nodes_abort_what_clients_wait_for(
    writer: Writer,
) -> None:
    writer.syncs.set_topology(0, chain("a", "b"))
    writer.write("k")
    writer.syncs.set_topology(0, chain("a", None))
    assert writer.ambiguous == {"k"}


def test_a_shorter_chain_commits_what_it_has_met(writer: Writer) -> None:
    writer.syncs.set_topology(0, chain("a", "b"))
    writer.write("k")
    writer.syncs.set_topology(0, chain("a"))
    assert writer.committed == {"k"}


def test_what_was_acknowledged_before_a_new_stream_does_not_count(writer: Writer) -> None:
    writer.syncs.set_topology(0, chain("a", "b"))
    writer.syncs.acknowledged(0, "b", 100)
    writer.syncs.joined(0, "b")
    seqno = writer.write("k")
    assert writer.committed == set(), "the replica may have rolled back"
    writer.syncs.acknowledged(0, "b", seqno)
    assert writer.committed == {"k"}


# -- against a model -------------------------------------------------------------------------------


@dataclass
class Model:
    """Which writes must be committed, said as plainly as possible."""

    topology: Topology
    levels: list[int]
    seqnos: list[int]
    on_disk: bool = False
    acknowledged: dict[str, int] = field(default_factory=dict)
    done: int = 0
    """How many are committed: what is committed stays so."""

    def committed(self) -> set[str]:
        while self.done < len(self.seqnos) and self._is_met(self.done):
            self.done += 1
        return {f"k{number}" for number in range(self.done)}

    def _is_met(self, number: int) -> bool:
        if self.levels[number] != MAJORITY and not self.on_disk:
            return False
        return all(
            sum(
                name == "a" or self.acknowledged.get(name or "", 0) >= self.seqnos[number]
                for name in one
                if name is not None
            )
            > len(one) / 2
            for one in self.topology.chains
        )


TOPOLOGIES = [
    chain("a"),
    chain("a", "b"),
    chain("a", "b", "c"),
    chain("a", "b", None),
    chain("a", "b", "c", "d"),
    Topology((("a", "b"), ("c", "a"))),
    Topology((("a", "b", "c"), ("b", "d"))),
]


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
@pytest.mark.parametrize(
    "levels", [(MAJORITY, PERSIST), (PERSIST, MAJORITY), (MAJORITY, ON_ACTIVE)]
)
def test_acknowledgements_commit_the_same_writes_in_every_order(
    tmp_path: Path, topology: Topology, levels: tuple[int, int]
) -> None:
    others = sorted({name for one in topology.chains for name in one if name and name != "a"})
    count = 0
    with Bucket.open(tmp_path / "bucket", SETTINGS) as bucket:
        bucket.create_vbuckets(VBucketState.ACTIVE)
        for order in permutations(["disk", *others]):
            bucket.flush()
            writer = Writer(bucket, SyncWrites(bucket))
            writer.syncs.set_topology(0, topology)
            seqnos = [writer.write(f"k{n}", level) for n, level in enumerate(levels)]
            model = Model(topology, list(levels), seqnos)
            assert writer.committed == model.committed()
            for step in order:
                if step == "disk":
                    model.on_disk = True
                    bucket.commit()
                else:
                    model.acknowledged[step] = seqnos[-1]
                    writer.syncs.acknowledged(0, step, seqnos[-1])
                assert writer.committed == model.committed(), (order, step)
            assert writer.committed == {"k0", "k1"}
            count += 1
    assert count >= 1


@pytest.mark.parametrize("seed", range(60))
def test_random_acknowledgements_commit_what_the_model_says(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    topology = chance.choice(TOPOLOGIES[1:])
    others = sorted({name for one in topology.chains for name in one if name and name != "a"})
    with Bucket.open(tmp_path / "bucket", SETTINGS) as bucket:
        bucket.create_vbuckets(VBucketState.ACTIVE)
        writer = Writer(bucket, SyncWrites(bucket))
        writer.syncs.set_topology(0, topology)
        model = Model(topology, [], [])
        for _ in range(40):
            act = chance.random()
            if act < 0.35:
                # Only majority: the model's disk is all or nothing.
                model.levels.append(MAJORITY)
                model.seqnos.append(writer.write(f"k{len(model.seqnos)}"))
            elif act < 0.9 and model.seqnos:
                name = chance.choice(others)
                seqno = chance.randint(1, bucket.vbucket(0).high_seqno)
                model.acknowledged[name] = max(seqno, model.acknowledged.get(name, 0))
                writer.syncs.acknowledged(0, name, seqno)
            else:
                name = chance.choice(others)
                model.acknowledged.pop(name, None)
                writer.syncs.joined(0, name)
            assert writer.committed == model.committed(), f"seed {seed}"
        in_flight = [one.seqno for one in bucket.vbucket(0).all_pending()]
        assert all(seqno > bucket.vbucket(0).high_completed_seqno for seqno in in_flight)


# -- states ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [VBucketState.REPLICA, VBucketState.DEAD, VBucketState.PENDING])
def test_who_is_active_no_more_answers_ambiguous_and_keeps_the_prepare(
    writer: Writer, state: VBucketState
) -> None:
    writer.syncs.set_topology(0, chain("a", "b"))
    seqno = writer.write("k")
    writer.bucket.vbucket(0).set_state(state)
    writer.syncs.follow(0)
    assert writer.ambiguous == {"k"}
    assert writer.bucket.vbucket(0).pending(b"\0k") is not None
    writer.syncs.acknowledged(0, "b", seqno)
    writer.syncs.time_out(0, seqno)
    assert writer.bucket.vbucket(0).pending(b"\0k") is not None, "not ours to decide"
    assert writer.syncs.topology(0) == ALONE


def test_a_deleted_vbucket_answers_its_writers(writer: Writer) -> None:
    writer.syncs.set_topology(0, chain("a", "b"))
    writer.write("k")
    writer.bucket.delete_vbucket(0)
    writer.syncs.follow(0)
    assert writer.ambiguous == {"k"}


def test_a_prepare_that_was_rolled_back_is_ambiguous(writer: Writer) -> None:
    writer.syncs.set_topology(0, chain("a", "b"))
    writer.write("k")
    writer.bucket.flush()
    writer.syncs.follow(0)
    assert writer.ambiguous == {"k"}


def promoted(writer: Writer, topology: Topology | None) -> None:
    """A replica that holds the prepares of two writes becomes active."""
    vbucket = writer.bucket.vbucket(0)
    vbucket.set_state(VBucketState.REPLICA)
    writer.syncs.follow(0)
    vbucket.prepare(b"\0one", b"1", level=MAJORITY)
    vbucket.prepare(b"\0two", b"2", level=PERSIST)
    if topology is not None:
        writer.syncs.set_topology(0, topology)
    vbucket.set_state(VBucketState.ACTIVE)
    writer.syncs.follow(0)


def test_a_new_active_alone_commits_the_prepares_it_holds(writer: Writer) -> None:
    promoted(writer, None)
    assert writer.bucket.vbucket(0).all_pending() == [], "the state's commit has persisted both"
    assert writer.bucket.vbucket(0).get(b"\0two") is not None


def test_a_new_active_commits_the_prepares_it_holds_when_its_replicas_have_them(
    writer: Writer,
) -> None:
    promoted(writer, chain("b", "c"))
    vbucket = writer.bucket.vbucket(0)
    assert [one.seqno for one in vbucket.all_pending()] == [1, 2]
    assert writer.syncs.is_recommitting(0, b"\0one")
    assert not writer.syncs.is_recommitting(0, b"\0other")
    writer.syncs.time_out(0, 1)
    assert len(vbucket.all_pending()) == 2, "no time limits what may be visible elsewhere"
    writer.syncs.acknowledged(0, "c", 1)
    assert [one.seqno for one in vbucket.all_pending()] == [2]
    writer.syncs.acknowledged(0, "c", 2)
    assert vbucket.all_pending() == []
    assert not writer.syncs.is_recommitting(0, b"\0two")


def test_too_few_nodes_do_not_abort_what_was_found(writer: Writer) -> None:
    promoted(writer, chain("b", None))
    assert len(writer.bucket.vbucket(0).all_pending()) == 2
    writer.syncs.set_topology(0, chain("b"))
    assert writer.bucket.vbucket(0).all_pending() == []


def test_chains_and_prepares_outlive_the_process(tmp_path: Path) -> None:
    bucket = Bucket.open(tmp_path / "bucket", SETTINGS)
    bucket.create_vbuckets(VBucketState.ACTIVE)
    writer = Writer(bucket, SyncWrites(bucket))
    writer.syncs.set_topology(0, chain("a", "b"))
    seqno = writer.write("k")
    bucket.commit()
    bucket.abandon()
    with Bucket.open(tmp_path / "bucket") as again:
        syncs = SyncWrites(again)
        assert syncs.topology(0) == chain("a", "b")
        assert again.vbucket(0).pending(b"\0k") is not None, "one node is no majority here"
        syncs.acknowledged(0, "b", seqno)
        assert again.vbucket(0).pending(b"\0k") is None
        assert again.vbucket(0).get(b"\0k") is not None


# -- what markers tell of synchronous writes ------------------------------------------------------

SYNC = {"controls": {"enable_sync_writes": "true", "consumer_name": "b"}}


def told(peer: Peer) -> tuple[int | None, int | None]:
    """The max visible and the high completed seqno of the first marker."""
    marker = only(peer.drain(), SnapshotMarker)[0]
    return marker.max_visible_seqno, marker.high_completed_seqno


def on_disk(host: Host, *, controls: dict[str, str] | None = None) -> Peer:
    """A consumer that is sent what is on disk."""
    peer = Peer(host, controls={**SYNC["controls"], **(controls or {})})
    peer.stream(0, flags=StreamFlag.DISK_ONLY)
    return peer


def test_a_disk_marker_tells_of_what_is_on_disk_alone(tmp_path: Path) -> None:
    host = make_host(tmp_path / "bucket")
    vbucket = host.bucket.vbucket(0)
    put(vbucket, "a")
    vbucket.prepare(b"\0k", b"v", level=1)
    host.bucket.commit()
    vbucket.commit_prepare(b"\0k")
    put(vbucket, "b")
    visible, completed = told(on_disk(host))
    assert visible == 1
    assert completed is not None
    assert completed < 2, "the prepare at 2 is in flight where the view ends"
    host.bucket.commit()
    assert told(on_disk(host)) == (4, 2)
    host.bucket.close()


def test_a_prepare_in_flight_lies_above_the_high_completed_seqno(tmp_path: Path) -> None:
    host = make_host(tmp_path / "bucket")
    vbucket = host.bucket.vbucket(0)
    vbucket.prepare(b"\0one", b"v", level=1)
    vbucket.prepare(b"\0two", b"v", level=1)
    vbucket.abort_prepare(b"\0two")
    host.bucket.commit()
    assert told(on_disk(host)) == (0, 0)
    vbucket.commit_prepare(b"\0one")
    host.bucket.commit()
    assert told(on_disk(host)) == (4, 2)
    host.bucket.close()


def test_a_memory_marker_tells_the_last_visible_seqno_up_to_its_end(host: Host) -> None:
    vbucket = host.bucket.vbucket(0)
    put(vbucket, "a")
    vbucket.prepare(b"\0k", b"v", level=1)
    vbucket.close_checkpoint()
    vbucket.commit_prepare(b"\0k")
    peer = Peer(host, controls=SYNC["controls"])
    peer.stream(0)
    markers = only(peer.drain(), SnapshotMarker)
    assert [(one.end_seqno, one.max_visible_seqno) for one in markers] == [(2, 1), (3, 3)]
