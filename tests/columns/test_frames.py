"""One frame at a time through the kernel: every layout drawn in counting bytes, every refusal.

The expectations are written from the protocol's tables, not from LAYOUTS: a field that moved in
both would still be found here.
"""

from __future__ import annotations

from typing import Final

import pytest

from headrace.columns.scan import Scanner, StreamState
from headrace.columns.table import Reason
from headrace.wire.dialect import Dialect
from tests.columns.makers import frame, marker, mutation

COUNTING: Final = bytes(range(1, 101))


def u(offset: int, size: int) -> int:
    """Return the number that counting bytes make at an offset."""
    return int.from_bytes(COUNTING[offset : offset + size], "big")


HEADER: Final = {"vbucket": 5, "opaque": 7, "cas": 9, "datatype": 4}
ITEM: Final = {"seqno": u(0, 8), "rev": u(8, 8)}
DOCUMENT: Final = {**ITEM, "flags": u(16, 4), "expiry": u(20, 4), "lock_time": u(24, 4)}
RESOLUTION: Final = {"prepared_seqno": u(0, 8), "seqno": u(8, 8), "value": b""}

# name: opcode, extras size, columns, place of nmeta (made 0 in the drawing)
DRAWN: Final[dict[str, tuple[int, int, dict[str, object], int | None]]] = {
    "mutation 31": (0x57, 31, {**DOCUMENT, "event": 1, "nru": u(30, 1)}, 28),
    "mutation 30": (0x57, 30, {**DOCUMENT, "event": 1}, 28),
    "mutation 28": (0x57, 28, {**DOCUMENT, "event": 1}, None),
    "deletion 21": (0x58, 21, {**ITEM, "event": 2, "delete_time": u(16, 4)}, None),
    "deletion 18": (0x58, 18, {**ITEM, "event": 2}, 16),
    "deletion 16": (0x58, 16, {**ITEM, "event": 2}, None),
    "expiration 20": (0x59, 20, {**ITEM, "event": 3, "delete_time": u(16, 4)}, None),
    "expiration 18": (0x59, 18, {**ITEM, "event": 3}, 16),
    "expiration 16": (0x59, 16, {**ITEM, "event": 3}, None),
    "prepare": (
        0x60,
        31,
        {**DOCUMENT, "event": 4, "nru": u(28, 1), "deleted": u(29, 1), "durability": u(30, 1)},
        None,
    ),
    "commit": (0x62, 16, {**RESOLUTION, "event": 5}, None),
    "abort": (0x63, 16, {**RESOLUTION, "event": 6}, None),
    "system event": (
        0x5F,
        13,
        {"seqno": u(0, 8), "event": 7, "system_event": u(8, 4), "system_version": u(12, 1)},
        None,
    ),
    "seqno advanced": (0x64, 8, {"seqno": u(0, 8), "event": 8, "key": b"", "value": b""}, None),
}


def drawing(name: str, **header: object) -> bytes:
    opcode, size, columns, nmeta = DRAWN[name]
    extras = bytearray(COUNTING[:size])
    if nmeta is not None:
        extras[nmeta : nmeta + 2] = b"\0\0"
    key = columns.get("key", b"the key")
    value = columns.get("value", b"the value")
    assert isinstance(key, bytes)
    assert isinstance(value, bytes)
    return frame(opcode, bytes(extras), key, value, datatype=4, **header)  # type: ignore[arg-type]


def only_row(data: bytes, scanner: Scanner | None = None) -> dict[str, object]:
    result = (scanner or Scanner()).scan(data)
    assert result.consumed == len(data)
    assert result.others.tolist() == []
    (row,) = result.batch.to_pylist()
    return {name: value for name, value in row.items() if value is not None}


@pytest.mark.parametrize("name", DRAWN)
def test_counting_bytes_land_in_their_columns(name: str) -> None:
    _, _, columns, _ = DRAWN[name]
    expected = {"key": b"the key", "value": b"the value", **HEADER, **columns}
    assert only_row(drawing(name)) == expected


@pytest.mark.parametrize("name", DRAWN)
def test_a_stream_id_is_told_and_changes_nothing_else(name: str) -> None:
    plain = only_row(drawing(name))
    assert only_row(drawing(name, magic=0x08, framing=b"\x22\x12\x34")) == {
        **plain,
        "stream_id": 0x1234,
    }


