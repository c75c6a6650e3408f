"""A node's life: starting, stopping, expiring, and what survives."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from headrace.errors import ConfigError, StoreLocked
from headrace.node.config import BucketConfig, NodeConfig
from headrace.node.server import Node
from headrace.store import BucketSettings
from headrace.wire import kv
from headrace.wire.opcodes import Status
from tests.node.client import Client
from tests.node.running import SMALL, running

if TYPE_CHECKING:
    from pathlib import Path


def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    config = NodeConfig(buckets=(SMALL,), data=tmp_path)
    with running(config) as node, Client(node.port) as client:
        stored = client.set(b"k", b"v", flags=3)
    with running(config) as node, Client(node.port) as client:
        found = client.get(b"k")
        assert (found.value, found.flags, found.cas) == (b"v", 3, stored.cas)
        assert client.stats("failovers 0")["vb_0:num_entries"] == "1", "the stop was clean"


def test_several_buckets_are_kept_apart_on_disk(tmp_path: Path) -> None:
    one = BucketSettings(vbuckets=1)
    buckets = (BucketConfig(name="a", settings=one), BucketConfig(name="b", settings=one))
    with running(NodeConfig(buckets=buckets, data=tmp_path)) as node:
        assert set(node.node.hosts) == {"a", "b"}
        with Client(node.port) as client:
            assert client.status(kv.Get(key=b"k")) == Status.NO_BUCKET
    assert {path.name for path in tmp_path.iterdir()} >= {"a", "b"}


def test_a_second_node_on_the_same_data_is_refused_and_the_first_lives(tmp_path: Path) -> None:
    config = NodeConfig(buckets=(SMALL,), data=tmp_path)
    with running(config) as node:
        with pytest.raises(StoreLocked), running(config):
            pass
        with Client(node.port) as client:
            client.set(b"k", b"v")


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with running(NodeConfig(buckets=(SMALL,))) as node:
        taken = NodeConfig(buckets=(SMALL,), port=node.port, data=tmp_path)
        said = f"cannot listen on 127.0.0.1:{node.port}: address already in use$"
        with pytest.raises(ConfigError, match=said), running(taken):
            pass
    with running(NodeConfig(buckets=(SMALL,), data=tmp_path)):
        """What the failed start had opened was closed again."""


def test_the_pager_expires_what_nobody_reads() -> None:
    config = NodeConfig(buckets=(SMALL,), expiry_pager_seconds=0.02)
    with running(config) as node, Client(node.port) as client:
        client.set(b"due", b"v", expiration=int(time.time()) - 5)
        while client.stats("vbucket-details 0")["vb_0:num_items"] != "0":
            pass
        assert client.stats("vbucket-details 0")["vb_0:high_seqno"] == "2"


def test_a_signal_stops_the_node_cleanly() -> None:
    ports: list[int] = []

    def ready(node: Node) -> None:
        ports.append(node.port)
        os.kill(os.getpid(), signal.SIGTERM)

    asyncio.run(Node(NodeConfig(buckets=(SMALL,))).serve(ready=ready))
    with pytest.raises(ConnectionRefusedError):
        Client(ports[0])


def test_a_stopping_node_sends_what_it_owes() -> None:
    with running(NodeConfig(buckets=(SMALL,))) as node:
        client = Client(node.port)
        client.set(b"k", bytes(1024 * 1024))
        client.send(kv.Get(key=b"k"))
        assert isinstance(client.receive(), kv.GetReply)
    assert client.is_closed()
    client.close()
