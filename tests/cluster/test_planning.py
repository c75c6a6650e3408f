"""Plans: balanced, legal at every step, and never more moves than it takes."""

from __future__ import annotations

import itertools
import random

import pytest

from headrace.cluster.chains import Chain, Chains
from headrace.cluster.planning import (
    Kind,
    Move,
    active_move,
    balanced,
    chain_moves,
    moves_between,
    replicated,
)
from headrace.errors import ClusterError

NODES = ("a", "b", "c", "d", "e")


def chains(*rows: Chain) -> Chains:
    return Chains(bucket="default", rows=rows, places=())


def random_rows(random_: random.Random, nodes: tuple[str, ...], count: int) -> list[Chain]:
    return [tuple(random_.sample(nodes, random_.randint(1, len(nodes)))) for _ in range(count)]


def spread(numbers: list[int]) -> int:
    return max(numbers) - min(numbers)


def check_wanted(rows: tuple[Chain, ...], nodes: tuple[str, ...], replicas: int) -> None:
    for row in rows:
        assert len(set(row)) == len(row) == 1 + replicas, row
        assert set(row) <= set(nodes)
    assert spread([sum(row[0] == name for row in rows) for name in nodes]) <= 1
    assert spread([sum(name in row[1:] for row in rows) for name in nodes]) <= 1


@pytest.mark.parametrize("seed", range(150))
def test_chains_that_are_wanted_are_balanced_within_one(seed: int) -> None:
    random_ = random.Random(seed)
    nodes = NODES[: random_.randint(1, 5)]
    staying = nodes[: random_.randint(1, len(nodes))]
    replicas = random_.randint(0, min(3, len(staying) - 1))
    before = chains(*random_rows(random_, nodes, random_.randint(1, 40)))
    after = balanced(before, staying, replicas)
    check_wanted(after, staying, replicas)
    assert balanced(before, staying, replicas) == after, "the same question, the same answer"


@pytest.mark.parametrize("seed", range(100))
def test_every_chain_between_two_moves_is_legal_and_the_last_is_the_wanted_one(seed: int) -> None:
    random_ = random.Random(seed)
    before = chains(*random_rows(random_, NODES, 12))
    after = balanced(before, NODES[:4], 2)
    now = dict(enumerate(before.rows))
    for move in moves_between(before.rows, after):
        assert move.before == now[move.vbucket]
        here = [name for name in move.after if name is not None]
        assert len(set(here)) == len(here)
        new = set(here) - set(move.before)
        assert new <= {move.target}, "a move makes one copy at most"
        if move.kind is Kind.REPLICA:
            assert move.after[0] == move.before[0]
        else:
            assert (move.before[0], move.after[0]) == (move.source, move.target)
        now[move.vbucket] = move.after
    for vbucket, row in enumerate(after):
        assert now[vbucket][0] == row[0]
        assert set(now[vbucket]) == set(row)


def test_what_is_balanced_needs_no_move() -> None:
    rows: tuple[Chain, ...] = (("a", "b"), ("b", "c"), ("c", "a"))
    wanted = balanced(chains(*rows), ("a", "b", "c"), 1)
    assert moves_between(rows, wanted) == []


def least_copies(before: Chains, nodes: tuple[str, ...], actives: list[str], replicas: int) -> int:
    """The fewest new copies that fill the replicas, by trying everything."""
    rows = [
        [set(one) for one in itertools.combinations([n for n in nodes if n != active], replicas)]
        for active in actives
    ]
    best = 1 << 30
    for choice in itertools.product(*rows):
        if spread([sum(name in row for row in choice) for name in nodes]) > 1:
            continue
        new = sum(len(row - set(before.rows[number])) for number, row in enumerate(choice))
        best = min(best, new)
    return best


