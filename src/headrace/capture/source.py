"""Open a capture whatever it is: pcap, pcapng, hex text or raw frames.

It comes from a file or from standard input; what is packed with gzip is unpacked on the way.

Rules
- `auto` looks at the first bytes only: the numbers of pcap and pcapng, a frame's magic (no text
  begins with one), else text must be hex. What is none of them is refused with the bytes that were
  found.
- A hex dump of whole packets (Ethernet or IP) is read like a capture without times.
- The pieces can be taken once, in order; the tally is complete when they have run out.

Imports: errors, capture.conversation, capture.hexdump, capture.packets, capture.pcap, capture.raw,
capture.reassembly.
"""

from __future__ import annotations

import gzip
import io
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from headrace.capture.conversation import Connection, Direction, Piece, RoleEvidence
from headrace.capture.guess import MAGICS, plausible_header
from headrace.capture.hexdump import TEXT_SIZE_MAX, Block, parse_hex
from headrace.capture.packets import (
    LINK_ETHERNET,
    LINK_RAW,
    LINK_TYPES,
    Packet,
    Segment,
    segment_of,
)
from headrace.capture.pcap import is_capture, read_packets
from headrace.capture.raw import file_connection, read_raw
from headrace.capture.reassembly import Reassembler, reassemble
from headrace.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.capture.reassembly import Tally

FORMATS: Final = ("auto", "raw", "hex", "pcap")
STDIN_NAME: Final = "standard input"
_PROBE_SIZE: Final = 4
_GZIP: Final = b"\x1f\x8b"
_LANES: Final = (Direction.CLIENT_TO_SERVER, Direction.SERVER_TO_CLIENT)


@dataclass(frozen=True, slots=True)
class Source:
    """An open capture: its pieces once, and what was counted on the way."""

    name: str
    format: str
    tally: Tally
    size: int | None
    _stream: BinaryIO
    _counted: io.BufferedIOBase | io.RawIOBase | BinaryIO
    _pieces: Iterator[Piece]

    def __iter__(self) -> Iterator[Piece]:
        """Yield the pieces; raises CaptureError where the file is damaged or unreadable."""
        try:
            yield from self._pieces
        except (OSError, EOFError) as error:
            raise _unreadable(self.name, error) from error
        self._refuse_nothing()

    @property
    def position(self) -> int:
        """Bytes of the file read so far, for a progress bar; 0 when the file cannot tell."""
        try:
            return self._counted.tell()
        except (OSError, ValueError):
            return 0

    def _refuse_nothing(self) -> None:
        """Packets without one TCP segment are a mistake worth a sentence, not an empty table."""
        tally = self.tally
        if tally.packets and not tally.segments:
            reasons = ", ".join(
                f"{count} {reason.value}" for reason, count in tally.skipped.most_common()
            )
            raise CaptureError(
                f"{self.name} holds {tally.packets} packets and none is TCP over IP: {reasons} "
                f"(link types that are read: {', '.join(map(str, sorted(LINK_TYPES)))})"
            )


@contextmanager
def open_source(path: str, format: str = "auto", port: int | None = None) -> Iterator[Source]:
    """Open a file, or standard input for `-`; with ``port`` only connections to that server port.

    Raises CaptureError for what cannot be opened or is in no known format.
    """
    if format not in FORMATS:
        raise CaptureError(f"format {format!r} is unknown; allowed: {', '.join(FORMATS)}")
    if path == "-":
        yield _source(sys.stdin.buffer, STDIN_NAME, None, format, port)
        return
    try:
        stream = Path(path).open("rb")  # noqa: SIM115 - closed below; opening has its own errors
    except OSError as error:
        raise _unreadable(path, error) from error
    with stream:
        size = os.fstat(stream.fileno()).st_size
        yield _source(stream, path, size, format, port)


def _unreadable(name: str, error: OSError | EOFError) -> CaptureError:
    if isinstance(error, IsADirectoryError):
        return CaptureError(
            f"{name} is a directory; name one capture file, or - for standard input"
        )
    if isinstance(error, FileNotFoundError):
        return CaptureError(f"{name} does not exist; name a capture file, or - for standard input")
    reason = getattr(error, "strerror", None) or str(error)
    return CaptureError(f"{name} cannot be read: {reason}")


