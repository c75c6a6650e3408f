"""Runner: movers with real nodes, links and a journal under them, a few at once.

Rules
- An action's result goes to the mover before anything that happened meanwhile on its link; what it
  says then replaces what was planned.
- Moves of one vbucket run one after the other, in their order; others side by side, `at_once`.
- A link is shared by the moves between the same two nodes. Whoever wants a fresh one gets it and
  the others lose theirs: they begin again from what the copies say.
- Backing out is asked of every mover; those that never began are left out.

Imports: errors, cluster.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, ClassVar, Final

from headrace.cluster import steps
from headrace.cluster.journal import Entry, Journal
from headrace.cluster.links import Link
from headrace.cluster.mover import ATTEMPTS, TELLING, Event, Mover
from headrace.cluster.proxy import StateAnswered, StateSent, StreamEnded
from headrace.cluster.steps import Action, Ending, LinkLost, MoveEvent, TimedOut
from headrace.errors import ConnectionLost, HeadraceError
from headrace.wire.opcodes import StreamEndReason, VBucketState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from headrace.cluster.copies import Copy
    from headrace.cluster.manager import Cluster
    from headrace.cluster.planning import Move
    from headrace.cluster.proxy import ProxyEvent

EVENTS_MAX: Final = 65_536
"""Events of one move that may wait."""
STEP_SECONDS_MAX: Final = 180.0
AT_ONCE: Final = 4
AT_ONCE_MAX: Final = 64
LINK_SUFFIX: Final = ":move"


class Runner:
    """Runs moves to their ends."""

    def __init__(
        self,
        cluster: Cluster,
        journal: Journal,
        *,
        at_once: int = AT_ONCE,
        attempts_max: int = ATTEMPTS,
        on_step: Callable[[Mover], None] | None = None,
        pause: Callable[[Mover, str], Awaitable[None]] | None = None,
        pauses_at: Callable[[str], bool] | None = None,
    ) -> None:
        """Stand ready; ``pause`` is called at the places ``pauses_at`` names, for tests."""
        self.cluster = cluster
        self.journal = journal
        self.movers: list[Mover] = []
        self._attempts_max = attempts_max
        self._at_once = asyncio.Semaphore(at_once)
        self._on_step = on_step or (lambda _mover: None)
        self._pause = pause
        self._pauses_at = pauses_at or (lambda _place: False)
        self._links: dict[tuple[str, str], Link] = {}
        self._link_locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._queues: dict[int, tuple[Mover, deque[Event], asyncio.Event]] = {}
        self._backing_out = False

    async def run(self, moves: Iterable[Move]) -> list[Mover]:
        """Run all moves; every mover has its ending then."""
        by_vbucket: dict[int, list[Mover]] = {}
        for move in moves:
            mover = Mover(move, attempts_max=self._attempts_max)
            self.movers.append(mover)
            by_vbucket.setdefault(move.vbucket, []).append(mover)
        firsts = [
            Entry(bucket=self.cluster.bucket, move=row[0].move) for row in by_vbucket.values()
        ]
        await asyncio.to_thread(self.journal.note, *firsts)
        try:
            async with asyncio.TaskGroup() as tasks:
                for row in by_vbucket.values():
                    tasks.create_task(self._run_row(row))
        finally:
            for link in self._links.values():
                link.close()
            self._links.clear()
        return self.movers

    def back_out(self) -> None:
        """Undo what can be undone; the moves end by themselves then."""
        self._backing_out = True
        for mover in self.movers:
            mover.back_out()

    async def _run_row(self, row: list[Mover]) -> None:
        for mover in row:
            async with self._at_once:
                await self._run_one(mover)
            if mover.ending is not Ending.DONE:
                return

    async def _run_one(self, mover: Mover) -> None:
        vbucket = mover.move.vbucket
        queue: deque[Event] = deque(maxlen=EVENTS_MAX)
        arrived = asyncio.Event()
        self._queues[vbucket] = (mover, queue, arrived)
        try:
            actions = deque(mover.start())
            while not mover.is_finished:
                event = await self._next(mover, actions, queue, arrived)
                wanted = mover.receive(event) if event is not None else []
                if wanted:
                    actions = deque(wanted)
                self._on_step(mover)
        finally:
            del self._queues[vbucket]

    async def _next(
        self, mover: Mover, actions: deque[Action], queue: deque[Event], arrived: asyncio.Event
    ) -> Event | None:
        """What happened meanwhile, else the result of the next action, else what comes."""
        if queue:
            return queue.popleft()
        if actions:
            if self._pause is not None and self._pauses_at(mover.step.value):
                await self._pause(mover, mover.step.value)
            action = actions.popleft()
            try:
                return await self.PERFORMED[type(action)](self, mover, action)
            except HeadraceError as error:
                mover.break_off(str(error))
                return None
        arrived.clear()
        try:
            await asyncio.wait_for(arrived.wait(), STEP_SECONDS_MAX)
        except TimeoutError:
            return TimedOut()
        return None

    def _tell(self, vbucket: int, event: Event) -> None:
        found = self._queues.get(vbucket)
        if found is not None:
            found[1].append(event)
            found[2].set()

    # -- links -----------------------------------------------------------------------------------

    async def _open_links(self, mover: Mover, action: Action) -> MoveEvent:
        assert isinstance(action, steps.OpenLinks)
        pair = (mover.move.producer, mover.move.target)
        lock = self._link_locks.setdefault(pair, asyncio.Lock())
        async with lock:
            link = self._links.get(pair)
            if link is not None and link.lost is None and not action.fresh:
                return steps.LinksOpened()
            if link is not None:
                link.close()
                self._tell_lost(pair, f"{link.name} was opened anew", but=mover)
            try:
                link = await Link.open(
                    self.cluster.nodes[pair[0]].node,
                    self.cluster.nodes[pair[1]].node,
                    self.cluster.bucket,
                    suffix=LINK_SUFFIX,
                )
            except HeadraceError as error:
                return LinkLost(text=str(error))
            self._links[pair] = link
            link.gate = self._gate(link)
            link.start(self._on_event, lambda error: self._tell_lost(pair, str(error)))
            return steps.LinksOpened()

    def _tell_lost(self, pair: tuple[str, str], text: str, but: Mover | None = None) -> None:
        for vbucket, (mover, _, _) in self._queues.items():
            if (mover.move.producer, mover.move.target) == pair and mover is not but:
                self._tell(vbucket, LinkLost(text=text))

    def _on_event(self, event: ProxyEvent) -> None:
        if not isinstance(event, TELLING):
            self._tell(event.vbucket, event)

    def _gate(self, link: Link) -> Callable[[ProxyEvent], bool] | None:
        """Hold a link at the places of a takeover that a test wants to look at."""
        pause = self._pause
        if pause is None:
            return None

        def gate(event: ProxyEvent) -> bool:
            place = place_of_event(event)
            found = self._queues.get(event.vbucket)
            if found is None or not self._pauses_at(place):
                return False

            async def hold() -> None:
                try:
                    await pause(found[0], place)
                finally:
                    link.release()

            self._holding = asyncio.get_running_loop().create_task(hold())
            return True

        return gate

    # -- actions ---------------------------------------------------------------------------------

    async def _write(self, mover: Mover, action: Action) -> MoveEvent:
        assert isinstance(action, steps.WriteJournal)
        entry = Entry(bucket=self.cluster.bucket, move=mover.move, step=action.step)
        await asyncio.to_thread(self.journal.note, entry)
        return steps.JournalWritten()

    async def _forget(self, mover: Mover, action: Action) -> MoveEvent:  # noqa: ARG002 - as the others
        await asyncio.to_thread(self.journal.forget, self.cluster.bucket, mover.move.vbucket)
        return steps.JournalWritten()

    async def _ask_copies(self, mover: Mover, action: Action) -> MoveEvent:  # noqa: ARG002 - as the others
        move = mover.move
        producer, target = await asyncio.gather(
            self._copy(move.producer, move.vbucket), self._copy(move.target, move.vbucket)
        )
        return steps.CopiesSeen(producer=producer, target=target, passed=self._passed(mover))

    def _passed(self, mover: Mover) -> int:
        """Items that went over the move's link for others."""
        link = self._link_of(mover)
        if link is None:
            return 0
        items = link.proxy.items
        return int(items.sum()) - int(items[mover.move.vbucket])

    async def _copy(self, name: str, vbucket: int) -> Copy | None:
        try:
            return await self.cluster.nodes[name].copy(vbucket)
        except ConnectionLost:
            return None

    async def _set_state(self, mover: Mover, action: Action) -> MoveEvent:
        assert isinstance(action, steps.SetState)
        node = self.cluster.nodes[action.node]
        return await self._ordered(
            action.node,
            node.set_state(mover.move.vbucket, action.state, action.topology),
            steps.StateSet(),
        )

    async def _drop(self, mover: Mover, action: Action) -> MoveEvent:
        assert isinstance(action, steps.DropCopy)
        node = self.cluster.nodes[action.node]
        return await self._ordered(action.node, node.drop(mover.move.vbucket), steps.CopyDropped())

    async def _ordered(self, name: str, order: Awaitable[None], done: MoveEvent) -> MoveEvent:
        try:
            await order
        except ConnectionLost as error:
            return steps.Refused(node=name, text=str(error), reachable=False)
        except HeadraceError as error:
            return steps.Refused(node=name, text=str(error))
        return done

    async def _add_stream(self, mover: Mover, action: Action) -> MoveEvent | None:
        assert isinstance(action, steps.AddStream)
        link = self._link_of(mover)
        if link is None:
            return LinkLost(text="the link went")
        link.add_stream(mover.move.vbucket, action.flags)
        return None

    async def _close_stream(self, mover: Mover, action: Action) -> MoveEvent | None:
        del action
        link = self._link_of(mover)
        if link is None:
            return LinkLost(text="the link went")
        link.close_stream(mover.move.vbucket)
        return None

    def _link_of(self, mover: Mover) -> Link | None:
        link = self._links.get((mover.move.producer, mover.move.target))
        return link if link is not None and link.lost is None else None

    async def _publish(self, mover: Mover, action: Action) -> MoveEvent:
        assert isinstance(action, steps.PublishMap)
        changed = {mover.move.vbucket: action.chain}
        missing = await self.cluster.publish(changed, action.first)
        return steps.MapPublished(missing=missing)

    async def _wait(self, mover: Mover, action: Action) -> MoveEvent:
        assert isinstance(action, steps.Wait)
        del mover
        await asyncio.sleep(action.seconds)
        return steps.TimePassed()

    async def _finish(self, mover: Mover, action: Action) -> None:
        del mover, action

    PERFORMED: ClassVar[
        dict[type[Action], Callable[[Runner, Mover, Action], Awaitable[MoveEvent | None]]]
    ] = {
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
        steps.Finish: _finish,
    }


def place_of_event(event: ProxyEvent) -> str:
    """The place in a takeover an event marks, as tests name it; "" for most events."""
    if isinstance(event, StateSent):
        return f"{VBucketState(event.state).name.lower()}-sent"
    if isinstance(event, StateAnswered):
        return f"{VBucketState(event.state).name.lower()}-answered"
    if isinstance(event, StreamEnded) and event.reason == StreamEndReason.FINISHED:
        return "ended"
    return ""
