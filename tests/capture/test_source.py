from __future__ import annotations

import gzip
import io
import sys
from typing import TYPE_CHECKING

import pytest

from headrace.capture import source as source_module
from headrace.capture.conversation import Direction, Endpoint, Piece
from headrace.capture.packets import Skip
from headrace.capture.source import FORMATS, STDIN_NAME, Source, open_source
from headrace.capture.writer import Said, write_pcap
from headrace.errors import CaptureError
from headrace.wire.frame import Frame
from tests.capture.building import ethernet, ipv4, ipv6, pcap, tcp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

THERE, BACK = Direction.CLIENT_TO_SERVER, Direction.SERVER_TO_CLIENT
HELLO = Frame(magic=0x80, opcode=0x1F, key=b"agent").to_bytes()
REPLY = Frame(magic=0x81, opcode=0x1F).to_bytes()


def capture(**ends: Endpoint) -> bytes:
    stream = io.BytesIO()
    write_pcap(stream, [Said(THERE, HELLO, 5), Said(BACK, REPLY, 6)], **ends)
    return stream.getvalue()


Opened = tuple[Source, list[Piece]]


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Opened]:
    """Write bytes to a file and read it as a source."""

    def run(data: bytes, format: str = "auto", port: int | None = None) -> Opened:
        path = tmp_path / "x"
        path.write_bytes(data)
        with open_source(str(path), format, port) as source:
            return source, list(source)

    return run


