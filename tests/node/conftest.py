"""One node in memory for all tests of a file: each test uses keys of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.node.config import NodeConfig
from headrace.node.users import Role, User, Users
from tests.node.client import Client
from tests.node.running import SMALL, RunningNode, running

if TYPE_CHECKING:
    from collections.abc import Iterator

PASSWORD = "correct horse"  # noqa: S105 - of a node that lives for one test


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    """An open node in memory with one bucket of four vbuckets."""
    login = Users((User(name="Administrator", password=PASSWORD, role=Role.ADMIN),))
    with running(NodeConfig(buckets=(SMALL,), login=login, flush=True)) as started:
        yield started


@pytest.fixture
def client(node: RunningNode) -> Iterator[Client]:
    """A connection to that node."""
    with Client(node.port) as connected:
        yield connected
