"""`headrace serve`: options, what it prints, and a process that starts, serves and stops."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.cli.serve import Options, merged, node_config, read_config, tls_files
from headrace.errors import ConfigError
from headrace.node.config import ConflictResolution
from headrace.wire.opcodes import Status
from tests.node.client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).resolve().parents[2] / "src"
START_SECONDS = 60


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """Run the command as a user would, on any free port."""
    code = "from headrace.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", "--port", "0"]
    return subprocess.Popen(
        [*command, "--port-file", str(tmp_path / "port"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


def port_of(tmp_path: Path, process: subprocess.Popen[str]) -> int:
    """The port, once it is written."""
    file = tmp_path / "port"
    deadline = time.monotonic() + START_SECONDS
    while not file.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the node does not start"
        time.sleep(0.01)
    return int(file.read_text())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A node in a process of its own, with a disk."""
    process = start(tmp_path, "--data", str(tmp_path / "data"), "--vbuckets", "2")
    try:
        yield process, port_of(tmp_path, process)
    finally:
        process.kill()
        process.communicate()


def test_it_serves_prints_how_to_connect_and_stops_on_sigterm(
    served: tuple[subprocess.Popen[str], int], tmp_path: Path
) -> None:
    process, port = served
    with Client(port) as client:
        client.set(b"k", b"v")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=START_SECONDS)
    assert process.returncode == 0, err
    assert f"couchbase://127.0.0.1:{port}" in out
    assert re.search(r"Cluster\('couchbase://[^']+', ClusterOptions\(PasswordAuthenticator", out)
    assert f"headrace tail couchbase://127.0.0.1:{port}/default" in out
    assert "stopped" in err
    (tmp_path / "port").unlink()
    again = start(tmp_path, "--data", str(tmp_path / "data"))
    try:
        with Client(port_of(tmp_path, again)) as client:
            assert client.get(b"k").value == b"v"
    finally:
        again.send_signal(signal.SIGINT)
        again.communicate(timeout=START_SECONDS)


def test_the_printed_login_works(served: tuple[subprocess.Popen[str], int]) -> None:
    process, port = served
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(4)]
    (password,) = re.findall(r"Administrator / (\S+)", "".join(lines))
    with Client(port) as client:
        assert client.login("Administrator", password) == Status.SUCCESS
        assert client.login("Administrator", password + "x") == Status.AUTH_ERROR


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give either --data DIR or --memory"),
        (["--memory", "--host", "0.0.0.0"], "no users file"),  # noqa: S104 - refused
        (["--memory", "--tls-cert", "c.pem"], "go together"),
        (["--memory", "--vbuckets", "9999"], "allowed 1..1024"),
        (["--memory", "--bucket", "a b"], "bucket name"),
        (["--memory", "--users", "missing.toml"], "cannot be read"),
        (["--memory", "--config", "missing.toml"], "cannot be read"),
        (["--memory", "--tls-only"], "needs TLS"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["serve", *arguments])
    assert result.exit_code == 1
    assert said in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_a_config_file_is_read_and_the_command_line_wins(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(
        'data = "here"\nport = 5\nbucket = ["a", "b"]\nflush = true\nlog-format = "json"\n'
    )
    options = merged(Options(port=7), path)
    assert (options.data, options.port, options.bucket) == (tmp_path / "here", 7, ("a", "b"))
    assert (options.flush, options.log_format) == (True, "json")
    config, password = node_config(options, None)
    assert [bucket.name for bucket in config.buckets] == ["a", "b"]
    assert config.port == 7
    assert password


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense = 1", "'nonsense' is unknown"),
        ('port = "x"', "needs int"),
        ("port = true", "needs int"),
        ("= broken", "is not TOML"),
    ],
)
def test_a_wrong_config_file_says_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "node.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_config(path)


def test_options_become_the_nodes_configuration(tmp_path: Path) -> None:
    options = Options(memory=True, lww=True, memory_quota_mb=64, vbuckets=8)
    config, _ = node_config(options, None)
    (bucket,) = config.buckets
    assert bucket.conflict_resolution is ConflictResolution.LAST_WRITE
    assert (bucket.settings.vbuckets, bucket.settings.memory_quota) == (8, 64 * 1024 * 1024)
    assert (config.host, config.port) == ("127.0.0.1", 11210)
    users = tmp_path / "users.toml"
    users.write_text('[users.a]\npassword = "x"\n')
    users.chmod(0o600)
    wide = Options(memory=True, host="0.0.0.0", users=users)  # noqa: S104 - with users
    config, password = node_config(wide, None)
    assert (config.login, password) == (None, "")


def test_a_certificate_is_made_where_the_data_is(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="the extra `tls` is not installed")
    with tls_files(Options(data=tmp_path, tls_self_signed=True)) as files:
        assert files is not None
        assert files.certificate.is_relative_to(tmp_path)
    with tls_files(Options(memory=True, tls_self_signed=True)) as files:
        assert files is not None
        made = files.certificate
        assert made.exists()
    assert not made.exists(), "gone with the node"


def test_the_page_is_one_more_choice(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text('memory = true\nweb = 0\ntables = ["lake"]\n')
    options = merged(Options(web=8311), path)
    assert (options.web, options.tables) == (8311, (tmp_path / "lake",))
    config, _ = node_config(options, None)
    assert (config.web_port, config.web_host) == (8311, "127.0.0.1")
    assert node_config(Options(memory=True), None)[0].web_port is None
    with pytest.raises(ConfigError, match="users file and TLS"):
        node_config(Options(memory=True, web=0, web_host="10.1.2.3"), None)


def test_a_node_says_where_its_page_is(tmp_path: Path) -> None:
    process = start(tmp_path, "--memory", "--vbuckets", "2", "--web", "0")
    try:
        port_of(tmp_path, process)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=START_SECONDS)
        assert process.returncode == 0, err
        assert re.search(r"live page +http://127\.0\.0\.1:\d+/\n", out)
    finally:
        process.kill()
        process.communicate()
