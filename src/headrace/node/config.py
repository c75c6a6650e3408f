"""What an owner of a node can choose, and every limit of its connections.

Imports: errors, store.settings, wire.dialect, node.users.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from headrace import __version__
from headrace.errors import ConfigError
from headrace.store.settings import BucketSettings
from headrace.wire.dialect import Dialect

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.node.fault_script import Step
    from headrace.node.users import Users

KIB: Final = 1024
MIB: Final = 1024 * KIB

RECEIVE_SIZE: Final = 1 * MIB
"""The one receive buffer of a node: filled, read and given back within one call."""
FRONT_SIZE_MAX: Final = 16 * KIB
"""Bytes of a half frame that are laid before what is received next, each time something is."""
BODY_SIZE_MAX_BEFORE_LOGIN: Final = 1 * MIB
"""Largest body of a peer that has still to say who it is."""
REQUESTS_PER_TURN: Final = 512
"""Requests of one connection answered one by one before others get their turn."""
STREAM_REQUESTS_PER_TURN: Final = 4
"""The same once a stream of that connection has something to send: the first of a thousand stream
requests need not wait for the last one's answer."""
REPLY_SLICE: Final = 1 * MIB
"""Bytes of replies joined before they are handed to the transport."""
INPUT_HELD_MAX: Final = 4 * MIB
"""Bytes of whole requests a connection may hold back; then its socket is not read."""
OUTPUT_HIGH: Final = 256 * KIB
"""Unsent bytes at which a connection produces no more; the system holds megabytes besides."""
OUTPUT_LOW: Final = 64 * KIB
OUTPUT_HELD_MAX: Final = 8 * MIB
"""Unsent bytes at which a change-stream connection is not even read."""
OUTPUT_SHARE: Final = 8
"""Connections that are waited for may hold this part of their bucket's quota together."""
PULL_SLICE: Final = 4 * MIB
"""Bytes of stream data asked for between two looks at the input."""
SLICE_SHARE: Final = 32
"""A slice is at most this part of its bucket's quota."""
PULL_SLICE_TIGHT: Final = 64 * KIB
"""The same while too many bytes wait for slow peers; then nothing is read ahead, either."""
JOIN_SIZE_MAX: Final = 16 * KIB
"""Pieces of stream data below this size are sent together, larger ones without a copy."""
HALF_FRAME_SECONDS_MAX: Final = 120.0
"""How long a peer may leave a frame unfinished without sending a byte."""
LOGIN_SECONDS_MAX: Final = 60.0
"""How long a peer may stay without logging in where a login is needed."""
FAILED_LOGINS_MAX: Final = 10
CONNECTIONS_MAX: Final = 30_000
BUCKETS_MAX: Final = 32
SEQNO_WAIT_SECONDS: Final = 30.0
"""How long SEQNO_PERSISTENCE waits before it answers ETMPFAIL."""
DURABILITY_SECONDS_DEFAULT: Final = 30.0
EXPIRY_PAGER_SECONDS: Final = 5.0
MAINTAIN_SECONDS: Final = 1.0
SWEEP_SECONDS: Final = 5.0
STOP_SECONDS: Final = 5.0
"""How long a stopping node waits for replies to leave."""

VERSION: Final = f"7.6.0-headrace-{__version__}"
"""What VERSION answers: the generation of servers whose protocol this is, then our own number.

Clients parse the number in front, and libmemcached takes a leading 0 for a failure."""
BUCKET_NAME: Final = re.compile(r"[A-Za-z0-9_.%-]{1,100}")
DEFAULT_BUCKET: Final = "default"
NODE_NAME_SIZE_MAX: Final = 250


