"""The admin API: faults, scenario, vbuckets and connections as JSON, on a loopback port.

    GET  /faults        the levers and triggers, with their parameters
    POST /faults        pull a lever: {"lever": "failover", "vbucket": 3, "lose": 20}, also with
                        "when": "at vbucket 3 seqno 500"; or {"line": "after 2s: cut ..."}
    GET  /scenario      every step, waiting or over
    POST /scenario      add the steps of {"text": "..."}
    GET  /vbuckets      where every vbucket stands
    GET  /connections   who is there, with its streams

Every request needs ``Authorization: Bearer TOKEN``: who can cut connections and crash the node must
have been told the token, and a web page in a browser on this machine has not. One request is
answered per connection. Mistakes are 4xx with {"error": "sentence"}.

Imports: errors, node.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from headrace.errors import ConfigError, HeadraceError
from headrace.node.fault_script import read_scenario, read_step
from headrace.node.fault_steps import StepState
from headrace.node.fault_table import LEVERS, TRIGGERS
from headrace.wire.opcodes import VBucketState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.node.bucket_host import BucketHost
    from headrace.node.connection import Connection
    from headrace.node.fault_steps import RunningStep
    from headrace.node.fault_words import Parameter
    from headrace.node.faults import Faults
    from headrace.node.server import Node
    from headrace.node.stream import Stream
    from headrace.store import VBucket

HOST: Final = "127.0.0.1"
HEAD_SIZE_MAX: Final = 8 * 1024
BODY_SIZE_MAX: Final = 1024 * 1024
REQUEST_SECONDS_MAX: Final = 10.0
SETTLE_SECONDS_MAX: Final = 60.0
"""How long a lever that works on a thread of its own may keep a request waiting."""
TOKEN_BYTES: Final = 24

Json = dict[str, object]


class Problem(Exception):
    """An answer that is a refusal: its HTTP status and a sentence."""

    def __init__(self, status: str, sentence: str) -> None:
        """Keep both."""
        super().__init__(sentence)
        self.status = status


class Request(NamedTuple):
    """What was asked."""

    method: str
    path: str
    body: Json


class AdminServer:
    """The HTTP port of the admin API."""

    def __init__(self, node: Node, *, token: str = "") -> None:
        """Not listening yet; without a token one is made."""
        self._node = node
        self.token = token or secrets.token_urlsafe(TOKEN_BYTES)
        self.port = 0
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{HOST}:{self.port}"

    async def start(self, port: int) -> None:
        """Listen on loopback."""
        try:
            self._server = await asyncio.start_server(self._answer, HOST, port, limit=HEAD_SIZE_MAX)
        except OSError as error:
            raise ConfigError(f"cannot listen on {HOST}:{port}: {error.strerror}") from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    # -- HTTP ------------------------------------------------------------------------------------

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            try:
                async with asyncio.timeout(REQUEST_SECONDS_MAX):
                    request = await self._read(reader)
                status, answer = "200 OK", await self._route(request)
            except Problem as problem:
                status, answer = problem.status, {"error": str(problem)}
            except HeadraceError as error:
                status, answer = "400 Bad Request", {"error": str(error)}
            except asyncio.LimitOverrunError:
                status = "431 Request Header Fields Too Large"
                answer = {"error": f"a head of over {HEAD_SIZE_MAX} bytes"}
            content = json.dumps(answer).encode() + b"\n"
            writer.write(
                f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(content)}\r\nCache-Control: no-store\r\n"
                "Connection: close\r\n\r\n".encode()
                + content
            )
            await writer.drain()
        writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Request:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3:
            raise Problem("400 Bad Request", "the first line is no HTTP request")
        fields: dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip()
        self._check_token(fields.get("authorization", ""))
        length = fields.get("content-length", "0")
        if not length.isdecimal() or int(length) > BODY_SIZE_MAX:
            raise Problem("413 Content Too Large", f"a body of {length} bytes, {BODY_SIZE_MAX} max")
        return Request(words[0], words[1].partition("?")[0], await _body(reader, int(length)))

    def _check_token(self, field: str) -> None:
        kind, _, token = field.partition(" ")
        good = hmac.compare_digest(token.strip().encode("latin-1"), self.token.encode())
        if kind.lower() != "bearer" or not good:
            raise Problem(
                "401 Unauthorized", "give the token that was printed at start as a bearer token"
            )

    async def _route(self, request: Request) -> Json:
        known = self.ROUTES.get(request.path)
        if known is None:
            raise Problem("404 Not Found", f"{request.path}; there are: {', '.join(self.ROUTES)}")
        function = known.get(request.method)
        if function is None:
            allowed = " and ".join(known)
            raise Problem("405 Method Not Allowed", f"{request.method}; allowed: {allowed}")
        return await function(self, request.body)

    # -- what is asked ---------------------------------------------------------------------------

    @property
    def _faults(self) -> Faults:
        assert self._node.faults is not None, "a node with an admin port has faults"
        return self._node.faults

    async def _levers(self, body: Json) -> Json:  # noqa: ARG002 - as all
        return levers_json()

    async def _pull(self, body: Json) -> Json:
        return await pull_lever(self._faults, body)

    async def _steps(self, body: Json) -> Json:  # noqa: ARG002
        return {"steps": [running.to_json() for running in self._faults.steps.all]}

    async def _add_steps(self, body: Json) -> Json:
        text = body.get("text")
        if not isinstance(text, str) or len(body) != 1:
            raise ConfigError('give {"text": "lines of a scenario"}')
        added = [self._faults.steps.add(step) for step in read_scenario(text)]
        return {"steps": [running.to_json() for running in added]}

    async def _vbuckets(self, body: Json) -> Json:  # noqa: ARG002
        return {"buckets": {host.name: self._bucket(host) for host in self._node.hosts.values()}}

    def _bucket(self, host: BucketHost) -> Json:
        return {
            "durable": host.bucket.durable,
            "persistence": host.bucket.persistence,
            "commits": self._faults.commits_of(host.name),
            "vbuckets": [_vbucket_json(vbucket) for vbucket in host.bucket.vbuckets],
        }

    async def _connections(self, body: Json) -> Json:  # noqa: ARG002
        found = [self._connection(connection) for connection in self._faults.connections()]
        return {"connections": found}

    def _connection(self, connection: Connection) -> Json:
        session = connection.session
        producer, host = session.producer, session.selected
        transport = self._faults.transport_of(connection)
        return {
            "number": session.number,
            "peer": session.peer,
            "name": session.stream_name.decode("utf-8", "backslashreplace"),
            "bucket": None if host is None else host.name,
            "paused": transport is not None and transport.is_paused,
            "bytes_per_second": None if transport is None else transport.rate or None,
            "bytes_sent": 0 if producer is None else producer.bytes_sent,
            "streams": []
            if producer is None
            else [_stream_json(stream) for stream in producer.streams.values()],
        }

    ROUTES: ClassVar[dict[str, dict[str, Callable[[AdminServer, Json], Awaitable[Json]]]]] = {
        "/faults": {"GET": _levers, "POST": _pull},
        "/scenario": {"GET": _steps, "POST": _add_steps},
        "/vbuckets": {"GET": _vbuckets},
        "/connections": {"GET": _connections},
    }


async def pull_lever(faults: Faults, body: Json) -> Json:
    """Pull the lever that the body of a request names, or let its step wait; what came of it."""
    said = dict(body)
    line = said.pop("line", None)
    if line is not None:
        if said or not isinstance(line, str):
            raise ConfigError('give {"line": "..."} and nothing else')
        running = faults.steps.add(read_step(line))
    else:
        lever, when = said.pop("lever", None), said.pop("when", "now")
        if not isinstance(lever, str) or not isinstance(when, str):
            raise ConfigError('give {"lever": "...", parameters} or {"line": "..."}')
        running = faults.when(when, lever, **said)
    return await _settled(faults, running)


async def _settled(faults: Faults, running: RunningStep) -> Json:
    """The step; a lever that was pulled and still works is waited for."""
    deadline = faults.loop.time() + SETTLE_SECONDS_MAX
    while running.pulled and running.state is StepState.WAITING:
        if faults.loop.time() > deadline:
            break
        await asyncio.sleep(0.01)
    if running.state is StepState.FAILED:
        raise ConfigError(running.error)
    return running.to_json()


async def _body(reader: asyncio.StreamReader, length: int) -> Json:
    if not length:
        return {}
    try:
        value = json.loads(await reader.readexactly(length))
    except (ValueError, RecursionError) as error:
        raise Problem("400 Bad Request", f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Problem("400 Bad Request", "the body is no JSON object")
    return value


def _vbucket_json(vbucket: VBucket) -> Json:
    return {
        "vbucket": vbucket.id,
        "state": VBucketState(vbucket.state).name.lower(),
        "high_seqno": vbucket.high_seqno,
        "persisted_seqno": vbucket.persisted_seqno,
        "purge_seqno": vbucket.purge_seqno,
        "rewind_seqno": vbucket.rewind_seqno,
        "items": vbucket.item_count,
        "failover_log": [
            {"branch": f"{entry.uuid:016x}", "seqno": entry.seqno} for entry in vbucket.failover_log
        ],
    }


def _stream_json(stream: Stream) -> Json:
    return {
        "vbucket": stream.vbucket,
        "state": stream.state.name.lower(),
        "sent_seqno": stream.sent_seqno,
        "items_sent": stream.items_sent,
        "cursor": stream.has_cursor,
    }


def levers_json() -> Json:
    """Both tables, as the command line and people read them."""
    return {
        "levers": {
            lever.name: {
                "does": lever.does,
                "allowed": lever.allowed,
                "line": str(lever.phrase),
                "needs": [" or ".join(choice) for choice in lever.needs],
                "parameters": _parameters_json(lever.parameters),
            }
            for lever in LEVERS.values()
        },
        "triggers": {
            trigger.name: {
                "when": trigger.when,
                "line": str(trigger.phrase),
                "parameters": _parameters_json(trigger.parameters),
            }
            for trigger in TRIGGERS.values()
        },
    }


def _parameters_json(parameters: tuple[Parameter, ...]) -> Json:
    return {one.name: {"help": one.help, "allowed": one.kind.allowed} for one in parameters}
