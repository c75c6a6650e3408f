"""The demo from start to end: who is started when, what is waited for, what stops everything.

    the node starts -> the shop opens while Spark starts -> trading, tables follow -> a vbucket is
    failed over, the tables take the rollback -> trading ends -> the tables drain -> tables and
    source are compared

Rules.
- Whatever happens, an interrupt too, everything that was started is stopped, in the order shop,
  pipeline, node, and the call returns or raises only then.
- Every wait has a limit and looks at what could have failed meanwhile.
- With ``keep`` trading has no end of its own: the first interrupt ends it, and the rest follows as
  always; a second interrupt stops at once.

Imports: client, errors, spark, demo.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.client.bucket import connect
from headrace.demo.following import Following
from headrace.demo.interrupts import Interrupts
from headrace.demo.losing import Loss, place_to_lose, withdrawn
from headrace.demo.record import Record, Sample, TurnSeen
from headrace.demo.served import ServedNode
from headrace.demo.shop import Shop
from headrace.demo.summary import Failover, Summary, summed_up
from headrace.demo.trading import Trading, make_collections
from headrace.errors import ConfigError, ConnectionLost, HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.client.bucket import Bucket
    from headrace.demo.screen import Screen
    from headrace.spark.positions import Withdrawal
    from headrace.spark.sync import Turn

SAMPLE_SECONDS: Final = 0.5
START_SECONDS_MAX: Final = 300.0
FOLLOW_SECONDS_MAX: Final = 300.0
DRAIN_SECONDS_MAX: Final = 300.0
WITHDRAWALS_KEPT: Final = 1_000
FAILOVER_SHARE: Final = 0.45
"""The part of the trading time after which a vbucket is failed over."""
MADE: Final = ("node", "tables", "node.log", "node.port", "node.admin", "report.html")
SUMMARY_FILE: Final = "summary.json"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run."""

    directory: Path
    seconds: float
    documents: int
    rate: int
    vbuckets: int
    seed: int
    master: str
    port: int
    keep: bool


def prepared(directory: Path) -> Path:
    """An empty place for a demo: new, empty, or with nothing in it but an earlier demo."""
    path = directory.resolve()
    try:
        path.mkdir(parents=True, exist_ok=True)
        found = {one.name for one in path.iterdir()}
        strange = sorted(found - {*MADE, SUMMARY_FILE})
        if strange:
            raise ConfigError(
                f"--out {directory} holds {strange[0]!r}, which no demo made; name an empty or a "
                "new directory"
            )
        for name in found:
            one = path / name
            shutil.rmtree(one) if one.is_dir() else one.unlink()
    except OSError as error:
        raise ConfigError(f"--out {directory} cannot be used: {error.strerror}") from error
    return path