MARKERS: Final[dict[str, tuple[int, int, Dialect, dict[str, object]]]] = {
    "empty": (0, 0, Dialect.UPR_DRAFT, {"snapshot_flags": 0}),
    "V1": (
        20,
        0,
        Dialect.DCP_3,
        {"snapshot_start": u(0, 8), "snapshot_end": u(8, 8), "snapshot_flags": u(16, 4)},
    ),
    "2019": (
        28,
        0,
        Dialect.DCP_7,
        {
            "snapshot_start": u(0, 8),
            "snapshot_end": u(8, 8),
            "snapshot_flags": u(16, 4),
            "high_completed_seqno": u(20, 8),
        },
    ),
}
V2: Final[dict[str, object]] = {
    "snapshot_start": u(0, 8),
    "snapshot_end": u(8, 8),
    "snapshot_flags": u(16, 4),
    "max_visible_seqno": u(20, 8),
    "high_completed_seqno": u(28, 8),
}
MARKERS_V2: Final[dict[str, tuple[int, int, dict[str, object]]]] = {
    "V2.0": (0, 36, V2),
    "V2.1": (1, 44, {**V2, "timestamp": u(36, 8)}),
    "V2.2 of 44": (2, 44, {**V2, "purge_seqno": u(36, 8)}),
    "V2.2 of 52": (2, 52, {**V2, "purge_seqno": u(36, 8), "high_prepared_seqno": u(44, 8)}),
}


def told(state: StreamState) -> dict[str, object]:
    names = (
        "snapshot_start",
        "snapshot_end",
        "snapshot_flags",
        "max_visible_seqno",
        "high_completed_seqno",
        "purge_seqno",
        "high_prepared_seqno",
        "timestamp",
    )
    return {name: getattr(state, name) for name in names if getattr(state, name) is not None}


@pytest.mark.parametrize("name", MARKERS)
def test_a_marker_with_its_numbers_in_the_extras_is_understood(name: str) -> None:
    size, _, dialect, expected = MARKERS[name]
    scanner = Scanner(dialect)
    scanner.scan(frame(0x56, COUNTING[:size]))
    assert told(scanner.stream(5)) == expected
    assert scanner.stream(5).marked
    assert told(scanner.stream(4)) == {}


@pytest.mark.parametrize("name", MARKERS_V2)
def test_a_marker_with_its_numbers_in_the_value_is_understood(name: str) -> None:
    version, size, expected = MARKERS_V2[name]
    scanner = Scanner()
    scanner.scan(frame(0x56, bytes([version]), b"", COUNTING[:size]))
    assert told(scanner.stream(5)) == expected


def test_a_later_marker_forgets_what_it_does_not_tell() -> None:
    scanner = Scanner()
    scanner.scan(frame(0x56, b"\x02", b"", COUNTING[:52]))
    scanner.scan(marker(1, 2))
    assert told(scanner.stream(5)) == {"snapshot_start": 1, "snapshot_end": 2, "snapshot_flags": 1}


@pytest.mark.parametrize(("on_the_wire", "flags"), [(0, 1), (1, 2)])
def test_the_enumerated_type_becomes_flags(on_the_wire: int, flags: int) -> None:
    scanner = Scanner(Dialect.UPR_2014)
    scanner.scan(frame(0x56, bytes(16) + on_the_wire.to_bytes(4, "big")))
    assert scanner.stream(5).snapshot_flags == flags


