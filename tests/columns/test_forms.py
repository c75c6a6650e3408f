"""Layout rows as a table of numbers."""

from __future__ import annotations

import pytest

from headrace.columns.forms import (
    ABSENT,
    COUNTED,
    EVENTS,
    PLACED,
    SURCHARGE,
    UNMARKING,
    Entry,
    Kind,
    Part,
    forms_of,
)
from headrace.wire.dialect import Dialect
from headrace.wire.layout import Fixed
from headrace.wire.layouts import STREAM_ROWS
from headrace.wire.messages import SnapshotMarker
from headrace.wire.opcodes import Opcode

KNOWN = {*EVENTS, *UNMARKING, SnapshotMarker}


def lines(dialect: Dialect, opcode: int) -> list[list[int]]:
    forms = forms_of(dialect)
    first, count = forms.index[opcode, [Entry.FIRST, Entry.COUNT]]
    found: list[list[int]] = forms.forms[first : first + count].tolist()
    return found


@pytest.mark.parametrize("dialect", Dialect)
def test_a_dialect_has_the_forms_that_it_hears_in_their_order(dialect: Dialect) -> None:
    for opcode in {row.opcode for row in STREAM_ROWS if row.message in KNOWN}:
        heard = [
            row
            for row in STREAM_ROWS
            if row.opcode == opcode and row.message in KNOWN and dialect in row.hear
        ]
        sizes = [line[Part.EXTRAS_SIZE] for line in lines(dialect, opcode)]
        assert sizes == [row.extras.size for row in heard]


@pytest.mark.parametrize("dialect", Dialect)
def test_a_field_stands_where_its_layout_has_it(dialect: Dialect) -> None:
    for row in STREAM_ROWS:
        if row.message not in EVENTS or dialect not in row.hear:
            continue
        (line,) = (
            line for line in lines(dialect, row.opcode) if line[Part.EXTRAS_SIZE] == row.extras.size
        )
        assert line[Part.KIND] == Kind.ROW
        assert line[Part.EVENT] == EVENTS[row.message]
        for name in row.extras.names:
            assert line[PLACED[name][0]] == row.extras.offset(name), name


def test_a_marker_with_its_fields_in_the_value_counts_on_behind_the_version() -> None:
    markers = lines(Dialect.DCP_7, Opcode.SNAPSHOT_MARKER)
    longest = max(markers, key=lambda line: line[Part.VALUE_MIN])
    assert longest[Part.VALUE_MIN] == longest[Part.VALUE_MAX] == 52
    places = [Part.START, Part.END, Part.MARKER_FLAGS, Part.MAX_VISIBLE]
    assert [longest[place] for place in places] == [1, 9, 17, 21]
    places = [Part.HIGH_COMPLETED, Part.PURGE, Part.HIGH_PREPARED]
    assert [longest[place] for place in places] == [29, 37, 45]
    assert longest[Part.TIMESTAMP] == ABSENT


def test_a_number_that_changed_its_meaning_is_translated() -> None:
    (line,) = (
        line
        for line in lines(Dialect.UPR_2014, Opcode.SNAPSHOT_MARKER)
        if line[Part.EXTRAS_SIZE] == 20
    )
    assert line[Part.CODED] == 16
    assert line[Part.CODES] == 2
    assert line[Part.FIRST_CODE : Part.FIRST_CODE + 4] == [0, 1, 1, 2]


def test_a_dialect_without_a_message_has_no_form_of_it() -> None:
    assert lines(Dialect.DCP_3, Opcode.PREPARE) == []
    assert lines(Dialect.DCP_7, Opcode.NOOP) == []


@pytest.mark.parametrize("dialect", Dialect)
def test_the_kernel_may_read_mutations_with_its_constants(dialect: Dialect) -> None:
    assert forms_of(dialect).common


def test_what_fills_the_window_is_what_a_producer_sends_but_noop() -> None:
    said = "55 56 57 58 59 5b 5f 60 62 63 64 65 66 67"
    assert sorted(COUNTED) == [int(code, 16) for code in said.split()]
    assert SURCHARGE == {Opcode.PREPARE: 2}
    index = forms_of(Dialect.DCP_7).index
    assert index[Opcode.PREPARE].tolist()[Entry.COUNTED :] == [1, 2]
    assert index[Opcode.NOOP].tolist()[Entry.COUNTED :] == [0, 0]


def test_every_fixed_value_belongs_to_a_message_without_a_key() -> None:
    """Places count on from the extras into the value: a key between them would shift them."""
    for row in STREAM_ROWS:
        if row.message in KNOWN and isinstance(row.value, Fixed):
            assert row.key == "no key"
