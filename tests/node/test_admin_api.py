"""The admin API over HTTP."""

from __future__ import annotations

import http.client
import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from headrace.node.admin_api import BODY_SIZE_MAX, HEAD_SIZE_MAX
from headrace.node.config import NodeConfig
from headrace.node.fault_table import LEVERS, TRIGGERS
from headrace.testing import running_node
from tests.node.fault_kit import Consumer, fill
from tests.node.running import SMALL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.testing import RunningNode

TOKEN = "a token for one test"  # noqa: S105 - of a node that lives for one test


@pytest.fixture
def node() -> Iterator[RunningNode]:
    config = NodeConfig(buckets=(SMALL,), admin_port=0, admin_token=TOKEN)
    with running_node(config=config) as started:
        yield started


def call(
    node: RunningNode, method: str, path: str, body: object = None, *, token: str = TOKEN
) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    assert node.node.admin is not None
    connection = http.client.HTTPConnection("127.0.0.1", node.node.admin.port, timeout=20)
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body)
    connection.request(method, path, content, {"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    try:
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_both_tables_can_be_read(node: RunningNode) -> None:
    status, answer = call(node, "GET", "/faults")
    assert status == 200
    assert set(answer["levers"]) == set(LEVERS)
    assert set(answer["triggers"]) == set(TRIGGERS)
    assert answer["levers"]["failover"]["needs"] == ["vbucket", "seqno or lose"]


def test_a_lever_is_pulled(node: RunningNode) -> None:
    fill(node.port, 30, vbucket=1)
    body = {"lever": "failover", "vbucket": 1, "lose": 10}
    status, answer = call(node, "POST", "/faults", body)
    assert (status, answer["state"], answer["result"]["seqno"]) == (200, "fired", 20)
    _, answer = call(node, "POST", "/faults", {"lever": "purge"})
    assert answer["result"]["compacted"] == 4


def test_a_lever_waits_for_its_trigger(node: RunningNode) -> None:
    body = {"lever": "failover", "lose": 2, "when": "at vbucket 2 seqno 5"}
    _, answer = call(node, "POST", "/faults", body)
    assert answer["state"] == "waiting"
    _, answer = call(node, "POST", "/faults", {"line": "then: set state vbucket 3 to dead"})
    assert answer["state"] == "waiting"
    fill(node.port, 5, vbucket=2)
    node.faults.steps.all[1].wait()
    _, answer = call(node, "GET", "/scenario")
    assert [step["state"] for step in answer["steps"]] == ["fired", "fired"]
    assert answer["steps"][0]["result"]["seqno"] == 3


def test_a_scenario_is_added(node: RunningNode) -> None:
    status, answer = call(node, "POST", "/scenario", {"text": "after 100s: purge\nnow: clear\n"})
    assert status == 200
    assert [step["state"] for step in answer["steps"]] == ["cancelled", "fired"]
    status, answer = call(node, "POST", "/scenario", {"text": "now: clear\nnow: bang"})
    assert status == 400
    assert answer["error"].startswith("scenario, line 2, column 6: found 'bang'")


def test_vbuckets_and_connections_are_shown(node: RunningNode) -> None:
    fill(node.port, 3, vbucket=1)
    with Consumer(node.port, vbucket=1) as consumer:
        consumer.accept()
        consumer.until_seqno(3)
        _, answer = call(node, "GET", "/vbuckets")
        vbuckets = answer["buckets"]["default"]["vbuckets"]
        assert [one["high_seqno"] for one in vbuckets] == [0, 3, 0, 0]
        assert vbuckets[1]["failover_log"][0]["branch"] == f"{consumer.log[0].uuid:016x}"
        node.faults.slow(connection="sync:one", rate=1_000)
        _, answer = call(node, "GET", "/connections")
        (shown,) = (one for one in answer["connections"] if one["name"] == "sync:one")
        assert shown["bytes_per_second"] == 1_000
        assert shown["streams"][0]["sent_seqno"] == 3
        assert shown["streams"][0]["state"] == "in_memory"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "sentence"),
    [
        ("GET", "/nowhere", None, 404, "/nowhere; there are: /faults"),
        ("DELETE", "/faults", None, 405, "DELETE; allowed: GET and POST"),
        ("POST", "/faults", b"{", 400, "not JSON"),
        ("POST", "/faults", b"[" * 100_000, 400, "not JSON"),
        ("POST", "/faults", [], 400, "no JSON object"),
        ("POST", "/faults", {}, 400, 'give {"lever"'),
        ("POST", "/faults", {"lever": "x"}, 400, "lever 'x' is unknown; there are: failover"),
        ("POST", "/faults", {"lever": "cut", "speed": 1}, 400, "cut takes no speed"),
        ("POST", "/faults", {"lever": "cut"}, 400, "cut needs connection"),
        ("POST", "/faults", {"lever": "cut", "connection": "x"}, 400, "no connection is 'x'"),
        ("POST", "/faults", {"lever": "purge", "vbucket": "three"}, 400, "allowed: 0..1023"),
        ("POST", "/faults", {"lever": "purge", "vbucket": 9}, 400, "does not exist"),
        ("POST", "/faults", {"lever": "clear", "when": "never"}, 400, "column 1 of 'never'"),
        ("POST", "/faults", {"line": "bang"}, 400, "line 1, column 1: found 'bang'"),
        ("POST", "/faults", {"line": "now: clear", "lever": "cut"}, 400, "nothing else"),
        ("POST", "/scenario", {"text": 1}, 400, 'give {"text"'),
    ],
)
def test_a_mistake_is_a_sentence(
    node: RunningNode, method: str, path: str, body: object, status: int, sentence: str
) -> None:
    found, answer = call(node, method, path, body)
    assert found == status
    assert sentence in answer["error"]


def test_nothing_is_told_without_the_token(node: RunningNode) -> None:
    for token in ("", "wrong", TOKEN + "x"):
        for method, path in (("GET", "/faults"), ("POST", "/faults"), ("GET", "/nowhere")):
            status, answer = call(node, method, path, token=token)
            assert status == 401
            assert set(answer) == {"error"}


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"junk\r\n\r\n", b"400"),
        (b"GET /faults HTTP/1.1\r\nX: " + b"x" * HEAD_SIZE_MAX + b"\r\n\r\n", b"431"),
        (
            b"POST /faults HTTP/1.1\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n"
            b"Content-Length: %d\r\n\r\n" % (BODY_SIZE_MAX + 1),
            b"413",
        ),
        (b"GET /faults HTTP/1.1\r\nAuthorization: Bearer \xff\xfe\r\n\r\n", b"401"),
    ],
)
def test_what_is_no_request_is_refused(node: RunningNode, data: bytes, status: bytes) -> None:
    assert node.node.admin is not None
    with socket.create_connection(("127.0.0.1", node.node.admin.port), 20) as link:
        link.sendall(data)
        assert link.recv(1 << 16).startswith(b"HTTP/1.1 " + status)
    assert call(node, "GET", "/faults")[0] == 200


def test_a_token_is_made_when_none_is_given() -> None:
    with running_node(config=NodeConfig(buckets=(SMALL,), admin_port=0)) as node:
        assert node.node.admin is not None
        assert len(node.node.admin.token) >= 32
        assert call(node, "GET", "/faults", token=node.node.admin.token)[0] == 200
