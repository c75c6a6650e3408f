"""The management port: getting ready, and collections made and dropped over HTTP."""

from __future__ import annotations

import base64
import http.client
import json
import socket
from typing import TYPE_CHECKING

import pytest

from headrace.node.config import NodeConfig
from headrace.node.users import Role, User, Users
from tests.node.running import SMALL, RunningNode, running

if TYPE_CHECKING:
    from collections.abc import Iterator

SCOPES = "/pools/default/buckets/default/scopes"
PASSWORD = "of this test"  # noqa: S105 - of a node that lives for one test


@pytest.fixture
def own() -> Iterator[RunningNode]:
    """An open node."""
    with running(NodeConfig(buckets=(SMALL,))) as node:
        yield node


def ask(
    node: RunningNode, method: str, path: str, body: str = "", **headers: str
) -> tuple[int, object]:
    """The status and JSON of an answer."""
    port = node.node.ports.management
    assert port is not None
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    link.request(method, path, body or None, headers)
    reply = link.getresponse()
    told = json.loads(reply.read())
    link.close()
    return reply.status, told


def names(node: RunningNode) -> dict[str, list[str]]:
    """Scopes and their collections."""
    status, told = ask(node, "GET", SCOPES)
    assert status == 200
    assert isinstance(told, dict)
    return {
        scope["name"]: [one["name"] for one in scope["collections"]] for scope in told["scopes"]
    }


def test_scopes_and_collections_come_and_go(own: RunningNode) -> None:
    assert ask(own, "POST", SCOPES, "name=shop") == (200, {"uid": "1"})
    inner = f"{SCOPES}/shop/collections"
    assert ask(own, "POST", inner, "name=orders&maxTTL=60") == (200, {"uid": "2"})
    assert names(own) == {"_default": ["_default"], "shop": ["orders"]}
    assert ask(own, "DELETE", f"{inner}/orders") == (200, {"uid": "3"})
    assert ask(own, "DELETE", f"{SCOPES}/shop") == (200, {"uid": "4"})
    assert names(own) == {"_default": ["_default"]}


def test_an_id_is_never_used_again(own: RunningNode) -> None:
    seen = set()
    for _ in range(3):
        ask(own, "POST", f"{SCOPES}/_default/collections", "name=again")
        seen.add(own.node.hosts["default"].manifest.collection_named("_default.again"))
        ask(own, "DELETE", f"{SCOPES}/_default/collections/again")
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("POST", SCOPES, "name=_default", 400, 'Scope with name "_default" already exists'),
        ("POST", SCOPES, "name=a%20b", 400, "name 'a b'"),
        ("POST", SCOPES, "", 400, "name ''"),
        ("POST", f"{SCOPES}/no/collections", "name=c", 404, 'Scope with name "no" is not found'),
        (
            "POST",
            f"{SCOPES}/_default/collections",
            "name=_default",
            400,
            'Collection with name "_default" in scope "_default" already exists',
        ),
        ("POST", f"{SCOPES}/_default/collections", "name=c&maxTTL=x", 400, "maxTTL"),
        (
            "DELETE",
            f"{SCOPES}/_default/collections/no",
            "",
            404,
            'Collection with name "no" in scope "_default" is not found',
        ),
        ("DELETE", f"{SCOPES}/_default", "", 400, "no scope _default"),
        ("GET", "/pools/default/buckets/no/scopes", "", 404, "not found"),
        ("GET", "/nowhere", "", 404, "not found"),
        ("PUT", SCOPES, "", 405, "PUT"),
    ],
)
def test_what_cannot_be_is_refused_in_the_words_sdks_look_for(
    own: RunningNode, method: str, path: str, body: str, status: int, said: str
) -> None:
    found, told = ask(own, method, path, body)
    assert found == status
    assert isinstance(told, dict)
    assert said in told["errors"]["name"]


def test_a_request_from_a_web_page_is_refused(own: RunningNode) -> None:
    status, _ = ask(own, "POST", SCOPES, "name=shop", Origin="https://example.com")
    assert status == 403
    assert names(own) == {"_default": ["_default"]}


@pytest.mark.parametrize(
    "data",
    [
        b"junk\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
)
def test_junk_is_answered_or_cut_and_the_next_one_served(own: RunningNode, data: bytes) -> None:
    port = own.node.ports.management
    with socket.create_connection(("127.0.0.1", port), 20) as link:
        link.sendall(data)
        try:
            assert link.recv(12) in (b"HTTP/1.1 400", b"HTTP/1.1 413", b"HTTP/1.1 431")
        except ConnectionResetError:
            """It answered and closed while we were still sending."""
    assert ask(own, "GET", "/")[0] == 200


def test_users_and_roles_are_asked_for() -> None:
    users = Users(
        (
            User(name="admin", password=PASSWORD, role=Role.ADMIN),
            User(name="reader", password=PASSWORD, role=Role.READ),
            User(name="other", password=PASSWORD, role=Role.ADMIN, buckets=frozenset({"x"})),
        )
    )

    def basic(name: str, password: str = PASSWORD) -> str:
        return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()

    with running(NodeConfig(buckets=(SMALL,), users=users)) as node:
        assert ask(node, "GET", "/")[0] == 200
        for field, read, write in (
            ("", 401, 401),
            ("Basic !!!", 401, 401),
            (basic("nobody"), 401, 401),
            (basic("admin", "wrong"), 401, 401),
            (basic("other"), 403, 403),
            (basic("reader"), 200, 403),
            (basic("admin"), 200, 200),
        ):
            assert ask(node, "GET", SCOPES, Authorization=field)[0] == read
            assert ask(node, "POST", SCOPES, "name=shop", Authorization=field)[0] == write
