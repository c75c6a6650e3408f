"""headrace tokens: show, diff, check, edit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from headrace.client.bucket import connect
from headrace.client.tokens import TokenFile, TokenSet
from headrace.client.writer import Document
from headrace.history import Boundaries, BranchId, ResumeToken, Seqno
from headrace.protocol.talk import Position
from tests.cli.node_for_commands import call, node_url, put

if TYPE_CHECKING:
    from pathlib import Path


def stored(path: Path, **seqnos: tuple[int, ...]) -> str:
    """A file of tokens: vbucket name -> boundaries."""
    positions = {}
    for name, marks in seqnos.items():
        held = Boundaries()
        for mark in marks:
            held = held.recorded(Seqno(mark), BranchId(0xAAAA))
        token = ResumeToken.at_boundary(BranchId(0xAAAA), Seqno(marks[-1]))
        positions[int(name[1:])] = Position(token, held)
    TokenFile(path).save(TokenSet(bucket="default", uuid="u", vbuckets=4, positions=positions))
    return str(path)


def test_show_and_diff(tmp_path: Path) -> None:
    old = stored(tmp_path / "old", v0=(3, 9), v1=(4,))
    new = stored(tmp_path / "new", v0=(3, 12), v1=(2,))
    shown = call("tokens", "show", old).stdout
    assert "bucket default uuid u: 2 of 4" in shown
    assert "    0 000000000000aaaa @ 9  boundaries 3 9" in shown
    assert json.loads(call("tokens", "show", old, "--json").stdout)["format"] == 1
    told = call("tokens", "diff", old, new).stdout
    assert "    0 9 -> 12 (+3)" in told
    assert "    1 4 -> 2 (-2)  BACK" in told
    assert "2 vbuckets moved, +1 seqnos" in told


def test_edit_goes_back_to_a_boundary_and_never_forward(tmp_path: Path) -> None:
    file = stored(tmp_path / "tokens", v0=(3, 9), v1=(4,))
    assert "0 9 -> 3" in call("tokens", "edit", file, "--to", "8").stdout
    tokens = TokenFile(file).load()
    assert tokens is not None
    assert [tokens.seqno(v) for v in (0, 1)] == [3, 4]
    call("tokens", "edit", file, "--beginning", "--vbucket", "1", "--out", str(tmp_path / "b"))
    edited = TokenFile(tmp_path / "b").load()
    assert edited is not None
    assert [edited.seqno(v) for v in (0, 1)] == [3, 0]
    assert "either --to SEQNO or --beginning" in call("tokens", "edit", file, code=1).stderr
    wrong = call("tokens", "edit", file, "--to", "1", "--vbucket", "3", code=1)
    assert "has no tokens of vbucket 3" in wrong.stderr


def test_check_says_in_words_what_would_happen(tmp_path: Path) -> None:
    with node_url(vbuckets=1) as url:
        put(url, *(Document(b"k%d" % n, b"1") for n in range(10)))
        with connect(url) as bucket:
            now = bucket.tokens_now()
        file = tmp_path / "tokens"
        TokenFile(file).save(now)
        assert "1 go on, 0 would be rolled back" in call("tokens", "check", url, str(file)).stdout
        position = now.position(0)
        ahead = ResumeToken.at_boundary(position.token.branch, Seqno(99), position.token.log)
        marks = position.boundaries.recorded(Seqno(99), position.token.branch)
        TokenFile(file).save(now.updated({0: Position(ahead, marks)}))
        told = call("tokens", "check", url, str(file), code=3).stdout
        assert "vbucket 0 at 99: rolled back to the boundary 10 (the source says 10)" in told
        record = json.loads(call("tokens", "check", url, str(file), "--json", code=3).stdout)
        assert (record["lands_on"], record["rollback"]) == (10, True)


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("{}", encoding="utf-8")
    assert "these are no tokens" in call("tokens", "show", str(file), code=1).stderr
    assert call("tokens", "show", str(tmp_path / "absent"), code=2).exit_code == 2


@pytest.mark.parametrize("word", ["show", "diff", "check", "edit"])
def test_every_command_has_help(word: str) -> None:
    assert "Usage" in call("tokens", word, "--help").stdout
