"""Records byte by byte."""

from __future__ import annotations

import zlib

import pytest

from headrace.errors import CorruptRecord
from headrace.store import records


def test_the_bytes_of_a_journal_entry() -> None:
    value = records.pack_journal(0x0102, 3, memoryview(b"frames"))
    rest = bytes.fromhex("00000000000001020000000300000006") + b"frames"
    assert value == b"HRJ1" + zlib.crc32(rest).to_bytes(4, "big") + rest
    key = records.JOURNAL_KEY.pack(0x0102, 3)
    assert key.hex() == "000000000000010200000003"
    commit, frames = records.unpack_journal(key, memoryview(value), path="p")
    assert (commit, bytes(frames)) == (0x0102, b"frames")
    with pytest.raises(CorruptRecord, match="p: journal entry"):
        records.unpack_journal(records.JOURNAL_KEY.pack(0x0102, 4), memoryview(value), path="p")


def test_the_bytes_of_a_block() -> None:
    value = bytearray(records.BLOCK_HEADER.size) + b"frames"
    records.fill_block_header(memoryview(value), count=1, stamp=2, first=3, last=4)
    rest = bytes.fromhex("000000010000000200000000000000030000000000000004") + b"frames"
    assert value == b"HRB1" + zlib.crc32(rest).to_bytes(4, "big") + rest
    key = records.BLOCK_KEY.pack(9, 3)
    assert key.hex() == "00090000000000000003"
    assert records.check_block(key, memoryview(value), path="p") == (1, 2, 3, 4)
    assert records.block_stamp(memoryview(value)) == 2
    assert records.block_stamp(memoryview(b"short")) == -1
    with pytest.raises(CorruptRecord, match="p: block"):
        records.check_block(records.BLOCK_KEY.pack(9, 2), memoryview(value), path="p")


def test_a_meta_record_belongs_to_its_key() -> None:
    value = records.pack_meta(b"key", {"b": 1, "a": [2]})
    text = b'{"a":[2],"b":1}'
    assert value == zlib.crc32(b"key" + text).to_bytes(4, "big") + text
    assert records.unpack_meta(b"key", value, path="p") == {"a": [2], "b": 1}
    for key, junk in ((b"kez", value), (b"key", value[:-1]), (b"key", b""), (b"key", b"abc")):
        with pytest.raises(CorruptRecord, match="p: meta record"):
            records.unpack_meta(key, junk, path="p")


def test_the_keys_of_the_meta_table() -> None:
    assert records.vbucket_key(258) == b"v\x01\x02"
    assert records.property_key("name") == b"pname"
