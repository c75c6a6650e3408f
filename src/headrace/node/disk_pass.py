"""Snapshots from disk on their way out: which there are, with which markers, in which order.

Most backfills are one pass: a view of the disk under one disk marker. Two kinds differ:

* History (`change_streams`): versions from the vbucket's history start on are all kept. What lies
  before comes first, deduplicated, under an ordinary disk marker (only if it has items); then every
  version since, under a marker that says so. Both markers have the same end.
* Out of order: a first backfill of one collection that is small among its vbucket may come in key
  order between two OSO messages, without a marker. A collection that turns out larger than the
  limits is sent in seqno order instead.

Passes are opened together, so that they show one moment; the older view is opened first, hence
whatever it misses of a newer one is in the newer one.

Imports: store.model, store.output, wire, node.filters, node.look_ahead, node.shape.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.node.look_ahead import LookAhead
from headrace.store.model import BackfillOutcome, Chunk
from headrace.store.output import cut_chunk
from headrace.wire.frame import HEADER_SIZE
from headrace.wire.opcodes import Magic, Opcode, OsoFlag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.node.filters import StreamFilter
    from headrace.node.shape import Shape
    from headrace.store.backfill import Backfill
    from headrace.store.vbucket import VBucket

_SEQNO: Final = Struct(">Q")
_BODY_SIZE: Final = Struct(">I")
_KEY_SIZE: Final = Struct(">H")
# The item's own seqno is the second number of these.
_SECOND_SEQNO: Final = frozenset({Opcode.COMMIT, Opcode.ABORT})
_DELETES: Final = frozenset({Opcode.DELETION, Opcode.EXPIRATION})
_LOST: Final = frozenset({BackfillOutcome.PURGED, BackfillOutcome.ROLLED_BACK})
_GATHER_BYTES: Final = 1024 * 1024


class LostView(Exception):
    """The disk no longer shows what the reader needs: it must ask again and be rolled back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OsoLimits:
    """When a backfill may come out of order.

    ``share_max``: the collection's part of the vbucket's documents. ``tells_end``: the reader asked
    for SEQNO_ADVANCED before the end.
    """

    items_max: int = 10_000
    bytes_max: int = 16 * 1024 * 1024
    share_max: float = 0.5
    tells_end: bool = False


@dataclass(slots=True, kw_only=True)
class DiskPass:
    """One run over the disk: an opening message, data, closing messages.

    ``start`` and ``end`` are the marker's range; end 0 says that no marker is sent, because nothing
    that follows is shown to the reader or because the pass is out of order.
    """

    view: Backfill | KeyOrder
    start: int
    end: int = 0
    opening: bytes = b""
    closing: list[bytes] = field(default_factory=list)
    ahead: Chunk | None = None
    coming: LookAhead | None = None
    skips_deletes: bool = False
    is_read: bool = False

    def read(self, limit_bytes: int) -> Chunk | None:
        """The next chunk; None at the end, where the view's ``outcome`` says how it went."""
        chunk, self.ahead = self.ahead, None
        if chunk is None:
            coming, self.coming = self.coming, None
            chunk = self.view.read(limit_bytes) if coming is None else coming.take()
        if chunk is None:
            return None
        # What was read ahead may be more than there is room for now.
        chunk, self.ahead = cut_chunk(chunk, limit_bytes)
        if self.ahead is None and self.view.outcome is BackfillOutcome.COMPLETE:
            self.is_read = True
        return self._kept(chunk)

    def look_ahead(self, limit_bytes: int) -> LookAhead | None:
        """The read of the next chunk, for another thread to run; None when there is none."""
        view = self.view
        if self.is_read or self.ahead is not None or self.coming is not None:
            return None
        if isinstance(view, KeyOrder):
            return None  # sorted and in memory
        self.coming = LookAhead(lambda: view.read(limit_bytes))
        return self.coming

    def _kept(self, chunk: Chunk) -> Chunk:
        """What of a chunk is meant for the reader; the chunk itself unless the pass is special."""
        if self.skips_deletes:
            chunk = _filtered(chunk, lambda frame: frame[1] not in _DELETES)
        return chunk

    def close(self) -> None:
        """Let go of the view and of what was read ahead."""
        self.ahead = self.coming = None
        self.view.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRequest:
    """What a stream wants of the disk.

    ``start_of`` gives the marker's start for the first seqno of a range. ``owed_end``: the marker
    must not end before. ``forgiven_purge``: the request was accepted although tombstones above its
    start, up to here, were purged.
    """

    vbucket: VBucket
    shape: Shape
    filter: StreamFilter
    after: int
    start_of: Callable[[int], int]
    oso: OsoLimits | None = None
    owed_end: int = 0
    forgiven_purge: int = 0


