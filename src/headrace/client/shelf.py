"""Shelf: rows wait until their snapshot is whole, then leave together.

A producer deduplicates inside a snapshot, so rows of half a snapshot show a state that never was.
The shelf takes runs of rows as they come, keeps those of unfinished snapshots, and gives out
batches whose rows all belong to complete ones. Positions travel with the batch that holds the last
row of what they cover.

Rules
- Rows of a vbucket leave in the order they came; rows of different vbuckets may change places.
- A snapshot may leave as several batches, one directly after the other.
- At most ``memory_max`` bytes of unfinished snapshots stay in memory; the largest vbucket's rows
  go to a temporary file first, which is deleted when they leave or the shelf is closed.
- Rows that wait hold the memory of their whole scan for some time; then few of many are copied.

Imports: client.bulk, columns.schema, protocol.talk.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ipc

from headrace.columns.schema import NO_ROWS, SCHEMA
from headrace.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.client.bulk import Rows
    from headrace.protocol.talk import Position

MEMORY_MAX: Final = 256 << 20
SLICES_MAX: Final = 8
"""More parts of one scan than this are copied into one batch."""
COPY_BELOW: Final = 4
"""Rows that are less than this part of their scan are copied when they have waited for long."""
PATIENCE_SCANS: Final = 16
"""Scans that rows may wait for in the memory of their own: most are complete with the next."""
_SEQNO: Final = SCHEMA.get_field_index("seqno")
_NONE: Final[frozenset[int]] = frozenset()
_ORDER: Final = attrgetter("order")
_ORDER_AND_PLACE: Final = attrgetter("order", "place")


@dataclass(slots=True)
class _Part:
    """Rows of one vbucket in one batch.

    ``order`` is the scan's place among scans and ``place`` that of the rows in it; they stay when
    the rows are copied out.
    """

    vbucket: int
    order: int
    batch: pa.RecordBatch
    start: int
    stop: int
    place: int
    size: int = 0
    position: tuple[int, Position] | None = None
    settled: bool = False


@dataclass(slots=True)
class Ready:
    """A batch to hand out, and where its vbuckets stand once it is done with.

    ``partial``: vbuckets whose snapshot goes on in the next batch; no position covers their rows.
    """

    batch: pa.RecordBatch
    positions: dict[int, Position] = field(default_factory=dict)
    partial: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Waiting:
    """The rows of one vbucket's unfinished snapshot: first those in the file, then the parts."""

    parts: list[_Part] = field(default_factory=list)
    size: int = 0
    file: Path | None = None
    writer: pa.RecordBatchStreamWriter | None = None


