"""The commit loop: turn after turn, from the published vector to the next one.

Each turn: read the vector of the table's last commit; ask the source for high seqnos and failover
logs; plan; one Spark job in which tasks land files; one commit of files, withdrawals and the new
vector; then the `state` table follows. No Spark offset log is needed for correctness: whatever
dies, the next turn starts from what is committed.

Rules.
- A turn is published whole or not at all. Files of one that failed are seen by nobody.
- `changes` is committed before `state`; each by itself is idempotent, and `state` names the
  version of `changes` it stands on, so a `state` that was not committed is made up for by the next
  turn.
- A commit that a loss of power tore is put aside before the first turn.
- A source that is away is waited for, up to ``patience_seconds``, with growing pauses.
- `Sync.stop` ends the loop after the turn that is running.

Imports: errors, history, spark.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.errors import ConnectionLost
from headrace.history import NO_BRANCH, NO_SEQNO, BranchId, Seqno
from headrace.spark.landing import Landed, LandingTask
from headrace.spark.planning import plan_spans, plan_tasks
from headrace.spark.positions import START, lag
from headrace.spark.tables.changes import PARTS_DEFAULT, ChangesTable
from headrace.spark.tables.state import StateOptions, StateTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace.history import FailoverLog, VBucketId
    from headrace.spark.feed import Feed, FeedFactory
    from headrace.spark.jobs import Runner
    from headrace.spark.positions import Withdrawal

Answer = TypeVar("Answer")

CHANGES: Final = "changes"
STATE: Final = "state"
ROWS_PER_TURN: Final = 5_000_000
IDLE_SECONDS: Final = 0.25
PATIENCE_SECONDS: Final = 300.0
PAUSE_SECONDS: Final = 0.2
PAUSE_SECONDS_MAX: Final = 10.0
STALLED_TURNS_MAX: Final = 5
NOWHERE: Final = NO_SEQNO, NO_BRANCH


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """How a sync behaves; what the table is made with counts only when it is made."""

    parts: int = PARTS_DEFAULT
    rows_per_turn: int = ROWS_PER_TURN
    idle_seconds: float = IDLE_SECONDS
    patience_seconds: float = PATIENCE_SECONDS
    state: StateOptions | None = field(default_factory=StateOptions)


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn did."""

    number: int
    rows: int
    bytes: int
    files: int
    withdrawals: tuple[Withdrawal, ...]
    unfinished: dict[VBucketId, str]
    lag: int
    seconds: float


