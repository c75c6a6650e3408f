"""The management port: as much of it as SDKs need to get ready and to look after collections.

    GET     /                                                      alive
    GET     /pools                                                 the node's version
    GET     /pools/default/buckets/B/scopes                        the manifest
    POST    /pools/default/buckets/B/scopes                        name=S
    DELETE  /pools/default/buckets/B/scopes/S
    POST    /pools/default/buckets/B/scopes/S/collections          name=C [maxTTL=N] [history=true]
    DELETE  /pools/default/buckets/B/scopes/S/collections/C

and the cluster map (`headrace.node.management_maps`).

Rules. A change is a new manifest with the next uid, applied as SET_COLLECTIONS_MANIFEST would; the
sentences of refusals are those SDKs look for. Where the node has users, HTTP basic authentication
names one: reading needs the role read, changing the role admin. A request with an Origin comes from
somebody's web page, not from an SDK, and is refused. One request per connection.

Imports: errors, node.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import parse_qs, unquote

from headrace.errors import ConfigError
from headrace.node.config import VERSION
from headrace.node.management_maps import MapStreams, find_page, nodes_page
from headrace.node.manifest import FIRST_FREE_ID, Collection, Manifest, Scope, parse_manifest
from headrace.node.refusal import Refusal
from headrace.node.users import Role

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from headrace.node.bucket_host import BucketHost
    from headrace.node.management_maps import Page
    from headrace.node.server import Node

HEAD_SIZE_MAX: Final = 16 * 1024
BODY_SIZE_MAX: Final = 64 * 1024
REQUEST_SECONDS_MAX: Final = 10.0
_NEXT_ID: Final = "next_collection_id"
_SCOPES: Final = r"/pools/default/buckets/([^/]+)/scopes"


class HttpRefusal(Exception):
    """A status line and a sentence to answer with."""

    def __init__(self, status: str, sentence: str) -> None:
        """Keep both."""
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class Request(NamedTuple):
    """One HTTP request, read."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Route:
    """A method and a path, who may use it, and the function that answers."""

    method: str
    path: re.Pattern[str]
    role: Role
    function: Callable[[Node, list[str], dict[str, str]], object]


def _host(node: Node, name: str) -> BucketHost:
    host = node.hosts.get(name)
    if host is None:
        raise HttpRefusal("404 Object Not Found", "Requested resource not found.")
    return host


def _scope(manifest: Manifest, name: str) -> Scope:
    found = manifest.scope_ids.get(name)
    if found is None:
        raise HttpRefusal("404 Object Not Found", f'Scope with name "{name}" is not found')
    return manifest.scopes[found]


def _next_id(host: BucketHost) -> int:
    """An id that was never used: ids name one thing for ever."""
    kept = host.bucket.get_property(_NEXT_ID)
    manifest = host.manifest
    used = max((*manifest.scopes, *manifest.collections, FIRST_FREE_ID - 1))
    number = max(kept if isinstance(kept, int) else 0, used + 1)
    host.bucket.set_property(_NEXT_ID, number + 1)
    return number


def _apply(host: BucketHost, manifest: Manifest) -> dict[str, str]:
    new = replace(manifest, uid=host.manifest.uid + 1)
    # Through the parser, so that names and limits are checked as a client's own would be.
    host.apply_manifest(parse_manifest(json.dumps(new.to_json()).encode()))
    return {"uid": f"{new.uid:x}"}


def _alive(node: Node, parts: list[str], form: dict[str, str]) -> object:  # noqa: ARG001
    return {}


def _pools(node: Node, parts: list[str], form: dict[str, str]) -> object:  # noqa: ARG001
    pools = [{"name": "default", "uri": "/pools/default"}]
    return {"implementationVersion": VERSION, "isAdminCreds": True, "pools": pools}


def _manifest(node: Node, parts: list[str], form: dict[str, str]) -> object:  # noqa: ARG001
    return _host(node, parts[0]).manifest.to_json()


