"""A disk that counts, waits and dies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.errors import StoreError
from headrace.node.fault_disk import FaultDisk
from headrace.store.disk import Batch, MemoryDisk, Table

if TYPE_CHECKING:
    from headrace.store.disk import Disk


def batch(key: bytes) -> Batch:
    made = Batch()
    made.put(Table.META, key, b"value")
    return made


def holds(disk: Disk, key: bytes) -> bool:
    with disk.read() as reader:
        return reader.get(Table.META, key) is not None


class Watched:
    """A fault disk and what it told."""

    def __init__(self) -> None:
        self.behind = MemoryDisk()
        self.crashes = 0
        self.told: list[int] = []
        self.disk = FaultDisk(self.behind, crash=self.crash, committed=self.told.append)

    def crash(self) -> None:
        self.crashes += 1


def test_commits_pass_and_are_counted() -> None:
    watched = Watched()
    watched.disk.commit(batch(b"a"))
    watched.disk.commit(batch(b"b"))
    assert watched.told == [1, 2]
    assert holds(watched.disk, b"b")
    assert watched.disk.durable == watched.behind.durable
    assert watched.disk.bytes_used() == watched.behind.bytes_used()


@pytest.mark.parametrize("when_durable", [False, True])
def test_the_last_commit_is_made_or_not(when_durable: bool) -> None:
    watched = Watched()
    watched.disk.commit(batch(b"a"))
    watched.disk.crash_at = 2
    watched.disk.crash_when_durable = when_durable
    with pytest.raises(StoreError, match="crashed on demand"):
        watched.disk.commit(batch(b"b"))
    assert watched.crashes == 1
    assert holds(watched.behind, b"a")
    assert holds(watched.behind, b"b") is when_durable
    with pytest.raises(StoreError, match="crashed on demand"):
        watched.disk.commit(batch(b"c"))
    assert not holds(watched.behind, b"c")
    assert watched.crashes == 1
