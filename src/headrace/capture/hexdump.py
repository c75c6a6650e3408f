r"""Hex in any of the shapes people paste -> blocks of bytes.

    80560000 14000000            bare hex, with spaces, colons or dashes, or none
    0x80, 0x56, \x00             lists and escapes, also with C or Python around them (xxd -i)
    00000000: 8056 0000  .V..    xxd, and any dump with a colon behind its offsets
    00000000  80 56 00  |.V.|    hexdump -C
    000000 80 56 00              od -A x -t x1 (and -A d, -A o: the radix is found by counting)
    0000   80 56 00   .V.        Wireshark; also followed streams (the server's rows are indented)
     0| 0x80 | 0x56 |            the drawings of protocol documents; all text around them is ignored

Rules
- The file's first row decides its shape (a drawing anywhere decides for drawings); every later row
  must have it.
- A block is what lies between blank lines, or from one offset 0 to the next. In bare hex every line
  is a block of its own when every line begins like a frame: people keep one frame per line.
- Offsets are checked against the bytes that stand before them, so a lost or doubled line is found.
- `*` repeats the row above it up to the next offset, as the tools mean it.
- What cannot be read is an error that names line and column; nothing is skipped in silence.

Imports: errors, capture.guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from headrace.capture.guess import MAGICS
from headrace.errors import CaptureError
from headrace.wire.frame import HEADER_SIZE

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT_SIZE_MAX: Final = 256 << 20
BLOCK_SIZE_MAX: Final = 64 << 20
_EXCERPT: Final = 24

_DIAGRAM_CELL: Final = re.compile(r"\s*0x([0-9a-fA-F]{2})\s*(?:\('.'\))?\s*\|")
_DIAGRAM_ROW: Final = re.compile(rf"\s*(\d+)\|((?:{_DIAGRAM_CELL.pattern})+)\s*$")
_COLON_OFFSET: Final = re.compile(r"(\s*)(?:0x)?([0-9a-fA-F]{4,16}):(?=\s|$)")
_PLAIN_OFFSET: Final = re.compile(r"(\s*)([0-9a-fA-F]{4,16})(?=\s|$)")
_PAIRS: Final = re.compile(r"\s+[0-9a-fA-F]{2}(?=\s|$)")
_ZERO_OFFSET: Final = re.compile(r"\s*0{4,16}\s+\S")
_LISTED: Final = re.compile(r"(?:0[xX]|\\x)([0-9a-fA-F]{1,2})(?![0-9a-zA-Z])")
_ESCAPED: Final = re.compile(r"\\x([0-9a-fA-F]{2})")
_COMMENT: Final = re.compile(r"//.*|/\*.*?\*/|(?:^|\s)#.*")
_BARE_GAP: Final = re.compile(r"[\s,;:\-]+")
_LIST_GAP: Final = re.compile(r"[\s,;{}\[\]()]+|b?[\"']")
_HEX_RUN: Final = re.compile(r"[0-9a-fA-F]+")
_COLON_END: Final = re.compile(r"\s{2}")
_PLAIN_END: Final = re.compile(r"\s{3}|\||>")
_FULL_ROW: Final = re.compile(r"(?:[0-9a-fA-F]{2}\s{1,2}){15}[0-9a-fA-F]{2}(?=\s{2})")
# What tshark writes above a followed stream.
_FOLLOW_HEAD: Final = re.compile(r"={3,}\s*$|(?:Follow|Filter|Node \d+): ")


class Shape(Enum):
    """How the rows of a file are written."""

    DIAGRAM = "drawing"
    COLON = "dump with colons"
    PLAIN = "dump"
    LIST = "list"
    BARE = "bare hex"


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes that belong together; ``lane`` is 1 for the indented rows of a followed stream."""

    data: bytes
    line: int
    lane: int = 0


@dataclass(slots=True)
class _Lane:
    """The rows of one indentation: how many bytes came, and which radix their offsets can have."""

    line: int = 0
    data: bytearray = field(default_factory=bytearray)
    total: int = 0
    base: str | None = None
    radices: tuple[int, ...] = (16, 10, 8)
    last_row: bytes = b""
    repeats: bool = False