def open_passes(request: DiskRequest) -> list[DiskPass]:
    """The passes that bring the reader to the end of what is persisted; LostView if none can."""
    if request.oso is not None and request.after == 0:
        passes = _out_of_order(request, request.oso)
        if passes:
            return passes
    if request.shape.terms.controls.change_streams and request.vbucket.history_start_seqno > 0:
        passes = _history(request)
    else:
        passes = [_ordinary(request)]
    if request.after == 0 and request.shape.terms.options.skip_deletes:
        for one in passes:
            one.skips_deletes = True
    return passes


def _open(request: DiskRequest, after: int, **more: int) -> Backfill:
    last = more.get("last")
    view = request.vbucket.backfill(
        after=after,
        transform=request.shape.disk,
        last=last,
        all_versions=bool(more.get("all_versions")),
        forgiven_purge=request.forgiven_purge,
    )
    if view.outcome in _LOST:
        view.close()
        raise LostView(f"what follows seqno {after} is {view.outcome.name.lower()}")
    return view


def _marker_end(request: DiskRequest, view: Backfill) -> int:
    """Where the reader is consistent; 0 when there is nothing to announce."""
    if view.end <= request.after:
        return 0
    if request.shape.can_advance or view.snapshot_end > view.end:
        return max(view.snapshot_end, request.owed_end)
    return max(view.visible_end, request.owed_end) if view.visible_end > request.after else 0


def _ordinary(request: DiskRequest) -> DiskPass:
    view = _open(request, request.after)
    start, end = request.start_of(request.after + 1), _marker_end(request, view)
    made = DiskPass(view=view, start=start, end=end)
    if end:
        made.opening = request.shape.disk_marker(view, start=start, end=end, history=False)
    return made


def _history(request: DiskRequest) -> list[DiskPass]:
    floor = request.vbucket.history_start_seqno
    before: Backfill | None = None
    first: Chunk | None = None
    if request.after + 1 < floor:
        before = _open(request, request.after, last=floor - 1)
        first = _first_shown(before)
        if first is None:
            before.close()
            before = None
    try:
        since = _open(request, max(request.after, floor - 1), all_versions=1)
    except LostView:
        if before is not None:
            before.close()
        raise
    end = _marker_end(request, since)
    passes = []
    start = request.start_of(request.after + 1)
    if before is not None:
        end = end or before.visible_end
        marker = request.shape.disk_marker(before, start=start, end=end, history=False)
        passes.append(DiskPass(view=before, start=start, end=end, opening=marker, ahead=first))
        start = floor
    shown = bool(since.visible_end) or request.shape.can_advance
    made = DiskPass(view=since, start=start, end=end if shown else 0)
    if made.end:
        made.opening = request.shape.disk_marker(since, start=start, end=end, history=True)
    return [*passes, made]


def _first_shown(view: Backfill) -> Chunk | None:
    """The first item of a view that is shown, read ahead; None when there is none."""
    while (chunk := view.read(1)) is not None:
        if chunk.count:
            return chunk
    return None


# -- out of order ----------------------------------------------------------------------------------


def _out_of_order(request: DiskRequest, limits: OsoLimits) -> list[DiskPass]:
    """One pass in key order; none when the collection is not small or not alone."""
    collections = request.filter.collections or ()
    if not request.filter.legacy and len(collections) != 1:
        return []
    collection = 0 if request.filter.legacy else next(iter(collections))
    items = request.vbucket.collection_item_count(collection)
    if items > limits.items_max or items > limits.share_max * request.vbucket.item_count:
        return []
    view = _open(request, 0)
    gathered = _gather(view, limits) if view.snapshot_end == view.end else None
    if gathered is None:
        view.close()
        return []
    shape, ordered = request.shape, KeyOrder(gathered, end=view.end)
    view.close()
    closing = [shape.out_of_order(OsoFlag.END)]
    if limits.tells_end and shape.can_advance and ordered.end > ordered.highest:
        closing.insert(0, shape.seqno_advanced(ordered.end))
    opening = shape.out_of_order(OsoFlag.START)
    return [DiskPass(view=ordered, start=0, opening=opening, closing=closing)]


