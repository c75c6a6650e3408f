from __future__ import annotations

import pytest

from headrace.capture.conversation import Direction
from headrace.capture.walk import Item
from headrace.cli.faults import ROW_SIZE, excerpt, fault_lines
from headrace.errors import CaptureError, RemoteProtocolError
from headrace.wire.dialect import Dialect
from headrace.wire.frame import Frame
from tests.cli.building import FILE, THERE, item_of_frame

SHORT = Frame(magic=0x80, opcode=0x53, extras=bytes(24), opaque=5)


def shown(item: Item, *, strict: bool = True) -> list[str]:
    return list(fault_lines(item, "x.pcap", Dialect.DCP_7, strict=strict))


def test_a_fault_names_its_place_its_reason_and_its_byte() -> None:
    item = item_of_frame(SHORT, direction=THERE, offset=183)
    assert shown(item) == [
        "x.pcap, connection 1 (10.0.0.1:40000 > 10.0.0.2:11210), client to server, byte 187",
        "  STREAM_REQ with 24 bytes of extras; dcp-7 allows 48 (--tolerant reads it)",
        "         183  80 53 00 00 18 00 00 00 00 00 00 18 00 00 00 05",
        "                          ^^",
    ]


def test_what_a_tolerant_reader_did_not_read_has_no_hint() -> None:
    assert "--tolerant" not in shown(item_of_frame(SHORT), strict=False)[1]


def test_what_no_reader_can_read_has_no_hint() -> None:
    item = item_of_frame(Frame(magic=0x80, opcode=0x57, extras=b"abc", key=b"k", value=b"v"))
    assert item.error is not None
    assert "--tolerant" not in shown(item)[1]


def test_a_drawing_whose_header_contradicts_itself_has_the_hint() -> None:
    drawn = bytes.fromhex(
        "805600001400000000000000deadbeef00000000000000000000000000000000000000000000000800000001"
    )
    error = RemoteProtocolError("says a body of 0 bytes", offset=8)
    item = Item(FILE, Direction.UNKNOWN, 0, None, drawn, error=error, error_at=8, line=19)
    assert shown(item)[:2] == [
        "x.pcap, line 19, byte 8",
        "  says a body of 0 bytes (--tolerant reads it)",
    ]


def test_rubbish_in_a_file_has_no_hint() -> None:
    item = Item(
        FILE, Direction.UNKNOWN, 0, None, b"abc", error=CaptureError("no header"), error_at=0
    )
    assert "--tolerant" not in shown(item)[1]


@pytest.mark.parametrize("at", range(50))
def test_the_caret_stands_under_the_byte(at: int) -> None:
    data = bytes(range(64))
    *_, row, caret = excerpt(data, at, 1000)
    column = caret.index("^^")
    assert row[column : column + 2] == f"{at:02x}"
    assert int(row.split()[0]) == 1000 + at // ROW_SIZE * ROW_SIZE


def test_one_row_of_context_stands_before_the_byte() -> None:
    assert len(list(excerpt(bytes(64), 40, 0))) == 3
    assert len(list(excerpt(bytes(64), 3, 0))) == 2


def test_the_caret_may_stand_behind_the_last_byte() -> None:
    """Where bytes are missing, the wrong place is the first one that is not there."""
    *_, row, caret = excerpt(b"\x80\x57", 2, 0)
    assert row.rstrip().endswith("80 57")
    assert caret.index("^^") == len(row) + 1
    *_, row, caret = excerpt(bytes(16), 16, 0)
    assert (row.strip(), caret.strip()) == ("16", "^^")
