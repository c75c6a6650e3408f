"""The map clients find vbuckets with: which node has which, and where nodes listen.

A manager gives the node the map of a bucket (SET_CLUSTER_CONFIG); it is kept with the bucket and
told to clients with two changes: ``$HOST`` becomes the address they connected to, and the node's
own entry says ``thisNode``. A node that was given none tells a map of itself alone, whose vbuckets
are those it has active.

Rules:

* The age of a map is its epoch, then its revision; clients keep the newest. A node's own map has
  epoch 0 and a revision that begins at its start in milliseconds and grows with each change: newer
  after a restart, older than any map that is given.
* A given map older than the one held is refused, and so is another one of the same age; the same
  one again is fine.
* A node knows its entry by its name, else by its ports, else by its host and ports.

Imports: wire.opcodes, node.refusal.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from headrace.node.refusal import Refusal
from headrace.wire.opcodes import Status, VBucketState

if TYPE_CHECKING:
    from headrace.node.bucket_host import BucketHost

MANAGEMENT_PORT: Final = 8091
"""What is told where no management port is: clients refuse a map without one."""
HOST_MARK: Final = "$HOST"
MAP_SIZE_MAX: Final = 4 * 1024 * 1024
NODES_MAX: Final = 1024
COPIES_MAX: Final = 4
"""The active copy and three replicas."""
NOBODY: Final = -1
CAPABILITIES: Final = (
    "dcp",
    "cbhello",
    "touch",
    "cccp",
    "nodesExt",
    "xattr",
    "xdcrCheckpointing",
    "collections",
    "durableWrite",
    "tombstonedUserXAttrs",
    "preserveExpiry",
    "subdoc.ReplaceBodyWithXattr",
    "subdoc.DocumentMacroSupport",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where a node listens; None: not there.

    ``management`` and ``management_tls`` are where `headrace.node.management` does.
    """

    plain: int | None
    tls: int | None
    management: int | None = None
    management_tls: int | None = None

    def services(self) -> dict[str, int]:
        """The services of a node in a map."""
        services = {"mgmt": self.management or MANAGEMENT_PORT}
        if self.plain is not None:
            services["kv"] = self.plain
        if self.tls is not None:
            services["kvSSL"] = self.tls
            services["mgmtSSL"] = self.management_tls or MANAGEMENT_PORT
        return services


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """How a node knows itself in a map: its name, the host it listens on, its ports."""

    name: str
    host: str
    ports: Ports


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MapVersion:
    """The age of a map: later ones are greater."""

    epoch: int
    revision: int

    def __str__(self) -> str:
        """As people read it."""
        return f"{self.epoch}.{self.revision}"


@dataclass(frozen=True, slots=True)
class GivenMap:
    """A bucket's map as a manager gave it."""

    version: MapVersion
    content: dict[str, object]

    def to_property(self) -> object:
        """As kept with the bucket."""
        return [self.version.epoch, self.version.revision, self.content]

    @classmethod
    def from_property(cls, kept: object) -> GivenMap | None:
        """As it was kept; None if nothing was."""
        if kept is None:
            return None
        epoch, revision, content = cast("tuple[int, int, dict[str, object]]", kept)
        return cls(MapVersion(epoch=epoch, revision=revision), content)


# -- a map that is given -------------------------------------------------------------------------


def read_given(value: bytes, version: MapVersion, *, bucket: str, vbuckets: int) -> GivenMap:
    """A map to be kept; refused with what is wrong about it."""
    if len(value) > MAP_SIZE_MAX:
        raise _wrong(f"of {len(value)} bytes, limit {MAP_SIZE_MAX}")
    if version.epoch < 1 or not 1 <= version.revision < 2**63 or version.epoch >= 2**63:
        raise _wrong(f"of age {version}, allowed are epoch and revision from 1 on")
    try:
        content = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"that is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise _wrong("that is no JSON object")
    if content.get("name", bucket) != bucket:
        raise _wrong(f"of bucket {content['name']!r} for bucket {bucket!r}")
    nodes = _check_nodes(content)
    _check_rows(content, nodes, vbuckets)
    content["rev"], content["revEpoch"] = version.revision, version.epoch
    return GivenMap(version, content)


