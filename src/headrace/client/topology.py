"""Which node has which vbucket: the cluster map, read from what nodes send.

A map comes as the reply to GET_CLUSTER_CONFIG, in the body of NOT_MY_VBUCKET, or pushed. Each has
an age (epoch, revision): the newest is kept. A server without a cluster manager has none; then the
one node we know has everything.

Rules
- ``$HOST`` stands for the address we connected to.
- Row i of the server list and entry i of ``nodesExt`` are the same node; ports come from the
  latter, which alone knows the TLS port.
- network=auto takes the external addresses exactly when the address we connected to is one.
- What cannot be understood is a RemoteProtocolError: a wrong map would stream the wrong node.

Imports: errors, client.address.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, cast

from headrace.client.address import NodeAddress
from headrace.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

VBUCKETS_MAX: Final = 0x1_0000
MAPS_MAX: Final = 16
"""Maps remembered as they were read: a bucket and its readers are told the same one over and over.
"""
NOBODY: Final = -1
EPHEMERAL: Final = "ephemeral"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMap:
    """Where every vbucket of a bucket is.

    ``nodes`` are addresses for us, ``active[v]`` the index of the node that has vbucket v active,
    or NOBODY; ``copies[v]`` all of its nodes, the active one first.
    """

    nodes: tuple[NodeAddress, ...]
    active: tuple[int, ...]
    copies: tuple[tuple[int, ...], ...] = ()
    epoch: int = 0
    revision: int = 0
    bucket: str = ""
    uuid: str = ""
    capabilities: frozenset[str] = frozenset()

    @property
    def vbuckets(self) -> int:
        """How many vbuckets the bucket has."""
        return len(self.active)

    @property
    def age(self) -> tuple[int, int]:
        """Later maps are greater."""
        return self.epoch, self.revision

    @property
    def is_memory_only(self) -> bool:
        """Whether the bucket never reaches a disk: nothing of it will ever count as persisted."""
        return EPHEMERAL in self.capabilities

    def node_of(self, vbucket: int) -> NodeAddress | None:
        """The node that has the vbucket active, or None."""
        index = self.active[vbucket] if vbucket < len(self.active) else NOBODY
        return None if index == NOBODY else self.nodes[index]

    def vbuckets_of(self, node: NodeAddress) -> tuple[int, ...]:
        """The vbuckets that are active on a node."""
        return tuple(v for v in range(len(self.active)) if self.node_of(v) == node)

    @classmethod
    def of_one(cls, node: NodeAddress, vbuckets: Iterable[int], *, bucket: str = "") -> ClusterMap:
        """The map of a node that has none: it has every vbucket it lists."""
        listed = frozenset(vbuckets)
        size = max(listed, default=-1) + 1
        active = tuple(0 if number in listed else NOBODY for number in range(size))
        return cls(nodes=(node,), active=active, bucket=bucket)


@lru_cache(maxsize=MAPS_MAX)
def read_map(
    data: bytes, *, connected: NodeAddress, tls: bool = False, network: str = "auto"
) -> ClusterMap:
    """Read a map that the node at ``connected`` sent."""
    said = _object(data)
    rows = said.get("vBucketServerMap")
    if not isinstance(rows, dict):
        raise RemoteProtocolError(
            "cluster map without vBucketServerMap: the bucket has no vbuckets"
        )
    servers = _list(rows.get("serverList"), "serverList")
    extended = said.get("nodesExt")
    entries = extended if isinstance(extended, list) else []
    external = _use_external(entries, connected, network)
    nodes = tuple(
        _node(server, entries[index] if index < len(entries) else {}, connected, tls, external)
        for index, server in enumerate(servers)
    )
    copies = tuple(_row(row, len(nodes)) for row in _list(rows.get("vBucketMap"), "vBucketMap"))
    if not 1 <= len(copies) <= VBUCKETS_MAX:
        raise RemoteProtocolError(
            f"cluster map of {len(copies)} vbuckets, allowed 1..{VBUCKETS_MAX}"
        )
    listed = said.get("bucketCapabilities")
    kind = {EPHEMERAL} if said.get("bucketType") == EPHEMERAL else set()
    return ClusterMap(
        nodes=nodes,
        active=tuple(row[0] if row else NOBODY for row in copies),
        copies=copies,
        epoch=_number(said.get("revEpoch", 0), "revEpoch"),
        revision=_number(said.get("rev", 0), "rev"),
        bucket=str(said.get("name", "")),
        uuid=str(said.get("uuid", "")),
        capabilities=frozenset(
            {str(name) for name in listed} | kind if isinstance(listed, list) else kind
        ),
    )


def _object(data: bytes) -> dict[str, object]:
    try:
        said = json.loads(data)
    except ValueError as error:
        raise RemoteProtocolError(f"cluster map that is no JSON: {error}") from error
    if not isinstance(said, dict):
        raise RemoteProtocolError(f"cluster map that is a {type(said).__name__}, not an object")
    return said


def _list(value: object, name: str) -> list[object]:
    if not isinstance(value, list):
        raise RemoteProtocolError(f"cluster map whose {name} is no list")
    return value


def _number(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RemoteProtocolError(f"cluster map whose {name} is {value!r}, not a number")
    return value


def _row(row: object, nodes: int) -> tuple[int, ...]:
    indexes = tuple(_number(index, "vBucketMap") for index in _list(row, "vBucketMap"))
    if any(not NOBODY <= index < nodes for index in indexes):
        raise RemoteProtocolError(f"cluster map with a row {list(indexes)} for {nodes} nodes")
    return indexes


def _external_of(entry: object) -> dict[str, object]:
    """The external address of an entry of nodesExt: its host and services, or nothing."""
    if not isinstance(entry, dict):
        return {}
    alternate = entry.get("alternateAddresses")
    external = alternate.get("external") if isinstance(alternate, dict) else None
    return external if isinstance(external, dict) else {}


def _use_external(entries: list[object], connected: NodeAddress, network: str) -> bool:
    if network != "auto":
        return network == "external"
    own = {entry.get("hostname") for entry in entries if isinstance(entry, dict)}
    outside = {_external_of(entry).get("hostname") for entry in entries}
    return connected.host in outside and connected.host not in own


def _node(
    server: object, entry: object, connected: NodeAddress, tls: bool, external: bool
) -> NodeAddress:
    host, _, port = str(server).rpartition(":")
    host = host.replace("$HOST", connected.host).strip("[]") or connected.host
    found = entry if isinstance(entry, dict) else {}
    services = found.get("services")
    if external:
        alternate = _external_of(found)
        if not alternate:
            raise RemoteProtocolError(f"cluster map without an external address of {server}")
        host, services = str(alternate.get("hostname", host)), alternate.get("ports", services)
    elif found.get("hostname"):
        host = str(found["hostname"]).replace("$HOST", connected.host).strip("[]")
    ports = cast("dict[str, object]", services) if isinstance(services, dict) else {}
    named = ports.get("kvSSL" if tls else "kv")
    if isinstance(named, int) and not isinstance(named, bool):
        return NodeAddress(host, named)
    if tls:
        raise RemoteProtocolError(f"cluster map without a TLS port of {server}")
    if not port.isdecimal():
        raise RemoteProtocolError(f"cluster map with the server {server!r}, wanted is host:port")
    return NodeAddress(host, int(port))
