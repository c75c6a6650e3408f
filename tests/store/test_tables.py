"""The tables grow without losing anything."""

from __future__ import annotations

import numpy as np

from headrace.store import layout as at
from headrace.store.tables import GARBAGE_MIN, Tables
from tests.store.kit import SMALL
from tests.store.test_index import Index


def test_items_keep_their_ordinals_when_the_table_grows() -> None:
    tables = Tables(SMALL, seed=1)
    tables.state[at.S_LOW], tables.state[at.S_HIGH] = 700, 1500
    for ordinal in range(700, 1501):
        tables.items[tables.item_row(ordinal), at.I_SEQNO] = ordinal
    tables.reserve_items(5000)
    assert len(tables.items) >= 5801
    assert len(tables.items) & (len(tables.items) - 1) == 0
    for ordinal in (700, 1023, 1024, 1500):
        assert tables.items[tables.item_row(ordinal), at.I_SEQNO] == ordinal
    assert tables.in_memory(700)
    assert not tables.in_memory(699)
    assert not tables.in_memory(1501)


def test_marks_grow() -> None:
    tables = Tables(SMALL, seed=1)
    tables.marks[0] = (1, 2, 3)
    tables.state[at.S_MARKS] = 1
    tables.reserve_marks(100_000)
    assert len(tables.marks) > 100_000
    assert tables.marks[0].tolist() == [1, 2, 3]


def test_the_heap_is_swept_when_half_of_it_is_dead() -> None:
    index = Index()
    count = 2 * GARBAGE_MIN // 200 + 100
    for number in range(count):
        index.add(0, b"%0200d" % number, number)
    for number in range(count - 50):
        index.remove(0, b"%0200d" % number)
    before = int(index.tables.state[at.S_HEAP_USED])
    index.tables.tidy()
    assert int(index.tables.state[at.S_HEAP_USED]) == 50 * 200 < before
    assert index.get(0, b"%0200d" % (count - 1)) == count - 1
    index.tables.tidy()
    index.add(0, b"another", 5)
    assert index.get(0, b"another") == 5


def test_memory_is_counted() -> None:
    tables = Tables(SMALL, seed=1)
    before = tables.bytes_used()
    tables.reserve_items(100_000)
    assert tables.bytes_used() >= before + 100_000 * at.I_COLUMNS * 8 - 2 * np.int64(1 << 17)
