"""What the pipeline asks of a producer, in five questions; the client answers them.

A `Feed` knows the vbuckets of one bucket, their high seqnos and failover logs, and drains spans: it
streams each span's vbucket from its position to the end of the snapshot that holds the span's end.

Rules of `Feed.drain`.
- News comes in the order of each vbucket's history. `Opened` stands before the first row;
  `RolledBack` stands before the `Opened` of the new history.
- Rows above the last `Completed` of their vbucket are not whole: who reads them drops them.
- A span ends with exactly one `Finished`. ``complete`` is False when the producer could not be made
  to go on; what was completed before stays good.
- Loss of a link is the feed's own matter: it reconnects and resumes; only when it gives up does
  ConnectionLost reach the caller.

Imports: history, spark.positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from headrace.history import NO_SEQNO

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from headrace.history import (
        Boundaries,
        BranchId,
        FailoverLog,
        ResumeToken,
        Seqno,
        VBucketId,
    )
    from headrace.spark.positions import Position, Withdrawal


@dataclass(frozen=True, slots=True)
class Span:
    """One vbucket from where a reader stands up to and including ``end_seqno``.

    ``withdrawal``: the position was already taken back, for this; its row has still to be
    published.
    """

    vbucket: VBucketId
    position: Position
    end_seqno: Seqno
    withdrawal: Withdrawal | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """The producer accepted the stream at ``seqno`` and told its log."""

    vbucket: VBucketId
    seqno: Seqno
    log: FailoverLog


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The producer's history forked below the reader; ``to_seqno`` is a boundary of its position.

    ``log`` is the log of the history that lives.
    """

    vbucket: VBucketId
    from_seqno: Seqno
    to_seqno: Seqno
    dead_branch: BranchId
    log: FailoverLog


@dataclass(frozen=True, slots=True)
class Rows:
    """Changes of one or more vbuckets, columns as in `headrace.columns.schema`."""

    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Completed:
    """Every row of the vbucket up to ``seqno`` has been delivered: a boundary.

    ``boundaries``: all that the feed knows to be held, where it passed some without a word.
    ``purge_seqno``: the producer's, as its marker told; 0 if it did not. ``token``: all of it as
    one token, where the feed has it.
    """

    vbucket: VBucketId
    seqno: Seqno
    boundaries: Boundaries | None = None
    purge_seqno: Seqno = NO_SEQNO
    token: ResumeToken | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """Nothing more comes of this span; ``complete``: its end was reached."""

    vbucket: VBucketId
    complete: bool
    reason: str = ""


News: TypeAlias = Opened | RolledBack | Rows | Completed | Finished


class Feed(Protocol):
    """One connection's worth of a producer."""

    def vbuckets(self) -> Sequence[VBucketId]:
        """Every vbucket of the bucket."""
        ...

    def high_seqnos(self) -> Mapping[VBucketId, Seqno]:
        """The last seqno of every vbucket now."""
        ...

    def failover_logs(self, vbuckets: Sequence[VBucketId]) -> Mapping[VBucketId, FailoverLog]:
        """The failover logs of these vbuckets now."""
        ...

    def drain(self, spans: Sequence[Span]) -> Iterator[News]:
        """Stream the spans; see the module's rules."""
        ...

    def close(self) -> None:
        """Give back what is held; nothing may be asked afterwards."""
        ...


class FeedFactory(Protocol):
    """How to open a feed: small, picklable, sent to every task."""

    def __call__(self) -> Feed:
        """A new feed, connected."""
        ...

    def describe(self) -> str:
        """The source as people read it, without its credentials."""
        ...
