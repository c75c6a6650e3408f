from __future__ import annotations

import io

import pytest

from headrace.capture.packets import Packet
from headrace.capture.pcap import PACKET_SIZE_MAX, is_capture, read_packets
from headrace.errors import CaptureError
from tests.capture.building import pcap

TWO = [(1_600_000_000, 5, b"first"), (1_600_000_001, 999, b"second")]


def packets(data: bytes) -> list[Packet]:
    return list(read_packets(io.BytesIO(data), "x.pcap"))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("magic", "unit"), [(0xA1B2C3D4, 1000), (0xA1B23C4D, 1)])
def test_both_byte_orders_and_both_units_of_time_are_read(
    order: str, magic: int, unit: int
) -> None:
    data = pcap(TWO, order=order, magic=magic, link=113)
    assert is_capture(data[:4])
    assert packets(data) == [
        Packet(1_600_000_000_000_000_000 + 5 * unit, 113, b"first"),
        Packet(1_600_000_001_000_000_000 + 999 * unit, 113, b"second"),
    ]


def test_the_upper_half_of_the_link_type_is_something_else() -> None:
    assert [packet.link_type for packet in packets(pcap(TWO, link=0x1000_0001))] == [1, 1]


def test_a_file_without_packets_gives_none() -> None:
    assert packets(pcap([])) == []


@pytest.mark.parametrize("cut", range(1, 21))
def test_a_file_cut_in_its_last_packet_gives_the_others_and_then_says_where(cut: int) -> None:
    reader = read_packets(io.BytesIO(pcap(TWO)[:-cut]), "x.pcap")
    assert next(reader).data == b"first"
    with pytest.raises(CaptureError, match=r"x\.pcap ends inside packet 2 at byte 45"):
        next(reader)


@pytest.mark.parametrize("size", range(4, 24))
def test_half_a_file_header_is_refused(size: int) -> None:
    with pytest.raises(
        CaptureError, match=f"ends after {size} bytes, inside its file header of 24"
    ):
        packets(pcap([])[:size])


@pytest.mark.parametrize("head", [b"", b"\x80\x57", b"\x34\xcd\xb2\xa1"])
def test_another_kind_of_file_is_refused_with_the_bytes_found(head: bytes) -> None:
    assert not is_capture(head)
    with pytest.raises(CaptureError, match=f"begins with {head.hex(' ') or 'nothing'}"):
        packets(head)


def test_a_packet_that_claims_too_much_is_refused_before_it_is_read() -> None:
    data = bytearray(pcap(TWO))
    data[24 + 8 : 24 + 12] = (PACKET_SIZE_MAX + 1).to_bytes(4, "little")
    with pytest.raises(CaptureError, match=f"packet 1 at byte 24 claims {PACKET_SIZE_MAX + 1}"):
        packets(bytes(data))


def test_pcapng_comes_through_the_same_door() -> None:
    assert is_capture(b"\x0a\x0d\x0d\x0a")
    with pytest.raises(CaptureError, match="ends inside a block"):
        packets(b"\x0a\x0d\x0d\x0a")
