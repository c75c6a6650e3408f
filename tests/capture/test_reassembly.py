from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from headrace.capture import reassembly
from headrace.capture.conversation import Direction, Endpoint, Piece, RoleEvidence
from headrace.capture.packets import Packet, Segment, Skip, TcpFlag
from headrace.capture.reassembly import GAP_PATIENCE, Reassembler, distance, reassemble
from headrace.errors import CaptureError
from headrace.wire.frame import Frame
from tests.capture.building import A, B, ethernet, ipv4, segment, tcp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

THERE, BACK = Direction.CLIENT_TO_SERVER, Direction.SERVER_TO_CLIENT
SYN, ACK, FIN, RST = TcpFlag.SYN, TcpFlag.ACK, TcpFlag.FIN, TcpFlag.RST
HELLO = Frame(magic=0x80, opcode=0x1F, key=b"agent").to_bytes()
MUTATION = Frame(magic=0x80, opcode=0x57, extras=bytes(31), key=b"k").to_bytes()


def run(segments: Iterable[Segment], reassembler: Reassembler | None = None) -> list[Piece]:
    reassembler = reassembler or Reassembler()
    pieces = [piece for each in segments for piece in reassembler.feed(each)]
    return pieces + list(reassembler.flush())


def joined(pieces: list[Piece], direction: Direction = THERE) -> bytes:
    """The bytes of a direction; a missing byte is a question mark."""
    text = bytearray()
    for piece in pieces:
        if piece.direction is direction:
            text += b"?" * piece.missing
            assert piece.offset == len(text), "an offset counts what is missing, too"
            text += piece.data
    return bytes(text)


def opened(isn: int = 100, back_isn: int = 500) -> list[Segment]:
    return [
        segment(sequence=isn, flags=SYN),
        segment(sequence=back_isn, acknowledgement=isn + 1, flags=SYN | ACK, reverse=True),
    ]


def test_bytes_in_order_come_out_as_they_came_with_their_times() -> None:
    pieces = run(
        [*opened(), segment(b"abc", sequence=101, time=7), segment(b"de", sequence=104, time=8)]
    )
    assert [(piece.offset, piece.data, piece.timestamp_ns) for piece in pieces] == [
        (0, b"abc", 7),
        (3, b"de", 8),
    ]


def test_both_directions_have_their_own_offsets() -> None:
    pieces = run(
        [*opened(), segment(b"ask", sequence=101), segment(b"told", sequence=501, reverse=True)]
    )
    assert (joined(pieces), joined(pieces, BACK)) == (b"ask", b"told")
    assert len({piece.connection for piece in pieces}) == 1


def test_a_segment_that_came_early_waits_for_the_one_before_it() -> None:
    reassembler = Reassembler()
    early = segment(b"cd", sequence=103, time=1)
    assert [piece for each in [*opened(), early] for piece in reassembler.feed(each)] == []
    pieces = list(reassembler.feed(segment(b"ab", sequence=101, time=9)))
    assert joined(pieces) == b"abcd"
    assert {piece.timestamp_ns for piece in pieces} == {9}, (
        "it became readable when the hole closed"
    )
    assert reassembler.tally.gaps == 0


def test_a_retransmission_is_counted_and_dropped() -> None:
    reassembler = Reassembler()
    one = segment(b"abc", sequence=101)
    assert joined(run([*opened(), one, one], reassembler)) == b"abc"
    assert reassembler.tally.retransmitted_bytes == 3


def test_of_an_overlap_the_bytes_seen_first_stay() -> None:
    overlapping = [segment(b"abc", sequence=101), segment(b"XXde", sequence=102)]
    assert joined(run([*opened(), *overlapping])) == b"abcde"


def test_a_keep_alive_with_one_old_byte_adds_nothing() -> None:
    pieces = run([*opened(), segment(b"abc", sequence=101), segment(b"\0", sequence=103)])
    assert joined(pieces) == b"abc"


def test_data_on_the_syn_begins_behind_it() -> None:
    assert joined(run([segment(b"abc", sequence=100, flags=SYN)])) == b"abc"