class _Parser:
    """One pass over the lines of a file."""

    def __init__(self, lines: list[str], name: str) -> None:
        self._lines = lines
        self._name = name
        self._number = 0
        self._indents: list[int] = []

    def blocks(self) -> Iterator[Block]:
        shape = self._shape()
        if shape is Shape.LIST:
            yield from self._lists()
        elif shape is Shape.BARE:
            yield from self._bare()
        else:
            yield from self._dump(shape)

    def _numbered(self) -> Iterator[str]:
        """The lines; errors name the one at hand."""
        for self._number, line in enumerate(self._lines, start=1):  # noqa: B020 - the line at hand
            yield line

    def _shape(self) -> Shape:
        if any(_DIAGRAM_ROW.match(line) for line in self._lines):
            return Shape.DIAGRAM
        for line in self._lines:
            text = _COMMENT.sub("", line)
            if not text.strip() or _FOLLOW_HEAD.match(text):
                continue
            if _COLON_OFFSET.match(text):
                return Shape.COLON
            if _LISTED.search(text) or text.rstrip().endswith("{"):
                return Shape.LIST
            if _ZERO_OFFSET.match(text) or _is_plain_row(text):
                return Shape.PLAIN
            return Shape.BARE
        return Shape.BARE

    # Dumps: every row has an offset.

    def _dump(self, shape: Shape) -> Iterator[Block]:
        lanes: dict[int, _Lane] = {}
        current = 0
        for line in self._numbered():
            if shape is Shape.DIAGRAM and not _DIAGRAM_ROW.match(line):
                continue
            if not line.strip() or _FOLLOW_HEAD.match(line):
                continue
            if line.strip() == "*":
                if current in lanes:
                    lanes[current].repeats = True
                continue
            offset, data, indent = self._row(shape, line)
            number = 0 if shape is Shape.DIAGRAM else self._lane_number(indent)
            if number != current and current in lanes:
                yield from self._cut(lanes[current], current)
            current = number
            lane = lanes.setdefault(number, _Lane())
            if lane.total and not offset.strip("0"):
                yield from self._cut(lane, number)
                lane = lanes[number] = _Lane()
            self._append(lane, offset, data)
        for number, lane in lanes.items():
            yield from self._cut(lane, number)

    def _lane_number(self, indent: int) -> int:
        if indent not in self._indents:
            self._indents.append(indent)
        return min(self._indents.index(indent), 1)

    def _cut(self, lane: _Lane, number: int) -> Iterator[Block]:
        """Hand on the rows of a lane; its count of bytes goes on."""
        if lane.data:
            yield Block(bytes(lane.data), lane.line, number)
        lane.data.clear()

    def _row(self, shape: Shape, line: str) -> tuple[str, bytes, int]:
        """(offset as written, bytes, indentation) of one row."""
        if shape is Shape.DIAGRAM:
            match = _DIAGRAM_ROW.match(line)
            assert match is not None
            cells = _DIAGRAM_CELL.findall(match[2])
            return match[1], bytes.fromhex("".join(cells)), 0
        match = (_COLON_OFFSET if shape is Shape.COLON else _PLAIN_OFFSET).match(line)
        if match is None:
            raise self._error(line, len(line) - len(line.lstrip()), "an offset is wanted here")
        start = match.end()
        end = _hex_end(line, start, colon=shape is Shape.COLON)
        data = bytearray()
        for token in re.finditer(r"\S+", line[start:end]):
            at = start + token.start()
            if not _HEX_RUN.fullmatch(token[0]) or len(token[0]) % 2:
                raise self._error(line, at, "pairs of hex digits are wanted here")
            if shape is Shape.PLAIN and len(token[0]) != 2:
                raise self._error(
                    line,
                    at,
                    "single bytes are wanted here (words are in the byte order of the machine "
                    "that printed them: use hexdump -C, or od -A x -t x1)",
                )
            data += bytes.fromhex(token[0])
        return match[2], bytes(data), len(match[1].expandtabs(4))

    def _append(self, lane: _Lane, offset: str, data: bytes) -> None:
        """Check the offset against what came before, fill a repetition, add the row."""
        if lane.base is None:
            lane.base = offset
            lane.line = self._number
        if not lane.data:
            lane.line = self._number
        fits = {}
        for radix in lane.radices:
            try:
                place = int(offset, radix) - int(lane.base, radix)
            except ValueError:
                continue
            hole = place - lane.total
            if hole == 0 or (lane.repeats and hole > 0 and hole % len(lane.last_row) == 0):
                fits[radix] = hole
        if not fits:
            raise CaptureError(
                f"{self._name} line {self._number} says offset {offset}, but {lane.total} bytes "
                "stand before it: a row is missing, doubled or too short"
            )
        lane.radices = tuple(fits)
        hole = fits[lane.radices[0]]
        if lane.total + hole + len(data) > BLOCK_SIZE_MAX:
            raise CaptureError(
                f"{self._name} line {self._number}: a block of "
                f"{lane.total + hole + len(data)} bytes, limit {BLOCK_SIZE_MAX}"
            )
        if hole:
            lane.data += lane.last_row * (hole // len(lane.last_row))
        lane.data += data
        lane.total += hole + len(data)
        lane.repeats = False
        lane.last_row = data or lane.last_row

    # Lists and bare hex: no offsets.

    def _lists(self) -> Iterator[Block]:
        data = bytearray()
        first = 0
        for line in self._numbered():
            text = _COMMENT.sub(lambda match: " " * len(match[0]), line)
            if _LISTED.search(text):
                first = first if data else self._number
                data += self._listed(text)
            if data and (not line.strip() or "}" in text):
                yield Block(bytes(data), first)
                data.clear()
        if data:
            yield Block(bytes(data), first)

    def _listed(self, text: str) -> bytes:
        """The bytes of a line that has some; what stands before a brace is a declaration."""
        at = text.find("{") + 1 if "{" in text else 0
        found = bytearray()
        while at < len(text):
            if match := _ESCAPED.match(text, at) or _LISTED.match(text, at):
                found.append(int(match[1], 16))
            elif not (match := _LIST_GAP.match(text, at)):
                raise self._error(text, at, "0x00 to 0xff, commas and brackets are allowed here")
            at = match.end()
        return bytes(found)

    def _bare(self) -> Iterator[Block]:
        rows: list[Block] = []
        for line in self._numbered():
            data = self._bare_row(_COMMENT.sub(lambda match: " " * len(match[0]), line))
            if data:
                rows.append(Block(data, self._number))
            elif not line.strip():
                yield from _join_unless_frames(rows)
                rows = []
        yield from _join_unless_frames(rows)

    def _bare_row(self, text: str) -> bytes:
        try:
            return bytes.fromhex(text)  # the common case, and quick for very long lines
        except ValueError:
            pass
        found = bytearray()
        at = 0
        while at < len(text):
            if match := _HEX_RUN.match(text, at):
                if len(match[0]) % 2:
                    raise self._error(text, at, "hex digits come in pairs")
                found += bytes.fromhex(match[0])
            elif not (match := _BARE_GAP.match(text, at)):
                raise self._error(text, at, "hex digits are wanted here")
            at = match.end()
        return bytes(found)

    def _error(self, line: str, at: int, what: str) -> CaptureError:
        found = line[at : at + _EXCERPT].rstrip()
        return CaptureError(
            f"{self._name} line {self._number}, column {at + 1}: {what}, found {found!r}"
        )


def _is_plain_row(line: str) -> bool:
    """True for a row such as `000010 80 56 00`: a long number, then pairs only."""
    match = _PLAIN_OFFSET.match(line)
    if match is None or len(match[2]) < 6:
        return False
    end = _hex_end(line, match.end(), colon=False)
    rest = line[match.end() : end]
    return bool(rest.strip()) and _PAIRS.sub("", rest).strip() == ""


def _hex_end(line: str, start: int, *, colon: bool) -> int:
    """Where the bytes of a dump's row end and its text column begins.

    With a colon two spaces do it; without one they may part the halves of a row, so it takes three
    spaces, two behind a full row, a bar (hexdump -C) or an angle bracket (od -t x1z).
    """
    first = start
    while first < len(line) and line[first].isspace():
        first += 1
    mark = (_COLON_END if colon else _PLAIN_END).search(line, first)
    end = mark.start() if mark else len(line)
    full = None if colon else _FULL_ROW.match(line, first)
    return min(end, full.end()) if full else end


def _join_unless_frames(rows: list[Block]) -> Iterator[Block]:
    """The rows as one block, or each by itself when each begins like a frame."""
    if not rows:
        return
    if all(len(row.data) >= HEADER_SIZE and row.data[0] in MAGICS for row in rows):
        yield from rows
    else:
        yield Block(b"".join(row.data for row in rows), rows[0].line)


def parse_hex(text: str, name: str) -> list[Block]:
    """The blocks of a text; raises CaptureError with line and column of what is not hex."""
    return list(_Parser(text.splitlines(), name).blocks())
