"""Bugs to plant: each a patch of one function of the product, and what it breaks.

Every one of them is a mistake that somebody could make, or has made. tests/sim/README.md lists
them; `make sim BUG=all` must find each within a thousand seeds.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

from headrace.client.courses import Courses
from headrace.cluster import mover
from headrace.history import Boundaries, FailoverLog
from headrace.node.replica import Replica
from headrace.node.replica_stream import ReplicaStream
from headrace.node.stream import Stream
from headrace.node.takeover import Takeover
from headrace.protocol import decision
from headrace.protocol import events as e
from headrace.protocol.stream import ConsumerStream
from headrace.store.opening import Opening
from headrace.store.replica import Received
from headrace.store.vbucket import VBucket
from headrace.wire.opcodes import VBucketState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from headrace.history import Seqno, SnapshotRange
    from headrace.wire import messages as m
    from headrace.wire.message import Message
    from headrace.wire.opcodes import StreamEndReason


@dataclass(frozen=True)
class Bug:
    """A mistake: what it is, and how it is planted."""

    text: str
    patch: Callable[[], AbstractContextManager[object]]
    is_rare: bool = False
    """Needs more seeds than a test may take: `make sim BUG=name` looks for it."""


def instead(owner: object, name: str, made: object) -> Callable[[], AbstractContextManager[object]]:
    """Put something else in the place of a function."""
    return lambda: mock.patch.object(owner, name, made)


_TRUE_MARKER = ReplicaStream._marker
_TRUE_MARK = ConsumerStream._mark
_TRUE_LOST = Stream._lost
_TRUE_OPENED = Courses._opened


def _acknowledge_early(self: ReplicaStream, message: m.SnapshotMarker) -> list[Message]:
    answers = _TRUE_MARKER(self, message)
    self._owed = type(self._owed)(0 for _ in self._owed)
    return [*answers, *self.applied()]


def _move_by_marker(
    self: ConsumerStream, start: Seqno, end: Seqno, flags: int, purge_seqno: Seqno | None
) -> SnapshotRange:
    marker = _TRUE_MARK(self, start, end, flags, purge_seqno)
    if self.token.is_boundary and marker.start > self.token.seqno:
        self.token = replace(self.token, seqno=marker.end, snapshot=marker)
    return marker


def _open_in_silence(self: Courses, *happened: Any) -> None:  # noqa: ANN401 - what a table passes
    _TRUE_OPENED(self, *happened)


def _stay_alive(self: Takeover) -> VBucketState:
    self.asks = VBucketState.ACTIVE
    return VBucketState.ACTIVE


def _whole(cls: type[Received], *_: object) -> Received:
    return cls(0, 0)


def _lost_but_branches(self: Stream) -> StreamEndReason | None:
    self.branch = int(self._vbucket.failover_log.newest.uuid)
    return _TRUE_LOST(self)


@contextmanager
def _blind_resume() -> Iterator[None]:
    """Neither the target's state nor its seqno is asked for.

    `covers` alone is not enough: a source is dead on its disk with everything it had, so that here,
    where disks keep what they were given, it always covers the target.
    """
    reopened = {(mover.View.DEAD, mover.View.ACTIVE): mover.Decision.COMPARE}
    with (
        mock.patch.dict(mover.DECISIONS, reopened),
        mock.patch.object(mover, "covers", return_value=True),
    ):
        yield


@contextmanager
def _half_is_whole() -> Iterator[None]:
    """Readers of a replica are sent markers that end where it stands, inside what it receives.

    `_filling` alone is not enough: it spares readers a long wait; that the wait is for the end of
    the snapshot is what the ends of markers say.
    """
    checks = tuple(check for check in decision.CHECKS if check is not decision._filling)
    with (
        mock.patch.object(decision, "CHECKS", checks),
        mock.patch.object(VBucket, "consistent_end", lambda _self, _checkpoint, _first, last: last),
        mock.patch.object(VBucket, "consistent_disk_end", lambda _self, end: end),
    ):
        yield


BUGS: dict[str, Bug] = {
    "marker-acked-early": Bug(
        "a replica acknowledges a marker before its items are applied",
        instead(ReplicaStream, "_marker", _acknowledge_early),
    ),
    "branch-at-high-seqno": Bug(
        "a promoted replica begins its branch at its high seqno, inside half a snapshot",
        instead(VBucket, "complete_seqno", property(lambda self: self.high_seqno)),
        is_rare=True,
    ),
    "token-by-marker": Bug(
        "a resume token moves with a marker, before any item of it came",
        instead(ConsumerStream, "_mark", _move_by_marker),
    ),
    "purge-ignored": Bug(
        "a consumer behind the purge seqno is let go on: it never hears of purged deletions",
        instead(decision, "_behind_purge", lambda *_: False),
    ),
    "rollback-at-face-value": Bug(
        "a consumer goes back to the seqno it is told, not to a boundary below it",
        instead(Boundaries, "greatest", lambda _self, seqno, _producer=None: seqno),
    ),
    "rollback-not-told": Bug(
        "rows of a dead branch are never withdrawn from the application",
        lambda: mock.patch.dict(
            Courses._TAKE, {e.RolledBack: lambda *_: None, e.StreamOpened: _open_in_silence}
        ),
    ),
    "own-log-kept": Bug(
        "a replica keeps its own failover log when its stream is accepted",
        instead(FailoverLog, "replaced_by", lambda self, _producer: self),
    ),
    "crash-without-branch": Bug(
        "an owner comes back from a crash and goes on with the branch it had",
        instead(Opening, "begin_branches", lambda _self: None),
    ),
    "two-owners": Bug(
        "a takeover makes the new owner active while the old one still is",
        instead(Takeover, "dies", _stay_alive),
    ),
    "snapshot-forgotten": Bug(
        "a replica forgets over a restart that its last snapshot is not whole",
        lambda: mock.patch.multiple(
            Received, from_json=classmethod(_whole), from_parts=classmethod(_whole)
        ),
        is_rare=True,
    ),
    "persisted-too-early": Bug(
        "changes are told as persisted when they are in memory only",
        instead(VBucket, "persisted_seqno", property(lambda self: self.high_seqno)),
    ),
    "streams-outlive-branches": Bug(
        "streams of a replica go on when it follows another branch",
        instead(Stream, "_lost", _lost_but_branches),
    ),
    "loss-not-told": Bug(
        "a replica drops a stream whose vbucket was changed by others, and tells nobody",
        instead(Replica, "give_up", Replica.drop),
    ),
    "resume-without-comparing": Bug(
        "a move that broke in its takeover reopens the source without looking at the target",
        _blind_resume,
    ),
    "serves-half-a-copy": Bug(
        "a replica serves what it holds of a snapshot as if that were all of it",
        _half_is_whole,
    ),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """With the bug in place; "" plants none."""
    if not name:
        yield
        return
    with BUGS[name].patch():
        yield
