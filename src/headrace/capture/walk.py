"""Pieces of bytes -> decoded items: one frame each, or one fault, in the order of the capture.

Rules
- Every byte of every direction is accounted for: it lies in a frame, or in a fault that says why
  not.
- A fault inside one frame (a layout nobody speaks) costs that frame only: the header said where the
  next begins.
- A fault of framing (unknown magic, lengths that do not fit, a gap over a header) loses the place.
  The walk then looks for the next place where a header and its successor are plausible, and says
  how many bytes it left out.
- A capture that begins in the middle of a connection begins in the middle of a frame: what lies
  before the first header is counted, not reported as a fault.
- A connection that opens with something else than a frame speaks another protocol and is named, not
  decoded; unless its port was chosen, for then the caller knows better.
- Where a piece has a known boundary and the decoder is tolerant, its end overrules the header's
  lengths.

Imports: errors, wire, capture.conversation, capture.guess.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from headrace.capture.conversation import Connection, Direction, Piece, RoleEvidence
from headrace.capture.guess import MAGICS, likely_direction, plausible_header
from headrace.errors import CaptureError, HeadraceError, RemoteProtocolError
from headrace.wire.codec import decode, row_of
from headrace.wire.frame import (
    BODY_SIZE_MAX,
    HEADER_SIZE,
    Frame,
    body_lengths,
    cut,
    one_frame,
    opcode_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.wire.dialect import Dialect
    from headrace.wire.message import Message

SEARCH_WINDOW: Final = 1 << 20
"""Bytes that a lost walk keeps while it waits for a frame whose successor would prove it."""
FAULT_BYTES_MAX: Final = 64
"""Bytes that a fault of framing carries to be shown."""
_COMPACT_AT: Final = 256 << 10
_ANY_MAGIC: Final = re.compile(b"[" + re.escape(bytes(sorted(MAGICS))) + b"]")


@dataclass(frozen=True, slots=True)
class Item:
    """One frame of one direction, or one fault.

    ``data`` are the bytes at ``offset`` of the direction. A frame that was cut but not understood
    has both ``frame`` and ``error``; a fault of framing has only the error. ``error_at`` is the
    first wrong byte in ``data``.
    """

    connection: Connection
    direction: Direction
    offset: int
    timestamp_ns: int | None
    data: bytes
    frame: Frame | None = None
    message: Message | None = None
    error: HeadraceError | None = None
    error_at: int | None = None
    line: int | None = None


@dataclass(slots=True)
class Account:
    """What the walk left out without calling it a fault; complete when the items have run out."""

    other_protocols: dict[Connection, str] = field(default_factory=dict)
    bytes_before_first_frame: Counter[Connection] = field(default_factory=Counter)


def walk(
    pieces: Iterable[Piece],
    dialect: Dialect,
    *,
    strict: bool = True,
    account: Account | None = None,
) -> Iterator[Item]:
    """Yield every frame and every fault of the pieces; what the pieces raise passes through."""
    account = Account() if account is None else account
    lanes: dict[tuple[Connection, Direction], _Lane] = {}
    damage: CaptureError | None = None
    try:
        for piece in pieces:
            if piece.connection in account.other_protocols:
                continue
            if piece.whole:
                yield from _whole(piece, dialect, strict)
                continue
            key = piece.connection, piece.direction
            lane = lanes.get(key)
            if lane is None:
                if _is_other_protocol(piece, account):
                    continue
                lane = lanes[key] = _Lane(*key, dialect, strict, account)
            yield from lane.take(piece)
    except CaptureError as error:
        damage = error
    for lane in lanes.values():
        yield from lane.finish()
    if damage is not None:
        raise damage


def _is_other_protocol(piece: Piece, account: Account) -> bool:
    """True, and noted, when a connection seen from its start does not begin with a frame."""
    connection = piece.connection
    if (
        not connection.complete_start
        or connection.evidence in (RoleEvidence.CHOSEN_PORT, RoleEvidence.NONE)
        or not piece.data
        or piece.data[0] in MAGICS
    ):
        return False
    tls = piece.data[:2] == b"\x16\x03"
    account.other_protocols[connection] = "TLS" if tls else f"its first byte is {piece.data[0]:02x}"
    return True


def _whole(piece: Piece, dialect: Dialect, strict: bool) -> Iterator[Item]:
    """The frames of a piece that ends where a frame ends, whatever their headers say."""
    at = 0
    while at < len(piece.data):
        rest = piece.data[at:]
        data = rest[: _extent(rest, dialect)]
        place = Item(
            piece.connection,
            piece.direction,
            piece.offset + at,
            piece.timestamp_ns,
            data,
            line=piece.line,
        )
        try:
            frame = one_frame(data, tolerant=not strict)
        except RemoteProtocolError as error:
            yield replace(place, error=error, error_at=error.offset or 0)
        else:
            yield _understood(place, frame, dialect, strict)
        at += len(data)


def _extent(data: bytes, dialect: Dialect) -> int:
    """How many bytes the first message of ``data`` has, where only the end of all is sure.

    The header is believed when it makes sense: a layout fits what it claims, or a header follows.
    Else it contradicts itself, and the message goes on to the next header or to the end.
    """
    if plausible_header(data):
        parts = body_lengths(data)
        claimed = HEADER_SIZE + parts[3]
        if claimed == len(data) or (claimed < len(data) and plausible_header(data, claimed)):
            return claimed
        if claimed < len(data) and row_of(cut(data, 0, parts), dialect) is not None:
            return claimed
    at, found = _next_header(data, 1, ended=True)
    return at if found else len(data)


def _next_header(data: bytes | bytearray, at: int, *, ended: bool) -> tuple[int, bool]:
    """The next place of a header with a plausible successor, and whether it is one already.

    Until the bytes have ended, the place is where to go on looking when more of them come.
    """
    while True:
        match = _ANY_MAGIC.search(data, at)
        at = match.start() if match else len(data)
        if len(data) - at < HEADER_SIZE:
            return at, False
        if plausible_header(data, at):
            behind = at + HEADER_SIZE + body_lengths(data, at)[3]
            if behind == len(data) or _continues(data, behind):
                return at, True
            if behind > len(data) and not ended and len(data) - at < SEARCH_WINDOW:
                return at, False
        at += 1


def _understood(place: Item, frame: Frame, dialect: Dialect, strict: bool) -> Item:
    """The item of a frame that was cut: its message, or why there is none."""
    message, error, error_at = None, None, None
    try:
        message = decode(frame, dialect, strict=strict)
    except RemoteProtocolError as refusal:
        error, error_at = refusal, refusal.offset
    direction = place.direction
    if direction is Direction.UNKNOWN:
        direction = likely_direction(frame)
    return replace(
        place, direction=direction, frame=frame, message=message, error=error, error_at=error_at
    )


def _fault(place: Item, error: HeadraceError, at: int) -> Item:
    data = place.data[: max(FAULT_BYTES_MAX, at + 1)]
    return replace(place, data=data, error=error, error_at=at)


class _Lane:
    """One direction of one connection: bytes that are not yet a frame, and where they stand."""

    def __init__(
        self,
        connection: Connection,
        direction: Direction,
        dialect: Dialect,
        strict: bool,
        account: Account,
    ) -> None:
        self._connection = connection
        self._direction = direction
        self._dialect = dialect
        self._strict = strict
        self._account = account
        self._data = bytearray()
        self._at = 0  # first byte in _data that is not given out
        self._base = 0  # offset of _data[0] in the direction
        self._skip = 0  # bytes of a frame that has a hole in it, still to come
        self._time: int | None = None
        self._late = not connection.complete_start  # before the first header of a late capture
        self._lost: Item | None = None  # the fault that lost the place, told when it is found again

    def take(self, piece: Piece) -> Iterator[Item]:
        """Yield what this piece completes."""
        self._time = piece.timestamp_ns
        if piece.missing:
            yield from self._hole(piece)
        data = piece.data
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            self._base += skipped
            data = data[skipped:]
        if self._at >= _COMPACT_AT or self._at == len(self._data):
            del self._data[: self._at]
            self._base += self._at
            self._at = 0
        self._data += data
        yield from self._frames(ended=False)

    def finish(self) -> Iterator[Item]:
        """Yield what is left when no more bytes come: the rest of a frame is a fault."""
        yield from self._frames(ended=True)
        left = len(self._data) - self._at
        if self._lost is not None:
            yield self._found_again("no header was found in the remaining")
        elif left and not self._late:
            yield self._cut_off(left)

    def _frames(self, *, ended: bool) -> Iterator[Item]:
        while True:
            if self._late or self._lost is not None:
                if not self._search(ended):
                    return
                yield from self._resume()
            available = len(self._data) - self._at
            if not available or (available < HEADER_SIZE and self._data[self._at] in MAGICS):
                return
            try:
                parts = self._parts()
            except RemoteProtocolError as error:
                self._lost = _fault(self._place(available), error, error.offset or 0)
                self._at += 1
                continue
            size = HEADER_SIZE + parts[3]
            if available < size:
                return
            frame = cut(self._data, self._at, parts)
            place = self._place(size)
            self._at += size
            yield _understood(place, frame, self._dialect, self._strict)

    def _parts(self) -> tuple[int, int, int, int]:
        """Lengths of the header at hand, known to fit."""
        framing, extras, key, body = body_lengths(self._data, self._at)
        name = opcode_name(self._data[self._at], self._data[self._at + 1])
        if body > BODY_SIZE_MAX:
            raise RemoteProtocolError(
                f"{name} claims a body of {body} bytes, limit {BODY_SIZE_MAX}", offset=8
            )
        if framing + extras + key > body:
            raise RemoteProtocolError(
                f"{name} has framing extras, extras and key of {framing}+{extras}+{key} bytes "
                f"in a body of {body}",
                offset=8,
            )
        return framing, extras, key, body

    def _search(self, ended: bool) -> bool:
        """Go to the next header with a plausible successor; False when more bytes are needed."""
        start = self._at
        at, found = _next_header(self._data, start, ended=ended)
        self._at = at if found or not ended else len(self._data)
        if self._late:
            self._account.bytes_before_first_frame[self._connection] += self._at - start
        return found

    def _resume(self) -> Iterator[Item]:
        """The place is found: tell what losing it has cost."""
        self._late = False
        if self._lost is not None:
            yield self._found_again("the next header was found after leaving out")

    def _found_again(self, how: str) -> Item:
        fault = self._lost
        assert fault is not None
        assert fault.error is not None
        self._lost = None
        left_out = self._base + self._at - fault.offset
        sentence = f"{fault.error}; {how} {left_out} bytes" if left_out else str(fault.error)
        return _fault(fault, _same_kind(fault.error, sentence), fault.error_at or 0)

    def _hole(self, piece: Piece) -> Iterator[Item]:
        """Account for a gap: it lies inside a frame whose end is known, or loses the place."""
        held = len(self._data) - self._at
        start = piece.offset - piece.missing
        gap = f"{piece.missing} bytes are missing from the capture at offset {start}"
        place = self._place(held)
        frame_end: int | None = None
        if self._skip:
            frame_end = self._base + self._at + held + self._skip
        elif held >= HEADER_SIZE and self._lost is None and not self._late:
            frame_end = place.offset + HEADER_SIZE + self._parts()[3]
        self._data.clear()
        self._at = 0
        self._base = piece.offset
        if frame_end is not None and frame_end >= piece.offset:
            self._skip = frame_end - piece.offset
            name = opcode_name(place.data[0], place.data[1]) if held else "a frame"
            yield _fault(place, CaptureError(f"{gap}, inside {name}"), held)
            return
        self._skip = 0
        if self._late:
            return
        if self._lost is not None:
            yield self._found_again("no header was found in")
        self._lost = _fault(place, CaptureError(gap), held)

    def _cut_off(self, left: int) -> Item:
        place = self._place(left)
        if left < HEADER_SIZE:
            sentence = f"the bytes end inside a header: {left} of {HEADER_SIZE} are there"
        else:
            size = HEADER_SIZE + self._parts()[3]
            name = opcode_name(place.data[0], place.data[1])
            sentence = f"the bytes end inside {name}: {left} of {size} are there"
        return _fault(place, CaptureError(sentence), left)

    def _place(self, size: int) -> Item:
        return Item(
            self._connection,
            self._direction,
            self._base + self._at,
            self._time,
            bytes(self._data[self._at : self._at + size]),
        )


def _continues(data: bytes | bytearray, at: int) -> bool:
    """True when what stands at ``at`` can be the beginning of another frame."""
    if len(data) - at >= HEADER_SIZE:
        return plausible_header(data, at)
    return at < len(data) and data[at] in MAGICS


def _same_kind(error: HeadraceError, sentence: str) -> HeadraceError:
    if isinstance(error, RemoteProtocolError):
        return RemoteProtocolError(sentence, offset=error.offset, fatal=True)
    return CaptureError(sentence)
