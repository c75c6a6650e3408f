"""Counting bytes: every layout against the offsets of the reference, written here a second time.

A round trip cannot see two fields swapped in both directions. These tables are the reference's own
offsets, kept apart from the code's table on purpose: bytes 01 02 03 ... are laid into a frame and
each field must come out as the run of bytes that stands at its place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headrace.wire.codec import LAYOUTS, decode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import Frame
from headrace.wire.layout import (
    NO_KEY,
    REPLY,
    REQUEST,
    SERVER_REPLY,
    SERVER_REQUEST,
    Custom,
    Field,
    Fields,
    Fixed,
    Repeated,
    Row,
)
from headrace.wire.messages import FailoverEntry, VBucketSeqno
from headrace.wire.opcodes import Magic, Opcode

if TYPE_CHECKING:
    from collections.abc import Iterator

Places = dict[str, tuple[int, int]]

MARKER: Places = {"start_seqno": (0, 8), "end_seqno": (8, 8), "flags": (16, 4)}
MARKER_2: Places = {**MARKER, "max_visible_seqno": (20, 8), "high_completed_seqno": (28, 8)}
ITEM: Places = {"by_seqno": (0, 8), "rev_seqno": (8, 8)}
DOCUMENT: Places = {**ITEM, "flags": (16, 4), "expiration": (20, 4), "lock_time": (24, 4)}
STREAM: Places = {
    "flags": (0, 4),
    "reserved": (4, 4),
    "start_seqno": (8, 8),
    "end_seqno": (16, 8),
    "vb_uuid": (24, 8),
}
TOKEN: Places = {"vb_uuid": (0, 8), "seqno": (8, 8)}
STORE: Places = {"flags": (0, 4), "expiration": (4, 4)}
COUNT: Places = {"delta": (0, 8), "initial": (8, 8), "expiration": (16, 4)}
META: Places = {"flags": (0, 4), "expiration": (4, 4), "rev_seqno": (8, 8), "meta_cas": (16, 8)}
OBSERVED: Places = {
    "failed_over": (0, 1),
    "observed_vbucket": (1, 2),
    "vb_uuid": (3, 8),
    "persisted_seqno": (11, 8),
    "high_seqno": (19, 8),
}
GOT_META: Places = {
    "deleted": (0, 4),
    "flags": (4, 4),
    "expiration": (8, 4),
    "rev_seqno": (12, 8),
}
PATH: Places = {"path_length": (0, 2), "path_flags": (2, 1)}

# (opcode, extras size, fixed value size) -> where each field stands; extras first, then the value.
REQUESTS: dict[tuple[int, int, int], tuple[Places, Places]] = {
    (Opcode.GET_ALL_VB_SEQNOS, 4, 0): ({"state": (0, 4)}, {}),
    (Opcode.GET_ALL_VB_SEQNOS, 8, 0): ({"state": (0, 4), "collection_id": (4, 4)}, {}),
    (Opcode.OPEN, 8, 0): ({"reserved": (0, 4), "flags": (4, 4)}, {}),
    (Opcode.ADD_STREAM, 4, 0): ({"flags": (0, 4)}, {}),
    (Opcode.STREAM_REQ, 48, 0): (
        {**STREAM, "snap_start_seqno": (32, 8), "snap_end_seqno": (40, 8)},
        {},
    ),
    (Opcode.STREAM_REQ, 40, 0): ({**STREAM, "high_seqno": (32, 8)}, {}),
    (Opcode.STREAM_END, 4, 0): ({"reason": (0, 4)}, {}),
    (Opcode.SNAPSHOT_MARKER, 20, 0): (MARKER, {}),
    (Opcode.SNAPSHOT_MARKER, 28, 0): ({**MARKER, "high_completed_seqno": (20, 8)}, {}),
    (Opcode.SNAPSHOT_MARKER, 1, 36): ({}, MARKER_2),
    (Opcode.SNAPSHOT_MARKER, 1, 44): ({}, {**MARKER_2, "purge_seqno": (36, 8)}),
    (Opcode.SNAPSHOT_MARKER, 1, 52): (
        {},
        {**MARKER_2, "purge_seqno": (36, 8), "high_prepared_seqno": (44, 8)},
    ),
    (Opcode.MUTATION, 31, 0): ({**DOCUMENT, "nmeta": (28, 2), "nru": (30, 1)}, {}),
    (Opcode.MUTATION, 30, 0): ({**DOCUMENT, "nmeta": (28, 2)}, {}),
    (Opcode.MUTATION, 28, 0): (DOCUMENT, {}),
    (Opcode.DELETION, 18, 0): ({**ITEM, "nmeta": (16, 2)}, {}),
    (Opcode.DELETION, 21, 0): ({**ITEM, "delete_time": (16, 4)}, {}),
    (Opcode.DELETION, 16, 0): (ITEM, {}),
    (Opcode.EXPIRATION, 18, 0): ({**ITEM, "nmeta": (16, 2)}, {}),
    (Opcode.EXPIRATION, 20, 0): ({**ITEM, "delete_time": (16, 4)}, {}),
    (Opcode.EXPIRATION, 16, 0): (ITEM, {}),
    (Opcode.SET_VBUCKET_STATE, 1, 0): ({"state": (0, 1)}, {}),
    (Opcode.BUFFER_ACK, 4, 0): ({"ack_bytes": (0, 4)}, {}),
    (Opcode.SYSTEM_EVENT, 13, 0): (
        {"by_seqno": (0, 8), "event": (8, 4), "version": (12, 1)},
        {},
    ),
    (Opcode.PREPARE, 31, 0): (
        {**DOCUMENT, "nru": (28, 1), "deleted": (29, 1), "durability": (30, 1)},
        {},
    ),
    (Opcode.SEQNO_ACKNOWLEDGED, 8, 0): ({"prepared_seqno": (0, 8)}, {}),
    (Opcode.COMMIT, 16, 0): ({"prepared_seqno": (0, 8), "commit_seqno": (8, 8)}, {}),
    (Opcode.ABORT, 16, 0): ({"prepared_seqno": (0, 8), "abort_seqno": (8, 8)}, {}),
    (Opcode.SEQNO_ADVANCED, 8, 0): ({"by_seqno": (0, 8)}, {}),
    (Opcode.OSO_SNAPSHOT, 4, 0): ({"oso_flags": (0, 4)}, {}),
    **{
        (opcode, 8, 0): (STORE, {})
        for opcode in (
            Opcode.SET,
            Opcode.SETQ,
            Opcode.ADD,
            Opcode.ADDQ,
            Opcode.REPLACE,
            Opcode.REPLACEQ,
        )
    },
    **{
        (opcode, 20, 0): (COUNT, {})
        for opcode in (
            Opcode.INCREMENT,
            Opcode.INCREMENTQ,
            Opcode.DECREMENT,
            Opcode.DECREMENTQ,
        )
    },
    **{
        (opcode, 4, 0): ({"expiration": (0, 4)}, {})
        for opcode in (
            Opcode.TOUCH,
            Opcode.GAT,
            Opcode.GATQ,
            Opcode.FLUSH_ALL,
            Opcode.FLUSH_ALLQ,
        )
    },
    (Opcode.GET_LOCKED, 4, 0): ({"lock_seconds": (0, 4)}, {}),
    (Opcode.VERBOSITY, 4, 0): ({"level": (0, 4)}, {}),
    (Opcode.SET_VBUCKET, 1, 0): ({"state": (0, 1)}, {}),
    (Opcode.SET_VBUCKET, 4, 0): ({"state": (0, 4)}, {}),
    (Opcode.OBSERVE_SEQNO, 0, 8): ({}, {"vb_uuid": (0, 8)}),
    (Opcode.GET_META, 1, 0): ({"request_version": (0, 1)}, {}),
    (Opcode.GETQ_META, 1, 0): ({"request_version": (0, 1)}, {}),
    **{
        (opcode, size, 0): (places, {})
        for opcode in (
            Opcode.SET_WITH_META,
            Opcode.SETQ_WITH_META,
            Opcode.ADD_WITH_META,
            Opcode.ADDQ_WITH_META,
            Opcode.DEL_WITH_META,
            Opcode.DELQ_WITH_META,
        )
        for size, places in {
            24: META,
            26: {**META, "nmeta": (24, 2)},
            28: {**META, "options": (24, 4)},
            30: {**META, "options": (24, 4), "nmeta": (28, 2)},
        }.items()
    },
    (Opcode.COMPACT_DB, 24, 0): (
        {"purge_before_time": (0, 8), "purge_before_seqno": (8, 8), "drop_deletes": (16, 1)},
        {},
    ),
    (Opcode.SET_CLUSTER_CONFIG, 16, 0): ({"epoch": (0, 8), "revision": (8, 8)}, {}),
    (Opcode.GET_CLUSTER_CONFIG, 16, 0): ({"known_epoch": (0, 8), "known_revision": (8, 8)}, {}),
    (Opcode.GET_RANDOM_KEY, 4, 0): ({"collection_id": (0, 4)}, {}),
    (Opcode.SEQNO_PERSISTENCE, 8, 0): ({"seqno": (0, 8)}, {}),
    (Opcode.GET_ERROR_MAP, 0, 2): ({}, {"version": (0, 2)}),
    **{
        (opcode, size, 0): (places, {})
        for opcode in [
            *range(Opcode.SUBDOC_GET, Opcode.SUBDOC_COUNTER + 1),
            Opcode.SUBDOC_GET_COUNT,
        ]
        for size, places in {
            3: PATH,
            4: {**PATH, "doc_flags": (3, 1)},
            7: {**PATH, "expiration": (3, 4)},
            8: {**PATH, "expiration": (3, 4), "doc_flags": (7, 1)},
        }.items()
    },
    (Opcode.SUBDOC_MULTI_LOOKUP, 1, 0): ({"doc_flags": (0, 1)}, {}),
    (Opcode.SUBDOC_MULTI_MUTATION, 1, 0): ({"doc_flags": (0, 1)}, {}),
    (Opcode.SUBDOC_MULTI_MUTATION, 4, 0): ({"expiration": (0, 4)}, {}),
    (Opcode.SUBDOC_MULTI_MUTATION, 5, 0): ({"expiration": (0, 4), "doc_flags": (4, 1)}, {}),
}

REPLIES: dict[tuple[int, int, int], tuple[Places, Places]] = {
    (Opcode.ADD_STREAM, 4, 0): ({"stream_opaque": (0, 4)}, {}),
    (Opcode.STREAM_REQ, 0, 8): ({}, {"rollback_seqno": (0, 8)}),
    (Opcode.STREAM_REQ, 8, 0): ({"rollback_seqno": (0, 8)}, {}),
    **{
        (opcode, 16, 0): (TOKEN, {})
        for opcode in (
            *(Opcode.SET, Opcode.SETQ, Opcode.ADD, Opcode.ADDQ, Opcode.REPLACE, Opcode.REPLACEQ),
            *(Opcode.DELETE, Opcode.DELETEQ, Opcode.APPEND, Opcode.APPENDQ),
            *(Opcode.PREPEND, Opcode.PREPENDQ, Opcode.TOUCH),
            *(Opcode.SET_WITH_META, Opcode.SETQ_WITH_META, Opcode.ADD_WITH_META),
            *(Opcode.ADDQ_WITH_META, Opcode.DEL_WITH_META, Opcode.DELQ_WITH_META),
            *range(Opcode.SUBDOC_GET, Opcode.SUBDOC_COUNTER + 1),
            *(Opcode.SUBDOC_GET_COUNT, Opcode.SUBDOC_MULTI_MUTATION),
        )
    },
    **{
        (opcode, size, 8): (places, {"number": (0, 8)})
        for opcode in (
            Opcode.INCREMENT,
            Opcode.INCREMENTQ,
            Opcode.DECREMENT,
            Opcode.DECREMENTQ,
        )
        for size, places in {0: {}, 16: TOKEN}.items()
    },
    **{
        (opcode, 4, 0): ({"flags": (0, 4)}, {})
        for opcode in (
            *(Opcode.GET, Opcode.GETQ, Opcode.GETK, Opcode.GETKQ, Opcode.GAT, Opcode.GATQ),
            *(Opcode.TOUCH, Opcode.GET_LOCKED, Opcode.GET_RANDOM_KEY),
        )
    },
    (Opcode.GET_VBUCKET, 0, 4): ({}, {"state": (0, 4)}),
    (Opcode.OBSERVE_SEQNO, 0, 27): ({}, OBSERVED),
    (Opcode.OBSERVE_SEQNO, 0, 43): (
        {},
        {**OBSERVED, "old_vb_uuid": (27, 8), "old_high_seqno": (35, 8)},
    ),
    **{
        (opcode, size, 0): (places, {})
        for opcode in (Opcode.GET_META, Opcode.GETQ_META)
        for size, places in {20: GOT_META, 21: {**GOT_META, "document_datatype": (20, 1)}}.items()
    },
    (Opcode.GET_CLUSTER_CONFIG, 16, 0): ({"epoch": (0, 8), "revision": (8, 8)}, {}),
    (Opcode.GET_COLLECTION_ID, 12, 0): ({"manifest_uid": (0, 8), "collection_id": (8, 4)}, {}),
    (Opcode.GET_SCOPE_ID, 12, 0): ({"manifest_uid": (0, 8), "scope_id": (8, 4)}, {}),
}

SERVER_REQUESTS: dict[tuple[int, int, int], tuple[Places, Places]] = {
    (0x01, 16, 0): ({"epoch": (0, 8), "revision": (8, 8)}, {}),
    (0x01, 4, 0): ({"revision": (0, 4)}, {}),
}

TABLES = {REQUEST: REQUESTS, REPLY: REPLIES, SERVER_REQUEST: SERVER_REQUESTS, SERVER_REPLY: {}}
TRANSLATED = {"enumerated type", "draft numbering"}
"""Rows whose numbers change meaning; `test_codec` reads them value by value."""
TIMESTAMP = {**MARKER_2, "timestamp": (36, 8)}


def counting(size: int) -> bytes:
    """Return 01 02 03 ..."""
    return bytes(range(1, size + 1))


def value_size(row: Row) -> int:
    """Return the size of a fixed value."""
    return row.value.fields.size if isinstance(row.value, Fixed) else 0


def expected_places(row: Row) -> tuple[Places, Places]:
    """Return the reference's places for a row."""
    if row.name == "V2.1":
        return {}, TIMESTAMP
    return TABLES[row.kind][(row.opcode, row.extras.size, value_size(row))]


