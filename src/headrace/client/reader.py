"""Reader: what `Bucket.changes` and `Bucket.follow` return, an iterator with tokens and health.

What a batch is. Every batch is an Arrow RecordBatch of `headrace.columns.schema.SCHEMA`. With
``whole`` (the default) no row leaves before the last row of its snapshot has come: at the end of
each batch that moves `tokens`, every vbucket named in the move is consistent. A large snapshot
leaves as several batches in a row, and `tokens` moves with the last: `is_covered` is False in
between. Whoever keeps rows and tokens in one transaction commits when it is True; then no row comes
twice and none is missed, whatever dies.

What the tokens are. `tokens` covers everything handed out so far, the current thing included, up
to the last complete snapshot of each vbucket: keep it after you are done with that thing. Filtered
rows are covered too.

Rollback. It comes before any row of the new branch. `changes` raises RollbackError by default
(catch it, withdraw what it names, iterate on), ``on_rollback="yield"`` hands the Rollback out
between batches, and a function is called with it. `follow` always hands it out: a Rollback has no
key, so code that takes it for a change fails at once.

Imports: client.*, errors, history.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.client.aio import AsyncRunner
from headrace.client.changes import Change, Rollback
from headrace.client.health import health_of
from headrace.client.objects import Several
from headrace.client.runner import Runner
from headrace.errors import LocalProtocolError, RollbackError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from types import TracebackType

    import pyarrow as pa

    from headrace.client.filters import Filter
    from headrace.client.health import Health
    from headrace.client.intake import Given
    from headrace.client.options import OnRollback
    from headrace.client.steering import Steering
    from headrace.client.tokens import TokenSet


class Reader:
    """What both readers share: tokens, health, an end."""

    def __init__(
        self,
        start: Callable[[], tuple[Steering, TokenSet]],
        wanted: Filter,
        on_rollback: OnRollback,
    ) -> None:
        """``start`` is called at the first `next`: nothing is opened by making a reader."""
        self._start = start
        self._filter = wanted
        self._takes_all = wanted.passes_changes
        self._on_rollback = on_rollback
        self._steering: Steering | None = None
        self._tokens: TokenSet | None = None
        self._runner: Runner | AsyncRunner | None = None
        self._over = False

    @property
    def tokens(self) -> TokenSet:
        """Where to go on once everything handed out so far is done with."""
        intake = self._steered().intake
        assert self._tokens is not None
        if moved := intake.take_moved():
            self._tokens = self._tokens.updated(moved)
        return self._tokens

    @property
    def is_covered(self) -> bool:
        """Whether `tokens` covers every row handed out so far: the moment to commit both."""
        return self._steered().intake.is_covered

    @property
    def health(self) -> Health:
        """How every vbucket is doing."""
        links = 0 if self._runner is None else len(self._runner.links)
        return health_of(self._steered(), links=links)

    def close(self) -> None:
        """Close the links; the tokens stay."""
        self._over = True
        if self._runner is not None:
            self._runner.close()

    def __enter__(self) -> Reader:
        """Close at the end of the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        del kind, error, trace
        self.close()

    def _steered(self) -> Steering:
        if self._steering is None:
            self._steering, self._tokens = self._start()
        return self._steering

    def _running(self) -> Runner:
        if self._runner is None:
            self._runner = Runner(self._steered())
            if self._over:  # closed by another thread while it started
                self._runner.close()
        if not isinstance(self._runner, Runner):
            raise LocalProtocolError("this reader is iterated by asyncio already")
        return self._runner

    def _rolled_back(self, rollback: Rollback) -> Rollback | None:
        """Do what was chosen; the rollback itself if it is to be handed out."""
        if self._on_rollback == "yield":
            return rollback
        if self._on_rollback == "raise":
            raise RollbackError(str(rollback), rollback=rollback)
        assert callable(self._on_rollback)
        self._on_rollback(rollback)
        return None


class Changes(Reader):
    """Batches of changes, in bulk."""

    def __enter__(self) -> Changes:
        """Close at the end of the block."""
        return self

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Go on where iteration stopped."""
        return self

    def __next__(self) -> pa.RecordBatch:
        """The next batch, or a Rollback if ``on_rollback`` says so."""
        while not self._over:
            given = self._running().next()
            if given is None:
                self.close()
                break
            if isinstance(given, Rollback):
                if (handed := self._rolled_back(given)) is not None:
                    return handed
                continue
            assert not isinstance(given, Change)
            batch = self._filter.batch(given)
            if batch.num_rows:
                return batch
        raise StopIteration


class Follow(Reader):
    """Changes one by one; iterate with ``for`` or, in asyncio, with ``async for``."""

    _several: Several | None = None

    def __enter__(self) -> Follow:
        """Close at the end of the block."""
        return self

    def __iter__(self) -> Iterator[Change | Rollback]:
        """Go on where iteration stopped."""
        return self

    def __next__(self) -> Change | Rollback:
        """The next change, or a Rollback before the changes of a new branch."""
        while not self._over:
            if (change := self._at_hand()) is not None:
                return change
            given = self._running().next()
            if given is None:
                self.close()
                break
            if (handed := self._take(given)) is not None:
                return handed
        raise StopIteration

    def _at_hand(self) -> Change | None:
        """The next of the changes that came together, None when there are no more."""
        several = self._several
        while several is not None:
            change = several.next()
            if change is None:
                self._several = None
                break
            if self._takes_all or self._filter.change(change):
                return change
        return None

    def _take(self, given: Given) -> Change | Rollback | None:
        """What came, if it is to be handed out now."""
        if isinstance(given, Rollback):
            return given
        if isinstance(given, Several):
            self._several = given
            return None
        assert isinstance(given, Change)
        return given if self._filter.change(given) else None

    def __aiter__(self) -> AsyncIterator[Change | Rollback]:
        """Go on where iteration stopped, in asyncio."""
        return self

    async def __anext__(self) -> Change | Rollback:
        """The next change, or a Rollback before the changes of a new branch."""
        runner = await self._running_async()
        while not self._over:
            if (change := self._at_hand()) is not None:
                await runner.share()
                return change
            given = await runner.next()
            if given is None:
                self.close()
                break
            if (handed := self._take(given)) is not None:
                return handed
        raise StopAsyncIteration

    async def _running_async(self) -> AsyncRunner:
        if self._runner is None:
            # The questions that settle where to start are blocking ones.
            steering = await asyncio.to_thread(self._steered)
            self._runner = AsyncRunner(steering)
        if not isinstance(self._runner, AsyncRunner):
            raise LocalProtocolError("this reader is iterated without asyncio already")
        return self._runner
