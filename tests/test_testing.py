"""The node that users' own tests start."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from headrace.errors import ConfigError, StoreLocked
from headrace.testing import running_node
from headrace.wire import admin, kv
from headrace.wire.opcodes import Status
from tests.node.client import Client
from tests.node.fault_kit import fill

if TYPE_CHECKING:
    from pathlib import Path


def test_a_node_runs_while_the_block_does() -> None:
    with running_node(vbuckets=2, buckets=("a", "b")) as node:
        assert set(node.node.hosts) == {"a", "b"}
        assert node.connection_string == f"couchbase://127.0.0.1:{node.port}"
        port = node.port
        socket.create_connection(("127.0.0.1", port), 5).close()
    assert not node.is_running
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)


def test_a_crash_loses_what_was_not_committed(tmp_path: Path) -> None:
    with running_node(data=tmp_path) as node:
        fill(node.port, 3)
        with Client(node.port) as client:
            client.ask(admin.SeqnoPersistence(seqno=3), admin.SeqnoPersistenceReply)
        node.faults.stop_persistence()
        fill(node.port, 2, prefix="lost")
        node.crash()
        assert not node.is_running
        node.restart()
        with Client(node.port) as client:
            assert client.status(kv.Get(key=b"k2")) == Status.SUCCESS
            assert client.status(kv.Get(key=b"lost0")) == Status.KEY_ENOENT


def test_a_restart_keeps_the_port_and_the_documents(tmp_path: Path) -> None:
    with running_node(data=tmp_path) as node:
        port = node.port
        fill(port, 3)
        node.restart()
        assert node.port == port
        with Client(port) as client:
            assert client.get(b"k0").value


def test_a_scenario_waits_from_the_start() -> None:
    with running_node(scenario="at vbucket 0 seqno 4: fail over losing 1") as node:
        fill(node.port, 4)
        assert node.faults.steps.all[0].wait()["seqno"] == 3
    with pytest.raises(ConfigError, match="line 1, column 1"), running_node(scenario="bang"):
        pass


def test_a_node_that_cannot_start_raises_why(tmp_path: Path) -> None:
    with running_node(data=tmp_path), pytest.raises(StoreLocked), running_node(data=tmp_path):
        pass