def test_sequence_numbers_wrap() -> None:
    isn = 0xFFFF_FFFD
    sent = [segment(bytes([65 + n]), sequence=isn + 1 + n) for n in range(6)]
    assert joined(run([*opened(isn), *sent])) == b"ABCDEF"
    assert joined(run([*opened(isn), *reversed(sent)])) == b"ABCDEF"


@pytest.mark.parametrize(
    ("sequence", "origin", "expected"),
    [
        (5, 3, 2),
        (3, 5, -2),
        (1, 0xFFFF_FFFF, 2),
        (0xFFFF_FFFF, 1, -2),
        (0x8000_0000, 0, -(1 << 31)),
    ],
)
def test_the_distance_of_sequence_numbers_is_signed(
    sequence: int, origin: int, expected: int
) -> None:
    assert distance(sequence, origin) == expected


# Gaps.


def test_a_hole_at_the_end_of_the_capture_is_a_gap_with_its_place() -> None:
    reassembler = Reassembler()
    sent = [segment(b"ab", sequence=101), segment(b"fg", sequence=106, time=3)]
    pieces = run([*opened(), *sent], reassembler)
    assert joined(pieces) == b"ab???fg"
    (gap,) = [piece for piece in pieces if piece.missing]
    assert (gap.offset, gap.missing, gap.data, gap.timestamp_ns) == (5, 3, b"", 3)
    assert (reassembler.tally.gaps, reassembler.tally.missing_bytes) == (1, 3)


def test_a_hole_that_the_other_end_acknowledged_is_given_up_after_a_while() -> None:
    reassembler = Reassembler()
    sent = [segment(b"ab", sequence=101), segment(b"fg", sequence=106)]
    pieces = run_without_end(reassembler, [*opened(), *sent])
    acknowledgements = [
        segment(sequence=501, acknowledgement=108, reverse=True) for _ in range(GAP_PATIENCE)
    ]
    assert joined(pieces + run_without_end(reassembler, acknowledgements)) == b"ab"
    pieces += run_without_end(reassembler, acknowledgements[:1])
    assert joined(pieces) == b"ab???fg"


def test_a_hole_that_nobody_acknowledged_is_waited_for() -> None:
    """The network lost it: the sender will send it again, however long that takes."""
    reassembler = Reassembler()
    sent = [segment(b"ab", sequence=101), segment(b"fg", sequence=106)]
    unsure = [
        segment(sequence=501, acknowledgement=103, reverse=True) for _ in range(3 * GAP_PATIENCE)
    ]
    late = [segment(b"cde", sequence=103)]
    assert joined(run_without_end(reassembler, [*opened(), *sent, *unsure, *late])) == b"abcdefg"
    assert reassembler.tally.gaps == 0


def run_without_end(reassembler: Reassembler, segments: list[Segment]) -> list[Piece]:
    return [piece for each in segments for piece in reassembler.feed(each)]


def test_what_waits_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassembly, "WAITING_BYTES_MAX", 10)
    sent = [segment(b"x" * 4, sequence=110 + 4 * n) for n in range(3)]
    pieces = run_without_end(Reassembler(), [*opened(), *sent])
    assert joined(pieces) == b"?" * 9 + b"x" * 12


def test_what_waits_is_bounded_in_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassembly, "WAITING_SEGMENTS_MAX", 2)
    sent = [segment(b"x", sequence=110 + 2 * n) for n in range(3)]
    pieces = run_without_end(Reassembler(), [*opened(), *sent])
    assert joined(pieces) == b"?" * 9 + b"x"


def test_the_bytes_between_the_last_one_and_the_fin_are_a_gap() -> None:
    ends = [
        segment(b"ab", sequence=101),
        segment(sequence=106, flags=FIN | ACK),
        segment(sequence=501, flags=FIN | ACK, reverse=True),
    ]
    assert joined(run([*opened(), *ends])) == b"ab???"


def test_a_packet_cut_by_the_snap_length_leaves_a_gap() -> None:
    sent = [segment(b"ab", sequence=101, size=5), segment(b"fg", sequence=106)]
    assert joined(run([*opened(), *sent])) == b"ab???fg"


def test_a_reset_hands_on_what_waits() -> None:
    reassembler = Reassembler()
    sent = [segment(b"cd", sequence=103), segment(sequence=501, flags=RST, reverse=True)]
    assert joined(run_without_end(reassembler, [*opened(), *sent])) == b"??cd"


