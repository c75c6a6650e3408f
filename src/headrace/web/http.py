"""One request of a browser, one answer: what the page's HTTP server needs, and no more.

Reading is the management port's (`headrace.node.management.read_request`). Every answer says that
it may run only its own scripts, may be framed by nobody and is not to be guessed at. A request
whose Host is not one of our own names is refused: a foreign name that was made to lead to this
machine (DNS rebinding) brings its own name along.

Imports: node.management, node.config.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from headrace.node.config import is_loopback
from headrace.node.management import HttpRefusal

if TYPE_CHECKING:
    from headrace.node.management import Request

QUERY_FIELDS_MAX: Final = 8
KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
SECURITY: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - names to compare with
LOCAL_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back."""

    body: bytes = b""
    kind: str = "application/json"
    status: str = "200 OK"
    headers: dict[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """As it goes over the wire; the connection ends with it."""
        return head(self.status, self.kind, self.headers, length=len(self.body)) + self.body


def head(status: str, kind: str, headers: dict[str, str], *, length: int | None) -> bytes:
    """The head of an answer; without a length the body ends with the connection."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Connection: close"]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    told = {"Cache-Control": "no-store"} | SECURITY | headers
    lines += [f"{name}: {value}" for name, value in told.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def json_answer(value: object, *, status: str = "200 OK", **headers: str) -> Answer:
    """An answer in JSON; header names are written with _ for -."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Answer(json.dumps(value).encode(), status=status, headers=named)


def query_of(request: Request) -> tuple[str, dict[str, str]]:
    """Path and query of a request."""
    path, _, query = request.path.partition("?")
    try:
        return path, dict(parse_qsl(query, max_num_fields=QUERY_FIELDS_MAX))
    except ValueError as error:
        raise HttpRefusal("400 Bad Request", "the query has too many fields") from error


def object_of(request: Request) -> dict[str, object]:
    """The JSON object in a request's body."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HttpRefusal("415 Unsupported Media Type", "the body must be application/json")
    try:
        value = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise HttpRefusal("400 Bad Request", f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise HttpRefusal("400 Bad Request", "the body is no JSON object")
    return value


def names_of(host: str, port: int) -> frozenset[str] | None:
    """What a request may call us in its header Host; None: anything, as it must log in anyway."""
    if host in WILDCARDS:
        return None
    own = f"[{host}]" if ":" in host else host
    names = {own, *(LOCAL_NAMES if is_loopback(host) else ())}
    return frozenset(f"{name}:{port}".lower() for name in names)


def check_host(request: Request, names: frozenset[str] | None) -> None:
    """Refuse a request that was sent to another name than ours."""
    told = request.headers.get("host", "").lower()
    if names is not None and told not in names:
        raise HttpRefusal(
            "421 Misdirected Request", f"this page is not {told or 'nameless'}; use its address"
        )


def check_origin(request: Request) -> None:
    """Refuse a changing request that another site's page sent."""
    origin = request.headers.get("origin", "")
    if origin.partition("://")[2].lower() != request.headers.get("host", "").lower():
        raise HttpRefusal("403 Forbidden", f"requests from {origin or 'nowhere'} are refused")


def read_static() -> dict[str, Answer]:
    """Every file of the page by its path; the page itself is ``/``."""
    found = {}
    for file in files("headrace.web").joinpath("static").iterdir():
        suffix = "." + file.name.rpartition(".")[2]
        if suffix in KINDS:
            answer = Answer(file.read_bytes(), KINDS[suffix], headers={"Cache-Control": "no-cache"})
            found["/" if file.name == "index.html" else f"/{file.name}"] = answer
    return found
