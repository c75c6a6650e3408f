"""A feed over the client: bulk batches of whole snapshots, with the news between them told.

The client does the work: it knows the nodes, reconnects, resumes, finds the boundary to roll back
to and hands rows out only when their snapshot is whole. This module turns what it hands out into
the news of `headrace.spark.feed`.

Rules.
- After a rollback, or a stream accepted on a newer branch, the reading starts again with ends asked
  for anew: the end that was planned may lie beyond what the new history has, and a producer would
  wait there for ever.
- A vbucket that is given up after ``patience_seconds`` without movement ends its span incomplete.
- The password is in no text: `ClientFactory.describe` and its repr leave it out.

Imports: client, columns, errors, history, spark.feed, spark.rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from headrace.client.bucket import connect
from headrace.client.changes import Rollback
from headrace.client.tokens import BEGINNING, TokenSet
from headrace.columns.schema import SCHEMA
from headrace.errors import ConnectionLost, HeadraceError
from headrace.history import NO_BRANCH, NO_SEQNO, FailoverLog, ResumeToken, Seqno, VBucketId
from headrace.spark.feed import Completed, Finished, News, Opened, RolledBack, Rows, Span
from headrace.spark.rows import Runs

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from headrace.client.bucket import Bucket
    from headrace.client.reader import Changes

PATIENCE_SECONDS: Final = 60.0
RESTARTS_MAX: Final = 64
"""Rollbacks in one drain after which it is given up: the producer does not come to rest."""
_VBUCKET: Final = SCHEMA.get_field_index("vbucket")


@dataclass(frozen=True)
class ClientFactory:
    """Opens feeds on one bucket; picklable, with what every task needs to log in."""

    url: str
    bucket: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    collections: tuple[str, ...] = ()
    scope: str | None = None
    key_prefix: str = ""
    kinds: tuple[str, ...] = ()
    no_value: bool = False
    patience_seconds: float = PATIENCE_SECONDS

    def __call__(self) -> ClientFeed:
        """A connected feed; CannotConnect or StatusError say why there is none."""
        bucket = connect(self.url, user=self.user, password=self.password, bucket=self.bucket)
        return ClientFeed(bucket, self)

    def describe(self) -> str:
        """The source as people read it."""
        return self.url if self.bucket is None else f"{self.url} bucket {self.bucket}"


class _NewBranch(HeadraceError):
    """A stream was accepted on another branch than it was planned with."""


class ClientFeed:
    """One bucket through the client."""

    def __init__(self, bucket: Bucket, factory: ClientFactory) -> None:
        """Take a connected bucket."""
        self.bucket = bucket
        self._factory = factory
        self._reader: Changes | None = None

    def vbuckets(self) -> list[VBucketId]:
        """Every vbucket of the bucket."""
        return [VBucketId(vbucket) for vbucket in range(self.bucket.vbuckets)]

    def high_seqnos(self) -> dict[VBucketId, Seqno]:
        """The last seqno of every vbucket that is active somewhere."""
        return {VBucketId(vb): Seqno(seqno) for vb, seqno in self.bucket.seqnos().items()}

    def failover_logs(self, vbuckets: Sequence[VBucketId]) -> dict[VBucketId, FailoverLog]:
        """The logs of these vbuckets, where they are active."""
        return {VBucketId(vb): log for vb, log in self.bucket.failover_logs(vbuckets).items()}

    def close(self) -> None:
        """Close every connection."""
        self.bucket.close()

    def drain(self, spans: Sequence[Span]) -> Iterator[News]:
        """Stream the spans; see `headrace.spark.feed`."""
        if spans:
            yield from _Drain(self.bucket, self._factory, spans).news()


class _Drain:
    """One drain: where every vbucket stands in the client's words, and what was told."""

    def __init__(self, bucket: Bucket, factory: ClientFactory, spans: Sequence[Span]) -> None:
        self.bucket = bucket
        self.factory = factory
        self.positions = {
            int(span.vbucket): replace(
                BEGINNING, token=span.position.token, boundaries=span.position.boundaries
            )
            for span in spans
        }
        self.ends = {int(span.vbucket): span.end_seqno for span in spans}
        self.opened: dict[int, FailoverLog] = {}
        self.told: dict[int, FailoverLog] = {}

    def news(self) -> Iterator[News]:
        """Everything, over as many readers as it takes."""
        reason = "the producer went from rollback to rollback"
        for _ in range(RESTARTS_MAX):
            reader = self._reader()
            try:
                rolled_back = yield from self._read(reader)
            except _NewBranch:
                rolled_back = True
            except ConnectionLost as error:
                reason = str(error)
                break
            finally:
                reader.close()
            if not rolled_back:
                yield from (Finished(VBucketId(vb), True) for vb in self.positions)
                return
            self._set_ends()
        for vbucket, position in self.positions.items():
            complete = position.token.seqno >= self.ends[vbucket]
            yield Finished(VBucketId(vbucket), complete, "" if complete else reason)

    def _read(self, reader: Changes) -> Generator[News, None, bool]:
        """News of one reader; True if it was left because of a rollback."""
        while (given := next(reader, None)) is not None:
            if isinstance(given, Rollback):
                # The reader is left here: what the others came to without a row is kept.
                others = [vb for vb in self.positions if vb != given.vbucket]
                completed = self._moved(reader, others)
                yield from self._openings(one.vbucket for one in completed)
                yield from completed
                yield self._rolled_back(given, reader)
                return True
            # The rows of a vbucket come together: these are few.
            here = sorted(set(Runs.of(given.column(_VBUCKET).to_numpy()).values.tolist()))
            # Only these: to look at every vbucket for every batch costs more than to decode it.
            completed = self._moved(reader, here)
            yield from self._openings(here)
            yield Rows(given)
            yield from completed
        # What was filtered out or only advanced has moved positions without a row.
        completed = self._moved(reader, self.positions)
        yield from self._openings(one.vbucket for one in completed)
        yield from completed
        return False

    def _reader(self) -> Changes:
        tokens = TokenSet(
            bucket=self.bucket.name,
            uuid=self.bucket.uuid,
            vbuckets=self.bucket.vbuckets,
            positions=self.positions,
        )
        options: dict[str, object] = {
            "since": tokens,
            "until": self._end_tokens(tokens),
            "vbuckets": tuple(self.positions),
            "on_rollback": "yield",
            "on_event": self._heard,
            "patience_seconds": self.factory.patience_seconds,
            "no_value": self.factory.no_value,
            "on_trouble": _be_quiet,
        }
        if self.factory.collections:
            options["collections"] = self.factory.collections
        if self.factory.key_prefix:
            options["key_prefix"] = self.factory.key_prefix
        if self.factory.kinds:
            options["kinds"] = self.factory.kinds
        if self.factory.scope is not None:
            options["scope"] = self.factory.scope
        return self.bucket.changes(**options)

    def _end_tokens(self, tokens: TokenSet) -> TokenSet:
        places = {
            vbucket: replace(BEGINNING, token=ResumeToken.at_boundary(NO_BRANCH, end))
            for vbucket, end in self.ends.items()
        }
        return replace(tokens, positions=places)

    def _set_ends(self) -> None:
        highs = self.bucket.seqnos()
        for vbucket, position in self.positions.items():
            high = highs.get(vbucket, self.ends[vbucket])
            self.ends[vbucket] = Seqno(max(min(high, self.ends[vbucket]), position.token.seqno))

    def _heard(self, event: object) -> None:
        log = getattr(event, "log", None)
        vbucket = getattr(event, "vbucket", None)
        if isinstance(log, FailoverLog) and isinstance(vbucket, int):
            self.opened[vbucket] = log
            if getattr(event, "branch_changed", False):
                position = self.positions[vbucket]
                held = log.holds(position.token.branch, position.token.seqno)
                if held or position.token.seqno == NO_SEQNO:
                    self.positions[vbucket] = replace(position, token=position.token.accepted(log))
                    raise _NewBranch(f"vbucket {vbucket} is now on branch {log.newest}")

    def _rolled_back(self, rollback: Rollback, reader: Changes) -> RolledBack:
        vbucket = rollback.vbucket
        self.positions[vbucket] = reader.tokens.position(vbucket)
        log = rollback.token.log or self.opened[vbucket]
        self.told.pop(vbucket, None)
        return RolledBack(
            VBucketId(vbucket),
            Seqno(rollback.from_seqno),
            Seqno(rollback.to_seqno),
            rollback.dead_branch,
            log,
        )

    def _moved(self, reader: Changes, vbuckets: Iterable[int]) -> list[Completed]:
        """The boundaries that these vbuckets have come to; positions are taken up."""
        found: list[Completed] = []
        tokens = reader.tokens
        for vbucket in vbuckets:
            before, after = self.positions[vbucket], tokens.position(vbucket)
            if after is before or after.token.seqno <= before.token.seqno:
                continue
            self.positions[vbucket] = after
            token = after.token
            found.append(
                Completed(
                    VBucketId(vbucket), token.seqno, after.boundaries, token.purge_seqno, token
                )
            )
        return found

    def _openings(self, vbuckets: Iterable[int]) -> Iterator[Opened]:
        """The logs of vbuckets, where they are not those told last."""
        for vbucket in vbuckets:
            token = self.positions[vbucket].token
            # The position's log is the one its rows were read under; the stream's may be newer.
            log = token.log or self.opened[vbucket]
            if self.told.get(vbucket) != log:
                self.told[vbucket] = log
                yield Opened(VBucketId(vbucket), token.seqno, log)


def _be_quiet(trouble: object) -> None:
    """Troubles that pass are nobody's business; those that do not end the span."""
    del trouble
