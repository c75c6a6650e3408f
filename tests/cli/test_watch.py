"""headrace watch: a page of a source, until it is told to stop."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from headrace.cli.watch import write_address
from headrace.errors import ConfigError
from tests.cli.node_for_commands import call, node_url

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).resolve().parents[2] / "src"
WAIT_SECONDS = 60


@pytest.fixture
def url() -> Iterator[str]:
    with node_url() as address:
        yield address


def start(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    """Run the command as a user would."""
    code = "from headrace.cli import main; main()"
    file = str(tmp_path / "url")
    return subprocess.Popen(
        [sys.executable, "-c", code, "watch", *words, "--url-file", file],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


def address_of(tmp_path: Path, process: subprocess.Popen[str]) -> str:
    file = tmp_path / "url"
    deadline = time.monotonic() + WAIT_SECONDS
    while not file.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the page does not start"
        time.sleep(0.01)
    return file.read_text(encoding="ascii").strip()


def get(address: str, path: str) -> tuple[int, bytes]:
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    connection.request("GET", path)
    try:
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("words", [(), ("--no-follow",)])
def test_it_shows_a_page_says_where_and_stops_on_a_signal(
    url: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    process = start(tmp_path, url, *words)
    try:
        address = address_of(tmp_path, process)
        assert get(address, "/")[0] == 200
        status, body = get(address, "/api/session")
        told = json.loads(body)
        assert (status, told["buckets"], told["kind"]) == (200, ["default"], "source")
        assert (told["login"], told["has_levers"]) == (False, False)
        status, body = get(address, "/api/vbucket?bucket=default&vbucket=1")
        assert status == 200
        if words:
            assert json.loads(body)["own"] is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_SECONDS)
        assert process.returncode == 0, err
        assert f"live page     {address}" in out
        assert "Traceback" not in err
    finally:
        process.kill()
        process.communicate()


def test_a_source_that_is_not_there_is_a_sentence() -> None:
    result = call("watch", "couchbase://127.0.0.1:1/default", "--connect-seconds", "1", code=1)
    assert result.stdout == ""
    assert "127.0.0.1:1" in result.stderr


def test_a_page_that_cannot_listen_is_a_sentence(url: str) -> None:
    port = urlsplit(url).port
    result = call("watch", url, "--no-follow", "--port", str(port), code=1)
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr


def test_an_address_file_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        write_address(tmp_path / "no" / "file", "http://127.0.0.1:1/")
