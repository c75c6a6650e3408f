"""Prepares in flight and aborts, per vbucket: sync writes live beside the key index, not in it.

A prepare is invisible until it is committed or aborted; one may be in flight per key. A completed
prepare is superseded by what completed it, an abort by the key's next prepare, so that readers of
the disk need not see them.

Imports: store.layout, store.model.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from headrace.store.model import Pending
from headrace.store.plain import PREPARE_FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.store.plain import Parts

    Supersede = Callable[[int, int, int], None]
    """(old seqno, old ordinal, new seqno)."""

RECENT_MAX: Final = 4_096
"""Completions remembered for views that end before them; none is told of as completed without."""


class Prepares:
    """The sync writes of one vbucket."""

    def __init__(self, supersede: Supersede) -> None:
        self._supersede = supersede
        self._pending: dict[bytes, tuple[Pending, int]] = {}
        self._aborted: dict[bytes, tuple[int, int]] = {}
        self._recent: deque[tuple[int, int]] = deque()
        """(completed at, prepared at) of the last completions."""
        self._forgotten = 0
        """Where the last completion lies that is no longer among them."""
        self.high_prepared = 0
        self.high_completed = 0

    def __len__(self) -> int:
        """Number in flight."""
        return len(self._pending)

    def get(self, key: bytes) -> Pending | None:
        """The key's prepare in flight."""
        found = self._pending.get(key)
        return None if found is None else found[0]

    def all(self) -> list[Pending]:
        """Every prepare in flight, by seqno."""
        return sorted((pending for pending, _ in self._pending.values()), key=lambda p: p.seqno)

    @property
    def oldest(self) -> Pending | None:
        """The prepare in flight with the lowest seqno."""
        return next((pending for pending, _ in self._pending.values()), None)

    def prepared(self, pending: Pending, ordinal: int) -> None:
        """A prepare was accepted."""
        aborted = self._aborted.pop(pending.key, None)
        if aborted is not None:
            self._supersede(*aborted, pending.seqno)
        before = self._pending.get(pending.key)
        if before is not None:
            # Loading, or a disk snapshot: what completed it is not told.
            self._supersede(before[0].seqno, before[1], pending.seqno)
            del self._pending[pending.key]  # so that the oldest stays first
        self._pending[pending.key] = (pending, ordinal)
        self.high_prepared = max(self.high_prepared, pending.seqno)

    def committed(self, key: bytes, seqno: int) -> None:
        """The key's prepare, if any, was committed at a seqno."""
        self._complete(key, seqno)

    def aborted(self, key: bytes, seqno: int, ordinal: int) -> None:
        """The key's prepare, if any, was aborted at a seqno."""
        self._complete(key, seqno)
        before = self._aborted.get(key)
        if before is not None:
            self._supersede(*before, seqno)
        self._aborted[key] = (seqno, ordinal)

    def _complete(self, key: bytes, seqno: int) -> None:
        found = self._pending.pop(key, None)
        if found is not None:
            pending, ordinal = found
            self._supersede(pending.seqno, ordinal, seqno)
            self.high_completed = max(self.high_completed, pending.seqno)
            self._recent.append((seqno, pending.seqno))
            if len(self._recent) > RECENT_MAX:
                self._forgotten = max(self._forgotten, self._recent.popleft()[0])

    def completed_at(self, end: int) -> int:
        """A seqno below which every prepare was completed, as seen at ``end``.

        What is in flight there may lie below what was completed: aborts come when they are due.
        """
        if end < self._forgotten:
            return 0
        oldest = self.oldest
        found = min(self.high_completed, end)
        if oldest is not None:
            found = min(found, oldest.seqno - 1)
        for completed, prepared in reversed(self._recent):
            if completed <= end:
                break
            found = min(found, prepared - 1)
        return found

    def completed_up_to(self, completed: int, seqno: int) -> None:
        """Prepares at or below ``completed`` are done, as a disk snapshot that ends at ``seqno``
        told without saying how: their keys are as the snapshot has them."""
        for key, (pending, _) in list(self._pending.items()):
            if pending.seqno <= completed:
                self._complete(key, seqno)
        self.high_completed = max(self.high_completed, completed)

    def forget_aborts(self, seqnos: set[int]) -> None:
        """These aborts were purged."""
        self._aborted = {
            key: place for key, place in self._aborted.items() if place[0] not in seqnos
        }

    def clear(self) -> None:
        """Forget everything."""
        self._pending.clear()
        self._aborted.clear()
        self._recent.clear()
        self._forgotten = 0
        self.high_prepared = self.high_completed = 0


def pending_of(parts: Parts) -> Pending:
    """The prepare a frame at rest holds."""
    seqno, rev, flags, expiry, _, _, deleted, level = PREPARE_FIELDS.unpack(parts.extras)
    return Pending(
        parts.key,
        parts.value,
        seqno,
        parts.cas,
        rev,
        flags,
        expiry,
        parts.datatype,
        bool(deleted),
        level,
    )
