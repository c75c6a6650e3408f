"""What a transform tells the kernel, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.store import Compression, Transform
from headrace.store import layout as at
from headrace.store import transform as to

OPTIONS = {
    "opaque": (to.O_OPAQUE, 0xFFFF_FFFF, 0xFFFF_FFFF),
    "stream_id": (to.O_STREAM_ID, 5, 5),
    "collections": (to.O_COLLECTIONS, False, 0),
    "only_collections": (to.O_FILTERED, frozenset((3, 1, 2)), 1),
    "mutation_extras": (to.O_MUTATION_EXTRAS, 28, 28),
    "deletion_extras": (to.O_DELETION_EXTRAS, 18, 18),
    "expiry_opcode": (to.O_EXPIRY_OPCODE, False, 0),
    "values": (to.O_VALUES, False, 0),
    "xattrs": (to.O_XATTRS, False, 0),
    "keep_datatype": (to.O_KEEP_DATATYPE, True, 1),
    "deleted_user_xattrs": (to.O_DELETED_USER_XATTRS, False, 0),
    "datatype_mask": (to.O_DATATYPE_MASK, 3, 3),
    "compression": (to.O_COMPRESSION, Compression.DEFLATE, 2),
    "sync_writes": (to.O_SYNC_WRITES, False, 0),
    "commits": (to.O_COMMITS, True, 1),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_reaches_its_place_and_no_other(name: str) -> None:
    place, value, number = OPTIONS[name]
    options: dict[str, Any] = {name: value}
    changed = (Transform(**options).options != Transform().options).nonzero()[0].tolist()
    assert [one for one in changed if one != to.O_WHOLE] == [place]
    assert Transform(**options).options[place] == number


@pytest.mark.parametrize(
    "options",
    [
        {"stream_id": 1},
        {"only_collections": frozenset()},
        {"mutation_extras": 30},
        {"values": False},
        {"commits": True},
        {"compression": Compression.DEFLATE},
    ],
)
def test_readers_for_whom_no_mutation_leaves_as_it_lies(options: dict[str, Any]) -> None:
    assert Transform(**options).options[to.O_WHOLE] == -1


def test_datatypes_that_keep_a_mutation_from_leaving_as_it_lies() -> None:
    assert Transform().options[to.O_WHOLE] & 0x07 == 0
    assert Transform(xattrs=False).options[to.O_WHOLE] & 0x07 == at.DATATYPE_XATTR
    inflated = Transform(compression=Compression.INFLATE)
    assert inflated.options[to.O_WHOLE] & 0x07 == at.DATATYPE_SNAPPY


def test_wanted_collections_are_sorted() -> None:
    assert Transform(only_collections=frozenset((3, 1, 2))).wanted.tolist() == [1, 2, 3]
    assert replace(Transform(only_collections=frozenset()), opaque=1).options[to.O_FILTERED] == 1


@pytest.mark.parametrize(
    "options",
    [
        {"mutation_extras": 29},
        {"deletion_extras": 20},
        {"opaque": -1},
        {"opaque": 2**32},
        {"stream_id": 0},
        {"stream_id": 65536},
    ],
)
def test_what_does_not_exist_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="allowed"):
        Transform(**options)  # type: ignore[arg-type]
