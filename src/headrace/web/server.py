"""WebServer: the live page, its events and, for who is logged in, the levers.

    GET  /  /NAME.js ...     the page, as it is in the package
    GET  /api/session        who is logged in, which buckets and which levers there are
    GET  /events?bucket=B    server-sent events: state, then change after change
    GET  /api/vbucket?bucket=B&vbucket=N
    GET  /api/connection?bucket=B&key=K
    GET  /api/tables
    POST /api/login  /api/logout  /api/lever

Rules
- The page reads. A lever needs a session of an administrator, the session's token in a header, and
  an Origin that is our own.
- On loopback everyone on this machine may look, as with the node's metrics; beyond it
  (``guarded``) looking needs a login as well.
- One request per connection, read within seconds; events go on until somebody leaves. A watcher
  who does not read is disconnected, and comes back by itself.

Imports: errors, node.management, node.users, web.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError, HeadraceError
from headrace.node.management import HEAD_SIZE_MAX, REQUEST_SECONDS_MAX, HttpRefusal, read_request
from headrace.node.users import Role
from headrace.web.http import (
    Answer,
    check_host,
    check_origin,
    head,
    json_answer,
    names_of,
    object_of,
    query_of,
    read_static,
)
from headrace.web.hub import LOOK_SECONDS, Hub, TooMany
from headrace.web.sessions import COOKIE, Sessions, cookie_value
from headrace.web.source import Unknown
from headrace.web.tables import Tables

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from headrace.node.management import Request
    from headrace.node.users import Users
    from headrace.web.picture import Json
    from headrace.web.sessions import Session
    from headrace.web.source import Source

READ_SECONDS_MAX: Final = 20.0
"""How long a watcher may leave an event unread."""
EVENT_BUFFER_SIZE: Final = 64 * 1024
CONNECTIONS_MAX: Final = 256
"""Connections at once, those that watch included; one more is told so."""
STOP_SECONDS_MAX: Final = 2.0
VBUCKET_DIGITS_MAX: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Levers:
    """What a logged-in administrator may do: the table, and the function that does it."""

    table: Json
    pull: Callable[[Json], Awaitable[Json]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageConfig:
    """The choices of one page.

    ``users`` None: nobody can log in, so nothing can be changed. ``guarded``: looking needs a
    login.
    """

    host: str = "127.0.0.1"
    port: int = 0
    tables: tuple[Path, ...] = ()
    users: Users | None = None
    levers: Levers | None = None
    guarded: bool = False
    tls: ssl.SSLContext | None = None
    look_seconds: float = LOOK_SECONDS


class WebServer:
    """The page of one source: ``async with WebServer(source, config) as page: page.url``."""

    def __init__(self, source: Source, config: PageConfig | None = None) -> None:
        """Not listening yet."""
        self._source = source
        self.config = config if config is not None else PageConfig()
        self.port = 0
        self.sessions = Sessions(time.monotonic)
        self._tables = Tables(self.config.tables)
        self._static = read_static()
        self._names: frozenset[str] | None = frozenset()
        self._hubs: dict[str, tuple[Hub, asyncio.Task[None]]] = {}
        self._handlers: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where a browser finds it."""
        host = self.config.host
        shown = f"[{host}]" if ":" in host else host
        return f"http{'s' if self.config.tls else ''}://{shown}:{self.port}/"

    # -- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen, and begin to look at every bucket."""
        config = self.config
        try:
            self._server = await asyncio.start_server(
                self._serve, config.host, config.port, ssl=config.tls, limit=HEAD_SIZE_MAX
            )
        except OSError as error:
            # asyncio says the address once more, in its own words.
            reason = os.strerror(error.errno).lower() if error.errno else error.strerror
            raise ConfigError(f"cannot listen on {config.host}:{config.port}: {reason}") from error
        self.port = self._server.sockets[0].getsockname()[1]
        self._names = names_of(config.host, self.port)
        for bucket in self._source.buckets():
            self.hub(bucket)

    async def stop(self) -> None:
        """Listen no more, and let everyone go; idempotent."""
        if self._server is not None:
            self._server.close()
        tasks = [task for _, task in self._hubs.values()]
        for hub, task in self._hubs.values():
            hub.close()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._hubs.clear()
        if self._handlers:
            await asyncio.wait(self._handlers, timeout=STOP_SECONDS_MAX)
        for handler in tuple(self._handlers):
            handler.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    async def __aenter__(self) -> WebServer:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        await self.stop()

    def hub(self, bucket: str) -> Hub:
        """The hub of a bucket; 404 when there is none of that name."""
        known = self._source.buckets()
        for gone in [name for name in self._hubs if name not in known]:
            self._hubs.pop(gone)[1].cancel()
        if bucket not in known:
            raise HttpRefusal(
                "404 Not Found", f"bucket {bucket!r} is unknown; there are: {', '.join(known)}"
            )
        if bucket not in self._hubs:
            hub = Hub(self._source, bucket, look_seconds=self.config.look_seconds)
            task = asyncio.get_running_loop().create_task(hub.run())
            self._hubs[bucket] = (hub, task)
        return self._hubs[bucket][0]

    # -- HTTP ------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handler = asyncio.current_task()
        assert handler is not None
        self._handlers.add(handler)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                if len(self._handlers) > CONNECTIONS_MAX:
                    await self._turn_away(reader, writer)
                else:
                    await self._converse(reader, writer)
        finally:
            self._handlers.discard(handler)
            writer.close()

    async def _turn_away(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sentence = f"{CONNECTIONS_MAX} connections are open, which is the limit; try again later"
        writer.write(_refused("503 Service Unavailable", sentence).to_bytes())
        async with asyncio.timeout(STOP_SECONDS_MAX):
            # Closing with the request unread would take the answer back.
            await reader.read(HEAD_SIZE_MAX)
            await writer.drain()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                request = await read_request(reader)
            check_host(request, self._names)
            path, query = query_of(request)
            if path == "/events":
                await self._events(request, query, writer)
                return
            answer = await self._answer(request, path, query)
        except asyncio.LimitOverrunError:
            answer = _refused("431 Request Header Fields Too Large", "the head is too long")
        except HttpRefusal as refusal:
            answer = _refused(refusal.status, refusal.sentence)
        except Unknown as error:
            answer = _refused("404 Not Found", str(error))
        except HeadraceError as error:
            answer = _refused("400 Bad Request", str(error))
        writer.write(answer.to_bytes())
        await writer.drain()

    async def _answer(self, request: Request, path: str, query: dict[str, str]) -> Answer:
        if request.method == "GET" and path in self._static:
            return self._static[path]
        places = {"GET": {*self._static, *self._read_routes}, "POST": set(self._change_routes)}
        known = {method for method, paths in places.items() if path in paths}
        if not known:
            raise HttpRefusal("404 Not Found", "there is no such page")
        if request.method not in known:
            allowed = " and ".join(sorted(known))
            raise HttpRefusal(
                "405 Method Not Allowed", f"{request.method} is not possible here; use {allowed}"
            )
        if request.method == "POST":
            check_origin(request)
            return await self._change_routes[path](request)
        return await self._read_routes[path](request, query)

    @property
    def _read_routes(self) -> dict[str, Callable[[Request, dict[str, str]], Awaitable[Answer]]]:
        return {
            "/api/session": self._session,
            "/api/vbucket": self._vbucket,
            "/api/connection": self._connection,
            "/api/tables": self._read_tables,
        }

    @property
    def _change_routes(self) -> dict[str, Callable[[Request], Awaitable[Answer]]]:
        return {
            "/api/login": self._login,
            "/api/logout": self._logout,
            "/api/lever": self._lever,
        }

    # -- reading ---------------------------------------------------------------------------------

    async def _events(
        self, request: Request, query: dict[str, str], writer: asyncio.StreamWriter
    ) -> None:
        if request.method != "GET":
            raise HttpRefusal("405 Method Not Allowed", "events are read with GET")
        hub = self.hub(self._readable(request, query))
        transport = writer.transport
        transport.set_write_buffer_limits(high=EVENT_BUFFER_SIZE)
        watching = hub.watch()
        try:
            first = await anext(watching)
            writer.write(head("200 OK", "text/event-stream", {}, length=None) + first)
            async for message in watching:
                writer.write(message)
                async with asyncio.timeout(READ_SECONDS_MAX):
                    await writer.drain()
        except TooMany as error:
            raise HttpRefusal("503 Service Unavailable", str(error)) from error
        finally:
            await watching.aclose()
            if transport.get_write_buffer_size():
                transport.abort()

    def _readable(self, request: Request, query: dict[str, str]) -> str:
        """The bucket a request names, if its sender may read it."""
        bucket = query.get("bucket", "")
        if self.config.guarded:
            session = self._session_of(request)
            if session is None:
                raise HttpRefusal("401 Unauthorized", "log in first")
            if session.user.role < Role.READ or not session.user.may_use(bucket):
                raise HttpRefusal("403 Forbidden", f"{session.user.name} may not read {bucket!r}")
        return bucket

    async def _vbucket(self, request: Request, query: dict[str, str]) -> Answer:
        bucket, text = self._readable(request, query), query.get("vbucket", "")
        if not text.isdecimal() or len(text) > VBUCKET_DIGITS_MAX:
            raise HttpRefusal("400 Bad Request", f"vbucket {text!r} is not a number")
        hub = self.hub(bucket)
        told = await self._source.vbucket(bucket, int(text))
        return json_answer(told | {"reached": hub.chronicle.losses.of(int(text))})

    async def _connection(self, request: Request, query: dict[str, str]) -> Answer:
        bucket = self._readable(request, query)
        self.hub(bucket)
        return json_answer(await self._source.connection(bucket, query.get("key", "")))

    async def _read_tables(self, request: Request, query: dict[str, str]) -> Answer:
        del query
        if self.config.guarded and self._session_of(request) is None:
            raise HttpRefusal("401 Unauthorized", "log in first")
        return json_answer(await self._tables.read())

    async def _session(self, request: Request, query: dict[str, str]) -> Answer:
        del query
        return json_answer(self._who(self._session_of(request)))

    # -- sessions --------------------------------------------------------------------------------

    @property
    def _cookie(self) -> str:
        # Cookies know no ports: two pages on one machine would log each other out.
        return f"{COOKIE}_{self.port}"

    def _session_of(self, request: Request) -> Session | None:
        return self.sessions.find(cookie_value(request.headers.get("cookie", ""), self._cookie))

    def _who(self, session: Session | None) -> Json:
        user = None if session is None else session.user
        may_look = user is not None or not self.config.guarded
        may_pull = user is not None and user.role >= Role.ADMIN and self.config.levers is not None
        names = self._source.buckets() if may_look else []
        return {
            "source": self._source.title if may_look else "",
            "kind": self._source.kind,
            "buckets": [name for name in names if user is None or user.may_use(name)],
            "guarded": self.config.guarded,
            "login": self.config.users is not None,
            "has_levers": self.config.levers is not None,
            "tables": bool(self.config.tables),
            "user": None if user is None else user.name,
            "role": None if user is None else user.role.name.lower(),
            "token": None if session is None else session.token,
            "levers": self.config.levers.table if self.config.levers and may_pull else None,
        }

    async def _login(self, request: Request) -> Answer:
        said = object_of(request)
        name, password = said.get("user"), said.get("password")
        users = self.config.users
        if users is None:
            raise HttpRefusal("403 Forbidden", "nobody can log in at this page")
        if not isinstance(name, str) or not isinstance(password, str):
            raise HttpRefusal("400 Bad Request", "give user and password")
        if not self.sessions.may_try:
            raise HttpRefusal("429 Too Many Requests", "too many failed logins; wait a minute")
        # Hashing takes milliseconds of work: not on the loop that answers everyone.
        admitted = await asyncio.get_running_loop().run_in_executor(
            None, users.admits, name, password
        )
        user = users.find(name)
        if not admitted or user is None:
            self.sessions.failed()
            raise HttpRefusal("401 Unauthorized", "wrong user or password")
        self.sessions.close(cookie_value(request.headers.get("cookie", ""), self._cookie))
        key, session = self.sessions.open(user)
        return json_answer(self._who(session), Set_Cookie=self._set_cookie(key))

    async def _logout(self, request: Request) -> Answer:
        self._proven(request)
        self.sessions.close(cookie_value(request.headers.get("cookie", ""), self._cookie))
        return json_answer(self._who(None), Set_Cookie=self._set_cookie("") + "; Max-Age=0")

    def _set_cookie(self, value: str) -> str:
        secure = "; Secure" if self.config.tls is not None else ""
        return f"{self._cookie}={value}; Path=/; HttpOnly; SameSite=Strict{secure}"

    def _proven(self, request: Request) -> Session:
        """The session of a request that carries the session's token."""
        session = self._session_of(request)
        if session is None:
            raise HttpRefusal("401 Unauthorized", "log in first")
        if not session.carries(request.headers.get("x-csrf-token", "")):
            raise HttpRefusal("403 Forbidden", "the request does not carry the session's token")
        return session

    # -- levers ----------------------------------------------------------------------------------

    async def _lever(self, request: Request) -> Answer:
        session, levers = self._proven(request), self.config.levers
        if levers is None:
            raise HttpRefusal("404 Not Found", "there are no levers here")
        user, body = session.user, object_of(request)
        if user.role < Role.ADMIN:
            raise HttpRefusal("403 Forbidden", f"{user.name} is no administrator")
        bucket = body.get("bucket")
        if user.buckets is not None and not (isinstance(bucket, str) and user.may_use(bucket)):
            raise HttpRefusal(
                "403 Forbidden", f"{user.name} may pull levers of their own buckets only"
            )
        if "lever" not in body or "line" in body or "when" in body:
            raise HttpRefusal("400 Bad Request", "name a lever and its parameters")
        told = await levers.pull(body)
        for name, (hub, _) in self._hubs.items():
            if bucket in (None, name):
                _note_lever(hub, user.name, body, told)
        return json_answer(told)


def _note_lever(hub: Hub, user: str, body: Json, told: Json) -> None:
    """Tell watchers who did what; what a failover said of itself is exact."""
    vbucket, result = body.get("vbucket"), told.get("result")
    number = vbucket if isinstance(vbucket, int) else None
    if number is not None and isinstance(result, dict) and {"branch", "high_seqno"} <= set(result):
        hub.chronicle.losses.tell(number, str(result["branch"]), int(result["high_seqno"]))
    hub.note("lever", f"{user} pulled {str(told['text']).removeprefix('now: ')}", number)
    hub.poke()


def _refused(status: str, sentence: str) -> Answer:
    return json_answer({"error": sentence}, status=status)
