"""A disk whose commits can be counted, delayed and never finished.

It stands between a bucket and its own disk and changes nothing until asked. Reads go straight
through. The crash is the owner's function: a process that really ends does not come back from it; a
node that only plays dead does, and every later commit is then refused.

Imports: errors, store.disk.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from headrace.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from headrace.store.disk import Batch, Disk, Reader

DELAY_SECONDS_MAX: Final = 10.0


class FaultDisk:
    """A disk around another."""

    def __init__(
        self, disk: Disk, *, crash: Callable[[], None], committed: Callable[[int], None]
    ) -> None:
        """Stand before ``disk``; ``committed(number)`` is told of every commit, on its thread."""
        self._disk = disk
        self._crash = crash
        self._committed = committed
        self.path = disk.path
        self.durable = disk.durable
        self.commits = 0
        """Commits made so far."""
        self.delay_seconds = 0.0
        self.crash_at = 0
        """The number of the commit that ends everything; 0: none."""
        self.crash_when_durable = False
        self.dead = False

    def read(self) -> AbstractContextManager[Reader]:
        """A consistent read of the disk behind."""
        return self._disk.read()

    def commit(self, batch: Batch) -> None:
        """Commit as the disk behind does, after the delay, unless this is the end."""
        self._check_alive()
        if self.delay_seconds:
            time.sleep(self.delay_seconds)
            self._check_alive()
        last = self.crash_at and self.commits + 1 >= self.crash_at
        if last and not self.crash_when_durable:
            self.die()
        self._disk.commit(batch)
        self.commits += 1
        if last:
            self.die()
        self._committed(self.commits)

    def die(self) -> None:
        """End everything now; raises when the process is still there."""
        self.dead = True
        self._crash()
        self._check_alive()

    def _check_alive(self) -> None:
        if self.dead:
            raise StoreError(f"{self.path}: the node crashed on demand")

    def bytes_used(self) -> int:
        """As the disk behind."""
        return self._disk.bytes_used()

    def close(self) -> None:
        """Close the disk behind."""
        self._disk.close()
