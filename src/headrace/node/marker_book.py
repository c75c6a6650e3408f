"""Which marker a stream's reader stands under, and where the next one may begin and must end.

A marker [start, end] is open until the reader has passed its end. Rules:

* The first marker starts at the start of the snapshot the reader resumed in, and does not end
  before that snapshot does: until then the reader lacks versions that were deduplicated inside it.
* While a marker is open, or when it was closed by a seqno that the reader was not shown, the next
  one starts no later than it did: the reader must not take a place inside for a boundary.
* Otherwise a marker starts at the first seqno of its own range.

Imports: nothing of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.history import SnapshotRange


class MarkerBook:
    """The markers of one stream."""

    __slots__ = ("_inside", "_owed_end", "_resumed_start", "is_first", "open", "sent_end")

    def __init__(self, start_seqno: int, resumed: SnapshotRange) -> None:
        """Begin with a reader that holds ``start_seqno`` of the snapshot ``resumed``."""
        self.is_first = True
        """No marker was sent yet."""
        self.open: tuple[int, int] | None = None
        """Start and end of the marker the reader stands under."""
        self.sent_end = start_seqno
        """End of the last marker that was closed."""
        self._resumed_start = int(resumed.start)
        # At the start of its snapshot the reader has no item of it but, perhaps, the first.
        is_inside = resumed.start < start_seqno < resumed.end
        self._owed_end = int(resumed.end) if is_inside else 0
        self._inside: int | None = None
        """Start of a marker that was closed without showing the reader its end."""

    @property
    def owed_end(self) -> int:
        """The seqno before which the next marker must not end, 0 for none."""
        return self._owed_end if self.is_first else 0

    def holds(self, end: int) -> bool:
        """Whether the open marker reaches as far as ``end``."""
        return self.open is not None and end <= self.open[1]

    def start_of(self, natural: int) -> int:
        """The start of the next marker when its own range begins at ``natural``."""
        if self.is_first:
            return min(natural, self._resumed_start)
        if self.open is not None:
            return min(natural, self.open[0])
        return natural if self._inside is None else min(natural, self._inside)

    def begin(self, start: int, end: int) -> None:
        """A marker was sent."""
        self.open = (start, end)
        self.is_first = False

    def skip(self) -> None:
        """A snapshot without a marker was sent (out of order)."""
        self.is_first = False

    def reached(self, read_seqno: int) -> int:
        """The end of the open marker if everything up to it was read, else 0."""
        return self.open[1] if self.open is not None and read_seqno >= self.open[1] else 0

    def close(self, *, shown_seqno: int) -> None:
        """The open marker's end was passed; ``shown_seqno`` is the last the reader was shown."""
        assert self.open is not None
        start, end = self.open
        self._inside = start if shown_seqno < end else None
        self.sent_end = end
        self.open = None
