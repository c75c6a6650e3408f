"""The page beside its node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from headrace.errors import ConfigError
from headrace.node.config import NodeConfig, TlsFiles
from headrace.node.server import Node
from headrace.node.users import Users
from headrace.web.page import Page
from tests.node.running import SMALL
from tests.web.page_kit import ADMIN

if TYPE_CHECKING:
    from pathlib import Path


def test_it_starts_and_stops_with_its_node() -> None:
    async def main() -> None:
        node = Node(NodeConfig(buckets=(SMALL,), web_port=0))
        page = Page(node)
        assert page.url == ""
        async with node:
            async with page:
                assert page.url == f"http://127.0.0.1:{page.server.port}/"
                assert page.server.config.levers is not None
                assert page.server.config.guarded is False
            with pytest.raises(OSError, match=r".+"):
                await asyncio.open_connection("127.0.0.1", page.server.port)

    asyncio.run(main())


@pytest.mark.parametrize("users", [None, Users((ADMIN,))])
def test_beyond_loopback_it_needs_users_and_tls(users: Users | None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="users file and TLS"):
        NodeConfig(users=users, web_port=0, web_host="10.1.2.3")
    files = TlsFiles(certificate=tmp_path / "c", key=tmp_path / "k")
    if users is not None:
        config = NodeConfig(users=users, tls=files, web_port=0, web_host="10.1.2.3")
        assert config.web_host == "10.1.2.3"


def test_a_web_port_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="web_port 70000"):
        NodeConfig(web_port=70_000)


def test_without_a_web_port_a_node_has_no_levers() -> None:
    async def main() -> None:
        async with Node(NodeConfig(buckets=(SMALL,))) as node:
            assert node.faults is None

    asyncio.run(main())
