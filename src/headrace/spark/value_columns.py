"""The column ``value`` as a query wants it: bytes, text, a struct from JSON, or not at all.

Rules.
- ``string``: bytes that are not UTF-8 are shown with U+FFFD in their place.
- ``json``: ``value`` is a struct of the columns asked for, and ``bad_record`` says what did not
  fit; nothing a document holds stops a query. Only mutations are parsed.
- ``none``: no column, and no document crosses the network.

Imports: spark.flatten, spark.options, spark.rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.flatten import BAD_RECORD, TYPES
from headrace.spark.options import Values
from headrace.spark.rows import MUTATION, ROW_COLUMNS, ROW_SCHEMA, RowColumn, sql_schema

if TYPE_CHECKING:
    from headrace.spark.flatten import Flattening

_PLACE: Final = ROW_SCHEMA.get_field_index("value")


def row_columns(values: Values, flattening: Flattening) -> tuple[RowColumn, ...]:
    """The columns of a query."""
    kept = [column for column in ROW_COLUMNS if column.name != "value"]
    if values is Values.NONE:
        return tuple(kept)
    if values is Values.BINARY:
        return ROW_COLUMNS
    if values is Values.STRING:
        kept.insert(_PLACE, RowColumn("value", pa.string(), "string", True, "document as text"))
        return tuple(kept)
    fields = [field for field in flattening.fields if field.name != BAD_RECORD]
    kinds = ", ".join(f"{one.name}: {one.type}" for one in flattening.wanted)
    struct = RowColumn(
        "value", pa.struct(fields), f"struct<{kinds}>", True, "document, the columns asked for"
    )
    kept.insert(_PLACE, struct)
    bad = RowColumn(BAD_RECORD, pa.string(), "string", True, "what of the document did not fit")
    kept.insert(_PLACE + 1, bad)
    return tuple(kept)


def query_schema(values: Values, flattening: Flattening) -> str:
    """The schema as Spark reads it."""
    return sql_schema(row_columns(values, flattening))


def arrow_schema(values: Values, flattening: Flattening) -> pa.Schema:
    """The schema of the batches a task yields."""
    columns = row_columns(values, flattening)
    return pa.schema([pa.field(one.name, one.type, one.nullable) for one in columns])


def with_values(rows: pa.RecordBatch, values: Values, flattening: Flattening) -> pa.RecordBatch:
    """The rows with their value as the query wants it."""
    if values is Values.BINARY:
        return rows
    columns = rows.columns
    value = columns.pop(_PLACE)
    if values is Values.STRING:
        columns.insert(_PLACE, _text(value))
    elif values is Values.JSON:
        struct, bad = _parsed(value, rows.column("event"), flattening)
        columns[_PLACE:_PLACE] = [struct, bad]
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(values, flattening))


def _text(value: pa.Array) -> pa.Array:
    try:
        return value.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if v is None else v.decode(errors="replace") for v in value.to_pylist()]
        return pa.array(texts, pa.string())


def _parsed(
    value: pa.Array, event: pa.Array, flattening: Flattening
) -> tuple[pa.StructArray, pa.Array]:
    other = pc.not_equal(event, MUTATION)
    found = {field.name: column for field, column in flattening.columns(value, other)}
    bad = found.pop(BAD_RECORD)
    fields = [pa.field(one.name, TYPES[one.type][0]) for one in flattening.wanted]
    struct = pa.StructArray.from_arrays(list(found.values()), fields=fields, mask=other)
    return struct, bad