# Connections.


def test_a_new_syn_on_a_known_port_pair_is_a_new_connection() -> None:
    first = [*opened(100), segment(b"one", sequence=101)]
    second = [*opened(9000, 9500), segment(b"two", sequence=9001)]
    pieces = run(first + second)
    assert [(piece.connection.number, piece.offset, piece.data) for piece in pieces] == [
        (1, 0, b"one"),
        (2, 0, b"two"),
    ]


def test_the_old_connection_hands_on_what_waits_before_the_new_one_begins() -> None:
    first = [*opened(100), segment(b"b", sequence=102)]
    second = [*opened(9000, 9500), segment(b"two", sequence=9001)]
    pieces = run_without_end(Reassembler(), first + second)
    assert [(piece.connection.number, piece.missing, piece.data) for piece in pieces] == [
        (1, 1, b""),
        (1, 0, b"b"),
        (2, 0, b"two"),
    ]


def test_a_repeated_syn_is_the_same_connection() -> None:
    pieces = run([*opened(), *opened(), segment(b"one", sequence=101), *opened()])
    assert [(piece.connection.number, piece.data) for piece in pieces] == [(1, b"one")]


def test_a_late_retransmission_after_the_end_adds_nothing() -> None:
    ends = [
        segment(b"ab", sequence=101),
        segment(sequence=103, flags=FIN | ACK),
        segment(sequence=501, flags=FIN | ACK, reverse=True),
        segment(b"ab", sequence=101),
    ]
    pieces = run([*opened(), *ends])
    assert [(piece.connection.number, piece.data) for piece in pieces] == [(1, b"ab")]


def test_segments_without_payload_begin_nothing() -> None:
    reassembler = Reassembler()
    assert run([segment(sequence=5), segment(sequence=6, flags=FIN | ACK)], reassembler) == []
    assert reassembler.tally.connections == 0


def test_a_syn_answer_alone_tells_both_starts() -> None:
    """The SYN was lost: its answer still says with which byte the client begins."""
    answer = segment(sequence=500, acknowledgement=101, flags=SYN | ACK, reverse=True)
    pieces = run([answer, segment(b"cd", sequence=103), segment(b"ab", sequence=101)])
    assert joined(pieces) == b"abcd"
    assert pieces[0].connection.client == A


def test_only_connections_of_the_chosen_port_are_taken() -> None:
    other = (A, Endpoint("10.0.0.2", 80))
    segments = [
        segment(b"no", sequence=1, ends=other),
        segment(b"yes", sequence=1),
        segment(b"also", sequence=1, reverse=True),
    ]
    pieces = run(segments, Reassembler(port=B.port))
    assert [piece.data for piece in pieces] == [b"yes", b"also"]


def test_silent_connections_are_forgotten_beyond_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reassembly, "CONNECTIONS_MAX", 3)
    reassembler = Reassembler()
    for port in range(1, 6):
        ends = (Endpoint(A.address, port), B)
        run_without_end(reassembler, [segment(sequence=100, flags=SYN, ends=ends)])
        waits = segment(b"x", sequence=102, ends=ends)
        assert run_without_end(reassembler, [waits]) == [], "it waits for the byte before it"
    assert reassembler.tally.forgotten_connections == 2
    assert reassembler.tally.gaps == 2, "what they waited for is handed on, not lost"


# Who is the client?


def roles(first: Segment, port: int | None = None) -> tuple[Endpoint | None, RoleEvidence]:
    (piece, *_) = run([first, segment(b"x", sequence=first.sequence + 99)], Reassembler(port=port))
    return piece.connection.client, piece.connection.evidence


ROLES = {
    "who sends the SYN": (segment(b"x", flags=SYN), A, RoleEvidence.HANDSHAKE),
    "who gets its answer": (segment(b"x", flags=SYN | ACK), B, RoleEvidence.HANDSHAKE),
    "who says HELLO": (segment(HELLO, reverse=True), B, RoleEvidence.FIRST_MESSAGE),
    "who gets a mutation": (segment(MUTATION), B, RoleEvidence.FIRST_MESSAGE),
    "the other end of a known port": (segment(b"x", reverse=True), A, RoleEvidence.PORT_NUMBERS),
    "the higher port": (
        segment(b"x", ends=(Endpoint("10.0.0.1", 5), Endpoint("10.0.0.2", 6))),
        Endpoint("10.0.0.2", 6),
        RoleEvidence.PORT_NUMBERS,
    ),
}


