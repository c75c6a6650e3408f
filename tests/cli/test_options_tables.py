"""Options of the commands that keep tables: sync, verify, history, tables, demo."""

from __future__ import annotations

import contextlib
import json
import shutil
from typing import TYPE_CHECKING, Final
from unittest import mock

import pytest

from headrace.client.writer import Document
from headrace.node.config import NodeConfig
from headrace.node.users import read_users
from headrace.spark.sync import Sync
from tests.cli.node_for_commands import call, put
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
from tests.demo.test_summary import summary_of
from tests.node.running import SMALL, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.demo.run import Demo
    from headrace.demo.summary import Summary
    from headrace.spark.sync import Turn


@contextlib.contextmanager
def followed_briefly() -> Iterator[None]:
    """A follower that is told to stop when it has caught up."""
    follow = Sync.follow

    def brief(self: Sync) -> Iterator[Turn | None]:
        for turn in follow(self):
            yield turn
            if turn is None:
                self.stop()

    with mock.patch.object(Sync, "follow", brief):
        yield


@contextlib.contextmanager
def not_run() -> Iterator[None]:
    """A demo that was run before: `tests/cli/test_demo.py` runs it."""

    def run(self: Demo) -> Summary:
        return summary_of(self.tables)

    with mock.patch("headrace.demo.run.Demo.run", run):
        yield


LOGIN: Final = {
    "--user": Value(
        "alice --password-file {secret}", "bob --password-file {secret}", url="{users}"
    ),
    "--password-file": Value("{secret} --user alice", "{tmp}/missing", url="{users}"),
    "--bucket": Value("default", "nope", url="{bare}"),
}
ALONE: Final = "--master none"
MASTER: Final = Value("none", "mesos://nowhere")

TABLES: Final[dict[str, Table]] = {
    "sync": Table(
        f"{{url}} {{tmp}}/new {ALONE}",
        {
            "URL": Value("{url}", "http://nowhere", base=f"{{URL}} {{tmp}}/t {ALONE}"),
            "TABLE_DIR": Value("{tmp}/dir", "{file}/inner", base=f"{{url}} {{TABLE_DIR}} {ALONE}"),
            "--once": Value(),
            "--follow": Value(),
            "--master": Value("none", "mesos://nowhere", base="{url} {tmp}/master"),
            "--conf": Value("spark.log.level=ERROR", "no-equals-sign"),
            **LOGIN,
            "--collection": Value("_default._default", "shop.none"),
            "--parts": Value("2"),
            "--rows-per-turn": Value("10"),
            "--state": Value(),
            "--no-state": Value(),
            "--rebuild-turns": Value("3"),
            "--soft-deletes": Value(),
            "--column": Value("n:bigint", "n"),
            "--json": Value(),
        },
        around=followed_briefly,
    ),
    "verify": Table(
        f"{{url}} {{tables}} {ALONE}",
        {
            "URL": Value("{url}", "http://nowhere", base=f"{{URL}} {{tables}} {ALONE}"),
            "TABLE_DIR": Value("{tables}", "{tmp}", base=f"{{url}} {{TABLE_DIR}} {ALONE}"),
            "--master": Value("none", "mesos://nowhere", base="{url} {tables}"),
            "--conf": Value("spark.log.level=ERROR", "no-equals-sign"),
            **{
                name: Value(value.good, value.bad, url=value.url, base=f"{{url}} {tables} {ALONE}")
                for (name, value), tables in zip(
                    LOGIN.items(), ("{user_tables}", "{user_tables}", "{tables}"), strict=True
                )
            },
            "--show": Value("5"),
            "--json": Value(),
        },
    ),
    "history": Table(
        "{tables} k1",
        {
            "PLACE": Value("{url}", "{tmp}", base="{PLACE} k1"),
            "KEY": Value("k1", "no-such-key", base="{tables} {KEY}"),
            **{
                name: Value(value.good, value.bad, url=value.url, base="{url} k1")
                for name, value in LOGIN.items()
            },
            "--collection-id": Value("0"),
            "--json": Value(),
        },
    ),
    "tables": Table("", {}),
    **{
        f"tables {name}": Table(
            f"{{copy}} {base}",
            {
                "TABLE_DIR": Value("{copy}", "{tmp}", base=f"{{TABLE_DIR}} {base}"),
                "--json": Value(),
                **({"--dry-run": Value()} if name != "show" else {}),
                **({"--master": MASTER} if name in ("compact", "retain") else {}),
                **more,
            },
        )
        for name, base, more in (
            ("show", "", {}),
            ("compact", "", {}),
            (
                "retain",
                "--days 3",
                {
                    "--days": Value("1", base="{copy}"),
                    "--since": Value("2020-01-01", "yesterday-ish", base="{copy}"),
                },
            ),
            ("vacuum", "", {"--hours": Value("200"), "--force": Value("--hours 0")}),
        )
    },
    "demo": Table(
        "--out {tmp}/demo --master none",
        {
            "--out": Value("{tmp}/other", "{tmp}"),
            "--seconds": Value("5"),
            "--documents": Value("500"),
            "--rate": Value("100"),
            "--vbuckets": Value("8"),
            "--seed": Value("7"),
            "--master": Value("none", "mesos://nowhere"),
            "--port": Value("0"),
            "--keep": Value(),
            "--json": Value(),
        },
        around=not_run,
    ),
}


