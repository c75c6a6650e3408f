"""Courses: what every vbucket's stream is to do next, over all nodes; no socket, no clock.

A course is one vbucket's way from its position to its end. It waits for its node, is asked for,
streams, and is done; whatever interrupts it (a lost link, a moved vbucket, a stream end, a refusal)
sends it back to waiting with the position it had reached, for a time that grows with each failure
in a row.

    WAITING -> ASKED -> STREAMING -> DONE
       ^---------+----------'          STUCK: given up, with the reason

Rules
- One connection per node carries all vbuckets that are active there.
- Few courses are between their request and the seqno their vbucket had at the start: producers
  interleave backfills, and unfinished snapshots are what a consumer must hold. `BACKFILLS_MIN` may
  always be, so that one streams while the next is asked for; more, up to ``backfills_max``, while
  less than `BACKFILL_ITEMS` items are to come on all of them.
- Failures in a row are counted until an item moves the course; each one is told as a Trouble. After
  ``patience_seconds`` without movement the course is stuck; None is for ever.
- An end was chosen before its stream was opened, and may lie beyond a history that was cut short
  in between; the high seqno is asked for until one of the two has reached the other.
- A finished stream that ended inside a snapshot is asked for again up to that snapshot's end.
- A course that stands at its end or beyond is asked for all the same: only the producer knows
  whether what it holds is still part of the history. Holding nothing needs no question.

Imports: client.changes, client.topology, client.turns, history, protocol.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from headrace.client.changes import Rollback, Trouble
from headrace.client.turns import Turns
from headrace.errors import LocalProtocolError
from headrace.history import NO_SEQNO, SEQNO_MAX, Boundaries, Seqno, VBucketId
from headrace.protocol import events as e
from headrace.protocol.talk import Position, StreamPlan
from headrace.wire.opcodes import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.client.address import NodeAddress
    from headrace.client.topology import ClusterMap
    from headrace.protocol.consumer import ConsumerConnection

DELAY_SECONDS: Final = 0.05
DELAY_SECONDS_MAX: Final = 5.0
IDLE_SECONDS: Final = 0.5
"""Until a node is tried again that the map names and no course waits for yet."""
BACKFILLS_MAX: Final = 64
BACKFILLS_MIN: Final = 2
BACKFILL_ITEMS: Final = 32_768
EXTENSIONS_MAX: Final = 8
"""How often a course may ask for the rest of a snapshot that its stream ended inside."""
FATAL: Final = frozenset(
    {
        Status.EACCESS,
        Status.EINVAL,
        Status.UNKNOWN_COLLECTION,
        Status.UNKNOWN_SCOPE,
        Status.NOT_SUPPORTED,
    }
)
"""Refusals that asking again will not change."""


class Phase(Enum):
    """Where a course stands."""

    WAITING = "waiting"
    ASKED = "asked"
    STREAMING = "streaming"
    DONE = "done"
    STUCK = "stuck"


@dataclass(slots=True)
class Course:
    """One vbucket's way.

    ``handed`` is the last seqno given to the application: what a rollback below it withdraws.
    """

    vbucket: int
    position: Position
    end_seqno: Seqno
    target: Seqno
    handed: Seqno
    start_seqno: Seqno
    phase: Phase = Phase.WAITING
    node: NodeAddress | None = None
    attempts: int = 0
    retry_at: float = 0.0
    troubled_at: float | None = None
    moved_at: float = 0.0
    reason: str = ""
    extensions: int = 0
    end_is_doubtful: bool = False
    snapshot: e.SnapshotStarted | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.phase in (Phase.DONE, Phase.STUCK)

    @property
    def is_backfilling(self) -> bool:
        """Whether it has been asked for and has not reached what its vbucket had at the start."""
        return self.phase in (Phase.ASKED, Phase.STREAMING) and self.is_behind

    @property
    def left(self) -> int:
        """Items until what its vbucket had at the start, by the seqnos."""
        return max(0, self.target - self.position.token.seqno)

    @property
    def is_behind(self) -> bool:
        """Whether it has not reached what its vbucket had at the start."""
        return self.position.token.seqno < self.target


class Courses:
    """All courses of one session."""

    def __init__(
        self,
        courses: Iterable[Course],
        cluster_map: ClusterMap,
        *,
        plan: StreamPlan,
        random: Callable[[], float],
        patience_seconds: float | None = None,
        backfills_max: int = BACKFILLS_MAX,
    ) -> None:
        """``plan`` has what all streams share; ``random`` gives numbers in 0..1 for the jitter."""
        self.by_vbucket = {course.vbucket: course for course in courses}
        self.cluster_map = cluster_map
        self.troubles: list[Trouble] = []
        self.wants_map = False
        self.nodes_changed = True
        self._plan = plan
        self._random = random
        self._patience_seconds = patience_seconds
        self._backfills_max = backfills_max
        self._turns = Turns(
            self.by_vbucket,
            node_of=lambda vbucket: self.cluster_map.node_of(vbucket),
            needs_turn=lambda vbucket: self.by_vbucket[vbucket].is_behind,
        )
        self._backfilling: set[int] = set()
        self._over: set[int] = set()
        self._given_up: set[int] = set()
        # Node -> when it must be looked at again; everything that may change that clears it.
        self._settled_until: dict[NodeAddress, float] = {}
        for course in self.by_vbucket.values():
            if course.position.token.seqno == course.end_seqno == NO_SEQNO:
                self._enter(course, Phase.DONE)

    # -- what the owner asks --------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether every course is done or stuck."""
        return len(self._over) == len(self.by_vbucket)

    @property
    def stream_id(self) -> int | None:
        """The stream id all streams have, or None."""
        return self._plan.stream_id

    @property
    def is_stuck(self) -> bool:
        """Whether some course was given up."""
        return bool(self._given_up)

    @property
    def stuck(self) -> list[Course]:
        """The courses that were given up."""
        return [self.by_vbucket[vbucket] for vbucket in sorted(self._given_up)]

    def nodes(self) -> set[NodeAddress]:
        """The nodes to be connected to."""
        found = {
            self.cluster_map.node_of(course.vbucket)
            for course in self.by_vbucket.values()
            if not course.is_over
        }
        running = {course.node for course in self.by_vbucket.values() if not course.is_over}
        return {node for node in found | running if node is not None}

    def next_at(self, *, now: float) -> float | None:
        """When a course may be asked for that may not be yet; None: not by time."""
        return self._turns.next_at(now=now)

    # -- requests -------------------------------------------------------------------------------

    def ask(self, node: NodeAddress, connection: ConsumerConnection, *, now: float) -> None:
        """Request every stream that is due on a connected node."""
        if self._settled_until.get(node, 0.0) > now:
            return
        while (vbucket := self._turns.first(None, now=now)) is not None:
            course = self.by_vbucket[vbucket]
            self._fail(course, "no node has it active in the cluster map", now)
            self.wants_map = True
        coming = self._coming()
        while (vbucket := self._turns.first(node, now=now)) is not None:
            course = self.by_vbucket[vbucket]
            if course.is_behind and not self._has_room(coming):
                break
            self._ask_one(course, node, connection)
            coming += course.left
        later = self.next_at(now=now)
        self._settled_until[node] = math.inf if later is None else later

    def _coming(self) -> int:
        """Items that are to come on all backfills that run."""
        coming = 0
        for vbucket in self._backfilling:
            coming += self.by_vbucket[vbucket].left
        return coming

    def _has_room(self, coming: int) -> bool:
        """Whether one more backfill may be asked for."""
        running = len(self._backfilling)
        if running < min(BACKFILLS_MIN, self._backfills_max):
            return True
        return running < self._backfills_max and coming < BACKFILL_ITEMS

    def _ask_one(self, course: Course, node: NodeAddress, connection: ConsumerConnection) -> None:
        position = course.position
        course.end_seqno = max(course.end_seqno, position.token.seqno)
        connection.request_stream(
            self._plan.for_vbucket(
                VBucketId(course.vbucket), position.token, position.boundaries, course.end_seqno
            )
        )
        course.node = node
        self._enter(course, Phase.ASKED)

    # -- what happened --------------------------------------------------------------------------

    def take(
        self, event: e.Event, connection: ConsumerConnection, *, now: float
    ) -> Rollback | None:
        """Follow one event of a connection; a Rollback must reach the application."""
        if type(event) is e.SnapshotStarted:  # most of them are
            course = self.by_vbucket.get(event.vbucket)
            if course is not None:
                course.snapshot = event
            return None
        take = self._TAKE.get(type(event))
        if take is None:
            return None
        assert isinstance(event, e.StreamEvent)
        course = self.by_vbucket.get(event.vbucket)
        if course is None or course.is_over:
            return None
        return take(self, course, event, connection, now)

    def moved(self, vbucket: int, position: Position, *, now: float) -> None:
        """An item, or a run of them, moved a course."""
        course = self.by_vbucket[vbucket]
        if course.position.token.seqno < course.target <= position.token.seqno:
            self._settled_until.clear()  # there is room for another backfill
            self._backfilling.discard(vbucket)
        course.position = position
        course.moved_at = now
        if course.attempts:
            course.attempts, course.troubled_at, course.reason = 0, None, ""

    def lost(
        self, node: NodeAddress, connection: ConsumerConnection | None, reason: str, *, now: float
    ) -> float:
        """A link is gone, or did not come about: its courses wait with what they had reached.

        Returns when the node should be tried again.
        """
        hit = [
            course
            for course in self.by_vbucket.values()
            if not course.is_over and self._place(course) == node
        ]
        known = {} if connection is None else connection.positions()
        for course in hit:
            position = known.get((course.vbucket, self._plan.stream_id))
            if position is not None and course.node == node:
                course.position = position
            self._fail(course, reason, now, tell=False)
        trying = [course for course in hit if not course.is_over]
        if trying:
            self._tell(trying, reason, now)
        self.wants_map = True
        self.nodes_changed = True
        return min((course.retry_at for course in trying), default=now + IDLE_SECONDS)

    def _place(self, course: Course) -> NodeAddress | None:
        """The node that serves it, whatever the map says by now, or will be asked for it."""
        if course.phase in (Phase.ASKED, Phase.STREAMING):
            return course.node
        return self.cluster_map.node_of(course.vbucket)

    @property
    def wants_seqnos(self) -> bool:
        """Whether some end may have been chosen in a history that is no more."""
        return any(c.end_is_doubtful and not c.is_over for c in self.by_vbucket.values())

    def take_seqnos(self, seqnos: dict[int, int], connection: ConsumerConnection) -> None:
        """Bring ends that the new history does not reach down to where it ends.

        A producer would wait there for ever. The stream is closed once everything below has come.
        """
        for vbucket, high in seqnos.items():
            course = self.by_vbucket.get(vbucket)
            if course is None or not course.end_is_doubtful or course.phase is not Phase.STREAMING:
                continue
            if high >= course.end_seqno:
                course.end_is_doubtful = False
                continue
            token = course.position.token
            if token.is_boundary and token.seqno >= high:
                connection.close_stream(VBucketId(vbucket), self._plan.stream_id)
                course.end_seqno = token.seqno
                self._enter(course, Phase.DONE)

    def take_map(self, cluster_map: ClusterMap) -> None:
        """Take a map if it is newer; courses go where it says when they are next asked for."""
        if cluster_map.age < self.cluster_map.age or cluster_map.vbuckets < len(self.by_vbucket):
            return
        self.cluster_map = cluster_map
        self.wants_map = False
        self.nodes_changed = True
        self._turns.scatter()
        self._settled_until.clear()

    # -- the table of events --------------------------------------------------------------------

    def _opened(
        self, course: Course, event: e.Event, connection: ConsumerConnection, now: float
    ) -> Rollback | None:
        del connection
        assert isinstance(event, e.StreamOpened)
        # A failover above our position rolls nobody back and may still have cost us our end.
        course.end_is_doubtful = course.end_seqno != SEQNO_MAX
        token = event.token
        course.position = Position(token, course.position.boundaries.rolled_back(token.seqno))
        self._enter(course, Phase.STREAMING)
        if course.troubled_at is None:
            course.moved_at = now
        if course.handed <= token.seqno:
            return None
        # Items of an unfinished out-of-order snapshot were handed out; all of it comes again.
        handed, course.handed = course.handed, token.seqno
        return Rollback(
            vbucket=course.vbucket,
            from_seqno=handed,
            to_seqno=token.seqno,
            dead_branch=token.branch,
            token=token,
        )

    def _rolled_back(
        self, course: Course, event: e.Event, connection: ConsumerConnection, now: float
    ) -> Rollback | None:
        del connection, now
        assert isinstance(event, e.RolledBack)
        handed, course.handed = course.handed, min(course.handed, event.to_seqno)
        if event.to_seqno >= handed:
            return None
        return Rollback(
            vbucket=course.vbucket,
            from_seqno=handed,
            to_seqno=event.to_seqno,
            dead_branch=event.dead_branch,
            token=event.token,
        )

    def _ended(
        self, course: Course, event: e.Event, connection: ConsumerConnection, now: float
    ) -> None:
        assert isinstance(event, e.StreamEnded)
        course.position = connection.position(event.vbucket, event.stream_id)
        if event.advice is e.Advice.GONE:
            self._give_up(course, "nothing is left to stream: the collections are gone")
        elif event.advice is e.Advice.ASK_AGAIN:
            self._fail(course, f"the stream ended (reason {event.reason})", now)
        elif course.position.token.is_boundary:
            self._enter(course, Phase.DONE)
        elif course.extensions < EXTENSIONS_MAX:
            course.extensions += 1
            course.end_seqno = course.position.token.snapshot.end
            self._wait(course, now)
        else:
            self._give_up(course, f"the stream ends inside {course.position.token.snapshot}")

    def _not_here(
        self, course: Course, event: e.Event, connection: ConsumerConnection, now: float
    ) -> None:
        del event, connection
        self.wants_map = True
        self._fail(course, f"node {course.node} does not have it", now)

    def _refused(
        self, course: Course, event: e.Event, connection: ConsumerConnection, now: float
    ) -> None:
        del connection
        assert isinstance(event, e.StreamRefused)
        if event.status in FATAL:
            self._give_up(course, event.reason)
        elif event.status == Status.ERANGE and course.position.token.seqno > course.end_seqno:
            self._enter(course, Phase.DONE)
        else:
            self._fail(course, event.reason, now)

    def _stuck(
        self, course: Course, event: e.Event, connection: ConsumerConnection, now: float
    ) -> None:
        del connection, now
        assert isinstance(event, e.StreamStuck)
        self._give_up(course, event.reason)

    _TAKE: Final = {
        e.StreamOpened: _opened,
        e.RolledBack: _rolled_back,
        e.StreamEnded: _ended,
        e.NotMyVBucket: _not_here,
        e.StreamRefused: _refused,
        e.StreamStuck: _stuck,
    }

    # -- failure --------------------------------------------------------------------------------

    def _fail(self, course: Course, reason: str, now: float, *, tell: bool = True) -> None:
        course.attempts += 1
        course.reason = reason
        course.node = None
        if course.troubled_at is None:
            course.troubled_at = now
        patience = self._patience_seconds
        if patience is not None and now - course.troubled_at >= patience:
            self._give_up(course, f"{reason}; nothing moved for {patience:g} s")
            return
        delay = min(DELAY_SECONDS * 2 ** min(course.attempts - 1, 16), DELAY_SECONDS_MAX)
        self._wait(course, now + delay * (0.5 + 0.5 * self._random()))
        if tell:
            self._tell([course], reason, now)

    def _tell(self, courses: list[Course], reason: str, now: float) -> None:
        worst = max(courses, key=lambda course: course.attempts)
        self.troubles.append(
            Trouble(
                vbuckets=tuple(course.vbucket for course in courses),
                reason=reason,
                attempts=worst.attempts,
                retry_seconds=max(0.0, worst.retry_at - now),
            )
        )

    def _give_up(self, course: Course, reason: str) -> None:
        course.reason = reason
        self._enter(course, Phase.STUCK)
        self.troubles.append(
            Trouble(
                vbuckets=(course.vbucket,),
                reason=reason,
                attempts=course.attempts,
                retry_seconds=None,
            )
        )

    def _wait(self, course: Course, until: float) -> None:
        course.retry_at = until
        self._enter(course, Phase.WAITING)
        self._turns.wait(course.vbucket, until)

    def _enter(self, course: Course, phase: Phase) -> None:
        course.phase = phase
        if phase is not Phase.ASKED:
            self._settled_until.clear()
        if phase is not Phase.WAITING:
            self._turns.leave(course.vbucket)
        if course.is_backfilling:
            self._backfilling.add(course.vbucket)
        else:
            self._backfilling.discard(course.vbucket)
        if course.is_over:
            self._over.add(course.vbucket)
            if phase is Phase.STUCK:
                self._given_up.add(course.vbucket)


def course_of(
    vbucket: int,
    position: Position,
    *,
    end_seqno: int = SEQNO_MAX,
    high_seqno: int = NO_SEQNO,
    handed: int | None = None,
) -> Course:
    """The course of a vbucket from a position; ``handed`` if the application holds less."""
    if position.token.seqno and not position.boundaries.marks and position.token.is_boundary:
        # A token of ours at a boundary stands on one: keep it as the place to roll back to.
        token = position.token
        branch = token.branch if token.log is None else token.log.branch_at(token.seqno)
        position = Position(token, Boundaries().recorded(token.seqno, branch))
    target = min(high_seqno, end_seqno)
    if end_seqno < NO_SEQNO:
        raise LocalProtocolError(f"end seqno {end_seqno}, allowed from 0")
    return Course(
        vbucket=vbucket,
        position=position,
        end_seqno=Seqno(end_seqno),
        target=Seqno(target),
        handed=position.token.seqno if handed is None else Seqno(handed),
        start_seqno=position.token.seqno,
    )
