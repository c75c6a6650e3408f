"""Checks of a source: the first step that fails names its reason, and is the last."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from headrace.cli import reaching
from headrace.cli.finding import Finding, Verdict
from headrace.cli.reaching import examine
from headrace.client.access import Tls
from headrace.client.kv import KvConnection
from headrace.node.config import NodeConfig
from headrace.node.tls import make_certificate
from headrace.node.users import Role, User, Users
from tests.node.running import SMALL, RunningNode, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NOBODY: dict[str, Any] = {
    "user": None,
    "password": None,
    "tls": None,
    "connect_seconds": 5.0,
    "dialect": None,
}
STEPS = [
    "address",
    "name",
    "reach",
    "tls",
    "login",
    "bucket",
    "features",
    "dialect",
    "vbuckets",
    "collections",
    "clock",
]


def found(url: str, **more: object) -> list[Finding]:
    return list(examine(url, None, NOBODY | more))


def url_of(node: RunningNode) -> str:
    return f"couchbase://127.0.0.1:{node.port}/default"


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    with running(NodeConfig(buckets=(SMALL,))) as started:
        yield started


def failed(findings: list[Finding]) -> Finding:
    """The finding that failed: the last one, and the only one."""
    assert [one.verdict is Verdict.FAIL for one in findings] == [False] * (len(findings) - 1) + [
        True
    ]
    return findings[-1]


def test_a_node_that_works_passes_every_step(node: RunningNode) -> None:
    findings = found(url_of(node))
    assert [one.check for one in findings] == STEPS
    assert {one.verdict for one in findings} == {Verdict.OK}
    told = {one.check: one.found for one in findings}
    assert "collections" in told["features"]
    assert told["dialect"].startswith("dcp-7")
    assert told["vbuckets"].startswith("4 on 1 node")


def test_a_named_dialect_is_the_one_spoken(node: RunningNode) -> None:
    told = {one.check: one.found for one in found(url_of(node), dialect="dcp-5")}
    assert told["dialect"].startswith("dcp-5")


@pytest.mark.parametrize(
    ("url", "check", "words"),
    [
        ("http://somewhere/x", "address", "scheme 'http'"),
        ("couchbase://127.0.0.1", "bucket", "names none"),
        ("couchbase://no.such.host.invalid/b", "name", "unknown"),
        ("couchbase://127.0.0.1:1/b", "reach", "nothing listens"),
    ],
)
def test_the_way_to_a_node_is_checked_step_by_step(url: str, check: str, words: str) -> None:
    last = failed(found(url))
    assert last.check == check
    assert words in last.found
    assert last.advice


def test_a_bucket_that_is_not_there_is_told(node: RunningNode) -> None:
    last = failed(found(url_of(node).replace("default", "nope")))
    assert last.check == "bucket"
    assert "nope" in last.found


def test_a_wrong_password_is_told() -> None:
    users = Users((User(name="alice", password="right", role=Role.ADMIN),))  # noqa: S106 - a test's
    with running(NodeConfig(buckets=(SMALL,), users=users)) as node:
        last = failed(found(url_of(node), user="alice", password="wrong"))  # noqa: S106
        assert last.check == "login"
        assert last.advice == "check user and password"
        right = found(url_of(node), user="alice", password="right")  # noqa: S106
        assert {one.check: one.found for one in right}["login"] == "as alice"


def test_a_peer_that_is_no_node_is_told() -> None:
    with talker(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        last = failed(found(f"couchbase://127.0.0.1:{port}/default"))
    assert last.check == "login"
    assert "HTTP" in last.found


@contextmanager
def talker(text: bytes) -> Iterator[int]:
    """A server that says one thing to everyone."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def talk() -> None:
            while True:
                try:
                    peer, _ = server.accept()
                except OSError:
                    return
                with peer:
                    peer.sendall(text)

        thread = threading.Thread(target=talk, daemon=True)
        thread.start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def test_tls_is_looked_at(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="the extra `tls` makes the node's certificate")
    files = make_certificate(tmp_path)
    with running(NodeConfig(buckets=(SMALL,), tls=files, tls_port=0)) as node:
        url = f"couchbases://127.0.0.1:{node.node.ports.tls}/default"
        trusted = {one.check: one for one in found(url, tls=Tls(trust=str(files.certificate)))}
        assert trusted["tls"].verdict is Verdict.OK
        assert "TLSv1" in trusted["tls"].found
        assert "days" in trusted["tls"].found
        unchecked = {one.check: one for one in found(url, tls=Tls(verify=False))}
        assert unchecked["tls"].verdict is Verdict.WARN
        assert "not trusted" in failed(found(url)).found


def test_a_certificate_that_ends_soon_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cryptography", reason="the extra `tls` makes the node's certificate")
    files = make_certificate(tmp_path)
    monkeypatch.setattr(reaching, "CERTIFICATE_DAYS_MIN", 100_000)
    with running(NodeConfig(buckets=(SMALL,), tls=files, tls_port=0)) as node:
        url = f"couchbases://127.0.0.1:{node.node.ports.tls}/default"
        told = {one.check: one for one in found(url, tls=Tls(trust=str(files.certificate)))}
        assert told["tls"].advice == "renew the node's certificate"


@pytest.mark.parametrize(
    ("apart", "verdict"), [(0, Verdict.OK), (-3_600, Verdict.WARN), (3_600, Verdict.WARN)]
)
def test_a_clock_that_is_apart_is_a_warning(
    node: RunningNode, apart: int, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = KvConnection.stats

    def shifted(self: KvConnection, group: str = "") -> dict[str, str]:
        told = stats(self, group)
        return told | {"time": str(int(told["time"]) + apart)}

    monkeypatch.setattr(KvConnection, "stats", shifted)
    assert found(url_of(node))[-1].verdict is verdict