class Sync:
    """Keeps the tables of one bucket up to date."""

    def __init__(
        self,
        factory: FeedFactory,
        directory: Path | str,
        runner: Runner,
        options: SyncOptions | None = None,
        *,
        sleep: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Name source, tables and engine; nothing is opened yet."""
        self.factory = factory
        self.options = options or SyncOptions()
        self.changes = ChangesTable(Path(directory) / CHANGES)
        self.state = StateTable(Path(directory) / STATE)
        self._runner = runner
        self._stopping = threading.Event()
        self._sleep = sleep or self._stopping.wait
        self._clock = clock
        self._feed: Feed | None = None
        self._drained: dict[VBucketId, tuple[Seqno, BranchId]] = {}
        self._healed = False

    # -- the loop --------------------------------------------------------------------------------

    def once(self) -> Iterator[Turn]:
        """Turns until everything the source had at the beginning is in the tables."""
        target = self._patiently(self._high_seqnos)
        stalled = 0
        while not self._stopping.is_set():
            turn = self._patiently(self.turn)
            if turn is None:
                return
            yield turn
            stalled = stalled + 1 if turn.unfinished else 0
            if stalled >= STALLED_TURNS_MAX:
                vbucket, reason = next(iter(turn.unfinished.items()))
                raise ConnectionLost(
                    f"{len(turn.unfinished)} vbuckets do not move, vbucket {vbucket}: {reason}"
                )
            if not turn.unfinished and turn.lag == 0 and self._reached(target):
                return

    def _reached(self, target: dict[VBucketId, Seqno]) -> bool:
        vector = self.changes.published().vector
        return all(
            max(vector.get(vb, START).seqno, self._drained.get(vb, NOWHERE)[0]) >= seqno
            for vb, seqno in target.items()
        )

    def follow(self) -> Iterator[Turn | None]:
        """Turns for ever; None each time there was nothing to do."""
        while not self._stopping.is_set():
            turn = self._patiently(self.turn)
            yield turn
            if turn is None:
                self._sleep(self.options.idle_seconds)

    def stop(self) -> None:
        """End the loop after the turn that is running; may be called from another thread."""
        self._stopping.set()

    def close(self) -> None:
        """Give the driver's connection back."""
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    # -- one turn --------------------------------------------------------------------------------

    def turn(self) -> Turn | None:
        """Do one turn; None if the tables have everything already."""
        started = self._clock()
        if not self._healed:
            self.changes.table.heal()
            self.state.heal()
            self._healed = True
        highs, logs, count = self._ask()
        self.changes.create(
            vbuckets=count,
            parts=min(self.options.parts, max(1, count)),
            source=self.factory.describe(),
        )
        published = self.changes.published()
        plan = plan_spans(
            published.vector,
            self._unread(highs, logs),
            logs,
            rows_max=self.options.rows_per_turn,
        )
        if not plan.spans and not plan.settled:
            self._follow_with_state()
            return None
        number = published.turn + 1
        tasks = [
            LandingTask(self.factory, str(self.changes.path.resolve()), number, work)
            for work in plan_tasks(plan.spans, self.changes.shape(), self._runner.width)
        ]
        landed = Landed.joined(map(Landed.from_text, self._runner.run(tasks)))
        vector = {**published.vector, **plan.settled, **landed.positions}
        if vector != published.vector:
            self.changes.commit(number, landed, vector)
        for span in plan.spans:
            if span.vbucket not in landed.unfinished:
                place = span.end_seqno, logs[span.vbucket].newest.uuid
                self._drained[span.vbucket] = place
        self._follow_with_state()
        return Turn(
            number,
            landed.rows,
            landed.bytes,
            len(landed.files),
            landed.withdrawals,
            landed.unfinished,
            lag(vector, self._unread(highs, logs)),
            self._clock() - started,
        )

    def _unread(
        self, highs: Mapping[VBucketId, Seqno], logs: Mapping[VBucketId, FailoverLog]
    ) -> dict[VBucketId, Seqno]:
        """The vbuckets that were not read to where they are now.

        Where a filter left the last changes out, no row will ever come up to the high seqno.
        """
        return {
            vb: high
            for vb, high in highs.items()
            if self._drained.get(vb) != (high, logs[vb].newest.uuid)
        }

    def _follow_with_state(self) -> None:
        if self.options.state is not None:
            self.state.follow(self.changes, self._runner, self.options.state)

    # -- the source ------------------------------------------------------------------------------

    def _connected(self) -> Feed:
        if self._feed is None:
            self._feed = self.factory()
        return self._feed

    def _high_seqnos(self) -> dict[VBucketId, Seqno]:
        return dict(self._connected().high_seqnos())

    def _ask(self) -> tuple[dict[VBucketId, Seqno], dict[VBucketId, FailoverLog], int]:
        feed = self._connected()
        vbuckets = list(feed.vbuckets())
        # Logs first: a failover between the two questions then shows as a high seqno that is too
        # low or too high, which the tasks find out, and never as a log that is too new.
        logs = dict(feed.failover_logs(vbuckets))
        highs = {vb: high for vb, high in feed.high_seqnos().items() if vb in logs}
        return highs, logs, len(vbuckets)

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Ask until the source answers; ConnectionLost when patience is at its end."""
        since, pause = self._clock(), PAUSE_SECONDS
        while True:
            try:
                return ask()
            except ConnectionLost:
                self.close()
                waited = self._clock() - since
                if waited >= self.options.patience_seconds or self._stopping.is_set():
                    raise
                self._sleep(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
