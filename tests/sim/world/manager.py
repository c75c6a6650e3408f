"""The manager of the simulation: the real movers and proxies, with a journal that survives it.

Orders and questions to nodes are answered after a delay; a node may carry out an order whose answer
is lost. A manager that dies forgets everything but its journal and the map it kept beside it.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from headrace.cluster import steps
from headrace.cluster.chains import Chains, Place, to_json
from headrace.cluster.copies import Copy, read_copy
from headrace.cluster.mover import TELLING, Event, Mover
from headrace.cluster.operations import _promotion
from headrace.cluster.planning import Move, active_move
from headrace.cluster.proxy import StreamLost
from headrace.cluster.steps import Action, Ending, LinkLost, MoveEvent, TimedOut
from headrace.wire import admin
from headrace.wire.message import ErrorReply
from headrace.wire.opcodes import Status, VBucketState
from tests.sim.world.core import Situation, Timer, Violation
from tests.sim.world.disk import Crashed
from tests.sim.world.links import SimLink
from tests.sim.world.node import is_inside
from tests.sim.world.orders import deletion, set_vbucket
from tests.sim.world.replication import Replication

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.cluster.chains import Chain
    from headrace.cluster.proxy import ProxyEvent
    from headrace.wire.message import Message, Request
    from tests.sim.world.node import SimNode
    from tests.sim.world.scenario import Scenario

GROUPS = ("vbucket-details", "vbucket-seqno", "failovers")
STEP_SECONDS_MAX = 20.0
LOST_ANSWERS = 0.05
"""Share of orders that are carried out although their answer never comes."""


class Run:
    """One move under way: its mover, what it wants done, what happened to it."""

    def __init__(self, mover: Mover) -> None:
        self.mover = mover
        self.actions: deque[Action] = deque(mover.start())
        self.queue: deque[Event] = deque()
        self.is_busy = False
        self.timer: Timer | None = None


class SimManager:
    """Moves, replication and failover."""

    def __init__(self, scenario: Scenario, chains: Chains) -> None:
        self.scenario, self.world = scenario, scenario.world
        self.chains = chains
        """The map, kept on the manager's disk."""
        self.journal: dict[int, Move] = {}
        self.is_alive = True
        self.life = 1
        self.runs: dict[int, Run] = {}
        self.links: dict[tuple[str, str], SimLink] = {}
        self.replication = Replication(self)
        self.endings: list[tuple[Move, Ending, str]] = []
        self.failing: set[str] = set()
        """Nodes declared dead whose replicas are not all promoted yet."""

    # -- life ------------------------------------------------------------------------------------

    def die(self) -> None:
        if not self.is_alive:
            return
        self.world.say("manager", "dies")
        self.is_alive = False
        self.life += 1
        for link in (*self.links.values(), *self.replication.links.values()):
            link.on_lost = lambda _reason: None
            link.on_open = lambda: None
            link.close()
        self.links.clear()
        self.replication.links.clear()
        for run in self.runs.values():
            if run.timer is not None:
                run.timer.cancel()
        self.runs.clear()

    def start(self) -> None:
        """Come back and resume what the journal names."""
        self.is_alive = True
        self.world.say("manager", f"starts; journal: {[str(one) for one in self.journal.values()]}")
        self.resume()

    def revive(self) -> None:
        """Come back, unless it is there."""
        if not self.is_alive:
            self.start()

    def resume(self) -> None:
        for vbucket, move in sorted(self.journal.items()):
            if vbucket not in self.runs:
                self._run(move)

    def _later(self, delay: float, function: Callable[[], None]) -> Timer:
        life = self.life
        return self.world.at(delay, lambda: function() if life == self.life else None)

    # -- moves -----------------------------------------------------------------------------------

    def move(self, vbucket: int, target: str) -> None:
        """Begin to move a vbucket's ownership."""
        chain = self.chains.rows[vbucket]
        if not self.is_alive or vbucket in self.journal or chain[0] in (None, target):
            return
        if self.failing:
            return  # a failover that has begun is finished first
        self.replication.stop(vbucket)
        self._run(active_move(vbucket, chain, target))

    def _run(self, move: Move) -> None:
        self.world.say("manager", f"moves {move}")
        run = self.runs[move.vbucket] = Run(Mover(move))
        self._go_on(run)

    def _go_on(self, run: Run) -> None:
        """Give the mover what happened, or do what it wants."""
        mover = run.mover
        while not run.is_busy and not mover.is_finished:
            if run.queue:
                wanted = self._receive(run, run.queue.popleft())
                if wanted:
                    run.actions = deque(wanted)
            elif run.actions:
                action = run.actions.popleft()
                run.is_busy = True
                self._later(self.world.delay(), partial(self._perform, run, action))
            else:
                break
        if mover.is_finished:
            self._finished(run)

    def _receive(self, run: Run, event: Event) -> list[Action]:
        before = run.mover.step
        wanted = run.mover.receive(event)
        if run.mover.step is not before:
            move = run.mover.move
            words = f"{before.value} -> {run.mover.step.value} by {type(event).__name__}"
            self.world.say("manager", f"vb {move.vbucket}: {words} {run.mover.text}")
            self._watch(run)
        return wanted

    def _watch(self, run: Run) -> None:
        if run.timer is not None:
            run.timer.cancel()
        run.timer = self._later(STEP_SECONDS_MAX, lambda: self._time_out(run))

    def _time_out(self, run: Run) -> None:
        if not run.mover.is_finished and not run.is_busy and not run.actions:
            self.tell(run, TimedOut())

    def tell(self, run: Run, event: Event) -> None:
        run.queue.append(event)
        self._go_on(run)

    def _finished(self, run: Run) -> None:
        move, ending = run.mover.move, run.mover.ending
        if self.runs.get(move.vbucket) is run:
            del self.runs[move.vbucket]
        if run.timer is not None:
            run.timer.cancel()
        assert ending is not None
        self.world.count(Situation.MOVE)
        self.endings.append((move, ending, run.mover.text))
        self.world.say("manager", f"{move} ended: {ending.value} {run.mover.text}")
        if ending is Ending.CONFLICT:
            raise Violation(f"the move {move} found a conflict: {run.mover.text}")

    def _perform(self, run: Run, action: Action) -> None:
        run.is_busy = False
        result = self.PERFORMED[type(action)](self, run, action)
        if isinstance(result, MoveEvent):
            wanted = self._receive(run, result)
            if wanted:
                run.actions = deque(wanted)
        if not run.is_busy:
            self._go_on(run)

    def _write(self, run: Run, action: Action) -> MoveEvent:
        del action
        self.journal[run.mover.move.vbucket] = run.mover.move
        return steps.JournalWritten()

    def _forget(self, run: Run, action: Action) -> MoveEvent:
        del action
        self.journal.pop(run.mover.move.vbucket, None)
        return steps.JournalWritten()

    def _open_links(self, run: Run, action: Action) -> MoveEvent | None:
        assert isinstance(action, steps.OpenLinks)
        move = run.mover.move
        pair = (move.producer, move.target)
        link = self.links.get(pair)
        if link is not None and link.is_open and not link.is_lost and not action.fresh:
            return steps.LinksOpened()
        if link is not None and not link.is_open and not link.is_lost:
            # Another move is opening it.
            run.is_busy = True
            self._later(0.05, lambda: self._perform(run, action))
            return None
        if link is not None:
            link.on_lost = lambda _reason: None
            link.close()
            self._tell_lost(pair, "the link was opened anew", but=run)
        producer, target = (self.scenario.nodes[name] for name in pair)
        if not (self.reaches(producer) and self.reaches(target)):
            return LinkLost(text=f"{producer.name} or {target.name} is down")
        link = self.links[pair] = SimLink(self.scenario.network, producer, target, ":move")
        run.is_busy = True

        def opened() -> None:
            run.is_busy = False
            link.on_lost = lambda reason: self._tell_lost(pair, reason)
            self._give(run, steps.LinksOpened())

        def failed(reason: str) -> None:
            run.is_busy = False
            self._give(run, LinkLost(text=reason))

        link.on_open, link.on_lost, link.on_event = opened, failed, self._on_event
        return None

    def _give(self, run: Run, event: MoveEvent) -> None:
        wanted = self._receive(run, event)
        if wanted:
            run.actions = deque(wanted)
        self._go_on(run)

    def _tell_lost(self, pair: tuple[str, str], text: str, but: Run | None = None) -> None:
        for run in tuple(self.runs.values()):
            move = run.mover.move
            if (move.producer, move.target) == pair and run is not but:
                self.tell(run, LinkLost(text=text))

    def _on_event(self, event: ProxyEvent) -> None:
        run = self.runs.get(event.vbucket)
        if isinstance(event, StreamLost):
            self.world.count(Situation.COPY_REPLACED)
        if run is not None and not isinstance(event, TELLING):
            self.tell(run, event)

    def _ask_copies(self, run: Run, action: Action) -> MoveEvent:
        del action
        move = run.mover.move
        return steps.CopiesSeen(
            producer=self.copy(move.producer, move.vbucket),
            target=self.copy(move.target, move.vbucket),
        )

    def _set_state(self, run: Run, action: Action) -> MoveEvent:
        assert isinstance(action, steps.SetState)
        vbucket = run.mover.move.vbucket
        topology = action.topology if action.state == VBucketState.ACTIVE else ()
        text = f"sets vb {vbucket} of {action.node} {action.state.name.lower()}"
        return self.order(
            action.node, [set_vbucket(vbucket, action.state, topology)], steps.StateSet(), text
        )

    def _drop(self, run: Run, action: Action) -> MoveEvent:
        assert isinstance(action, steps.DropCopy)
        vbucket = run.mover.move.vbucket
        copy = self.copy(action.node, vbucket)
        if copy is not None and copy.state is None:
            return steps.CopyDropped()
        if copy is not None and copy.state is VBucketState.ACTIVE:
            return steps.Refused(node=action.node, text="it is active; it is not deleted")
        return self.order(
            action.node,
            deletion(vbucket),
            steps.CopyDropped(),
            f"drops vb {vbucket} of {action.node}",
        )

    def _add_stream(self, run: Run, action: Action) -> MoveEvent | None:
        assert isinstance(action, steps.AddStream)
        link = self._link_of(run)
        if link is None:
            return LinkLost(text="the link went")
        link.proxy.add_stream(run.mover.move.vbucket, action.flags)
        link.flush()
        return None

    def _close_stream(self, run: Run, action: Action) -> MoveEvent | None:
        del action
        link = self._link_of(run)
        if link is None:
            return LinkLost(text="the link went")
        link.proxy.close_stream(run.mover.move.vbucket)
        link.flush()
        return None

    def _link_of(self, run: Run) -> SimLink | None:
        link = self.links.get((run.mover.move.producer, run.mover.move.target))
        return link if link is not None and link.is_open and not link.is_lost else None

    def _publish(self, run: Run, action: Action) -> MoveEvent:
        assert isinstance(action, steps.PublishMap)
        vbucket = run.mover.move.vbucket
        if self.chains.rows[vbucket] != action.chain:
            self.chains = self.chains.with_rows({vbucket: action.chain})
        return steps.MapPublished(missing=self.publish())

    def _wait(self, run: Run, action: Action) -> None:
        assert isinstance(action, steps.Wait)
        run.is_busy = True

        def over() -> None:
            run.is_busy = False
            self._give(run, steps.TimePassed())

        self._later(action.seconds, over)

    def _nothing(self, run: Run, action: Action) -> None:
        del run, action

    PERFORMED: ClassVar[dict[type[Action], Callable[..., MoveEvent | None]]] = {
        steps.WriteJournal: _write,
        steps.ForgetMove: _forget,
        steps.OpenLinks: _open_links,
        steps.AskCopies: _ask_copies,
        steps.SetState: _set_state,
        steps.DropCopy: _drop,
        steps.AddStream: _add_stream,
        steps.CloseStream: _close_stream,
        steps.PublishMap: _publish,
        steps.Wait: _wait,
        steps.Finish: _nothing,
    }

    # -- nodes -----------------------------------------------------------------------------------

    def reaches(self, node: SimNode) -> bool:
        return node.is_up and not node.is_failed_over

    def ask(self, name: str, request: Request) -> list[Message] | None:
        """A node's answer; None when it does not answer."""
        node = self.scenario.nodes[name]
        if not self.reaches(node):
            return None
        try:
            return node.ask(request)
        except Crashed:
            node.crash_in_commit()
            return None

    def copy(self, name: str, vbucket: int) -> Copy | None:
        """What a node says of its copy."""
        stats: dict[str, str] = {}
        for group in GROUPS:
            replies = self.ask(name, admin.Stat(key=f"{group} {vbucket}".encode()))
            if replies is None:
                return None
            for reply in replies:
                if isinstance(reply, ErrorReply):
                    if reply.status != Status.NOT_MY_VBUCKET:
                        raise Violation(f"{name} answers {group}: {reply}")
                    return Copy(node=name, vbucket=vbucket)
                assert isinstance(reply, admin.StatReply)
                stats[reply.key.decode()] = reply.value.decode()
        return read_copy(name, vbucket, stats)

    def order(self, name: str, requests: list[Request], done: MoveEvent, text: str) -> MoveEvent:
        """Have a node do something; its answer may be lost."""
        self.world.say("manager", text)
        for request in requests:
            replies = self.ask(name, request)
            if replies is None:
                return steps.Refused(node=name, text=f"{name} is down", reachable=False)
            for reply in replies:
                if isinstance(reply, ErrorReply):
                    return steps.Refused(node=name, text=f"{name} answers {reply.status:#x}")
        if self.world.chance(LOST_ANSWERS) and self.scenario.is_harming:
            return steps.Refused(node=name, text="the answer was lost", reachable=False)
        return done

    def publish(self) -> tuple[str, ...]:
        """Give every node the map; who did not take it."""
        missing = []
        for name in sorted(self.scenario.nodes):
            if self.scenario.nodes[name].is_failed_over:
                continue
            request = admin.SetClusterConfig(
                epoch=self.chains.epoch,
                revision=self.chains.revision,
                key=b"default",
                value=to_json(self.chains),
            )
            replies = self.ask(name, request)
            if replies is None:
                missing.append(name)
        return tuple(missing)

    # -- failover --------------------------------------------------------------------------------

    def can_lose(self, name: str) -> bool:
        """Whether a node that is up could be declared dead if it died now."""
        rows = [(vbucket, row) for vbucket, row in enumerate(self.chains.rows) if name in row]
        copies = (self._living_copies(vbucket, row, name) for vbucket, row in rows)
        return (
            self.is_alive
            and not self.failing
            and self.reaches(self.scenario.nodes[name])
            and any(row[0] == name for _, row in rows)
            and not any(name in (*move.before, *move.after) for move in self.moves())
            and all(copies)
        )

    def moves(self) -> list[Move]:
        """What is under way or was left pending."""
        return [*self.journal.values(), *(run.mover.move for run in self.runs.values())]

    def fail_over(self, dead: str) -> None:
        """Declare a node dead and promote the replicas of what it owned; may have to be repeated.

        Until every promotion was answered the map stays as it was, and the node is not taken back.
        """
        node = self.scenario.nodes[dead]
        again = dead in self.failing
        if not self.is_alive or node.is_failed_over != again or (node.is_up and not again):
            return
        if self.failing - {dead}:
            return  # a failover that has begun is finished first
        if any(dead in (*move.before, *move.after) for move in self.moves()):
            return  # one manager at a time: its moves come first
        plan = [
            _promotion(vbucket, chain, dead, self._living_copies(vbucket, chain, dead), 0)
            for vbucket, chain in enumerate(self.chains.rows)
            if dead in chain
        ]
        if any(one.after[0] is None for one in plan):
            return  # what only the dead node has is not given up
        self.world.say("manager", f"declares {dead} dead")
        self.world.count(Situation.FAILOVER)
        node.is_failed_over = True
        self.failing.add(dead)
        for one in plan:
            self.replication.stop(one.vbucket)
            if one.owner_changes and not self._promote(one.vbucket, one.after):
                return
        self.failing.discard(dead)
        self.chains = self.chains.with_rows({one.vbucket: one.after for one in plan})
        self.publish()

    def _promote(self, vbucket: int, chain: Chain) -> bool:
        owner = chain[0]
        assert owner is not None
        self.scenario.truth[vbucket].failovers += 1
        bucket = self.scenario.nodes[owner].bucket
        copy = None if bucket is None else bucket.find(vbucket)
        if copy is not None and is_inside(copy):
            self.world.count(Situation.PROMOTED_INSIDE)
        return self.ask(owner, set_vbucket(vbucket, VBucketState.ACTIVE, chain)) is not None

    def _living_copies(self, vbucket: int, chain: Chain, dead: str) -> list[Copy]:
        found = [self.copy(name, vbucket) for name in chain if name is not None and name != dead]
        serving = (VBucketState.REPLICA, VBucketState.PENDING, VBucketState.ACTIVE)
        return [one for one in found if one is not None and one.state in serving]

    def recover(self, name: str) -> None:
        """Take a node back that was declared dead: it owns nothing any more."""
        node = self.scenario.nodes[name]
        if name in self.failing:
            self.fail_over(name)
        if not (self.is_alive and node.is_up and node.is_failed_over) or name in self.failing:
            return
        assert node.bucket is not None
        node.is_failed_over = False
        for vbucket in [one.id for one in node.bucket.vbuckets]:
            if name in self.chains.rows[vbucket]:
                raise Violation(f"{name} was declared dead and is in the chain of vb {vbucket}")
            if any(self.ask(name, order) is None for order in deletion(vbucket)):
                node.is_failed_over = True  # it still has what it must not serve: next time
                return
        self.world.say("manager", f"takes {name} back")
        self.publish()
        for vbucket, chain in enumerate(self.chains.rows):
            if len(chain) == 1 and chain[0] != name and vbucket not in self.journal:
                self.chains = self.chains.with_rows({vbucket: (chain[0], name)})
        self.publish()


def place_of(node: SimNode) -> Place:
    """Where a node listens."""
    return Place(name=node.name, host="127.0.0.1", services=(("kv", node.port),))
