"""Synchronous writes on their way: who has met their prepares, and when that is enough.

A durable write is a prepare that is committed once the vbucket's chains have met it, and aborted
when its time is up before. A chain names the nodes that are to hold the vbucket, this one first;
None stands for a node that is missing. While copies move there are two chains, and both count.

Rules:

* A chain has met a prepare when more than half of its places have, missing ones counted, and this
  node among them. Replicas say how far they are (SEQNO_ACKNOWLEDGED under their consumer_name).
  This node has met a prepare of level majority at once, others when they are on its disk.
* Prepares are committed in the order of their seqnos: one that is not met holds back all behind it,
  as an acknowledgement says "everything up to here". So no prepare in flight lies at or below a
  completed one, unless that was aborted.
* Fewer nodes than it takes: DURABILITY_IMPOSSIBLE, before anything is prepared. Chains that come to
  have too few abort what clients wait for.
* Whoever stops being active answers its clients SYNC_WRITE_AMBIGUOUS and leaves the prepares as
  they are: they travel. Whoever becomes active goes on with the prepares it finds; no time limits
  them, because their commit may have been seen elsewhere. Until then readers and writers of their
  keys are told so.
* What a replica acknowledged is forgotten when it begins a new stream: it may have rolled back, and
  says again how far it is.
* A vbucket without a topology is this node's alone.

Everything runs on the event loop's thread; time is the caller's.

Imports: errors, store, wire.opcodes, node.refusal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from headrace.errors import StoreError
from headrace.node.refusal import Refusal
from headrace.wire.opcodes import DurabilityLevel, Status, VBucketState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.store import Bucket, Change, Pending, VBucket

CHAINS_MAX: Final = 2
CHAIN_SIZE_MAX: Final = 4
"""The active copy and three replicas."""
NODE_NAME_SIZE_MAX: Final = 250
FLIGHTS_MAX: Final = 100_000
"""Durable writes of a bucket that may be in flight at once."""
ACKNOWLEDGED_MAX: Final = 64
"""Consumers of one vbucket whose acknowledgements are remembered."""
_TOPOLOGIES: Final = "topologies"


@dataclass(frozen=True, slots=True)
class Topology:
    """The chains of a vbucket; ours is the first name of the first."""

    chains: tuple[tuple[str | None, ...], ...]

    @property
    def is_possible(self) -> bool:
        """Whether enough nodes are there."""
        return all(
            sum(name is not None for name in chain) >= majority(chain) for chain in self.chains
        )

    def is_met(self, acknowledged: Mapping[str, int], seqno: int) -> bool:
        """Whether every chain has met a prepare that this node has met."""
        own = self.chains[0][0]
        return all(
            sum(
                name is not None and (name == own or acknowledged.get(name, 0) >= seqno)
                for name in chain
            )
            >= majority(chain)
            for chain in self.chains
        )

    def to_json(self) -> list[list[str | None]]:
        """As SET_VBUCKET carries it."""
        return [list(chain) for chain in self.chains]


ALONE: Final = Topology((("headrace",),))


def majority(chain: tuple[str | None, ...]) -> int:
    """How many places of a chain are more than half of it."""
    return len(chain) // 2 + 1


def read_topology(value: object) -> Topology:
    """The topology in the JSON of SET_VBUCKET; refused with what is wrong about it."""
    if not isinstance(value, list) or not 1 <= len(value) <= CHAINS_MAX:
        raise Refusal(Status.EINVAL, f"a topology is a list of 1..{CHAINS_MAX} chains")
    return Topology(tuple(_read_chain(chain) for chain in value))


def _read_chain(chain: object) -> tuple[str | None, ...]:
    if not isinstance(chain, list) or not 1 <= len(chain) <= CHAIN_SIZE_MAX:
        raise Refusal(Status.EINVAL, f"a chain is a list of 1..{CHAIN_SIZE_MAX} nodes")
    names = [name for name in chain if name is not None]
    fine = all(isinstance(name, str) and 0 < len(name) <= NODE_NAME_SIZE_MAX for name in names)
    if not fine or chain[0] is None:
        raise Refusal(
            Status.EINVAL,
            f"a chain names its nodes with texts of 1..{NODE_NAME_SIZE_MAX} characters; null "
            "stands for a missing node, but not in the first place",
        )
    if len(set(names)) < len(names):
        raise Refusal(Status.EINVAL, f"a chain names a node twice: {', '.join(names)}")
    return tuple(chain)


@dataclass(slots=True)
class Flight:
    """A prepare in flight; ``done`` None: nobody waits for it.

    ``done`` is called once, with the commit, or with a sentence: the outcome is ambiguous.
    """

    key: bytes
    seqno: int
    done: Callable[[Change | str], None] | None
    is_here: bool
    """Whether this node has met it."""


@dataclass(slots=True)
class _Course:
    """What is in flight in one vbucket, by seqno."""

    topology: Topology = ALONE
    acknowledged: dict[str, int] = field(default_factory=dict)
    flights: dict[int, Flight] = field(default_factory=dict)


class SyncWrites:
    """The durable writes of one bucket."""

    def __init__(self, bucket: Bucket) -> None:
        """Take up what a stopped node left prepared; a node alone commits it at once."""
        self._bucket = bucket
        self._courses: dict[int, _Course] = {}
        self.call_soon: Callable[[Callable[[], None]], None] = lambda function: function()
        """Calls on the event loop's thread, from any thread."""
        self._flying = 0
        self._inherited = 0
        kept = cast("dict[str, list[object]]", bucket.get_property(_TOPOLOGIES) or {})
        for number, chains in kept.items():
            self._courses[int(number)] = _Course(read_topology(chains))
        for vbucket in bucket.vbuckets:
            self.follow(vbucket.id)

    # -- topologies ------------------------------------------------------------------------------

    def topology(self, vbucket: int) -> Topology:
        """The chains of a vbucket."""
        course = self._courses.get(vbucket)
        return ALONE if course is None else course.topology

    def set_topology(self, vbucket: int, topology: Topology) -> None:
        """Let these chains decide from now on, also about what is in flight."""
        course = self._courses.setdefault(vbucket, _Course())
        if course.topology != topology:
            course.topology = topology
            self._keep_topologies()
        if not topology.is_possible:
            for flight in [one for one in course.flights.values() if one.done is not None]:
                self._give_up(vbucket, flight, "the vbucket has too few nodes left")
        self._advance(vbucket)

    def _keep_topologies(self) -> None:
        kept = {
            str(number): course.topology.to_json()
            for number, course in self._courses.items()
            if course.topology != ALONE
        }
        self._bucket.set_property(_TOPOLOGIES, kept)

    # -- writes ----------------------------------------------------------------------------------

    def check(self, vbucket: int) -> None:
        """Refuse a durable write that could never be met, or one too many."""
        if not self.topology(vbucket).is_possible:
            raise Refusal(
                Status.DURABILITY_IMPOSSIBLE, "too few nodes of the vbucket's chain are there"
            )
        if self._flying >= FLIGHTS_MAX:
            raise Refusal(Status.ETMPFAIL, f"{FLIGHTS_MAX} durable writes are in flight")

    def begin(
        self,
        vbucket: VBucket,
        prepared: Change,
        *,
        key: bytes,
        level: int,
        done: Callable[[Change | str], None],
    ) -> None:
        """Follow a prepare; ``done`` may be called at once."""
        self._track(vbucket, Flight(key, prepared.seqno, done, is_here=False), level)
        self._advance(vbucket.id)

    def _track(self, vbucket: VBucket, flight: Flight, level: int) -> None:
        course = self._courses.setdefault(vbucket.id, _Course())
        course.flights[flight.seqno] = flight
        self._flying += 1
        self._inherited += flight.done is None
        flight.is_here = (
            level == DurabilityLevel.MAJORITY or vbucket.persisted_seqno >= flight.seqno
        )
        if not flight.is_here:
            vbucket.on_persisted(
                flight.seqno,
                lambda durable: self.call_soon(lambda: self._persisted(vbucket, flight, durable)),
            )

    def _persisted(self, vbucket: VBucket, flight: Flight, durable: bool) -> None:
        if durable:
            flight.is_here = True
            self._advance(vbucket.id)
        else:
            self.follow(vbucket.id)

    def acknowledged(self, vbucket: int, name: str, seqno: int) -> None:
        """The replica ``name`` has met every prepare up to ``seqno``."""
        course = self._courses.setdefault(vbucket, _Course())
        if name not in course.acknowledged and len(course.acknowledged) >= ACKNOWLEDGED_MAX:
            del course.acknowledged[next(iter(course.acknowledged))]
        course.acknowledged[name] = max(seqno, course.acknowledged.get(name, 0))
        self._advance(vbucket)

    def joined(self, vbucket: int, name: str) -> None:
        """The replica ``name`` begins a stream: it will say again how far it is."""
        course = self._courses.get(vbucket)
        if course is not None:
            course.acknowledged.pop(name, None)

    def _advance(self, vbucket: int) -> None:
        """Commit what was met, in order."""
        course, found = self._courses.get(vbucket), self._bucket.find(vbucket)
        while course is not None and found is not None and course.flights:
            flight = next(iter(course.flights.values()))
            if not flight.is_here or not course.topology.is_met(course.acknowledged, flight.seqno):
                return
            if not _is_there(found, flight):
                self._finish(course, flight, "the prepare was lost")
                continue
            try:
                change = found.commit_prepare(flight.key)
            except StoreError:
                return  # no room: `retry` comes back
            self._finish(course, flight, change)

    def retry(self) -> None:
        """Commit what was met and found no room before; call it now and then."""
        if self._flying:
            for vbucket in list(self._courses):
                self._advance(vbucket)

    def time_out(self, vbucket: int, seqno: int) -> None:
        """The time of a write is up: it is aborted, if it is still in flight."""
        course = self._courses.get(vbucket)
        flight = None if course is None else course.flights.get(seqno)
        if flight is not None and flight.done is not None:
            self._give_up(vbucket, flight, "the write was not met in time")
            self._advance(vbucket)

    def _give_up(self, vbucket: int, flight: Flight, why: str) -> None:
        course, found = self._courses[vbucket], self._bucket.find(vbucket)
        if found is not None and _is_there(found, flight):
            try:
                found.abort_prepare(flight.key)
            except StoreError:
                # No room for the abort: nobody waits any more, and the chain decides.
                done, flight.done = flight.done, None
                self._inherited += 1
                if done is not None:
                    done(why)
                return
        self._finish(course, flight, why)

    def _finish(self, course: _Course, flight: Flight, outcome: Change | str) -> None:
        del course.flights[flight.seqno]
        self._flying -= 1
        if flight.done is None:
            self._inherited -= 1
        else:
            flight.done(outcome)

    # -- states ----------------------------------------------------------------------------------

    def follow(self, vbucket: int) -> None:
        """Look at a vbucket whose state or history may have changed."""
        found = self._bucket.find(vbucket)
        if found is None or found.state != VBucketState.ACTIVE:
            self._let_go(vbucket)
            return
        course = self._courses.get(vbucket)
        for flight in [] if course is None else list(course.flights.values()):
            if course is not None and not _is_there(found, flight):
                self._finish(course, flight, "the prepare was lost")
        self._take_up(found, found.all_pending())
        self._advance(vbucket)

    def _take_up(self, vbucket: VBucket, pending: list[Pending]) -> None:
        course = self._courses.get(vbucket.id)
        known = {} if course is None else course.flights
        new = [one for one in pending if one.seqno not in known]
        for one in new:
            self._track(vbucket, Flight(one.key, one.seqno, None, is_here=False), one.level)
        if new:
            flights = self._courses[vbucket.id].flights
            self._courses[vbucket.id].flights = dict(sorted(flights.items()))

    def _let_go(self, vbucket: int) -> None:
        course = self._courses.pop(vbucket, None)
        if course is None:
            return
        if course.topology != ALONE:
            self._keep_topologies()
        for flight in list(course.flights.values()):
            self._finish(course, flight, "the vbucket is no longer active here")

    def is_recommitting(self, vbucket: int, key: bytes) -> bool:
        """Whether a key's prepare was found here, not made: it may be visible elsewhere."""
        if not self._inherited:
            return False
        found = self._bucket.find(vbucket)
        pending = None if found is None else found.pending(key)
        course = self._courses.get(vbucket)
        if pending is None or course is None:
            return False
        flight = course.flights.get(pending.seqno)
        return flight is not None and flight.done is None


def _is_there(vbucket: VBucket, flight: Flight) -> bool:
    pending = vbucket.pending(flight.key)
    return pending is not None and pending.seqno == flight.seqno
