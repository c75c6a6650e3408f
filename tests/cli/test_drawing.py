from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.capture.source import open_source
from headrace.capture.walk import Item, walk
from headrace.cli import drawing
from headrace.cli.drawing import cas_text, draw
from headrace.wire.admin import HelloReply
from headrace.wire.codec import LAYOUTS, decode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import Frame, FrameInfo
from headrace.wire.layout import Fixed
from headrace.wire.message import stream_id_info
from headrace.wire.messages import (
    Deletion,
    FailoverEntry,
    GetFailoverLogReply,
    Mutation,
    Noop,
    SnapshotMarker,
    StreamRequest,
)
from headrace.wire.opcodes import SEQNO_MAX, Datatype
from headrace.wire.values import deflate, join_xattrs
from tests.cli.building import item_of, item_of_frame

CAPTURES = Path(__file__).parents[1] / "captures"
ROW = re.compile(r"  +(\d+)  ((?:[0-9a-f]{2} ?)+)")


def drawn(item: Item, *, dialect: Dialect = Dialect.DCP_7, collections: bool | None = None) -> str:
    return "\n".join(draw(item, dialect, collections))


def rows(text: str) -> dict[int, bytes]:
    """Offset -> bytes of every row, up to what is inflated and counted for itself."""
    found = {}
    for line in text.split("  value inflated")[0].splitlines():
        if match := ROW.match(line):
            found[int(match[1])] = bytes.fromhex(match[2])
    return found


def test_the_header_of_a_request_is_named_byte_by_byte() -> None:
    assert drawn(item_of(Noop(opaque=0xDEADBEEF))).splitlines() == [
        "  header",
        "       0  80                       magic                 request",
        "       1  5c                       opcode                NOOP",
        "       2  00 00                    key length            0",
        "       4  00                       extras length         0",
        "       5  00                       datatype              raw",
        "       6  00 00                    vbucket               0",
        "       8  00 00 00 00              body length           0",
        "      12  de ad be ef              opaque                0xdeadbeef",
        "      16  00 00 00 00 00 00 00 00  cas                   0x0",
    ]


def test_extras_are_named_by_their_layout() -> None:
    request = StreamRequest(
        flags=4,
        start_seqno=1,
        end_seqno=SEQNO_MAX,
        vb_uuid=0xABC,
        snap_start_seqno=2,
        snap_end_seqno=3,
    )
    assert drawn(item_of(request)).splitlines()[10:] == [
        "  extras, 48 bytes",
        "      24  00 00 00 04              flags                 0x4 to_latest",
        "      28  00 00 00 00              reserved              0",
        "      32  00 00 00 00 00 00 00 01  start_seqno           1",
        "      40  ff ff ff ff ff ff ff ff  end_seqno             endless",
        "      48  00 00 00 00 00 00 0a bc  vb_uuid               0000000000000abc",
        "      56  00 00 00 00 00 00 00 02  snap_start_seqno      2",
        "      64  00 00 00 00 00 00 00 03  snap_end_seqno        3",
    ]


def test_a_value_of_fields_is_named_by_its_layout() -> None:
    marker = SnapshotMarker(
        start_seqno=1, end_seqno=8, flags=2, max_visible_seqno=8, high_completed_seqno=7
    )
    text = drawn(item_of(marker))
    assert "  value, V2.0\n      25  00 00 00 00 00 00 00 01  start_seqno           1" in text
    assert "      41  00 00 00 02              flags                 0x2 disk" in text
    assert "      53  00 00 00 00 00 00 00 07  high_completed_seqno  7" in text


def test_records_are_drawn_one_by_one_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    reply = GetFailoverLogReply(failover_log=(FailoverEntry(0xABC, 5), FailoverEntry(0xDEF, 0)))
    assert drawn(item_of(reply)).splitlines()[10:] == [
        "  value, failover log entries: 2",
        "      24  00 00 00 00 00 00 0a bc  uuid                  0000000000000abc",
        "      32  00 00 00 00 00 00 00 05  seqno                 5",
        "      40  00 00 00 00 00 00 0d ef  uuid                  0000000000000def",
        "      48  00 00 00 00 00 00 00 00  seqno                 0",
    ]
    monkeypatch.setattr(drawing, "RECORDS_MAX", 1)
    assert drawn(item_of(reply)).endswith("          ... 1 more")


def test_features_are_named() -> None:
    assert "features              0x12 collections" in drawn(item_of(HelloReply(features=(0x12,))))


def test_frame_infos_are_drawn_with_their_escapes() -> None:
    mutation = Mutation(
        by_seqno=1, key=b"k", frame_infos=(stream_id_info(3), FrameInfo(20, b"x" * 16))
    )
    lines = drawn(item_of(mutation)).splitlines()
    assert "       2  16                       framing length        22" in lines
    start = lines.index("  framing extras")
    assert lines[start + 1 : start + 5] == [
        "      24  22                       frame info            2 stream_id, 2 bytes",
        "      25  00 03                    stream_id             3",
        "      27  ff 05 01                 frame info            20 20, 16 bytes",
        "      30  78 78 78 78 78 78 78 78 78 78 78 78 78 78 78 78  xxxxxxxxxxxxxxxx",
    ]


