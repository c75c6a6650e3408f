"""The next chunk of a backfill, read on another thread while the one before is sent.

Reading a chunk is work of the store's kernels, sending one is work of the system: neither needs the
interpreter, so both can go on at once. A `LookAhead` is a read that whoever comes first runs: the
`Aside` thread, or the stream itself when its turn has come and nobody has begun yet. So a busy or
stopped thread costs speed and nothing else.

Rules:

* A read is run once; its outcome, a chunk or an error, is taken once, by the stream that asked.
* A stream that dies forgets its `LookAhead`: what the thread still reads for it is thrown away.
* Look-ahead is bounded by its owner: one chunk per connection.

Imports: nothing of ours at run time.
"""

from __future__ import annotations

from queue import SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.store.model import Chunk


class LookAhead:
    """One read, to be run by whoever comes first."""

    __slots__ = ("_begun", "_chunk", "_done", "_error", "_read")

    def __init__(self, read: Callable[[], Chunk | None]) -> None:
        """Hold a read that nobody has begun."""
        self._read = read
        self._begun = Lock()
        self._done = Lock()
        """Held until the read is done: an Event costs nine times as much."""
        self._done.acquire()
        self._chunk: Chunk | None = None
        self._error: Exception | None = None

    @property
    def size(self) -> int:
        """Bytes that were read and not taken yet."""
        chunk = self._chunk
        return 0 if chunk is None else len(chunk.data)

    def run(self) -> None:
        """Read, unless somebody else does or did; any thread."""
        if not self._begun.acquire(blocking=False):
            return
        try:
            self._chunk = self._read()
        except Exception as error:  # noqa: BLE001 - raised where the chunk is taken
            self._error = error
        finally:
            del self._read
            self._done.release()

    def take(self) -> Chunk | None:
        """The chunk, read now if nobody has begun; raises what the read raised."""
        self.run()
        with self._done:
            pass
        chunk, self._chunk = self._chunk, None
        if self._error is not None:
            raise self._error
        return chunk


class Aside:
    """A thread that runs look-aheads in the order they come."""

    def __init__(self) -> None:
        """Start the thread."""
        self._queue: SimpleQueue[LookAhead | None] = SimpleQueue()
        self._thread = Thread(target=self._work, name="headrace-aside", daemon=True)
        self._thread.start()

    def run(self, ahead: LookAhead) -> None:
        """Let the thread run it when it is free."""
        self._queue.put(ahead)

    def _work(self) -> None:
        while True:
            ahead = self._queue.get()
            if ahead is None:
                return
            ahead.run()
            del ahead  # the thread waits without holding on to a chunk

    def stop(self) -> None:
        """End the thread once it has run what it has; idempotent."""
        self._queue.put(None)
        self._thread.join()
