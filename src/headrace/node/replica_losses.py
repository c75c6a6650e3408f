"""Losses: which inbound streams had their vbucket changed under them, and when to say so.

A replica's vbucket may be flushed, rolled back, failed over, promoted or deleted by others while
its stream stands. What the producer sends from then on belongs to a history the copy no longer has.
Nothing may ever come that would show it, so the replica watches its vbuckets instead of waiting.

Rules:

* A change is noted on whatever thread makes it, and judged again on the owner's: what the stream
  does itself (a rollback it was told, a takeover) looks like a loss only in between.
* A stream that stands and is lost is given up: CLOSE_STREAM to the producer, so that it sends no
  more and accepts the next request, and so that the manager in between sees it. A stream that is
  still being asked for is refused by its answer instead.

Imports: nothing of ours at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.node.replica_stream import ReplicaStream


class Losses:
    """The watcher of one replica's vbuckets."""

    __slots__ = ("_noted", "_streams", "_wake")

    def __init__(self, streams: Mapping[int, ReplicaStream], wake: Callable[[], None]) -> None:
        """Look at ``streams``, by vbucket; ``wake`` is called when `take` may have news."""
        self._streams = streams
        self._wake = wake
        self._noted: set[int] = set()

    def vbucket_changed(self, vbucket: int) -> None:
        """Note a vbucket that is no longer what its stream was added for; any thread."""
        stream = self._streams.get(vbucket)
        if stream is not None and stream.is_lost:
            self._noted.add(vbucket)
            self._wake()

    def __bool__(self) -> bool:
        """Whether something was noted that `take` has not judged."""
        return bool(self._noted)

    def take(self) -> list[ReplicaStream]:
        """The streams to give up; the owner's thread."""
        found = []
        while self._noted:
            stream = self._streams.get(self._noted.pop())
            if stream is not None and stream.is_standing and stream.is_lost:
                found.append(stream)
        return found
