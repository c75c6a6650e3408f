"""JSON as columns; nothing a document holds stops a job."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.errors import ConfigError
from headrace.spark.flatten import Flattening

COLUMNS = Flattening.of({"a": "bigint", "b.c": "string", "d": "double", "e": "boolean"})


@pytest.mark.parametrize(
    ("value", "row"),
    [
        (b'{"a": 1, "b": {"c": "x"}, "d": 2, "e": true}', [1, "x", 2.0, True, None]),
        (b'{"b": {"c": {"deep": [1]}}}', [None, '{"deep":[1]}', None, None, None]),
        (b'{"a": null, "b": 3}', [None, None, None, None, None]),
        (b"[1, 2]", [None, None, None, None, None]),
    ],
)
def test_paths_become_columns(value: bytes, row: list[object]) -> None:
    assert COLUMNS.row(value) == row


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (b"", "not JSON"),
        (None, "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a": "1"}', "a is no bigint: '1'"),
        (b'{"a": true}', "a is no bigint: True"),
        (b'{"a": 9223372036854775808}', "a is no bigint"),
        (b'{"d": "x", "e": 1}', "d is no double: 'x'; e is no boolean: 1"),
    ],
)
def test_what_does_not_fit_is_told_and_null(value: bytes | None, complaint: str) -> None:
    row = COLUMNS.row(value)
    assert complaint in str(row[-1])
    assert len(row) == 5


def test_deleted_documents_are_null_throughout() -> None:
    values = pa.chunked_array([[b'{"a": 1}', b"junk"]])
    deleted = pa.chunked_array([[False, True]])
    found = {field.name: column.to_pylist() for field, column in COLUMNS.columns(values, deleted)}
    assert found["a"] == [1, None]
    assert found["bad_record"] == [None, None]


def test_names_are_those_of_the_paths() -> None:
    names = [field.name for field in COLUMNS.fields]
    assert names == ["a", "b_c", "d", "e", "bad_record"]
    assert Flattening.of({}).fields == []


@pytest.mark.parametrize(
    "columns", [{"a": "int"}, {"a.b": "string", "a_b": "string"}, {"bad_record": "string"}]
)
def test_columns_that_cannot_be_are_refused(columns: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        Flattening.of(columns)
