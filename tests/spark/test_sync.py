"""The commit loop on real tables: resume, rollback, refusal, a source that goes away."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from headrace.errors import ConfigError, ConnectionLost, StoreLocked
from headrace.spark.client_feed import ClientFactory
from headrace.spark.jobs import LocalRunner, Task
from headrace.spark.sync import Sync, SyncOptions
from headrace.spark.tables.views import arrow_changes, arrow_state
from headrace.spark.verify import verify
from tests.spark.conftest import numbered, url_of, write
from tests.spark.producer import InMemory, Producer, ScriptedFeed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headrace.testing import RunningNode


def state(path: Path) -> dict[tuple[int, str], str]:
    rows = arrow_state(path).to_pylist()
    return {(row["vbucket"], row["key"]): row["value"].decode() for row in rows}


def local(producer: Producer, path: Path, **options: object) -> Sync:
    chosen = SyncOptions(parts=2, **options)  # type: ignore[arg-type]
    return Sync(InMemory(producer), path, LocalRunner(), chosen, sleep=lambda _: None)


class DyingRunner(LocalRunner):
    """Dies once, before, between or after the tasks of a job."""

    def __init__(self, after: int) -> None:
        self.after = after

    def run(self, tasks: Sequence[Task]) -> list[str]:
        found = []
        for number, task in enumerate(tasks):
            if number == self.after:
                raise SystemError("killed")
            found.append(task())
        if self.after == len(tasks):
            raise SystemError("killed")
        return found


@pytest.mark.parametrize("after", [0, 1])
def test_a_driver_that_dies_in_a_turn_leaves_the_table_as_it_was(
    tmp_path: Path, after: int
) -> None:
    producer = Producer.with_vbuckets(4)
    for number in range(40):
        producer.put(number % 4, f"k{number}", "v")
    list(local(producer, tmp_path).once())
    before = sorted(map(str, arrow_changes(tmp_path).to_pylist()))
    for number in range(10):
        producer.put(number % 4, f"n{number}", "v")
    dying = Sync(InMemory(producer), tmp_path, DyingRunner(after), SyncOptions(parts=2))
    with pytest.raises(SystemError):
        list(dying.once())
    assert sorted(map(str, arrow_changes(tmp_path).to_pylist())) == before
    list(local(producer, tmp_path).once())
    assert state(tmp_path) == producer.state()


@pytest.mark.parametrize("seed", range(6))
def test_failovers_at_any_moment_leave_nothing_of_a_dead_branch(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    producer = Producer.with_vbuckets(4)
    sync = local(producer, tmp_path)
    for _ in range(6):
        for _ in range(15):
            vb = draw.randrange(4)
            producer.put(vb, draw.choice("abcdef"), f"{draw.random()}")
            if draw.random() < 0.2:
                producer.cut(vb)

        def fail(one: Producer) -> None:
            vb = draw.randrange(4)
            one.fail_over(vb, draw.randrange(one.histories[vb].high + 1))
            one.put(vb, "n", f"{draw.random()}")

        producer.plot = [fail if draw.random() < 0.4 else lambda _: None for _ in range(4)]
        list(sync.once())
        producer.plot = []
        list(sync.once())
        assert state(tmp_path) == producer.state(), f"seed {seed}"
    rows = arrow_changes(tmp_path, withdrawn=True).to_pylist()
    places = [(r["vbucket"], r["epoch"], r["seqno"], r["event"] == "rollback") for r in rows]
    assert len(places) == len(set(places)), f"seed {seed}"


def test_a_second_sync_on_the_same_table_is_refused(tmp_path: Path) -> None:
    producer = Producer.with_vbuckets(4)
    producer.put(0, "a", "1")
    first, second = local(producer, tmp_path), local(producer, tmp_path)
    list(first.once())
    producer.put(0, "a", "2")

    class Slow(LocalRunner):
        def run(self, tasks: Sequence[Task]) -> list[str]:
            found = super().run(tasks)
            if not self.raced:
                self.raced = True
                list(first.once())
            return found

        raced = False

    stale = second.changes.table.open()
    second._runner = Slow()
    second.changes.table.open = lambda: stale  # type: ignore[method-assign]
    with pytest.raises(StoreLocked, match="another writer"):
        list(second.once())
    assert state(tmp_path) == producer.state()
    assert len(arrow_changes(tmp_path)) == 2


def test_a_limit_on_rows_takes_several_turns(tmp_path: Path) -> None:
    producer = Producer.with_vbuckets(4)
    for number in range(80):
        producer.put(number % 4, f"k{number}", "v")
    turns = list(local(producer, tmp_path, rows_per_turn=40).once())
    assert [turn.rows for turn in turns] == [40, 40]
    assert [turn.lag for turn in turns] == [40, 0]


def test_nothing_new_is_no_turn(tmp_path: Path) -> None:
    producer = Producer.with_vbuckets(4)
    assert list(local(producer, tmp_path).once()) == []
    producer.put(0, "a", "1")
    sync = local(producer, tmp_path)
    assert len(list(sync.once())) == 1
    version = sync.changes.table.version
    assert list(sync.once()) == []
    assert sync.changes.table.version == version


class Away(InMemory):
    """A source that cannot be reached for a while."""

    failures = 3

    def __call__(self) -> ScriptedFeed:
        if Away.failures:
            Away.failures -= 1
            raise ConnectionLost("nobody is there")
        return super().__call__()


def test_a_source_that_is_away_for_a_while_is_waited_for(tmp_path: Path) -> None:
    producer = Producer.with_vbuckets(4)
    producer.put(0, "a", "1")
    pauses: list[float] = []
    Away.failures = 3
    sync = Sync(Away(producer), tmp_path, LocalRunner(), SyncOptions(parts=2), sleep=pauses.append)
    assert len(list(sync.once())) == 1
    assert pauses == [0.2, 0.4, 0.8]


def test_patience_has_an_end(tmp_path: Path) -> None:
    Away.failures = 1000
    times = iter(range(0, 1_000_000, 100))
    sync = Sync(
        Away(Producer.with_vbuckets(1)),
        tmp_path,
        LocalRunner(),
        sleep=lambda _: None,
        clock=lambda: float(next(times)),
    )
    with pytest.raises(ConnectionLost, match="nobody is there"):
        list(sync.once())


def test_a_stopped_sync_ends_after_its_turn(tmp_path: Path) -> None:
    producer = Producer.with_vbuckets(4)
    producer.put(0, "a", "1")
    sync = local(producer, tmp_path)
    seen = []
    for turn in sync.follow():
        seen.append(turn)
        sync.stop()
    assert len(seen) == 1


def test_another_bucket_is_refused(tmp_path: Path) -> None:
    list(local(Producer.with_vbuckets(4), tmp_path).once())
    with pytest.raises(ConfigError, match="4 vbuckets, this one has 8"):
        list(local(Producer.with_vbuckets(8), tmp_path).once())


# -- against a node --------------------------------------------------------------------------------


def test_a_node_and_its_tables_agree_through_failover_and_deletes(
    tmp_path: Path, node: RunningNode
) -> None:
    factory = ClientFactory(url_of(node))
    sync = Sync(factory, tmp_path, LocalRunner(), SyncOptions(parts=3))
    write(node, numbered(400))
    list(sync.once())
    write(node, [(key, None) for key, _ in numbered(50)])
    write(node, numbered(120, version=2))
    list(sync.once())
    for vb in range(0, 8, 2):
        node.faults.failover(vbucket=vb, lose=4)
    write(node, numbered(60, version=3))
    turns = list(sync.once())
    sync.close()
    assert {one.vbucket for turn in turns for one in turn.withdrawals} == {0, 2, 4, 6}
    report = verify(factory, tmp_path, LocalRunner())
    assert report.differences == ()
    assert report.newer == 0
    assert report.documents > 300


def test_a_purge_behind_our_back_streams_from_the_beginning(
    tmp_path: Path, node: RunningNode
) -> None:
    factory = ClientFactory(url_of(node))
    sync = Sync(factory, tmp_path, LocalRunner(), SyncOptions(parts=2))
    write(node, numbered(100))
    list(sync.once())
    write(node, [(key, None) for key, _ in numbered(40)])
    write(node, numbered(30, prefix="later"))
    node.faults.purge()
    list(sync.once())
    sync.close()
    assert verify(factory, tmp_path, LocalRunner()).differences == ()
    keys = set(arrow_state(tmp_path)["key"].to_pylist())
    assert not keys & {key for key, _ in numbered(40)}


def test_a_document_of_twenty_megabytes_lands_whole(tmp_path: Path, node: RunningNode) -> None:
    factory = ClientFactory(url_of(node))
    large = b"x" * (20 << 20)
    write(node, [("large", large), *numbered(20)])
    sync = Sync(factory, tmp_path, LocalRunner(), SyncOptions(parts=2))
    list(sync.once())
    sync.close()
    found = {row["key"]: row["value"] for row in arrow_state(tmp_path).to_pylist()}
    assert found["large"] == large
    assert verify(factory, tmp_path, LocalRunner()).differences == ()