@pytest.mark.parametrize("seed", range(120))
def test_no_assignment_of_replicas_needs_fewer_new_copies(seed: int) -> None:
    random_ = random.Random(seed)
    nodes = NODES[: random_.randint(2, 4)]
    replicas = random_.randint(1, min(2, len(nodes) - 1))
    before = chains(*random_rows(random_, nodes, random_.randint(1, 5)))
    after = balanced(before, nodes, replicas)
    made = sum(len(set(row[1:]) - set(before.rows[n])) for n, row in enumerate(after))
    actives = [str(row[0]) for row in after]
    assert made == least_copies(before, nodes, actives, replicas), f"seed {seed}"


@pytest.mark.parametrize("seed", range(60))
def test_as_many_actives_stay_as_can_stay(seed: int) -> None:
    random_ = random.Random(seed)
    nodes = NODES[: random_.randint(1, 5)]
    before = chains(*random_rows(random_, NODES, random_.randint(1, 60)))
    after = balanced(before, nodes, 0)
    moved = sum(row[0] != before.active(n) for n, row in enumerate(after))
    least, over = divmod(before.vbuckets, len(nodes))
    held = sorted((len(before.vbuckets_of(name)) for name in nodes), reverse=True)
    kept = sum(min(number, least + (place < over)) for place, number in enumerate(held))
    assert moved == before.vbuckets - kept


def test_a_thousand_vbuckets_on_many_nodes_are_planned_at_once() -> None:
    names = tuple(f"n{number}" for number in range(10))
    rows = tuple((names[number % 9], names[(number + 1) % 9]) for number in range(1024))
    after = balanced(chains(*rows), names, 1)
    check_wanted(after, names, 1)
    moves = moves_between(rows, after)
    assert {move.target for move in moves if move.kind is Kind.ACTIVE} == {"n9"}


def test_a_vbucket_nobody_serves_is_told_before_anything_moves() -> None:
    with pytest.raises(ClusterError, match=r"1 vbuckets have no active copy .the first is 1"):
        balanced(chains(("a",), (None,)), ("a", "b"), 0)


def test_an_owner_goes_to_its_replica_and_takes_its_place() -> None:
    move = active_move(7, ("a", "b", "c"), "c")
    assert move.after == ("c", "b", "a")
    assert (move.dropped, move.kept_as_replica, move.producer) == ((), True, "a")


def test_an_owner_that_goes_elsewhere_leaves_no_copy() -> None:
    move = active_move(7, ("a", "b"), "c")
    assert (move.after, move.dropped, move.kept_as_replica) == (("c", "b"), ("a",), False)


def test_an_owner_that_is_wanted_as_a_replica_stays_as_one() -> None:
    (move,) = chain_moves(1, ("a", "b"), ("c", "a"))
    assert (move.after, move.dropped, move.kept_as_replica) == (("c", "a"), ("b",), True)


def test_replicas_that_are_added_exchanged_and_dropped_are_moves_of_their_own() -> None:
    added = chain_moves(1, ("a",), ("a", "b"))
    assert [(move.source, move.target, move.after) for move in added] == [(None, "b", ("a", "b"))]
    exchanged = chain_moves(1, ("a", "b"), ("a", "c"))
    assert [(move.source, move.target) for move in exchanged] == [("b", "c")]
    dropped = chain_moves(1, ("a", "b", "c"), ("a",))
    assert [(move.kind, move.after) for move in dropped] == [(Kind.REPLICA, ("a",))]
    assert dropped[0].dropped == ("b", "c")
    hole = chain_moves(1, ("a", None, "b"), ("a", "b", "c"))
    assert [move.after for move in hole] == [("a", "c", "b")]


def test_chains_grow_where_their_actives_are() -> None:
    grown = replicated(chains(("a",), ("b",), ("a", "b"), (None,)), ("a", "b"), 1)
    assert grown == {0: ("a", "b"), 1: ("b", "a")}


def test_a_move_says_itself() -> None:
    assert str(active_move(7, ("a",), "b")) == "vb 7 active: a -> b"
    move = Move(
        vbucket=1, kind=Kind.REPLICA, source=None, target="b", before=("a",), after=("a", "b")
    )
    assert str(move) == "vb 1 replica: new -> b"
