"""ClientSource: a page's questions answered by any source of change streams, from outside.

Two things are asked at two paces. High seqnos and failover logs are one small question per node and
one per vbucket: they are asked at every look, so a failover is seen at once. Statistics (states,
persisted and purge seqnos, who else is connected and how far) are a line per number, and are asked
for in the background, never more than a twentieth of the time.

With a reader (`Bucket.changes` without values, iterated by a thread of ours) its own health is
shown too: where it stands in every vbucket, at every look.

Imports: errors, client, web.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError, StatusError
from headrace.web.picture import ABSENT, NOBODY, STATES, ConnectionView, Picture, empty_columns
from headrace.web.source import Unknown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.client.bucket import Bucket
    from headrace.client.health import VBucketHealth
    from headrace.client.reader import Changes
    from headrace.history import FailoverLog
    from headrace.web.picture import Columns, Json

STATISTICS_SECONDS: Final = 2.0
COST_FACTOR: Final = 20
STREAMS_TOLD_MAX: Final = 200
RETRY_SECONDS: Final = 2.0
ACTIVE: Final = STATES.index("active")
_VBUCKET: Final = re.compile(r"vb_(\d+)(?::(\w+))?")
_STREAM: Final = re.compile(r"eq_dcpq:(.+):stream_(\d+)(?:_sid\d+)?_(\w+)")
_CONNECTION: Final = re.compile(r"eq_dcpq:(.+):(\w+)")


@dataclass(slots=True)
class StreamFacts:
    """One stream as the statistics tell it."""

    state: str = ""
    sent: int = 0
    read: int = 0
    start: int = 0
    snapshot_end: int = 0


@dataclass(slots=True)
class PeerFacts:
    """One change-stream connection as the statistics tell it."""

    facts: dict[str, str] = field(default_factory=dict)
    streams: dict[int, StreamFacts] = field(default_factory=dict)

    def number(self, name: str) -> int:
        """A number of the connection, 0 if it is not told."""
        text = self.facts.get(name, "")
        return int(text) if text.isdecimal() else 0


@dataclass(slots=True)
class Statistics:
    """What the nodes' statistics said at one moment."""

    vbuckets: dict[int, dict[str, str]] = field(default_factory=dict)
    peers: dict[str, PeerFacts] = field(default_factory=dict)
    refused: str = ""

    def seqno(self, vbucket: int, name: str) -> int:
        """A number of a vbucket, 0 if it is not told."""
        text = self.vbuckets.get(vbucket, {}).get(name, "")
        return int(text) if text.isdecimal() else 0


_STREAM_FIELDS: Final = {
    "last_sent_seqno": "sent",
    "last_read_seqno": "read",
    "start_seqno": "start",
    "last_sent_snap_end_seqno": "snapshot_end",
}


def read_vbuckets(lines: Iterable[tuple[str, str]], told: Statistics) -> None:
    """Take the lines of the groups vbucket and vbucket-seqno."""
    for name, value in lines:
        found = _VBUCKET.fullmatch(name)
        if found is not None:
            told.vbuckets.setdefault(int(found.group(1)), {})[found.group(2) or "state"] = value


def read_peers(lines: Iterable[tuple[str, str]], told: Statistics) -> None:
    """Take the lines of the group dcp."""
    for name, value in lines:
        stream = _STREAM.fullmatch(name)
        if stream is not None:
            peer = told.peers.setdefault(stream.group(1), PeerFacts())
            facts = peer.streams.setdefault(int(stream.group(2)), StreamFacts())
            attribute = _STREAM_FIELDS.get(stream.group(3))
            if attribute is not None and value.isdecimal():
                setattr(facts, attribute, int(value))
            elif stream.group(3) == "state":
                facts.state = value
            continue
        found = _CONNECTION.fullmatch(name)
        if found is not None:
            told.peers.setdefault(found.group(1), PeerFacts()).facts[found.group(2)] = value


def ask_statistics(bucket: Bucket) -> Statistics:
    """Ask every node; a group that is refused leaves its part empty and says so."""
    told = Statistics()
    for group in ("vbucket", "vbucket-seqno", "dcp"):
        try:
            for lines in bucket.stats(group).values():
                (read_peers if group == "dcp" else read_vbuckets)(lines.items(), told)
        except StatusError as error:
            told.refused = f"The source keeps some statistics to itself: {error}"
    # A line for a connection that is no producer says nothing to a page.
    told.peers = {
        name: peer
        for name, peer in told.peers.items()
        if peer.streams or peer.facts.get("type") == "producer"
    }
    return told


