"""headrace tail: lines, JSON, Arrow, Parquet, filters, and going on from tokens."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from pyarrow import ipc

from headrace.client.writer import Document
from tests.cli.node_for_commands import call, node_url, put

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def url() -> Iterator[str]:
    with node_url() as found:
        put(
            found,
            *(Document(b"user::%d" % n, b'{"n":%d}' % n, is_json=True) for n in range(30)),
            Document(b"gone", b"1"),
            Document(b"gone", None),
            Document(b"raw", b"\xff\x00"),
        )
        yield found


def test_lines_are_for_people(url: str) -> None:
    lines = call("tail", url, "--since", "beginning", "--until", "now").stdout.splitlines()
    assert len(lines) == 32
    assert any('mutation       user::7 {"n":7}' in line for line in lines)
    assert any("deletion       gone" in line for line in lines)


def test_json_lines_hold_everything(url: str) -> None:
    said = call("tail", url, "--since", "beginning", "--until", "now", "--json").stdout
    records = [json.loads(line) for line in said.splitlines()]
    by_key = {record["key"]: record for record in records}
    assert by_key["user::3"]["value"] == {"n": 3}
    assert by_key["raw"]["value"] == {"hex": "ff00"}
    assert by_key["gone"]["event"] == "deletion"
    assert by_key["gone"]["delete_time"] > 0
    assert by_key["user::3"]["collection"] == "_default._default"


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--key-prefix", "user::1"], 11),
        (["--kind", "deletion"], 1),
        (["--value-contains", '"n":2'], 11),
        (["--field", "n>=25"], 5),
        (["--field", "n=7"], 1),
        (["--limit", "5"], 5),
        (["--collection", "_default"], 32),
    ],
)
def test_filters_leave_lines_out(url: str, options: list[str], count: int) -> None:
    said = call("tail", url, "--since", "beginning", "--until", "now", "--json", *options).stdout
    assert len(said.splitlines()) == count


def test_tokens_go_on_where_the_last_run_stopped(url: str, tmp_path: Path) -> None:
    file = str(tmp_path / "tokens")
    words = ["tail", url, "--until", "now", "--json", "--tokens", file]
    assert len(call(*words, "--since", "beginning").stdout.splitlines()) == 32
    assert call(*words).stdout == ""
    put(url, Document(b"more", b"1"))
    (line,) = call(*words).stdout.splitlines()
    assert json.loads(line)["key"] == "more"
    refused = call(*words, "--since", "now", code=1)
    assert "leave --since out" in refused.stderr


def test_an_arrow_stream_holds_the_rows(url: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.arrows"
    call("tail", url, "--since", "beginning", "--until", "now", "--arrow", str(file))
    with ipc.open_stream(file.read_bytes()) as stream:
        assert stream.read_all().num_rows == 32


def test_parquet_files_are_numbered_and_go_on(url: str, tmp_path: Path) -> None:
    directory, tokens = tmp_path / "rows", str(tmp_path / "tokens")
    words = ["tail", url, "--until", "now", "--parquet", str(directory), "--tokens", tokens]
    call(*words, "--since", "beginning", "--rows-per-file", "10")
    put(url, Document(b"more", b"1"))
    call(*words)
    files = sorted(directory.iterdir())
    assert len(files) > 1
    assert all(file.name.startswith("part-0") for file in files)
    assert sum(pq.read_metadata(file).num_rows for file in files) == 33


def test_mistakes_are_sentences(url: str) -> None:
    assert "choose one" in call("tail", url, "--json", "--arrow", "x", code=1).stderr
    assert "--since soon; allowed:" in call("tail", url, "--since", "soon", code=1).stderr
    assert "--until then; allowed:" in call("tail", url, "--until", "then", code=1).stderr
    refused = call("tail", "couchbase://127.0.0.1:1/x", code=1)
    assert refused.stderr.startswith("headrace: nothing listens at 127.0.0.1:1")
