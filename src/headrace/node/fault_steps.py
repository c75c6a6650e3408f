"""Steps that wait: each has a trigger, fires once, and keeps what came of it.

    WAITING ----> FIRED | FAILED | CANCELLED

Everything here runs on the event loop's thread, except `RunningStep.wait` and the first half of
`Steps.committed`. Seqno triggers are looked at before every request that follows, and every few
milliseconds for changes that no request made.

Imports: errors, node.fault_script, node.logs.
"""

from __future__ import annotations

import logging
import threading
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, TypeAlias

from headrace.errors import ConfigError, HeadraceError
from headrace.node.logs import LOGGER, note

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from headrace.node.bucket_host import BucketHost
    from headrace.node.connection import Connection
    from headrace.node.fault_script import Step
    from headrace.node.fault_words import Values
    from headrace.node.stream import Stream
    from headrace.wire.frame import Frame

POLL_SECONDS: Final = 0.01
STEPS_KEPT_MAX: Final = 10_000
"""Steps a node remembers, fired ones included."""

Result: TypeAlias = dict[str, object]


class StepState(Enum):
    """What became of a step."""

    WAITING = "waiting"
    FIRED = "fired"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Puller(Protocol):
    """The node's faults, as far as steps need them."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The node's."""

    def host(self, name: str | None) -> BucketHost:
        """The bucket of that name, or the default one; ConfigError."""

    def matches(self, connection: Connection, pattern: str) -> bool:
        """Whether a connection is meant by a number or a name."""

    def connections(self) -> list[Connection]:
        """Those that are open."""

    def count_mutations(
        self, connection: Connection, count: int, reached: Callable[[], None]
    ) -> None:
        """Call back when so many more were sent."""

    def pull(self, step: Step, values: Values, done: Callable[[object], None]) -> None:
        """Pull the step's lever, then ``done(result or exception)`` on the loop's thread."""

    def attend(self) -> None:
        """What must be looked at has changed."""


class RunningStep:
    """A step of a running node."""

    def __init__(self, number: int, step: Step) -> None:
        """It waits."""
        self.number = number
        self.step = step
        self.state = StepState.WAITING
        self.result: Result = {}
        self.error = ""
        self.followers: list[Callable[[], None]] = []
        self.timer: asyncio.TimerHandle | None = None
        self.pulled = False
        """The lever was pulled and may still be at work."""
        self._over = threading.Event()

    def wait(self, timeout_seconds: float = 30.0) -> Result:
        """What the lever did, once it has; ConfigError when it failed, TimeoutError when late.

        On any thread but the node's own.
        """
        if not self._over.wait(timeout_seconds):
            raise TimeoutError(f"step {self.step.text!r} did not fire in {timeout_seconds} s")
        if self.state is not StepState.FIRED:
            raise ConfigError(self.error or f"step {self.step.text!r} was {self.state.value}")
        return self.result

    def settle(self, state: StepState, *, result: Result | None = None, error: str = "") -> None:
        """End the waiting, once."""
        if self.state is not StepState.WAITING:
            return
        self.state, self.result, self.error = state, result or {}, error
        if self.timer is not None:
            self.timer.cancel()
        self._over.set()

    def to_json(self) -> Result:
        """The step as the admin API shows it."""
        shown: Result = {"step": self.number, "text": self.step.text, "state": self.state.value}
        if self.step.line:
            shown["line"] = self.step.line
        if self.error:
            shown["error"] = self.error
        if self.result:
            shown["result"] = self.result
        return shown