class Following:
    """Our own consumer: a thread that reads and drops everything, and its health."""

    def __init__(self, reader: Changes, name: str) -> None:
        """The reader is started by `start`, read by its thread alone."""
        self.name = name
        self.error = ""
        self._reader = reader
        self._thread = threading.Thread(target=self._read, name="headrace-watch", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Close the reader, which ends the thread."""
        self._reader.close()
        if self._thread.is_alive():
            self._thread.join(RETRY_SECONDS)

    def _read(self) -> None:
        try:
            for _ in self._reader:
                pass
        except HeadraceError as error:
            self.error = str(error)

    def health(self) -> dict[int, VBucketHealth]:
        """Every vbucket's, or nothing while it starts."""
        if not self._thread.is_alive():
            return {}
        try:
            return {one.vbucket: one for one in self._reader.health.vbuckets}
        except HeadraceError:
            return {}


class ClientSource:
    """A bucket somewhere, as a page sees it."""

    kind = "source"

    def __init__(self, bucket: Bucket, *, title: str, following: Following | None = None) -> None:
        """``bucket`` is connected; it is asked on threads, one question at a time."""
        self.title = title
        self._bucket = bucket
        self._following = following
        self._statistics = Statistics()
        self._logs: dict[int, FailoverLog] = {}
        self._highs: dict[int, int] = {}
        self._asking: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> ClientSource:
        """Begin to ask for statistics."""
        self._statistics = await asyncio.to_thread(ask_statistics, self._bucket)
        self._asking = asyncio.get_running_loop().create_task(self._ask_forever())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._asking

    async def _ask_forever(self) -> None:
        while True:
            began = time.monotonic()
            # While the source is away the looks say so.
            with contextlib.suppress(HeadraceError):
                async with self._lock:
                    self._statistics = await asyncio.to_thread(ask_statistics, self._bucket)
            cost = time.monotonic() - began
            await asyncio.sleep(max(STATISTICS_SECONDS, cost * COST_FACTOR))

    def buckets(self) -> list[str]:
        """The one that was named."""
        return [self._bucket.name]

    def _check(self, bucket: str) -> None:
        if bucket != self._bucket.name:
            raise Unknown(f"bucket {bucket!r} is unknown; there is: {self._bucket.name}")

    async def look(self, bucket: str) -> Picture:
        """The bucket now."""
        self._check(bucket)
        async with self._lock:
            self._highs, self._logs = await asyncio.to_thread(self._ask)
        return self._picture()

    def _ask(self) -> tuple[dict[int, int], dict[int, FailoverLog]]:
        self._bucket.refresh()
        return self._bucket.seqnos(), self._bucket.failover_logs()

    def _picture(self) -> Picture:
        size = self._bucket.vbuckets
        columns, branches = empty_columns(size), [""] * size
        told = self._statistics
        for vbucket in range(size):
            self._fill(vbucket, columns, branches, told)
        own = {} if self._following is None else self._following.health()
        for vbucket, health in own.items():
            lag = max(0, columns["high"][vbucket] - int(health.seqno))
            columns["lag"][vbucket] = max(columns["lag"][vbucket], lag)
        views = [self._view(name, peer, columns, own) for name, peer in told.peers.items()]
        if self._following is not None and self._following.name not in told.peers and own:
            views.append(_own_view(self._following, own, columns))
        notes = [told.refused] if told.refused else []
        if self._following is not None and self._following.error:
            notes.append(f"The page's own consumer stopped: {self._following.error}")
        return Picture(
            taken=time.monotonic(),
            time=time.time(),
            columns=columns,
            branches=branches,
            connections=tuple(views),
            items=0,
            notes=tuple(notes),
        )

    def _fill(self, vbucket: int, columns: Columns, branches: list[str], told: Statistics) -> None:
        state = told.vbuckets.get(vbucket, {}).get("state", "")
        here = vbucket in self._highs
        columns["state"][vbucket] = (
            STATES.index(state) if state in STATES else ACTIVE if here else ABSENT
        )
        columns["high"][vbucket] = self._highs.get(vbucket, 0)
        columns["persisted"][vbucket] = told.seqno(vbucket, "last_persisted_seqno")
        columns["purge"][vbucket] = told.seqno(vbucket, "purge_seqno")
        log = self._logs.get(vbucket)
        if log is not None:
            branches[vbucket] = f"{log.newest.uuid:016x}"
            columns["began"][vbucket] = int(log.newest.seqno)

    def _view(
        self, name: str, peer: PeerFacts, columns: Columns, own: dict[int, VBucketHealth]
    ) -> ConnectionView:
        if self._following is not None and name == self._following.name and own:
            return _own_view(self._following, own, columns, peer)
        total, worst, worst_lag, backfilling = 0, NOBODY, 0, 0
        for vbucket, stream in peer.streams.items():
            if vbucket >= len(columns["lag"]):
                continue
            # Against the high seqno of the same moment: a newer one would be nobody's fault.
            high = self._statistics.seqno(vbucket, "high_seqno")
            lag = max(0, high - max(stream.sent, stream.read))
            total += lag
            backfilling += stream.state == "backfilling"
            if lag > worst_lag:
                worst, worst_lag = vbucket, lag
            columns["lag"][vbucket] = max(columns["lag"][vbucket], lag)
            columns["streams"][vbucket] += 1
        unacked = peer.number("unacked_bytes")
        full = peer.facts.get("paused") == "true" and unacked > 0
        return ConnectionView(
            key=name,
            name=name,
            streams=len(peer.streams),
            backfilling=backfilling,
            lag=total,
            worst_vbucket=worst,
            worst_lag=worst_lag,
            outstanding=unacked,
            window=peer.number("max_buffer_bytes"),
            bytes_sent=peer.number("total_bytes_sent"),
            items_sent=peer.number("items_sent"),
            condition="full" if full else _condition(total, backfilling, len(peer.streams)),
        )

    async def vbucket(self, bucket: str, vbucket: int) -> Json:
        """All about one vbucket."""
        self._check(bucket)
        if not 0 <= vbucket < self._bucket.vbuckets:
            raise Unknown(f"vbucket {vbucket} is not there; allowed 0..{self._bucket.vbuckets - 1}")
        told, log = self._statistics, self._logs.get(vbucket)
        streams = [
            _stream(vbucket, stream, told.seqno(vbucket, "high_seqno"))
            | {"connection": name, "name": name}
            for name, peer in told.peers.items()
            if (stream := peer.streams.get(vbucket)) is not None
        ]
        own = None if self._following is None else self._following.health().get(vbucket)
        state = told.vbuckets.get(vbucket, {}).get("state")
        return {
            "vbucket": vbucket,
            "state": state or ("active" if vbucket in self._highs else "absent"),
            "high": self._highs.get(vbucket, 0),
            "persisted": told.seqno(vbucket, "last_persisted_seqno"),
            "purge": told.seqno(vbucket, "purge_seqno"),
            "items": None,
            "tombstones": None,
            "rewind": None,
            "log": []
            if log is None
            else [{"branch": f"{entry.uuid:016x}", "seqno": int(entry.seqno)} for entry in log],
            "streams": streams[:STREAMS_TOLD_MAX],
            "stream_count": len(streams),
            "own": None
            if own is None
            else {"state": own.state, "seqno": int(own.seqno), "snapshot": own.snapshot},
        }

    async def connection(self, bucket: str, key: str) -> Json:
        """The streams of one connection, furthest behind first."""
        self._check(bucket)
        peer = self._statistics.peers.get(key)
        if peer is None:
            raise Unknown(f"connection {key} is gone")
        ranked = sorted(
            (max(stream.sent, stream.read) - self._statistics.seqno(vb, "high_seqno"), vb)
            for vb, stream in peer.streams.items()
        )
        told = [
            _stream(vb, peer.streams[vb], self._statistics.seqno(vb, "high_seqno"))
            for _, vb in ranked[:STREAMS_TOLD_MAX]
        ]
        return {"streams": told, "stream_count": len(ranked)}


def _condition(lag: int, backfilling: int, streams: int) -> str:
    if not streams:
        return "idle"
    return "backfilling" if backfilling else "sending" if lag else "level"


def _own_view(
    following: Following,
    own: dict[int, VBucketHealth],
    columns: Columns,
    peer: PeerFacts | None = None,
) -> ConnectionView:
    """The page's own consumer, by its own health."""
    lags = {vb: max(0, columns["high"][vb] - int(one.seqno)) for vb, one in own.items()}
    worst = max(lags, key=lambda vb: lags[vb])
    stuck = any(one.stuck_reason for one in own.values())
    for vb in own:
        columns["streams"][vb] += 1
    return ConnectionView(
        key=following.name,
        name=following.name,
        streams=len(own),
        lag=sum(lags.values()),
        worst_vbucket=worst if lags[worst] else NOBODY,
        worst_lag=lags[worst],
        outstanding=0 if peer is None else peer.number("unacked_bytes"),
        window=0 if peer is None else peer.number("max_buffer_bytes"),
        bytes_sent=0 if peer is None else peer.number("total_bytes_sent"),
        items_sent=sum(int(one.seqno) for one in own.values()),
        condition="stuck" if stuck else _condition(sum(lags.values()), 0, len(own)),
    )


def _stream(vbucket: int, stream: StreamFacts, high: int) -> Json:
    place = max(stream.sent, stream.read)
    return {
        "vbucket": vbucket,
        "state": stream.state,
        "sent": stream.sent,
        "read": stream.read,
        "lag": max(0, high - place),
        "start": stream.start,
        "items": None,
        "snapshot": None,
        "snapshot_end": stream.snapshot_end,
        "branch": None,
    }