KINDS = {
    "pcap": capture(),
    "raw": HELLO + REPLY,
    "hex": f"{HELLO.hex()}\n\n{REPLY.hex()}".encode(),
    "hex, byte-order mark": b"\xef\xbb\xbf" + HELLO.hex(" ").encode(),
    "pcap, gzip": gzip.compress(capture()),
    "raw, gzip": gzip.compress(HELLO),
    "hex, gzip": gzip.compress(HELLO.hex().encode()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_format_is_told_by_the_first_bytes(kind: str, opened: Callable[..., Opened]) -> None:
    source, pieces = opened(KINDS[kind])
    assert source.format == kind.split(",")[0]
    assert pieces[0].data.startswith(HELLO)


@pytest.mark.parametrize("kind", ["pcap", "raw", "hex"])
def test_a_named_format_is_not_guessed(kind: str, opened: Callable[..., Opened]) -> None:
    assert opened(KINDS[kind], kind)[1][0].data.startswith(HELLO)


def test_raw_bytes_may_begin_with_anything_when_the_format_is_named(
    opened: Callable[..., Opened],
) -> None:
    assert opened(b"\x16\x03\x01", "raw")[1][0].data == b"\x16\x03\x01"


@pytest.mark.parametrize("kind", KINDS)
def test_standard_input_gives_the_same_pieces(
    kind: str, opened: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin = io.TextIOWrapper(io.BufferedReader(io.BytesIO(KINDS[kind])))
    monkeypatch.setattr(sys, "stdin", stdin)
    with open_source("-") as source:
        assert source.name == STDIN_NAME
        assert source.size is None
        pieces = list(source)
    expected = opened(KINDS[kind])[1]
    assert [(piece.offset, piece.data, piece.timestamp_ns) for piece in pieces] == [
        (piece.offset, piece.data, piece.timestamp_ns) for piece in expected
    ]


def test_the_size_and_the_position_of_a_file_are_known(tmp_path: Path) -> None:
    path = tmp_path / "x.pcap"
    path.write_bytes(capture())
    with open_source(str(path)) as source:
        assert source.size == len(capture())
        list(source)
        assert source.position == source.size


def test_only_connections_of_the_chosen_port_are_read(opened: Callable[..., Opened]) -> None:
    ends = {"client": Endpoint("127.0.0.1", 5), "server": Endpoint("127.0.0.1", 6)}
    assert [piece.direction for piece in opened(capture(**ends), port=6)[1]] == [THERE, BACK]
    assert [piece.direction for piece in opened(capture(**ends), port=5)[1]] == [BACK, THERE]
    assert opened(capture(**ends), port=7)[1] == []


# Hex text.


def test_each_block_of_hex_is_a_piece_with_a_known_boundary_and_its_line(
    opened: Callable[..., Opened],
) -> None:
    _, pieces = opened(f"{HELLO.hex()}\n\n{REPLY.hex()}".encode())
    assert [(piece.data, piece.whole, piece.line, piece.offset) for piece in pieces] == [
        (HELLO, True, 1, 0),
        (REPLY, True, 3, len(HELLO)),
    ]


def dump(data: bytes, indent: str = "", start: int = 0) -> str:
    return "".join(
        f"{indent}{start + at:08x}  {data[at : at + 16].hex(' ')}\n"
        for at in range(0, len(data), 16)
    )


def test_a_followed_stream_has_two_directions(opened: Callable[..., Opened]) -> None:
    text = dump(HELLO[:20]) + dump(REPLY, "    ") + dump(HELLO[20:], start=20)
    _, pieces = opened(text.encode())
    assert [(piece.direction, piece.offset, piece.data) for piece in pieces] == [
        (THERE, 0, HELLO[:20]),
        (BACK, 0, REPLY),
        (THERE, 20, HELLO[20:]),
    ]
    assert not any(piece.whole for piece in pieces)


@pytest.mark.parametrize(
    "packet", [ethernet(ipv4(tcp(HELLO, flags=2))), ipv6(tcp(HELLO, flags=2))], ids=["eth", "ip"]
)
def test_a_dump_of_whole_packets_is_read_like_a_capture(
    packet: bytes, opened: Callable[..., Opened]
) -> None:
    source, (piece,) = opened(dump(packet).encode())
    assert (piece.data, piece.direction, piece.timestamp_ns) == (HELLO, THERE, None)
    assert source.tally.packets == 1


def test_a_network_card_may_have_an_address_that_begins_like_a_frame(
    opened: Callable[..., Opened],
) -> None:
    packet = b"\x08\x00\x27" + ethernet(ipv4(tcp(HELLO, flags=2)))[3:]
    assert opened(dump(packet).encode())[1][0].data == HELLO


# What cannot be opened, in one sentence each.

REFUSALS = {
    "empty": (b"", "auto", "x is empty; frames, hex text, pcap or pcapng are wanted"),
    "TLS": (b"\x16\x03\x01\x02", "auto", r"begins with 16 03 01 02, which is neither pcap"),
    "not hex": (b"hello", "auto", "line 1, column 1: hex digits are wanted here, found 'hello'"),
    "no hex": (b"# only words", "auto", "holds no hex"),
    "not text": (b"80 56 \xff", "hex", "is not text: byte ff at 6 is not UTF-8"),
    "no pcap": (b"\x80\x57", "pcap", "begins with 80 57, which is neither pcap"),
    "half a pcap": (capture()[:-3], "auto", "ends inside packet 10"),
    "half a gzip": (gzip.compress(capture())[:60], "auto", "cannot be read: Compressed file ended"),
    "UDP only": (
        pcap([(1, 2, ethernet(ipv4(bytes(8), protocol=17)))] * 2),
        "auto",
        "holds 2 packets and none is TCP over IP: 2 not TCP",
    ),
    "unknown link type": (
        pcap([(1, 2, bytes(60))], link=105),
        "auto",
        r"1 of a link type that is not read \(link types that are read: 0, 1, 12,",
    ),
}


@pytest.mark.parametrize(("data", "format", "sentence"), REFUSALS.values(), ids=REFUSALS)
def test_what_cannot_be_read_is_refused_in_a_sentence(
    data: bytes, format: str, sentence: str, opened: Callable[..., Opened]
) -> None:
    with pytest.raises(CaptureError, match=sentence):
        opened(data, format)


def test_a_missing_file_and_a_directory_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(CaptureError, match=r"nowhere\.pcap does not exist; name a capture file"),
        open_source(str(tmp_path / "nowhere.pcap")),
    ):
        pass
    with (
        pytest.raises(CaptureError, match="is a directory; name one capture file"),
        open_source(str(tmp_path)),
    ):
        pass


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with (
        pytest.raises(CaptureError, match="format 'xml' is unknown; allowed: auto, raw, hex, pcap"),
        open_source("-", "xml"),
    ):
        pass
    assert FORMATS == ("auto", "raw", "hex", "pcap")


def test_hex_text_beyond_the_limit_is_refused(
    opened: Callable[..., Opened], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "TEXT_SIZE_MAX", 10)
    with pytest.raises(CaptureError, match="more than 10 bytes of hex text"):
        opened(HELLO.hex().encode())


def test_packets_that_are_skipped_beside_others_are_only_counted(
    opened: Callable[..., Opened],
) -> None:
    packets = [(1, 0, ethernet(ipv4(tcp(HELLO, flags=2)))), (2, 0, bytes(60))]
    source, pieces = opened(pcap(packets))
    assert len(pieces) == 1
    assert source.tally.skipped == {Skip.NOT_IP: 1}