def _make_scope(node: Node, parts: list[str], form: dict[str, str]) -> object:
    host = _host(node, parts[0])
    name = form.get("name", "")
    if name in host.manifest.scope_ids:
        raise HttpRefusal("400 Bad Request", f'Scope with name "{name}" already exists')
    scope = Scope(id=_next_id(host), name=name)
    scopes = {**host.manifest.scopes, scope.id: scope}
    return _apply(host, replace(host.manifest, scopes=scopes))


def _drop_scope(node: Node, parts: list[str], form: dict[str, str]) -> object:  # noqa: ARG001
    host = _host(node, parts[0])
    gone = _scope(host.manifest, parts[1])
    scopes = {number: one for number, one in host.manifest.scopes.items() if number != gone.id}
    left = {
        number: one for number, one in host.manifest.collections.items() if one.scope_id != gone.id
    }
    return _apply(host, replace(host.manifest, scopes=scopes, collections=left))


def _make_collection(node: Node, parts: list[str], form: dict[str, str]) -> object:
    host = _host(node, parts[0])
    scope = _scope(host.manifest, parts[1])
    name = form.get("name", "")
    if (scope.id, name) in host.manifest.collection_ids:
        raise HttpRefusal(
            "400 Bad Request",
            f'Collection with name "{name}" in scope "{scope.name}" already exists',
        )
    made = Collection(
        id=_next_id(host),
        name=name,
        scope_id=scope.id,
        max_ttl=_ttl(form.get("maxTTL")),
        history=form["history"] == "true" if "history" in form else None,
    )
    collections = {**host.manifest.collections, made.id: made}
    return _apply(host, replace(host.manifest, collections=collections))


def _ttl(text: str | None) -> int | None:
    if text is None or text == "0":
        return None
    if not text.isdigit() or len(text) > 10:
        raise HttpRefusal("400 Bad Request", f"maxTTL {text!r} is not a number of seconds")
    return int(text)


def _drop_collection(node: Node, parts: list[str], form: dict[str, str]) -> object:  # noqa: ARG001
    host = _host(node, parts[0])
    scope = _scope(host.manifest, parts[1])
    gone = host.manifest.collection_ids.get((scope.id, parts[2]))
    if gone is None:
        raise HttpRefusal(
            "404 Object Not Found",
            f'Collection with name "{parts[2]}" in scope "{scope.name}" is not found',
        )
    left = {number: one for number, one in host.manifest.collections.items() if number != gone}
    return _apply(host, replace(host.manifest, collections=left))


ROUTES: Final = (
    Route("GET", re.compile(r"/"), Role.NONE, _alive),
    Route("GET", re.compile(r"/pools"), Role.READ, _pools),
    Route("GET", re.compile(_SCOPES), Role.READ, _manifest),
    Route("POST", re.compile(_SCOPES), Role.ADMIN, _make_scope),
    Route("DELETE", re.compile(_SCOPES + r"/([^/]+)"), Role.ADMIN, _drop_scope),
    Route("POST", re.compile(_SCOPES + r"/([^/]+)/collections"), Role.ADMIN, _make_collection),
    Route(
        "DELETE",
        re.compile(_SCOPES + r"/([^/]+)/collections/([^/]+)"),
        Role.ADMIN,
        _drop_collection,
    ),
)


@dataclass(frozen=True, slots=True)
class Followed:
    """The answer goes on for as long as the client stays: every map of a bucket."""

    host: BucketHost


