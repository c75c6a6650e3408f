"""Records of a cache transfer."""

from __future__ import annotations

import pytest

from headrace.errors import LocalProtocolError, RemoteProtocolError
from headrace.wire.cache_transfer import build, parse
from headrace.wire.messages import CachedItem, CacheTransfer

HEAD = bytes(range(1, 25)) + (3).to_bytes(4, "big") + bytes(range(29, 37)) + b"\0\2" + b"\x27\x28"
RECORD = HEAD + b"\0k" + b"val"


def test_counting_bytes_land_in_their_fields() -> None:
    item = CachedItem(
        cas=0x0102030405060708,
        by_seqno=0x090A0B0C0D0E0F10,
        rev_seqno=0x1112131415161718,
        flags=0x1D1E1F20,
        expiration=0x21222324,
        datatype=0x27,
        cache_hint=0x28,
        key=b"\0k",
        value=b"val",
    )
    assert parse(RECORD, {}) == {"items": (item,)}
    assert build(CacheTransfer(items=(item, item))) == RECORD * 2


@pytest.mark.parametrize("cut", range(len(RECORD)))
def test_a_record_cut_anywhere_is_refused(cut: int) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(RECORD + RECORD[:cut] if cut else b"", {})


def test_a_key_too_short_for_its_prefix_is_not_written() -> None:
    item = CachedItem(cas=1, by_seqno=1, rev_seqno=1, key=b"k")
    with pytest.raises(LocalProtocolError, match=r"key of 1 bytes, allowed 2\.\.65535"):
        build(CacheTransfer(items=(item,)))
