"""Options of the commands that manage several nodes: replicate, move, rebalance, failover."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

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
from tests.cluster.kit import running_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FILE: Final = Value("{cluster}", "{broken}", base="{CLUSTER_FILE}")
SHARED: Final = {"--bucket": Value("default", "nope"), "--json": Value()}
MOVING: Final = {
    "--at-once": Value("2"),
    "--attempts": Value("3"),
    "--dry-run": Value(),
    "--pause-at": Value("closing"),
}

TABLES: Final[dict[str, Table]] = {
    "replicate": Table(
        "{cluster} --once",
        {
            "PLACES": Value("{cluster}", "{broken}", base="{PLACES} --once"),
            "--vbuckets": Value("0-1", "some"),
            **SHARED,
            "--once": Value(),
        },
    ),
    "move": Table(
        "{cluster} --vbuckets 1 --to b",
        {
            "CLUSTER_FILE": Value(
                "{cluster}", "{broken}", base="{CLUSTER_FILE} --vbuckets 1 --to b"
            ),
            **SHARED,
            "--vbuckets": Value("0-1", "0-9", base="{cluster} --to b"),
            "--from": Value("a", "z"),
            "--to": Value("b", "z", base="{cluster} --vbuckets 1"),
            "--resume": Value(base="{cluster}"),
            **MOVING,
        },
    ),
    "rebalance": Table("{cluster}", {"CLUSTER_FILE": FILE, **SHARED, **MOVING}),
    "failover": Table(
        "{cluster} b --force --dry-run",
        {
            "CLUSTER_FILE": Value(
                "{cluster}", "{broken}", base="{CLUSTER_FILE} b --force --dry-run"
            ),
            "NODE": Value("b", "z", base="{cluster} {NODE} --force --dry-run"),
            **SHARED,
            "--force": Value(base="{cluster} b --dry-run"),
            "--dry-run": Value(base="{cluster} b --force"),
        },
    ),
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with running_nodes(tmp_path) as nodes:
        nodes.put("a", 1, range(10))
        yield {**secrets(tmp_path), "tmp": str(tmp_path), "cluster": str(nodes.path)}


@pytest.fixture
def files(tmp_path: Path) -> World:
    """What a command that is refused before it connects needs."""
    return {**secrets(tmp_path), "tmp": str(tmp_path), "cluster": str(tmp_path / "none.toml")}


@pytest.mark.parametrize("case", good_cases(TABLES), ids=str)
def test_a_good_value_works(case: Case, world: World) -> None:
    check_good(case, world)


@pytest.mark.parametrize("case", bad_cases(TABLES), ids=str)
def test_a_bad_value_is_one_sentence(case: Case, world: World) -> None:
    check_bad(case, world)


def test_a_cluster_file_that_is_not_there_is_one_sentence(files: World) -> None:
    case = Case("rebalance", "CLUSTER_FILE", "{cluster}", FILE, TABLES["rebalance"])
    check_bad(case, files)
