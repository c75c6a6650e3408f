"""The columns: which there are, which can be null."""

from __future__ import annotations

import pyarrow as pa

from headrace.columns.schema import COLUMNS, SCHEMA, Event, Presence


def test_the_schema_is_the_table_of_columns() -> None:
    assert SCHEMA.names == [column.name for column in COLUMNS]
    for column in COLUMNS:
        field = SCHEMA.field(column.name)
        assert field.type == column.type
        assert field.nullable == (column.presence is not None)
        assert field.metadata[b"meaning"].decode() == column.meaning


def test_what_every_message_has_is_never_null() -> None:
    never = {field.name for field in SCHEMA if not field.nullable}
    assert never == {"vbucket", "seqno", "event", "key", "value", "cas", "datatype", "opaque"}


def test_bytes_are_plain_binary_for_spark() -> None:
    binary = [column.name for column in COLUMNS if column.is_binary]
    assert binary == ["key", "value"]
    assert all(SCHEMA.field(name).type == pa.binary() for name in binary)


def test_the_width_of_a_column_is_that_of_its_numbers() -> None:
    widths = {column.name: column.width for column in COLUMNS}
    assert (widths["seqno"], widths["flags"], widths["vbucket"], widths["event"]) == (8, 4, 2, 1)
    assert widths["key"] == 4


def test_numbers_written_to_files_stay_what_they_are() -> None:
    """Batches are stored: a number, once given, keeps its meaning."""
    assert {event.name: event.value for event in Event} == {
        "MUTATION": 1,
        "DELETION": 2,
        "EXPIRATION": 3,
        "PREPARE": 4,
        "COMMIT": 5,
        "ABORT": 6,
        "SYSTEM_EVENT": 7,
        "SEQNO_ADVANCED": 8,
    }


def test_every_group_has_a_bit_and_a_column() -> None:
    used = {column.presence for column in COLUMNS} - {None}
    assert used == set(Presence)
    assert sum(Presence) == (1 << len(Presence)) - 1
