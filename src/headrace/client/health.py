"""Health: how every vbucket of a reader is doing, as objects and as metrics.

Lag in items is the vbucket's high seqno minus the last one received: seqnos that were deduplicated
or filtered count, so it never says too little. Bytes are items times the mean size so far. Seconds
are the age of the newest change received, 0 when there is nothing left to receive.

Imports: client.courses, protocol.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.client.changes import CAS_SECOND
from headrace.client.courses import Phase
from headrace.history import SEQNO_MAX

if TYPE_CHECKING:
    from headrace.client.courses import Course
    from headrace.client.steering import Steering

STUCK_ATTEMPTS: Final = 3
"""Failures in a row after which a vbucket counts as stuck while it is still tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VBucketHealth:
    """How one vbucket is doing; numbers nobody knows are None."""

    vbucket: int
    state: str
    node: str | None
    seqno: int
    handed_seqno: int
    high_seqno: int | None
    end_seqno: int | None
    lag_items: int | None
    lag_bytes: int | None
    lag_seconds: float | None
    snapshot: str
    backfill_progress: float | None
    idle_seconds: float
    attempts: int
    stuck_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How a reader is doing."""

    vbuckets: tuple[VBucketHealth, ...]
    links: int
    items: int
    size: int
    waiting: int

    @property
    def stuck(self) -> tuple[VBucketHealth, ...]:
        """The vbuckets that do not move although they should."""
        return tuple(one for one in self.vbuckets if one.stuck_reason)

    @property
    def lag_items(self) -> int:
        """Items that are still to come, as far as it is known."""
        return sum(one.lag_items or 0 for one in self.vbuckets)

    def to_prometheus(self, prefix: str = "headrace_consumer") -> str:
        """The numbers in Prometheus' text format."""
        lines = [
            f"# TYPE {prefix}_links gauge",
            f"{prefix}_links {self.links}",
            f"# TYPE {prefix}_items_total counter",
            f"{prefix}_items_total {self.items}",
            f"# TYPE {prefix}_bytes_total counter",
            f"{prefix}_bytes_total {self.size}",
        ]
        for name, kind in METRICS.items():
            lines.append(f"# TYPE {prefix}_{name} {kind}")
            for one in self.vbuckets:
                value = getattr(one, name)
                if value is not None:
                    lines.append(f'{prefix}_{name}{{vbucket="{one.vbucket}"}} {value}')
        lines.append(f"# TYPE {prefix}_stuck gauge")
        lines += [
            f'{prefix}_stuck{{vbucket="{one.vbucket}"}} {int(bool(one.stuck_reason))}'
            for one in self.vbuckets
        ]
        return "\n".join(lines) + "\n"


METRICS: Final = {
    "seqno": "gauge",
    "high_seqno": "gauge",
    "lag_items": "gauge",
    "lag_bytes": "gauge",
    "lag_seconds": "gauge",
    "backfill_progress": "gauge",
    "idle_seconds": "gauge",
    "attempts": "gauge",
}


def health_of(steering: Steering, *, links: int) -> Health:
    """How a reader is doing now."""
    intake = steering.intake
    steering.wants_seqnos = True
    now, wall = time.monotonic(), time.time()
    mean = intake.received_bytes / intake.received_items if intake.received_items else 0.0
    return Health(
        vbuckets=tuple(
            _vbucket(course, steering, mean=mean, now=now, wall=wall)
            for _, course in sorted(steering.courses.by_vbucket.items())
        ),
        links=links,
        items=intake.received_items,
        size=intake.received_bytes,
        waiting=len(intake),
    )


def _vbucket(
    course: Course, steering: Steering, *, mean: float, now: float, wall: float
) -> VBucketHealth:
    token = course.position.token
    high = steering.high_seqnos.get(course.vbucket)
    goal = min(high, course.end_seqno) if high is not None else None
    lag = None if goal is None else max(0, goal - token.seqno)
    if course.phase is Phase.DONE:
        lag = 0
    newest = steering.intake.newest_cas.get(course.vbucket, 0)
    seconds = 0.0 if lag == 0 else max(0.0, wall - newest / CAS_SECOND) if newest else None
    progress = None
    if course.target > course.start_seqno:
        done = min(token.seqno, course.target) - course.start_seqno
        progress = max(0.0, done / (course.target - course.start_seqno))
    failing = course.phase is Phase.STUCK or course.attempts >= STUCK_ATTEMPTS
    return VBucketHealth(
        vbucket=course.vbucket,
        state=course.phase.value,
        node=None if course.node is None else str(course.node),
        seqno=token.seqno,
        handed_seqno=course.handed,
        high_seqno=high,
        end_seqno=None if course.end_seqno == SEQNO_MAX else course.end_seqno,
        lag_items=lag,
        lag_bytes=None if lag is None else int(lag * mean),
        lag_seconds=seconds,
        snapshot=_snapshot(course),
        backfill_progress=progress,
        idle_seconds=max(0.0, now - course.moved_at) if course.moved_at else 0.0,
        attempts=course.attempts,
        stuck_reason=course.reason if failing else "",
    )


def _snapshot(course: Course) -> str:
    """The phase of the snapshot: between two, inside one (from disk, memory or out of order)."""
    token, started = course.position.token, course.snapshot
    if started is None or token.is_boundary:
        return "between snapshots"
    if started.out_of_order:
        return "inside an out-of-order snapshot"
    source = "disk" if started.flags & 0x02 else "memory"
    return f"inside {token.snapshot} from {source}"