@pytest.fixture
def world(sources: World, tmp_path: Path) -> World:
    copy = shutil.copytree(sources["tables"], tmp_path / "copy")
    return {**sources, **secrets(tmp_path), "tmp": str(tmp_path), "copy": str(copy)}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    tmp = tmp_path_factory.mktemp("sources")
    secret = secrets(tmp)["secret"]
    users = tmp / "users.toml"
    users.write_text('[users.alice]\npassword = "correct horse"\nrole = "admin"\n')
    users.chmod(0o600)
    with (
        running(NodeConfig(buckets=(SMALL,))) as plain,
        running(NodeConfig(buckets=(SMALL,), users=read_users(users))) as secured,
    ):
        bare = f"couchbase://127.0.0.1:{plain.port}"
        url, other = f"{bare}/default", f"couchbase://127.0.0.1:{secured.port}/default"
        put(url, *(Document(b"k%d" % n, b'{"n": 1}', is_json=True) for n in range(40)))
        login = ("--user", "alice", "--password-file", secret)
        (tmp / "lines.jsonl").write_text('{"id": 1, "n": 1}\n', encoding="utf-8")
        call("load", other, str(tmp / "lines.jsonl"), "--key-field", "k{id}", *login)
        call("sync", url, str(tmp / "tables"), *ALONE.split())
        call("sync", other, str(tmp / "user_tables"), *ALONE.split(), *login)
        yield {
            "url": url,
            "bare": bare,
            "users": other,
            "tables": str(tmp / "tables"),
            "user_tables": str(tmp / "user_tables"),
        }


@pytest.mark.parametrize("case", good_cases(TABLES), ids=str)
def test_a_good_value_works(case: Case, world: World) -> None:
    check_good(case, world)


@pytest.mark.parametrize("case", bad_cases(TABLES), ids=str)
def test_a_bad_value_is_one_sentence(case: Case, world: World) -> None:
    check_bad(case, world)


def test_what_scripts_read_is_json(world: World) -> None:
    verified = call("verify", world["url"], world["tables"], *ALONE.split(), "--json").stdout
    assert json.loads(verified)["count"] == 0
    (line,) = call("history", world["tables"], "k1", "--json").stdout.splitlines()
    assert json.loads(line)["value"] == {"n": 1}
    synced = call("sync", world["url"], f"{world['tmp']}/t", *ALONE.split(), "--json").stdout
    assert sum(json.loads(line)["rows"] for line in synced.splitlines()) == 40
