"""The page over HTTP: routes, events, logins, levers, and who is refused."""

from __future__ import annotations

import asyncio
import http.client
import socket
import time
from typing import TYPE_CHECKING

import pytest

from headrace.errors import ConfigError
from headrace.node.users import Users
from headrace.web.server import PageConfig, WebServer
from headrace.web.sessions import FAILURES_MAX
from tests.node.fault_kit import Consumer, fill
from tests.web.page_kit import ADMIN, LIMITED, READER, EventReader, running_page
from tests.web.pictures import picture
from tests.web.test_hub import Scripted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.web.page_kit import RunningPage, Visitor


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningPage]:
    """One node for tests that change nothing."""
    with running_page() as page:
        yield page


@pytest.fixture
def page() -> Iterator[RunningPage]:
    """A node of the test's own."""
    with running_page() as own:
        yield own


@pytest.fixture
def visitor(page: RunningPage) -> Visitor:
    return page.visitor()


FAILOVER = {"lever": "failover", "vbucket": 1, "lose": 10, "bucket": "default"}


# -- reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/main.js", "/style.css", "/icon.svg"])
def test_the_page_is_served_as_it_is(shared: RunningPage, path: str) -> None:
    answer = shared.visitor().ask(path)
    assert answer.status == 200
    assert answer.body
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "path", ["/static/main.js", "/../server.py", "/%2e%2e/server.py", "//", "/api", "/server.py"]
)
def test_there_is_no_other_file(shared: RunningPage, path: str) -> None:
    assert shared.visitor().ask(path).status == 404


@pytest.mark.parametrize(
    ("path", "method"), [("/", "POST"), ("/api/login", "GET"), ("/events", "POST"), ("/", "PUT")]
)
def test_another_method_is_refused(shared: RunningPage, path: str, method: str) -> None:
    answer = shared.visitor().ask(path, method=method)
    assert answer.status == 405
    assert answer.json["error"]


def test_a_request_to_another_name_is_refused(shared: RunningPage) -> None:
    for path in ("/", "/events?bucket=default", "/api/session"):
        assert shared.visitor().ask(path, host="rebound.example").status == 421


def test_nobody_is_logged_in_at_first(shared: RunningPage) -> None:
    told = shared.visitor().ask("/api/session").json
    assert (told["user"], told["token"], told["levers"]) == (None, None, None)
    assert (told["buckets"], told["login"], told["has_levers"]) == (["default"], True, True)


def test_a_vbucket_is_told_with_its_log_and_its_streams(page: RunningPage) -> None:
    fill(page.node.port, 30, vbucket=2)
    with Consumer(page.node.port, name="a-reader", vbucket=2) as consumer:
        consumer.stream()
        told = page.visitor().ask("/api/vbucket?bucket=default&vbucket=2").json
        assert (told["high"], told["state"], told["persisted"]) == (30, "active", None)
        assert [len(told["log"]), told["log"][0]["seqno"]] == [1, 0]
        assert [one["name"] for one in told["streams"]] == ["a-reader"]
        key = told["streams"][0]["connection"]
        told = page.visitor().ask(f"/api/connection?bucket=default&key={key}").json
        assert [one["vbucket"] for one in told["streams"]] == [2]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/vbucket?bucket=default&vbucket=x", 400),
        ("/api/vbucket?bucket=default", 400),
        ("/api/vbucket?bucket=default&vbucket=999999999", 400),
        ("/api/vbucket?bucket=default&vbucket=77", 404),
        ("/api/vbucket?bucket=gone&vbucket=1", 404),
        ("/api/connection?bucket=default&key=12345", 404),
        ("/events?bucket=gone", 404),
        ("/events", 404),
        ("/api/vbucket?" + "&".join(f"n{n}=" + "1" for n in range(20)), 400),
    ],
)
def test_what_is_not_there_is_a_sentence(shared: RunningPage, path: str, status: int) -> None:
    answer = shared.visitor().ask(path)
    assert answer.status == status
    assert answer.json["error"]


def test_without_tables_none_are_told(shared: RunningPage) -> None:
    assert shared.visitor().ask("/api/tables").json == {"tables": [], "given": False}