def test_a_collection_prefix_is_drawn_apart() -> None:
    item = item_of(Mutation(by_seqno=1, key=b"\x08hello"))
    text = drawn(item, collections=True)
    assert "      55  08                       collection            0x8" in text
    assert "      56  68 65 6c 6c 6f" in text
    assert "collection" not in drawn(item, collections=False)
    assert "collection" in drawn(item, collections=None), "no text begins with 08"


def test_xattrs_are_taken_apart() -> None:
    value = join_xattrs({"_sync": b"{}", "m": b"1"}, b"doc")
    item = item_of(Mutation(by_seqno=1, key=b"k", value=value, datatype=Datatype.XATTR))
    lines = drawn(item).splitlines()
    start = lines.index(f"  value, xattr, {len(value)} bytes")
    assert [line.split("  ")[-1].strip() for line in lines[start + 1 :]] == [
        str(len(value) - 4 - 3),
        "9",
        "_sync.{}.",
        "4",
        "m.1.",
        "document",
        "doc",
    ]


def test_a_snappy_value_is_drawn_as_sent_and_inflated() -> None:
    value = deflate(b"a" * 100)
    item = item_of(Mutation(by_seqno=1, key=b"k", value=value, datatype=Datatype.SNAPPY))
    text = drawn(item)
    assert "  value inflated, 100 bytes, counted from its own start" in text
    assert text.splitlines()[-1].split()[0] == "96"


@pytest.mark.parametrize("datatype", [Datatype.SNAPPY, Datatype.XATTR])
def test_a_value_that_is_not_what_it_claims_is_drawn_as_bytes(datatype: int) -> None:
    item = item_of(Mutation(by_seqno=1, key=b"k", value=b"\xff" * 6, datatype=datatype))
    text = drawn(item)
    assert "(but " in text
    assert rows(text)[56] == b"\xff" * 6


def test_a_long_value_is_bounded() -> None:
    item = item_of(Mutation(by_seqno=1, key=b"k", value=b"v" * 1000))
    assert drawn(item).splitlines()[-1] == "          ... 488 bytes more"


def test_control_characters_are_dots() -> None:
    item = item_of(Mutation(by_seqno=1, key=b"k", value=b"a\x1b[2J\xffz"))
    assert drawn(item).splitlines()[-1].endswith("  a.[2J.z")


def test_a_translated_number_says_both() -> None:
    item = item_of(SnapshotMarker(start_seqno=0, end_seqno=8, flags=2), dialect=Dialect.UPR_2014)
    assert "flags                 1, which is 0x2 disk" in drawn(item, dialect=Dialect.UPR_2014)


def test_what_only_a_tolerant_reader_understood_is_drawn_as_it_was_understood() -> None:
    """Stream-id frame info in the body that the header does not count."""
    right = item_of(
        Deletion(by_seqno=9, key=b"\x08k", delete_time=1, frame_infos=(stream_id_info(2),))
    )
    data = right.data[:2] + b"\0" + right.data[3:]
    assert right.frame is not None
    body = data[24:]
    frame = replace(right.frame, framing=b"", extras=body[:21], key=body[21:23], value=body[23:])
    message = decode(frame, Dialect.DCP_7, strict=False)
    item = replace(right, data=data, frame=frame, message=message)
    text = drawn(item, collections=True)
    assert "  what follows is cut as it was understood, not as this header says" in text
    assert "      25  00 02                    stream_id             2" in text
    assert "      27  00 00 00 00 00 00 00 09  by_seqno              9" in text


def test_extras_cut_short_are_named_as_far_as_they_go() -> None:
    frame = Frame(magic=0x80, opcode=0x53, extras=bytes(23) + b"\x05")
    item = item_of_frame(frame)
    item = replace(item, message=decode(frame, Dialect.DCP_7, strict=False), error=None)
    lines = drawn(item).splitlines()
    assert lines[-1] == "      40  00 00 00 00 00 00 00 05  end_seqno             5"


def test_extras_in_no_layout_are_bytes() -> None:
    item = item_of_frame(Frame(magic=0x80, opcode=0x55, extras=b"abc"))
    assert drawn(item).splitlines()[-2:] == [
        "  extras, in no known layout",
        "      24  61 62 63                                         abc",
    ]


def test_a_cas_made_from_a_clock_says_when() -> None:
    assert cas_text(1_700_000_000_123_456_789) == "0x17979cfe3d85cd15 2023-11-14 22:13:20"
    assert cas_text(5) == "0x5"
    assert cas_text(0) == "0x0"


def test_no_name_of_any_layout_is_wider_than_its_column() -> None:
    for row in LAYOUTS:
        fields = row.extras.fields
        if isinstance(row.value, Fixed):
            fields += row.value.fields.fields
        for field in fields:
            assert len(field.name) < drawing._NAME_WIDTH, field.name


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.pcap")), ids=lambda path: path.stem)
def test_every_byte_of_every_real_frame_is_drawn_at_its_place(path: Path) -> None:
    """The rows, put one behind the other, are the frame."""
    dialect = Dialect.DCP_5 if "_605" in path.name else Dialect.DCP_7
    with open_source(str(path)) as source:
        for item in walk(source, dialect, strict=False):
            text = drawn(item, dialect=dialect)
            if " more" in text:
                continue
            found = bytearray()
            for offset, data in rows(text).items():
                assert offset == len(found), text
                found += data
            assert bytes(found) == item.data, text
