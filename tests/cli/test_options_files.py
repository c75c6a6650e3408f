"""Options of the commands that need no node: decode, tokens, completion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from headrace.client.tokens import TokenFile, TokenSet
from headrace.history import Boundaries, BranchId, ResumeToken, Seqno
from headrace.protocol.talk import Position
from tests.cli.option_kit import (
    Case,
    Table,
    Value,
    World,
    bad_cases,
    check_bad,
    check_good,
    good_cases,
    secrets,
)
from tests.test_captures import CAPTURES

if TYPE_CHECKING:
    from pathlib import Path


TABLES: Final[dict[str, Table]] = {
    "decode": Table(
        "{capture}",
        {
            "FILE": Value("{capture}", "{tmp}/missing", base="{FILE}"),
            "--format": Value("pcap"),
            "--port": Value("12266"),
            "--dialect": Value("dcp-7"),
            "--tolerant": Value(),
            "--strict": Value(),
            "--direction": Value("client"),
            "--opcode": Value("stream_req", "no-such-opcode"),
            "--vbucket": Value("0"),
            "--connection": Value("1"),
            "--limit": Value("3"),
            "--bytes": Value(),
            "--json": Value(),
            "--summary": Value(),
            "--parquet": Value("{tmp}/rows.parquet", "{file}/rows.parquet"),
        },
    ),
    "tokens": Table("", {}),
    "tokens show": Table(
        "{tokens}",
        {
            "FILE": Value("{tokens}", "{broken}", base="{FILE}"),
            "--json": Value(),
            "--vbucket": Value("1"),
        },
    ),
    "tokens diff": Table(
        "{tokens} {tokens}",
        {
            "OLD": Value("{tokens}", "{tmp}/missing", base="{OLD} {tokens}"),
            "NEW": Value("{tokens}", "{broken}", base="{tokens} {NEW}"),
        },
    ),
    "tokens edit": Table(
        "{tokens} --out {tmp}/edited",
        {
            "FILE": Value("{tokens}", "{tmp}/missing", base="{FILE} --beginning --out {tmp}/e"),
            "--vbucket": Value("1", base="{tokens} --beginning --out {tmp}/edited"),
            "--to": Value("5"),
            "--beginning": Value(),
            "--out": Value("{tmp}/other", "{file}/inner", base="{tokens} --beginning"),
        },
    ),
    "completion": Table("", {"SHELL": Value("zsh", "tcsh", base="{SHELL}")}),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    tmp = tmp_path_factory.mktemp("files")
    tokens = tmp / "my.tokens"
    write_tokens(tokens)
    return {
        "tmp": str(tmp),
        "capture": str(CAPTURES / "02_live_665.pcap"),
        "tokens": str(tokens),
        **secrets(tmp),
    }


def write_tokens(path: Path) -> None:
    held = Boundaries().recorded(Seqno(5), BranchId(0xAAAA)).recorded(Seqno(9), BranchId(0xAAAA))
    position = Position(ResumeToken.at_boundary(BranchId(0xAAAA), Seqno(9)), held)
    tokens = TokenSet(bucket="default", uuid="u", vbuckets=4, positions={0: position, 1: position})
    TokenFile(path).save(tokens)


@pytest.mark.parametrize("case", good_cases(TABLES), ids=str)
def test_a_good_value_works(case: Case, world: World) -> None:
    check_good(case, world)


@pytest.mark.parametrize("case", bad_cases(TABLES), ids=str)
def test_a_bad_value_is_one_sentence(case: Case, world: World) -> None:
    check_bad(case, world)
