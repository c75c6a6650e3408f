"""One captured packet -> one TCP segment, or the reason why it is none.

The way down is a table per step: link type -> where the network header is, network protocol ->
where the TCP header is. Nothing is guessed: a packet that is not plain TCP over IP is counted under
a `Skip` and left out.

Rules
- Checksums are not judged: a capture on the sending host sees packets before the hardware fills
  them in.
- The IP length decides where the payload ends (Ethernet pads short packets); a length of 0 means
  that the network card was to cut the packet, and then all captured bytes count.
- A packet cut by the capture's snap length gives a short payload: the missing bytes become a gap
  later.
- IP fragments are counted, not put together: TCP avoids them, and half a segment would shift every
  offset.

Imports: errors, capture.conversation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntFlag
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from struct import Struct, unpack_from
from typing import Final

from headrace.capture.conversation import Endpoint

VLAN_TAGS_MAX: Final = 4
IPV6_EXTENSIONS_MAX: Final = 16
_ADDRESS_CACHE_SIZE: Final = 4096

LINK_NULL: Final = 0
LINK_ETHERNET: Final = 1
LINK_RAW_BSD: Final = 12
LINK_RAW_OPENBSD: Final = 14
LINK_RAW: Final = 101
LINK_LOOP: Final = 108
LINK_LINUX_SLL: Final = 113
LINK_IPV4: Final = 228
LINK_IPV6: Final = 229
LINK_LINUX_SLL2: Final = 276

_ETHERTYPE_IPV4: Final = 0x0800
_ETHERTYPE_IPV6: Final = 0x86DD
_VLAN_ETHERTYPES: Final = frozenset({0x8100, 0x88A8, 0x9100})
_PROTOCOL_TCP: Final = 6
# Address families that mean IPv6 in a null/loopback header: NetBSD and OpenBSD 24, FreeBSD 28,
# macOS 30.
_FAMILY_IPV4: Final = 2
_FAMILIES_IPV6: Final = frozenset({24, 28, 30})
_TCP_HEADER: Final = Struct(">HHIIBB")


class TcpFlag(IntFlag):
    """The TCP header bits that matter here."""

    FIN = 0x01
    SYN = 0x02
    RST = 0x04
    PSH = 0x08
    ACK = 0x10


class Skip(Enum):
    """Why a packet holds no TCP segment that we read."""

    LINK_TYPE = "of a link type that is not read"
    NOT_IP = "not IP"
    NOT_TCP = "not TCP"
    FRAGMENT = "IP fragments"
    CUT = "cut before the end of their headers"


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet of a capture file; `timestamp_ns` is None when the file has no times."""

    timestamp_ns: int | None
    link_type: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Segment:
    """One TCP segment; `payload_size` is what was sent, `payload` what was captured of it."""

    timestamp_ns: int | None
    source: Endpoint
    destination: Endpoint
    sequence: int
    acknowledgement: int
    flags: TcpFlag
    payload: bytes
    payload_size: int


class _SkippedError(Exception):
    """Carries a Skip from the step that found it; never leaves this module."""

    def __init__(self, reason: Skip) -> None:
        super().__init__(reason.value)
        self.reason = reason


# A network header: its protocol (an ethertype) and its offset in the packet.
_Network = tuple[int, int]


def segment_of(packet: Packet) -> Segment | Skip:
    """The TCP segment of a packet, or why there is none."""
    find_network = LINK_TYPES.get(packet.link_type)
    if find_network is None:
        return Skip.LINK_TYPE
    try:
        ethertype, offset = find_network(packet.data)
        read_network = _NETWORKS.get(ethertype)
        if read_network is None:
            return Skip.NOT_IP
        return read_network(packet, offset)
    except _SkippedError as skipped:
        return skipped.reason


def _need(data: bytes, end: int) -> None:
    if len(data) < end:
        raise _SkippedError(Skip.CUT)


def _ethernet(data: bytes) -> _Network:
    offset = 12
    for _ in range(VLAN_TAGS_MAX + 1):
        _need(data, offset + 2)
        (ethertype,) = unpack_from(">H", data, offset)
        if ethertype not in _VLAN_ETHERTYPES:
            return ethertype, offset + 2
        offset += 4
    raise _SkippedError(Skip.NOT_IP)


def _raw(data: bytes) -> _Network:
    _need(data, 1)
    return {4: _ETHERTYPE_IPV4, 6: _ETHERTYPE_IPV6}.get(data[0] >> 4, 0), 0


def _null(data: bytes) -> _Network:
    """The family is in the byte order of the capturing host; one order gives a small number."""
    _need(data, 4)
    family = min(int.from_bytes(data[:4], "little"), int.from_bytes(data[:4], "big"))
    if family == _FAMILY_IPV4:
        return _ETHERTYPE_IPV4, 4
    return (_ETHERTYPE_IPV6 if family in _FAMILIES_IPV6 else 0), 4


