"""Rules of writes that a socket cannot show: what is kept, what a tombstone holds."""

from __future__ import annotations

import pytest

from headrace.node.documents import Parts, put_together, taken_apart
from headrace.node.writes import TIMEOUT_INVALID, preserves_ttl, tombstone_of, with_kept_xattrs
from headrace.store import Item
from headrace.wire import kv
from headrace.wire.frame import FrameInfo
from headrace.wire.opcodes import Datatype, FrameInfoId
from headrace.wire.values import deflate

PAIRS = {"_sys": b"1", "user": b"2"}


def item(value: bytes, datatype: int) -> Item:
    return Item(b"\0k", value, 1, 1, 1, 0, 0, datatype, False)


def test_a_new_body_keeps_the_xattrs_of_the_old_one() -> None:
    old = item(*put_together(Parts(PAIRS, b"{}")))
    value, datatype = with_kept_xattrs(old, b"[1]", Datatype.JSON)
    assert taken_apart(value, datatype) == Parts(PAIRS, b"[1]")
    assert datatype == Datatype.JSON | Datatype.XATTR


def test_a_compressed_body_is_inflated_under_xattrs() -> None:
    old = item(*put_together(Parts(PAIRS, b"{}")))
    value, datatype = with_kept_xattrs(old, deflate(b"text"), Datatype.SNAPPY)
    assert taken_apart(value, datatype) == Parts(PAIRS, b"text")
    assert not datatype & Datatype.SNAPPY


@pytest.mark.parametrize("old", [None, item(b"{}", Datatype.JSON)])
def test_without_xattrs_a_body_is_stored_as_it_came(old: Item | None) -> None:
    packed = deflate(b"text")
    assert with_kept_xattrs(old, packed, Datatype.SNAPPY) == (packed, Datatype.SNAPPY)


def test_a_tombstone_keeps_the_system_xattrs_alone() -> None:
    write = tombstone_of(item(*put_together(Parts(PAIRS, b"{}"))))
    assert write.deleted
    assert taken_apart(write.value, write.datatype) == Parts({"_sys": b"1"}, b"")


def test_preserve_ttl_is_asked_for_by_its_frame_info() -> None:
    keep = (FrameInfo(FrameInfoId.PRESERVE_TTL),)
    assert preserves_ttl(kv.Set(key=b"k", frame_infos=keep))
    assert not preserves_ttl(kv.Set(key=b"k"))
    assert {0, 0xFFFF} == TIMEOUT_INVALID