def wrong_places(row: Row, places: tuple[Places, Places]) -> Iterator[str]:
    """Yield the fields that do not stand where the reference says, reading counting bytes."""
    runs = [(row.extras, places[0])]
    if isinstance(row.value, Fixed):
        runs.append((row.value.fields, places[1]))
    elif places[1]:
        yield "value"
    for fields, wanted in runs:
        data = counting(fields.size)
        found = fields.read(data, strict=True)
        for name in found.keys() | wanted.keys():
            at, size = wanted.get(name, (0, 0))
            if found.get(name) != int.from_bytes(data[at : at + size], "big"):
                yield name


def has_numbers(row: Row) -> bool:
    """Tell whether a row has any field at a fixed place."""
    return bool(row.optional_names())


NUMBERED = [row for row in LAYOUTS if has_numbers(row) and row.name not in TRANSLATED]


def label(row: Row) -> str:
    """Name a row in a test report."""
    return f"{row.message.__name__}-{row.name}-{value_size(row)}".replace(" ", "_")


@pytest.mark.parametrize("row", NUMBERED, ids=label)
def test_every_field_stands_where_the_reference_says(row: Row) -> None:
    assert list(wrong_places(row, expected_places(row))) == []


def test_every_layout_of_the_reference_has_its_row() -> None:
    """A row that vanished would otherwise take its test with it."""
    rows = {
        kind: {
            (row.opcode, row.extras.size, value_size(row)) for row in LAYOUTS if row.kind == kind
        }
        for kind in TABLES
    }
    for kind, table in TABLES.items():
        assert set(table) <= rows[kind], kind


