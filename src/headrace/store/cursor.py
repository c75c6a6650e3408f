"""A reader's place in the recent items of one vbucket.

Rules. A snapshot lies in one checkpoint and its end is fixed when it begins: what is superseded by
then is left out, what is superseded later is still sent. On a replica the end is that of a received
snapshot, because only there its source was consistent. Items a cursor has not passed stay in memory
unless the bucket's memory runs out; then it is dropped and its reader goes back to the disk.

Imports: store.core, store.layout, store.model, store.output, store.rewrite,
store.transform.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.store import core as inside
from headrace.store import layout as at
from headrace.store import rewrite as by
from headrace.store.model import MemorySnapshot
from headrace.store.output import CAPACITY_FIRST, Output
from headrace.store.transform import VISIBLE

if TYPE_CHECKING:
    from headrace.store.model import Chunk
    from headrace.store.transform import Transform
    from headrace.store.vbucket import VBucket


class Cursor:
    """A registered reader of recent items; made by `VBucket.open_cursor`.

    Use: ``snapshot = cursor.snapshot(transform)``; send a marker for it; ``cursor.take(...)`` until
    ``cursor.at_end``; again. When the quota is exceeded the slowest cursors are dropped: then
    ``dropped`` is true, `snapshot` and `take` return None, and the reader goes on with
    ``vbucket.backfill(after=cursor.read_seqno, ...)`` and a new cursor. (`Bucket.on_change` calls
    for a drop as for a change.)
    """

    def __init__(self, vbucket: VBucket, name: str, *, after: int, droppable: bool) -> None:
        """Register at ``after``; the core's lock is held."""
        self.name = name
        self._vbucket = vbucket
        self._core = vbucket.core
        self._row = self._core.add_cursor(vbucket.id, after, droppable=droppable)
        self._passed = 0
        """Ordinal of the last item passed, 0 if unknown."""
        self._end = 0
        self._checkpoint = -1
        self.read_seqno = after
        """The last seqno this reader has passed."""
        self.gap_end = 0
        """Highest seqno above ``read_seqno`` that memory no longer held when the cursor was opened
        or moved, 0 if none. When > 0, backfill first, then `seek` to the backfill's end."""
        self._find_gap()

    def _find_gap(self) -> None:
        floor = self._vbucket.memory_seqno
        self.gap_end = floor if self.read_seqno < floor else 0
        row = self._core.tables.vbuckets[self._vbucket.id]
        if self.read_seqno >= row[at.V_HIGH]:
            self._passed = int(row[at.V_LAST])

    @property
    def dropped(self) -> bool:
        """Whether items after ``read_seqno`` may be gone from memory: go back to the disk."""
        state = self._core.cursors[self._row, inside.C_STATE] if self._row >= 0 else 0
        return bool(state == inside.CURSOR_DROPPED)

    @property
    def closed(self) -> bool:
        """Whether the place was given up."""
        return self._row < 0

    @property
    def at_end(self) -> bool:
        """Whether the current snapshot was read to its end (or none was begun)."""
        return self.read_seqno >= self._end

    @property
    def remaining(self) -> int:
        """Number of items in memory this cursor has not passed (superseded ones included)."""
        with self._core.lock:
            ordinal = 0 if self._gone() else self._next()
            if not ordinal:
                return 0
            tables = self._core.tables
            first = int(tables.items[tables.item_row(ordinal), at.I_COUNT])
            return int(tables.vbuckets[self._vbucket.id, at.V_COUNT]) - first + 1

    def _gone(self) -> bool:
        return self._row < 0 or self.dropped

    def _next(self) -> int:
        """Ordinal of the next item, 0 if there is none."""
        tables = self._core.tables
        if self._passed and tables.in_memory(self._passed):
            return int(tables.items[tables.item_row(self._passed), at.I_NEXT])
        first = int(tables.vbuckets[self._vbucket.id, at.V_FIRST])
        return inside.seek_item(tables.items, first, self.read_seqno) if first else 0

    def snapshot(self, transform: Transform) -> MemorySnapshot | None:
        """Begin the next snapshot: everything available now in the next checkpoint with items.

        None: nothing new (or dropped). ValueError before the previous snapshot is at its end.
        """
        core, vbucket = self._core, self._vbucket
        with core.lock:
            core.told[vbucket.id] = False
            if self._gone():
                return None
            if not self.at_end:
                raise ValueError(f"snapshot to {self._end} was read to {self.read_seqno} only")
            if self.read_seqno < vbucket.memory_seqno:
                raise ValueError(
                    f"cursor at {self.read_seqno} must first backfill to {vbucket.memory_seqno}"
                )
            ordinal = self._next()
            if not ordinal:
                return None
            tables = core.tables
            row = tables.items[tables.item_row(ordinal)].tolist()
            newest = int(tables.vbuckets[vbucket.id, at.V_LAST])
            last = inside.checkpoint_last(tables.items, ordinal, newest)
            checkpoint = row[at.I_TAG] >> 16
            last_seqno = int(tables.items[tables.item_row(last), at.I_SEQNO])
            end = vbucket.consistent_end(checkpoint, row[at.I_SEQNO], last_seqno)
            if not end:
                return None
            visible = by.last_passing(
                tables.items,
                tables.state,
                core.arena.addresses,
                transform.options,
                transform.wanted,
                ordinal,
                last,
                end,
            )
            fresh, self._checkpoint, self._end = checkpoint != self._checkpoint, checkpoint, end
            return MemorySnapshot(
                first=row[at.I_SEQNO],
                end=end,
                visible_end=visible,
                checkpoint_id=checkpoint,
                checkpoint_start=row[at.I_CHECKPOINT_START],
                new_checkpoint=fresh,
                from_disk=checkpoint in vbucket.disk_checkpoints,
                high_completed_seqno=vbucket.high_completed_at(end),
                max_visible_seqno=self._max_visible(ordinal, last, end),
            )

    def _max_visible(self, ordinal: int, last: int, end: int) -> int:
        """The last seqno up to ``end`` that is no prepare and no abort, of these items."""
        newest = self._vbucket.max_visible_seqno
        if newest <= end:
            return newest
        core, tables = self._core, self._core.tables
        found = by.last_passing(
            tables.items,
            tables.state,
            core.arena.addresses,
            VISIBLE.options,
            VISIBLE.wanted,
            ordinal,
            last,
            end,
        )
        return found or min(self.read_seqno, end)

    def take(self, limit_bytes: int, transform: Transform) -> Chunk | None:
        """The next frames of the snapshot: stops after the frame that reaches ``limit_bytes``.

        Superseded items are left out. None: nothing to take now: at the end, dropped, or (on a
        replica) the rest of the snapshot has not come yet. A chunk may have count 0 when all items
        were filtered out.
        """
        core = self._core
        with core.lock:
            core.told[self._vbucket.id] = False
            if self._gone() or self.at_end:
                return None
            ordinal = self._next()
            expected = self._expected_bytes(ordinal)
            output = Output(limit_bytes, expect_bytes=expected, pool=core.outputs)
            output.result[by.R_NEXT] = ordinal
            output.result[by.R_PASSED] = self._passed
            self._fill(output, transform)
            if output.why == by.WHY_END and self._end <= self._vbucket.high_seqno:
                output.result[by.R_READ] = self._end
            chunk = output.chunk()
            if chunk is not None:
                self.read_seqno = chunk.read_seqno
                self._passed = int(output.result[by.R_PASSED])
                core.cursors[self._row, inside.C_READ] = chunk.read_seqno
            return chunk

    def _expected_bytes(self, ordinal: int) -> int:
        """About how large all that is in memory from an item on is, were all items as it is."""
        if not ordinal:
            return CAPACITY_FIRST
        tables = self._core.tables
        row = tables.items[tables.item_row(ordinal)]
        count = int(tables.vbuckets[self._vbucket.id, at.V_COUNT]) - int(row[at.I_COUNT]) + 1
        size = (int(row[at.I_INFO]) >> at.INFO_SIZE_SHIFT) + by.FRAME_GROWTH_MAX
        return max(CAPACITY_FIRST, count * size)

    def _fill(self, output: Output, transform: Transform) -> None:
        core, tables, end = self._core, self._core.tables, self._end
        while True:
            by.rewrite_items(
                tables.items,
                tables.state,
                core.arena.addresses,
                transform.options,
                transform.wanted,
                end,
                end,
                True,
                False,
                output.address,
                output.capacity,
                output.limit,
                output.result,
            )
            if not finish_item(core, output, transform):
                return

    def seek(self, after: int) -> None:
        """Move forward to the first item above ``after``, for example to a backfill's end."""
        with self._core.lock:
            if after < self.read_seqno:
                raise ValueError(f"cursor at {self.read_seqno} cannot move back to {after}")
            if self._gone():
                return
            self.read_seqno = after
            self._core.cursors[self._row, inside.C_READ] = after
            self._passed, self._end = 0, 0
            self._find_gap()

    def drop(self) -> None:
        """Be dropped now, as when the quota is exceeded."""
        with self._core.lock:
            if not self._gone():
                self._core.cursors[self._row, inside.C_STATE] = inside.CURSOR_DROPPED

    def close(self) -> None:
        """Give up the place; idempotent."""
        with self._core.lock:
            if self._row >= 0:
                self._core.remove_cursor(self._row)
                self._row = -1


def finish_item(core: inside.Core, output: Output, transform: Transform) -> bool:
    """After a kernel stopped at an item in memory: do what it could not; whether to go on."""
    why = output.why
    if why not in (by.WHY_SLOW, by.WHY_ROOM):
        return False
    tables = core.tables
    row = tables.items[tables.item_row(int(output.result[by.R_NEXT]))].tolist()
    size = row[at.I_INFO] >> at.INFO_SIZE_SHIFT
    if why == by.WHY_ROOM:
        output.grow(size)
        return True
    output.add_plain(core.arena.view(row[at.I_POSITION], size), row[at.I_SEQNO], transform)
    output.result[by.R_PASSED] = output.result[by.R_NEXT]
    output.result[by.R_NEXT] = row[at.I_NEXT]
    return True