class ManagementServer:
    """The HTTP port, without and with TLS."""

    def __init__(self, node: Node) -> None:
        """Not listening yet."""
        self._node = node
        self._servers: list[asyncio.Server] = []
        self.maps = MapStreams(node)

    async def start(self, host: str, port: int, context: ssl.SSLContext | None = None) -> int:
        """Listen; the port taken."""
        try:
            server = await asyncio.start_server(
                self._serve, host, port, ssl=context, limit=HEAD_SIZE_MAX
            )
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error
        self._servers.append(server)
        number: int = server.sockets[0].getsockname()[1]
        return number

    async def stop(self) -> None:
        """Listen no more."""
        for server in self._servers:
            server.close()
        self.maps.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            try:
                await self._converse(reader, writer)
            finally:
                writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = str(writer.get_extra_info("sockname")[0])
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                request = await read_request(reader)
                status, answer = "200 OK", await self._answer(request, address)
        except asyncio.LimitOverrunError:
            status, answer = "431 Request Header Fields Too Large", {"errors": {}}
        except HttpRefusal as refusal:
            status, answer = refusal.status, {"errors": {"name": refusal.sentence}}
        except Refusal as refusal:
            status, answer = "400 Bad Request", {"errors": {"name": refusal.context}}
        if isinstance(answer, Followed):
            await self.maps.follow(writer, answer.host, address)
            return
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode()
            + content
        )
        await writer.drain()

    async def _answer(self, request: Request, address: str) -> object:
        if "origin" in request.headers:
            raise HttpRefusal("403 Forbidden", "requests from web pages are refused")
        path = request.path.partition("?")[0]
        if request.method == "GET" and (page := find_page(path)) is not None:
            return await self._map(request, page, address)
        fitting = [(route, match) for route in ROUTES if (match := route.path.fullmatch(path))]
        if not fitting:
            raise HttpRefusal("404 Object Not Found", "Requested resource not found.")
        for route, match in fitting:
            if route.method == request.method:
                parts = [unquote(part) for part in match.groups()]
                await self._check(request, route.role, parts[0] if parts else None)
                form = parse_qs(request.body.decode("utf-8", "replace"), keep_blank_values=True)
                return route.function(
                    self._node, parts, {name: values[0] for name, values in form.items()}
                )
        raise HttpRefusal("405 Method Not Allowed", f"{request.method} is not possible here")

    async def _map(self, request: Request, page: Page, address: str) -> object:
        name = None if page.bucket is None else unquote(page.bucket)
        await self._check(request, Role.READ, name)
        if name is None:
            return nodes_page(self._node, page, address)
        host = _host(self._node, name)
        if not page.streams:
            return self._node.map_of(host, address)
        if self.maps.is_full:
            raise HttpRefusal("503 Service Unavailable", "too many clients follow maps over HTTP")
        return Followed(host)

    async def _check(self, request: Request, role: Role, bucket: str | None) -> None:
        """Refuse who may not; an open node lets everyone on this machine."""
        users = self._node.config.users
        if users is None or role == Role.NONE:
            return
        name, password = _basic(request.headers.get("authorization", ""))
        admitted = await asyncio.get_running_loop().run_in_executor(
            None, users.admits, name, password
        )
        user = users.find(name)
        if not admitted or user is None:
            raise HttpRefusal("401 Unauthorized", "wrong user or password")
        if user.role < role or (bucket is not None and not user.may_use(bucket)):
            raise HttpRefusal("403 Forbidden", f"needs the role {role.name.lower()}")


def _basic(field: str) -> tuple[str, str]:
    kind, _, code = field.partition(" ")
    if kind.lower() != "basic":
        raise HttpRefusal("401 Unauthorized", "log in with HTTP basic authentication")
    try:
        text = base64.b64decode(code, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError) as error:
        raise HttpRefusal("401 Unauthorized", "wrong user or password") from error
    name, _, password = text.partition(":")
    return name, password


async def read_request(reader: asyncio.StreamReader) -> Request:
    """Read one HTTP request, head and body; HttpRefusal when it is none or too large."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.rstrip("\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3:
        raise HttpRefusal("400 Bad Request", "the request line has not three words")
    headers = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(":") for line in lines)
    }
    size = headers.get("content-length", "0")
    if not size.isdigit() or len(size) > 9 or int(size) > BODY_SIZE_MAX:
        raise HttpRefusal("413 Content Too Large", f"a body of {size} bytes, limit {BODY_SIZE_MAX}")
    body = await reader.readexactly(int(size)) if int(size) else b""
    return Request(words[0], words[1], headers, body)
