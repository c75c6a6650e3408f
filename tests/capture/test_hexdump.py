from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.capture import hexdump
from headrace.capture.hexdump import Block, parse_hex
from headrace.errors import CaptureError

MARKER = bytes.fromhex(
    "805600001400000000000014deadbeef00000000000000000000000000000000000000000000000800000001"
)
LONG = MARKER + bytes(64)

SHAPES = {
    "bare": MARKER.hex(),
    "bare in capitals, spaced": MARKER.hex(" ").upper(),
    "bare, colons": MARKER.hex(":"),
    "bare, dashes": MARKER.hex("-"),
    "bare, wrapped": "\n".join(MARKER.hex(" ")[at : at + 30] for at in range(0, 131, 30)),
    "bare words of four bytes": MARKER.hex(" ", 4),
    "bare with comments": f"# a marker\n{MARKER.hex()}  # from seed 000\n// end",
    "list": ", ".join(f"0x{byte:02x}" for byte in MARKER),
    "list of single digits": ", ".join(f"0x{byte:x}" for byte in MARKER),
    "Python bytes": 'b"' + "".join(f"\\x{byte:02x}" for byte in MARKER) + '"',
    "Python list": "[" + ", ".join(f"0x{byte:02X}" for byte in MARKER) + "]",
    "xxd -i": """
unsigned char f_bin[] = {
  0x80, 0x56, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x14,
  0xde, 0xad, 0xbe, 0xef, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
  0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
  0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x01
};
unsigned int f_bin_len = 44;
""",
    "C array with comments": """
static const uint8_t marker[44] = { 0x80, 0x56, /* magic, opcode */ 0x00, 0x00, // key length
  0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x14, 0xde, 0xad, 0xbe, 0xef,
  0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
  0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x01};
""",
    "xxd": """
00000000: 8056 0000 1400 0000 0000 0014 dead beef  .V..............
00000010: 0000 0000 0000 0000 0000 0000 0000 0000  ................
00000020: 0000 0000 0000 0008 0000 0001            ............
""",
    "xxd -g1": """
00000000: 80 56 00 00 14 00 00 00 00 00 00 14 de ad be ef  ab cd ef| 12 34
00000010: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00  ................
00000020: 00 00 00 00 00 00 00 08 00 00 00 01              ............
""",
    "tcpdump offsets": """
\t0x0000:  8056 0000 1400 0000 0000 0014 dead beef  .V..............
\t0x0010:  0000 0000 0000 0000 0000 0000 0000 0000  ................
\t0x0020:  0000 0000 0000 0008 0000 0001            ............
""",
    "hexdump -C": """
00000000  80 56 00 00 14 00 00 00  00 00 00 14 de ad be ef  |.V.......ab|cd..|
00000010  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  |................|
00000020  00 00 00 00 00 00 00 08  00 00 00 01              |............|
0000002c
""",
    "od -A x -t x1": """
000000 80 56 00 00 14 00 00 00 00 00 00 14 de ad be ef
000010 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
000020 00 00 00 00 00 00 00 08 00 00 00 01
00002c
""",
    "od -A d -t x1": """
0000000 80 56 00 00 14 00 00 00 00 00 00 14 de ad be ef
0000016 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
0000032 00 00 00 00 00 00 00 08 00 00 00 01
0000044
""",
    "od -t x1z, octal": """
0000000 80 56 00 00 14 00 00 00 00 00 00 14 de ad be ef  >.V..............<
0000020 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00  >................<
0000040 00 00 00 00 00 00 00 08 00 00 00 01              >............<
0000054
""",
    "Wireshark": """
0000   80 56 00 00 14 00 00 00 00 00 00 14 de ad be ef   .V..............
0010   00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00   ab cd ..........
0020   00 00 00 00 00 00 00 08 00 00 00 01               ............
""",
    "tshark -x, full rows": """
0000  80 56 00 00 14 00 00 00  00 00 00 14 de ad be ef  ab cd 12 34 56 78 9a
0010  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  ........ ........
0020  00 00 00 00 00 00 00 08  00 00 00 01              ............
""",
    "drawing": """
A marker has 8 bytes of 0x56 | and prose | around its drawing:

      Byte/     0       |       1       |       2       |       3       |
        +---------------+---------------+---------------+---------------+
       0| 0x80          | 0x56 ('V')    | 0x00          | 0x00          |
        +---------------+---------------+---------------+---------------+
       4| 0x14          | 0x00          | 0x00          | 0x00          |
       8| 0x00          | 0x00          | 0x00          | 0x14          |
      12| 0xde          | 0xad          | 0xbe          | 0xef          |
      16| 0x00          | 0x00          | 0x00          | 0x00          |
      20| 0x00          | 0x00          | 0x00          | 0x00          |
      24| 0x00          | 0x00          | 0x00          | 0x00          |
      28| 0x00          | 0x00          | 0x00          | 0x00          |
      32| 0x00          | 0x00          | 0x00          | 0x00          |
      36| 0x00          | 0x00          | 0x00          | 0x08          |
      40| 0x00 ('|')    | 0x00          | 0x00          | 0x01          |
        +---------------+---------------+---------------+---------------+
    Magic           (0)    : 0x80
      0| flags                                                         |
""",
}


