"""The thread that keeps the tables level with the node: Spark, turn after turn, then the proof.

Spark is started on this thread, not on the owner's: an interrupt while the JVM starts would leave
half a Spark behind. `halt` ends a JVM that is still starting, cancels the jobs of one that runs,
and returns when the thread has taken Spark down.

Rules.
- Turns are told as they are published, with the vector they published.
- `finish` lets it drain: the first look that finds nothing to do, begun after the call, is the end;
  the tables are then held against the source, item by item.
- After the thread has ended no JVM is left: the gateway is closed and waited for.

Imports: errors, spark, cli.sync.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.cli.sync import WITHOUT_SPARK, runner_of
from headrace.errors import HeadraceError
from headrace.spark.client_feed import ClientFactory
from headrace.spark.sync import Sync, SyncOptions
from headrace.spark.tables.state import StateOptions
from headrace.spark.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.spark.jobs import Runner
    from headrace.spark.sync import Turn
    from headrace.spark.verify import Report

PARTS: Final = 4
COLUMNS: Final = {"status": "string", "total": "double", "customer": "string", "city": "string"}
"""What of the shop's documents becomes columns of `state`."""
JAVA_STOP_SECONDS_MAX: Final = 20.0
HALT_SECONDS_MAX: Final = 90.0
HALT_BEAT_SECONDS: Final = 0.2
JAVA_MARK: Final = b"org.apache.spark"
"""What the command line of Spark's JVM holds, and of the script that becomes it."""
COMPARISONS_MAX: Final = 5


class Following(threading.Thread):
    """The pipeline from one bucket into tables."""

    def __init__(
        self,
        url: str,
        tables: Path,
        *,
        master: str,
        told: Callable[[Turn, dict[int, int]], None],
    ) -> None:
        """Name source, tables and Spark; nothing runs before `start`."""
        super().__init__(name="headrace-demo-following", daemon=True)
        self.ready = threading.Event()
        self.drained = threading.Event()
        self.report: Report | None = None
        self.verify_seconds = 0.0
        self.start_seconds = 0.0
        self.failure: HeadraceError | None = None
        self._factory = ClientFactory(url)
        self._tables, self._master, self._told = tables, master, told
        self._finishing = threading.Event()
        self._halted = threading.Event()
        self._sync: Sync | None = None

    def run(self) -> None:
        """Start Spark, follow, drain, verify."""
        try:
            self._follow()
        except HeadraceError as error:
            self.failure = error
        except Exception as error:  # noqa: BLE001 - Spark and Py4J raise classes of their own
            # What is taken down on purpose complains, and nobody needs to hear it.
            if not self._halted.is_set():
                complaint = str(error).strip().partition("\n")[0]
                self.failure = HeadraceError(f"Spark failed: {complaint}")
        finally:
            self.ready.set()
            self.drained.set()

    def finish(self) -> None:
        """Drain and verify; `report` is there when the thread has ended."""
        self._finishing.set()

    def halt(self) -> None:
        """Give up the turn that is running, and wait until Spark is gone."""
        self._halted.set()
        starting = not self.ready.is_set()
        if self._sync is not None:
            self._sync.stop()
        deadline = time.monotonic() + HALT_SECONDS_MAX
        while self.is_alive() and time.monotonic() < deadline:
            if self._master != WITHOUT_SPARK:
                end_java_children() if starting else cancel_jobs()
            self.join(HALT_BEAT_SECONDS)

    def _follow(self) -> None:
        began = time.monotonic()
        try:
            with runner_of(self._master, self._tables, shown=False) as runner:
                self.start_seconds = time.monotonic() - began
                state = StateOptions(flatten=COLUMNS)
                sync = Sync(self._factory, self._tables, runner, SyncOptions(PARTS, state=state))
                self._sync = sync
                self.ready.set()
                try:
                    self._take_turns(sync)
                    self.drained.set()
                    self._compare(sync, runner)
                finally:
                    sync.close()
        finally:
            if self._master != WITHOUT_SPARK:
                stop_java()

    def _compare(self, sync: Sync, runner: Runner) -> None:
        """Hold tables and source against each other, again if the source has moved meanwhile."""
        for _ in range(COMPARISONS_MAX):
            if self._halted.is_set():
                return
            began = time.monotonic()
            self.report = verify(self._factory, self._tables, runner)
            self.verify_seconds = time.monotonic() - began
            if not self.report.newer:
                return
            # A document expired after the tables had been drained.
            self._take_turns(sync)

    def _take_turns(self, sync: Sync) -> None:
        turns = sync.follow()
        while not self._halted.is_set():
            last = self._finishing.is_set()
            turn = next(turns, None)
            if turn is not None:
                vector = sync.changes.published().vector
                self._told(turn, {int(vb): int(at.seqno) for vb, at in vector.items()})
            elif last:
                return


def cancel_jobs() -> None:
    """Cancel what Spark is doing; nothing happens if there is no Spark."""
    module = sys.modules.get("pyspark")
    context = None if module is None else module.SparkContext._active_spark_context  # noqa: SLF001 - the public way makes one
    if context is not None:
        with contextlib.suppress(Exception):  # a context that is being stopped says so in many ways
            context.cancelAllJobs()


def end_java_children() -> None:
    """End every JVM that this process has started, where /proc tells which those are."""
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            status = (directory / "stat").read_text(encoding="utf-8", errors="replace")
            words = (directory / "cmdline").read_bytes()
        except OSError:
            continue
        parent = int(status.rpartition(")")[2].split()[1])
        if parent == os.getpid() and JAVA_MARK in words:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(directory.name), signal.SIGKILL)


def stop_java() -> None:
    """End the JVM that a stopped session leaves behind; nothing happens if there is none."""
    context = import_module("pyspark").SparkContext
    gateway = context._gateway  # noqa: SLF001 - Spark has no public way to end its JVM
    if gateway is None:
        return
    context._gateway = context._jvm = None  # noqa: SLF001
    with contextlib.suppress(Exception):  # a JVM that was ended answers no goodbye
        gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is None:
        return
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(JAVA_STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