class Demo:
    """One run of the demo."""

    def __init__(
        self, plan: Plan, screen_of: Callable[[Record], Screen], *, clock: Callable[[], float]
    ) -> None:
        """Nothing is started yet."""
        self.plan = plan
        self.directory = prepared(plan.directory)
        self.tables = self.directory / "tables"
        self.record = Record()
        self.failover: Failover | None = None
        self._clock = clock
        self._began = clock()
        self._wall_minus_record = time.time()
        self._screen = screen_of(self.record)
        self._node = ServedNode(self.directory, vbuckets=plan.vbuckets, port=plan.port)
        self._trading: Trading | None = None
        self._following: Following | None = None
        self._positions: dict[int, int] = {}
        self._landed = 0
        self._withdrawals: list[Withdrawal] = []
        self._sampled_at = 0.0
        self._bucket: Bucket | None = None
        self._interrupts = Interrupts()

    @property
    def url(self) -> str:
        """The node's bucket."""
        return self._node.url

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._began

    # -- the story -------------------------------------------------------------------------------

    def run(self) -> Summary:
        """Run it all; HeadraceError if something failed, KeyboardInterrupt if it was told to."""
        with self._screen, self._interrupts:
            try:
                return self._run()
            finally:
                self._stop_everything()

    def _run(self) -> Summary:
        screen, plan = self._screen, self.plan
        screen.doing("starting the node (the first start on a machine compiles its kernels)")
        self._node.start()
        self._wait(self._node.is_ready, START_SECONDS_MAX, "the node to listen")
        screen.say(self.now, f"node      {self.url}, {plan.vbuckets} vbuckets, its own process")
        make_collections(self.url)
        with connect(self.url) as bucket:
            self._bucket = bucket
            return self._story()

    def _story(self) -> Summary:
        screen, plan = self._screen, self.plan
        following = Following(self.url, self.tables, master=plan.master, told=self._take_turn)
        trading = Trading(self.url, Shop(plan.seed), documents=plan.documents, rate=plan.rate)
        self._following, self._trading = following, trading
        following.start()
        trading.start()
        screen.doing("the shop opens; Spark starts")
        self._wait(trading.opened.is_set, START_SECONDS_MAX, "the shop to open")
        screen.say(self.now, f"shop      opens with {trading.written:,} documents")
        self._mark("open", "the shop is open")
        self._wait(following.ready.is_set, START_SECONDS_MAX, "Spark to start")
        screen.say(self.now, f"Spark     started in {following.start_seconds:.1f} s")
        self._mark("spark", "Spark is ready, trading begins")
        trading.begin()
        screen.doing("trading; the tables catch up")
        self._wait(self._caught_up, FOLLOW_SECONDS_MAX, "the tables to catch up")
        screen.say(self.now, f"tables    have caught up: {self._landed:,} rows")
        self._trade(trading)
        screen.doing("the shop closes")
        trading.stop()
        self._check()
        self._mark("close", "the shop is closed")
        screen.say(self.now, f"shop      closes after {trading.written:,} writes")
        screen.doing("the last changes reach the tables")
        following.finish()
        self._wait(following.drained.is_set, DRAIN_SECONDS_MAX, "the tables to drain")
        self._mark("drained", "the tables have everything")
        screen.doing("comparing tables and source, item by item")
        self._wait(lambda: not following.is_alive(), DRAIN_SECONDS_MAX, "the comparison")
        self._sample()
        return self._summary(trading, following)

    def _trade(self, trading: Trading) -> None:
        """Let time pass, with the failover on the way."""
        began = self.now
        screen, plan = self._screen, self.plan
        screen.doing(f"trading, {plan.rate:,} writes a second")
        self._pause(plan.seconds * FAILOVER_SHARE)
        self._fail_over()
        screen.doing(f"trading, {plan.rate:,} writes a second")
        self._pause(plan.seconds - (self.now - began))
        if not plan.keep:
            return
        screen.say(self.now, "keep      going on; Ctrl-C ends the trading, then comes the proof")
        screen.say(self.now, f"          {self.url}  faults: --admin {self._node.admin_file}")
        screen.doing("Ctrl-C to finish")
        try:
            while trading.is_alive():
                self._pause(SAMPLE_SECONDS)
        except KeyboardInterrupt:
            self._interrupts.taken()
            screen.say(self.now, "keep      ended; once more to stop at once")

    def _fail_over(self) -> None:
        screen = self._screen
        vbucket, seqno = place_to_lose(self._positions)
        known = len(self._withdrawals)
        answer = self._node.pull("failover", vbucket=vbucket, seqno=seqno)
        at = self.now
        loss = Loss(
            vbucket,
            int(str(answer["high_seqno"])),
            int(str(answer["seqno"])),
            str(answer["branch"]),
        )
        lost = loss.high_seqno - loss.seqno
        self._mark("failover", f"vbucket {vbucket} fails over at seqno {seqno}, {lost} lost")
        screen.say(
            at,
            f"failover  vbucket {vbucket} loses seqnos {seqno + 1}..{loss.high_seqno}, branch "
            f"{loss.branch} begins; the tables stand at {self._positions[vbucket]}",
            style="bold red",
        )
        screen.doing("the rollback travels into the tables")
        self._wait(
            lambda: any(one.vbucket == vbucket for one in self._withdrawals[known:]),
            FOLLOW_SECONDS_MAX,
            "the rollback to reach the tables",
        )
        seconds = self.now - at
        told = next(one for one in self._withdrawals[known:] if one.vbucket == vbucket)
        taken = withdrawn(self.tables, told)
        self.failover = Failover(loss=loss, withdrawn=taken, at=at, seconds=seconds)
        screen.say(
            self.now,
            f"rollback  in the tables after {seconds:.1f} s: {taken.rows} rows of "
            f"{taken.documents} documents withdrawn, vbucket {vbucket} from "
            f"{taken.from_seqno} back to {taken.to_seqno}; {taken.visible} of them still in state",
            style="bold green",
        )
        if taken.example is not None:
            one = taken.example
            screen.say(self.now, f"          {one.key}: was {one.before}, is {one.after}")

    def _summary(self, trading: Trading, following: Following) -> Summary:
        self._check()
        report = following.report
        assert report is not None, "a follower that ended without a failure has compared"
        return summed_up(
            self.tables,
            self.record,
            report,
            writes=dict(trading.shop.counts) | {"all": trading.written},
            failover=self.failover,
            seconds=self.now,
            spark_start_seconds=following.start_seconds,
            verify_seconds=following.verify_seconds,
            wall_minus_record=self._wall_minus_record,
        )

    # -- looking and waiting ---------------------------------------------------------------------

    def _take_turn(self, turn: Turn, positions: dict[int, int]) -> None:
        """Called by the follower's thread when a turn is published."""
        now = self.now
        self._landed += turn.rows
        self._positions = positions
        seen = TurnSeen(
            time=now,
            number=turn.number,
            rows=turn.rows,
            bytes=turn.bytes,
            files=turn.files,
            seconds=turn.seconds,
            rollbacks=len(turn.withdrawals),
        )
        self.record.add_turn(seen)
        for one in turn.withdrawals:
            text = f"vbucket {one.vbucket} goes back from {one.from_seqno} to {one.to_seqno}"
            self.record.mark(now, "rollback", text)
        room = WITHDRAWALS_KEPT - len(self._withdrawals)
        self._withdrawals += turn.withdrawals[:room]

    def _caught_up(self) -> bool:
        trading, last = self._trading, self.record.samples[-1] if self.record.samples else None
        if trading is None or last is None or not self._positions:
            return False
        return self._landed >= self.plan.documents and last.lag < self.plan.rate * 5

    def _sample(self) -> None:
        """Look at both ends, unless that was just done."""
        trading = self._trading
        assert self._bucket is not None, "there is something to look at once the node listens"
        try:
            highs = self._bucket.seqnos()
        except ConnectionLost:
            return  # a fault somebody causes on purpose; the next look finds it again
        sample = Sample(
            time=self.now,
            written=0 if trading is None else trading.written,
            landed=self._landed,
            highs=highs,
            positions=dict(self._positions),
        )
        self.record.add_sample(sample)

    def _tick(self, seconds: float = SAMPLE_SECONDS / 5) -> None:
        if self._trading is not None and self.now - self._sampled_at >= SAMPLE_SECONDS:
            self._sampled_at = self.now
            self._sample()
        self._screen.show(self.now)
        time.sleep(max(0.0, seconds))

    def _pause(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self._check()
            self._tick(min(SAMPLE_SECONDS / 5, until - self.now))

    def _wait(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        until = self.now + seconds
        while not ready():
            self._check()
            if self.now > until:
                raise HeadraceError(f"waited {seconds:g} s for {what}; see {self.directory}")
            self._tick()
        self._check()

    def _check(self) -> None:
        self._interrupts.check()
        for one in (self._trading, self._following):
            if one is not None and one.failure is not None:
                raise one.failure

    def _mark(self, kind: str, text: str) -> None:
        self.record.mark(self.now, kind, text)

    def _stop_everything(self) -> None:
        """Stop what runs, in order; what is stopped already stays so."""
        self._screen.doing("stopping")
        self._screen.show(self.now)
        if self._trading is not None and self._trading.is_alive():
            self._trading.abandon()
        if self._following is not None:
            self._following.halt()
        self._node.stop()
