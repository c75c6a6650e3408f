"""Frames out of any split of bytes, and the sentence when there is none."""

from __future__ import annotations

import random

import pytest

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.frame import (
    BODY_SIZE_MAX,
    HEADER_SIZE,
    Frame,
    FrameBuffer,
    FrameInfo,
    encode_frame_infos,
    one_frame,
    opcode_name,
    parse_frame_infos,
    split_frames,
)
from headrace.wire.opcodes import Magic, Opcode

CLASSIC = Frame(
    magic=Magic.REQUEST,
    opcode=Opcode.MUTATION,
    datatype=1,
    vbucket=0x0210,
    opaque=0xDEADBEEF,
    cas=7,
    extras=bytes(31),
    key=b"hello",
    value=b"world",
)
FLEXIBLE = Frame(
    magic=Magic.ALT_REQUEST,
    opcode=Opcode.DELETION,
    vbucket=3,
    framing=b"\x22\x00\x47",
    extras=bytes(21),
    key=b"\x00k",
)
REPLY = Frame(magic=Magic.REPLY, opcode=Opcode.GET, vbucket=1)
SERVER = Frame(magic=Magic.SERVER_REQUEST, opcode=1, extras=bytes(4), key=b"b", value=b"{}")
FRAMES = [CLASSIC, FLEXIBLE, REPLY, SERVER]
STREAM = b"".join(frame.to_bytes() for frame in FRAMES)


def feed(pieces: list[bytes]) -> list[Frame]:
    """Return the frames of a stream that comes in pieces."""
    buffer = FrameBuffer()
    frames: list[Frame] = []
    for piece in pieces:
        buffer.feed(piece)
        frames.extend(buffer)
    return frames


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: frame.name)
def test_a_frame_is_its_bytes_and_back(frame: Frame) -> None:
    data = frame.to_bytes()
    assert len(data) == frame.size
    assert split_frames(data) == [frame]
    assert one_frame(data) == frame


def test_every_split_in_two_gives_the_same_frames() -> None:
    for cut in range(len(STREAM) + 1):
        assert feed([STREAM[:cut], STREAM[cut:]]) == FRAMES


def test_byte_by_byte_gives_the_same_frames() -> None:
    assert feed([bytes([byte]) for byte in STREAM]) == FRAMES


@pytest.mark.parametrize("seed", range(50))
def test_random_splits_give_the_same_frames(seed: int) -> None:
    chance = random.Random(seed)
    cuts = sorted(chance.choices(range(len(STREAM)), k=chance.randrange(12)))
    pieces = [STREAM[a:b] for a, b in zip([0, *cuts], [*cuts, len(STREAM)], strict=True)]
    assert feed(pieces) == FRAMES, f"seed {seed}"


def test_the_offset_counts_through_compaction() -> None:
    """A long stream is not kept, and the offset still is that of the whole stream."""
    buffer = FrameBuffer()
    big = Frame(
        magic=Magic.REQUEST, opcode=Opcode.SET, extras=bytes(8), key=b"k", value=bytes(99_999)
    )
    for count in range(1, 9):
        buffer.feed(big.to_bytes())
        assert list(buffer) == [big]
        assert buffer.offset == count * big.size
    assert buffer.pending == 0


@pytest.mark.parametrize("cut", range(1, HEADER_SIZE + 5))
def test_an_error_is_told_at_the_same_offset_whatever_the_split(cut: int) -> None:
    bad = bytearray(CLASSIC.to_bytes())
    bad[0] = 0x47  # "G" of "GET / HTTP/1.1"
    data = REPLY.to_bytes() + bytes(bad)
    with pytest.raises(RemoteProtocolError, match="magic 47 at byte 0; allowed: 08, 18") as caught:
        feed([data[:cut], data[cut:]])
    assert caught.value.offset == REPLY.size
    assert caught.value.fatal


def test_a_broken_buffer_stays_broken() -> None:
    buffer = FrameBuffer()
    buffer.feed(bytes(24))
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="magic 00"):
            buffer.take()


def test_a_wrong_magic_is_told_before_a_whole_header_is_there() -> None:
    """A peer that speaks another protocol may wait for us for ever."""
    buffer = FrameBuffer()
    buffer.feed(b"H")
    with pytest.raises(RemoteProtocolError, match="magic 48"):
        buffer.take()


def test_a_claimed_body_over_the_limit_is_refused_before_it_comes() -> None:
    header = bytearray(CLASSIC.to_bytes()[:HEADER_SIZE])
    header[8:12] = (BODY_SIZE_MAX + 1).to_bytes(4, "big")
    buffer = FrameBuffer()
    buffer.feed(header)
    with pytest.raises(
        RemoteProtocolError, match=r"MUTATION with a body of 31457281 bytes"
    ) as error:
        buffer.take()
    assert error.value.offset == 8
    assert error.value.fatal


