from __future__ import annotations

import io
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture.packets import Packet
from headrace.capture.pcap import read_packets
from headrace.capture.pcapng import BLOCK_SIZE_MAX, INTERFACES_MAX, PACKET_SIZE_MAX
from headrace.errors import CaptureError

TIME = 1_600_000_000_123_456


class Builder:
    """Blocks in one byte order."""

    def __init__(self, order: str = "<") -> None:
        self.order = order

    def pack(self, layout: str, *numbers: int) -> bytes:
        return struct.pack(self.order + layout, *numbers)

    def block(self, kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        size = len(body) + 12
        return self.pack("II", kind, size) + body + self.pack("I", size)

    def section(self) -> bytes:
        return self.block(0x0A0D0D0A, self.pack("IHHq", 0x1A2B3C4D, 1, 0, -1))

    def interface(self, link: int = 1, snap: int = 0, options: bytes = b"") -> bytes:
        return self.block(1, self.pack("HHI", link, 0, snap) + options)

    def option(self, code: int, value: bytes) -> bytes:
        return self.pack("HH", code, len(value)) + value + bytes(-len(value) % 4)

    def enhanced(self, data: bytes, ticks: int = TIME, interface: int = 0) -> bytes:
        head = self.pack("IIIII", interface, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(data))
        return self.block(6, head + data + bytes(-len(data) % 4) + self.option(1, b"comment"))

    def old(self, data: bytes, ticks: int = TIME, interface: int = 0) -> bytes:
        head = self.pack(
            "HHIIII", interface, 3, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(data)
        )
        return self.block(2, head + data)

    def simple(self, data: bytes, original: int | None = None) -> bytes:
        return self.block(3, self.pack("I", len(data) if original is None else original) + data)


def packets(data: bytes) -> list[Packet]:
    return list(read_packets(io.BytesIO(data), "x.pcapng"))


def refused(data: bytes) -> str:
    with pytest.raises(CaptureError) as caught:
        packets(data)
    return str(caught.value)


@pytest.mark.parametrize("order", ["<", ">"])
def test_the_three_kinds_of_packets_are_read_in_both_byte_orders(order: str) -> None:
    b = Builder(order)
    data = b.section() + b.interface() + b.enhanced(b"abcde") + b.old(b"fgh") + b.simple(b"i")
    assert packets(data) == [
        Packet(TIME * 1000, 1, b"abcde"),
        Packet(TIME * 1000, 1, b"fgh"),
        Packet(None, 1, b"i"),
    ]


RESOLUTIONS = {
    "default is micro": (None, TIME * 1000),
    "nano": (b"\x09", TIME),
    "milli": (b"\x03", TIME * 1_000_000),
    "binary": (b"\x94", TIME * 1_000_000_000 >> 20),
}


@pytest.mark.parametrize(("resolution", "time"), RESOLUTIONS.values(), ids=RESOLUTIONS)
def test_each_interface_has_its_own_unit_of_time(resolution: bytes | None, time: int) -> None:
    b = Builder()
    options = b.option(9, resolution) if resolution else b""
    data = b.section() + b.interface() + b.interface(113, options=options)
    (packet,) = packets(data + b.enhanced(b"x", interface=1))
    assert packet == Packet(time, 113, b"x")


def test_an_interface_may_shift_its_times_by_seconds() -> None:
    b = Builder()
    options = b.option(2, b"eth0") + b.option(14, b.pack("q", -10)) + b.option(0, b"")
    (packet,) = packets(b.section() + b.interface(options=options) + b.enhanced(b"x"))
    assert packet.timestamp_ns == TIME * 1000 - 10_000_000_000


def test_what_stands_behind_the_end_of_options_is_no_option() -> None:
    b = Builder()
    options = b.option(0, b"") + b.option(9, b"\x09")
    (packet,) = packets(b.section() + b.interface(options=options) + b.enhanced(b"x"))
    assert packet.timestamp_ns == TIME * 1000


def test_a_new_section_may_turn_the_byte_order_and_forgets_the_interfaces() -> None:
    little, big = Builder("<"), Builder(">")
    first = little.section() + little.interface(1) + little.enhanced(b"a")
    second = big.section() + big.interface(276) + big.enhanced(b"b")
    assert [(packet.link_type, packet.data) for packet in packets(first + second)] == [
        (1, b"a"),
        (276, b"b"),
    ]
    assert "interface 0, but its section describes 0" in refused(
        first + big.section() + big.enhanced(b"b")
    )


def test_blocks_of_other_kinds_are_stepped_over() -> None:
    b = Builder()
    other = b.block(4, b"names") + b.block(5, bytes(12)) + b.block(0xBAD, b"custom")
    data = b.section() + other + b.interface() + other + b.enhanced(b"x") + other
    assert [packet.data for packet in packets(data)] == [b"x"]


def test_a_simple_packet_ends_at_its_size_or_at_the_snap_length() -> None:
    b = Builder()
    assert packets(b.section() + b.interface() + b.simple(b"abc", 3))[0].data == b"abc"
    assert packets(b.section() + b.interface(snap=2) + b.simple(b"ab", 99))[0].data == b"ab"


def test_a_byte_order_mark_of_no_order_is_refused() -> None:
    b = Builder()
    data = b.block(0x0A0D0D0A, b.pack("IHHq", 0x12345678, 1, 0, -1))
    assert "byte-order mark is 78563412" in refused(data)


@pytest.mark.parametrize("size", [0, 8, 13, BLOCK_SIZE_MAX + 4])
def test_a_block_of_an_impossible_size_is_refused(size: int) -> None:
    b = Builder()
    assert f"has a block of {size} bytes" in refused(b.section() + b.pack("II", 6, size))


def test_a_block_must_close_with_the_size_it_opened_with() -> None:
    b = Builder()
    broken = b.interface()[:-4] + b.pack("I", 99)
    assert "opens with size 20 and closes with 99" in refused(b.section() + broken)


def test_a_packet_may_not_claim_more_than_its_block_holds() -> None:
    b = Builder()
    body = b.pack("IIIII", 0, 0, 0, PACKET_SIZE_MAX, 0)
    assert "room for 0" in refused(b.section() + b.interface() + b.block(6, body))


def test_a_block_too_short_for_its_fields_is_refused() -> None:
    b = Builder()
    assert "at least 20 are needed" in refused(b.section() + b.interface() + b.block(6, bytes(8)))


def test_a_section_may_not_have_interfaces_without_end() -> None:
    b = Builder()
    assert f"more than {INTERFACES_MAX} interfaces" in refused(
        b.section() + b.interface() * (INTERFACES_MAX + 1)
    )


def test_a_file_cut_anywhere_gives_whole_packets_and_then_says_so() -> None:
    b = Builder()
    start = b.section() + b.interface() + b.enhanced(b"first")
    whole = start + b.enhanced(b"second")
    for size in range(len(start) + 1, len(whole)):
        reader = read_packets(io.BytesIO(whole[:size]), "x.pcapng")
        assert next(reader).data == b"first"
        with pytest.raises(CaptureError, match=r"x\.pcapng ends inside a block"):
            next(reader)


@given(st.binary(max_size=200))
def test_any_bytes_behind_the_magic_are_packets_or_a_capture_error(data: bytes) -> None:
    reader = read_packets(io.BytesIO(b"\x0a\x0d\x0d\x0a" + data), "x")
    with suppress(CaptureError):
        assert all(isinstance(packet, Packet) for packet in reader)
