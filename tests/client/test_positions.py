"""An unchangeable map against a plain dict, and what two of them share."""

from __future__ import annotations

import pickle
import random

import pytest

from headrace.client.positions import PART, Positions
from headrace.client.tokens import TokenSet
from headrace.errors import ConfigError
from headrace.history import ZERO, Boundaries, BranchId, ResumeToken, Seqno
from headrace.protocol.talk import Position


def at(seqno: int) -> Position:
    return Position(ResumeToken.at_boundary(BranchId(1), Seqno(seqno)), Boundaries())


@pytest.mark.parametrize("seed", range(20))
def test_it_is_a_dict_that_does_not_change(seed: int) -> None:
    draw = random.Random(seed)
    found, model = Positions({}), dict[int, Position]()
    history = []
    for _ in range(30):
        moved = {draw.randrange(200): at(draw.randrange(9)) for _ in range(draw.randrange(6))}
        history.append((found, dict(model)))
        found = found.updated(moved)
        model.update(moved)
        assert dict(found) == model, seed
        assert len(found) == len(model), seed
        assert list(found) == sorted(model), seed
        assert found.least == min(model, default=None)
        assert found.greatest == max(model, default=None)
    assert all(one == then for one, then in history), seed


def test_parts_that_do_not_change_are_shared() -> None:
    before = Positions({vbucket: at(1) for vbucket in range(10 * PART)})
    after = before.updated({3 * PART + 1: at(2)})
    differing = [n for n in range(10) if before._parts[n] is not after._parts[n]]
    assert differing == [3]


def test_it_can_be_sent_to_another_process() -> None:
    positions = Positions({1: at(5), 900: at(7)})
    assert pickle.loads(pickle.dumps(positions)) == positions  # noqa: S301 - our own bytes


def test_a_set_of_tokens_is_equal_however_it_was_made() -> None:
    plain = TokenSet(bucket="b", vbuckets=64, positions={1: at(5), 2: at(6)})
    moved = TokenSet(bucket="b", vbuckets=64, positions={1: at(4)}).updated({2: at(6), 1: at(5)})
    assert moved == plain
    assert plain == moved
    assert moved.to_text() == plain.to_text()
    assert TokenSet.from_text(moved.to_text()) == moved


@pytest.mark.parametrize("vbucket", [-1, 64])
def test_a_vbucket_that_the_bucket_does_not_have_is_refused(vbucket: int) -> None:
    tokens = TokenSet(bucket="b", vbuckets=64).updated({5: Position(ZERO, Boundaries())})
    with pytest.raises(ConfigError, match=f"vbucket {vbucket}, bucket 'b' has 0..63"):
        tokens.updated({vbucket: at(1)})
