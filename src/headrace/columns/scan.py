"""Scanner: bytes of a connection in, Arrow batches out.

    scanner = Scanner(Dialect.DCP_7, collections=True)
    while (result := scanner.scan(view)).consumed:
        view = view[result.consumed :]

Contract of `Scanner.scan`.
- It takes whole frames from the front of the buffer and says how many bytes it consumed; the rest
  belongs in front of the next buffer. It looks at ``window`` bytes, or at one frame if that is
  longer, and fills one batch: call again until ``consumed`` is 0, then read more.
- Every frame consumed is a row of the batch, a marker now in force, or listed in ``others`` with
  the reason (`headrace.columns.table.Reason`) and the number of rows before it, so that rows and
  other frames can be put back into the order of the wire. A marker that wants an answer is both,
  unless the owner asked for steps: then it is one of them.
- A header that cannot be right ends the connection: ``error`` says what `FrameBuffer` would say, at
  the same offset of the stream, and every later scan says it again.
- ``counted`` are the bytes to acknowledge for flow control once the batch and the others are
  processed: frames of the producer as they stand on the wire, a prepare two bytes more, replies
  and NOOP nothing.
- The same bytes give the same rows whatever the split; only where batches begin depends on it.

A plain socket need not be read by its owner: between `begin` and `finish` the scanner receives
itself, and scans each piece while it is in the processor's cache (`headrace.columns.gather`). What
`finish` tells is what `scan` would have told of the same bytes, except that ``others`` stand at
their places in the memory that `begin` named.

A batch owns its memory. Scanning the next buffer never changes it, and its memory is used again
once nothing points to it. Small batches are copied out of their block, so that keeping one keeps a
few kilobytes. A Scanner is for one connection and one thread; batches may go anywhere.

Imports: columns.*, errors, wire.dialect, wire.frame.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass, field
from functools import cache
from struct import Struct
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from headrace.columns.block import (
    BODY,
    OTHER,
    OTHERS_MAX,
    PAYLOAD,
    PLACES,
    PRESENCES,
    ROWS_MAX,
    BlockPool,
    fresh_pages,
    value_place,
)
from headrace.columns.forms import forms_of
from headrace.columns.schema import NO_ROWS, SCHEMA, Presence
from headrace.columns.table import (
    MARKS_MAX,
    STEP_NUMBERS,
    STREAM_NUMBERS,
    VBUCKETS,
    Context,
    Stop,
    Stream,
    named_place,
    stream_name,
)
from headrace.errors import ConfigError, RemoteProtocolError
from headrace.wire.dialect import Dialect
from headrace.wire.frame import BODY_SIZE_MAX, HEADER_SIZE, FrameBuffer
from headrace.wire.opcodes import Datatype
from headrace.wire.values import VALUE_SIZE_MAX

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from numpy.typing import NDArray

    from headrace.columns.block import Block

    Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]

WINDOW: Final = 6 * 1024 * 1024
"""Bytes one scan looks at: a batch of a few thousand to `ROWS_MAX` rows."""
WINDOW_MAX: Final = 64 * 1024 * 1024
"""Largest window and largest frame: inflated 22 times it still has 32-bit offsets."""
COMPACT_SIZE: Final = 64 * 1024
"""A batch with less than this is copied out of its block."""
NAMED_STREAMS_MAX: Final = 1 << 16
"""Streams with a stream id that one connection may have."""
_NAMED_STREAMS_FIRST: Final = 64
_ROW_SIZE: Final = sum(8 if field.type.id == pa.binary().id else 4 for field in SCHEMA)
_NO_OTHERS: Final = np.empty(0, dtype=OTHER)
_TWO, _THREE, _FIVE = Struct("=2q"), Struct("=3q"), Struct("=5q")
_NOTHING_FOUND: Final = (*(0 for _ in range(Context.CONSUMED + 1, Context.SEEN_ALL)), -1)
"""The numbers of how far a scan came, behind the first, when it begins."""
_COUNTS: Final = Struct(f"={1 + len(_NOTHING_FOUND)}q")
_BROKEN_HEADERS: Final = frozenset({Stop.MAGIC, Stop.BODY, Stop.LENGTHS})


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What one scan found."""

    batch: pa.RecordBatch
    consumed: int
    others: NDArray[np.void]
    """Frames that made no row: offset in the buffer, size, reason, rows before it."""
    counted: int
    error: RemoteProtocolError | None = None
    not_inflated: tuple[int, ...] = ()
    """Rows whose snappy value is kept as it came: it does not inflate, or claims too much."""
    steps: list[list[int]] = field(default_factory=list)
    """For an owner who asked: numbers (`headrace.columns.table.Step`) of consecutive rows of one
    stream, cut where another frame stood, and of markers; up to the row that breaks a rule."""
    broken_at: int | None = None
    """The first row that does not rise above the one before it, or resolves a later prepare."""
    size: int = 0
    """Bytes that the rows of the batch take in memory, about."""
    marked: int = 0
    """Those of ``counted`` that are markers among the steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """What the scanner knows of a stream after its last scan; None: not told."""

    seqno: int | None
    """Seqno of the last row; 0 is no seqno."""
    counted: int
    """Bytes of its rows, markers and ends that count for flow control."""
    marked: bool
    """True when a marker is in force."""
    snapshot_start: int | None
    snapshot_end: int | None
    snapshot_flags: int | None
    max_visible_seqno: int | None
    high_completed_seqno: int | None
    purge_seqno: int | None
    high_prepared_seqno: int | None
    timestamp: int | None


_TOLD: Final = {
    "max_visible_seqno": Stream.MAX_VISIBLE,
    "high_completed_seqno": Stream.HIGH_COMPLETED,
    "purge_seqno": Stream.PURGE,
    "high_prepared_seqno": Stream.HIGH_PREPARED,
    "timestamp": Stream.TIMESTAMP,
}


def warm() -> None:
    """Load the kernel, compiling it if no earlier process did: seconds once, then a tenth of one.

    Worth doing before processes are forked.
    """
    _kernel()


def _kernel() -> Callable[..., int]:
    # Loads LLVM; a program that only looks at the schema must not pay for it.
    from headrace.columns.code import code_of

    return code_of("headrace.columns.gather", "scan_frames", 1)


def _address_of(memory: NDArray[np.uint8]) -> int:
    address: int = memory.__array_interface__["data"][0]
    return address


@cache
def _functions() -> tuple[int, int]:
    """The addresses of the C library's ``recv`` and of what tells the place of ``errno``.

    AttributeError or OSError where one is missing.
    """
    library = ctypes.CDLL(None)
    place = "__error" if sys.platform == "darwin" else "__errno_location"
    found = [
        ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in ("recv", place)
    ]
    return found[0], found[1]


def can_receive() -> bool:
    """Whether a scanner can read sockets itself here."""
    try:
        return os.name == "posix" and all(_functions())
    except (AttributeError, OSError):
        return False


class Scanner:
    """Frames of one connection -> batches; keeps the snapshot of every stream between scans."""

    def __init__(
        self,
        dialect: Dialect = Dialect.DCP_7,
        *,
        collections: bool = False,
        stream_ids: bool = False,
        inflate: bool = False,
        steps: bool = False,
        body_size_max: int = BODY_SIZE_MAX,
        window: int = WINDOW,
        rows_max: int = ROWS_MAX,
        others_max: int = OTHERS_MAX,
        named_streams_max: int = NAMED_STREAMS_MAX,
        pool: BlockPool | None = None,
    ) -> None:
        """Scan what was negotiated.

        ``collections``: keys have a collection prefix. ``stream_ids``: read a frame as well whose
        stream id the header forgot to count, as a released server sends it. ``inflate``: give
        snappy values inflated, their snappy bit cleared. ``steps``: for an owner who follows the
        streams itself, tell every marker, the rows of each stream in a row, and whether they rise.
        """
        for name, number, least, limit in (
            ("window", window, HEADER_SIZE, WINDOW_MAX),
            ("body_size_max", body_size_max, 0, WINDOW_MAX - HEADER_SIZE),
            ("rows_max", rows_max, 1, ROWS_MAX),
            ("others_max", others_max, 1, OTHERS_MAX),
            ("named_streams_max", named_streams_max, 0, 1 << 31),
        ):
            if not least <= number <= limit:
                raise ConfigError(f"{name} is {number}, allowed: {least} to {limit}")
        self._scan_frames = _kernel()
        self._memory: NDArray[np.uint8] | None = None
        self._memory_address = 0
        self._gathering: tuple[NDArray[np.uint8], Block, int] | None = None
        self._pool = BlockPool() if pool is None else pool
        self._inflate = inflate
        self._window = window
        self._body_size_max = body_size_max
        self._offset = 0
        self._error: RemoteProtocolError | None = None
        # Held here because the kernel knows them by address.
        self._forms = forms_of(dialect)
        streams = fresh_pages(8 * VBUCKETS * STREAM_NUMBERS).view(np.int64)
        self._streams = streams.reshape(VBUCKETS, STREAM_NUMBERS)
        self._named = np.zeros((_NAMED_STREAMS_FIRST, STREAM_NUMBERS), dtype=np.int64)
        self._steps = fresh_pages(8 * STEP_NUMBERS * (ROWS_MAX + MARKS_MAX)).view(np.int64)
        self._marks = fresh_pages(8 * STEP_NUMBERS * MARKS_MAX)
        self._context = np.zeros(Context.FIRST_NULLS + len(PRESENCES), dtype=np.int64)
        self._context_address = int(self._context.ctypes.data)
        self._context_bytes = self._context.data
        for number, value in (
            (Context.FORMS, self._forms.forms.ctypes.data),
            (Context.INDEX, self._forms.index.ctypes.data),
            (Context.COMMON, self._forms.common),
            (Context.COLLECTIONS, collections),
            (Context.UNCOUNTED_FRAMING, stream_ids),
            (Context.MARKS, self._marks.ctypes.data),
            (Context.BODY_SIZE_MAX, body_size_max),
            (Context.ROWS_LIMIT, rows_max),
            (Context.OTHERS_LIMIT, others_max),
            (Context.STREAMS, self._streams.ctypes.data),
            (Context.NAMED, self._named.ctypes.data),
            (Context.NAMED_CAPACITY, len(self._named)),
            (Context.NAMED_MAX, named_streams_max),
            (Context.STEPS, self._steps.ctypes.data if steps else 0),
        ):
            self._context[number] = value

    @property
    def offset(self) -> int:
        """Offset in the connection's stream of bytes of the next frame."""
        return self._offset

    def scan(self, buffer: Buffer) -> ScanResult:
        """Take whole frames from the front of ``buffer``; see the contract above."""
        if self._error is not None:
            return ScanResult(NO_ROWS, 0, _NO_OTHERS, 0, self._error)
        if len(buffer) == 0:
            return ScanResult(NO_ROWS, 0, _NO_OTHERS, 0)
        source = np.frombuffer(buffer, dtype=np.uint8)
        size = min(source.size, self._reach(source))
        block = self._pool.lend(size)
        self._aim(_address_of(source), 0, size, block)
        stop = self._run()
        numbers = self._context.tolist()
        return self._result(stop, source, numbers, block, numbers[Context.CONSUMED])

    # -- straight from a socket -----------------------------------------------------------------

    def begin(self, memory: NDArray[np.uint8], at: int, filled: int) -> None:
        """Begin a batch of what a socket will bring; bytes ``at`` to ``filled`` are there already.

        Not after an error. Nothing else may write to the memory until `finish`.
        """
        assert self._error is None
        block = self._pool.lend(self._window)
        if memory is not self._memory:
            self._memory, self._memory_address = memory, _address_of(memory)
        self._aim(self._memory_address, at, filled, block)
        self._gathering = (memory, block, filled - at)

    def receive(self, descriptor: int, limit: int) -> int | None:
        """Receive and scan until ``limit`` bytes have come since `begin`, or the window is full.

        None: there may be more, or no room for it. Else what the socket said at last: 0 for its
        end, or the number of an error, such as EAGAIN while there is nothing more.
        """
        assert self._gathering is not None
        memory, _, pending = self._gathering
        numbers = (*_functions(), descriptor, memory.size, min(limit, self._window - pending))
        _FIVE.pack_into(self._context_bytes, 8 * Context.RECEIVE, *numbers)
        stop = self._run()
        self._context[Context.RECEIVE] = 0
        return int(self._context[Context.FAILURE]) if stop == Stop.DRY else None

    @property
    def received(self) -> int:
        """Bytes that have come since `begin`."""
        return int(self._context[Context.RECEIVED])

    def finish(self) -> tuple[ScanResult, int, int]:
        """What has come since `begin`, and from where to where bytes of the memory are left."""
        assert self._gathering is not None
        memory, block, pending = self._gathering
        self._gathering = None
        stop = self._run()
        numbers = self._context.tolist()
        at, filled = numbers[Context.CONSUMED], numbers[Context.SOURCE_SIZE]
        consumed = pending + numbers[Context.RECEIVED] - (filled - at)
        return self._result(stop, memory, numbers, block, consumed), at, filled

    # -- what both have in common ---------------------------------------------------------------

    def _result(
        self, stop: int, source: NDArray[np.uint8], numbers: list[int], block: Block, consumed: int
    ) -> ScanResult:
        count = numbers[Context.OTHERS]
        others = block.others(count) if count else _NO_OTHERS
        if stop in _BROKEN_HEADERS:
            self._error = self._header_error(
                source, numbers[Context.CONSUMED], self._offset + consumed
            )
        self._offset += consumed
        batch, not_inflated, size = self._batch(block, numbers)
        return ScanResult(
            batch,
            consumed,
            others,
            numbers[Context.COUNTED],
            self._error,
            not_inflated,
            self._told_steps(numbers[Context.STEP_COUNT]),
            numbers[Context.BROKEN_AT] - 1 if numbers[Context.BROKEN_AT] else None,
            size,
            numbers[Context.MARK_SIZE],
        )

    def _told_steps(self, count: int) -> list[list[int]]:
        if not count:
            return []
        # Seqnos and CAS are unsigned, and no other number of a step is large.
        numbers = self._steps[: count * STEP_NUMBERS].view(np.uint64).reshape(count, STEP_NUMBERS)
        told: list[list[int]] = numbers.tolist()
        return told

    def stream(self, vbucket: int, stream_id: int | None = None) -> StreamState:
        """Return what is known of a stream."""
        line = self._line(vbucket, stream_id)
        unsigned = (np.zeros(STREAM_NUMBERS, np.int64) if line is None else line).view(np.uint64)
        numbers = unsigned.tolist()
        presence, known = numbers[Stream.PRESENCE], numbers[Stream.KNOWN]
        marked, ranged = bool(presence & Presence.MARKED), bool(presence & Presence.SNAPSHOT)
        told = {
            name: numbers[number] if known >> (number - Stream.MAX_VISIBLE) & 1 else None
            for name, number in _TOLD.items()
        }
        return StreamState(
            seqno=numbers[Stream.SEQNO] or None,
            counted=numbers[Stream.COUNTED],
            marked=marked,
            snapshot_start=numbers[Stream.START] if ranged else None,
            snapshot_end=numbers[Stream.END] if ranged else None,
            snapshot_flags=numbers[Stream.FLAGS] if marked else None,
            **told,
        )

    def forget(self, vbucket: int, stream_id: int | None = None) -> None:
        """Leave a stream as if nothing of it had come; before it is requested again."""
        line = self._line(vbucket, stream_id)
        if line is not None:
            name = line[Stream.NAME]
            line[:] = 0
            line[Stream.NAME] = name

    def _line(self, vbucket: int, stream_id: int | None) -> NDArray[np.int64] | None:
        if stream_id is None:
            line: NDArray[np.int64] = self._streams[vbucket]
            return line
        name = stream_name(vbucket, stream_id)
        (found,) = np.nonzero(self._named[:, Stream.NAME] == name)
        return self._named[found[0]] if found.size else None

    def _reach(self, source: NDArray[np.uint8]) -> int:
        """Return how many bytes to look at: the window, or the first frame if that is longer."""
        if source.size <= self._window:
            return self._window
        body = int.from_bytes(source[8:12].tobytes(), "big")
        return max(self._window, HEADER_SIZE + min(body, self._body_size_max))

    def _aim(self, address: int, at: int, filled: int, block: Block) -> None:
        """Let the context name the bytes to scan and the block to fill."""
        context, place = self._context_bytes, block.address
        # Few calls: these are made when the scan before has emptied the caches.
        _TWO.pack_into(context, 8 * Context.SOURCE, address, filled)
        _THREE.pack_into(
            context, 8 * Context.BLOCK, place, place + PAYLOAD, place + value_place(block.payload)
        )
        _COUNTS.pack_into(context, 8 * Context.CONSUMED, at, *_NOTHING_FOUND)

    def _run(self) -> int:
        while (stop := self._scan_frames(self._context_address)) == Stop.GROW:
            self._grow()
        return stop

    def _grow(self) -> None:
        """Double the table of named streams; the kernel fills it again name by name."""
        old = self._named[self._named[:, Stream.NAME] != 0]
        capacity = 2 * len(self._named)
        grown = np.zeros((capacity, STREAM_NUMBERS), dtype=np.int64)
        for line in old:
            place = named_place(int(line[Stream.NAME]), capacity)
            while grown[place, Stream.NAME] != 0:
                place = (place + 1) % capacity
            grown[place] = line
        self._named = grown
        self._context[Context.NAMED] = grown.ctypes.data
        self._context[Context.NAMED_CAPACITY] = capacity

    def _header_error(self, source: NDArray[np.uint8], at: int, offset: int) -> RemoteProtocolError:
        """Return the error that `FrameBuffer` finds in the header the kernel stopped at."""
        frames = FrameBuffer(body_size_max=self._body_size_max)
        frames.feed(source[at : at + HEADER_SIZE].tobytes())
        try:
            frames.take()
        except RemoteProtocolError as error:
            error.offset = offset + (error.offset or 0)
            return error
        raise AssertionError(f"the kernel refused a header that is right: {at}")

    def _batch(
        self, block: Block, numbers: list[int]
    ) -> tuple[pa.RecordBatch, tuple[int, ...], int]:
        rows = numbers[Context.ROWS]
        if rows == 0:
            self._pool.give_back(block)
            return NO_ROWS, (), 0
        size = numbers[Context.KEY_SIZE] + numbers[Context.VALUE_SIZE] + rows * _ROW_SIZE
        block.written = max(block.written, BODY + size)
        batch = self._pool.batch(block)
        not_inflated: tuple[int, ...] = ()
        if self._inflate:
            batch, not_inflated, inflated_size = _inflated(block, batch)
            size += inflated_size
        if size < COMPACT_SIZE:
            batch = ipc.read_record_batch(batch.serialize(), SCHEMA)
        return batch, not_inflated, size


