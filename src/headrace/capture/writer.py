"""Conversations -> pcap: frames we made, as a TCP connection any tool can read.

A connection opens with the three segments of a handshake and closes with the two FINs; data goes in
segments of `SEGMENT_SIZE`, each acknowledged. Addresses choose IPv4 or IPv6; headers and checksums
are exact, so nothing has to be switched off in the reader. Times are kept to the nanosecond.

Rules
- Data of one direction follows the bytes already written for it: sequence numbers wrap as on a
  wire.
- What is written can be read again by capture.pcap: the same bytes, directions and times.

Imports: capture.conversation, capture.packets.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from struct import Struct
from typing import TYPE_CHECKING, BinaryIO, Final

from headrace.capture.conversation import Direction, Endpoint
from headrace.capture.packets import LINK_ETHERNET, TcpFlag

if TYPE_CHECKING:
    from collections.abc import Iterable

SEGMENT_SIZE: Final = 16 << 10
SERVER: Final = Endpoint("127.0.0.1", 11210)
CLIENT: Final = Endpoint("127.0.0.1", 40000)

_NANOSECONDS_PER_SECOND: Final = 1_000_000_000
_SNAP_LENGTH: Final = 256 << 10
_FILE_HEADER: Final = Struct(">IHHiIII")
_RECORD: Final = Struct(">IIII")
_TCP: Final = Struct(">HHIIBBHHH")
_IPV4: Final = Struct(">BBHHHBBH4s4s")
_IPV6: Final = Struct(">IHBB16s16s")
_ETHERNET_ADDRESSES: Final = bytes(12)
_WINDOW: Final = 0xFFFF
_HOP_LIMIT: Final = 64
_INITIAL: Final = {Direction.CLIENT_TO_SERVER: 1000, Direction.SERVER_TO_CLIENT: 2000}


@dataclass(frozen=True, slots=True)
class Said:
    """Bytes that one end sent at a time."""

    direction: Direction
    data: bytes
    timestamp_ns: int = 0


class PcapWriter:
    """A pcap file being written; connections come from `connect`."""

    def __init__(self, stream: BinaryIO) -> None:
        """Write the file header at once."""
        self._stream = stream
        stream.write(_FILE_HEADER.pack(0xA1B23C4D, 2, 4, 0, 0, _SNAP_LENGTH, LINK_ETHERNET))

    def connect(
        self, client: Endpoint = CLIENT, server: Endpoint = SERVER, *, timestamp_ns: int = 0
    ) -> ConnectionWriter:
        """Write a handshake and return the connection it opens."""
        return ConnectionWriter(self, client, server, timestamp_ns)

    def packet(self, data: bytes, timestamp_ns: int) -> None:
        """Write one packet."""
        seconds, rest = divmod(timestamp_ns, _NANOSECONDS_PER_SECOND)
        self._stream.write(_RECORD.pack(seconds, rest, len(data), len(data)) + data)


class ConnectionWriter:
    """One TCP connection in a pcap file."""

    def __init__(
        self, pcap: PcapWriter, client: Endpoint, server: Endpoint, timestamp_ns: int
    ) -> None:
        """Write the handshake."""
        self._pcap = pcap
        self._ends = {
            Direction.CLIENT_TO_SERVER: (client, server),
            Direction.SERVER_TO_CLIENT: (server, client),
        }
        self._next = dict(_INITIAL)
        there, back = Direction.CLIENT_TO_SERVER, Direction.SERVER_TO_CLIENT
        self._segment(there, TcpFlag.SYN, b"", timestamp_ns)
        self._segment(back, TcpFlag.SYN | TcpFlag.ACK, b"", timestamp_ns)
        self._segment(there, TcpFlag.ACK, b"", timestamp_ns)

    def send(self, direction: Direction, data: bytes, timestamp_ns: int = 0) -> None:
        """Write ``data`` as segments, and the other end's acknowledgement of each."""
        for start in range(0, len(data), SEGMENT_SIZE):
            chunk = data[start : start + SEGMENT_SIZE]
            self._segment(direction, TcpFlag.PSH | TcpFlag.ACK, chunk, timestamp_ns)
            self._segment(direction.reverse, TcpFlag.ACK, b"", timestamp_ns)

    def close(self, timestamp_ns: int = 0) -> None:
        """Write the end of both directions."""
        there, back = Direction.CLIENT_TO_SERVER, Direction.SERVER_TO_CLIENT
        self._segment(there, TcpFlag.FIN | TcpFlag.ACK, b"", timestamp_ns)
        self._segment(back, TcpFlag.FIN | TcpFlag.ACK, b"", timestamp_ns)
        self._segment(there, TcpFlag.ACK, b"", timestamp_ns)

    def _segment(
        self, direction: Direction, flags: TcpFlag, data: bytes, timestamp_ns: int
    ) -> None:
        source, destination = self._ends[direction]
        acknowledged = self._next[direction.reverse] if flags & TcpFlag.ACK else 0
        tcp = _TCP.pack(
            source.port,
            destination.port,
            self._next[direction],
            acknowledged,
            (_TCP.size // 4) << 4,
            flags,
            _WINDOW,
            0,
            0,
        )
        self._pcap.packet(_network(source, destination, tcp, data), timestamp_ns)
        length = len(data) + bool(flags & (TcpFlag.SYN | TcpFlag.FIN))
        self._next[direction] = (self._next[direction] + length) & 0xFFFF_FFFF


def _network(source: Endpoint, destination: Endpoint, tcp: bytes, data: bytes) -> bytes:
    """The whole Ethernet packet, both checksums filled in."""
    ends = ip_address(source.address), ip_address(destination.address)
    size = len(tcp) + len(data)
    if isinstance(ends[0], IPv4Address) and isinstance(ends[1], IPv4Address):
        addresses = ends[0].packed + ends[1].packed
        pseudo = addresses + Struct(">BBH").pack(0, 6, size)
        head = _IPV4.pack(
            0x45, 0, 20 + size, 0, 0x4000, _HOP_LIMIT, 6, 0, ends[0].packed, ends[1].packed
        )
        head = head[:10] + _checksum(head).to_bytes(2, "big") + head[12:]
        ethertype = b"\x08\x00"
    else:
        packed = [_as_ipv6(end).packed for end in ends]
        pseudo = b"".join(packed) + Struct(">II").pack(size, 6)
        head = _IPV6.pack(6 << 28, size, 6, _HOP_LIMIT, *packed)
        ethertype = b"\x86\xdd"
    checksum = _checksum(pseudo + tcp + data).to_bytes(2, "big")
    return b"".join((_ETHERNET_ADDRESSES, ethertype, head, tcp[:16], checksum, tcp[18:], data))


def _as_ipv6(address: IPv4Address | IPv6Address) -> IPv6Address:
    if isinstance(address, IPv6Address):
        return address
    return IPv6Address(f"::ffff:{address}")


def _checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071): the complement of the sum of 16-bit words."""
    if len(data) % 2:
        data += b"\0"
    # The sum of words modulo 0xffff is the number itself modulo 0xffff: 2**16 is 1 there.
    total = int.from_bytes(data, "big")
    folded = total % 0xFFFF
    return 0xFFFF - (folded or (0xFFFF if total else 0))


def write_pcap(
    stream: BinaryIO,
    conversation: Iterable[Said],
    *,
    client: Endpoint = CLIENT,
    server: Endpoint = SERVER,
) -> None:
    """Write one whole connection that says ``conversation``."""
    connection: ConnectionWriter | None = None
    last = 0
    for said in conversation:
        if connection is None:
            connection = PcapWriter(stream).connect(client, server, timestamp_ns=said.timestamp_ns)
        last = said.timestamp_ns
        connection.send(said.direction, said.data, last)
    if connection is None:
        connection = PcapWriter(stream).connect(client, server)
    connection.close(last)