def swaps(fields: Fields) -> Iterator[Fields]:
    """Yield the run with any two of its fields in each other's place."""
    run = fields.fields
    for first in range(len(run)):
        for second in range(first + 1, len(run)):
            swapped: list[Field] = list(run)
            swapped[first], swapped[second] = swapped[second], swapped[first]
            yield Fields(*swapped)


def swapped_rows(row: Row) -> Iterator[Row]:
    """Yield the row with any two of its fields swapped."""
    for extras in swaps(row.extras):
        yield replace(row, extras=extras)
    if isinstance(row.value, Fixed):
        for fields in swaps(row.value.fields):
            yield replace(row, value=Fixed(fields))


@pytest.mark.parametrize("row", NUMBERED, ids=label)
def test_swapping_any_two_fields_would_be_seen(row: Row) -> None:
    """The test above can fail: this plants every swap and sees it turn red."""
    places = expected_places(row)
    for mutant in swapped_rows(row):
        named = [field.name for field in mutant.extras.fields if not field.absent]
        original = [field.name for field in row.extras.fields if not field.absent]
        moved = mutant.value != row.value or named != original
        # Two neighbours that mean nothing (padding) may change places unseen; nothing else may.
        padding = mutant.extras.fields != row.extras.fields and not moved
        assert padding or list(wrong_places(mutant, places)), mutant


