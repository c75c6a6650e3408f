"""The cluster file: which nodes there are, which buckets, how many replicas are wanted.

    revision = 1                          # counted up by whoever edits the file
    buckets = ["default"]
    replicas = 1
    credentials = "manager.toml"          # beside this file; for all nodes without their own

    [nodes.a]
    url = "couchbase://10.0.0.1:11210"

    [nodes.b]
    url = "couchbases://10.0.0.2:11207"
    credentials = "b.toml"
    leaving = true                        # rebalance moves everything away from it

The same as JSON when the file's name ends in .json. A file of credentials has user and password
and, for couchbases://, trust, certificate, key (paths beside it) and verify.

Rules
- A file that cannot be used is a ConfigError: what was found, what is allowed, in one sentence.
- A word nobody knows is refused: a misspelt option that is ignored is worse than none.
- Secrets never stand in the cluster file itself: it is copied, mailed and committed.

Imports: errors, client.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.client.access import Access, Tls, access_of
from headrace.client.address import Address, NodeAddress, parse_address
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

FILE_SIZE_MAX: Final = 1 << 20
NODES_MAX: Final = 64
BUCKETS_MAX: Final = 30
REPLICAS_MAX: Final = 3
NODE_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,40}")
"""Two node names and a bucket's must fit into the 200 bytes of a connection's name."""
BUCKET_NAME: Final = re.compile(r"[A-Za-z0-9_.%-]{1,100}")
FILE_WORDS: Final = ("revision", "buckets", "replicas", "credentials", "nodes")
NODE_WORDS: Final = ("url", "credentials", "leaving")
CREDENTIAL_WORDS: Final = ("user", "password", "trust", "certificate", "key", "verify")
Table = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterNode:
    """One node: its name in chains, where it listens, how to get in."""

    name: str
    url: str
    address: NodeAddress
    access: Access = field(repr=False)
    leaving: bool = False

    @property
    def is_encrypted(self) -> bool:
        """Whether it is talked to inside TLS."""
        return self.access.tls is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """What a cluster file says."""

    path: Path
    revision: int
    buckets: tuple[str, ...]
    replicas: int
    nodes: tuple[ClusterNode, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Every node's name, in the order of the file."""
        return tuple(node.name for node in self.nodes)

    @property
    def staying(self) -> tuple[str, ...]:
        """The nodes that are to hold vbuckets."""
        return tuple(node.name for node in self.nodes if not node.leaving)

    def node(self, name: str) -> ClusterNode:
        """The node of that name, or say which there are."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise ConfigError(f"node {name!r} is not in {self.path}; there are {', '.join(self.names)}")

    def bucket(self, name: str | None) -> str:
        """The bucket that is meant: the named one, or the only one."""
        if name is None and len(self.buckets) == 1:
            return self.buckets[0]
        if name is None or name not in self.buckets:
            raise ConfigError(
                f"bucket {name!r} is not in {self.path}; there are {', '.join(self.buckets)}"
            )
        return name

    def beside(self, suffix: str) -> Path:
        """The path of a file that is kept beside this one."""
        return self.path.with_name(f"{self.path.name}.{suffix}")


def read_cluster_file(path: Path) -> ClusterFile:
    """Read and check a cluster file, or say what is wrong with it."""
    said = _table_of(path, "cluster file")
    _check_words(said, FILE_WORDS, f"{path}")
    tables = said.get("nodes")
    if not isinstance(tables, dict) or not 1 <= len(tables) <= NODES_MAX:
        found = len(tables) if isinstance(tables, dict) else repr(tables)
        raise ConfigError(f"{path} has {found} nodes; wanted are 1..{NODES_MAX} as [nodes.NAME]")
    fallback = _credentials_path(path, said.get("credentials"), "credentials")
    nodes = tuple(_node(path, name, table, fallback) for name, table in tables.items())
    _check_unique(path, nodes)
    staying = sum(not node.leaving for node in nodes)
    if not staying:
        raise ConfigError(f"{path}: every node is leaving; at least one must stay")
    replicas = _number(path, said, "replicas", 0, low=0, high=REPLICAS_MAX)
    if replicas >= staying:
        raise ConfigError(
            f"{path} wants {replicas} replicas on {staying} nodes; copies of a vbucket are on "
            f"different nodes, so at most {staying - 1} are possible"
        )
    return ClusterFile(
        path=path,
        revision=_number(path, said, "revision", 1, low=1, high=2**31),
        buckets=_buckets(path, said.get("buckets", ["default"])),
        replicas=replicas,
        nodes=nodes,
    )


def two_nodes(source: str, target: str, *, bucket: str | None) -> ClusterFile:
    """What a cluster file would say of two nodes that are named by their URLs alone."""
    here = Path("two-nodes")
    tables = {"source": {"url": source}, "target": {"url": target}}
    nodes = tuple(_node(here, name, table, None) for name, table in tables.items())
    _check_unique(here, nodes)
    return ClusterFile(
        path=here, revision=1, buckets=(bucket or "default",), replicas=0, nodes=nodes
    )


def _table_of(path: Path, what: str) -> Table:
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= FILE_SIZE_MAX else b""
    except OSError as error:
        raise ConfigError(f"{what} {path} cannot be read: {error.strerror}") from error
    if size > FILE_SIZE_MAX:
        raise ConfigError(f"{what} {path} has {size} bytes, limit {FILE_SIZE_MAX}")
    read: Callable[[str], object] = json.loads if path.suffix == ".json" else tomllib.loads
    form = "JSON" if path.suffix == ".json" else "TOML"
    try:
        said = read(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{what} {path} is no {form}: {error}") from error
    if not isinstance(said, dict):
        raise ConfigError(f"{what} {path} holds a {type(said).__name__}, wanted is an object")
    return said


def _check_words(said: Table, allowed: tuple[str, ...], where: str) -> None:
    for word in said:
        if word not in allowed:
            raise ConfigError(f"{where}: {word!r} is unknown; allowed: {', '.join(allowed)}")


def _check_unique(path: Path, nodes: tuple[ClusterNode, ...]) -> None:
    seen: dict[NodeAddress, str] = {}
    for node in nodes:
        other = seen.setdefault(node.address, node.name)
        if other != node.name:
            raise ConfigError(
                f"{path}: nodes {other} and {node.name} are both at {node.address}; each node has "
                "an address of its own"
            )


def _node(path: Path, name: str, table: object, fallback: Path | None) -> ClusterNode:
    where = f"{path}, node {name}"
    if not NODE_NAME.fullmatch(name):
        raise ConfigError(f"{path}: node name {name!r}; allowed: 1 to 40 letters, digits and _ . -")
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is {table!r}; wanted is a table with url")
    _check_words(table, NODE_WORDS, where)
    url, leaving = table.get("url"), table.get("leaving", False)
    if not isinstance(url, str):
        raise ConfigError(f"{where}: url is {url!r}; wanted is couchbase://host:port")
    if not isinstance(leaving, bool):
        raise ConfigError(f"{where}: leaving is {leaving!r}; allowed: true, false")
    address = parse_address(url)
    if len(address.nodes) != 1 or address.bucket is not None:
        raise ConfigError(f"{where}: url is {url!r}; wanted is one host and no bucket")
    own = _credentials_path(path, table.get("credentials"), f"node {name}, credentials")
    return ClusterNode(
        name=name,
        url=url,
        address=address.nodes[0],
        access=_access(address, own or fallback),
        leaving=leaving,
    )


def _buckets(path: Path, said: object) -> tuple[str, ...]:
    if not isinstance(said, list) or not 1 <= len(said) <= BUCKETS_MAX:
        raise ConfigError(f"{path}: buckets is {said!r}; wanted is a list of 1..{BUCKETS_MAX}")
    for name in said:
        if not isinstance(name, str) or not BUCKET_NAME.fullmatch(name):
            raise ConfigError(
                f"{path}: bucket {name!r}; allowed: 1 to 100 letters, digits and _ . % -"
            )
    if len(set(said)) != len(said):
        raise ConfigError(f"{path}: a bucket stands twice in {said}")
    return tuple(said)


def _number(path: Path, said: Table, word: str, default: int, *, low: int, high: int) -> int:
    value = said.get(word, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{path}: {word} is {value!r}, allowed: {low}..{high}")
    return value


# -- credentials ---------------------------------------------------------------------------------


def _credentials_path(path: Path, said: object, where: str) -> Path | None:
    if said is None:
        return None
    if not isinstance(said, str) or not said:
        raise ConfigError(f"{path}: {where} is {said!r}; wanted is the path of a file")
    return path.parent / said


def _access(address: Address, credentials: Path | None) -> Access:
    if credentials is None:
        return access_of(address, user=None, password=None)
    said = _table_of(credentials, "file of credentials")
    _check_words(said, CREDENTIAL_WORDS, f"{credentials}")
    for word, kind in (("user", str), ("password", str), ("trust", str), ("certificate", str)):
        if not isinstance(said.get(word, ""), kind):
            raise ConfigError(f"{credentials}: {word} is no text; wanted is text in quotes")
    verify = said.get("verify", True)
    if not isinstance(verify, bool):
        raise ConfigError(f"{credentials}: verify is {verify!r}; allowed: true, false")
    tls = Tls(
        trust=_beside(credentials, said.get("trust")),
        certificate=_beside(credentials, said.get("certificate")),
        key=_beside(credentials, said.get("key")),
        verify=verify,
    )
    user, password = said.get("user"), said.get("password")
    return access_of(
        address,
        user=str(user) if user is not None else None,
        password=str(password) if password is not None else None,
        tls=tls if address.tls and tls != Tls() else None,
    )


def _beside(credentials: Path, said: object) -> str | None:
    return None if said is None else str(credentials.parent / str(said))
