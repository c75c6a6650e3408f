"""Page: the live page of a node, beside the node, for as long as the node runs.

Who may log in is who may log in to the node: the users of its file, or the login that was printed
when it started. Beyond loopback the page speaks TLS with the node's certificate and asks for a
login before it shows anything.

Imports: node, web.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.node.admin_api import levers_json, pull_lever
from headrace.node.config import is_loopback
from headrace.node.tls import server_context
from headrace.web.node_source import NodeSource
from headrace.web.server import Levers, PageConfig, WebServer

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.node.server import Node
    from headrace.web.picture import Json


class Page:
    """Give it to `Node.serve` as what runs beside; ``url`` is known once it has started."""

    def __init__(self, node: Node, *, tables: tuple[Path, ...] = ()) -> None:
        """``node`` has a web port in its configuration."""
        self._node = node
        self._tables = tables
        self._server: WebServer | None = None

    @property
    def url(self) -> str:
        """Where a browser finds it; "" before it has started."""
        return "" if self._server is None else self._server.url

    @property
    def server(self) -> WebServer:
        """The server, once it has started."""
        assert self._server is not None, "the page has not started"
        return self._server

    async def __aenter__(self) -> Page:
        """Start; the node has."""
        node, config = self._node, self._node.config
        assert config.web_port is not None
        guarded = not is_loopback(config.web_host)
        self._server = WebServer(
            NodeSource(node),
            PageConfig(
                host=config.web_host,
                port=config.web_port,
                tables=self._tables,
                users=node.users,
                levers=_levers(node),
                guarded=guarded,
                tls=server_context(config.tls) if guarded and config.tls is not None else None,
            ),
        )
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""
        await self.server.stop()


def _levers(node: Node) -> Levers | None:
    faults = node.faults
    if faults is None:
        return None

    async def pull(body: Json) -> Json:
        return await pull_lever(faults, body)

    return Levers(table=levers_json(), pull=pull)