def _linux_cooked(data: bytes) -> _Network:
    _need(data, 16)
    (ethertype,) = unpack_from(">H", data, 14)
    return _behind_vlan(data, ethertype, 16)


def _linux_cooked_2(data: bytes) -> _Network:
    _need(data, 20)
    (ethertype,) = unpack_from(">H", data, 0)
    return _behind_vlan(data, ethertype, 20)


def _behind_vlan(data: bytes, ethertype: int, offset: int) -> _Network:
    for _ in range(VLAN_TAGS_MAX):
        if ethertype not in _VLAN_ETHERTYPES:
            break
        _need(data, offset + 4)
        (ethertype,) = unpack_from(">H", data, offset + 2)
        offset += 4
    return ethertype, offset


LINK_TYPES: Final[dict[int, Callable[[bytes], _Network]]] = {
    LINK_NULL: _null,
    LINK_ETHERNET: _ethernet,
    LINK_RAW_BSD: _raw,
    LINK_RAW_OPENBSD: _raw,
    LINK_RAW: _raw,
    LINK_LOOP: _null,
    LINK_LINUX_SLL: _linux_cooked,
    LINK_IPV4: _raw,
    LINK_IPV6: _raw,
    LINK_LINUX_SLL2: _linux_cooked_2,
}


def _ipv4(packet: Packet, offset: int) -> Segment:
    data = packet.data
    _need(data, offset + 20)
    header_size = (data[offset] & 0x0F) * 4
    if data[offset] >> 4 != 4 or header_size < 20:
        raise _SkippedError(Skip.NOT_IP)
    (total_size,) = unpack_from(">H", data, offset + 2)
    (fragment,) = unpack_from(">H", data, offset + 6)
    if fragment & 0x3FFF:  # the "more" bit or an offset; "don't fragment" (0x4000) is fine
        raise _SkippedError(Skip.FRAGMENT)
    if data[offset + 9] != _PROTOCOL_TCP:
        raise _SkippedError(Skip.NOT_TCP)
    end = offset + total_size if total_size else len(data)
    source = _ipv4_text(data[offset + 12 : offset + 16])
    destination = _ipv4_text(data[offset + 16 : offset + 20])
    return _tcp(packet, offset + header_size, end, source, destination)


def _ipv6(packet: Packet, offset: int) -> Segment:
    data = packet.data
    _need(data, offset + 40)
    if data[offset] >> 4 != 6:
        raise _SkippedError(Skip.NOT_IP)
    (payload_size,) = unpack_from(">H", data, offset + 4)
    end = offset + 40 + payload_size if payload_size else len(data)
    source = _ipv6_text(data[offset + 8 : offset + 24])
    destination = _ipv6_text(data[offset + 24 : offset + 40])
    transport = _behind_extensions(data, data[offset + 6], offset + 40)
    return _tcp(packet, transport, end, source, destination)


def _behind_extensions(data: bytes, next_header: int, offset: int) -> int:
    """Where TCP begins; an "atomic" fragment (offset 0, none to follow) is a whole packet."""
    for _ in range(IPV6_EXTENSIONS_MAX):
        if next_header == _PROTOCOL_TCP:
            return offset
        _need(data, offset + 8)
        if next_header == 44:  # fragment
            if unpack_from(">H", data, offset + 2)[0] & 0xFFF9:
                raise _SkippedError(Skip.FRAGMENT)
            size = 8
        elif next_header in (0, 43, 60):  # hop-by-hop, routing, destination options
            size = (data[offset + 1] + 1) * 8
        elif next_header == 51:  # authentication header counts in words of 4, less 2
            size = (data[offset + 1] + 2) * 4
        else:
            break
        next_header = data[offset]
        offset += size
    raise _SkippedError(Skip.NOT_TCP)


_NETWORKS: Final[dict[int, Callable[[Packet, int], Segment]]] = {
    _ETHERTYPE_IPV4: _ipv4,
    _ETHERTYPE_IPV6: _ipv6,
}


def _tcp(packet: Packet, offset: int, end: int, source: str, destination: str) -> Segment:
    data = packet.data
    _need(data, offset + 20)
    source_port, destination_port, sequence, acknowledgement, words, flags = (
        _TCP_HEADER.unpack_from(data, offset)
    )
    start = offset + (words >> 4) * 4
    if start < offset + 20 or start > end:
        raise _SkippedError(Skip.CUT)
    return Segment(
        packet.timestamp_ns,
        Endpoint(source, source_port),
        Endpoint(destination, destination_port),
        sequence,
        acknowledgement,
        TcpFlag(flags & 0x1F),
        data[start:end],
        end - start,
    )


@lru_cache(maxsize=_ADDRESS_CACHE_SIZE)
def _ipv4_text(raw: bytes) -> str:
    return str(IPv4Address(raw))


@lru_cache(maxsize=_ADDRESS_CACHE_SIZE)
def _ipv6_text(raw: bytes) -> str:
    return str(IPv6Address(raw))