def test_parts_that_do_not_fit_their_body_are_refused() -> None:
    data = bytearray(CLASSIC.to_bytes())
    data[8:12] = (35).to_bytes(4, "big")
    with pytest.raises(RemoteProtocolError, match=r"0\+31\+5 bytes in a body of 35"):
        split_frames(bytes(data[: HEADER_SIZE + 35]))


def test_a_stream_that_ends_inside_a_frame_says_where() -> None:
    with pytest.raises(RemoteProtocolError, match="20 bytes at offset 24 are not a whole frame"):
        split_frames(REPLY.to_bytes() + CLASSIC.to_bytes()[:20])


def test_a_known_boundary_lets_the_real_length_overrule_the_header() -> None:
    data = bytearray(CLASSIC.to_bytes())
    data[8:12] = bytes(4)
    with pytest.raises(RemoteProtocolError, match="in a body of 0"):
        one_frame(bytes(data))
    assert one_frame(bytes(data), tolerant=True) == CLASSIC
    with pytest.raises(RemoteProtocolError, match="10 bytes where a header has 24"):
        one_frame(bytes(10), tolerant=True)
    with pytest.raises(RemoteProtocolError, match="says a body of 0 bytes and 3 follow"):
        one_frame(REPLY.to_bytes() + b"abc")


INFOS = [
    (FrameInfo(2, b"\x00\x47"),),
    (FrameInfo(0), FrameInfo(1, b"\x01\x00\x64")),
    (FrameInfo(14, bytes(14)),),
    (FrameInfo(15, b"a"), FrameInfo(16, bytes(15)), FrameInfo(270, bytes(40))),
    (FrameInfo(4, b"u" * 100),),
]


@pytest.mark.parametrize("infos", INFOS)
def test_frame_infos_with_every_escape_come_back(infos: tuple[FrameInfo, ...]) -> None:
    assert parse_frame_infos(encode_frame_infos(infos)) == infos


def test_escapes_stand_in_the_documented_order() -> None:
    """The id's escape byte comes first."""
    assert encode_frame_infos((FrameInfo(17, bytes(20)),)) == b"\xff\x02\x05" + bytes(20)


@pytest.mark.parametrize(
    ("framing", "sentence"),
    [
        (b"\x22\x00", "frame info 2 claims 2 bytes and 1 are left"),
        (b"\xf0", "ends in the middle of an escape"),
        (b"\x0f", "ends in the middle of an escape"),
        (b"\x22\x00\x01\x11", "frame info 1 claims 1 bytes and 0 are left"),
    ],
)
def test_broken_frame_infos_are_refused(framing: bytes, sentence: str) -> None:
    with pytest.raises(RemoteProtocolError, match=sentence):
        parse_frame_infos(framing)


@pytest.mark.parametrize(
    ("frame", "sentence"),
    [
        (Frame(magic=0x80, opcode=1, key=bytes(65536)), "a key of 65536 bytes, limit 65535"),
        (Frame(magic=0x08, opcode=1, key=bytes(256)), "a key of 256 bytes, limit 255"),
        (Frame(magic=0x80, opcode=1, framing=b"\x00"), "framing extras of 1 bytes, limit 0"),
        (Frame(magic=0x80, opcode=1, extras=bytes(256)), "extras of 256 bytes, limit 255"),
        (Frame(magic=0x80, opcode=1, value=bytes(BODY_SIZE_MAX + 1)), "a body of"),
        (Frame(magic=0x80, opcode=1, opaque=1 << 32), "opaque 4294967296 is outside"),
        (Frame(magic=0x80, opcode=1, cas=-1), "cas -1 is outside"),
        (Frame(magic=0x80, opcode=1, vbucket=65536), "vbucket or status 65536 is outside"),
        (Frame(magic=0x80, opcode=256), "opcode 256 is outside"),
        (Frame(magic=0x80, opcode=1, datatype=256), "datatype 256 is outside"),
        (Frame(magic=0x77, opcode=1), "magic 0x77 is none of"),
    ],
)
def test_what_a_header_cannot_say_is_not_written(frame: Frame, sentence: str) -> None:
    with pytest.raises(LocalProtocolError, match=sentence):
        frame.to_bytes()


@pytest.mark.parametrize(
    "infos", [(FrameInfo(271),), (FrameInfo(0, bytes(271)),), (FrameInfo(0, bytes(200)),) * 2]
)
def test_frame_infos_that_cannot_be_said_are_not_written(infos: tuple[FrameInfo, ...]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame_infos(infos)


def test_names_depend_on_who_speaks() -> None:
    assert opcode_name(Magic.REQUEST, 0x01) == "SET"
    assert opcode_name(Magic.SERVER_REQUEST, 0x01) == "CLUSTERMAP_CHANGE"
    assert opcode_name(Magic.REQUEST, 0xEE) == "0xee"
    assert REPLY.status == 1
    assert CLASSIC.status == 0
