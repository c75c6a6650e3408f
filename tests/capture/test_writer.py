from __future__ import annotations

import io
import random
from ipaddress import IPv6Address, ip_address
from struct import unpack_from

import pytest

from headrace.capture.conversation import Direction, Endpoint, RoleEvidence
from headrace.capture.packets import Segment, TcpFlag, segment_of
from headrace.capture.pcap import read_packets
from headrace.capture.reassembly import Reassembler, reassemble
from headrace.capture.writer import CLIENT, SEGMENT_SIZE, SERVER, PcapWriter, Said, write_pcap

THERE, BACK = Direction.CLIENT_TO_SERVER, Direction.SERVER_TO_CLIENT


def written(conversation: list[Said], **ends: Endpoint) -> bytes:
    stream = io.BytesIO()
    write_pcap(stream, conversation, **ends)
    return stream.getvalue()


def segments(data: bytes) -> list[Segment]:
    found = [segment_of(packet) for packet in read_packets(io.BytesIO(data), "x")]
    assert all(isinstance(each, Segment) for each in found)
    return [each for each in found if isinstance(each, Segment)]


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("seed", range(20))
def test_what_is_written_is_read_again(address: str, seed: int) -> None:
    rng = random.Random(seed)
    conversation = [
        Said(rng.choice((THERE, BACK)), rng.randbytes(rng.choice((1, 7, 40_000))), 10**18 + n)
        for n in range(rng.randrange(1, 8))
    ]
    ends = {"client": Endpoint(address, 40_001), "server": Endpoint(address, 11210)}
    data = written(conversation, **ends)
    reassembler = Reassembler()
    pieces = list(reassemble(read_packets(io.BytesIO(data), "x"), reassembler))
    for direction in (THERE, BACK):
        said = [each for each in conversation if each.direction is direction]
        heard = [piece for piece in pieces if piece.direction is direction]
        assert b"".join(each.data for each in said) == b"".join(piece.data for piece in heard)
        times = {each.timestamp_ns for each in said}
        assert {piece.timestamp_ns for piece in heard} == times, f"seed {seed}"
    (connection,) = {piece.connection for piece in pieces}
    assert (connection.client, connection.server) == (ends["client"], ends["server"])
    assert connection.evidence is RoleEvidence.HANDSHAKE
    assert reassembler.tally.gaps == reassembler.tally.retransmitted_bytes == 0


def test_a_connection_is_opened_acknowledged_and_closed() -> None:
    said = segments(written([Said(THERE, b"ask"), Said(BACK, b"told")]))
    flags = [(each.source == CLIENT, each.flags, each.payload) for each in said]
    syn, ack, push, fin = TcpFlag.SYN, TcpFlag.ACK, TcpFlag.PSH, TcpFlag.FIN
    assert flags == [
        (True, syn, b""),
        (False, syn | ack, b""),
        (True, ack, b""),
        (True, push | ack, b"ask"),
        (False, ack, b""),
        (False, push | ack, b"told"),
        (True, ack, b""),
        (True, fin | ack, b""),
        (False, fin | ack, b""),
        (True, ack, b""),
    ]
    last = said[-1]
    assert (last.sequence, last.acknowledgement) == (1000 + 1 + 3 + 1, 2000 + 1 + 4 + 1)


def test_an_empty_conversation_is_still_a_connection() -> None:
    assert len(segments(written([]))) == 6


def test_long_data_is_cut_into_segments() -> None:
    said = segments(written([Said(BACK, bytes(2 * SEGMENT_SIZE + 1))]))
    assert [len(each.payload) for each in said if each.payload] == [SEGMENT_SIZE, SEGMENT_SIZE, 1]


def word_sum(data: bytes) -> int:
    """The sum of a checked area by the book: 16-bit words with end-around carry."""
    total = 0
    for at in range(0, len(data) - 1, 2):
        total += unpack_from(">H", data, at)[0]
        total = (total & 0xFFFF) + (total >> 16)
    if len(data) % 2:
        total += data[-1] << 8
        total = (total & 0xFFFF) + (total >> 16)
    return total


@pytest.mark.parametrize("payload", [b"", b"odd", b"even", b"\xff\xff" * 9, bytes(8)])
@pytest.mark.parametrize("address", ["127.0.0.1", "10.9.8.7", "::1", "2001:db8::7"])
def test_both_checksums_are_right(address: str, payload: bytes) -> None:
    ends = {"client": Endpoint(address, 7), "server": Endpoint(address, 8)}
    for packet in read_packets(io.BytesIO(written([Said(THERE, payload)], **ends)), "x"):
        network = packet.data[14:]
        if ":" in address:
            addresses, transport = network[8:40], network[40:]
        else:
            assert word_sum(network[:20]) == 0xFFFF
            addresses, transport = network[12:20], network[20:]
        pseudo = addresses + len(transport).to_bytes(4, "big") + (6).to_bytes(4, "big")
        assert word_sum(pseudo + transport) == 0xFFFF


def test_ends_of_two_families_are_written_as_ipv6() -> None:
    ends = {"client": Endpoint("::1", 7), "server": Endpoint("10.0.0.1", 8)}
    first = segments(written([Said(THERE, b"x")], **ends))[0]
    mapped = ip_address(first.destination.address)
    assert isinstance(mapped, IPv6Address)
    assert str(mapped.ipv4_mapped) == "10.0.0.1"
    assert first.source == Endpoint("::1", 7)


def test_one_file_holds_several_connections() -> None:
    stream = io.BytesIO()
    pcap = PcapWriter(stream)
    one, two = pcap.connect(), pcap.connect(Endpoint("127.0.0.1", 40_002), SERVER)
    one.send(THERE, b"one")
    two.send(THERE, b"two")
    one.close()
    pieces = list(reassemble(read_packets(io.BytesIO(stream.getvalue()), "x"), Reassembler()))
    assert [(piece.connection.number, piece.data) for piece in pieces] == [(1, b"one"), (2, b"two")]
