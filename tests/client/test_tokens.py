"""Token sets: exact as text, refused on another bucket, kept through a crash."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.tokens import BEGINNING, TokenFile, TokenSet
from headrace.errors import ConfigError
from headrace.history import Boundaries, BranchId, FailoverLog, ResumeToken, Seqno, SnapshotRange
from headrace.protocol.talk import Position

if TYPE_CHECKING:
    from pathlib import Path

BIG = 0xFFFF_FFFF_FFFF_FFFF


def a_set(**changes: object) -> TokenSet:
    log = FailoverLog.of((BIG, 5), (0xAAAA, 0))
    token = ResumeToken(BranchId(BIG), Seqno(BIG - 1), SnapshotRange(Seqno(3), Seqno(BIG)), log=log)
    marks = Boundaries().recorded(Seqno(3), BranchId(0xAAAA)).recorded(Seqno(9), BranchId(BIG))
    fields: dict[str, object] = {
        "bucket": "default",
        "uuid": "u1",
        "vbuckets": 4,
        "positions": {2: Position(token, marks)},
    }
    return TokenSet(**(fields | changes))  # type: ignore[arg-type] # the test's own words


def test_a_set_survives_text_with_all_64_bits() -> None:
    tokens = a_set()
    assert TokenSet.from_text(tokens.to_text()) == tokens
    assert str(BIG - 1) in tokens.to_text()
    assert f'"{BIG - 1}"' in tokens.to_text(), "as a string: no reader may round it"


@given(st.dictionaries(st.integers(0, 63), st.integers(0, BIG), max_size=8))
def test_equal_sets_give_equal_text(seqnos: dict[int, int]) -> None:
    def made(order: list[int]) -> TokenSet:
        tokens = TokenSet(bucket="b", vbuckets=64)
        for vbucket in order:
            token = ResumeToken.at_boundary(BranchId(7), Seqno(seqnos[vbucket]))
            tokens = tokens.updated({vbucket: Position(token, Boundaries())})
        return tokens

    one, other = made(sorted(seqnos)), made(sorted(seqnos, reverse=True))
    assert one.to_text() == other.to_text()
    assert TokenSet.from_text(one.to_text()) == other


def test_a_vbucket_that_is_not_listed_stands_at_the_beginning() -> None:
    assert a_set().position(0) == BEGINNING
    assert a_set().seqno(0) == 0


def test_tokens_are_refused_on_another_bucket() -> None:
    tokens = a_set()
    tokens.check_bucket(bucket="default", uuid="u1", vbuckets=4)
    with pytest.raises(ConfigError, match="used on bucket 'other'"):
        tokens.check_bucket(bucket="other", uuid="u1", vbuckets=4)
    with pytest.raises(ConfigError, match="the bucket was made anew"):
        tokens.check_bucket(bucket="default", uuid="u2", vbuckets=4)
    with pytest.raises(ConfigError, match="tokens of 4 vbuckets, the source has 8"):
        tokens.check_bucket(bucket="default", uuid="u1", vbuckets=8)


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        ({"kind": "x"}, "these are no tokens"),
        ({"format": 2}, "format 2, this release reads 1"),
        ({"vbuckets": 0}, "0 vbuckets"),
        ({"vbuckets": True}, "True vbuckets"),
        ({"bucket": 1}, "bucket or uuid is no text"),
        ({"positions": []}, "positions are no object"),
        ({"positions": {"x": {}}}, "position named 'x'"),
        ({"positions": {"9": {}}}, "tokens of vbucket 9"),
        ({"more": 1}, "with keys"),
    ],
)
def test_damage_is_named(damage: dict[str, object], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        TokenSet.from_json(a_set().to_json() | damage)


def test_text_that_is_no_json_is_refused() -> None:
    with pytest.raises(ConfigError, match="no JSON"):
        TokenSet.from_text("{")


def test_positions_outside_the_bucket_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"tokens of vbucket 4, bucket 'default' has 0\.\.3"):
        a_set(positions={4: BEGINNING})


def test_a_file_holds_the_old_set_or_the_new_one(tmp_path: Path) -> None:
    store = TokenFile(tmp_path / "tokens")
    assert store.load() is None
    store.save(a_set())
    store.save(a_set(uuid="u2"))
    assert store.load() == a_set(uuid="u2")
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"], "nothing is left beside it"
    assert json.loads(store.path.read_text())["uuid"] == "u2"


def test_a_write_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TokenFile(tmp_path / "tokens")
    store.save(a_set())

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ConfigError, match="cannot be written: No space left"):
        store.save(a_set(uuid="u2"))
    assert store.load() == a_set()
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"tokens: tokens that are no JSON"):
        TokenFile(path).load()
    with pytest.raises(ConfigError, match="cannot be read"):
        TokenFile(tmp_path).load()
