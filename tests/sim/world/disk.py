"""The disk: commits are atomic and, once they returned, durable; a crash may take the running one.

The tables outlive the bucket that was opened over them, as files outlive a process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.store.disk import Batch, MemoryDisk, Table

if TYPE_CHECKING:
    from collections.abc import Callable

Tables = dict[Table, dict[bytes, bytes]]


class Crashed(BaseException):
    """The process died in the middle of a commit; nothing of the node may catch it."""


class SimulatedDisk(MemoryDisk):
    """The real store's disk over tables that survive."""

    durable = True

    def __init__(self, tables: Tables, dies: Callable[[], str]) -> None:
        """``dies()`` is asked at each commit: "" to live, "before" or "after" it to die."""
        super().__init__()
        self._tables = tables
        self._dies = dies
        self._bytes = sum(len(value) for table in tables.values() for value in table.values())

    def commit(self, batch: Batch) -> None:
        """Apply the batch, whole, or die before or behind it."""
        dies = self._dies()
        if dies == "before":
            raise Crashed
        super().commit(batch)
        if dies == "after":
            raise Crashed

    def close(self) -> None:
        """Files stay."""


def no_tables() -> Tables:
    """The tables of a disk nobody wrote to."""
    return {table: {} for table in Table}
