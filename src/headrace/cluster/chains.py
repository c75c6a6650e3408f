"""Chains: which nodes hold which vbucket, as a cluster map with its age.

A chain names the nodes of one vbucket, the active one first; None stands where a copy is missing.
`Chains` is the map of a bucket: every vbucket's chain, where nodes listen, and the map's age (epoch
and revision). It is what SET_CLUSTER_CONFIG gives the nodes, what they give clients, and what is
kept beside the cluster file.

Rules
- A node stands once in a chain.
- Every change of a map is a new map with a later revision.
- The JSON is the one clients read (`headrace.client.topology`); node names ride along as ``name``
  in ``nodesExt``, which clients pass over.

Imports: errors.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from headrace.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Chain = tuple[str | None, ...]
"""Names of nodes, the active one first; None: no copy there."""

NOBODY: Final = -1
VBUCKETS_MAX: Final = 0x1_0000
MANAGEMENT_PORT: Final = 8091
"""What is told where a node told none: clients refuse a map without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a node listens, as clients are told: its host, and service name -> port."""

    name: str
    host: str
    services: tuple[tuple[str, int], ...]

    @property
    def server(self) -> str:
        """host:port, as in a map's list of servers."""
        ports = dict(self.services)
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{ports.get('kv', ports.get('kvSSL', 0))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """The map of one bucket."""

    bucket: str
    rows: tuple[Chain, ...]
    places: tuple[Place, ...]
    epoch: int = 1
    revision: int = 1
    uuid: str = ""
    capabilities: tuple[str, ...] = ()

    @property
    def age(self) -> tuple[int, int]:
        """Later maps are greater."""
        return self.epoch, self.revision

    @property
    def vbuckets(self) -> int:
        """How many vbuckets the bucket has."""
        return len(self.rows)

    def active(self, vbucket: int) -> str | None:
        """The node that has the vbucket active."""
        return self.rows[vbucket][0] if self.rows[vbucket] else None

    def replicas(self, vbucket: int) -> tuple[str, ...]:
        """The nodes that have a replica of it."""
        return tuple(name for name in self.rows[vbucket][1:] if name is not None)

    def vbuckets_of(self, name: str) -> tuple[int, ...]:
        """The vbuckets active on a node."""
        return tuple(number for number, row in enumerate(self.rows) if row and row[0] == name)

    def with_rows(self, changed: Mapping[int, Chain]) -> Chains:
        """The next map: some chains changed, one revision later."""
        rows = tuple(changed.get(number, row) for number, row in enumerate(self.rows))
        return replace(self, rows=rows, revision=self.revision + 1)

    def with_places(self, places: Iterable[Place]) -> Chains:
        """The same map, told where nodes listen now."""
        return replace(self, places=tuple(places))

    def newer_than(self, epoch: int, revision: int) -> Chains:
        """The same map with an age above the one given."""
        if self.age > (epoch, revision):
            return self
        return replace(self, epoch=max(epoch, self.epoch), revision=revision + 1)


def to_json(chains: Chains) -> bytes:
    """The map as nodes keep it and clients read it."""
    held = {name for row in chains.rows for name in row if name is not None}
    # Nodes without vbuckets come last: clients know them, and are connected when they get some.
    places = sorted(chains.places, key=lambda place: place.name not in held)
    index = {place.name: number for number, place in enumerate(places)}
    width = max((len(row) for row in chains.rows), default=1)
    rows = [
        [index[name] if name is not None else NOBODY for name in row]
        + [NOBODY] * (width - len(row))
        for row in chains.rows
    ]
    return json.dumps(
        {
            "rev": chains.revision,
            "revEpoch": chains.epoch,
            "name": chains.bucket,
            "uuid": chains.uuid,
            "nodeLocator": "vbucket",
            "uri": f"/pools/default/buckets/{chains.bucket}",
            "streamingUri": f"/pools/default/bucketsStreaming/{chains.bucket}",
            "bucketCapabilitiesVer": "",
            "bucketCapabilities": list(chains.capabilities),
            "vBucketServerMap": {
                "hashAlgorithm": "CRC",
                "numReplicas": width - 1,
                "serverList": [place.server for place in places if place.name in held],
                "vBucketMap": rows,
            },
            "nodes": [_node(place) for place in places],
            "nodesExt": [_node_ext(place) for place in places],
        },
        separators=(",", ":"),
    ).encode()


def _node(place: Place) -> dict[str, object]:
    ports = dict(place.services)
    host = f"[{place.host}]" if ":" in place.host else place.host
    return {
        "hostname": f"{host}:{ports.get('mgmt', MANAGEMENT_PORT)}",
        "ports": {"direct": ports.get("kv", ports.get("kvSSL", 0))},
    }


def _node_ext(place: Place) -> dict[str, object]:
    services = {"mgmt": MANAGEMENT_PORT} | dict(place.services)
    return {"services": services, "hostname": place.host, "name": place.name}


# -- reading -------------------------------------------------------------------------------------


def from_json(data: bytes) -> Chains | None:
    """Read a map that a manager made; None for one that a node made for itself alone."""
    try:
        said = json.loads(data)
        entries = said["nodesExt"]
        rows = said["vBucketServerMap"]["vBucketMap"]
        if not all(isinstance(entry.get("name"), str) for entry in entries):
            return None
        places = tuple(place_of(entry, entry["name"], entry["hostname"]) for entry in entries)
        chains = Chains(
            bucket=str(said["name"]),
            rows=tuple(_row(row, places) for row in rows),
            places=places,
            epoch=int(said.get("revEpoch", 0)),
            revision=int(said["rev"]),
            uuid=str(said.get("uuid", "")),
            capabilities=tuple(str(name) for name in said.get("bucketCapabilities", [])),
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise RemoteProtocolError(f"cluster map that cannot be read: {error!r}") from error
    if not 1 <= chains.vbuckets <= VBUCKETS_MAX:
        raise RemoteProtocolError(
            f"cluster map of {chains.vbuckets} vbuckets, allowed 1..{VBUCKETS_MAX}"
        )
    return chains


def place_of(entry: Mapping[str, object], name: str, host: str) -> Place:
    """Where a node says it listens: an entry of ``nodesExt``."""
    services = entry.get("services")
    listed = services if isinstance(services, dict) else {}
    ports = tuple(sorted((str(key), int(port)) for key, port in listed.items()))
    return Place(name=name, host=host, services=ports)


def _row(row: list[int], places: tuple[Place, ...]) -> Chain:
    if any(not NOBODY <= index < len(places) for index in row):
        raise ValueError(f"a row {row} for {len(places)} nodes")
    chain = tuple(places[index].name if index != NOBODY else None for index in row)
    return trimmed(chain)


def trimmed(chain: Chain) -> Chain:
    """The chain without missing copies at its end; the place of the active copy always stays."""
    end = len(chain)
    while end > 1 and chain[end - 1] is None:
        end -= 1
    return chain[:end] or (None,)
