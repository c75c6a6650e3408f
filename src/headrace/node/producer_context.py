"""What surrounds a producer: its connection, its bucket, and what the node chose for it.

Imports: protocol, node.disk_pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from headrace.node.disk_pass import OsoLimits
from headrace.protocol.flow import IDLE_TIMEOUT_SECONDS, STUCK_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.node.feed import Feed
    from headrace.node.manifest import Manifest
    from headrace.node.refusal import Refusal
    from headrace.store.bucket import Bucket
    from headrace.wire.dialect import Dialect
    from headrace.wire.opcodes import VBucketState

BACKFILLS_MAX: Final = 64
OSO_LIMITS: Final = OsoLimits()


class Session(Protocol):
    """What a producer needs of its connection."""

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


class Host(Protocol):
    """What a producer needs of its bucket."""

    @property
    def bucket(self) -> Bucket:
        """The stored bucket."""

    @property
    def feed(self) -> Feed:
        """Who hears of changes."""

    @property
    def manifest(self) -> Manifest:
        """The newest collections manifest."""

    def set_state(self, vbucket: int, state: VBucketState) -> object:
        """Give a vbucket a state, durably, and tell everyone concerned."""

    def hold_writes(self, vbucket: int, *, held: bool) -> None:
        """Tell writers of a vbucket to try again later, or no longer."""

    def replica_joined(self, vbucket: int, name: str) -> None:
        """A consumer of this name begins a stream: what it acknowledged before is forgotten."""

    def replica_acknowledged(self, vbucket: int, name: str, seqno: int) -> None:
        """A consumer of this name has met every prepare up to a seqno."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """What the node chooses for its producers.

    ``long_markers``: V2.2 markers with the high prepared seqno. ``unknown_branch_is_enoent``: as
    the draft says, where later documents answer ROLLBACK 0. ``stuck_seconds``: close a connection
    whose full window is not acknowledged for so long; None: never. ``idle_backfill_seconds``: end
    a backfill that makes no progress for so long while ``disk_is_tight()``.
    ``backfill_is_full()``: refuse new streams for want of memory.
    """

    long_markers: bool = False
    unknown_branch_is_enoent: bool = False
    idle_timeout_seconds: float = IDLE_TIMEOUT_SECONDS
    stuck_seconds: float | None = None
    idle_backfill_seconds: float = STUCK_SECONDS
    disk_is_tight: Callable[[], bool] = _never
    backfill_is_full: Callable[[], bool] = _never
    backfills_max: int = BACKFILLS_MAX
    oso: OsoLimits = OSO_LIMITS