class ConflictResolution(Enum):
    """Which of two versions of a document wins when they meet."""

    REVISION = "seqno"
    LAST_WRITE = "lww"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketConfig:
    """One bucket of a node.

    ``as_created``: a bucket that is on disk already keeps the settings it was created with.
    """

    name: str = DEFAULT_BUCKET
    settings: BucketSettings = field(default_factory=BucketSettings)
    conflict_resolution: ConflictResolution = ConflictResolution.REVISION
    max_ttl: int = 0
    as_created: bool = False

    def __post_init__(self) -> None:
        """Refuse a name that is no file name or no bucket name."""
        if not BUCKET_NAME.fullmatch(self.name) or self.name.startswith("."):
            raise ConfigError(
                f"bucket name {self.name!r}; allowed: 1..100 of letters, digits and _ . % -, "
                "not starting with a dot"
            )
        if not 0 <= self.max_ttl <= 2**31 - 1:
            raise ConfigError(f"max_ttl {self.max_ttl} of bucket {self.name}, allowed 0..2**31-1")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """A certificate chain and its key, both PEM.

    ``client_authority`` signs certificates of clients: who shows one is logged in as the user its
    common name names.
    """

    certificate: Path
    key: Path
    client_authority: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """The choices of one node.

    ``port`` 0 takes any free port, None listens without TLS nowhere. ``node_name`` is how cluster
    maps and chains name this node; "" stands for host:port. ``users`` None is open access:
    everyone is an administrator of everything, so such a node refuses to listen beyond loopback.
    ``management_port`` is where SDKs find HTTP; None: nowhere.
    ``login`` is the extra account of an open node, for clients that cannot do without one.
    ``flush`` lets FLUSH empty a bucket, as classic memcached tools expect. ``faults`` gives the
    node its levers; an ``admin_port``, a ``web_port`` or a ``scenario`` does so, too. Without an
    ``admin_token`` one is made. ``web_port`` and ``web_host`` are where the live page is (see
    `headrace.web`); beyond loopback it carries logins, and so needs users and TLS.
    """

    host: str = "127.0.0.1"
    port: int | None = 0
    node_name: str = ""
    tls_port: int = 0
    tls: TlsFiles | None = None
    data: Path | None = None
    buckets: tuple[BucketConfig, ...] = (BucketConfig(),)
    users: Users | None = None
    login: Users | None = None
    metrics_port: int | None = None
    management_port: int | None = 0
    admin_port: int | None = None
    admin_token: str = ""
    web_port: int | None = None
    web_host: str = "127.0.0.1"
    faults: bool = False
    scenario: tuple[Step, ...] = ()
    flush: bool = False
    dialect: Dialect = Dialect.DCP_7
    commit_delay_seconds: float = 0.002
    expiry_pager_seconds: float = EXPIRY_PAGER_SECONDS

    def __post_init__(self) -> None:
        """Refuse what is unsafe or cannot be."""
        names = [bucket.name for bucket in self.buckets]
        if not 1 <= len(names) <= BUCKETS_MAX or len(set(names)) != len(names):
            raise ConfigError(
                f"buckets {', '.join(names)}; allowed: 1..{BUCKETS_MAX}, all different"
            )
        for option, port in (
            ("port", self.port),
            ("tls_port", self.tls_port),
            ("metrics_port", self.metrics_port),
            ("management_port", self.management_port),
            ("admin_port", self.admin_port),
            ("web_port", self.web_port),
        ):
            if port is not None and not 0 <= port <= 0xFFFF:
                raise ConfigError(f"{option} {port}, allowed 0..65535")
        if len(self.node_name) > NODE_NAME_SIZE_MAX or not self.node_name.isprintable():
            raise ConfigError(
                f"node name {self.node_name!r}, allowed: up to {NODE_NAME_SIZE_MAX} printable "
                "characters"
            )
        if self.admin_token and not 16 <= len(self.admin_token) <= 256:
            raise ConfigError(f"admin token of {len(self.admin_token)} characters, allowed 16..256")
        if self.port is None and self.tls is None:
            raise ConfigError("a node without a plain port needs TLS, else nobody can connect")
        if self.users is None and not is_loopback(self.host):
            raise ConfigError(
                f"host {self.host} is reachable from elsewhere and there is no users file; "
                "give one, or listen on 127.0.0.1"
            )
        if not is_loopback(self.web_host) and (self.users is None or self.tls is None):
            raise ConfigError(
                f"web host {self.web_host} is reachable from elsewhere, where the page needs a "
                "users file and TLS; give both, or leave it on 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    """Whether the address can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
