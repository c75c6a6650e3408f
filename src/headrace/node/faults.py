"""Faults on demand: what a consumer's tests need a producer to do to them.

A node has none of this unless it was asked for (`NodeConfig.faults`, an admin port or a scenario).
Then its code consults this object at four places: a bucket is opened (`adopt`), a connection opens
its change streams (`opened`), a request came (`answer`), the node stops (`close`). Everything else
is done from outside: a disk around the bucket's disk, a transport around the connection's.

Each lever is a method here and a row in `headrace.node.fault_table`, with the same parameters. They
may be called from any thread and do their work on the event loop's; a lever that cannot be pulled
raises ConfigError and has changed nothing.

Imports: errors, wire, node.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Concatenate, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from headrace.errors import ConfigError, HeadraceError, RemoteProtocolError
from headrace.node.fault_disk import DELAY_SECONDS_MAX, FaultDisk
from headrace.node.fault_script import planned, read_step, read_when
from headrace.node.fault_steps import Result, Steps, streams_of
from headrace.node.fault_table import LEVERS
from headrace.node.fault_transport import FaultTransport
from headrace.node.logs import note
from headrace.node.refusal import Refusal
from headrace.node.replies import pack_refusal
from headrace.wire.codec import decode, encode
from headrace.wire.messages import RollbackReply, StreamRequest
from headrace.wire.opcodes import Feature, Opcode, Status, VBucketState

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.node.bucket_host import BucketHost
    from headrace.node.connection import Connection
    from headrace.node.fault_script import Step
    from headrace.node.fault_steps import RunningStep
    from headrace.node.fault_words import Values
    from headrace.node.server import Node
    from headrace.node.session import Session
    from headrace.store import VBucket
    from headrace.wire.frame import Frame

CRASH_EXIT_STATUS: Final = 70
CALL_SECONDS_MAX: Final = 60.0
"""How long a call from another thread waits for the event loop."""
ARMED_MAX: Final = 10_000
"""Refusals and rollbacks that may wait for their requests."""
UNANSWERED: Final = frozenset({Opcode.BUFFER_ACK, Opcode.QUITQ})

P = ParamSpec("P")
R = TypeVar("R")


def lever(
    method: Callable[Concatenate[Faults, P], R],
) -> Callable[Concatenate[Faults, P], R]:
    """The method runs on the event loop's thread, whoever calls it."""

    @functools.wraps(method)
    def call(self: Faults, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.on_loop(lambda: method(self, *args, **kwargs))

    return call


@dataclass(slots=True, kw_only=True)
class Armed:
    """An answer that waits for requests; None stands for any."""

    left: int
    opcode: int
    host: BucketHost | None
    vbucket: int | None
    connection: str | None
    status: Status | None = None
    seqno: int = 0


class Faults:
    """The levers of one node; made by it on its event loop's thread."""

    def __init__(self, node: Node, *, crash: Callable[[], None] | None = None) -> None:
        """Nothing is wrong yet; ``crash`` ends the process, or plays dead in a test."""
        self._node = node
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._crash = crash if crash is not None else _end_process
        self._armed: list[Armed] = []
        self._disks: dict[str, FaultDisk] = {}
        self._stopped_by_us: set[str] = set()
        self._transports: WeakKeyDictionary[Connection, FaultTransport] = WeakKeyDictionary()
        self._sees_requests = False
        self.steps = Steps(self)

    # -- where the node consults it --------------------------------------------------------------

    def adopt(self, host: BucketHost) -> None:
        """Stand before a bucket's disk; on any thread, before its committer starts."""
        core, name = host.bucket.core, host.name
        disk = FaultDisk(
            core.disk,
            crash=self._crash,
            committed=lambda number: self.steps.committed(name, number),
        )
        core.disk = self._disks[name] = disk

    def opened(self, session: Session) -> None:
        """A connection has a name and will have streams."""
        if self.steps.counts_mutations:
            for connection in self._node.connections:
                if connection.session is session:
                    self.steps.opened(connection)

    def answer(self, connection: Connection, frame: Frame) -> bytes | None:
        """The answer to a request that is to be refused; None lets it pass."""
        if not self._sees_requests or frame.is_reply:
            return None
        self.steps.request(connection, frame)
        transport = self._transports.get(connection)
        if transport is not None and transport.is_closing():
            return b""
        return self._refused(connection, frame) if self._armed else None

    def close(self) -> None:
        """The node stops."""
        self.steps.close()

    # -- what steps ask --------------------------------------------------------------------------

    def on_loop(self, function: Callable[[], R]) -> R:
        """Call on the event loop's thread, and wait for it on any other."""
        if threading.get_ident() == self._thread:
            return function()
        future: Future[R] = Future()

        def work() -> None:
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001 - raised again where it was asked for
                future.set_exception(error)

        self.loop.call_soon_threadsafe(work)
        return future.result(CALL_SECONDS_MAX)

    def host(self, name: str | None) -> BucketHost:
        """The bucket of that name, or the default one."""
        found = self._node.default_host() if name is None else self._node.hosts.get(name)
        if found is None:
            known = ", ".join(self._node.hosts)
            asked = "no bucket is named" if name is None else f"bucket {name} is unknown"
            raise ConfigError(f"{asked}; there are: {known}")
        return found

    def connections(self) -> list[Connection]:
        """Those that are open, by number."""
        return sorted(self._node.connections, key=lambda one: one.session.number)

    def matches(self, connection: Connection, pattern: str) -> bool:
        """Whether a number, or a change-stream name with `*`, means this connection."""
        session = connection.session
        if pattern.isdecimal():
            return session.number == int(pattern)
        name = session.stream_name.decode("utf-8", "backslashreplace")
        return bool(name) and fnmatchcase(name, pattern)

    def count_mutations(
        self, connection: Connection, count: int, reached: Callable[[], None]
    ) -> None:
        """Call back when so many more mutations were sent to the connection."""
        self._transport(connection).count_mutations(count, reached)

    def attend(self) -> None:
        """Have requests shown to `answer`, all of them, as long as someone waits for one."""
        self._sees_requests = bool(self._armed) or self.steps.wants_requests
        self._node.serves_runs = not self._sees_requests

    def pull(self, step: Step, values: Values, done: Callable[[object], None]) -> None:
        """Pull a step's lever and tell what came of it."""
        method: Callable[..., Result] = getattr(self, step.lever.method)

        def work() -> object:
            try:
                return method(**values)
            except HeadraceError as error:
                return error
            except Exception as error:  # noqa: BLE001 - told to whoever asked, with its trace
                return error

        if step.lever.off_loop:
            self._node.off_loop(work, done)
        else:
            done(work())

    # -- steps -----------------------------------------------------------------------------------

    @lever
    def add(self, line: str, /) -> RunningStep:
        """Let a line such as ``at vbucket 3 seqno 500: fail over losing 20`` wait."""
        return self.steps.add(read_step(line))

    @lever
    def load(self, steps: tuple[Step, ...], /) -> None:
        """Let every step of a scenario wait."""
        for step in steps:
            self.steps.add(step)

    @lever
    def when(self, trigger: str, name: str, /, **values: object) -> RunningStep:
        """Let a lever wait for a trigger: ``when("after 2s", "cut", connection="sync:*")``."""
        row = LEVERS.get(name)
        if row is None:
            raise ConfigError(f"lever {name!r} is unknown; there are: {', '.join(LEVERS)}")
        parameters = row.by_name()
        unknown = [key for key in values if key not in parameters]
        if unknown:
            known = ", ".join(parameters) or "none"
            raise ConfigError(f"{name} takes no {unknown[0]}; its parameters: {known}")
        said = {key: parameters[key].value(value) for key, value in values.items()}
        what, known_then = read_when(trigger)
        text = " ".join([f"{trigger}: {name}", *(f"{key}={said[key]}" for key in said)])
        return self.steps.add(planned(row, said, what, known_then, text))

    # -- levers: history -------------------------------------------------------------------------

    @lever
    def failover(
        self,
        *,
        vbucket: int,
        seqno: int | None = None,
        lose: int | None = None,
        bucket: str | None = None,
    ) -> Result:
        """Lose everything above ``seqno`` (or the last ``lose``) and begin a new branch there."""
        host = self.host(bucket)
        found = self._vbucket(host, vbucket)
        high = found.high_seqno
        if (seqno is None) == (lose is None):
            raise ConfigError("failover needs seqno or lose, and not both")
        to = seqno if seqno is not None else high - (lose or 0)
        try:
            log = host.fail_over(vbucket, to)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return {
            "vbucket": vbucket,
            "high_seqno": high,
            "seqno": to,
            "branch": f"{log.newest.uuid:016x}",
        }

    @lever
    def rollback(
        self,
        *,
        vbucket: int,
        seqno: int,
        count: int = 1,
        connection: str | None = None,
        bucket: str | None = None,
    ) -> Result:
        """Roll the next stream requests that start above ``seqno`` back to it."""
        self._arm(
            Armed(
                left=count,
                opcode=Opcode.STREAM_REQ,
                host=self.host(bucket),
                vbucket=vbucket,
                connection=connection,
                seqno=seqno,
            )
        )
        return {"vbucket": vbucket, "seqno": seqno, "count": count}

    def purge(
        self,
        *,
        vbucket: int | None = None,
        seqno: int | None = None,
        bucket: str | None = None,
    ) -> Result:
        """Drop every tombstone (below ``seqno``); runs on the thread that asks."""
        host = self.host(bucket)
        if vbucket is not None:
            self._vbucket(host, vbucket)
        reports = host.bucket.compact(vbucket, purge_before_seqno=seqno, drop_deletes=True)
        chosen = host.bucket.vbuckets if vbucket is None else [self._vbucket(host, vbucket)]
        return {
            "compacted": len(reports),
            "purge_seqnos": {str(one.id): one.purge_seqno for one in chosen if one.purge_seqno},
        }

    @lever
    def set_state(
        self, *, vbucket: int, state: int | VBucketState, bucket: str | None = None
    ) -> Result:
        """Give a vbucket a state."""
        host = self.host(bucket)
        if vbucket >= host.bucket.settings.vbuckets:
            raise ConfigError(f"vbucket {vbucket}, allowed 0..{host.bucket.settings.vbuckets - 1}")
        wanted = VBucketState(state)
        host.set_state(vbucket, wanted)
        return {"vbucket": vbucket, "state": wanted.name.lower()}

    @lever
    def drop_cursor(
        self,
        *,
        vbucket: int | None = None,
        connection: str | None = None,
        bucket: str | None = None,
    ) -> Result:
        """Drop the cursors of streams: they go back to the disk."""
        host = self.host(bucket)
        chosen = self.connections() if connection is None else self._named(connection)
        dropped = [
            f"{one.session.number}:{stream.vbucket}"
            for one in chosen
            if one.session.selected is host
            for stream in streams_of(one)
            if vbucket in (None, stream.vbucket) and stream.drop_cursor()
        ]
        if not dropped:
            raise ConfigError("no stream of these has a cursor in memory that may be dropped")
        host.feed.tell_all()
        return {"dropped": dropped}

    # -- levers: connections ---------------------------------------------------------------------

    @lever
    def pause(self, *, connection: str, seconds: float | None = None) -> Result:
        """Neither read from the connections nor send on them."""
        chosen = self._named(connection)
        for one in chosen:
            self._transport(one).pause(seconds)
        return _numbers(chosen)

    @lever
    def slow(self, *, connection: str, rate: int) -> Result:
        """Send no more than ``rate`` bytes per second on each connection."""
        chosen = self._named(connection)
        for one in chosen:
            self._transport(one).slow(rate)
        return _numbers(chosen)

    @lever
    def resume(self, *, connection: str) -> Result:
        """Undo pause and slow."""
        chosen = self._named(connection)
        for one in chosen:
            self._transport(one).resume()
        return _numbers(chosen)

    @lever
    def cut(self, *, connection: str, size: int = 0, middle: bool = False) -> Result:
        """End the connections: now, after ``size`` more bytes, or in the middle of a frame."""
        chosen = self._named(connection)
        for one in chosen:
            self._transport(one).cut(size, middle=middle)
        return _numbers(chosen)

    @lever
    def refuse(
        self,
        *,
        opcode: int,
        status: int,
        count: int = 1,
        vbucket: int | None = None,
        connection: str | None = None,
        bucket: str | None = None,
    ) -> Result:
        """Answer the next ``count`` requests of an opcode with a status."""
        if status == Status.ROLLBACK:
            raise ConfigError("refuse with ROLLBACK has no seqno; use the lever rollback")
        if opcode in UNANSWERED:
            raise ConfigError(f"{Opcode(opcode).name} is never answered, so it cannot be refused")
        self._arm(
            Armed(
                left=count,
                opcode=opcode,
                host=None if bucket is None else self.host(bucket),
                vbucket=vbucket,
                connection=connection,
                status=Status(status),
            )
        )
        return {"opcode": f"{opcode:#04x}", "status": Status(status).name, "count": count}

    # -- levers: the disk ------------------------------------------------------------------------

    @lever
    def delay_commits(self, *, seconds: float, bucket: str | None = None) -> Result:
        """Let every commit of the bucket wait; 0 ends it."""
        if not 0 <= seconds <= DELAY_SECONDS_MAX:
            raise ConfigError(f"commits delayed by {seconds} s, allowed 0..{DELAY_SECONDS_MAX:g}")
        host = self.host(bucket)
        self._disks[host.name].delay_seconds = seconds
        return {"bucket": host.name, "seconds": seconds}

    @lever
    def stop_persistence(self, *, bucket: str | None = None) -> Result:
        """Keep changes in memory alone."""
        host = self._durable(bucket)
        host.bucket.stop_persistence()
        self._stopped_by_us.add(host.name)
        return {"bucket": host.name, "persistence": False}

    @lever
    def start_persistence(self, *, bucket: str | None = None) -> Result:
        """Write to disk again."""
        host = self._durable(bucket)
        host.bucket.start_persistence()
        self._stopped_by_us.discard(host.name)
        return {"bucket": host.name, "persistence": True}

    @lever
    def crash(
        self, *, commits: int = 1, durable: bool = False, bucket: str | None = None
    ) -> Result:
        """End the process at the ``commits``-th commit from now on; 0: at once."""
        host = self.host(bucket)
        disk = self._disks[host.name]
        if commits == 0:
            disk.die()
        disk.crash_when_durable = durable
        disk.crash_at = disk.commits + commits
        return {"bucket": host.name, "at_commit": disk.crash_at}

    @lever
    def clear(self) -> Result:
        """Lift every fault that lasts, and forget every step that waits."""
        for transport in tuple(self._transports.values()):
            transport.resume()
            transport.spare()
        for disk in self._disks.values():
            disk.delay_seconds, disk.crash_at = 0.0, 0
        for name in tuple(self._stopped_by_us):
            if name in self._node.hosts:
                self.start_persistence(bucket=name)
        armed = len(self._armed)
        self._armed.clear()
        cancelled = self.steps.cancel_all()
        self.attend()
        return {"steps": cancelled, "answers": armed}

    # -- the rest --------------------------------------------------------------------------------

    def commits_of(self, bucket: str) -> int:
        """Commits a bucket has made since the node started."""
        return self._disks[bucket].commits if bucket in self._disks else 0

    def transport_of(self, connection: Connection) -> FaultTransport | None:
        """The transport around a connection's own, if a fault ever needed one."""
        return self._transports.get(connection)

    def _vbucket(self, host: BucketHost, number: int) -> VBucket:
        found = host.bucket.find(number)
        if found is None:
            raise ConfigError(f"vbucket {number} of bucket {host.name} does not exist")
        return found

    def _durable(self, bucket: str | None) -> BucketHost:
        host = self.host(bucket)
        if not host.bucket.durable:
            raise ConfigError(f"bucket {host.name} lives in memory alone")
        return host

    def _named(self, pattern: str) -> list[Connection]:
        chosen = [one for one in self.connections() if self.matches(one, str(pattern))]
        if not chosen:
            raise ConfigError(f"no connection is {pattern!r}; there are {len(self.connections())}")
        return chosen

    def _transport(self, connection: Connection) -> FaultTransport:
        found = self._transports.get(connection)
        if found is None:
            found = connection.divert(lambda real: FaultTransport(real, connection))
            self._transports[connection] = found
        return found

    def _arm(self, armed: Armed) -> None:
        if len(self._armed) >= ARMED_MAX:
            raise ConfigError(f"{len(self._armed)} answers wait already, limit {ARMED_MAX}")
        self._armed.append(armed)
        self.attend()

    def _refused(self, connection: Connection, frame: Frame) -> bytes | None:
        session = connection.session
        for armed in self._armed:
            if armed.opcode != frame.opcode or armed.vbucket not in (None, frame.vbucket):
                continue
            if armed.host is not None and armed.host is not session.selected:
                continue
            if armed.connection is not None and not self.matches(connection, armed.connection):
                continue
            answer = _status_reply(session, frame, armed) or _rollback_reply(session, frame, armed)
            if answer:
                armed.left -= 1
                if armed.left <= 0:
                    self._armed.remove(armed)
                    self.attend()
                return answer
        return None


def _end_process() -> None:
    note("crash", logging.WARNING, reason="on demand")
    os._exit(CRASH_EXIT_STATUS)


def _numbers(connections: list[Connection]) -> Result:
    return {"connections": [one.session.number for one in connections]}


def _status_reply(session: Session, frame: Frame, armed: Armed) -> bytes:
    if armed.status is None:
        return b""
    refusal = Refusal(armed.status, "refused on demand")
    if armed.status is Status.NOT_MY_VBUCKET and session.selected is not None:
        refusal = session.not_my_vbucket()
    return pack_refusal(refusal, frame, json_datatype=session.has(Feature.JSON))


def _rollback_reply(session: Session, frame: Frame, armed: Armed) -> bytes:
    if armed.status is not None or session.producer is None:
        return b""
    try:
        request = decode(frame, session.dialect)
    except RemoteProtocolError:
        return b""  # the session says what is wrong with it
    if not isinstance(request, StreamRequest) or request.start_seqno <= armed.seqno:
        return b""
    reply = RollbackReply(opaque=frame.opaque, rollback_seqno=armed.seqno)
    return encode(reply, session.dialect)
