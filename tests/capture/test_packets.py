from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture.packets import (
    IPV6_EXTENSIONS_MAX,
    LINK_ETHERNET,
    LINK_IPV4,
    LINK_IPV6,
    LINK_LINUX_SLL,
    LINK_LINUX_SLL2,
    LINK_LOOP,
    LINK_NULL,
    LINK_RAW,
    LINK_TYPES,
    VLAN_TAGS_MAX,
    Packet,
    Segment,
    Skip,
    TcpFlag,
    segment_of,
)
from tests.capture.building import A, B, ethernet, ipv4, ipv6, tcp

PAYLOAD = b"\x80\x57payload"


def found(data: bytes, link: int = LINK_ETHERNET) -> Segment:
    segment = segment_of(Packet(5, link, data))
    assert isinstance(segment, Segment), segment
    return segment


def skipped(data: bytes, link: int = LINK_ETHERNET) -> Skip:
    segment = segment_of(Packet(5, link, data))
    assert isinstance(segment, Skip), segment
    return segment


def test_every_number_of_a_segment_stands_where_tcp_draws_it() -> None:
    segment = found(
        ethernet(ipv4(tcp(PAYLOAD, sequence=0x01020304, acknowledgement=0x05060708, flags=0x1F)))
    )
    assert (segment.source, segment.destination) == (A, B)
    assert (segment.sequence, segment.acknowledgement) == (0x01020304, 0x05060708)
    assert segment.flags == TcpFlag.FIN | TcpFlag.SYN | TcpFlag.RST | TcpFlag.PSH | TcpFlag.ACK
    assert (segment.payload, segment.payload_size, segment.timestamp_ns) == (PAYLOAD, 9, 5)


LINKS = {
    "ethernet": (LINK_ETHERNET, ethernet(ipv4(tcp(PAYLOAD)))),
    "one VLAN tag": (LINK_ETHERNET, ethernet(ipv4(tcp(PAYLOAD)), tags=(0x8100,))),
    "stacked VLAN tags": (LINK_ETHERNET, ethernet(ipv4(tcp(PAYLOAD)), tags=(0x88A8, 0x8100))),
    "raw": (LINK_RAW, ipv4(tcp(PAYLOAD))),
    "raw IPv4": (LINK_IPV4, ipv4(tcp(PAYLOAD))),
    "raw BSD": (12, ipv4(tcp(PAYLOAD))),
    "raw OpenBSD": (14, ipv4(tcp(PAYLOAD))),
    "null, little-endian": (LINK_NULL, b"\x02\0\0\0" + ipv4(tcp(PAYLOAD))),
    "null, big-endian": (LINK_NULL, b"\0\0\0\x02" + ipv4(tcp(PAYLOAD))),
    "loop": (LINK_LOOP, b"\0\0\0\x02" + ipv4(tcp(PAYLOAD))),
    "cooked": (LINK_LINUX_SLL, bytes(14) + b"\x08\x00" + ipv4(tcp(PAYLOAD))),
    "cooked, VLAN": (LINK_LINUX_SLL, bytes(14) + b"\x81\0\0\x05\x08\0" + ipv4(tcp(PAYLOAD))),
    "cooked v2": (LINK_LINUX_SLL2, b"\x08\x00" + bytes(18) + ipv4(tcp(PAYLOAD))),
}


@pytest.mark.parametrize(("link", "data"), LINKS.values(), ids=LINKS)
def test_each_link_type_finds_the_same_segment(link: int, data: bytes) -> None:
    segment = found(data, link)
    assert (segment.source, segment.destination, segment.payload) == (A, B, PAYLOAD)


@pytest.mark.parametrize(
    ("link", "head"),
    [
        (LINK_ETHERNET, bytes(12) + b"\x86\xdd"),
        (LINK_RAW, b""),
        (LINK_IPV6, b""),
        (LINK_NULL, b"\x18\0\0\0"),
        (LINK_NULL, b"\x1c\0\0\0"),
        (LINK_NULL, b"\0\0\0\x1e"),
        (LINK_LINUX_SLL, bytes(14) + b"\x86\xdd"),
        (LINK_LINUX_SLL2, b"\x86\xdd" + bytes(18)),
    ],
)
def test_ipv6_is_found_under_each_link_type(link: int, head: bytes) -> None:
    segment = found(head + ipv6(tcp(PAYLOAD)), link)
    assert (segment.source.address, segment.destination.address) == ("fe80::1", "fe80::2")
    assert segment.payload == PAYLOAD


def test_every_link_type_of_the_table_is_tried_above() -> None:
    tried = {link for link, _ in LINKS.values()} | {LINK_IPV6}
    assert tried == set(LINK_TYPES)


def test_options_of_ip_and_tcp_are_stepped_over() -> None:
    data = ethernet(ipv4(tcp(PAYLOAD, options=bytes(12)), options=bytes(8)))
    assert found(data).payload == PAYLOAD


def test_padding_behind_the_ip_length_is_no_payload() -> None:
    segment = found(ethernet(ipv4(tcp())) + bytes(6))
    assert (segment.payload, segment.payload_size) == (b"", 0)


def test_a_length_of_0_means_that_all_captured_bytes_count() -> None:
    assert found(ethernet(ipv4(tcp(PAYLOAD), size=0))).payload == PAYLOAD
    assert found(ipv6(tcp(PAYLOAD), size=0), LINK_RAW).payload == PAYLOAD


def test_a_packet_cut_by_the_snap_length_tells_how_much_was_sent() -> None:
    segment = found(ethernet(ipv4(tcp(PAYLOAD)))[:-4])
    assert (segment.payload, segment.payload_size) == (PAYLOAD[:-4], len(PAYLOAD))