def _wrong(what: str) -> Refusal:
    return Refusal(Status.EINVAL, f"a cluster map {what}")


def _check_nodes(content: dict[str, object]) -> int:
    """The number of nodes; the server list and ``nodesExt`` agree about them."""
    rows = content.get("vBucketServerMap")
    servers = rows.get("serverList") if isinstance(rows, dict) else None
    if not isinstance(servers, list) or not all(isinstance(one, str) for one in servers):
        raise _wrong("without vBucketServerMap.serverList, a list of host:port")
    if not 1 <= len(servers) <= NODES_MAX:
        raise _wrong(f"of {len(servers)} servers, allowed 1..{NODES_MAX}")
    entries = content.get("nodesExt")
    if not isinstance(entries, list) or len(entries) < len(servers) or len(entries) > NODES_MAX:
        raise _wrong("whose nodesExt does not begin with an entry for each server")
    for entry in entries:
        services = entry.get("services") if isinstance(entry, dict) else None
        if not isinstance(services, dict) or not {"kv", "kvSSL"} & services.keys():
            raise _wrong("with an entry of nodesExt that has no services kv or kvSSL")
    return len(servers)


def _check_rows(content: dict[str, object], nodes: int, vbuckets: int) -> None:
    rows = cast("dict[str, object]", content["vBucketServerMap"]).get("vBucketMap")
    if not isinstance(rows, list) or len(rows) != vbuckets:
        found = len(rows) if isinstance(rows, list) else 0
        raise _wrong(f"of {found} vbuckets, this bucket has {vbuckets}")
    for number, row in enumerate(rows):
        if (
            not isinstance(row, list)
            or not 1 <= len(row) <= COPIES_MAX
            or not _is_chain(row, nodes)
        ):
            raise _wrong(
                f"whose row {number} is {row!r}; allowed: 1..{COPIES_MAX} different nodes of "
                f"0..{nodes - 1}, or {NOBODY}"
            )


def _is_chain(row: list[object], nodes: int) -> bool:
    whole = [one for one in row if isinstance(one, int) and not isinstance(one, bool)]
    there = [one for one in whole if one != NOBODY]
    in_range = all(0 <= one < nodes for one in there)
    return len(whole) == len(row) and in_range and len(set(there)) == len(there)


def check_newer(held: GivenMap | None, given: GivenMap) -> bool:
    """Whether the map is to be taken; False: it is the one held. Refused when it is older."""
    if held is None or given.version > held.version:
        return True
    if given == held:
        return False
    kind = "is older than" if given.version < held.version else "has the age of, and differs from,"
    raise Refusal(Status.ERANGE, f"cluster map {given.version} {kind} the one held, {held.version}")


# -- what clients are told -----------------------------------------------------------------------


def told_map(given: GivenMap, host: BucketHost, me: Identity, address: str) -> bytes:
    """A given map for a client that connected to ``address``."""
    content = _own_fields(host) | deepcopy(given.content)
    if not content["bucketCapabilities"]:
        content["bucketCapabilities"] = _capabilities(host)
    content["collectionsManifestUid"] = f"{host.manifest.uid:x}"
    rows = cast("dict[str, list[str]]", content["vBucketServerMap"])
    named = _bracketed(address)
    content["nodesExt"] = told_nodes(given, me, address)
    rows["serverList"] = [one.replace(HOST_MARK, named) for one in rows["serverList"]]
    for entry in cast("list[dict[str, object]]", content.get("nodes", [])):
        if isinstance(entry.get("hostname"), str):
            entry["hostname"] = str(entry["hostname"]).replace(HOST_MARK, named)
    return _packed(content)