def test_a_head_that_never_ends_is_refused(shared: RunningPage) -> None:
    with socket.create_connection(("127.0.0.1", shared.port), 20) as link:
        link.sendall(b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000)
        assert b" 431 " in link.recv(4096)


# -- events --------------------------------------------------------------------------------------


def test_events_begin_with_the_state_and_go_on_with_changes(page: RunningPage) -> None:
    with EventReader(page.port) as events:
        assert events.answer.getheader("content-type") == "text/event-stream"
        name, state = events.next()
        assert (name, state["source"]["bucket"]) == ("state", "default")
        assert state["columns"]["high"]["all"] == [0, 0, 0, 0]
        fill(page.node.port, 12, vbucket=3)
        seen = 0
        while seen < 12:
            name, change = events.next()
            assert name == "change"
            found = change["columns"].get("high", {})
            seen = (
                found["all"][3]
                if "all" in found
                else dict(zip(found.get("at", []), found.get("to", []), strict=True)).get(3, seen)
            )


def test_a_consumer_that_comes_and_goes_is_told(page: RunningPage) -> None:
    with EventReader(page.port) as events:
        events.next()
        with Consumer(page.node.port, name="comes-and-goes") as consumer:
            consumer.stream()
            assert events.until("joined")["text"] == "comes-and-goes connected"
        assert events.until("left")["text"] == "comes-and-goes left"


