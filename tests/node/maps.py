"""Cluster maps made by hand, for tests that play the manager."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headrace.wire import admin
from headrace.wire.opcodes import Feature, VBucketState
from tests.node.client import Client

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.node.running import RunningNode


def hand_made(
    ports: Sequence[int],
    rows: Sequence[Sequence[int]],
    *,
    names: Sequence[str] = (),
    host: str = "$HOST",
    management: Sequence[int] = (),
) -> dict[str, object]:
    """A map of nodes that listen on these ports."""
    entries: list[dict[str, object]] = []
    for number, port in enumerate(ports):
        services = {"kv": port, "mgmt": management[number] if management else 8091}
        entries.append({"hostname": host, "services": services})
        if names:
            entries[-1]["name"] = names[number]
    return {
        "vBucketServerMap": {
            "hashAlgorithm": "CRC",
            "numReplicas": max(map(len, rows)) - 1,
            "serverList": [f"{host}:{port}" for port in ports],
            "vBucketMap": [list(row) for row in rows],
        },
        "nodesExt": entries,
    }


def given(
    content: object, *, epoch: int = 1, revision: int = 1, bucket: bytes = b"default"
) -> admin.SetClusterConfig:
    """The request that gives a node a map."""
    value = content if isinstance(content, bytes) else json.dumps(content).encode()
    return admin.SetClusterConfig(epoch=epoch, revision=revision, key=bucket, value=value)


class Manager:
    """Two or more nodes, and the map that says who has what."""

    def __init__(self, nodes: Sequence[RunningNode], vbuckets: int) -> None:
        self.nodes = nodes
        self.owner = [0] * vbuckets
        self.revision = 0

    def split(self) -> None:
        """Give each node its share of the vbuckets, and all of them the map."""
        for vbucket in range(len(self.owner)):
            owner = self.owner[vbucket] = vbucket % len(self.nodes)
            for number in range(len(self.nodes)):
                if number != owner:
                    self.set_state(number, vbucket, VBucketState.DEAD)
        self.publish()

    def switch(self, vbucket: int, to: int) -> None:
        """Take a vbucket from its owner and give it to another, data apart."""
        self.set_state(self.owner[vbucket], vbucket, VBucketState.DEAD)
        self.set_state(to, vbucket, VBucketState.ACTIVE)
        self.owner[vbucket] = to
        self.publish()

    def set_state(self, node: int, vbucket: int, state: VBucketState) -> None:
        with Client(self.nodes[node].port) as client:
            request = admin.SetVBucket(vbucket=vbucket, state=state)
            client.ask(request, admin.SetVBucketReply)

    def publish(self) -> None:
        self.revision += 1
        content = hand_made(
            [node.port for node in self.nodes],
            [[owner] for owner in self.owner],
            management=[node.node.ports.management or 8091 for node in self.nodes],
        )
        for node in self.nodes:
            with Client(node.port) as client:
                client.hello(Feature.JSON)
                request = given(content, revision=self.revision)
                client.ask(request, admin.SetClusterConfigReply)
