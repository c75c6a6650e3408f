"""When a reader that should move does not: is it stuck, or does the machine not let anybody run?

`Stall.watch` ends a reading in which nothing came for `STALL_SECONDS` calm seconds, with a report
that tells the two apart: where every unfinished vbucket stands and why, what the threads of this
process do, what the processes got of the machine.

A second is calm when this process was woken on time and the node answered a new client within it.
A machine with ten times more work than processors, a process that somebody stopped, a node that is
being started again: all these make seconds that prove nothing, and are allowed
`RESTLESS_SECONDS_MAX` of them.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Final

from headrace.client.bucket import connect
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.client.reader import Changes, Follow

STALL_SECONDS: Final = 30
RESTLESS_SECONDS_MAX: Final = 600
TICK_SECONDS: Final = 1.0
LATE_SECONDS: Final = 0.25
ANSWER_SECONDS_MAX: Final = 1.0
LINES_MAX: Final = 40


class Stall:
    """One reading under watch."""

    def __init__(self, reader: Changes | Follow, url: str, progress: Callable[[], int]) -> None:
        """``progress`` gives a number that changes whenever something came."""
        self._reader, self._url, self._progress = reader, url, progress
        self._calm = self._restless = 0

    def watch(self, ended: threading.Event) -> str:
        """Wait for the end of the reading; the report if it did not move, and then it is closed."""
        seen, began = self._progress(), _spent()
        while not self._waited(ended):
            now = self._progress()
            if now != seen:
                seen, began, self._calm, self._restless = now, _spent(), 0, 0
            elif self._calm >= STALL_SECONDS or self._restless >= RESTLESS_SECONDS_MAX:
                report = self.report(began)
                self._reader.close()
                return report
        return ""

    def _waited(self, ended: threading.Event) -> bool:
        """Wait one tick and say whether the reading is over; count the second as what it was."""
        due = time.monotonic() + TICK_SECONDS
        if ended.wait(TICK_SECONDS):
            return True
        if time.monotonic() - due < LATE_SECONDS and self._node_answers():
            self._calm += 1
        else:
            self._restless += 1
        return False

    def _node_answers(self) -> bool:
        began = time.monotonic()
        try:
            connect(self._url).close()
        except HeadraceError:
            return False
        return time.monotonic() - began < ANSWER_SECONDS_MAX

    def report(self, began: tuple[float, float]) -> str:
        """Everything that tells a stuck reader from one that was not let run."""
        health, spent = self._reader.health, _spent()
        waiting = [one for one in health.vbuckets if one.state != "done"]
        lines = [
            f"nothing moved for {self._calm} calm and {self._restless} restless seconds",
            f"this process used {spent[0] - began[0]:.1f} s of a processor in "
            f"{spent[1] - began[1]:.0f} s; load {os.getloadavg()}, {os.cpu_count()} processors",
            f"links {health.links}, things waiting {health.waiting}, rows received {health.items}, "
            f"{len(waiting)} of {len(health.vbuckets)} vbuckets unfinished, "
            f"{len(health.stuck)} of them stuck",
        ]
        # Those that know why come first.
        waiting.sort(key=lambda one: (not one.stuck_reason, -one.idle_seconds))
        lines += [str(one) for one in waiting[:LINES_MAX]]
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            lines += [f"thread {names.get(ident, ident)}", *traceback.format_stack(frame)]
        return "\n".join(lines)


def _spent() -> tuple[float, float]:
    """Processor and wall seconds so far."""
    return time.process_time(), time.monotonic()