def _gather(view: Backfill, limits: OsoLimits) -> list[memoryview] | None:
    """Every frame of a view; None when there are too many or the view ended early."""
    frames: list[memoryview] = []
    size = 0
    while (chunk := view.read(_GATHER_BYTES)) is not None:
        size += len(chunk.data)
        frames.extend(split_frames(chunk.data))
        # Tombstones and events come on top of the documents that were counted.
        if size > limits.bytes_max or len(frames) > 2 * limits.items_max:
            return None
    return frames if view.outcome is BackfillOutcome.COMPLETE else None


class KeyOrder:
    """Frames in key order, events before documents; reads like a view of the disk."""

    __slots__ = ("_frames", "_next", "end", "highest", "outcome", "read_seqno")

    def __init__(self, frames: list[memoryview], *, end: int) -> None:
        """Sort the frames of a view that ended at ``end``."""
        self._frames = sorted(
            frames, key=lambda frame: (frame[1] != Opcode.SYSTEM_EVENT, key_of(frame))
        )
        self._next = 0
        self.end = end
        self.highest = max(map(seqno_of, frames), default=0)
        self.read_seqno = 0
        self.outcome = BackfillOutcome.RUNNING

    def read(self, limit_bytes: int) -> Chunk | None:
        """The next frames, stopping after the one that reaches ``limit_bytes``; None at the end."""
        if self._next == len(self._frames):
            self.outcome, self.read_seqno = BackfillOutcome.COMPLETE, self.end
            return None
        taken, size = [], 0
        while self._next < len(self._frames) and size < limit_bytes:
            taken.append(self._frames[self._next])
            size += len(taken[-1])
            self._next += 1
        seqnos = [seqno_of(frame) for frame in taken]
        return Chunk(
            data=memoryview(b"".join(taken)),
            count=len(taken),
            first_seqno=min(seqnos),
            last_seqno=max(seqnos),
            read_seqno=0,
        )

    def close(self) -> None:
        """Forget the frames."""
        self._frames, self._next = [], 0


# -- frames in a chunk -----------------------------------------------------------------------------


def split_frames(data: memoryview) -> Iterator[memoryview]:
    """The whole frames of a chunk, in order."""
    at = 0
    while at < len(data):
        (body,) = _BODY_SIZE.unpack_from(data, at + 8)
        yield data[at : at + HEADER_SIZE + body]
        at += HEADER_SIZE + body


def _framing_size(frame: memoryview) -> int:
    return frame[2] if frame[0] == Magic.ALT_REQUEST else 0


def seqno_of(frame: memoryview) -> int:
    """The seqno of an item's frame."""
    at = HEADER_SIZE + _framing_size(frame) + (8 if frame[1] in _SECOND_SEQNO else 0)
    seqno: int = _SEQNO.unpack_from(frame, at)[0]
    return seqno


def key_of(frame: memoryview) -> bytes:
    """The key of an item's frame."""
    if frame[0] == Magic.ALT_REQUEST:
        key_size: int = frame[3]
    else:
        (key_size,) = _KEY_SIZE.unpack_from(frame, 2)
    at = HEADER_SIZE + _framing_size(frame) + frame[4]
    return bytes(frame[at : at + key_size])


def _filtered(chunk: Chunk, wanted: Callable[[memoryview], bool]) -> Chunk:
    """The chunk without the frames that are not wanted; it still passes their seqnos."""
    kept = [frame for frame in split_frames(chunk.data) if wanted(frame)]
    if len(kept) == chunk.count:
        return chunk
    return Chunk(
        data=memoryview(b"".join(kept)),
        count=len(kept),
        first_seqno=seqno_of(kept[0]) if kept else 0,
        last_seqno=seqno_of(kept[-1]) if kept else 0,
        read_seqno=chunk.read_seqno,
        prepares=sum(frame[1] == Opcode.PREPARE for frame in kept),
    )