@pytest.mark.parametrize(("first", "client", "evidence"), ROLES.values(), ids=ROLES)
def test_the_client_is(first: Segment, client: Endpoint, evidence: RoleEvidence) -> None:
    assert roles(first) == (client, evidence)


def test_a_chosen_port_overrules_every_other_sign() -> None:
    assert roles(segment(HELLO, flags=SYN), port=A.port) == (B, RoleEvidence.CHOSEN_PORT)


def test_a_connection_whose_syn_was_not_seen_says_that_its_start_is_missing() -> None:
    (late,) = run([segment(b"x")])
    (whole,) = run([segment(b"x", flags=SYN)])
    assert (late.connection.complete_start, whole.connection.complete_start) == (False, True)


# Against a dumb model.


@pytest.mark.parametrize("seed", range(200))
def test_any_order_of_cut_doubled_and_overlapping_segments_gives_the_same_bytes(seed: int) -> None:
    rng = random.Random(seed)
    data = rng.randbytes(rng.randrange(1, 400))
    isn = rng.choice([0, 77, 0xFFFF_FFFF - rng.randrange(len(data))])
    cuts = sorted({0, len(data), *(rng.randrange(len(data)) for _ in range(12))})
    ranges = list(pairwise(cuts))
    for _ in range(6):
        start = rng.randrange(len(data))
        ranges.append((start, rng.randrange(start, len(data)) + 1))
    rng.shuffle(ranges)
    segments = [segment(data[a:b], sequence=isn + 1 + a) for a, b in ranges]
    reassembler = Reassembler()
    assert joined(run([*opened(isn), *segments], reassembler)) == data, f"seed {seed}"
    assert reassembler.tally.gaps == 0, f"seed {seed}"


@pytest.mark.parametrize("seed", range(200))
def test_what_is_lost_is_missing_and_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    data = rng.randbytes(300).replace(b"?", b"!")
    ranges = [(at, min(at + 10, 300)) for at in range(0, 300, 10)]
    kept = [each for each in ranges if rng.random() < 0.8]
    expected = bytearray(b"?" * max((end for _, end in kept), default=0))
    for start, end in kept:
        expected[start:end] = data[start:end]
    shuffled = sorted(kept, key=lambda each: each[0] + rng.randrange(60))
    segments = [segment(data[a:b], sequence=101 + a) for a, b in shuffled]
    reassembler = Reassembler()
    assert joined(run([*opened(), *segments], reassembler)) == bytes(expected), f"seed {seed}"
    assert reassembler.tally.missing_bytes == expected.count(b"?"), f"seed {seed}"


# Packets.


def test_packets_that_hold_no_segment_are_counted_by_reason() -> None:
    packets = [
        Packet(1, 1, ethernet(ipv4(tcp(b"x")))),
        Packet(2, 1, ethernet(ipv4(bytes(8), protocol=17))),
        Packet(3, 1, ethernet(ipv4(tcp(), fragment=0x2000))),
    ]
    reassembler = Reassembler()
    assert [piece.data for piece in reassemble(packets, reassembler)] == [b"x"]
    assert reassembler.tally.packets == 3
    assert reassembler.tally.segments == 1
    assert reassembler.tally.skipped == {Skip.NOT_TCP: 1, Skip.FRAGMENT: 1}


def test_damage_is_raised_after_everything_before_it_was_handed_on() -> None:
    def damaged() -> Iterator[Packet]:
        yield Packet(1, 1, ethernet(ipv4(tcp(flags=0x02, sequence=0))))
        yield Packet(2, 1, ethernet(ipv4(tcp(b"late", sequence=4))))
        raise CaptureError("the disk was full")

    pieces = reassemble(damaged(), Reassembler())
    assert [next(pieces).missing, next(pieces).data] == [3, b"late"]
    with pytest.raises(CaptureError, match="the disk was full"):
        next(pieces)
