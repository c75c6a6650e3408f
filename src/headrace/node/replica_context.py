"""What surrounds a replica: its connection, its bucket, and what the node chose for it.

Imports: protocol.flow, node.replica_stream, node.replica_talk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.node.replica_stream import Host as StreamHost
from headrace.node.replica_talk import WINDOW
from headrace.protocol.flow import IDLE_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.node.feed import Feed
    from headrace.node.refusal import Refusal
    from headrace.wire.dialect import Dialect


class Session(Protocol):
    """What a replica needs of its connection."""

    @property
    def dialect(self) -> Dialect:
        """The protocol's generation."""

    @property
    def features(self) -> frozenset[int]:
        """What HELLO agreed on."""

    @property
    def collections(self) -> bool:
        """Whether the peer knows collections."""

    def wake(self) -> None:
        """There may be something to pull; any thread."""

    def not_my_vbucket(self) -> Refusal:
        """The refusal that carries the cluster map."""


class Host(StreamHost, Protocol):
    """What a replica needs of its bucket."""

    @property
    def inbound(self) -> dict[int, object]:
        """Who receives which vbucket: one stream per vbucket on this node."""

    @property
    def feed(self) -> Feed:
        """Who hears of changes of vbuckets."""


def _at_once(work: Callable[[], object], then: Callable[[object], None]) -> None:
    then(work())


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """What the node chooses for its replicas.

    ``off_loop(work, then)`` does work that may take long and calls ``then`` on the owner's thread.
    """

    window: int = WINDOW
    idle_timeout_seconds: float = IDLE_TIMEOUT_SECONDS
    off_loop: Callable[[Callable[[], object], Callable[[object], None]], None] = _at_once