@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES)
def test_every_shape_gives_the_same_bytes(text: str) -> None:
    assert [block.data for block in parse_hex(text, "x")] == [MARKER]


REPEATS = {
    "hexdump -C": """
00000000  80 56 00 00 14 00 00 00  00 00 00 14 de ad be ef  |.V..............|
00000010  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  |................|
00000020  00 00 00 00 00 00 00 08  00 00 00 01 00 00 00 00  |................|
00000030  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  |................|
*
00000060  00 00 00 00 00 00 00 00  00 00 00 00              |............|
0000006c
""",
    "od, octal": """
0000000 80 56 00 00 14 00 00 00 00 00 00 14 de ad be ef
0000020 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
0000040 00 00 00 00 00 00 00 08 00 00 00 01 00 00 00 00
0000060 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
*
0000140 00 00 00 00 00 00 00 00 00 00 00 00
0000154
""",
}


@pytest.mark.parametrize("text", REPEATS.values(), ids=REPEATS)
def test_an_asterisk_repeats_the_row_above_it(text: str) -> None:
    (block,) = parse_hex(text, "x")
    assert block.data == LONG


def test_a_blank_line_ends_a_block_of_bare_hex() -> None:
    assert parse_hex("80 56\n00\n\n\n81 57\n", "x") == [
        Block(b"\x80\x56\x00", 1),
        Block(b"\x81\x57", 5),
    ]


def test_lines_that_each_begin_like_a_frame_are_blocks_of_their_own() -> None:
    frames = [MARKER, b"\x81" + MARKER[1:], b"\x08" + MARKER[1:24]]
    text = "\n".join(frame.hex() for frame in frames)
    assert [(block.data, block.line) for block in parse_hex(text, "x")] == [
        (frame, line) for line, frame in enumerate(frames, 1)
    ]


def test_offset_0_begins_a_new_block() -> None:
    text = "0000  80 56\n0002  01\n\n0000  81 57\n"
    assert parse_hex(text, "x") == [Block(b"\x80\x56\x01", 1), Block(b"\x81\x57", 4)]


def test_each_brace_pair_is_a_block() -> None:
    text = "{0x80, 0x56}, \n{0x81,\n0x57}"
    assert [block.data for block in parse_hex(text, "x")] == [b"\x80\x56", b"\x81\x57"]


def test_a_dump_may_begin_at_any_offset() -> None:
    text = "00000010: 8056 0000  ....\n00000014: 1400  ..\n"
    assert [block.data for block in parse_hex(text, "x")] == [MARKER[:6]]


FOLLOWED = """
===================================================================
Follow: tcp,hex
Filter: tcp.stream eq 0
Node 0: 127.0.0.1:33126
Node 1: 127.0.0.1:12266
00000000  80 1f 00 0a 00 00 00 00  00 00 00 18 00 00 00 01  ........ ........
00000010  65 72                                             er
\t00000000  81 1f 00 00                                       ....
00000012  80 21                                             .!
\t00000004  81 21                                             .!
===================================================================
"""


