"""The shelf: rows wait for the end of their snapshot, in memory and on disk."""

from __future__ import annotations

import random

import pyarrow as pa

from headrace.client.bulk import Rows
from headrace.client.shelf import SLICES_MAX, Shelf
from headrace.columns.schema import SCHEMA
from headrace.history import Boundaries, BranchId, ResumeToken, Seqno
from headrace.protocol.talk import Position


def batch(*rows: tuple[int, int]) -> pa.RecordBatch:
    """A batch of (vbucket, seqno)."""
    blank: dict[str, object] = dict.fromkeys(SCHEMA.names)
    filled = {"event": 1, "key": b"k", "value": b"v" * 50, "cas": 0, "datatype": 0, "opaque": 1}
    full = [blank | filled | {"vbucket": v, "seqno": s} for v, s in rows]
    return pa.RecordBatch.from_pylist(full, schema=SCHEMA)


def at(seqno: int) -> Position:
    return Position(ResumeToken.at_boundary(BranchId(1), Seqno(seqno)), Boundaries())


def shown(
    shelf: Shelf, positions: dict[int, Position] | None = None
) -> list[tuple[list[int], set[int]]]:
    return [
        (ready.batch.column("seqno").to_pylist(), set(ready.positions))
        for ready in shelf.take(positions)
    ]


def test_rows_leave_when_their_snapshot_is_whole_and_not_before() -> None:
    shelf = Shelf()
    shelf.put(Rows(batch((0, 1), (0, 2)), 0, 2, 0))
    assert shown(shelf) == []
    assert shelf.waiting(0) == 2
    shelf.put(Rows(batch((0, 3)), 0, 1, 0))
    shelf.complete(0, at(3))
    assert shown(shelf) == [([1, 2], set()), ([3], {0})], "positions travel with the last row"
    assert shelf.size == 0


def test_a_batch_of_which_all_rows_leave_is_handed_out_as_it_is() -> None:
    shelf, rows = Shelf(), batch((0, 1), (1, 1), (0, 2))
    for start, vbucket in ((0, 0), (1, 1), (2, 0)):
        shelf.put(Rows(rows, start, start + 1, vbucket))
    shelf.complete(1, at(1))
    shelf.complete(0, at(2))
    (ready,) = shelf.take()
    assert ready.batch is rows
    assert set(ready.positions) == {0, 1}
    assert ready.partial == frozenset()


def test_only_the_rows_of_whole_snapshots_are_cut_out() -> None:
    shelf, rows = Shelf(), batch((0, 1), (1, 1), (0, 2), (1, 2))
    for start, vbucket in ((0, 0), (1, 1), (2, 0), (3, 1)):
        shelf.put(Rows(rows, start, start + 1, vbucket))
    shelf.complete(0, at(2))
    assert shown(shelf) == [([1], set()), ([2], {0})]
    shelf.complete(1, at(2))
    assert shown(shelf) == [([1], set()), ([2], {1})]


def test_many_small_cuts_become_one_batch() -> None:
    count = 2 * SLICES_MAX + 2
    rows = batch(*((n % 2, n + 1) for n in range(2 * count)))
    shelf = Shelf()
    for n in range(2 * count):
        shelf.put(Rows(rows, n, n + 1, n % 2))
    shelf.complete(0, at(2 * count))
    ((seqnos, positions),) = shown(shelf)
    assert seqnos == list(range(1, 2 * count, 2))
    assert positions == {0}


def test_partial_tells_which_rows_no_position_covers() -> None:
    shelf = Shelf()
    shelf.put(Rows(batch((0, 1)), 0, 1, 0))
    shelf.put(Rows(batch((0, 2)), 0, 1, 0))
    shelf.complete(0, at(2))
    assert [ready.partial for ready in shelf.take()] == [frozenset({0}), frozenset()]


def test_a_shelf_that_does_not_wait_gives_everything_at_once() -> None:
    shelf = Shelf(whole=False)
    shelf.put(Rows(batch((0, 1), (0, 2)), 0, 2, 0))
    assert shown(shelf, {0: at(2)}) == [([1, 2], {0})]
    assert shown(shelf, {0: at(3)}) == [([], {0})], "positions alone are told too"


def test_dropped_rows_are_gone() -> None:
    shelf = Shelf()
    shelf.put(Rows(batch((0, 5), (0, 4)), 0, 2, 0))
    list(shelf.take())
    assert shelf.holds_beyond(0, 3)
    assert shelf.holds_beyond(0, 4)
    assert not shelf.holds_beyond(0, 5)
    assert shelf.drop(0) == 2
    assert (shelf.size, shelf.waiting(0), shelf.drop(0)) == (0, 0, 0)
    shelf.complete(0, at(9))
    assert shown(shelf) == [([], {0})]


def test_what_does_not_fit_into_memory_waits_on_disk_in_order() -> None:
    shelf = Shelf(memory_max=2_000)
    for first in range(0, 100, 10):
        rows = batch(*((0, seqno) for seqno in range(first + 1, first + 11)))
        shelf.put(Rows(rows, 0, 10, 0, size=rows.nbytes))
        assert list(shelf.take()) == []
        assert shelf.size <= 2_000
    shelf.complete(0, at(100))
    found = shown(shelf)
    assert [seqno for seqnos, _ in found for seqno in seqnos] == list(range(1, 101))
    assert [positions for _, positions in found if positions] == [{0}]
    assert found[-1][1] == {0}
    directory = shelf._directory
    assert directory is not None
    shelf.close()


def test_a_dropped_vbucket_leaves_no_file() -> None:
    shelf = Shelf(memory_max=0)
    shelf.put(Rows(batch((0, 1)), 0, 1, 0))
    list(shelf.take())
    held = shelf._waiting[0]
    assert held.file is not None
    assert held.file.exists()
    shelf.drop(0)
    assert not held.file.exists()
    shelf.close()


def test_any_interleaving_gives_every_row_once_and_in_order() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        shelf = Shelf(memory_max=chance.choice([0, 3_000, 1 << 20]))
        sent: dict[int, int] = {}
        found: dict[int, list[int]] = {}
        complete: dict[int, int] = {}
        for _ in range(60):
            plan = [chance.randrange(4) for _ in range(chance.randrange(1, 12))]
            rows = []
            for vbucket in plan:
                sent[vbucket] = sent.get(vbucket, 0) + 1
                rows.append((vbucket, sent[vbucket]))
            made = batch(*rows)
            for index, (vbucket, seqno) in enumerate(rows):
                shelf.put(Rows(made, index, index + 1, vbucket))
                if chance.random() < 0.2:
                    shelf.complete(vbucket, at(seqno))
                    complete[vbucket] = seqno
            for ready in shelf.take():
                for vbucket, seqno in zip(
                    ready.batch.column("vbucket").to_pylist(),
                    ready.batch.column("seqno").to_pylist(),
                    strict=True,
                ):
                    found.setdefault(vbucket, []).append(seqno)
                for vbucket, position in ready.positions.items():
                    assert found[vbucket][-1] == position.token.seqno, f"seed {seed}"
            for vbucket, seqno in complete.items():
                assert found[vbucket] == list(range(1, seqno + 1)), f"seed {seed}"
        shelf.close()
