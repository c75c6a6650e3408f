"""The connection is the link its session asks for."""

from __future__ import annotations

import inspect

from headrace.node.connection import Connection
from headrace.node.link import Link


def test_the_connection_has_everything_a_session_may_ask() -> None:
    for name, function in inspect.getmembers(Link, inspect.isfunction):
        if not name.startswith("_"):
            there = inspect.signature(getattr(Connection, name)).parameters
            assert list(there) == list(inspect.signature(function).parameters), name
