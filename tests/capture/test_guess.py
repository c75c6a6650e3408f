from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture.conversation import Direction
from headrace.capture.guess import likely_direction, likely_sender, plausible_header
from headrace.wire.frame import BODY_SIZE_MAX, Frame
from headrace.wire.opcodes import Magic, Opcode

THERE, BACK = Direction.CLIENT_TO_SERVER, Direction.SERVER_TO_CLIENT


def header(**changes: int) -> bytes:
    """A mutation's header with single bytes changed, by offset (at0=..)."""
    data = bytearray(Frame(magic=0x80, opcode=0x57, extras=bytes(31), key=b"k").to_bytes()[:24])
    for name, byte in changes.items():
        data[int(name.removeprefix("at"))] = byte
    return bytes(data)


def test_a_real_header_is_plausible_at_its_place_only() -> None:
    data = b"xx" + header()
    assert plausible_header(data, 2)
    assert not plausible_header(data, 1)
    assert not plausible_header(data[:-1], 2), "a header has 24 bytes"


IMPLAUSIBLE = {
    "unknown magic": {"at0": 0x79},
    "unknown opcode": {"at1": 0x4F},
    "datatype with unknown bits": {"at5": 0x08},
    "key longer than the body": {"at2": 0xFF},
    "extras longer than the body": {"at4": 0xFF},
    "body beyond the limit": {"at8": (BODY_SIZE_MAX >> 24) + 1},
    "server opcode nobody knows": {"at0": Magic.SERVER_REQUEST},
}


@pytest.mark.parametrize("changes", IMPLAUSIBLE.values(), ids=IMPLAUSIBLE)
def test_a_header_is_not_plausible_with(changes: dict[str, int]) -> None:
    assert not plausible_header(header(**changes))


SENDERS = [
    (Magic.REQUEST, Opcode.HELLO, THERE),
    (Magic.REPLY, Opcode.HELLO, BACK),
    (Magic.REQUEST, Opcode.STREAM_REQ, THERE),
    (Magic.ALT_REPLY, Opcode.STREAM_REQ, BACK),
    (Magic.REQUEST, Opcode.MUTATION, BACK),
    (Magic.ALT_REQUEST, Opcode.DELETION, BACK),
    (Magic.REQUEST, Opcode.NOOP, BACK),
    (Magic.REPLY, Opcode.NOOP, THERE),
    (Magic.REPLY, Opcode.SNAPSHOT_MARKER, THERE),
    (Magic.REQUEST, Opcode.SEQNO_ACKNOWLEDGED, THERE),
    (Magic.SERVER_REQUEST, 1, BACK),
    (Magic.SERVER_REPLY, 1, THERE),
]


@pytest.mark.parametrize(("magic", "opcode", "sender"), SENDERS)
def test_who_would_send_a_frame_follows_from_magic_and_opcode(
    magic: int, opcode: int, sender: Direction
) -> None:
    frame = Frame(magic=magic, opcode=opcode)
    assert likely_direction(frame) is sender
    assert likely_sender(frame.to_bytes()) is sender


@given(st.binary(max_size=64))
def test_bytes_that_are_no_header_have_no_sender(data: bytes) -> None:
    assert (likely_sender(data) is Direction.UNKNOWN) == (not plausible_header(data))
