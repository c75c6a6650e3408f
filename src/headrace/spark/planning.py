"""Who reads what: from positions and the producer's word to balanced groups of vbuckets.

Rules.
- A vbucket is read when the producer has more than we hold, or another history than we hold.
- A position that is not on the producer's history is taken back here already, to a boundary: so the
  end of every span lies on the history it will be read from.
- A vbucket is never divided: its snapshots are read whole. A limit on rows chooses vbuckets.
- Parts of the table are spread over as many tasks as run at once, largest first.

Imports: history, spark.feed, spark.positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.spark.feed import Span
from headrace.spark.positions import START

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.history import FailoverLog, Seqno, VBucketId
    from headrace.spark.positions import Position
    from headrace.spark.tables.changes import Shape


@dataclass(frozen=True, slots=True)
class Plan:
    """What one turn reads; ``left`` is how many seqnos it leaves for the next.

    ``settled``: positions with nothing to read that lie on a newer branch than they name.
    """

    spans: tuple[Span, ...]
    settled: dict[VBucketId, Position]
    left: int

    @property
    def size(self) -> int:
        """Seqnos to be read: rows at most, deduplication makes them fewer."""
        return sum(span_size(span) for span in self.spans)


def span_size(span: Span) -> int:
    """The seqnos of a span."""
    return max(0, span.end_seqno - span.position.seqno)


def plan_spans(
    vector: Mapping[VBucketId, Position],
    highs: Mapping[VBucketId, Seqno],
    logs: Mapping[VBucketId, FailoverLog],
    *,
    rows_max: int | None = None,
) -> Plan:
    """The spans to read now, those with least to read first when there is a limit."""
    found: list[Span] = []
    settled: dict[VBucketId, Position] = {}
    for vbucket, high in highs.items():
        held = vector.get(vbucket, START)
        log = logs[vbucket]
        if high == held.seqno and (not high or log.newest.uuid == held.branch):
            continue
        position, withdrawal = held.reconciled(vbucket, log, high=high)
        span = Span(vbucket, position, max(high, position.seqno), withdrawal)
        if span_size(span) or withdrawal is not None:
            found.append(span)
        else:
            settled[vbucket] = position
    if rows_max is None:
        return Plan(tuple(found), settled, 0)
    chosen: list[Span] = []
    room = rows_max
    for span in sorted(found, key=span_size):
        # The first one is taken whatever its size: a turn always moves something.
        if chosen and span_size(span) > room:
            break
        room -= span_size(span)
        chosen.append(span)
    left = sum(map(span_size, found)) - sum(map(span_size, chosen))
    return Plan(tuple(sorted(chosen, key=lambda span: span.vbucket)), settled, left)


Work = tuple[tuple[int, tuple[Span, ...]], ...]
"""What one task reads: parts and their spans."""


def plan_tasks(spans: Sequence[Span], shape: Shape, width: int) -> list[Work]:
    """At most ``width`` tasks, each with whole parts, of about the same size."""
    parts: dict[int, list[Span]] = {}
    for span in spans:
        parts.setdefault(shape.part_of(span.vbucket), []).append(span)

    def size(part: int) -> int:
        # A vbucket costs something even when it brings no row: a request and its reply.
        return sum(1 + span_size(span) for span in parts[part])

    tasks: list[list[int]] = [[] for _ in range(min(max(1, width), len(parts)))]
    loads = [0] * len(tasks)
    for part in sorted(parts, key=size, reverse=True):
        lightest = loads.index(min(loads))
        tasks[lightest].append(part)
        loads[lightest] += size(part)
    return [tuple((part, tuple(parts[part])) for part in sorted(task)) for task in tasks]
