"""A consistent read of one vbucket's persisted items, in chunks, while everything else goes on.

A view is two numbers: where its reader stands and the persisted high seqno when it was opened.
Each `read` finds the next block (or, for what is not sealed yet, the next item in the arena) above
its place, so sealing and compaction may run in between. What keeps the view whole: versions it can
see are not dropped while it is open; a truncation ends it; a purge of tombstones its reader has
not seen yet ends it (semantics 3, "after").

Imports: errors, store.block_run, store.core, store.cursor, store.disk, store.layout, store.lookup,
store.model, store.output, store.records, store.rewrite, store.transform.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import CorruptRecord
from headrace.store import layout as at
from headrace.store import rewrite as by
from headrace.store.block_run import BlockRun
from headrace.store.core import seek_item
from headrace.store.cursor import finish_item
from headrace.store.disk import Table
from headrace.store.lookup import READ_TRIES_MAX
from headrace.store.model import BackfillOutcome
from headrace.store.output import Output
from headrace.store.records import check_block
from headrace.store.transform import VISIBLE

if TYPE_CHECKING:
    from headrace.store.blocks import Block
    from headrace.store.model import Chunk
    from headrace.store.transform import Transform
    from headrace.store.vbucket import VBucket


class Backfill:
    """A view of a vbucket's persisted items, fixed when it was opened; made by `VBucket.backfill`.

    Use: ``chunk = backfill.read(1 << 20)`` until None, then look at ``outcome``. An open view keeps
    versions from being dropped: close it.
    """

    def __init__(
        self,
        vbucket: VBucket,
        *,
        after: int,
        transform: Transform,
        last: int | None,
        all_versions: bool,
        forgiven_purge: int = 0,
    ) -> None:
        """Open the view; the core's lock is held."""
        self._vbucket = vbucket
        self._core = vbucket.core
        self._transform = transform
        self._all_versions = all_versions
        self._generation = vbucket.generation
        self.after = after
        """The reader has everything up to here."""
        self.end = vbucket.disk_end(after)
        """Persisted seqno when opened, or (replica) the end of the last snapshot that is persisted
        whole: the view shows the state at this seqno."""
        self._last = self.end if last is None else min(last, self.end)
        self.snapshot_end = vbucket.consistent_disk_end(self.end)
        """Where a reader is consistent: ``end``, or on a replica the end of the snapshot that was
        half received at ``end`` (the rest must be read from memory under the same marker)."""
        self.purge_seqno = vbucket.purge_seqno
        self._forgiven = forgiven_purge
        """Purges up to here do not matter to this reader."""
        self.high_completed_seqno = vbucket.high_completed_at(self.end)
        self.high_prepared_seqno = vbucket.high_prepared_seqno
        self.read_seqno = after
        """Last seqno passed so far."""
        self.outcome = BackfillOutcome.RUNNING
        self._visible_end: int | None = None
        self._judge()
        if self.outcome is BackfillOutcome.RUNNING:
            vbucket.views.add(self)
            if after >= self._last:
                self._finish(BackfillOutcome.COMPLETE)

    @property
    def visible_end(self) -> int:
        """Last seqno of the view that passes the transform; 0 if nothing does."""
        if self._visible_end is None:
            self._visible_end = self._vbucket.last_passing(self._transform, self.end)
        return self._visible_end

    @property
    def max_visible_seqno(self) -> int:
        """Last seqno of the view that is no prepare and no abort."""
        return self._vbucket.last_passing(VISIBLE, self.end)

    def _judge(self) -> None:
        """End the view if the vbucket has moved away under it."""
        vbucket = self._vbucket
        if vbucket.generation != self._generation:
            self._finish(BackfillOutcome.ROLLED_BACK)
        elif self.after > 0 and max(self.read_seqno, self._forgiven) < vbucket.purge_seqno:
            self._finish(BackfillOutcome.PURGED)

    def _finish(self, outcome: BackfillOutcome) -> None:
        if self.outcome is BackfillOutcome.RUNNING:
            self.outcome = outcome
        self._vbucket.views.discard(self)

    def read(self, limit_bytes: int) -> Chunk | None:
        """The next frames, stopping after the one that reaches ``limit_bytes``; None at the end.

        Damaged bytes raise CorruptRecord.
        """
        core = self._core
        for _ in range(READ_TRIES_MAX):
            with core.lock:
                self._judge()
                if self.outcome is not BackfillOutcome.RUNNING:
                    return None
                core.flush_marks()
                blocks = self._next_blocks(limit_bytes)
                if not blocks:
                    output = Output(limit_bytes)
                    self._read_items(output)
                    return self._handed(output)
            output = Output(limit_bytes, expect_bytes=limit_bytes, pool=core.outputs)
            self._read_blocks(blocks, output)
            with core.lock:
                chunk = self._handed(output)
            if chunk is not None:
                return chunk
            # Other blocks are taking this one's place: wait until that is done.
            with core.structure:
                pass
        raise CorruptRecord(f"{core.disk.path}: a block is gone", path=core.disk.path)

    def _handed(self, output: Output) -> Chunk | None:
        if self.read_seqno >= self._last:
            self._finish(BackfillOutcome.COMPLETE)
        return output.chunk()

    def _next_blocks(self, limit_bytes: int) -> list[Block]:
        """The blocks that come next, enough to fill a chunk if all their frames live."""
        found: list[Block] = []
        place, gathered = self.read_seqno, 0
        while place < self._last and gathered < limit_bytes:
            block = self._core.blocks[self._vbucket.id].after(place)
            if block is None or block.first > self._last:
                break
            found.append(block)
            place, gathered = block.last, gathered + block.size
        return found

    def _read_blocks(self, blocks: list[Block], output: Output) -> None:
        """Read blocks in one short transaction, until the limit or a block that was replaced.

        Not under the lock: the disk may be slow. A mark that arrives meanwhile lies above our end.
        """
        with self._core.disk.read() as reader:
            values: list[memoryview] = []
            for block in blocks:
                value = reader.get(Table.BLOCKS, block.key)
                if value is None or not block.matches(value):
                    break
                if not block.checked:
                    check_block(block.key, value, path=self._core.disk.path)
                    block.checked = True
                values.append(value)
            if values:
                self._write_run(BlockRun(blocks, values), output)

    def _write_run(self, run: BlockRun, output: Output) -> None:
        output.result[by.R_NEXT] = -1
        while True:
            run.write(
                output,
                self._transform,
                after=self.read_seqno,
                last=self._last,
                end=self.end,
                all_versions=self._all_versions,
            )
            if output.why not in (by.WHY_SLOW, by.WHY_ROOM, by.WHY_DAMAGED):
                break
            self._finish_row(run, output)
        self.read_seqno = max(self.read_seqno, int(output.result[by.R_READ]))

    def _finish_row(self, run: BlockRun, output: Output) -> None:
        """Do what the kernel could not with the frame it stopped at."""
        row, block = int(output.result[by.R_NEXT]), run.block
        frame = run.frame(row)
        if output.why == by.WHY_DAMAGED:
            raise CorruptRecord(
                f"{self._core.disk.path}: frame {row} of block {block.key.hex()} is not as long as"
                " it says",
                path=self._core.disk.path,
                offset=block.extent(row)[0],
            )
        if output.why == by.WHY_ROOM:
            output.grow(len(frame))
            return
        output.add_plain(frame, block.first + int(block.rows[row, 0]), self._transform)
        output.result[by.R_NEXT] = row + 1

    def _read_items(self, output: Output) -> None:
        """What is persisted but not sealed yet lies in the arena."""
        core, tables, transform = self._core, self._core.tables, self._transform
        first = int(tables.vbuckets[self._vbucket.id, at.V_FIRST])
        output.result[by.R_NEXT] = seek_item(tables.items, first, self.read_seqno) if first else 0
        while True:
            by.rewrite_items(
                tables.items,
                tables.state,
                core.arena.addresses,
                transform.options,
                transform.wanted,
                self.end,
                self._last,
                False,
                self._all_versions,
                output.address,
                output.capacity,
                output.limit,
                output.result,
            )
            if not finish_item(core, output, transform):
                break
        if output.why == by.WHY_END:
            output.result[by.R_READ] = self._last
        self.read_seqno = max(self.read_seqno, int(output.result[by.R_READ]))

    def rolled_back(self) -> None:
        """The vbucket was truncated: nothing more can be read. Lock held."""
        self._finish(BackfillOutcome.ROLLED_BACK)

    def close(self) -> None:
        """Let go of the view; idempotent."""
        with self._core.lock:
            self._finish(BackfillOutcome.CLOSED)
