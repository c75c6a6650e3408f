"""Kill a running sync, part by part, and look at what it left.

    python -m tests.spark.campaign --kill driver|executor|worker|node|all --times 20 --seed 1

A node in a process of its own is written to all the time: new versions, deletions, documents that
expire. `headrace sync --follow` copies it into tables. At random moments something is killed with
kill -9: the driver with its JVM and all below it, an executor (of a ``local-cluster``), a Python
worker, or the node. Before every other such moment a vbucket is failed over to before what the
tables hold of it, so that planning, reading or committing is under way when its branch dies. What
was killed is started again, by us or by Spark.

In the end the tables are brought level with the source and must be right: `headrace verify` finds
nothing, no row of `changes` is there twice by (vbucket, epoch, seqno), and no row of `state` is
covered by a withdrawal.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow.compute as pc

from headrace.client.bucket import connect
from headrace.client.writer import Document
from headrace.errors import HeadraceError
from headrace.history import BranchId, Seqno, VBucketId
from headrace.spark.client_feed import ClientFactory
from headrace.spark.jobs import LocalRunner
from headrace.spark.positions import Withdrawal, living
from headrace.spark.sync import Sync
from headrace.spark.tables.changes import ChangesTable
from headrace.spark.tables.views import arrow_changes, arrow_state
from headrace.spark.verify import verify
from tests.soak.served import ServedNode

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).resolve().parents[2]
TURN_SECONDS_MAX: Final = 420.0
VBUCKETS: Final = 8
KEYS: Final = 120
PAUSE_SECONDS: Final = 0.05
FAILOVER_CHANCE: Final = 0.5
LOSE_MAX: Final = 12
EXPIRY_SECONDS: Final = 2
MARK: Final = "HEADRACE_CAMPAIGN"


class Churn:
    """Documents written over and over while a block runs; a node that is away is waited for."""

    def __init__(self, url: str, seed: int) -> None:
        """Start with nothing written."""
        self._url = url
        self._draw = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="churn")
        self.rounds = 0

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_SECONDS):
            self.rounds += 1
            # The node may be down: the next round finds it again.
            with contextlib.suppress(HeadraceError, OSError, AssertionError):
                self._write()

    def _write(self) -> None:
        with connect(self._url) as bucket, bucket.writer() as writer:
            for number in range(KEYS // 2):
                key = f"doc-{self._draw.randrange(KEYS)}".encode()
                value: bytes | None = b'{"round": %d, "n": %d}' % (self.rounds, number)
                if self._draw.random() < 0.05:
                    value = None
                expiry = EXPIRY_SECONDS if value and self._draw.random() < 0.02 else 0
                writer.put(Document(key, value, is_json=True, expiry=expiry))

    def __enter__(self) -> Churn:
        """Write from now on."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop and wait for the last round."""
        self._stop.set()
        self._thread.join()


# -- processes -------------------------------------------------------------------------------------


def marked(mark: str) -> dict[int, str]:
    """The processes whose environment has a mark, and their commands.

    By environment and not by parent: what a killed process had started belongs to nobody, and goes
    on.
    """
    found = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                if f"{MARK}={mark}".encode() in (path / "environ").read_bytes().split(b"\0"):
                    command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(path.name)] = command
    return found


