"""A dumb producer: every version of every key in a list, and the rules of the protocol read aloud.

`Producer` keeps whole histories of its vbuckets and cuts them into snapshots where a test says.
What it streams of a snapshot is deduplicated, as real ones do. Failover drops a tail and begins a
branch; purge forgets tombstones. `ScriptedFeed` is a `Feed` over it, and asks as the client does.

A producer can be written to a file, so that Spark's workers read the same one; ``plot`` is a list
of acts that happen one by one, each when the next vbucket is about to be streamed.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.columns.schema import SCHEMA, Event
from headrace.history import (
    BranchId,
    FailoverLog,
    ResumeToken,
    Seqno,
    SnapshotRange,
    VBucketId,
)
from headrace.protocol.resume import Resumption
from headrace.spark.feed import Completed, Finished, News, Opened, RolledBack, Rows, Span

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CAS_BASE = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Item:
    seqno: int
    key: bytes
    value: bytes
    event: Event = Event.MUTATION
    collection: int | None = None
    system_event: int | None = None


@dataclass
class History:
    """One vbucket: all its versions, its log, and where its snapshots end."""

    log: FailoverLog
    items: list[Item] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    purge_seqno: int = 0
    floor: int = 0  # what was compacted away cannot come back: no failover goes below

    @property
    def high(self) -> int:
        return self.items[-1].seqno if self.items else 0

    def answer(self, token: ResumeToken, *, end: int) -> Seqno | None:
        """The seqno to roll back to, or None for "accepted" (semantics, section 3)."""
        start, first, last = token.seqno, token.snapshot.start, token.snapshot.end
        assert start <= end
        if start == 0:
            return None
        if start < self.purge_seqno:
            return Seqno(0)
        upper = self.log.upper(token.branch, Seqno(self.high))
        if upper is None:
            return Seqno(0)
        if start == first:
            last = start
        if last <= upper:
            return None
        if start == last:
            first = start
        return min(upper, first)

    def snapshots(self, start: int, end: int) -> Iterator[tuple[int, int, list[Item]]]:
        """The deduplicated snapshots after ``start``, to the end of the one that holds ``end``."""
        for stop in [*self.ends, self.high]:
            if start >= end or start >= self.high:
                return
            if stop <= start:
                continue
            inside = [item for item in self.items if start < item.seqno <= stop]
            latest = {(item.collection, item.key): item for item in inside}
            kept = sorted(latest.values(), key=lambda item: item.seqno)
            yield start + 1, stop, kept
            start = stop


@dataclass
class Producer:
    """All vbuckets of one bucket."""

    histories: dict[int, History]
    plot: list[Callable[[Producer], object]] = field(default_factory=list)
    branches: int = 100

    @classmethod
    def with_vbuckets(cls, count: int) -> Producer:
        return cls({vb: History(FailoverLog.created(BranchId(1000 + vb))) for vb in range(count)})

    # -- what tests do to it ---------------------------------------------------------------------

    def put(
        self,
        vbucket: int,
        key: str,
        value: str,
        *,
        event: Event = Event.MUTATION,
        collection: int | None = None,
        system_event: int | None = None,
    ) -> int:
        history = self.histories[vbucket]
        item = Item(history.high + 1, key.encode(), value.encode(), event, collection, system_event)
        history.items.append(item)
        return item.seqno

    def delete(self, vbucket: int, key: str) -> int:
        return self.put(vbucket, key, "", event=Event.DELETION)

    def cut(self, vbucket: int) -> None:
        """End a snapshot here: the next item starts another."""
        self.histories[vbucket].ends.append(self.histories[vbucket].high)

    def fail_over(self, vbucket: int, at: int) -> None:
        """Lose everything above ``at`` and begin a branch there."""
        history = self.histories[vbucket]
        at = max(at, history.floor)
        self.branches += 1
        history.items = [item for item in history.items if item.seqno <= at]
        history.ends = [end for end in history.ends if end <= at]
        history.log = history.log.promoted(BranchId(self.branches), complete_end=Seqno(at))

    def purge(self, vbucket: int) -> None:
        """Forget superseded versions and tombstones, all but the newest item."""
        history = self.histories[vbucket]
        latest = {item.key: item for item in history.items}
        gone = [i for i in latest.values() if i.event is Event.DELETION and i.seqno < history.high]
        history.floor = history.high
        history.purge_seqno = max((item.seqno for item in gone), default=history.purge_seqno)
        history.items = sorted(
            (item for item in latest.values() if item not in gone), key=lambda item: item.seqno
        )

    def state(self) -> dict[tuple[int, str], str]:
        """The living documents: what any table must come to."""
        found: dict[tuple[int, str], str] = {}
        for vbucket, history in self.histories.items():
            for item in history.items:
                place = (vbucket, item.key.decode())
                if item.event is Event.MUTATION:
                    found[place] = item.value.decode()
                elif item.event in (Event.DELETION, Event.EXPIRATION):
                    found.pop(place, None)
        return found

    def act(self) -> None:
        if self.plot:
            self.plot.pop(0)(self)


def batch_of(vbucket: int, items: list[Item], *, start: int, end: int) -> pa.RecordBatch:
    """Items as the columns of the wire."""
    rows = [
        {
            "vbucket": vbucket,
            "seqno": item.seqno,
            "event": int(item.event),
            "key": item.key,
            "value": item.value,
            "cas": CAS_BASE + item.seqno,
            "rev": 1,
            "flags": 0 if item.event is Event.MUTATION else None,
            "expiry": 0 if item.event is Event.MUTATION else None,
            "lock_time": 0 if item.event is Event.MUTATION else None,
            "datatype": 0,
            "collection_id": item.collection,
            "system_event": item.system_event,
            "snapshot_start": start,
            "snapshot_end": end,
            "snapshot_flags": 1,
            "opaque": 0,
        }
        for item in items
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


class ScriptedFeed:
    """A feed over a producer; ``break_after`` breaks each stream's link once, after that many
    rows."""

    def __init__(self, producer: Producer, *, break_after: int | None = None) -> None:
        self.producer = producer
        self.break_after = break_after
        self.closed = False

    def vbuckets(self) -> list[VBucketId]:
        return [VBucketId(vb) for vb in self.producer.histories]

    def high_seqnos(self) -> dict[VBucketId, Seqno]:
        return {VBucketId(vb): Seqno(h.high) for vb, h in self.producer.histories.items()}

    def failover_logs(self, vbuckets: Sequence[VBucketId]) -> dict[VBucketId, FailoverLog]:
        return {vb: self.producer.histories[vb].log for vb in vbuckets}

    def drain(self, spans: Sequence[Span]) -> Iterator[News]:
        for span in spans:
            self.producer.act()
            yield from self._stream(span)

    def _stream(self, span: Span) -> Iterator[News]:
        vbucket, token, boundaries = span.vbucket, span.position.token, span.position.boundaries
        broken = self.break_after is None
        while True:
            history = self.producer.histories[vbucket]
            talk = Resumption(token, boundaries)
            while (
                seqno := history.answer(talk.asked, end=max(span.end_seqno, talk.asked.seqno))
            ) is not None:
                assert talk.rolled_back(seqno) is None
            resumed = talk.accepted(history.log)
            token, boundaries = resumed.token, resumed.boundaries
            if resumed.withdrawal is not None:
                gone = resumed.withdrawal
                yield RolledBack(
                    vbucket, gone.from_seqno, gone.to_seqno, gone.dead_branch, history.log
                )
            yield Opened(vbucket, token.seqno, history.log)
            sent = 0
            for start, end, items in history.snapshots(token.seqno, span.end_seqno):
                if not broken and sent + len(items) > (self.break_after or 0):
                    broken = True
                    part = items[: (self.break_after or 0) - sent]
                    if part:
                        yield Rows(batch_of(vbucket, part, start=start, end=end))
                        inside = SnapshotRange(Seqno(start), Seqno(end))
                        token = token.advanced(Seqno(part[-1].seqno), inside)
                    self.producer.act()
                    break
                sent += len(items)
                yield Rows(batch_of(vbucket, items, start=start, end=end))
                token = token.advanced(Seqno(end), SnapshotRange.at(Seqno(end)))
                boundaries = boundaries.recorded(Seqno(end), history.log.branch_at(Seqno(end)))
                yield Completed(vbucket, Seqno(end))
            else:
                yield Finished(vbucket, True)
                return

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class InMemory:
    """Opens feeds on a producer of this process."""

    producer: Producer
    break_after: int | None = None

    def __call__(self) -> ScriptedFeed:
        return ScriptedFeed(self.producer, break_after=self.break_after)

    def describe(self) -> str:
        return "a scripted producer"


@dataclass(frozen=True)
class InFile:
    """Opens feeds on a producer written to a file: for Spark's worker processes."""

    path: str

    def write(self, producer: Producer) -> None:
        Path(self.path).write_bytes(pickle.dumps(producer))

    def __call__(self) -> ScriptedFeed:
        return ScriptedFeed(pickle.loads(Path(self.path).read_bytes()))  # noqa: S301 - our own file

    def describe(self) -> str:
        return "a scripted producer"
