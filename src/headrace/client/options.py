"""What a reader of changes can choose, checked before anything is opened.

Imports: errors, protocol, wire, client.tokens.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from headrace.client.changes import Rollback, Trouble
from headrace.client.courses import BACKFILLS_MAX
from headrace.client.shelf import MEMORY_MAX
from headrace.client.tokens import TokenSet
from headrace.errors import ConfigError
from headrace.protocol.flow import NOOP_INTERVAL_SECONDS
from headrace.protocol.handshake import WINDOW, ConsumerSettings

if TYPE_CHECKING:
    from headrace.client.access import Access

Since: TypeAlias = Literal["beginning", "now"] | TokenSet | datetime
Until: TypeAlias = Literal["now"] | TokenSet | None
OnRollback: TypeAlias = Literal["raise", "yield"] | Callable[[Rollback], None]

PATIENCE_SECONDS: Final = 60.0
"""How long a read that has an end waits for vbuckets that do not move."""
WINDOW_MIN: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of `Bucket.changes` and `Bucket.follow`.

    Where: ``since`` (beginning, now, tokens, a time), ``until`` (now, tokens, None for never),
    ``vbuckets``. What: ``collections`` or ``scope`` by name or id, ``no_value``, ``xattrs``,
    ``expirations`` as their own kind, ``sync_writes`` (prepares, commits,
    aborts), ``history`` (every version the bucket kept), ``stream_id``. How: ``compression`` on the
    wire, ``inflate`` it in batches, ``out_of_order`` backfills, ``ignore_purged`` tombstones,
    ``active_only``, ``purge_seqnos`` (fewer rollbacks after compaction).

    ``whole``: hold rows until their snapshot is complete, in memory up to ``shelf_memory`` bytes,
    then on disk. ``persisted_only``: hold them until they are on the nodes' disks; does nothing
    for a bucket that lives in memory. ``on_rollback``, ``on_trouble`` and ``on_event`` are told as
    it happens. ``patience_seconds``: give a vbucket up after so long without movement; never for
    endless reads. ``window`` bytes may be on their way per node, 0 for no flow control.
    """

    since: Since = "beginning"
    until: Until = None
    vbuckets: tuple[int, ...] | None = None
    collections: tuple[str | int, ...] = ()
    scope: str | int | None = None
    no_value: bool = False
    xattrs: bool = False
    compression: bool | None = None
    inflate: bool = True
    expirations: bool = True
    sync_writes: bool = False
    stream_id: int | None = None
    out_of_order: bool = False
    history: bool = False
    purge_seqnos: bool = True
    ignore_purged: bool = False
    active_only: bool = True
    whole: bool = True
    persisted_only: bool = False
    on_rollback: OnRollback = "raise"
    on_trouble: Callable[[Trouble], None] | None = None
    on_event: Callable[[object], None] | None = None
    patience_seconds: float | Literal["auto"] | None = "auto"
    window: int = WINDOW
    noop_seconds: float = NOOP_INTERVAL_SECONDS
    backfills_max: int = BACKFILLS_MAX
    shelf_memory: int = MEMORY_MAX
    name: str | None = None
    priority: Literal["high", "medium", "low"] | None = None
    controls: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Refuse what cannot be, by the name of the option."""
        _one_of("since", self.since, ("beginning", "now"), (TokenSet, datetime))
        _one_of("until", self.until, ("now", None), (TokenSet,))
        if isinstance(self.since, datetime) and self.since.tzinfo is None:
            raise ConfigError(f"since is {self.since}, a time without a zone; add tzinfo")
        if self.collections and self.scope is not None:
            raise ConfigError("collections and scope are both given; one of them narrows a stream")
        if self.window and self.window < WINDOW_MIN:
            raise ConfigError(f"window is {self.window}, allowed: 0 or from {WINDOW_MIN}")
        if self.backfills_max < 1:
            raise ConfigError(f"backfills_max is {self.backfills_max}, allowed: from 1")
        if self.vbuckets is not None and not self.vbuckets:
            raise ConfigError("vbuckets is empty; leave it out to read all of them")
        if self.on_rollback not in ("raise", "yield") and not callable(self.on_rollback):
            raise ConfigError(
                f"on_rollback is {self.on_rollback!r}, allowed: 'raise', 'yield' or a function"
            )

    @property
    def patience(self) -> float | None:
        """Seconds without movement after which a vbucket is given up; None: never."""
        if self.patience_seconds == "auto":
            return None if self.until is None else PATIENCE_SECONDS
        return self.patience_seconds

    def settings(self, access: Access, bucket: str) -> ConsumerSettings:
        """What a connection is asked for."""
        return ConsumerSettings(
            name=self.name or f"headrace:{secrets.token_hex(6)}",
            user=access.user,
            password=access.password,
            bucket=bucket,
            encrypted=access.tls is not None,
            dialect=access.dialect,
            collections=True,
            xattrs=self.xattrs,
            no_value=self.no_value,
            snappy=access.compression if self.compression is None else self.compression,
            expirations=self.expirations,
            sync_writes=self.sync_writes,
            stream_ids=self.stream_id is not None,
            out_of_order=self.out_of_order,
            purge_seqnos=self.purge_seqnos,
            change_streams=self.history,
            clustermap_push=True,
            noop_interval_seconds=self.noop_seconds,
            window=self.window,
            priority=self.priority,
            controls=(*self._order(), *self.controls),
        )

    def _order(self) -> tuple[tuple[str, str], ...]:
        """One backfill after the other: whole snapshots come sooner and less has to wait."""
        return (("backfill_order", "sequential"),) if self.whole else ()


def _one_of(name: str, value: object, words: tuple[object, ...], kinds: tuple[type, ...]) -> None:
    if isinstance(value, kinds):
        return
    if value not in words:
        allowed = [repr(word) for word in words] + [f"a {kind.__name__}" for kind in kinds]
        raise ConfigError(f"{name} is {value!r}, allowed: {', '.join(allowed)}")
