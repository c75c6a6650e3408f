"""The map clients find vbuckets with: one node, its ports, which vbuckets are active here.

Clients replace ``$HOST`` by the address they connected to; some do not, so the node does it before
it sends. A map has an epoch (when this node started) and a revision (how often the map changed
since): a client keeps the newest and asks for anything newer.

Imports: wire.opcodes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.wire.opcodes import VBucketState

if TYPE_CHECKING:
    from headrace.node.bucket_host import BucketHost

MANAGEMENT_PORT: Final = 8091
"""What is told where no management port is: clients refuse a map without one."""
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


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class MapVersion:
    """The age of a map: later ones are greater."""

    epoch: int
    revision: int


def bucket_map(host: BucketHost, ports: Ports, version: MapVersion, address: str) -> bytes:
    """The map of one bucket, as JSON, for a client that connected to ``address``."""
    listens = ports.plain if ports.plain is not None else ports.tls
    address = f"[{address}]" if ":" in address else address
    server = f"{address}:{listens}"
    active = {
        vbucket.id for vbucket in host.bucket.vbuckets if vbucket.state == VBucketState.ACTIVE
    }
    rows = [[0] if number in active else [-1] for number in range(host.bucket.settings.vbuckets)]
    capabilities = list(CAPABILITIES) if host.bucket.durable else [*CAPABILITIES, "ephemeral"]
    return json.dumps(
        {
            "rev": version.revision,
            "revEpoch": version.epoch,
            "name": host.name,
            "uuid": host.bucket.uuid,
            "nodeLocator": "vbucket",
            "uri": f"/pools/default/buckets/{host.name}",
            "streamingUri": f"/pools/default/bucketsStreaming/{host.name}",
            "bucketCapabilitiesVer": "",
            "bucketCapabilities": capabilities,
            "collectionsManifestUid": f"{host.manifest.uid:x}",
            "vBucketServerMap": {
                "hashAlgorithm": "CRC",
                "numReplicas": 0,
                "serverList": [server],
                "vBucketMap": rows,
            },
            "nodes": [
                {
                    "hostname": f"{address}:{ports.management or MANAGEMENT_PORT}",
                    "ports": {"direct": listens},
                }
            ],
            "nodesExt": [{"services": ports.services(), "thisNode": True, "hostname": address}],
        },
        separators=(",", ":"),
    ).encode()


def node_map(ports: Ports, version: MapVersion, address: str) -> bytes:
    """The map of the node for a client that has selected no bucket."""
    return json.dumps(
        {
            "rev": version.revision,
            "revEpoch": version.epoch,
            "nodesExt": [{"services": ports.services(), "thisNode": True, "hostname": address}],
            "clusterCapabilitiesVer": [1, 0],
            "clusterCapabilities": {},
        },
        separators=(",", ":"),
    ).encode()
