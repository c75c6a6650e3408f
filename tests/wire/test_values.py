"""Collection prefixes, xattr blocks, snappy values, the vbucket of a key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.values import (
    COLLECTION_ID_MAX,
    deflate,
    inflate,
    join_collection,
    join_xattrs,
    split_collection,
    split_xattrs,
    vbucket_of,
)


@pytest.mark.parametrize(
    ("collection", "prefix"),
    [(0, "00"), (8, "08"), (0x7F, "7f"), (0x80, "8001"), (1365, "d50a"), (2**32 - 1, "ffffffff0f")],
)
def test_a_collection_id_is_leb128_in_its_shortest_form(collection: int, prefix: str) -> None:
    key = bytes.fromhex(prefix) + b"k"
    assert join_collection(collection, b"k") == key
    assert split_collection(key) == (collection, b"k")


@given(st.integers(0, COLLECTION_ID_MAX), st.binary(max_size=10))
def test_every_collection_id_comes_back(collection: int, key: bytes) -> None:
    assert split_collection(join_collection(collection, key)) == (collection, key)


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("", "does not end"),
        ("80", "does not end"),
        ("8080808080", "does not end within 5 bytes"),
        ("8000", "prefix 8000 is not in its shortest form"),
        ("ffffffff1f", "collection id 0x1ffffffff, limit 0xffffffff"),
    ],
)
def test_a_broken_prefix_is_refused(key: str, sentence: str) -> None:
    with pytest.raises(RemoteProtocolError, match=sentence):
        split_collection(bytes.fromhex(key))


def test_a_collection_id_outside_its_range_is_not_written() -> None:
    with pytest.raises(LocalProtocolError, match="outside"):
        join_collection(2**32, b"k")


def test_an_xattr_block_is_laid_out_as_the_reference_says() -> None:
    """Total length, then per pair its length, name, zero, value, zero; the document follows."""
    value = join_xattrs({"_sync": b"1", "me": b'"x"'}, b"{}")
    pair_1, pair_2 = b"_sync\0" + b"1\0", b'me\0"x"\0'
    block = len(pair_1).to_bytes(4, "big") + pair_1 + len(pair_2).to_bytes(4, "big") + pair_2
    assert value == len(block).to_bytes(4, "big") + block + b"{}"
    assert split_xattrs(value) == ({"_sync": b"1", "me": b'"x"'}, b"{}")


def test_xattrs_without_a_document_are_legal() -> None:
    assert split_xattrs(join_xattrs({"a": b"1"}, b"")) == ({"a": b"1"}, b"")
    assert split_xattrs(bytes(4)) == ({}, b"")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("0000", "xattr block of 2 bytes"),
        ("00000005", "claims 5 bytes and 0 follow"),
        ("00000002ffff", "xattr pair of 2 bytes"),
        ("0000000500000009aa", "pair claims 9 bytes and 1 follow"),
        ("000000070000000361" + "6200", "not a name, a zero byte"),
        ("0000000700000003006200", "not a name, a zero byte"),
        ("0000000700000003" + "610062", "not a name, a zero byte"),
        ("0000000800000004" + "ff006100", "not UTF-8"),
        ("00000010" + "0000000461006200" * 2, "'a' stands twice"),
    ],
)
def test_a_broken_xattr_block_is_refused(value: str, sentence: str) -> None:
    with pytest.raises(RemoteProtocolError, match=sentence):
        split_xattrs(bytes.fromhex(value))


def test_an_xattr_that_cannot_be_said_is_not_written() -> None:
    for pairs in ({"": b"1"}, {"a\0b": b"1"}, {"a": b"\0"}):
        with pytest.raises(LocalProtocolError):
            join_xattrs(pairs, b"")


def test_snappy_values_come_back() -> None:
    document = b'{"a": 1}' * 100
    assert len(deflate(document)) < len(document)
    assert inflate(deflate(document)) == document
    assert inflate(deflate(b"")) == b""


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (b"", "does not start with its length"),
        (b"\xff\xff\xff\xff\xff", "does not start with its length"),
        (b"\xff\xff\xff\xff\x07", "claims 2147483647 bytes, limit"),
        (b"\x05\x00", "does not inflate"),
    ],
)
def test_a_broken_snappy_value_is_refused_before_room_is_made(value: bytes, sentence: str) -> None:
    with pytest.raises(RemoteProtocolError, match=sentence):
        inflate(value)


@pytest.mark.parametrize(
    ("key", "vbucket"),
    [(b"foo", 115), (b"hello", 528), (b"Hello", 977), (b"key-1", 748), (b"", 0)],
)
def test_keys_have_the_vbucket_of_the_reference(key: bytes, vbucket: int) -> None:
    assert vbucket_of(key) == vbucket
    assert 0 <= vbucket_of(key, 64) < 64
