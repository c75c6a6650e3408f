"""Filters: the same rows pass in bulk and one by one."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.client.changes import Change, Kind
from headrace.client.filters import EVENTS, Filter, row_of
from headrace.columns.schema import SCHEMA
from headrace.history import ZERO

CHANGES = [
    Change(vbucket=0, seqno=1, kind=Kind.MUTATION, key=b"user::1", value=b'{"a":1}', token=ZERO),
    Change(vbucket=0, seqno=2, kind=Kind.DELETION, key=b"user::2", token=ZERO),
    Change(vbucket=0, seqno=3, kind=Kind.MUTATION, key=b"beer::1", value=b'{"b":2}', token=ZERO),
    Change(vbucket=0, seqno=4, kind=Kind.SEQNO_ADVANCED, token=ZERO),
]


def batch() -> pa.RecordBatch:
    rows = [dict.fromkeys(SCHEMA.names) | row_of(change) for change in CHANGES]
    rows = [row | {"opaque": 1} for row in rows]
    rows[3] |= {"rev": None, "flags": None, "expiry": None}  # what is no document has none
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


@pytest.mark.parametrize(
    ("wanted", "seqnos"),
    [
        (Filter(key_prefix=b"user::"), [1, 2]),
        (Filter(value_contains=b'"b"'), [3]),
        (Filter(kinds=frozenset({Kind.DELETION})), [2]),
        (Filter(where=lambda row: row["seqno"] == 3), [3]),
        (Filter(key_prefix=b"user::", kinds=frozenset({Kind.MUTATION})), [1]),
        (Filter(key_prefix=b"nobody"), []),
    ],
)
def test_both_roads_pass_the_same(wanted: Filter, seqnos: list[int]) -> None:
    assert wanted.batch(batch()).column("seqno").to_pylist() == seqnos
    visible = [change for change in CHANGES if change.kind is not Kind.SEQNO_ADVANCED]
    assert [change.seqno for change in visible if wanted.change(change)] == seqnos


def test_advances_are_left_out_unless_asked_for() -> None:
    assert Filter().batch(batch()).column("seqno").to_pylist() == [1, 2, 3]
    asked = Filter(kinds=frozenset({Kind.SEQNO_ADVANCED}))
    assert asked.batch(batch()).column("seqno").to_pylist() == [4]


def test_an_arrow_expression_narrows_a_batch() -> None:
    found = Filter(expression=pc.field("seqno") > 1).batch(batch())
    assert found.column("seqno").to_pylist() == [2, 3]
    assert Filter(expression=pc.field("seqno") > 9).batch(batch()).num_rows == 0


def test_a_batch_where_all_rows_pass_is_not_copied() -> None:
    documents = batch().slice(0, 3)
    assert Filter().batch(documents) is documents


def test_every_kind_has_its_event_number() -> None:
    assert set(EVENTS) == set(Kind)
