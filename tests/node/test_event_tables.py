"""FlatBuffers tables: read back by the rules of the format, not by our own builder."""

from __future__ import annotations

import struct

import pytest

from headrace.node.event_tables import (
    BOOL,
    COLLECTION,
    TEXT,
    U32,
    U64,
    build_table,
    event_rewriter,
)
from headrace.node.manifest import FIRST, from_json
from headrace.store.model import SystemEventView
from headrace.wire.opcodes import SystemEventId
from headrace.wire.system_events import EventDetail, value_of


def read(buffer: bytes, kinds: str) -> list[int | bool | str]:
    """A table's fields: Q u64, I u32, ? bool, s string, each aligned to its own size."""
    (table,) = struct.unpack_from("<I", buffer, 0)
    (back,) = struct.unpack_from("<i", buffer, table)
    vtable = table - back
    vtable_size, table_size = struct.unpack_from("<HH", buffer, vtable)
    assert vtable % 2 == 0
    assert table % 4 == 0
    assert table + table_size <= len(buffer)
    found: list[int | bool | str] = []
    for slot, kind in enumerate(kinds):
        at = 4 + 2 * slot
        place = struct.unpack_from("<H", buffer, vtable + at)[0] if at < vtable_size else 0
        if not place:
            found.append("" if kind == "s" else 0)
            continue
        where = table + place
        width = struct.calcsize("<I" if kind == "s" else "<" + kind)
        assert where % width == 0, f"field {slot} at {where} is not aligned to {width}"
        assert place + width <= table_size
        if kind == "s":
            text = where + struct.unpack_from("<I", buffer, where)[0]
            (size,) = struct.unpack_from("<I", buffer, text)
            assert text % 4 == 0
            assert buffer[text + 4 + size] == 0
            found.append(buffer[text + 4 : text + 4 + size].decode())
        else:
            found.append(struct.unpack_from("<" + kind, buffer, where)[0])
    return found


def test_every_field_is_found_where_the_vtable_says() -> None:
    values = (2**63, 8, 9, True, 60, "fruit", True, 77, True, 5)
    assert read(build_table(COLLECTION, values), "QII?Is?Q?Q") == list(values)


@pytest.mark.parametrize("name", ["", "a", "abc", "abcd", "caf\u00e9" * 20])
def test_a_string_of_any_length_is_kept(name: str) -> None:
    buffer = build_table((U64, U32, TEXT), (1, 2, name))
    assert read(buffer, "QIs") == [1, 2, name]


def test_defaults_take_no_room() -> None:
    buffer = build_table((U64, U32, BOOL), (0, 0, False))
    assert read(buffer, "QI?") == [0, 0, False]
    assert len(buffer) < len(build_table((U64, U32, BOOL), (1, 1, True)))


def event(kind: SystemEventId, subject: int, name: bytes, version: int = 0) -> SystemEventView:
    collection = subject if kind in (0, 1) else None
    detail = EventDetail(manifest_uid=5, scope_id=8, collection_id=collection, max_ttl=60)
    return SystemEventView(3, kind, version, subject, name, value_of(kind, version, detail))


HISTORIC = from_json(
    {
        "uid": "5",
        "scopes": [
            {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]},
            {
                "name": "shop",
                "uid": "8",
                "collections": [{"name": "fruit", "uid": "9", "history": True}],
            },
        ],
    }
)
EVENTS = [
    (
        event(SystemEventId.BEGIN_COLLECTION, 9, b"fruit"),
        "QII?Is?Q?Q",
        [5, 8, 9, False, 0, "fruit", True, 0, False, 0],
    ),
    (
        event(SystemEventId.BEGIN_COLLECTION, 10, b"veg", version=1),
        "QII?Is?Q?Q",
        [5, 8, 10, True, 60, "veg", False, 0, False, 0],
    ),
    (event(SystemEventId.END_COLLECTION, 9, b""), "QII?", [5, 8, 9, False]),
    (event(SystemEventId.CREATE_SCOPE, 8, b"shop"), "QIs", [5, 8, "shop"]),
    (event(SystemEventId.DROP_SCOPE, 8, b""), "QI?", [5, 8, False]),
]


@pytest.mark.parametrize(("seen", "kinds", "fields"), EVENTS)
def test_a_stored_event_becomes_a_table(
    seen: SystemEventView, kinds: str, fields: list[object]
) -> None:
    rewritten = event_rewriter(lambda: HISTORIC)(seen)
    assert rewritten is not None
    version, key, value = rewritten
    assert (version, key) == (2, seen.key)
    assert read(value, kinds) == fields


def test_a_table_that_is_stored_stays_as_it_is() -> None:
    seen = SystemEventView(3, SystemEventId.MODIFY_COLLECTION, 2, 9, b"fruit", b"table")
    assert event_rewriter(lambda: FIRST)(seen) == (2, b"fruit", b"table")


def test_an_event_nobody_can_read_is_left_out() -> None:
    seen = SystemEventView(3, SystemEventId.MODIFY_COLLECTION, 0, 9, b"fruit", b"?")
    assert event_rewriter(lambda: FIRST)(seen) is None