class Steps:
    """Every step of a node."""

    def __init__(self, puller: Puller) -> None:
        """None yet."""
        self._puller = puller
        self.all: list[RunningStep] = []
        self._watched: list[RunningStep] = []
        self._requests: list[RunningStep] = []
        self._commits: list[RunningStep] = []
        self._mutations: list[RunningStep] = []
        self._poll: asyncio.TimerHandle | None = None

    @property
    def wants_requests(self) -> bool:
        """Whether every request must be seen."""
        return bool(self._watched or self._requests)

    def add(self, step: Step) -> RunningStep:
        """Let a step wait; ConfigError when there are too many."""
        if len(self.all) >= STEPS_KEPT_MAX:
            raise ConfigError(f"{len(self.all)} steps, limit {STEPS_KEPT_MAX}")
        before = self.all[-1] if self.all else None
        running = RunningStep(len(self.all) + 1, step)
        self.all.append(running)
        self.ARM[step.trigger.name](self, running, before)
        self._puller.attend()
        return running

    def cancel(self, running: RunningStep) -> bool:
        """Let a step wait no more; whether it did."""
        if running.state is not StepState.WAITING or running.pulled:
            return False
        running.settle(StepState.CANCELLED)
        for waiting in (self._watched, self._requests, self._commits, self._mutations):
            if running in waiting:
                waiting.remove(running)
        self._puller.attend()
        return True

    def cancel_all(self) -> int:
        """Let none wait; how many did."""
        return sum(self.cancel(running) for running in self.all)

    def close(self) -> None:
        """The node stops."""
        self.cancel_all()
        if self._poll is not None:
            self._poll.cancel()

    # -- firing ----------------------------------------------------------------------------------

    def _fire(self, running: RunningStep, **context: int | str) -> None:
        if running.state is not StepState.WAITING or running.pulled:
            return
        running.pulled = True
        step = running.step
        lever = step.lever.by_name()
        # What happened beats what the trigger asked for: a name with * becomes one connection.
        known = {**step.when, **context}
        given = {name: known[name] for name in step.trigger.gives if name in known}
        values = {name: value for name, value in given.items() if name in lever} | step.values

        def done(result: object) -> None:
            if isinstance(result, BaseException):
                if not isinstance(result, HeadraceError):
                    LOGGER.error("fault_broke", exc_info=result)
                running.settle(StepState.FAILED, error=str(result))
                note("fault_failed", logging.WARNING, step=step.text, reason=running.error)
            else:
                assert isinstance(result, dict)
                running.settle(StepState.FIRED, result=result)
                note("fault", logging.INFO, step=step.text, lever=step.lever.name, **_facts(result))
            for follow in running.followers:
                follow()

        self._puller.pull(step, values, done)

    # -- arming ----------------------------------------------------------------------------------

    def _now(self, running: RunningStep, before: RunningStep | None) -> None:  # noqa: ARG002
        self._fire(running)

    def _time(self, running: RunningStep, before: RunningStep | None) -> None:  # noqa: ARG002
        seconds = float(running.step.when.get("seconds", 0.0))
        running.timer = self._puller.loop.call_later(seconds, self._fire, running)

    def _then(self, running: RunningStep, before: RunningStep | None) -> None:
        if before is None:
            running.settle(StepState.FAILED, error="`then` has no step before it")
        elif before.state is StepState.WAITING:
            before.followers.append(lambda: self._time(running, None))
        else:
            self._time(running, None)

    def _watch(self, running: RunningStep, before: RunningStep | None) -> None:  # noqa: ARG002
        self._watched.append(running)
        self._schedule_poll()

    def _on_request(self, running: RunningStep, before: RunningStep | None) -> None:  # noqa: ARG002
        self._requests.append(running)

    def _on_commit(self, running: RunningStep, before: RunningStep | None) -> None:  # noqa: ARG002
        self._commits.append(running)

    def _on_mutations(self, running: RunningStep, before: RunningStep | None) -> None:  # noqa: ARG002
        self._mutations.append(running)
        for connection in self._puller.connections():
            self._count(running, connection)

    def _count(self, running: RunningStep, connection: Connection) -> None:
        pattern = str(running.step.when["connection"])
        if not self._puller.matches(connection, pattern):
            return

        def reached() -> None:
            if running in self._mutations:
                self._mutations.remove(running)
            self._fire(running, connection=str(connection.session.number))

        self._puller.count_mutations(connection, int(running.step.when["count"]), reached)

    # -- being told ------------------------------------------------------------------------------

    @property
    def counts_mutations(self) -> bool:
        """Whether a connection that opens its streams must be told of."""
        return bool(self._mutations)

    def opened(self, connection: Connection) -> None:
        """A connection became a change-stream connection."""
        for running in tuple(self._mutations):
            self._count(running, connection)

    def request(self, connection: Connection, frame: Frame) -> None:
        """A request came and is not answered yet."""
        self.check()
        for running in tuple(self._requests):
            when = running.step.when
            if frame.opcode != when["opcode"] or not self._asks(connection, frame, when):
                continue
            self._requests.remove(running)
            self._fire(
                running, connection=str(connection.session.number), vbucket=int(frame.vbucket)
            )
        if self._watched:
            self._puller.loop.call_soon(self.check)

    def _asks(self, connection: Connection, frame: Frame, when: Values) -> bool:
        if when.get("vbucket", frame.vbucket) != frame.vbucket:
            return False
        if "bucket" in when:
            host = connection.session.selected
            if host is None or host.name != when["bucket"]:
                return False
        return "connection" not in when or self._puller.matches(connection, str(when["connection"]))

    def committed(self, bucket: str, number: int) -> None:
        """A bucket's commit was made; on the committing thread."""
        if self._commits:
            self._puller.loop.call_soon_threadsafe(self._committed, bucket, number)

    def _committed(self, bucket: str, number: int) -> None:
        for running in tuple(self._commits):
            when = running.step.when
            try:
                meant = self._puller.host(_text(when.get("bucket"))).name == bucket
            except ConfigError:
                continue
            if meant and number >= int(when["commits"]):
                self._commits.remove(running)
                self._fire(running, bucket=bucket)

    # -- looking ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Fire the steps whose seqno was reached."""
        for running in tuple(self._watched):
            context = self.LOOK[running.step.trigger.name](self, running.step.when)
            if context is not None:
                self._watched.remove(running)
                self._fire(running, **context)
                self._puller.attend()

    def _schedule_poll(self) -> None:
        if self._poll is None and self._watched:
            self._poll = self._puller.loop.call_later(POLL_SECONDS, self._look_again)

    def _look_again(self) -> None:
        self._poll = None
        self.check()
        self._schedule_poll()

    def _reached(self, when: Values) -> dict[str, int | str] | None:
        """The seqno is the vbucket's."""
        try:
            host = self._puller.host(_text(when.get("bucket")))
        except ConfigError:
            return None
        vbucket = host.bucket.find(int(when["vbucket"]))
        return {} if vbucket is not None and vbucket.high_seqno >= int(when["seqno"]) else None

    def _sent(self, when: Values) -> dict[str, int | str] | None:
        """A stream has sent the seqno."""
        pattern = _text(when.get("connection"))
        for connection in self._puller.connections():
            if pattern is not None and not self._puller.matches(connection, pattern):
                continue
            if any(_has_sent(stream, when) for stream in streams_of(connection)):
                return {"connection": str(connection.session.number)}
        return None

    ARM: ClassVar[dict[str, Callable[[Steps, RunningStep, RunningStep | None], None]]] = {
        "now": _now,
        "time": _time,
        "then": _then,
        "seqno": _watch,
        "sent": _watch,
        "commit": _on_commit,
        "mutations": _on_mutations,
        "request": _on_request,
    }
    """Trigger -> what makes a step wait for it."""
    LOOK: ClassVar[dict[str, Callable[[Steps, Values], dict[str, int | str] | None]]] = {
        "seqno": _reached,
        "sent": _sent,
    }
    """Trigger -> a look that tells what is known once it has come."""


def streams_of(connection: Connection) -> tuple[Stream, ...]:
    """The streams of a connection; none before OPEN."""
    producer = connection.session.producer
    return () if producer is None else tuple(producer.streams.values())


def _has_sent(stream: Stream, when: Values) -> bool:
    return (
        stream.vbucket == when["vbucket"]
        and stream.items_sent > 0
        and stream.sent_seqno >= int(when["seqno"])
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _facts(result: Result) -> Result:
    return {
        name: value for name, value in result.items() if isinstance(value, str | int | float | bool)
    }
