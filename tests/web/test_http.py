"""One request, one answer."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from headrace.node.management import HttpRefusal, Request
from headrace.web.http import (
    QUERY_FIELDS_MAX,
    SECURITY,
    Answer,
    check_host,
    check_origin,
    json_answer,
    names_of,
    object_of,
    query_of,
    read_static,
)


def request(path: str = "/", body: bytes = b"", **headers: str) -> Request:
    return Request("GET", path, {n.replace("_", "-"): v for n, v in headers.items()}, body)


def test_every_answer_carries_the_security_headers() -> None:
    text = json_answer({"a": 1}, Set_Cookie="x=1").to_bytes().decode()
    head, _, body = text.partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 OK\r\n")
    assert "Set-Cookie: x=1" in head
    assert "Cache-Control: no-store" in head
    assert f"Content-Length: {len(body)}" in head
    for name, value in SECURITY.items():
        assert f"{name}: {value}" in head


def test_the_policy_lets_nothing_inline_and_nothing_foreign_in() -> None:
    policy = SECURITY["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "frame-ancestors 'none'" in policy


@pytest.mark.parametrize("name", ["127.0.0.1:80", "localhost:80", "[::1]:80", "LOCALHOST:80"])
def test_our_own_names_pass(name: str) -> None:
    check_host(request(host=name), names_of("127.0.0.1", 80))


@pytest.mark.parametrize(
    "name", ["evil.example:80", "127.0.0.1:81", "127.0.0.1", "", "a@localhost:80"]
)
def test_a_foreign_name_is_refused(name: str) -> None:
    with pytest.raises(HttpRefusal) as refused:
        check_host(request(host=name), names_of("127.0.0.1", 80))
    assert refused.value.status.startswith("421")


def test_beyond_loopback_only_the_named_host_passes() -> None:
    assert names_of("10.0.0.1", 80) == frozenset({"10.0.0.1:80"})
    assert names_of("::1", 80) == frozenset({"[::1]:80", "127.0.0.1:80", "localhost:80"})
    assert names_of("0.0.0.0", 80) is None  # noqa: S104 - nothing listens
    check_host(request(host="any.example"), None)


@pytest.mark.parametrize("origin", ["", "null", "http://evil.example", "http://127.0.0.1:81"])
def test_another_sites_page_may_change_nothing(origin: str) -> None:
    with pytest.raises(HttpRefusal):
        check_origin(request(host="127.0.0.1:80", origin=origin))


def test_our_own_page_may() -> None:
    check_origin(request(host="127.0.0.1:80", origin="http://127.0.0.1:80"))


def test_a_query_is_read_within_limits() -> None:
    assert query_of(request("/a?b=1&c=%20x")) == ("/a", {"b": "1", "c": " x"})
    with pytest.raises(HttpRefusal):
        query_of(request("/a?" + "&".join(f"n{n}=1" for n in range(QUERY_FIELDS_MAX + 1))))


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"[" * 100_000, b"\xff"])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(HttpRefusal):
        object_of(request(body=body, content_type="application/json"))


def test_a_form_of_another_site_is_no_json() -> None:
    with pytest.raises(HttpRefusal) as refused:
        object_of(request(body=b"{}", content_type="text/plain"))
    assert refused.value.status.startswith("415")
    assert object_of(request(body=b"{}", content_type="application/json; charset=utf-8")) == {}


def test_the_page_and_all_it_names_are_in_the_package() -> None:
    found = read_static()
    page = found["/"].body.decode()
    for name in re.findall(r'(?:src|href)="([^"#]+)"', page):
        assert f"/{name}" in found, name
    for path, answer in found.items():
        for name in re.findall(r'from "\./([^"]+)"', answer.body.decode()):
            assert f"/{name}" in found, f"{path} imports {name}"


def test_the_page_names_nothing_elsewhere_and_holds_nothing_inline() -> None:
    for path, answer in read_static().items():
        text = answer.body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, path
        assert "innerHTML" not in text, path
    page = read_static()["/"].body.decode()
    assert not re.search(r"<script(?![^>]*src=)", page)
    assert not re.search(r"\son\w+=|\sstyle=|<style", page)


def test_no_script_is_longer_than_a_sitting() -> None:
    for file in files("headrace.web").joinpath("static").iterdir():
        lines = file.read_text(encoding="utf-8").count("\n")
        assert lines <= 600, file.name


def test_an_answer_knows_its_length() -> None:
    assert b"Content-Length: 3" in Answer(b"abc", "text/plain").to_bytes()