def extension(kind: int, size: int, payload: bytes) -> bytes:
    return bytes([kind, size // 8 - 1]) + bytes(size - 2) + payload


IPV6_CHAINS = {
    "hop-by-hop": (0, extension(6, 8, tcp(PAYLOAD))),
    "routing, then options": (43, extension(60, 24, extension(6, 16, tcp(PAYLOAD)))),
    "authentication": (51, b"\x06\x04" + bytes(22) + tcp(PAYLOAD)),
    "atomic fragment": (44, b"\x06\0\0\0\0\0\0\x07" + tcp(PAYLOAD)),
}


@pytest.mark.parametrize(("kind", "payload"), IPV6_CHAINS.values(), ids=IPV6_CHAINS)
def test_ipv6_extension_headers_are_stepped_over(kind: int, payload: bytes) -> None:
    assert found(ipv6(payload, next_header=kind), LINK_RAW).payload == PAYLOAD


SKIPS = {
    "unknown link type": (Skip.LINK_TYPE, 105, b"anything"),
    "ARP": (Skip.NOT_IP, LINK_ETHERNET, ethernet(bytes(28), ethertype=0x0806)),
    "too many VLAN tags": (
        Skip.NOT_IP,
        LINK_ETHERNET,
        ethernet(ipv4(tcp()), tags=(0x8100,) * (VLAN_TAGS_MAX + 1)),
    ),
    "raw of no version": (Skip.NOT_IP, LINK_RAW, b"\x00" * 40),
    "null of another family": (Skip.NOT_IP, LINK_NULL, b"\x07\0\0\0" + ipv4(tcp())),
    "wrong version in IPv4": (Skip.NOT_IP, LINK_ETHERNET, ethernet(b"\x55" + ipv4(tcp())[1:])),
    "IPv4 header of 16 bytes": (Skip.NOT_IP, LINK_ETHERNET, ethernet(b"\x44" + ipv4(tcp())[1:])),
    "wrong version in IPv6": (
        Skip.NOT_IP,
        LINK_ETHERNET,
        ethernet(b"\x45" + ipv6(tcp())[1:], ethertype=0x86DD),
    ),
    "UDP": (Skip.NOT_TCP, LINK_ETHERNET, ethernet(ipv4(bytes(20), protocol=17))),
    "UDP over IPv6": (Skip.NOT_TCP, LINK_RAW, ipv6(bytes(20), next_header=17)),
    "too many extensions": (
        Skip.NOT_TCP,
        LINK_RAW,
        ipv6(bytes(8) * (IPV6_EXTENSIONS_MAX + 1), next_header=0),
    ),
    "first fragment": (Skip.FRAGMENT, LINK_ETHERNET, ethernet(ipv4(tcp(), fragment=0x2000))),
    "last fragment": (Skip.FRAGMENT, LINK_ETHERNET, ethernet(ipv4(tcp(), fragment=0x0010))),
    "IPv6 fragment": (Skip.FRAGMENT, LINK_RAW, ipv6(b"\x06\0\0\x01" + bytes(40), next_header=44)),
    "half an Ethernet header": (Skip.CUT, LINK_ETHERNET, bytes(13)),
    "half an IP header": (Skip.CUT, LINK_ETHERNET, ethernet(ipv4(tcp()))[:30]),
    "half a TCP header": (Skip.CUT, LINK_ETHERNET, ethernet(ipv4(tcp()))[:50]),
    "TCP header of 16 bytes": (
        Skip.CUT,
        LINK_ETHERNET,
        ethernet(ipv4(tcp()[:12] + b"\x40" + tcp()[13:])),
    ),
    "TCP header beyond the packet": (
        Skip.CUT,
        LINK_ETHERNET,
        ethernet(ipv4(tcp()[:12] + b"\xf0" + tcp()[13:])),
    ),
    "nothing": (Skip.CUT, LINK_RAW, b""),
}


@pytest.mark.parametrize(("reason", "link", "data"), SKIPS.values(), ids=SKIPS)
def test_what_is_no_tcp_segment_is_skipped_for_a_reason(
    reason: Skip, link: int, data: bytes
) -> None:
    assert skipped(data, link) is reason


def test_every_reason_to_skip_has_an_example() -> None:
    assert {reason for reason, _, _ in SKIPS.values()} == set(Skip)


@given(st.sampled_from(sorted(LINK_TYPES)), st.binary(max_size=120))
def test_any_bytes_are_a_segment_or_skipped_and_never_an_exception(link: int, data: bytes) -> None:
    assert isinstance(segment_of(Packet(None, link, data)), Segment | Skip)


@given(st.integers(0, 80), st.sampled_from(["ethernet", "ipv6"]))
def test_a_packet_cut_anywhere_is_a_shorter_payload_or_skipped(size: int, kind: str) -> None:
    whole = {
        "ethernet": ethernet(ipv4(tcp(PAYLOAD))),
        "ipv6": ethernet(ipv6(tcp(PAYLOAD)), ethertype=0x86DD),
    }[kind]
    segment = segment_of(Packet(None, LINK_ETHERNET, whole[:size]))
    if isinstance(segment, Segment):
        assert PAYLOAD.startswith(segment.payload)
        assert segment.payload_size == len(PAYLOAD)
    else:
        assert segment is Skip.CUT
        assert size < len(whole) - len(PAYLOAD)


def test_the_builder_of_these_tests_makes_headers_of_the_right_size() -> None:
    assert len(tcp()) == 20
    assert struct.unpack_from(">H", ipv4(tcp()), 2) == (40,)
