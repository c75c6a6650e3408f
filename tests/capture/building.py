"""Packets made by hand for tests, without the code that is tested."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address

from headrace.capture.conversation import Endpoint
from headrace.capture.packets import Segment, TcpFlag

A = Endpoint("10.0.0.1", 40000)
B = Endpoint("10.0.0.2", 11210)


def tcp(
    payload: bytes = b"",
    *,
    sequence: int = 0,
    acknowledgement: int = 0,
    flags: int = 0x10,
    ports: tuple[int, int] = (A.port, B.port),
    options: bytes = b"",
) -> bytes:
    """A TCP segment; options must be a multiple of 4 bytes."""
    words = (20 + len(options)) // 4
    head = struct.pack(">HHIIBBHHH", *ports, sequence, acknowledgement, words << 4, flags, 0, 0, 0)
    return head + options + payload


def ipv4(
    transport: bytes,
    *,
    protocol: int = 6,
    options: bytes = b"",
    fragment: int = 0x4000,
    size: int | None = None,
) -> bytes:
    """An IPv4 packet from A to B."""
    words = (20 + len(options)) // 4
    total = 20 + len(options) + len(transport) if size is None else size
    head = struct.pack(
        ">BBHHHBBH4s4s",
        0x40 | words,
        0,
        total,
        7,
        fragment,
        64,
        protocol,
        0,
        IPv4Address(A.address).packed,
        IPv4Address(B.address).packed,
    )
    return head + options + transport


def ipv6(payload: bytes, *, next_header: int = 6, size: int | None = None) -> bytes:
    """An IPv6 packet from fe80::1 to fe80::2."""
    length = len(payload) if size is None else size
    ends = IPv6Address("fe80::1").packed + IPv6Address("fe80::2").packed
    return struct.pack(">IHBB", 6 << 28, length, next_header, 64) + ends + payload


def ethernet(network: bytes, *, ethertype: int = 0x0800, tags: tuple[int, ...] = ()) -> bytes:
    """An Ethernet packet, behind VLAN tags of these types."""
    vlan = b"".join(struct.pack(">HH", tag, 5) for tag in tags)
    return bytes(12) + vlan + struct.pack(">H", ethertype) + network


def pcap(
    packets: list[tuple[int, int, bytes]],
    *,
    order: str = "<",
    magic: int = 0xA1B2C3D4,
    link: int = 1,
) -> bytes:
    """A classic pcap file of (seconds, fraction, packet)."""
    parts = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, link)]
    for seconds, fraction, data in packets:
        parts.append(struct.pack(order + "IIII", seconds, fraction, len(data), len(data)) + data)
    return b"".join(parts)


def segment(
    payload: bytes = b"",
    *,
    sequence: int = 0,
    flags: TcpFlag = TcpFlag.ACK,
    reverse: bool = False,
    acknowledgement: int = 0,
    time: int | None = None,
    size: int | None = None,
    ends: tuple[Endpoint, Endpoint] = (A, B),
) -> Segment:
    """A segment from A to B, or back; ``size`` when more was sent than captured."""
    source, destination = (ends[1], ends[0]) if reverse else ends
    return Segment(
        time,
        source,
        destination,
        sequence & 0xFFFF_FFFF,
        acknowledgement & 0xFFFF_FFFF,
        flags,
        payload,
        len(payload) if size is None else size,
    )