def told_nodes(given: GivenMap, me: Identity, address: str) -> list[dict[str, object]]:
    """The entries of a given map's nodes; ours says so."""
    entries = [
        {name: value for name, value in entry.items() if name != "thisNode"}
        for entry in cast("list[dict[str, object]]", given.content["nodesExt"])
    ]
    for entry in entries:
        entry["hostname"] = str(entry.get("hostname") or HOST_MARK).replace(HOST_MARK, address)
    servers = cast("dict[str, list[str]]", given.content["vBucketServerMap"])["serverList"]
    own = find_self(entries, servers, me, address)
    if own is not None:
        entries[own]["thisNode"] = True
    return entries


def find_self(
    entries: list[dict[str, object]], servers: list[str], me: Identity, address: str
) -> int | None:
    """Which entry is this node's; None when the map does not have it, or cannot tell."""
    for number, entry in enumerate(entries):
        services = cast("dict[str, int]", entry["services"])
        names = {entry.get("name"), f"{entry['hostname']}:{services.get('kv')}"}
        if me.name in names | set(servers[number : number + 1]):
            return number
    fitting = [number for number, entry in enumerate(entries) if _listens_there(entry, me.ports)]
    if len(fitting) > 1:
        hosts = {me.host, address}
        fitting = [number for number in fitting if entries[number]["hostname"] in hosts]
    return fitting[0] if len(fitting) == 1 else None


def _listens_there(entry: dict[str, object], ports: Ports) -> bool:
    services = cast("dict[str, int]", entry["services"])
    own = {name: port for name, port in (("kv", ports.plain), ("kvSSL", ports.tls)) if port}
    return any(services.get(name) == port for name, port in own.items())


def bucket_map(host: BucketHost, ports: Ports, version: MapVersion, address: str) -> bytes:
    """The map of one bucket on this node alone, for a client that connected to ``address``."""
    listens = ports.plain if ports.plain is not None else ports.tls
    named = _bracketed(address)
    active = {
        vbucket.id for vbucket in host.bucket.vbuckets if vbucket.state == VBucketState.ACTIVE
    }
    total = host.bucket.settings.vbuckets
    rows = [[0] if number in active else [NOBODY] for number in range(total)]
    return _packed(
        {
            "rev": version.revision,
            "revEpoch": version.epoch,
            **_own_fields(host),
            "vBucketServerMap": {
                "hashAlgorithm": "CRC",
                "numReplicas": 0,
                "serverList": [f"{named}:{listens}"],
                "vBucketMap": rows,
            },
            "nodes": [
                {
                    "hostname": f"{named}:{ports.management or MANAGEMENT_PORT}",
                    "ports": {"direct": listens},
                }
            ],
            "nodesExt": [{"services": ports.services(), "thisNode": True, "hostname": named}],
        }
    )


def node_map(nodes: list[dict[str, object]], version: MapVersion) -> bytes:
    """The map of nodes without buckets, for a client that has selected none."""
    return _packed(
        {
            "rev": version.revision,
            "revEpoch": version.epoch,
            "nodesExt": nodes,
            "clusterCapabilitiesVer": [1, 0],
            "clusterCapabilities": {},
        }
    )


def own_nodes(ports: Ports, address: str) -> list[dict[str, object]]:
    """The entries of a map of this node alone."""
    return [{"services": ports.services(), "thisNode": True, "hostname": address}]


def _own_fields(host: BucketHost) -> dict[str, object]:
    """What the map of a bucket says besides where it is."""
    return {
        "name": host.name,
        "uuid": host.bucket.uuid,
        "nodeLocator": "vbucket",
        "uri": f"/pools/default/buckets/{host.name}",
        "streamingUri": f"/pools/default/bucketsStreaming/{host.name}",
        "bucketCapabilitiesVer": "",
        "bucketCapabilities": _capabilities(host),
        "collectionsManifestUid": f"{host.manifest.uid:x}",
    }


def _capabilities(host: BucketHost) -> list[str]:
    return list(CAPABILITIES) if host.bucket.durable else [*CAPABILITIES, "ephemeral"]


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _packed(content: dict[str, object]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
