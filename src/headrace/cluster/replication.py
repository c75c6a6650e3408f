"""Replicator: every replica of a map fed by its active copy, for as long as it runs.

Streams that are wanted: from the active copy of each vbucket to every replica in its chain. What
other managers do is respected: a vbucket in the journal of moves is left alone, a new map is
followed.

A replica that the cluster file wants and the map does not have yet is made first (SET_VBUCKET
replica), fed until it has caught up, and only then becomes part of the chain: the active copy is
told its topology and the map is published. A chain never names a replica that was never whole. A
node that was failed over and is back takes the same road: its copies, dead by then, become replicas
again, and what only it has is rolled back.

Rules
- A link or a stream that goes is tried again, after `RETRY_SECONDS` and twice as long each time, up
  to `RETRY_SECONDS_MAX`; what is wrong is kept as a sentence.
- No stream dies in silence. It is added again, and a notice says why, when the producer ends it,
  when the consumer node gives it up because its copy was changed by others (flushed, rolled back,
  deleted), when a copy that lacks something stands still for too long
  (`headrace.cluster.stillness`), and when a node does not answer for `ANSWER_SECONDS_MAX`. A source
  that has nothing newer may be silent for ever.
- The map is published only while no other manager holds the journal, from a map just loaded.
- A copy that is active is never made a replica, unless it never held a change and is not the owner
  by a map that no other manager is about to change.
- A replica has caught up when it has the last seqno of the active copy, on the same branch: who was
  killed begins a new branch, and gives seqnos again that a replica may hold from before.
- Nobody is fed by a node that knows no map: it may have lost its disk, and replicas of a vbucket
  that is empty suddenly would be emptied, too.

Imports: errors, wire.opcodes, cluster.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.cluster.chains import Chain, from_json, trimmed
from headrace.cluster.journal import Journal, read_entries
from headrace.cluster.links import Link
from headrace.cluster.notices import Notices
from headrace.cluster.proxy import (
    StreamAdded,
    StreamClosed,
    StreamEnded,
    StreamLost,
    StreamRefused,
)
from headrace.cluster.stillness import Stillness
from headrace.errors import ClusterError, ConnectionLost, HeadraceError, StatusError
from headrace.wire.opcodes import Status, VBucketState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from headrace.cluster.copies import Copy
    from headrace.cluster.manager import Cluster
    from headrace.cluster.proxy import ProxyEvent

TURN_SECONDS: Final = 0.1
LOOK_SECONDS: Final = 1.0
"""How often maps, journal and copies are looked at."""
RETRY_SECONDS: Final = 0.5
RETRY_SECONDS_MAX: Final = 30.0
ANSWER_SECONDS_MAX: Final = 60.0
"""How long a node may take to add or close a stream: a replica may have to roll back first."""

Pair = tuple[str, str]
"""Producer and consumer node."""


@dataclass(slots=True)
class Feed:
    """One stream that is wanted: where it stands, and how far its replica is."""

    vbucket: int
    producer: str
    consumer: str
    state: str = "waiting"  # waiting, adding, streaming, closing
    attempts: int = 0
    retry_at: float = 0.0
    problem: str = ""
    source_seqno: int = 0
    held_seqno: int = 0
    is_whole: bool = False
    has_caught_up: bool = False
    """Since its stream was added: those that have not may have to wait for each other."""
    asked_at: float = 0.0
    still_seconds: float = 0.0
    """How long it has lacked something and not moved; 0 while that is not too long."""
    stillness: Stillness = field(default_factory=Stillness, repr=False)

    @property
    def pair(self) -> Pair:
        """The nodes it joins."""
        return self.producer, self.consumer

    @property
    def in_line(self) -> int:
        """What changes while it catches up; 0 when it has, or is not fed."""
        return 0 if self.has_caught_up or self.state != "streaming" else self.held_seqno + 1

    @property
    def lag(self) -> int:
        """Items the replica lacks, as of the last look."""
        return max(0, self.source_seqno - self.held_seqno)

    @property
    def is_caught_up(self) -> bool:
        """Whether the replica had everything at the last look."""
        return self.is_whole and self.lag == 0

    def ask(self, state: str, now: float) -> None:
        """A node was asked to add or to close the stream."""
        self.state, self.asked_at = state, now
        self.has_caught_up = False
        self.still_seconds = 0.0
        self.stillness.reset()

    def observe(self, copy: Copy, now: float, line: int) -> None:
        """Take what a look found; see `Stillness` for ``line``."""
        moved = copy.high_seqno > self.held_seqno
        self.held_seqno = copy.high_seqno
        self.still_seconds = 0.0
        if self.state != "streaming" or self.is_caught_up:
            self.has_caught_up |= self.state == "streaming"
            self.stillness.reset()
        elif self.stillness.look(now, (copy.high_seqno, copy.snapshot_end, copy.log), line):
            self.still_seconds = self.stillness.seconds(now)
        if self.state == "streaming" and (moved or self.is_caught_up):
            self.attempts = 0

    def fail(self, problem: str, now: float) -> None:
        """Wait before the next attempt, longer each time."""
        self.state, self.problem = "waiting", problem
        self.retry_at = now + min(RETRY_SECONDS * 2**self.attempts, RETRY_SECONDS_MAX)
        self.attempts += 1


@dataclass(slots=True)
class _Road:
    """The link of a pair of nodes, and when it may be opened again."""

    link: Link | None = None
    attempts: int = 0
    retry_at: float = 0.0
    problem: str = ""
    opening: asyncio.Task[None] | None = field(default=None, repr=False)

    def close(self) -> None:
        """End it, also while it is being opened."""
        if self.opening is not None:
            self.opening.cancel()
        if self.link is not None:
            self.link.close()


async def adopt(cluster: Cluster, journal: Path) -> bool:
    """Bring nodes up to date, unless another manager is at work: then it did, or a later look does.

    Two managers that both make the next map would make two of the same age. Vbuckets in the journal
    are left to their moves.
    """
    try:
        lock = Journal(journal, patience_seconds=0.0)
    except ClusterError:
        return False
    with lock:
        await cluster.load(tolerant=True)
        moving = {one.move.vbucket for one in lock.entries if one.bucket == cluster.bucket}
        await cluster.adopt(moving)
    return True


class Replicator:
    """Feeds the replicas of one bucket."""

    def __init__(
        self,
        cluster: Cluster,
        journal: Path,
        *,
        wanted: Callable[[], Mapping[int, Chain]] | None = None,
        publishes: bool = True,
        on_look: Callable[[Replicator], None] | None = None,
    ) -> None:
        """Stand ready.

        ``wanted`` is asked, after each look at the map, for the chains to grow into beside those of
        the map: a node that was failed over and is back may be needed again.
        """
        self.cluster = cluster
        self.feeds: dict[tuple[str, str, int], Feed] = {}
        self._journal = journal
        self._ask_wanted = wanted or dict
        self._wanted = dict(self._ask_wanted())
        self._publishes = publishes
        self._on_look = on_look or (lambda _self: None)
        self._roads: dict[Pair, _Road] = {}
        self._clock = asyncio.get_running_loop().time
        self._left_alone: set[int] = set()
        self._not_adopted = ""
        self._notices = Notices()

    def take_notices(self) -> list[str]:
        """What was begun again since the last call, and why."""
        return self._notices.take()

    @property
    def lag(self) -> int:
        """Items all replicas lack."""
        return sum(feed.lag for feed in self.feeds.values())

    @property
    def problems(self) -> list[str]:
        """What is wrong just now, each once."""
        said = [self._not_adopted] if self._not_adopted else []
        said += [road.problem for road in self._roads.values() if road.problem]
        said += [f"vb {one.vbucket}: {one.problem}" for one in self.feeds.values() if one.problem]
        return list(dict.fromkeys(said))

    @property
    def is_done(self) -> bool:
        """Whether every replica had caught up at the last look and is in its chain."""
        return all(feed.is_caught_up for feed in self.feeds.values()) and not self._growing()

    async def run(self, *, once: bool) -> None:
        """Feed until cancelled, or, ``once``, until everything has caught up."""
        look_at = 0.0
        try:
            while True:
                now = self._clock()
                if now >= look_at:
                    await self._look()
                    look_at = now + LOOK_SECONDS
                    self._on_look(self)
                    if once and self.is_done:
                        return
                self._tend_links(now)
                await self._tend_feeds(now)
                await asyncio.sleep(TURN_SECONDS)
        finally:
            for road in self._roads.values():
                road.close()

    # -- what is wanted --------------------------------------------------------------------------

    async def _look(self) -> None:
        await self.cluster.load(tolerant=True)
        if self._publishes:
            await self._bring_back()
        chains = self.cluster.chains
        self._renew_wanted()
        self._left_alone = {
            entry.move.vbucket
            for entry in await asyncio.to_thread(read_entries, self._journal)
            if entry.bucket == self.cluster.bucket
        }
        wanted: set[tuple[str, str | None, int]] = set()
        for vbucket, row in enumerate(chains.rows):
            active = row[0]
            if active is None or active in self.cluster.newcomers or vbucket in self._left_alone:
                continue
            grown = self._wanted.get(vbucket, ())
            names = [*row[1:], *(grown[1:] if grown and grown[0] == active else ())]
            wanted.update((active, name, vbucket) for name in names if name not in (None, active))
        self._settle({(one, str(other), vbucket) for one, other, vbucket in wanted})
        await self._measure()
        if self._publishes:
            await self._grow_chains()

    def _renew_wanted(self) -> None:
        """What is being made goes on; for the rest it is asked anew."""
        rows = self.cluster.chains.rows
        asked = self._ask_wanted()
        kept = {
            vbucket: chain
            for vbucket, chain in self._wanted.items()
            if vbucket in asked and rows[vbucket] == chain[: len(rows[vbucket])]
        }
        self._wanted = {**asked, **kept}

    def _settle(self, wanted: set[tuple[str, str, int]]) -> None:
        for place in wanted - self.feeds.keys():
            producer, consumer, vbucket = place
            self.feeds[place] = Feed(vbucket, producer, consumer)
        for place in self.feeds.keys() - wanted:
            feed = self.feeds.pop(place)
            link = self._link(feed.pair)
            if link is not None and feed.state in ("adding", "streaming"):
                link.close_stream(feed.vbucket)
        pairs = {feed.pair for feed in self.feeds.values()}
        for pair in [pair for pair in self._roads if pair not in pairs]:
            self._roads.pop(pair).close()

    async def _measure(self) -> None:
        copies: dict[str, list[Copy]] = {}
        for name in {name for feed in self.feeds.values() for name in feed.pair}:
            try:
                copies[name] = await self.cluster.nodes[name].copies(self.cluster.chains.vbuckets)
            except ConnectionLost:
                continue
        lines = Counter[Pair]()
        for feed in self.feeds.values():
            lines[feed.pair] += feed.in_line
        now = self._clock()
        for feed in self.feeds.values():
            if feed.producer in copies:
                feed.source_seqno = copies[feed.producer][feed.vbucket].high_seqno
            if feed.consumer in copies:
                copy = copies[feed.consumer][feed.vbucket]
                feed.is_whole = copy.is_complete and copy.state == VBucketState.REPLICA
                if feed.producer not in copies:
                    feed.held_seqno = copy.high_seqno
                    feed.stillness.reset()
                    continue
                active = copies[feed.producer][feed.vbucket]
                feed.is_whole = feed.is_whole and _is_same_branch(active, copy)
                feed.observe(copy, now, lines[feed.pair] - feed.in_line)
            else:
                feed.stillness.reset()
        seen = {feed.vbucket: feed.source_seqno for feed in self.feeds.values()}
        if self._publishes:
            await asyncio.to_thread(self.cluster.remember, seen)

    # -- links and streams -----------------------------------------------------------------------

    def _link(self, pair: Pair) -> Link | None:
        road = self._roads.get(pair)
        link = road.link if road is not None else None
        return link if link is not None and link.lost is None else None

    def _tend_links(self, now: float) -> None:
        for pair in {feed.pair for feed in self.feeds.values()}:
            road = self._roads.setdefault(pair, _Road())
            busy = road.opening is not None and not road.opening.done()
            if self._link(pair) is None and not busy and now >= road.retry_at:
                road.opening = asyncio.get_running_loop().create_task(self._open(pair, road))

    async def _open(self, pair: Pair, road: _Road) -> None:
        nodes = self.cluster.nodes
        try:
            link = await Link.open(nodes[pair[0]].node, nodes[pair[1]].node, self.cluster.bucket)
        except HeadraceError as error:
            self._road_lost(pair, road, str(error))
            return
        try:
            knows_map = not self._publishes or await self._knows_map(pair[0])
        except BaseException:
            link.close()
            raise
        if not knows_map:
            link.close()
            self._road_lost(pair, road, f"node {pair[0]} has started without its map")
            return
        road.link, road.problem = link, ""
        link.start(
            lambda event: self._on_event(pair, event),
            lambda error: self._road_lost(pair, road, str(error)),
        )

    async def _knows_map(self, name: str) -> bool:
        """Whether a node was given a map: one that lost its disk would empty its replicas."""
        try:
            return from_json(await self.cluster.nodes[name].cluster_map()) is not None
        except HeadraceError:
            return False

    def _road_lost(self, pair: Pair, road: _Road, problem: str) -> None:
        now = self._clock()
        road.problem = problem
        road.retry_at = now + min(RETRY_SECONDS * 2**road.attempts, RETRY_SECONDS_MAX)
        road.attempts += 1
        for feed in self.feeds.values():
            if feed.pair == pair:
                feed.state = "waiting"

    async def _tend_feeds(self, now: float) -> None:
        for feed in list(self.feeds.values()):
            link = self._link(feed.pair)
            if link is not None:
                self._hurry(feed, link, now)
            if feed.state != "waiting" or link is None or now < feed.retry_at:
                continue
            try:
                await self._prepare(feed)
            except (ConnectionLost, StatusError, ClusterError) as error:
                feed.fail(str(error), now)
                continue
            if link.lost is None:
                feed.ask("adding", self._clock())
                link.add_stream(feed.vbucket)

    def _hurry(self, feed: Feed, link: Link, now: float) -> None:
        """Close a stream that brings nothing, to add it again; give up a link that is silent."""
        late = feed.state in ("adding", "closing") and now - feed.asked_at >= ANSWER_SECONDS_MAX
        if feed.state == "closing" and late:
            text = f"{feed.consumer} closed no stream for {ANSWER_SECONDS_MAX:.0f} s"
            link.close()
            self._road_lost(feed.pair, self._roads[feed.pair], text)
        elif feed.state == "adding" and late:
            self._begin_again(feed, link, f"no stream was added for {ANSWER_SECONDS_MAX:.0f} s")
        elif feed.still_seconds:
            text = (
                f"the replica stood at seqno {feed.held_seqno} for {feed.still_seconds:.0f} s, "
                f"the active copy has {feed.source_seqno}"
            )
            self._begin_again(feed, link, text)

    def _begin_again(self, feed: Feed, link: Link, text: str) -> None:
        self._note(feed, text)
        feed.problem = text
        feed.ask("closing", self._clock())
        link.close_stream(feed.vbucket)

    def _note(self, feed: Feed, text: str) -> None:
        self._notices.add(*feed.pair, feed.vbucket, f"{text}; its stream is opened again")

    async def _prepare(self, feed: Feed) -> None:
        """Have a replica to feed."""
        node = self.cluster.nodes[feed.consumer]
        copy = await node.copy(feed.vbucket)
        if copy.state == VBucketState.ACTIVE and copy.high_seqno:
            raise ClusterError(
                f"{feed.consumer} has vbucket {feed.vbucket} active, with documents; the map says "
                "that it is a replica"
            )
        if copy.state == VBucketState.ACTIVE:
            await self._give_up_empty(feed)
        if copy.state != VBucketState.REPLICA:
            await node.set_state(feed.vbucket, VBucketState.REPLICA)

    async def _give_up_empty(self, feed: Feed) -> None:
        """Have a node forget an active copy it only started with.

        Failover promotes copies before it tells the map, and an empty one may be among them.
        """
        node = self.cluster.nodes[feed.consumer]
        if not self._publishes:
            await node.drop(feed.vbucket, empty=True)
            return
        with Journal(self._journal, patience_seconds=0.0):
            await self.cluster.load(tolerant=True)
            if self.cluster.chains.rows[feed.vbucket][0] == feed.consumer:
                raise ClusterError(f"{feed.consumer} owns vbucket {feed.vbucket} now")
            await node.drop(feed.vbucket, empty=True)

    def _on_event(self, pair: Pair, event: ProxyEvent) -> None:
        feed = self.feeds.get((*pair, event.vbucket))
        if feed is None:
            return
        now = self._clock()
        if feed.state == "closing":
            # Whatever else it tells was on its way before.
            if isinstance(event, StreamClosed):
                feed.fail(feed.problem, now)
        elif isinstance(event, StreamAdded):
            self._roads[pair].attempts = 0
            if feed.state == "adding":  # else its end overtook the answer
                feed.state, feed.problem = "streaming", ""
        elif isinstance(event, StreamRefused):
            if event.status == Status.KEY_EEXISTS:
                feed.fail("another manager feeds this replica", now)
            else:
                feed.fail(event.text, now)
        elif isinstance(event, StreamLost) and feed.state == "streaming":
            self._stream_over(feed, "the copy was changed by others", now)
        elif isinstance(event, StreamEnded):
            self._stream_over(feed, f"the stream ended with reason {event.reason}", now)

    def _stream_over(self, feed: Feed, text: str, now: float) -> None:
        self._note(feed, text)
        feed.fail(text, now)

    # -- chains that grow ------------------------------------------------------------------------

    def _growing(self) -> dict[int, Chain]:
        """Chains that are to have a replica the map does not have."""
        chains = self.cluster.chains
        grown = {}
        for vbucket, chain in self._wanted.items():
            row = chains.rows[vbucket]
            new = [name for name in chain[1:] if name is not None and name not in row]
            if new and row[0] == chain[0] and self._publishes:
                grown[vbucket] = trimmed((*[name for name in row if name is not None], *new))
        return grown

    async def _bring_back(self) -> None:
        """A node that was away is told the newest map; one that cannot be is told of."""
        self._not_adopted = ""
        if self.cluster.stale or self.cluster.newcomers:
            try:
                await adopt(self.cluster, self._journal)
            except (ConnectionLost, StatusError, ClusterError) as error:
                self._not_adopted = str(error)

    async def _grow_chains(self) -> None:
        ready = {
            vbucket: row for vbucket, row in self._growing().items() if self._is_whole(row, vbucket)
        }
        if not ready:
            return
        try:
            lock = Journal(self._journal, patience_seconds=0.0)
        except ClusterError:
            return  # another manager is at work; there is a next look
        with lock:
            await self.cluster.load(tolerant=True)
            still = self._growing()
            changed = {vbucket: row for vbucket, row in ready.items() if still.get(vbucket) == row}
            for vbucket, row in changed.items():
                assert row[0] is not None
                await self.cluster.nodes[row[0]].set_state(vbucket, VBucketState.ACTIVE, row)
            if changed:
                await self.cluster.publish(changed)

    def _is_whole(self, row: Chain, vbucket: int) -> bool:
        feeds = [self.feeds.get((str(row[0]), str(name), vbucket)) for name in row[1:]]
        return all(feed is not None and feed.is_whole for feed in feeds)


def _is_same_branch(active: Copy, replica: Copy) -> bool:
    if active.log is None or replica.log is None:
        return False
    return active.log.newest.uuid == replica.log.newest.uuid
