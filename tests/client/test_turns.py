"""Who waits, until when, and whose turn it is: against a plain list of everybody."""

from __future__ import annotations

import random

import pytest

from headrace.client.address import NodeAddress
from headrace.client.turns import Turns

A, B = NodeAddress("a", 1), NodeAddress("b", 1)


def made(vbuckets: int = 4, *, needing: frozenset[int] = frozenset()) -> Turns:
    return Turns(
        range(vbuckets),
        node_of=lambda vbucket: (A, B)[vbucket % 2],
        needs_turn=lambda vbucket: vbucket in needing,
    )


def test_all_are_due_at_first_each_on_its_node() -> None:
    turns = made()
    assert (turns.first(A, now=0.0), turns.first(B, now=0.0)) == (0, 1)
    turns.leave(0)
    assert turns.first(A, now=0.0) == 2
    turns.leave(2)
    assert turns.first(A, now=0.0) is None
    assert len(turns) == 2


def test_those_who_need_no_turn_come_first() -> None:
    assert made(needing=frozenset({0})).first(A, now=0.0) == 2


def test_one_that_waits_again_comes_when_its_time_has() -> None:
    turns = made(2)
    turns.wait(0, 5.0)
    assert (turns.first(A, now=4.0), turns.next_at(now=4.0)) == (None, 5.0)
    turns.wait(0, 7.0)
    assert (turns.first(A, now=6.0), turns.next_at(now=6.0)) == (None, 7.0)
    assert turns.first(A, now=7.0) == 0
    assert turns.next_at(now=7.0) is None


@pytest.mark.parametrize("seed", range(30))
def test_it_is_as_if_everybody_were_looked_at(seed: int) -> None:
    chance = random.Random(seed)
    nodes: dict[int, NodeAddress | None] = {v: chance.choice([A, B, None]) for v in range(12)}
    needing = frozenset(v for v in nodes if chance.random() < 0.5)
    turns = Turns(nodes, node_of=nodes.__getitem__, needs_turn=needing.__contains__)
    until = dict.fromkeys(nodes, 0.0)
    now = 0.0
    for _ in range(200):
        now += chance.random()
        act, vbucket = chance.randrange(4), chance.randrange(12)
        if act == 0:
            until[vbucket] = now + chance.randrange(3)
            turns.wait(vbucket, until[vbucket])
        elif act == 1:
            until.pop(vbucket, None)
            turns.leave(vbucket)
        elif act == 2 and chance.random() < 0.2:
            nodes[vbucket] = chance.choice([A, B, None])
            turns.scatter()
        for node in (A, B, None):
            due = [v for v, at in until.items() if at <= now and nodes[v] == node]
            first = min(due, key=lambda v: (v in needing, v), default=None)
            assert turns.first(node, now=now) == first, seed
        later = min((at for at in until.values() if at > now), default=None)
        assert turns.next_at(now=now) == later, seed
        assert len(turns) == len(until)
