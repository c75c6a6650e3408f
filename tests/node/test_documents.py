"""Values as they come and as they are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.node.documents import (
    Parts,
    inflated,
    is_json,
    put_together,
    system_xattrs,
    taken_apart,
)
from headrace.node.refusal import Refusal
from headrace.wire.opcodes import Datatype, Status
from headrace.wire.values import deflate

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
xattrs = st.dictionaries(names, st.binary(max_size=8).filter(lambda text: b"\0" not in text))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"{}", True),
        (b' [1, "a", null] ', True),
        (b"12.5e3", True),
        (b'"text"', True),
        (b"true", True),
        (b"", False),
        (b"{", False),
        (b"NaN", False),
        (b"-Infinity", False),
        (b"{'a':1}", False),
        (b"abc", False),
        (b"\xff", False),
        (b"[" * 100_000, False),
    ],
)
def test_json_is_what_parses(value: bytes, expected: bool) -> None:
    assert is_json(value) is expected


@given(xattrs, st.binary(max_size=20))
def test_what_is_put_together_can_be_taken_apart(pairs: dict[str, bytes], document: bytes) -> None:
    value, datatype = put_together(Parts(pairs, document))
    assert taken_apart(value, datatype) == Parts(pairs, document)
    packed = deflate(value)
    assert taken_apart(packed, datatype | Datatype.SNAPPY) == Parts(pairs, document)
    assert bool(datatype & Datatype.XATTR) == bool(pairs)


@given(xattrs)
def test_a_tombstone_keeps_the_system_xattrs(pairs: dict[str, bytes]) -> None:
    value, datatype = put_together(Parts(pairs, b"{}"))
    kept = {name: text for name, text in pairs.items() if name.startswith("_")}
    left, kind = system_xattrs(value, datatype)
    if kept:
        assert taken_apart(left, kind) == Parts(kept, b"")
    else:
        assert (left, kind) == (b"", 0)


def test_broken_values_are_refused() -> None:
    with pytest.raises(Refusal) as caught:
        inflated(b"\xff\xff", Datatype.SNAPPY)
    assert caught.value.status == Status.EINVAL
    with pytest.raises(Refusal) as caught:
        taken_apart(b"\0\0\0\x09ab", Datatype.XATTR)
    assert caught.value.status == Status.XATTR_EINVAL
