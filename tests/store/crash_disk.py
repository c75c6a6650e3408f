"""A disk that fails and dies on demand, with everything that was durable kept across deaths."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.errors import StoreFull
from headrace.store.disk import Batch, MemoryDisk, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.store.disk import Reader


class Died(Exception):
    """The machine went away; whoever catches this must open the store again."""


class CrashDisk:
    """Tables in memory that outlive the store on top of them.

    ``die_at`` is the number of the commit at which the power goes; ``applied`` says whether that
    commit reached the platter. ``fail_at`` refuses one commit and lets the next through.
    """

    durable = True

    def __init__(self, tables: dict[Table, dict[bytes, bytes]] | None = None) -> None:
        self.path = "crash-disk"
        self._disk = MemoryDisk()
        self.commits = 0
        self.die_at = -1
        self.applied = False
        self.fail_at = -1
        self.dead = False
        if tables is not None:
            batch = Batch()
            for table, rows in tables.items():
                for key, value in rows.items():
                    batch.put(table, key, value)
            self._disk.commit(batch)

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """A consistent read."""
        if self.dead:
            raise Died
        with self._disk.read() as reader:
            yield reader

    def commit(self, batch: Batch) -> None:
        """Apply the batch, or fail, or die before or after it."""
        if self.dead:
            raise Died
        number, self.commits = self.commits, self.commits + 1
        if number == self.die_at:
            self.dead = True
            if self.applied:
                self._disk.commit(batch)
            raise Died
        if number == self.fail_at:
            raise StoreFull("the disk is full, says the test")
        self._disk.commit(batch)

    def bytes_used(self) -> int:
        """Bytes of all values."""
        return self._disk.bytes_used()

    def close(self) -> None:
        """The tables stay for the next owner."""

    def tables(self) -> dict[Table, dict[bytes, bytes]]:
        """A copy of everything that is durable."""
        with self._disk.read() as reader:
            return {
                table: {key: bytes(value) for key, value in reader.scan(table)} for table in Table
            }

    def reborn(self) -> CrashDisk:
        """A disk with the same durable content and no plans to die."""
        return CrashDisk(self.tables())