RECORDS = {
    "failover_log": (16, FailoverEntry(0x0102030405060708, 0x090A0B0C0D0E0F10)),
    "seqnos": (10, VBucketSeqno(0x0102, 0x030405060708090A)),
    "features": (2, 0x0102),
}


@pytest.mark.parametrize(
    "row", [row for row in LAYOUTS if isinstance(row.value, Repeated)], ids=label
)
def test_every_record_of_a_list_is_laid_out_as_the_reference_says(row: Row) -> None:
    assert isinstance(row.value, Repeated)
    size, expected = RECORDS[row.value.name]
    assert row.value.record.size == size
    assert row.value.read(counting(size)) == (expected,)
    assert row.value.write((expected,)) == counting(size)


@pytest.mark.parametrize(
    "row", [row for row in LAYOUTS if not isinstance(row.value, Custom)], ids=label
)
def test_a_frame_of_counting_bytes_reads_through_the_decoder(row: Row) -> None:
    """The same bytes through the front door: header, extras, key and value land in their fields."""
    dialect = sorted(row.hear, key=list(Dialect).index)[-1]
    if row.name in TRANSLATED:
        return
    extras = counting(row.extras.size)
    if row.version is not None:
        extras = bytes([row.version])
    size = row.value.record.size if isinstance(row.value, Repeated) else value_size(row)
    frame = Frame(
        magic={
            REQUEST: Magic.REQUEST,
            REPLY: Magic.REPLY,
            SERVER_REQUEST: Magic.SERVER_REQUEST,
            SERVER_REPLY: Magic.SERVER_REPLY,
        }[row.kind],
        opcode=row.opcode,
        datatype=5,
        vbucket=min(row.statuses) if row.kind in (REPLY, SERVER_REPLY) else 0x0607,
        opaque=0x0C0D0E0F,
        cas=0x1011121314151617,
        extras=extras,
        key=b"" if row.key == NO_KEY else b"key",
        value=counting(size),
    )
    message = decode(frame, dialect)
    assert type(message) is row.message
    assert (message.opaque, message.cas, message.datatype) == (0x0C0D0E0F, 0x1011121314151617, 5)
    places, in_value = expected_places(row) if has_numbers(row) else ({}, {})
    for run, data in ((places, extras), (in_value, counting(size))):
        for name, (at, length) in run.items():
            if name != "path_length":
                assert getattr(message, name) == int.from_bytes(data[at : at + length], "big"), name