class Shelf:
    """Rows of unfinished snapshots by vbucket, and rows ready to leave."""

    def __init__(self, *, whole: bool = True, memory_max: int = MEMORY_MAX) -> None:
        """``whole`` False lets every row leave at the end of its scan."""
        self._whole = whole
        self._memory_max = memory_max
        self._waiting: dict[int, _Waiting] = {}
        self._ready: list[_Part] = []
        self._spilled: list[tuple[_Waiting, tuple[int, Position]]] = []
        self._touched: set[int] = set()
        self._order = 0
        self._batch: pa.RecordBatch | None = None
        self._size = 0
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether rows wait for the end of their snapshot."""
        return self._whole

    @property
    def size(self) -> int:
        """Bytes of rows that wait in memory."""
        return self._size

    def waiting(self, vbucket: int) -> int:
        """Rows of the vbucket that wait in memory."""
        held = self._waiting.get(vbucket)
        return 0 if held is None else sum(part.stop - part.start for part in held.parts)

    def put(self, rows: Rows) -> None:
        """Take a run of rows."""
        if rows.batch is not self._batch:
            self._batch = rows.batch
            self._order += 1
        part = _Part(
            rows.vbucket,
            self._order,
            rows.batch,
            rows.start,
            rows.stop,
            rows.start,
            max(1, rows.size),
        )
        if self._whole:
            self._waiting.setdefault(rows.vbucket, _Waiting()).parts.append(part)
            self._touched.add(rows.vbucket)
        else:
            self._ready.append(part)

    def complete(self, vbucket: int, position: Position) -> None:
        """Let everything of the vbucket leave: it stands at a boundary."""
        held = self._waiting.pop(vbucket, None)
        if held is None or not (held.parts or held.file):
            alone = _Part(vbucket, self._order + 1, NO_ROWS, 0, 0, 0, position=(vbucket, position))
            self._ready.append(alone)
            return
        self._size -= held.size
        if held.file is not None:
            self._spilled.append((held, (vbucket, position)))
            return
        held.parts[-1].position = (vbucket, position)
        self._ready += held.parts

    def holds_beyond(self, vbucket: int, seqno: int) -> bool:
        """Whether rows above ``seqno`` wait: of an out-of-order snapshot that was cut off."""
        held = self._waiting.get(vbucket)
        return held is not None and any(
            pc.max(part.batch.column(_SEQNO).slice(part.start, part.stop - part.start)).as_py()
            > seqno
            for part in held.parts[-1:]
        )

    def drop(self, vbucket: int) -> int:
        """Forget the rows of the vbucket that wait; how many were in memory."""
        count = self.waiting(vbucket)
        held = self._waiting.pop(vbucket, None)
        if held is not None:
            self._size -= held.size
            self._remove(held)
        return count

    def take(self, positions: dict[int, Position] | None = None) -> Iterator[Ready]:
        """Give out what is ready; call it when the pieces of a buffer are all put.

        ``positions``: where vbuckets stand after everything put so far, for a shelf that does not
        wait for whole snapshots.
        """
        ready, self._ready = self._ready, []
        ready.sort(key=_ORDER_AND_PLACE)
        spilled, self._spilled = self._spilled, []
        # What waited on disk is older than any row of its vbucket in memory.
        for held, position in spilled:
            yield from self._read_back(held, position)
        last: Ready | None = None
        for _, group in itertools.groupby(ready, key=_ORDER):
            for found in _joined(list(group)):
                if last is not None:
                    yield last
                last = found
        if last is not None:
            if positions:
                last.positions.update(positions)
                last.partial -= last.positions.keys()
            yield last
        elif positions:
            yield Ready(NO_ROWS, positions)
        self._settle()

    def close(self) -> None:
        """Forget everything and remove the files."""
        for held in self._waiting.values():
            self._remove(held)
        self._waiting.clear()
        self._ready.clear()
        self._size = 0
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    # -- memory and files -----------------------------------------------------------------------

    def _settle(self) -> None:
        """Account for the rows that stay, and spill the largest while there are too many."""
        touched, self._touched = self._touched, set()
        for vbucket in touched:
            held = self._waiting.get(vbucket)
            if held is None:
                continue
            for part in reversed(held.parts):
                if part.settled:
                    break
                part.settled = True
                held.size += part.size
                self._size += part.size
        if self._order % PATIENCE_SCANS == 0:
            self._compact()
        while self._size > self._memory_max:
            largest = max(self._waiting, key=lambda vbucket: self._waiting[vbucket].size)
            self._spill(largest, self._waiting[largest])

    def _compact(self) -> None:
        """Copy out what has waited for long and keeps much more memory than it needs."""
        for held in self._waiting.values():
            for part in held.parts:
                rows = part.stop - part.start
                old = self._order - part.order >= PATIENCE_SCANS
                if old and rows * COPY_BELOW < part.batch.num_rows:
                    view = part.batch.slice(part.start, rows)
                    part.batch = ipc.read_record_batch(view.serialize(), SCHEMA)
                    part.start, part.stop = 0, rows

    def _spill(self, vbucket: int, held: _Waiting) -> None:
        try:
            if held.writer is None:
                if self._directory is None:
                    self._directory = tempfile.TemporaryDirectory(prefix="headrace-")
                held.file = Path(self._directory.name) / f"{vbucket}.arrows"
                held.writer = ipc.new_stream(os.fspath(held.file), SCHEMA)
            for part in held.parts:
                held.writer.write_batch(part.batch.slice(part.start, part.stop - part.start))
        except OSError as error:
            raise StoreError(
                f"rows of vbucket {vbucket} cannot wait on disk: {error}; give a larger "
                "shelf_memory or room in the directory for temporary files"
            ) from error
        self._size -= held.size
        held.size = 0
        held.parts.clear()

    def _read_back(self, held: _Waiting, position: tuple[int, Position]) -> Iterator[Ready]:
        assert held.file is not None
        assert held.writer is not None
        held.writer.close()
        last: Ready | None = None
        partial = frozenset({position[0]})
        with pa.OSFile(os.fspath(held.file)) as source, ipc.open_stream(source) as batches:
            for batch in batches:
                if last is not None:
                    yield last
                last = Ready(batch, partial=partial)
        for part in held.parts:
            if last is not None:
                yield last
            last = Ready(part.batch.slice(part.start, part.stop - part.start), partial=partial)
        assert last is not None
        last.positions[position[0]] = position[1]
        last.partial = frozenset()
        yield last
        held.file.unlink()

    def _remove(self, held: _Waiting) -> None:
        if held.writer is not None:
            held.writer.close()
        if held.file is not None:
            held.file.unlink(missing_ok=True)


def _joined(parts: list[_Part]) -> list[Ready]:
    """The parts of one batch, in order, as few batches as need no copy, or as one that does."""
    batch, stop = parts[0].batch, -1
    spans: list[tuple[int, int]] = []
    groups: list[list[_Part]] = []
    for part in parts:
        if part.batch is not batch:  # copies of parts that had to wait
            return [_ready(one.batch, [(one.start, one.stop)], [one]) for one in parts]
        if part.start == stop:
            spans[-1] = (spans[-1][0], part.stop)
            groups[-1].append(part)
        else:
            spans.append((part.start, part.stop))
            groups.append([part])
        stop = part.stop
    if len(spans) == 1 or len(spans) > SLICES_MAX:
        return [_ready(batch, spans, parts)]
    return [_ready(batch, [span], group) for span, group in zip(spans, groups, strict=True)]


def _ready(batch: pa.RecordBatch, spans: list[tuple[int, int]], parts: list[_Part]) -> Ready:
    positions: dict[int, Position] = {}
    without: set[int] = set()
    for part in parts:
        # A position covers a batch only when it stands behind the vbucket's last row in it.
        vbucket = part.vbucket
        if part.position is not None:
            positions[vbucket] = part.position[1]
            without.discard(vbucket)
        else:
            positions.pop(vbucket, None)
            without.add(vbucket)
    partial = frozenset(without) if without else _NONE
    if len(spans) > 1:
        table = pa.Table.from_batches([batch.slice(a, b - a) for a, b in spans])
        return Ready(table.combine_chunks().to_batches()[0], positions, partial)
    ((start, stop),) = spans
    if (start, stop) != (0, batch.num_rows):
        batch = batch.slice(start, stop - start)
    return Ready(batch, positions, partial)
