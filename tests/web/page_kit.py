"""A node with its page on a thread of its own, and a browser's requests without a browser."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.node.config import BucketConfig, NodeConfig
from headrace.node.server import Node
from headrace.node.users import Role, User, Users
from headrace.store import BucketSettings
from headrace.web.page import Page

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START_SECONDS = 60.0
ADMIN = User(name="ada", password="correct horse", role=Role.ADMIN)  # noqa: S106 - of a test
READER = User(name="rob", password="battery staple", role=Role.READ)  # noqa: S106 - of a test
LIMITED = User(
    name="lin",
    password="limited",  # noqa: S106 - of a test
    role=Role.ADMIN,
    buckets=frozenset({"other"}),
)
USERS = (ADMIN, READER, LIMITED)


@dataclass
class Told:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401 - a test knows what it asked for
        return json.loads(self.body)


class Visitor:
    """One browser's worth of state: the cookie, the session's token."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""
        self.token = ""

    def ask(
        self, path: str, body: object = None, *, method: str | None = None, **headers: str | None
    ) -> Told:
        """Send a request; a header given as None is left out, names with _ for -."""
        said: dict[str, str | None] = {"host": f"127.0.0.1:{self.port}"}
        if self.cookie:
            said["cookie"] = self.cookie
        if body is not None:
            said |= {
                "content-type": "application/json",
                "origin": f"http://127.0.0.1:{self.port}",
                "x-csrf-token": self.token,
            }
        said |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.putrequest(
                method or ("GET" if body is None else "POST"), path, skip_host=True
            )
            content = b"" if body is None else json.dumps(body).encode()
            for name, value in said.items():
                if value is not None:
                    connection.putheader(name, value)
            connection.putheader("content-length", str(len(content)))
            connection.endheaders(content)
            answer = connection.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            return Told(answer.status, told, answer.read())
        finally:
            connection.close()

    def login(self, user: User = ADMIN, password: str | None = None) -> Told:
        answer = self.ask("/api/login", {"user": user.name, "password": password or user.password})
        if answer.status == 200:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
            self.token = answer.json["token"]
        return answer


class EventReader:
    """The events of one bucket, as they come."""

    def __init__(self, port: int, bucket: str = "default") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._connection.request("GET", f"/events?bucket={bucket}")
        self.answer = self._connection.getresponse()

    def __enter__(self) -> EventReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self.answer.close()

    def next(self) -> tuple[str, Any]:
        """The next event's name and content; ("", None) at the end."""
        name = ""
        while line := self.answer.readline():
            if line.startswith(b"event: "):
                name = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                return name, json.loads(line[6:])
        return "", None

    def until(self, wanted: str) -> Any:  # noqa: ANN401 - as above
        """The next change that carries such a happening."""
        while True:
            _, message = self.next()
            assert message is not None, "the events ended"
            for one in message.get("happenings", []):
                if one["kind"] == wanted:
                    return one


@dataclass
class RunningPage:
    """A node, its page, and the loop both run on."""

    node: Node
    page: Page
    loop: asyncio.AbstractEventLoop

    @property
    def port(self) -> int:
        return self.page.server.port

    @property
    def url(self) -> str:
        return f"couchbase://127.0.0.1:{self.node.port}/default"

    def visitor(self) -> Visitor:
        return Visitor(self.port)


@contextmanager
def running_page(
    *, vbuckets: int = 4, users: tuple[User, ...] = USERS, tables: tuple[Path, ...] = ()
) -> Iterator[RunningPage]:
    """An open node (``users`` are who may log in at the page), until the block ends."""
    config = NodeConfig(
        buckets=(BucketConfig(settings=BucketSettings(vbuckets=vbuckets)),),
        login=Users(users),
        web_port=0,
    )
    ready: threading.Event = threading.Event()
    made: list[RunningPage] = []
    failed: list[BaseException] = []
    ends: list[asyncio.Event] = []

    async def main() -> None:
        ends.append(asyncio.Event())
        async with Node(config) as node, Page(node, tables=tables) as page:
            made.append(RunningPage(node, page, asyncio.get_running_loop()))
            ready.set()
            await ends[0].wait()

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - raised again on the test's thread
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="headrace-page", daemon=True)
    thread.start()
    assert ready.wait(START_SECONDS), "the node does not start"
    try:
        if failed:
            raise failed[0]
        yield made[0]
    finally:
        if made:
            with suppress(RuntimeError):  # the loop closed meanwhile: the node has failed
                made[0].loop.call_soon_threadsafe(ends[0].set)
        thread.join(START_SECONDS)
    assert not thread.is_alive(), "the node does not stop"
    if failed:
        raise failed[0]