def _source(file: BinaryIO, name: str, size: int | None, format: str, port: int | None) -> Source:
    try:
        stream, head = _unzipped(file)
    except (OSError, EOFError) as error:
        raise _unreadable(name, error) from error
    found = _guess(head, name) if format == "auto" else format
    reassembler = Reassembler(port=port)
    if found == "pcap":
        pieces = reassemble(read_packets(stream, name), reassembler)
    elif found == "raw":
        pieces = read_raw(stream, name)
    else:
        pieces = _hex_pieces(stream, name, reassembler)
    return Source(name, found, reassembler.tally, size, stream, file, pieces)


class _Rejoined(io.RawIOBase):
    """A stream with its first bytes put back: standard input cannot seek."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        super().__init__()
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._head:
            size = min(len(buffer), len(self._head))
            buffer[:size] = self._head[:size]
            self._head = self._head[size:]
            return size
        read = getattr(self._rest, "read1", self._rest.read)
        data = read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _unzipped(file: BinaryIO) -> tuple[BinaryIO, bytes]:
    """The bytes of a file, inflated if they are gzip, and the first few of them to judge by."""
    head = file.read(_PROBE_SIZE)
    if head[:2] == _GZIP:
        inner = cast("BinaryIO", gzip.GzipFile(fileobj=_rejoined(head, file)))
        head = inner.read(_PROBE_SIZE)
        return _rejoined(head, inner), head
    return _rejoined(head, file), head


def _rejoined(head: bytes, rest: BinaryIO) -> BinaryIO:
    return cast("BinaryIO", io.BufferedReader(_Rejoined(head, rest)))


def _guess(head: bytes, name: str) -> str:
    if not head:
        raise CaptureError(f"{name} is empty; frames, hex text, pcap or pcapng are wanted")
    if is_capture(head):
        return "pcap"
    if head[0] in MAGICS:
        return "raw"
    if head.startswith(b"\xef\xbb\xbf") or all(
        32 <= byte < 127 or byte in b"\t\r\n" for byte in head
    ):
        return "hex"
    raise CaptureError(
        f"{name} begins with {head.hex(' ')}, which is neither pcap, pcapng, hex text nor a frame "
        f"(first byte {', '.join(f'{magic:02x}' for magic in sorted(MAGICS))}); "
        "name its format if you know better",
        offset=0,
    )


def _hex_pieces(stream: BinaryIO, name: str, reassembler: Reassembler) -> Iterator[Piece]:
    data = stream.read(TEXT_SIZE_MAX + 1)
    if len(data) > TEXT_SIZE_MAX:
        raise CaptureError(
            f"{name} has more than {TEXT_SIZE_MAX} bytes of hex text, which is the limit"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CaptureError(
            f"{name} is not text: byte {data[error.start]:02x} at {error.start} is not UTF-8",
            offset=error.start,
        ) from error
    blocks = parse_hex(text, name)
    if not blocks:
        raise CaptureError(f"{name} holds no hex: bare hex, a dump or a drawing is wanted")
    link_type = _link_type(blocks[0].data)
    if link_type is not None:
        packets: Iterable[Packet] = (Packet(None, link_type, block.data) for block in blocks)
        yield from reassemble(packets, reassembler)
    elif any(block.lane for block in blocks):
        yield from _followed(blocks, name)
    else:
        yield from _drawn(blocks, name)


def _link_type(data: bytes) -> int | None:
    """The link type under which a block is a whole packet, or None: then it is frames."""
    if plausible_header(data):
        return None
    for link_type in (LINK_ETHERNET, LINK_RAW):
        if isinstance(segment_of(Packet(None, link_type, data)), Segment):
            return link_type
    return None


def _drawn(blocks: list[Block], name: str) -> Iterator[Piece]:
    connection = file_connection(name)
    offset = 0
    for block in blocks:
        yield Piece(connection, Direction.UNKNOWN, offset, block.data, whole=True, line=block.line)
        offset += len(block.data)


def _followed(blocks: list[Block], name: str) -> Iterator[Piece]:
    """A followed stream: whoever speaks first is the client, the indented rows are the server's."""
    connection = Connection(
        1, None, None, RoleEvidence.FIRST_MESSAGE, complete_start=True, name=name
    )
    offsets = dict.fromkeys(_LANES, 0)
    for block in blocks:
        direction = _LANES[block.lane]
        yield Piece(connection, direction, offsets[direction], block.data, line=block.line)
        offsets[direction] += len(block.data)
