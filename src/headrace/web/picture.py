"""Picture: what a page shows of a bucket at one moment, and how two moments differ.

A picture holds one list per number of a vbucket (`COLUMNS`, and its branch), because most of them
change a little all the time: the difference of two pictures names places and values, or the whole
list where that is shorter. A vbucket that is not here has state `ABSENT` and zeros.

Lag of a vbucket is its high seqno minus the place of its slowest stream; `NOBODY` when no stream
reads it. Rates are differences of counters over the time between two pictures; what a failover took
away is not counted as negative work.

Imports: nothing of ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

Json: TypeAlias = dict[str, object]
Columns: TypeAlias = dict[str, list[int]]

STATES: Final = ("absent", "active", "replica", "pending", "dead")
ABSENT: Final = 0
NOBODY: Final = -1
BRANCH: Final = "branch"
COLUMNS: Final = ("state", "high", "persisted", "purge", "lag", "streams", "began")
CONNECTIONS_SHOWN_MAX: Final = 100
"""Connections of a picture; the slowest are kept, the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionView:
    """One change-stream connection.

    ``key`` names it as long as it lives; ``condition`` is a word of `CONDITIONS`. ``window`` 0 is
    no flow control.
    """

    key: str
    name: str
    peer: str = ""
    streams: int = 0
    backfilling: int = 0
    lag: int = 0
    worst_vbucket: int = NOBODY
    worst_lag: int = 0
    outstanding: int = 0
    window: int = 0
    bytes_sent: int = 0
    items_sent: int = 0
    condition: str = "level"
    limit: int = 0


CONDITIONS: Final = {
    "level": "has everything",
    "idle": "has no streams yet",
    "sending": "is being sent to",
    "backfilling": "reads from disk",
    "behind": "is behind and gets nothing",
    "full": "window full, does not acknowledge",
    "paused": "paused by a lever",
    "slowed": "slowed by a lever",
    "stuck": "tries in vain",
}
"""How a connection is doing; the page has a sentence for each."""
SLOW: Final = frozenset({"behind", "full", "paused", "slowed", "stuck"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A bucket at one moment; ``taken`` is monotonic seconds, ``time`` unix seconds."""

    taken: float
    time: float
    columns: Columns
    branches: list[str]
    """The newest branch of each vbucket in hexadecimal, "" of one that is not here."""
    connections: tuple[ConnectionView, ...] = ()
    clients: int = 0
    items: int = 0
    memory: int = 0
    quota: int = 0
    notes: tuple[str, ...] = field(default=())
    """Sentences about what cannot be seen here."""

    @property
    def lag(self) -> int:
        """Seqnos that some stream has still to be sent, over all vbuckets."""
        return sum(one for one in self.columns["lag"] if one > 0)


@dataclass(frozen=True, slots=True)
class Rates:
    """What happened per second between two pictures."""

    written: float = 0.0
    sent: float = 0.0
    bytes: float = 0.0
    by_connection: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Items and bytes per second of each connection."""


def empty_columns(vbuckets: int) -> Columns:
    """Columns of so many vbuckets that are not here and that nobody reads."""
    return {name: [NOBODY if name == "lag" else ABSENT] * vbuckets for name in COLUMNS}


def rates_between(old: Picture, new: Picture) -> Rates:
    """The rates; none when no time has passed."""
    seconds = new.taken - old.taken
    if seconds <= 0:
        return Rates()
    highs = zip(old.columns["high"], new.columns["high"], strict=False)
    written = sum(after - before for before, after in highs if after > before)
    before = {one.key: one for one in old.connections}
    each: dict[str, tuple[float, float]] = {}
    for one in new.connections:
        known = before.get(one.key)
        items = one.items_sent - (known.items_sent if known else 0)
        size = one.bytes_sent - (known.bytes_sent if known else 0)
        # A connection that was not in the last picture may have sent all its life.
        each[one.key] = (max(0, items) / seconds, max(0, size) / seconds) if known else (0.0, 0.0)
    return Rates(
        written / seconds,
        sum(items for items, _ in each.values()),
        sum(size for _, size in each.values()),
        each,
    )


def summary(picture: Picture, rates: Rates) -> Json:
    """What is small and always told: totals and connections, slowest first."""
    ranked = sorted(picture.connections, key=lambda one: (one.condition not in SLOW, -one.lag))
    return {
        "time": round(picture.time, 3),
        "totals": {
            "written": round(rates.written, 1),
            "sent": round(rates.sent, 1),
            "bytes": round(rates.bytes),
            "lag": picture.lag,
            "items": picture.items,
            "memory": picture.memory,
            "quota": picture.quota,
            "connections": len(picture.connections),
            "clients": picture.clients,
        },
        "connections": [_connection(one, rates) for one in ranked[:CONNECTIONS_SHOWN_MAX]],
        "notes": list(picture.notes),
    }


def _connection(one: ConnectionView, rates: Rates) -> Json:
    items, size = rates.by_connection.get(one.key, (0.0, 0.0))
    return {
        "key": one.key,
        "name": one.name,
        "peer": one.peer,
        "streams": one.streams,
        "backfilling": one.backfilling,
        "lag": one.lag,
        "worst": one.worst_vbucket,
        "worst_lag": one.worst_lag,
        "outstanding": one.outstanding,
        "window": one.window,
        "items_rate": round(items, 1),
        "bytes_rate": round(size),
        "condition": one.condition,
        "limit": one.limit,
        "slow": one.condition in SLOW,
    }


def whole(picture: Picture) -> Json:
    """Every column, for someone who knows nothing yet."""
    told: Json = {name: {"all": picture.columns[name]} for name in COLUMNS}
    return told | {BRANCH: {"all": picture.branches}}


def difference(old: Picture, new: Picture) -> Json:
    """What changed: for each column that did, places and values, or all of it if shorter."""
    found = {name: _changes(old.columns[name], new.columns[name]) for name in COLUMNS}
    found[BRANCH] = _changes(old.branches, new.branches)
    return {name: change for name, change in found.items() if change}


def _changes(before: Sequence[object], after: Sequence[object]) -> Json:
    if before == after:
        return {}
    if len(before) != len(after):
        return {"all": after}
    places = [at for at, value in enumerate(after) if value != before[at]]
    if 2 * len(places) > len(after):
        return {"all": after}
    return {"at": places, "to": [after[at] for at in places]}
