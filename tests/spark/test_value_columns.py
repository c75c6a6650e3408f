"""The value as a query wants it."""

from __future__ import annotations

import pyarrow as pa

from headrace.spark.flatten import Flattening
from headrace.spark.options import Values
from headrace.spark.rows import ROW_SCHEMA
from headrace.spark.value_columns import arrow_schema, query_schema, with_values

NONE = Flattening.of({})
COLUMNS = Flattening.of({"a": "bigint", "b.c": "string"})


def rows(*values: bytes | None, event: str = "mutation") -> pa.RecordBatch:
    found = [
        {"vbucket": 0, "epoch": 0, "seqno": 1, "branch": 1, "event": event, "key": "k", "value": v}
        for v in values
    ]
    return pa.RecordBatch.from_pylist(found, schema=ROW_SCHEMA)


def test_bytes_are_left_alone() -> None:
    batch = rows(b"x", None)
    assert with_values(batch, Values.BINARY, NONE) is batch


def test_text_is_text_and_what_is_not_is_shown() -> None:
    found = with_values(rows(b"x", None, b"\xff"), Values.STRING, NONE)
    assert found.column("value").to_pylist() == ["x", None, "\N{REPLACEMENT CHARACTER}"]


def test_json_is_a_struct_and_bad_records_are_told() -> None:
    found = with_values(
        rows(b'{"a": 1, "b": {"c": "x"}}', b"junk", b'{"a": "1"}'), Values.JSON, COLUMNS
    )
    assert found.column("value").to_pylist() == [
        {"a": 1, "b_c": "x"},
        {"a": None, "b_c": None},
        {"a": None, "b_c": None},
    ]
    bad = found.column("bad_record").to_pylist()
    assert bad[0] is None
    assert "not JSON" in bad[1]
    assert "a is no bigint" in bad[2]


def test_what_is_no_mutation_is_not_parsed() -> None:
    found = with_values(rows(b"junk", None, event="rollback"), Values.JSON, COLUMNS)
    assert found.column("value").to_pylist() == [None, None]
    assert found.column("bad_record").to_pylist() == [None, None]


def test_none_has_no_column() -> None:
    found = with_values(rows(b"x"), Values.NONE, NONE)
    assert "value" not in found.schema.names


def test_the_schema_promised_is_the_schema_given() -> None:
    for values in Values:
        flattening = COLUMNS if values is Values.JSON else NONE
        found = with_values(rows(b"{}"), values, flattening)
        assert found.schema == arrow_schema(values, flattening)
        promised = query_schema(values, flattening)
        places = [promised.index(f"{name} ") for name in found.schema.names]
        assert places == sorted(places)
