"""From the columns of the wire to the rows users see."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.columns.schema import SCHEMA, Event
from headrace.history import BranchId, Seqno, VBucketId
from headrace.spark.positions import Withdrawal
from headrace.spark.rows import (
    CONSTANT_ROWS,
    CONSTANTS_MAX,
    ROW_COLUMNS,
    ROW_SCHEMA,
    RowContext,
    constants,
    key_bytes,
    rollback_rows,
    rows_of,
    rows_size,
    signed,
    sql_schema,
    unsigned,
)
from headrace.wire.opcodes import Datatype, SystemEventId
from headrace.wire.values import deflate

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "spark.md"


def wire_row(**fields: object) -> dict[str, object]:
    row: dict[str, object] = {
        "vbucket": 1,
        "seqno": 7,
        "event": int(Event.MUTATION),
        "key": b"k",
        "value": b"v",
        "cas": 1_700_000_000_000_000_000,
        "datatype": 0,
        "opaque": 0,
    }
    return {**row, **fields}


def context(width: int = 4) -> RowContext:
    """Vbucket 1 in epoch 3, on branch 22 from seqno 5 on and on 11 before."""
    epochs = np.zeros(width, np.int64)
    epochs[1] = 3
    begins, uuids = np.zeros((2, 2, width), np.uint64)
    begins[0, 1], uuids[0, 1], uuids[1, 1] = 5, 22, 11
    return RowContext(epochs, begins, uuids)


def converted(*rows: dict[str, object]) -> list[dict[str, object]]:
    batch = rows_of(pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA), context())
    assert batch.schema == ROW_SCHEMA
    batch.validate(full=True)
    found: list[dict[str, object]] = batch.to_pylist()
    return found


def test_a_row_has_its_epoch_its_branch_and_its_time() -> None:
    (row,) = converted(wire_row())
    assert (row["epoch"], row["branch"], row["event"]) == (3, 22, "mutation")
    assert row["event_time"] == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


def test_a_row_written_before_the_fork_is_on_the_older_branch() -> None:
    rows = converted(wire_row(seqno=5), wire_row(seqno=6), wire_row(seqno=1))
    assert [row["branch"] for row in rows] == [11, 22, 11]


def test_numbers_keep_their_bits() -> None:
    (row,) = converted(wire_row(cas=2**64 - 1, seqno=2**63 - 1, rev=2**64 - 2, flags=2**32 - 1))
    assert (row["cas"], row["rev"], row["flags"]) == (-1, -2, 2**32 - 1)
    assert row["event_time"] is None, "a CAS beyond every clock is no time"
    assert unsigned(-1) == 2**64 - 1
    assert signed(unsigned(-5)) == -5


def test_a_deletion_without_a_value_has_null_and_an_empty_document_has_not() -> None:
    rows = converted(
        wire_row(event=int(Event.DELETION), value=b""),
        wire_row(value=b""),
        wire_row(event=int(Event.EXPIRATION), value=b"x"),
    )
    assert [row["value"] for row in rows] == [None, b"", b"x"]


@pytest.mark.parametrize("start", range(10))
def test_nulls_are_in_their_places_in_a_slice_too(start: int) -> None:
    rows = [
        wire_row(event=int(Event.DELETION if number % 3 else Event.MUTATION), value=b"")
        for number in range(12)
    ]
    whole = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    values = rows_of(whole.slice(start), context()).column("value").to_pylist()
    assert values == [None if number % 3 else b"" for number in range(start, 12)]


def test_a_compressed_value_is_inflated() -> None:
    flags = int(Datatype.SNAPPY | Datatype.JSON)
    (row,) = converted(wire_row(value=deflate(b"{}" * 50), datatype=flags))
    assert (row["value"], row["datatype"]) == (b"{}" * 50, int(Datatype.JSON))


def test_seqno_advanced_is_not_published() -> None:
    rows = converted(wire_row(event=int(Event.SEQNO_ADVANCED)), wire_row(seqno=9))
    assert [row["seqno"] for row in rows] == [9]


def test_a_key_that_is_not_text_is_shown_in_hex_and_found_again() -> None:
    rows = converted(wire_row(key=b"\xff\x00"), wire_row(key="ключ".encode()))
    assert [row["key"] for row in rows] == ["\N{REPLACEMENT CHARACTER}ff00", "ключ"]
    assert [key_bytes(str(row["key"])) for row in rows] == [b"\xff\x00", "ключ".encode()]


def test_a_system_event_names_its_collection() -> None:
    value = (5).to_bytes(8, "big") + (8).to_bytes(4, "big") + (42).to_bytes(4, "big")
    (row,) = converted(
        wire_row(
            event=int(Event.SYSTEM_EVENT),
            value=value,
            system_event=int(SystemEventId.END_COLLECTION),
        )
    )
    assert (row["event"], row["collection_id"]) == ("system", 42)


def test_rows_that_differ_and_rows_that_are_alike_are_told_the_same() -> None:
    """One row alone takes the road of equal values, all rows together that of different ones."""
    one_by_one = [
        wire_row(seqno=1),
        wire_row(vbucket=2, event=int(Event.DELETION), delete_time=7, flags=3, expiry=9),
        wire_row(vbucket=1, seqno=9, datatype=1, collection_id=8, snapshot_flags=5, key=b""),
        wire_row(vbucket=3, key="ключ".encode(), cas=0, flags=2**32 - 1, snapshot_start=1),
    ]
    assert converted(*one_by_one) == [row for one in one_by_one for row in converted(one)]


def test_the_size_of_rows_is_about_what_arrow_says() -> None:
    rows = [wire_row(key=b"k" * number, value=b"v" * 3 * number) for number in range(200)]
    whole = rows_of(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), context())
    for part in (whole, whole.slice(50, 100)):
        assert abs(rows_size(part) - part.nbytes) < part.nbytes / 20
    assert rows_size(whole.slice(0, 0)) == 0


def test_arrays_of_equal_values_are_kept_up_to_a_limit() -> None:
    for number in range(3 * CONSTANTS_MAX):
        assert constants.of(pa.int64(), number, 3).to_pylist() == [number] * 3
    assert len(constants.of(pa.int64(), 1, CONSTANT_ROWS + 1)) == CONSTANT_ROWS + 1


def test_a_rollback_is_a_row_at_its_boundary_in_the_new_epoch() -> None:
    withdrawal = Withdrawal(
        VBucketId(3), 4, Seqno(10), Seqno(15), BranchId(2**64 - 1), BranchId(22)
    )
    (row,) = rollback_rows([withdrawal]).to_pylist()
    assert (row["vbucket"], row["epoch"], row["seqno"], row["branch"]) == (3, 4, 10, 22)
    detail = json.loads(row["value"])
    assert (detail["from_seqno"], detail["dead_branch"]) == ("15", "f" * 16)


def test_every_column_has_a_meaning_and_a_place_in_the_schema() -> None:
    assert [column.name for column in ROW_COLUMNS] == ROW_SCHEMA.names
    assert all(column.meaning for column in ROW_COLUMNS)
    assert sql_schema().startswith("vbucket int NOT NULL, epoch bigint NOT NULL")


def columns_table() -> str:
    """The columns as the guide shows them."""
    rows = [
        f"| `{one.name}` | {one.sql} | {'yes' if one.nullable else ''} | {one.meaning} |"
        for one in ROW_COLUMNS
    ]
    return "\n".join(["| column | type | can be null | what it is |", "|---|---|---|---|", *rows])


def test_the_guide_has_every_column_as_the_code_has_it() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    shown = text.partition("<!-- columns -->\n")[2].partition("\n<!-- end of columns -->")[0]
    assert shown == columns_table()
