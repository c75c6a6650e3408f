"""Capture files -> packets: classic pcap here, pcapng in its neighbour, one door for both.

Classic pcap: a 24-byte header, then per packet 16 bytes (seconds, fraction, captured size, original
size) and the captured bytes. The magic number tells the byte order and whether fractions are micro-
or nanoseconds.

Rules
- Packets come out as they are read; a file cut in the middle gives all its whole packets first and
  then the error that says where it ends.
- No size read from the file is believed beyond `PACKET_SIZE_MAX`.

Imports: errors, capture.packets, capture.pcapng.
"""

from collections.abc import Iterator
from struct import Struct
from typing import BinaryIO, Final

from headrace.capture.packets import Packet
from headrace.capture.pcapng import (
    PACKET_SIZE_MAX,
    SECTION_HEADER,
    read_pcapng,
)
from headrace.errors import CaptureError

__all__ = ["PACKET_SIZE_MAX", "is_capture", "read_packets"]

_NANOSECONDS_PER_SECOND: Final = 1_000_000_000
# Magic number as it lies in the file -> (byte order for struct, nanoseconds per unit of the
# fraction).
_CLASSIC: Final[dict[bytes, tuple[str, int]]] = {
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\x3c\x4d": (">", 1),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
}
_FILE_HEADER_SIZE: Final = 24
_RECORD_HEADER_SIZE: Final = 16


def is_capture(head: bytes) -> bool:
    """True when a file that begins with these four bytes is a pcap or pcapng file."""
    return head[:4] in _CLASSIC or head[:4] == SECTION_HEADER


def read_packets(stream: BinaryIO, name: str) -> Iterator[Packet]:
    """Yield every packet of a pcap or pcapng file; raises CaptureError where it is damaged."""
    magic = stream.read(4)
    if magic == SECTION_HEADER:
        return read_pcapng(stream, name)
    if magic not in _CLASSIC:
        raise CaptureError(
            f"{name} begins with {magic.hex(' ') or 'nothing'}, which is neither pcap "
            "(a1b2c3d4 or a1b23c4d in either byte order) nor pcapng (0a0d0d0a)"
        )
    return _read_classic(stream, name, *_CLASSIC[magic])


def _read_classic(
    stream: BinaryIO, name: str, order: str, nanoseconds_per_unit: int
) -> Iterator[Packet]:
    rest = stream.read(_FILE_HEADER_SIZE - 4)
    if len(rest) < _FILE_HEADER_SIZE - 4:
        raise CaptureError(
            f"{name} ends after {4 + len(rest)} bytes, inside its file header of "
            f"{_FILE_HEADER_SIZE}"
        )
    # The upper half of the last word describes frame check sequences, the lower half is the link
    # type.
    link_type = Struct(order + "I").unpack_from(rest, 16)[0] & 0xFFFF
    record = Struct(order + "IIII")
    offset = _FILE_HEADER_SIZE
    number = 0
    while header := stream.read(_RECORD_HEADER_SIZE):
        number += 1
        if len(header) < _RECORD_HEADER_SIZE:
            raise _cut(name, number, offset, len(header), _RECORD_HEADER_SIZE)
        seconds, fraction, captured_size, _original_size = record.unpack(header)
        if captured_size > PACKET_SIZE_MAX:
            raise CaptureError(
                f"{name}: packet {number} at byte {offset} claims {captured_size} bytes, "
                f"limit {PACKET_SIZE_MAX}"
            )
        data = stream.read(captured_size)
        if len(data) < captured_size:
            raise _cut(name, number, offset, len(header) + len(data), len(header) + captured_size)
        time = seconds * _NANOSECONDS_PER_SECOND + fraction * nanoseconds_per_unit
        yield Packet(time, link_type, data)
        offset += _RECORD_HEADER_SIZE + captured_size


def _cut(name: str, number: int, offset: int, found: int, wanted: int) -> CaptureError:
    return CaptureError(
        f"{name} ends inside packet {number} at byte {offset}: "
        f"{found} of its {wanted} bytes are there"
    )