def kill_hard(pids: list[int]) -> None:
    """kill -9; one that is gone is no matter."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Follower:
    """`headrace sync --follow` in a process of its own, with its JVM and its workers."""

    def __init__(self, url: str, tables: Path, master: str) -> None:
        """Start it."""
        self.tables = tables
        self._mark = secrets.token_hex(8)
        tables.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "headrace", "sync", url, str(tables), "--follow"]
        command += ["--master", master, "--rebuild-turns", "3", "--parts", "3"]
        with (tables / "follower.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src"), MARK: self._mark},
                stdout=log,
                stderr=log,
            )

    @property
    def is_alive(self) -> bool:
        """Whether the driver runs."""
        return self._process.poll() is None

    @property
    def log(self) -> str:
        """The end of what it said."""
        return (self.tables / "follower.log").read_text(errors="replace")[-4000:]

    def pids(self, word: str = "") -> list[int]:
        """The processes of this sync whose command has a word."""
        return [pid for pid, command in marked(self._mark).items() if word in command]

    def kill(self) -> None:
        """Kill the driver, its JVM and its workers at once."""
        kill_hard(self.pids())
        self._process.kill()
        self._process.wait()

    def kill_one(self, word: str, draw: random.Random) -> bool:
        """Kill one process of this sync; False if there is none just now."""
        chosen = self.pids(word)
        if not chosen:
            return False
        kill_hard([draw.choice(chosen)])
        return True

    def wait_for_turn(self, turn: int) -> None:
        """Until that turn is committed."""
        deadline = time.monotonic() + TURN_SECONDS_MAX
        while time.monotonic() < deadline:
            if turn_of(self.tables) >= turn:
                return
            assert self.is_alive, f"the sync ended:\n{self.log}"
            time.sleep(PAUSE_SECONDS)
        raise AssertionError(f"no turn {turn} in {TURN_SECONDS_MAX:.0f} s:\n{self.log}")


def turn_of(tables: Path) -> int:
    """The last turn committed; 0 before the first."""
    table = ChangesTable(tables / "changes").table
    return table.turn if table.exists else 0


# -- what is killed --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Victim:
    """A master the sync runs on, and the word in the command of what is killed below it."""

    master: str
    word: str


VICTIMS: Final = {
    "driver": Victim("local[2]", ""),
    "executor": Victim("local-cluster[2,1,1024]", "CoarseGrainedExecutorBackend"),
    "worker": Victim("local[2]", "pyspark.daemon"),
    "node": Victim("local[2]", ""),
}


class Campaign:
    """One kind of kill, so many times, and the judgement."""

    def __init__(self, directory: Path, kill: str, *, times: int, seed: int) -> None:
        """Nothing runs yet."""
        self.kill, self.times = kill, times
        self.directory = directory
        self.tables = directory / "tables"
        self.killed = self.failovers = 0
        self._draw = random.Random(f"{kill} {seed}")
        self._seed = seed

    def run(self, say: Callable[[str], None]) -> None:
        """Do it; an AssertionError says what is wrong with the tables."""
        began = time.monotonic()
        with ServedNode(self.directory / "node", vbuckets=VBUCKETS) as node:
            with Churn(node.url, self._seed):
                self._kills(node, say)
            judge(node.url, self.tables)
            rolled_back = rollbacks_of(self.tables)
            assert rolled_back or not self.failovers, "failovers below the tables roll them back"
            say(
                f"{self.kill}: {self.killed} kills, {self.failovers} failovers, "
                f"{turn_of(self.tables)} turns, {rolled_back} vbuckets rolled back, "
                f"tables are right, seed {self._seed}, {time.monotonic() - began:.0f} s"
            )

    def _kills(self, node: ServedNode, say: Callable[[str], None]) -> None:
        victim = VICTIMS[self.kill]
        follower = Follower(node.url, self.tables, victim.master)
        try:
            follower.wait_for_turn(1)
            while self.killed < self.times:
                time.sleep(self._draw.uniform(0.0, 1.5))
                self._maybe_fail_over(node)
                if self.kill == "node":
                    node.kill()
                    time.sleep(self._draw.uniform(0.0, 1.0))
                    node.start()
                elif self.kill == "driver":
                    follower.kill()
                    follower = Follower(node.url, self.tables, victim.master)
                elif not follower.kill_one(victim.word, self._draw):
                    continue
                self.killed += 1
                say(f"{self.kill}: kill {self.killed} at turn {turn_of(self.tables)}")
                # Every other kill hits a start or a recovery, the rest a running loop.
                if self.killed % 2:
                    follower.wait_for_turn(turn_of(self.tables) + 2)
            follower.wait_for_turn(turn_of(self.tables) + 2)
        finally:
            follower.kill()

    def _maybe_fail_over(self, node: ServedNode) -> None:
        """Fail a vbucket over to before what the tables hold of it."""
        if self._draw.random() < FAILOVER_CHANCE and turn_of(self.tables):
            vbucket = VBucketId(self._draw.randrange(VBUCKETS))
            held = ChangesTable(self.tables / "changes").published().position(vbucket).seqno
            seqno = max(0, held - self._draw.randint(1, LOSE_MAX))
            pulled = node.pull("failover", vbucket=vbucket, seqno=seqno)
            self.failovers += pulled is not None


# -- the judgement ---------------------------------------------------------------------------------


def judge(url: str, tables: Path) -> None:
    """Bring the tables level with a source at rest; AssertionError if they are not right."""
    time.sleep(EXPIRY_SECONDS + 1)  # what expires has expired: the source is at rest
    factory = ClientFactory(url)
    sync = Sync(factory, tables, LocalRunner())
    for _ in sync.once():
        pass
    sync.close()
    report = verify(factory, tables, LocalRunner())
    assert report.documents > 0, "there is something to compare"
    assert report.count == 0, "\n".join(map(str, report.differences[:20]))
    assert rows_twice(tables) == 0, "rows are in changes twice"
    assert dead_in_state(tables) == 0, "rows of a dead branch are in state"


def rows_twice(tables: Path) -> int:
    """Rows of `changes` whose (vbucket, epoch, seqno) is there before them, rollbacks aside."""
    rows = arrow_changes(tables, withdrawn=True)
    rows = rows.filter(pc.not_equal(rows["event"], "rollback"))
    places = rows.select(["vbucket", "epoch", "seqno"])
    return int(rows.num_rows - places.group_by(places.column_names).aggregate([]).num_rows)


def dead_in_state(tables: Path) -> int:
    """Rows of `state` that a withdrawal covers, by the plain rule."""
    nobody = BranchId(0)
    withdrawals = [
        Withdrawal(VBucketId(r["vbucket"]), r["epoch"], Seqno(r["seqno"]), Seqno(0), nobody, nobody)
        for r in _rollback_rows(tables)
    ]
    dead = 0
    rows = arrow_state(tables, deleted=True).select(["vbucket", "epoch", "seqno"]).to_pylist()
    for vbucket in {row["vbucket"] for row in rows}:
        ends = [one for one in withdrawals if one.vbucket == vbucket]
        places = [(r["epoch"], r["seqno"]) for r in rows if r["vbucket"] == vbucket]
        dead += living(places, ends).count(False)
    return dead


def rollbacks_of(tables: Path) -> int:
    """How often a vbucket was rolled back."""
    return len(_rollback_rows(tables))


def _rollback_rows(tables: Path) -> list[dict[str, int]]:
    rows = arrow_changes(tables, withdrawn=True)
    found = rows.filter(pc.equal(rows["event"], "rollback"))
    return list(found.select(["vbucket", "epoch", "seqno"]).to_pylist())


def main() -> int:
    """Run what was asked for; a failure is a traceback."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.campaign")
    parser.add_argument("--kill", choices=[*VICTIMS, "all"], default="all")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    def say(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    for kill in VICTIMS if options.kill == "all" else [options.kill]:
        with tempfile.TemporaryDirectory(prefix="headrace-campaign-") as directory:
            Campaign(Path(directory), kill, times=options.times, seed=options.seed).run(say)
    return 0


if __name__ == "__main__":
    sys.exit(main())
