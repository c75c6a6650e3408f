from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from headrace.capture import walk as walk_module
from headrace.capture.conversation import Connection, Direction, Endpoint, Piece, RoleEvidence
from headrace.capture.walk import Account, Item, walk
from headrace.errors import CaptureError, RemoteProtocolError
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import BODY_SIZE_MAX, Frame
from headrace.wire.messages import (
    FailoverEntry,
    GetFailoverLogReply,
    Mutation,
    Noop,
    SnapshotMarker,
    StreamEnd,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

THERE, BACK = Direction.CLIENT_TO_SERVER, Direction.SERVER_TO_CLIENT
ENDS = Endpoint("10.0.0.1", 4), Endpoint("10.0.0.2", 5)
WHOLE = Connection(1, *ENDS, RoleEvidence.HANDSHAKE, complete_start=True)
LATE = Connection(2, *ENDS, RoleEvidence.FIRST_MESSAGE, complete_start=False)
CHOSEN = Connection(3, *ENDS, RoleEvidence.CHOSEN_PORT, complete_start=True)
FILE = Connection(1, None, None, RoleEvidence.NONE, complete_start=True, name="x")

MARKER = encode(SnapshotMarker(start_seqno=0, end_seqno=9, flags=1), Dialect.DCP_7)
ONE = encode(Mutation(by_seqno=1, key=b"one", value=b"first"), Dialect.DCP_7)
TWO = encode(Mutation(by_seqno=2, key=b"two", value=b"second"), Dialect.DCP_7)
END = encode(StreamEnd(reason=0), Dialect.DCP_7)
BAD_LAYOUT = Frame(magic=0x80, opcode=0x55, extras=b"abc").to_bytes()
TOO_BIG = ONE[:8] + (BODY_SIZE_MAX + 1).to_bytes(4, "big") + ONE[12:]
TOO_SMALL = ONE[:8] + bytes(4) + ONE[12:]


def pieces_of(
    data: bytes, *, connection: Connection = WHOLE, size: int = 1000, direction: Direction = BACK
) -> list[Piece]:
    return [
        Piece(connection, direction, at, data[at : at + size], timestamp_ns=at)
        for at in range(0, len(data), size)
    ]


def walked(
    pieces: list[Piece], *, strict: bool = True, account: Account | None = None
) -> list[Item]:
    return list(walk(pieces, Dialect.DCP_7, strict=strict, account=account))


def told(items: list[Item]) -> list[str]:
    """Each item as one word: its opcode, or ! for a fault, with ! behind a layout error."""
    return [(item.frame.name if item.frame else "") + ("!" if item.error else "") for item in items]


def test_frames_come_out_with_their_place_bytes_and_message() -> None:
    items = walked(pieces_of(MARKER + ONE))
    assert [(item.offset, item.data) for item in items] == [(0, MARKER), (len(MARKER), ONE)]
    message = items[1].message
    assert isinstance(message, Mutation)
    assert (message.by_seqno, message.key, message.value) == (1, b"one", b"first")
    assert {item.direction for item in items} == {BACK}


@pytest.mark.parametrize("size", [1, 2, 23, 24, 25, 44, 45, 1000])
def test_any_split_gives_the_same_frames(size: int) -> None:
    data = MARKER + ONE + TWO + END
    items = walked(pieces_of(data, size=size))
    assert told(items) == ["SNAPSHOT_MARKER", "MUTATION", "MUTATION", "STREAM_END"]
    assert b"".join(item.data for item in items) == data


def test_the_time_of_a_frame_is_that_of_its_last_byte() -> None:
    (marker,) = walked(pieces_of(MARKER, size=10))
    assert marker.timestamp_ns == 40


def test_directions_and_connections_do_not_mix() -> None:
    pieces = [
        Piece(WHOLE, BACK, 0, ONE[:30]),
        Piece(WHOLE, THERE, 0, END),
        Piece(CHOSEN, BACK, 0, TWO),
        Piece(WHOLE, BACK, 30, ONE[30:]),
    ]
    items = walked(pieces)
    assert [(item.connection.number, item.direction, item.data) for item in items] == [
        (1, THERE, END),
        (3, BACK, TWO),
        (1, BACK, ONE),
    ]


# Faults.


def test_a_layout_error_costs_one_frame_only() -> None:
    items = walked(pieces_of(ONE + BAD_LAYOUT + TWO))
    assert told(items) == ["MUTATION", "STREAM_END!", "MUTATION"]
    fault = items[1]
    assert (fault.offset, fault.data, fault.error_at) == (len(ONE), BAD_LAYOUT, 4)
    assert str(fault.error) == "STREAM_END with 3 bytes of extras; dcp-7 allows 4"


@pytest.mark.parametrize(
    ("broken", "at", "sentence"),
    [
        (b"\x41" + ONE[1:], 0, "magic 41"),
        (TOO_BIG, 8, f"claims a body of {BODY_SIZE_MAX + 1} bytes, limit {BODY_SIZE_MAX}"),
        (TOO_SMALL, 8, r"of 0\+31\+3 bytes in a body of 0"),
    ],
    ids=["magic", "huge claim", "parts that do not fit"],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_framing_error_is_stepped_over_to_the_next_header(
    broken: bytes, at: int, sentence: str, size: int
) -> None:
    items = walked(pieces_of(MARKER + broken + TWO + END, size=size))
    assert told(items) == ["SNAPSHOT_MARKER", "!", "MUTATION", "STREAM_END"]
    fault = items[1]
    assert isinstance(fault.error, RemoteProtocolError)
    assert (fault.offset, fault.error_at) == (len(MARKER), at)
    assert fault.data[at] == broken[at]
    found = str(fault.error)
    assert sentence.replace("\\", "") in found
    assert f"the next header was found after leaving out {len(broken)} bytes" in found


def test_a_walk_that_finds_no_header_any_more_says_how_much_is_left() -> None:
    items = walked(pieces_of(ONE + b"A" * 100))
    assert told(items) == ["MUTATION", "!"]
    assert "no header was found in the remaining 100 bytes" in str(items[1].error)


def test_a_false_header_inside_rubbish_is_not_taken_for_a_frame() -> None:
    """A plausible header whose successor is none proves nothing."""
    false = Frame(magic=0x80, opcode=0x5C).to_bytes()
    items = walked(pieces_of(ONE + b"AAA" + false + b"BBB" + TWO + END))
    assert told(items) == ["MUTATION", "!", "MUTATION", "STREAM_END"]


def test_a_lost_walk_keeps_a_window_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk_module, "SEARCH_WINDOW", 200)
    false = Frame(magic=0x80, opcode=0x57, extras=bytes(31), key=b"k").to_bytes()
    false = false[:8] + (100_000).to_bytes(4, "big") + false[12:]
    data = b"A" + false + b"A" * 1000 + TWO + END
    items = walked(pieces_of(data, size=50, connection=CHOSEN))
    assert told(items) == ["!", "MUTATION", "STREAM_END"]


@pytest.mark.parametrize("size", [10, 30, len(ONE) - 1])
def test_the_beginning_of_a_frame_at_the_end_is_a_fault(size: int) -> None:
    items = walked(pieces_of(MARKER + ONE[:size]))
    assert told(items) == ["SNAPSHOT_MARKER", "!"]
    fault = items[1]
    assert isinstance(fault.error, CaptureError)
    assert (fault.offset, fault.error_at, fault.data) == (len(MARKER), size, ONE[:size])
    wanted = f"{size} of 24 are there" if size < 24 else f"MUTATION: {size} of {len(ONE)} are there"
    assert wanted in str(fault.error)


def test_damage_of_the_source_comes_after_what_was_read() -> None:
    def damaged() -> Iterator[Piece]:
        yield Piece(WHOLE, BACK, 0, ONE + TWO[:30])
        raise CaptureError("cut off")

    items = walk(damaged(), Dialect.DCP_7)
    assert told([next(items), next(items)]) == ["MUTATION", "!"]
    with pytest.raises(CaptureError, match="cut off"):
        next(items)


# Gaps.


def with_gap(data: bytes, start: int, end: int, connection: Connection = WHOLE) -> list[Piece]:
    return [
        Piece(connection, BACK, 0, data[:start]),
        Piece(connection, BACK, end, b"", missing=end - start),
        Piece(connection, BACK, end, data[end:]),
    ]


def test_a_gap_inside_a_body_costs_that_frame_only() -> None:
    data = MARKER + ONE + TWO
    start = len(MARKER) + 30
    items = walked(with_gap(data, start, start + 5))
    assert told(items) == ["SNAPSHOT_MARKER", "!", "MUTATION"]
    assert str(items[1].error) == (
        f"5 bytes are missing from the capture at offset {start}, inside MUTATION"
    )
    assert (items[1].offset, items[1].error_at) == (len(MARKER), 30)
    assert items[2].data == TWO


def test_a_gap_over_a_header_loses_the_place_and_finds_it_again() -> None:
    data = MARKER + ONE + TWO + END
    start = len(MARKER) + 10
    items = walked(with_gap(data, start, start + 40))
    assert told(items) == ["SNAPSHOT_MARKER", "!", "MUTATION", "STREAM_END"]
    assert f"40 bytes are missing from the capture at offset {start}" in str(items[1].error)
    assert "the next header was found after leaving out" in str(items[1].error)
    assert items[2].data == TWO


@pytest.mark.parametrize("seed", range(300))
def test_every_frame_outside_a_gap_is_found_again(seed: int) -> None:
    rng = random.Random(seed)
    frames = [
        encode(Mutation(by_seqno=n, key=b"k%d" % n, value=rng.randbytes(90)), Dialect.DCP_7)
        for n in range(1, 9)
    ]
    data = b"".join(frames)
    start = rng.randrange(len(data) - 1)
    end = rng.randrange(start + 1, len(data))
    items = walked(with_gap(data, start, end))
    offsets = [sum(map(len, frames[:n])) for n in range(len(frames) + 1)]
    whole = [
        frame
        for n, frame in enumerate(frames)
        if offsets[n + 1] <= start or (offsets[n] >= end and n < len(frames))
    ]
    found = [item.data for item in items if item.frame is not None]
    assert found == whole, f"seed {seed}"
    assert sum(item.error is not None for item in items) == 1, f"seed {seed}"


def test_two_gaps_in_one_frame_are_two_faults() -> None:
    data = ONE + TWO
    pieces = [
        Piece(WHOLE, BACK, 0, data[:30]),
        Piece(WHOLE, BACK, 32, b"", missing=2),
        Piece(WHOLE, BACK, 32, data[32:34]),
        Piece(WHOLE, BACK, 36, b"", missing=2),
        Piece(WHOLE, BACK, 36, data[36:]),
    ]
    assert told(walked(pieces)) == ["!", "!", "MUTATION"]


# Captures that begin late, and other protocols.


def test_what_lies_before_the_first_header_of_a_late_capture_is_counted_not_blamed() -> None:
    account = Account()
    items = walked(pieces_of(ONE[-20:] + TWO + END, connection=LATE), account=account)
    assert told(items) == ["MUTATION", "STREAM_END"]
    assert account.bytes_before_first_frame[LATE] == 20


def test_a_late_capture_may_begin_with_a_whole_frame() -> None:
    account = Account()
    assert told(walked(pieces_of(ONE + TWO, connection=LATE), account=account)) == ["MUTATION"] * 2
    assert account.bytes_before_first_frame[LATE] == 0


def test_a_late_capture_without_any_frame_counts_all_its_bytes() -> None:
    account = Account()
    assert walked(pieces_of(b"GET / HTTP/1.1\r\n\r\n" * 5, connection=LATE), account=account) == []
    assert account.bytes_before_first_frame[LATE] == 90


@pytest.mark.parametrize(
    ("first", "why"), [(b"\x16\x03\x01", "TLS"), (b"GET /", "its first byte is 47")]
)
def test_a_connection_of_another_protocol_is_named_and_left_out(first: bytes, why: str) -> None:
    account = Account()
    pieces = [*pieces_of(first, direction=THERE), *pieces_of(ONE)]
    assert walked(pieces, account=account) == []
    assert account.other_protocols == {WHOLE: why}


def test_another_protocol_on_a_chosen_port_is_a_fault() -> None:
    (fault,) = walked(pieces_of(b"GET / HTTP/1.1\r\n\r\n", connection=CHOSEN))
    assert "magic 47" in str(fault.error)


# Known boundaries.


def block(data: bytes, *, line: int | None = None) -> list[Piece]:
    return [Piece(FILE, Direction.UNKNOWN, 100, data, whole=True, line=line)]


def test_a_block_may_hold_several_frames() -> None:
    items = walked(block(ONE + TWO, line=7))
    assert [(item.offset, item.data, item.line) for item in items] == [
        (100, ONE, 7),
        (100 + len(ONE), TWO, 7),
    ]


def test_the_direction_of_a_frame_in_a_file_is_guessed_by_its_kind() -> None:
    reply = Frame(magic=0x81, opcode=0x5C).to_bytes()
    assert [item.direction for item in walked(block(ONE + reply))] == [BACK, THERE]


def test_where_the_boundary_is_known_a_tolerant_reader_lets_it_overrule_the_header() -> None:
    drawn = MARKER[:8] + bytes(4) + MARKER[12:]
    (strict,) = walked(block(drawn))
    assert strict.frame is None
    assert "in a body of 0" in str(strict.error)
    (tolerant,) = walked(block(drawn), strict=False)
    assert isinstance(tolerant.message, SnapshotMarker)
    assert (tolerant.message.end_seqno, tolerant.data) == (9, drawn)


def test_on_a_connection_the_header_is_the_truth_for_a_tolerant_reader_too() -> None:
    drawn = MARKER[:8] + bytes(4) + MARKER[12:]
    items = walked(pieces_of(drawn + ONE + TWO), strict=False)
    assert told(items) == ["!", "MUTATION", "MUTATION"]


@pytest.mark.parametrize("strict", [True, False])
def test_a_broken_frame_in_a_block_costs_neither_its_neighbours_nor_their_place(
    strict: bool,
) -> None:
    items = walked(block(ONE + b"\x41" + TWO[1:] + END + ONE), strict=strict)
    assert told(items) == ["MUTATION", "!", "STREAM_END", "MUTATION"]
    assert items[1].data == b"\x41" + TWO[1:]
    assert "magic 41" in str(items[1].error)


def test_a_frame_that_makes_sense_by_itself_is_cut_before_rubbish() -> None:
    items = walked(block(ONE + b"rubbish"), strict=False)
    assert told(items) == ["MUTATION", "!"]
    assert (items[0].data, items[1].data) == (ONE, b"rubbish")


def test_a_reply_drawn_with_an_empty_body_keeps_the_bytes_that_follow() -> None:
    """Seed 002 draws a failover log behind a header that says that there is none."""
    log = encode(GetFailoverLogReply(failover_log=(FailoverEntry(1, 2),)), Dialect.DCP_7)
    drawn = log[:8] + bytes(4) + log[12:]
    (item,) = walked(block(drawn), strict=False)
    assert isinstance(item.message, GetFailoverLogReply)
    assert item.message.failover_log == (FailoverEntry(1, 2),)


@pytest.mark.parametrize("size", [1, 10, 23])
def test_a_block_shorter_than_a_header_is_a_fault(size: int) -> None:
    (fault,) = walked(block(ONE[:size]))
    assert f"{size} bytes where a header has 24" in str(fault.error)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("seed", range(100))
def test_any_bytes_are_accounted_for_and_never_an_exception(seed: int, strict: bool) -> None:
    rng = random.Random(seed)
    parts = [ONE, TWO, END, MARKER, encode(Noop(), Dialect.DCP_7), BAD_LAYOUT]
    data = bytearray(b"".join(rng.choices(parts, k=12)))
    for _ in range(rng.randrange(6)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    data = bytearray(b"\x80" + data[1:])
    items = walked(pieces_of(bytes(data), size=rng.randrange(1, 200)), strict=strict)
    covered = 0
    for item in items:
        assert item.offset >= covered, f"seed {seed}: items stand in order and do not overlap"
        assert (item.message is None) == (item.error is not None), f"seed {seed}"
        if item.frame is not None:
            assert bytes(data[item.offset : item.offset + len(item.data)]) == item.data
            covered = item.offset + len(item.data)
