from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.texts import (
    PREVIEW_SIZE,
    code_name,
    datatype_name,
    key_text,
    preview,
    printable,
    quoted,
    seqno_text,
    several,
    size_text,
    status_name,
    time_text,
    uuid_text,
    value_text,
)
from headrace.wire.opcodes import (
    SEQNO_MAX,
    Datatype,
    MarkerFlag,
    Status,
    StreamEndReason,
    StreamFlag,
)
from headrace.wire.values import deflate, join_collection, join_xattrs


@given(st.binary(max_size=400))
def test_nothing_that_is_shown_can_steer_a_terminal(data: bytes) -> None:
    for text in (preview(data), quoted(data), key_text(data, None), value_text(data, 7)):
        assert text.isprintable()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        ("größe".encode(), "größe"),
        (b"\x1b[31m", None),
        (b"line\nbreak", None),
        (b"\xff", None),
    ],
)
def test_text_is_what_is_printable(data: bytes, text: str | None) -> None:
    assert printable(data) == text


def test_a_long_text_is_cut_and_says_so() -> None:
    text = preview(b"x" * 1000)
    assert len(text) == PREVIEW_SIZE
    assert text.endswith("x...")


def test_a_text_cut_inside_a_character_is_still_text() -> None:
    for size in range(60, 70):
        assert preview(("é" * size + "x" * 300).encode()).startswith("éé")


def test_line_breaks_and_indentation_become_one_space() -> None:
    assert preview(b'{\n    "a": 1,\r\n\t"b":\t2\n}') == '{ "a": 1, "b": 2 }'
    assert preview(b"{\n" + b" " * 700 + b"x") == "{ ..."


def test_bytes_that_are_no_text_are_hex_and_bounded() -> None:
    assert preview(b"\x00\x01") == "00 01"
    assert preview(bytes(range(200))) == "00 01 02 03 04 05 06 07 08 09 0a 0b ..."


@pytest.mark.parametrize(
    ("data", "text"), [(b"name", "name"), (b"two words", '"two words"'), (b"", '""'), (b"\0", "00")]
)
def test_a_name_is_quoted_when_its_end_would_blur(data: bytes, text: str) -> None:
    assert quoted(data) == text


def test_codes_have_names_and_unknown_ones_stay_numbers() -> None:
    assert code_name(2, StreamEndReason) == "state_changed"
    assert code_name(99, StreamEndReason) == "99"
    assert code_name(5, None) == "5"


def test_flags_are_joined_and_unknown_bits_are_kept() -> None:
    assert code_name(MarkerFlag.DISK | MarkerFlag.CHECKPOINT, MarkerFlag) == "disk|checkpoint"
    assert code_name(0x101, StreamFlag) == "takeover|cache_transfer"
    assert code_name(0x1001, StreamFlag) == "takeover|0x1000"
    assert code_name(0, MarkerFlag) == "none"


@pytest.mark.parametrize(
    ("status", "name"), [(0, "ok"), (Status.ROLLBACK, "ROLLBACK"), (0x777, "status 0x777")]
)
def test_a_status_has_a_name(status: int, name: str) -> None:
    assert status_name(status) == name


@pytest.mark.parametrize(
    ("datatype", "name"), [(0, "raw"), (1, "json"), (7, "json|snappy|xattr"), (9, "json|0x8")]
)
def test_a_datatype_has_a_name(datatype: int, name: str) -> None:
    assert datatype_name(datatype) == name


def test_numbers_that_mean_something_say_it() -> None:
    assert seqno_text(SEQNO_MAX) == "endless"
    assert seqno_text(SEQNO_MAX - 1) == str(SEQNO_MAX - 1)
    assert uuid_text(0) == "0"
    assert uuid_text(0xABC) == "0000000000000abc"
    assert time_text(1_700_000_000) == "2023-11-14 22:13:20"
    assert time_text(1 << 60) == str(1 << 60)
    assert size_text(1) == "1 byte"
    assert size_text(12_345) == "12,345 bytes"
    assert [several(count, "node") for count in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]


def test_a_collection_prefix_is_split_where_it_was_negotiated() -> None:
    key = join_collection(0x65, b"key")
    assert key_text(key, collections=True) == "key in 0x65"
    assert key_text(key, collections=False) == "ekey"
    assert key_text(b"\0key", collections=True) == "key"


def test_where_nobody_said_a_first_byte_that_is_no_text_is_a_prefix() -> None:
    assert key_text(b"\x08key", collections=None) == "key in 0x8"
    assert key_text(b"key", collections=None) == "key"
    assert key_text(b"", collections=None) == '""'


def test_a_prefix_that_never_ends_is_shown_as_it_is() -> None:
    assert key_text(b"\xff\xff\xff\xff\xff\xff", collections=True) == "ff ff ff ff ff ff"


def test_a_value_is_shown_as_the_document_it_holds() -> None:
    document = b'{"a":1}'
    value = join_xattrs({"_sync": b"{}", "meta": b"1"}, document)
    both = Datatype.XATTR | Datatype.JSON
    assert value_text(document, Datatype.JSON) == '{"a":1} (json, 7 bytes)'
    assert (
        value_text(value, both) == f'{{"a":1}} (json|xattr, {len(value)} bytes, xattrs _sync meta)'
    )
    packed = deflate(value)
    assert value_text(packed, both | Datatype.SNAPPY).startswith('{"a":1} (json|snappy|xattr,')
    assert value_text(b"", 0) == "(0 bytes)"
    assert value_text(join_xattrs({}, b""), Datatype.XATTR) == "(xattr, 4 bytes, no xattrs)"


def test_a_value_that_is_not_what_its_datatype_says_is_shown_with_the_reason() -> None:
    assert "but xattr block claims" in value_text(b"\xff\xff\xff\xff", Datatype.XATTR)
    assert "but snappy value" in value_text(b"\xff\xff\xff\xff\xff\xff", Datatype.SNAPPY)