def test_a_followed_stream_has_a_lane_for_each_end() -> None:
    first = bytes.fromhex("801f000a00000000000000180000000165 72".replace(" ", ""))
    assert parse_hex(FOLLOWED, "x") == [
        Block(first, 7, 0),
        Block(b"\x81\x1f\x00\x00", 9, 1),
        Block(b"\x80\x21", 10, 0),
        Block(b"\x81\x21", 11, 1),
    ]


ERRORS = {
    "letters in bare hex": ("80 56\n80 xy", "x line 2, column 4: .* found 'xy'"),
    "an odd digit": ("80 5", "x line 1, column 4: hex digits come in pairs, found '5'"),
    "prose": ("this is not hex", "x line 1, column 1: hex digits are wanted here, found 'this"),
    "a lost row": (
        "0000  80 56 00 00\n0008  14 00\n",
        "x line 2 says offset 0008, but 4 bytes stand before it",
    ),
    "a doubled row": ("0000  80 56\n0000  80 56\n0008  00", "line 3 says offset 0008"),
    "a row that ends in text": (
        "00000000: 8056 zz00\n",
        "x line 1, column 16: pairs of hex digits .* 'zz00'",
    ),
    "words of hexdump without -C": (
        "0000000 5680 0000 0014 0000 0000 1400 adde efbe\n",
        "x line 1, column 9: single bytes are wanted here .*use hexdump -C",
    ),
    "a row without offset": ("00000000: 80\nzz", "x line 2, column 1: an offset is wanted here"),
    "rubbish in a list": ("0x80, 0x5g", r"x line 1, column 7: 0x00 to 0xff.* '0x5g'"),
    "a number that is no byte": ("0x80, 0x156", "x line 1, column 7"),
}


@pytest.mark.parametrize(("text", "sentence"), ERRORS.values(), ids=ERRORS)
def test_what_cannot_be_read_is_named_by_line_and_column(text: str, sentence: str) -> None:
    with pytest.raises(CaptureError, match=sentence):
        parse_hex(text, "x")


def test_a_repetition_cannot_claim_more_than_a_block_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hexdump, "BLOCK_SIZE_MAX", 64)
    with pytest.raises(CaptureError, match="x line 3: a block of 4096 bytes, limit 64"):
        parse_hex("0000  80 56\n*\n1000\n", "x")


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment", "// nothing\n\n"])
def test_nothing_gives_no_blocks(text: str) -> None:
    assert parse_hex(text, "x") == []


@given(st.text(max_size=200))
def test_any_text_is_blocks_or_a_capture_error(text: str) -> None:
    with suppress(CaptureError):
        parse_hex(text, "x")


@pytest.mark.parametrize("seed", range(60))
def test_random_bytes_survive_each_way_to_print_them(seed: int) -> None:
    rng = random.Random(seed)
    data = b"\x80" + rng.randbytes(rng.randrange(1, 90))
    rows = [data[at : at + 16] for at in range(0, len(data), 16)]
    texts = ["".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row) for row in rows]
    canonical = "\n".join(
        f"{16 * n:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  |{text}|"
        for n, (row, text) in enumerate(zip(rows, texts, strict=True))
    )
    wireshark = "\n".join(
        f"{16 * n:04x}   {row.hex(' '):<47}   {text}"
        for n, (row, text) in enumerate(zip(rows, texts, strict=True))
    )
    xxd = "\n".join(
        f"{16 * n:08x}: {row.hex(' ', 2) if len(row) % 2 == 0 else _groups(row):<39}  {text}"
        for n, (row, text) in enumerate(zip(rows, texts, strict=True))
    )
    for text in (canonical, wireshark, xxd, data.hex()):
        assert b"".join(block.data for block in parse_hex(text, "x")) == data, f"seed {seed}"


def _groups(row: bytes) -> str:
    """Groups of two bytes counted from the left, as xxd makes them."""
    return " ".join(row[at : at + 2].hex() for at in range(0, len(row), 2))


SEEDS = sorted((Path(__file__).parent / "seeds").glob("*.txt"))


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.stem)
def test_every_drawing_of_the_original_documents_is_a_block(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    blocks = parse_hex(text, path.name)
    drawn = [line for line in text.splitlines() if line.strip().startswith("0| 0x8")]
    assert len(blocks) == len(drawn) > 0
    assert all(block.data[0] in (0x80, 0x81) and len(block.data) >= 24 for block in blocks)