def test_one_connection_too_many_is_told_so_and_the_others_stay(
    page: RunningPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.web.server.CONNECTIONS_MAX", 2)
    with EventReader(page.port) as first:
        with EventReader(page.port):
            refused = page.visitor().ask("/")
            assert refused.status == 503
            assert "2 connections are open" in refused.json["error"]
            assert first.next()[0] == "state"
        # Who leaves is noticed at the next event.
        deadline = time.monotonic() + 30
        while page.visitor().ask("/").status == 503:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_watcher_that_leaves_is_let_go(page: RunningPage) -> None:
    for _ in range(70):
        with EventReader(page.port) as events:
            assert events.next()[0] == "state"


# -- logging in ----------------------------------------------------------------------------------


def test_who_logs_in_gets_a_cookie_no_script_can_read(visitor: Visitor) -> None:
    answer = visitor.login()
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert answer.json["user"] == "ada"
    assert "failover" in answer.json["levers"]["levers"]
    assert visitor.ask("/api/session").json["user"] == "ada"


def test_a_wrong_password_and_an_unknown_user_look_alike(visitor: Visitor) -> None:
    wrong = visitor.login(ADMIN, "wrong")
    unknown = visitor.ask("/api/login", {"user": "nobody", "password": "wrong"})
    assert (wrong.status, wrong.body) == (unknown.status, unknown.body)
    assert wrong.status == 401
    assert "set-cookie" not in wrong.headers


def test_guessing_is_stopped_even_for_the_right_password(visitor: Visitor) -> None:
    for _ in range(FAILURES_MAX):
        assert visitor.login(ADMIN, "wrong").status == 401
    assert visitor.login().status == 429


@pytest.mark.parametrize("body", [{}, {"user": "ada"}, {"user": 1, "password": 2}])
def test_half_a_login_is_refused(shared: RunningPage, body: object) -> None:
    assert shared.visitor().ask("/api/login", body).status == 400


def test_logging_out_ends_the_session(visitor: Visitor) -> None:
    visitor.login()
    assert visitor.ask("/api/logout", {}).status == 200
    assert visitor.ask("/api/session").json["user"] is None
    assert visitor.ask("/api/lever", FAILOVER).status == 401


def test_logging_in_again_ends_the_first_session(visitor: Visitor) -> None:
    visitor.login()
    first = visitor.cookie
    visitor.login()
    assert visitor.cookie != first
    assert visitor.ask("/api/session", cookie=first).json["user"] is None


# -- levers --------------------------------------------------------------------------------------


def test_an_administrator_fails_a_vbucket_over_and_everyone_sees_it(page: RunningPage) -> None:
    fill(page.node.port, 30, vbucket=1)
    visitor = page.visitor()
    visitor.login()
    with EventReader(page.port) as events:
        events.next()
        told = visitor.ask("/api/lever", FAILOVER).json
        assert told["result"]["seqno"] == 20
        assert events.until("lever")["text"].startswith("ada pulled failover")
    detail = visitor.ask("/api/vbucket?bucket=default&vbucket=1").json
    branch = told["result"]["branch"]
    assert [entry["seqno"] for entry in detail["log"]] == [20, 0]
    assert detail["log"][0]["branch"] == branch
    assert detail["reached"] == {branch: 30}


def refused_levers() -> dict[str, tuple[int, dict[str, str | None]]]:
    """What is missing from a good request -> the status it gets, the headers that lack it."""
    return {
        "no cookie": (401, {"cookie": None}),
        "a made-up cookie": (401, {"cookie": "headrace_session_1=x"}),
        "no token": (403, {"x_csrf_token": None}),
        "a wrong token": (403, {"x_csrf_token": "wrong"}),
        "no origin": (403, {"origin": None}),
        "another origin": (403, {"origin": "http://evil.example"}),
        "another port's origin": (403, {"origin": "http://127.0.0.1:1"}),
        "another name": (421, {"host": "rebound.example"}),
        "a form's content type": (415, {"content_type": "text/plain"}),
    }


@pytest.mark.parametrize("case", refused_levers().values(), ids=refused_levers())
def test_a_lever_is_refused_without(
    page: RunningPage, visitor: Visitor, case: tuple[int, dict[str, str | None]]
) -> None:
    status, headers = case
    fill(page.node.port, 30, vbucket=1)
    visitor.login()
    assert visitor.ask("/api/lever", FAILOVER, **headers).status == status
    assert len(visitor.ask("/api/vbucket?bucket=default&vbucket=1").json["log"]) == 1


def test_a_reader_sees_no_levers_and_pulls_none(visitor: Visitor) -> None:
    assert visitor.login(READER).json["levers"] is None
    assert visitor.ask("/api/lever", FAILOVER).status == 403


def test_an_administrator_of_another_bucket_pulls_none_here(visitor: Visitor) -> None:
    visitor.login(LIMITED)
    assert visitor.ask("/api/lever", FAILOVER).status == 403
    assert visitor.ask("/api/lever", {"lever": "cut", "connection": "*"}).status == 403


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"lever": "fly"},
        {"lever": "failover", "vbucket": 1},
        {"lever": "failover", "vbucket": "x", "lose": 1},
        {"line": "now: crash"},
        {"lever": "failover", "vbucket": 1, "lose": 1, "when": "after 1s"},
        {"lever": "pause", "connection": "nobody"},
    ],
)
def test_a_lever_that_cannot_be_pulled_is_a_sentence(visitor: Visitor, body: object) -> None:
    visitor.login()
    answer = visitor.ask("/api/lever", body)
    assert answer.status == 400
    assert answer.json["error"]


# -- another kind of page --------------------------------------------------------------------------


def ask_of(config: PageConfig, *paths: str) -> list[int]:
    """Statuses of a page over a scripted source."""

    async def main() -> list[int]:
        async with WebServer(Scripted(picture()), config) as server:

            def get(path: str) -> int:
                link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
                link.request("GET", path)
                try:
                    return link.getresponse().status
                finally:
                    link.close()

            return [await asyncio.to_thread(get, path) for path in paths]

    return asyncio.run(main())


def test_a_guarded_page_shows_itself_and_nothing_else_without_a_login() -> None:
    paths = ("/", "/api/session", "/events?bucket=default", "/api/tables")
    assert ask_of(PageConfig(guarded=True, users=Users((ADMIN,))), *paths) == [200, 200, 401, 401]
    assert ask_of(PageConfig(), *paths) == [200, 200, 200, 200]


def test_a_taken_port_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = f"cannot listen on 127.0.0.1:{port}: address already in use$"
        with pytest.raises(ConfigError, match=said):
            ask_of(PageConfig(port=port))