def _inflated(block: Block, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, tuple[int, ...], int]:
    """Return the batch with its snappy values inflated, the rows that did not, and the new bytes.

    Offsets and datatypes are rewritten in the block, which no one else has seen yet.
    """
    place = PLACES["datatype"]
    datatypes = block.memory[place : place + batch.num_rows]
    if not np.bitwise_or.reduce(datatypes) & Datatype.SNAPPY:
        return batch, (), 0
    from headrace.columns.code import code_of

    measure = code_of("headrace.columns.inflate", "measure", 5)
    inflate = code_of("headrace.columns.inflate", "inflate", 7)
    rows = batch.num_rows
    where = (
        block.address + PLACES["value"],
        block.address + value_place(block.payload),
        block.address + PLACES["datatype"],
        rows,
        VALUE_SIZE_MAX,
    )
    room = measure(*where)
    values = np.empty(room, dtype=np.uint8)
    failures = np.empty(rows, dtype=np.int64)
    failed = inflate(*where, values.ctypes.data, failures.ctypes.data)
    _, offsets, _ = batch.column("value").buffers()
    size = int(np.frombuffer(offsets, dtype=np.int32)[rows])
    column = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(values[:size])])
    batch = batch.set_column(batch.schema.get_field_index("value"), SCHEMA.field("value"), column)
    return batch, tuple(failures[:failed].tolist()), size
