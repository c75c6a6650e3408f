"""Whose turn it is: streams with something to send, and backfills that wait for a slot.

Rules: a stream is queued at most once; streams take turns in the order they became ready. At most
``limit`` streams read from disk at a time (one with sequential order); the others wait in the order
they asked. A dead stream in a queue is passed over when its turn comes.

Imports: node.stream_states.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from headrace.node.stream_states import Progress

if TYPE_CHECKING:
    from headrace.node.stream import Stream


class Schedule:
    """The queues of one connection's streams."""

    __slots__ = ("_ready", "_waiting", "backfills", "limit")

    def __init__(self, limit: int) -> None:
        """Start with nothing queued; ``limit`` backfills may run at once."""
        self._ready: deque[Stream] = deque()
        self._waiting: deque[Stream] = deque()
        self.limit = limit
        self.backfills = 0
        """Number of backfills that hold a slot."""

    @property
    def is_empty(self) -> bool:
        """Whether no stream has something to send."""
        return not self._ready

    @property
    def waiting(self) -> int:
        """Number of streams whose backfill waits."""
        return len(self._waiting)

    def enqueue(self, stream: Stream) -> None:
        """Let the stream have a turn; once is enough."""
        if not stream.is_queued:
            stream.is_queued = True
            self._ready.append(stream)

    def take(self) -> Stream | None:
        """The stream whose turn it is."""
        while self._ready:
            stream = self._ready.popleft()
            stream.is_queued = False
            if stream.reason is None:
                return stream
        return None

    @property
    def next(self) -> Stream | None:
        """The stream whose turn comes next, if it still lives."""
        return self._ready[0] if self._ready and self._ready[0].reason is None else None

    def settle(self, stream: Stream, progress: Progress) -> None:
        """Do what a living stream asks for after its turn."""
        if stream.has_slot and not stream.is_backfilling:
            self.give_back(stream)
        if progress is Progress.MORE:
            self.enqueue(stream)
        elif progress is Progress.SLOT and not (stream.awaits_slot or stream.has_slot):
            stream.awaits_slot = True
            self._waiting.append(stream)
            self.grant()

    def grant(self) -> None:
        """Give free slots to those that wait."""
        while self._waiting and self.backfills < self.limit:
            stream = self._waiting.popleft()
            stream.awaits_slot = False
            if stream.reason is None:
                stream.has_slot = True
                self.backfills += 1
                self.enqueue(stream)

    def give_back(self, stream: Stream) -> None:
        """Free the slot a stream holds; nothing if it holds none."""
        if stream.has_slot:
            stream.has_slot = False
            self.backfills -= 1
            self.grant()

    def clear(self) -> None:
        """Forget every stream."""
        self._ready.clear()
        self._waiting.clear()
        self.backfills = 0