REFUSED: Final = {
    "extras one short": (frame(0x57, bytes(27), b"k"), Reason.MALFORMED),
    "mutation of 32": (frame(0x57, bytes(32), b"k"), Reason.MALFORMED),
    "no key": (frame(0x57, bytes(31)), Reason.MALFORMED),
    "commit with a value": (frame(0x62, bytes(16), b"k", b"v"), Reason.MALFORMED),
    "seqno advanced with a key": (frame(0x64, bytes(8), b"k"), Reason.MALFORMED),
    "marker with a key": (frame(0x56, bytes(20), b"k"), Reason.MALFORMED),
    "marker of version 3": (frame(0x56, b"\x03", b"", bytes(36)), Reason.MALFORMED),
    "marker 2.0 of 44": (frame(0x56, b"\x00", b"", bytes(44)), Reason.MALFORMED),
    "more metadata than value": (
        frame(0x57, bytes(28) + b"\x00\x06\x00", b"k", b"value"),
        Reason.MALFORMED,
    ),
    "framing cut in an escape": (
        frame(0x57, bytes(31), b"k", magic=0x08, framing=b"\xf2"),
        Reason.MALFORMED,
    ),
    "framing that claims too much": (
        frame(0x57, bytes(31), b"k", magic=0x08, framing=b"\x22\x00"),
        Reason.MALFORMED,
    ),
    "stream end without a reason": (frame(0x55), Reason.MALFORMED),
    "a reply": (frame(0x57, bytes(31), b"k", magic=0x81), Reason.OTHER),
    "a server's request": (frame(0x57, bytes(31), b"k", magic=0x82), Reason.OTHER),
    "noop": (frame(0x5C), Reason.OTHER),
    "noop with a body": (frame(0x5C, b"?"), Reason.OTHER),
    "an opcode nobody has": (frame(0xEE), Reason.OTHER),
    "stream end": (frame(0x55, bytes(4)), Reason.OTHER),
    "out of order": (frame(0x65, b"\0\0\0\1"), Reason.OTHER),
    "marker that wants an answer": (marker(1, 2, flags=9), Reason.MARKER),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_frame_that_makes_no_row_is_handed_back_by_its_place(name: str) -> None:
    data, reason = REFUSED[name]
    before = mutation(1)
    result = Scanner().scan(before + data + mutation(2))
    assert result.consumed == 2 * len(before) + len(data)
    assert result.others.tolist() == [(len(before), len(data), reason, 1)]
    assert result.batch.column("seqno").to_pylist() == [1, 2]


def test_what_a_dialect_does_not_have_is_no_fault() -> None:
    data = frame(0x60, bytes(31), b"k")
    for dialect, rows in ((Dialect.DCP_3, 0), (Dialect.DCP_7, 1)):
        result = Scanner(dialect).scan(data)
        assert result.batch.num_rows == rows
        assert [line[2] for line in result.others.tolist()] == [Reason.OTHER] * (1 - rows)


PREFIXES: Final = {
    b"\x00": 0,
    b"\x7f": 0x7F,
    b"\x80\x01": 0x80,
    b"\xff\xff\x03": 0xFFFF,
    b"\xff\xff\xff\xff\x0f": 0xFFFF_FFFF,
    b"\xff\xff\xff\xff\x10": None,
    b"\x80\x00": None,
    b"\x80\x80\x80\x80\x80\x01": None,
    b"\x80": None,
}


@pytest.mark.parametrize("prefix", PREFIXES, ids=lambda prefix: prefix.hex())
@pytest.mark.parametrize("opcode", [0x57, 0x58, 0x59, 0x60, 0x62, 0x63])
def test_a_collection_prefix_is_split_off_or_refused(prefix: bytes, opcode: int) -> None:
    size = {0x57: 31, 0x58: 21, 0x59: 20, 0x60: 31, 0x62: 16, 0x63: 16}[opcode]
    rest = b"" if prefix == b"\x80" else b"key"
    data = frame(opcode, bytes(size), prefix + rest)
    result = Scanner(collections=True).scan(data)
    if PREFIXES[prefix] is None:
        assert result.others.tolist() == [(0, len(data), Reason.PREFIX, 0)]
    else:
        (row,) = result.batch.to_pylist()
        assert (row["collection_id"], row["key"]) == (PREFIXES[prefix], b"key")


FRAMINGS: Final = {
    b"\x22\x00\x07": 7,
    b"\x10\x22\x00\x07": 7,
    b"\x22\x00\x07\x22\x00\x08": 7,
    b"\x23\x00\x07\x01": None,
    b"\x2f\x00" + bytes(15): None,
    b"\xf2\x00\x00\x07\x22\x00\x09": 9,
    b"\xff\x00\x01" + bytes(16) + b"\x22\x00\x09": 9,
}


@pytest.mark.parametrize("framing", FRAMINGS, ids=lambda framing: framing.hex())
def test_the_stream_id_is_found_among_frame_infos_and_escapes(framing: bytes) -> None:
    row = only_row(frame(0x57, bytes(31), b"k", magic=0x08, framing=framing))
    assert row.get("stream_id") == FRAMINGS[framing]


def test_a_stream_id_the_header_forgot_is_read_where_ids_are_in_use() -> None:
    """A released server sends live deletions so; elsewhere such a frame is handed back."""
    sound = drawing("deletion 21", magic=0x08, framing=b"\x22\x00\x07")
    slipped = sound[:2] + b"\x00" + sound[3:]
    assert only_row(slipped, Scanner(stream_ids=True)) == only_row(sound)
    handed_back = Scanner().scan(slipped)
    assert handed_back.batch.num_rows == 0
    assert handed_back.others["reason"].tolist() == [Reason.MALFORMED]


def test_extended_metadata_is_cut_off() -> None:
    for opcode, extras in ((0x57, bytes(28) + b"\0\3\0"), (0x58, bytes(16) + b"\0\3")):
        assert only_row(frame(opcode, extras, b"k", b"valueext"))["value"] == b"value"
