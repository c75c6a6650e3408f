"""pcapng files -> packets.

A pcapng file is a run of blocks: type, total size, body, total size again. A section header block
sets the byte order and forgets all interfaces; an interface block gives the link type and the unit
of time of the packets that name it.

Rules
- Read: section (0a0d0d0a), interface (1), old packet (2), simple packet (3), enhanced packet (6).
  All other blocks are stepped over by their size.
- A simple packet belongs to interface 0 and has no time.
- No size is believed beyond `BLOCK_SIZE_MAX`, no section may have more than `INTERFACES_MAX`
  interfaces.

Imports: errors, capture.packets.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import BinaryIO, Final

from headrace.capture.packets import Packet
from headrace.errors import CaptureError

PACKET_SIZE_MAX: Final = 1 << 20
BLOCK_SIZE_MAX: Final = 16 << 20
INTERFACES_MAX: Final = 4096

SECTION_HEADER: Final = b"\x0a\x0d\x0d\x0a"
_BYTE_ORDERS: Final = {b"\x1a\x2b\x3c\x4d": ">", b"\x4d\x3c\x2b\x1a": "<"}
_INTERFACE, _OLD_PACKET, _SIMPLE_PACKET, _ENHANCED_PACKET = 1, 2, 3, 6
_BLOCK_OVERHEAD: Final = 12
_OPTION_END, _OPTION_RESOLUTION, _OPTION_TIME_OFFSET = 0, 9, 14
_RESOLUTION_DEFAULT: Final = 6  # 10**-6 seconds
_NANOSECONDS_PER_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Interface:
    link_type: int
    snap_length: int
    ticks_per_second: int
    offset_seconds: int

    def time(self, high: int, low: int) -> int:
        ticks = high << 32 | low
        return (
            ticks * _NANOSECONDS_PER_SECOND // self.ticks_per_second
            + self.offset_seconds * _NANOSECONDS_PER_SECOND
        )


class _Reader:
    """One pass over the blocks; knows the current section's byte order and interfaces."""

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self._stream = stream
        self._name = name
        self._offset = 4
        self._order = "<"
        self._interfaces: list[_Interface] = []

    def packets(self) -> Iterator[Packet]:
        """Every packet; the first block's type was read by the caller."""
        packet_blocks: dict[int, Callable[[bytes], Packet]] = {
            _OLD_PACKET: self._old_packet,
            _SIMPLE_PACKET: self._simple_packet,
            _ENHANCED_PACKET: self._enhanced_packet,
        }
        raw_type = SECTION_HEADER
        while raw_type:
            if raw_type == SECTION_HEADER:
                self._section()
            else:
                kind = int(Struct(self._order + "I").unpack(raw_type)[0])
                body = self._body(self._exactly(4), already=8)
                if kind == _INTERFACE:
                    self._interface(body)
                elif kind in packet_blocks:
                    yield packet_blocks[kind](body)
            raw_type = self._stream.read(4)
            self._offset += len(raw_type)
            if raw_type and len(raw_type) < 4:
                raise self._error(f"ends inside a block header, after {len(raw_type)} of 4 bytes")

    def _section(self) -> None:
        raw_size, raw_order = self._exactly(4), self._exactly(4)
        if raw_order not in _BYTE_ORDERS:
            raise self._error(
                f"has a section whose byte-order mark is {raw_order.hex()}, "
                "not 1a2b3c4d in either order"
            )
        self._order = _BYTE_ORDERS[raw_order]
        self._interfaces = []
        self._body(raw_size, already=12)

    def _body(self, raw_size: bytes, *, already: int) -> bytes:
        """The rest of a block of which `already` bytes were read, without its closing size."""
        (size,) = Struct(self._order + "I").unpack(raw_size)
        if size < max(_BLOCK_OVERHEAD, already + 4) or size % 4 or size > BLOCK_SIZE_MAX:
            raise self._error(
                f"has a block of {size} bytes, allowed are multiples of 4 from {_BLOCK_OVERHEAD} "
                f"to {BLOCK_SIZE_MAX}"
            )
        body = self._exactly(size - already - 4)
        if (closing := self._exactly(4)) != raw_size:
            (found,) = Struct(self._order + "I").unpack(closing)
            raise self._error(f"has a block that opens with size {size} and closes with {found}")
        return body

    def _interface(self, body: bytes) -> None:
        if len(self._interfaces) == INTERFACES_MAX:
            raise self._error(f"has more than {INTERFACES_MAX} interfaces in one section")
        link_type, _, snap_length = self._fields("HHI", body)
        resolution, offset_seconds = _RESOLUTION_DEFAULT, 0
        for code, value in self._options(body, 8):
            if code == _OPTION_RESOLUTION and len(value) == 1:
                resolution = value[0]
            elif code == _OPTION_TIME_OFFSET and len(value) == 8:
                (offset_seconds,) = Struct(self._order + "q").unpack(value)
        base, exponent = (2, resolution & 0x7F) if resolution & 0x80 else (10, resolution)
        self._interfaces.append(_Interface(link_type, snap_length, base**exponent, offset_seconds))

    def _options(self, body: bytes, at: int) -> Iterator[tuple[int, bytes]]:
        head = Struct(self._order + "HH")
        while at + 4 <= len(body):
            code, size = head.unpack_from(body, at)
            if code == _OPTION_END:
                return
            yield code, body[at + 4 : at + 4 + size]
            at += 4 + (size + 3) // 4 * 4

    def _enhanced_packet(self, body: bytes) -> Packet:
        number, high, low, captured_size, _ = self._fields("IIIII", body)
        interface = self._named_interface(number)
        return self._packet(interface, interface.time(high, low), body, 20, captured_size)

    def _old_packet(self, body: bytes) -> Packet:
        number, _drops, high, low, captured_size, _ = self._fields("HHIIII", body)
        interface = self._named_interface(number)
        return self._packet(interface, interface.time(high, low), body, 20, captured_size)

    def _simple_packet(self, body: bytes) -> Packet:
        (original_size,) = self._fields("I", body)
        interface = self._named_interface(0)
        limit = interface.snap_length or original_size
        captured_size = min(original_size, limit, len(body) - 4)
        return self._packet(interface, None, body, 4, captured_size)

    def _packet(
        self, interface: _Interface, time: int | None, body: bytes, start: int, size: int
    ) -> Packet:
        if size > PACKET_SIZE_MAX or start + size > len(body):
            raise self._error(
                f"has a packet that claims {size} bytes in a block with room for "
                f"{len(body) - start}, limit {PACKET_SIZE_MAX}"
            )
        return Packet(time, interface.link_type, body[start : start + size])

    def _named_interface(self, number: int) -> _Interface:
        if number >= len(self._interfaces):
            raise self._error(
                f"has a packet of interface {number}, but its section describes "
                f"{len(self._interfaces)} interface(s)"
            )
        return self._interfaces[number]

    def _fields(self, layout: str, body: bytes) -> tuple[int, ...]:
        fields = Struct(self._order + layout)
        if len(body) < fields.size:
            raise self._error(
                f"has a block with a body of {len(body)} bytes, at least {fields.size} are needed"
            )
        return fields.unpack_from(body)

    def _exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._offset += len(data)
        if len(data) < size:
            raise self._error(f"ends inside a block: {len(data)} of {size} bytes are there")
        return data

    def _error(self, what: str) -> CaptureError:
        return CaptureError(f"{self._name} {what} (near byte {self._offset})")


def read_pcapng(stream: BinaryIO, name: str) -> Iterator[Packet]:
    """Yield every packet of a pcapng file whose first four bytes were already read."""
    return _Reader(stream, name).packets()
