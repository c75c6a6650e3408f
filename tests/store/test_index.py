"""The key index against a dictionary."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headrace.store import layout as at
from headrace.store.index import (
    absent_at,
    collection_of,
    find_key,
    insert_key,
    key_hash,
    living_row,
    remove_row,
    remove_vbucket,
    rows_due,
    rows_of_collection,
)
from headrace.store.native import address_of, bytes_at
from headrace.store.tables import Tables
from headrace.wire.values import join_collection
from tests.store.kit import SMALL


class Index:
    """The kernels behind a dictionary's face."""

    def __init__(self) -> None:
        self.tables = Tables(SMALL, seed=5)

    def find(self, vbucket: int, key: bytes) -> int:
        """The key's row, or -1."""
        data, tables = bytes_at(key), self.tables
        found = key_hash(tables.state, vbucket, address_of(data), len(key))
        return find_key(
            tables.slots, tables.entries, tables.state, vbucket, address_of(data), len(key), found
        )

    def add(self, vbucket: int, key: bytes, value: int, *, deleted: bool = False) -> None:
        """Insert or change a key; its value is kept as a seqno."""
        row, tables, data = self.find(vbucket, key), self.tables, bytes_at(key)
        if row < 0:
            tables.reserve_keys(1, len(key))
            found = key_hash(tables.state, vbucket, address_of(data), len(key))
            row = insert_key(
                tables.slots, tables.entries, tables.state, address_of(data), len(key), found
            )
        tables.entries[row, at.E_SEQNO] = value
        tables.entries[row, at.E_FLAGS] = 0
        tables.entries[row, at.E_WORD] = (vbucket << 48) | (at.WORD_DELETED if deleted else 0)

    def get(self, vbucket: int, key: bytes) -> int | None:
        """The value, or None."""
        row = self.find(vbucket, key)
        return None if row < 0 else int(self.tables.entries[row, at.E_SEQNO])

    def remove(self, vbucket: int, key: bytes) -> None:
        """Forget a key."""
        tables = self.tables
        remove_row(tables.slots, tables.entries, tables.state, self.find(vbucket, key))


@pytest.mark.parametrize("seed", range(6))
def test_the_index_is_a_dictionary(seed: int) -> None:
    generator = random.Random(seed)
    index, twin = Index(), dict[tuple[int, bytes], int]()
    for number in range(6000):
        vbucket = generator.randrange(4)
        key = b"\0%d" % generator.randrange(900)
        if generator.random() < 0.6:
            index.add(vbucket, key, number)
            twin[vbucket, key] = number
        elif (vbucket, key) in twin:
            index.remove(vbucket, key)
            del twin[vbucket, key]
        if number % 1000 == 999:
            index.tables.tidy()
    for vbucket in range(4):
        for name in range(900):
            key = b"\0%d" % name
            assert index.get(vbucket, key) == twin.get((vbucket, key))
    assert int(index.tables.state[at.S_KEYS]) == len(twin)
    removed = remove_vbucket(index.tables.slots, index.tables.entries, index.tables.state, 2)
    assert removed == sum(vbucket == 2 for vbucket, _ in twin)
    assert all(index.get(v, k) == (None if v == 2 else n) for (v, k), n in twin.items())


def test_keys_that_share_a_slot_are_told_apart() -> None:
    index = Index()
    for number in range(800):
        index.add(0, b"%d" % number, number)
    assert len(index.tables.slots) * 3 // 4 >= 800
    for number in range(0, 800, 2):
        index.remove(0, b"%d" % number)
    assert [index.get(0, b"%d" % n) for n in range(800)] == [
        n if n % 2 else None for n in range(800)
    ]


def test_the_slot_of_an_absent_key_is_the_one_it_will_have() -> None:
    index = Index()
    tables = index.tables
    for number in range(800):
        key = b"%d" % number
        data = bytes_at(key)
        found = key_hash(tables.state, 0, address_of(data), len(key))
        index.tables.reserve_keys(1, 255)
        place = absent_at(tables.slots, tables.entries, found)
        assert tables.slots[place] == 0
        index.add(0, key, number)
        assert tables.slots[place] != 0
        assert absent_at(tables.slots, tables.entries, found) == -1


def test_the_same_key_in_two_vbuckets_is_two_keys() -> None:
    index = Index()
    index.add(0, b"a", 1)
    index.add(1, b"a", 2)
    assert (index.get(0, b"a"), index.get(1, b"a"), index.get(2, b"a")) == (1, 2, None)


@pytest.mark.parametrize("collection", [0, 1, 127, 128, 300, 2**32 - 1])
def test_the_collection_of_a_key(collection: int) -> None:
    key = join_collection(collection, b"name")
    data = bytes_at(key)
    assert collection_of(address_of(data), len(key)) == collection


def test_a_prefix_without_an_end_has_no_collection() -> None:
    data = bytes_at(b"\xff" * 6)
    assert collection_of(address_of(data), 6) == -1
    assert collection_of(address_of(data), 2) == -1


def test_keys_of_a_collection_and_living_keys_are_found() -> None:
    index = Index()
    for number in range(6):
        index.add(1, join_collection(number % 2 * 8, b"%d" % number), number, deleted=number > 3)
    tables = index.tables
    rows = np.zeros(2, np.int64)
    assert rows_of_collection(tables.entries, tables.state, 1, 8, False, rows) == 3
    assert rows_of_collection(tables.entries, tables.state, 1, 8, True, rows) == 2
    assert {int(tables.entries[row, at.E_SEQNO]) for row in rows} == {1, 3}
    assert living_row(tables.entries, tables.state, 1, -1, -1) == 4
    assert living_row(tables.entries, tables.state, 1, 8, -1) == 2
    chosen = living_row(tables.entries, tables.state, 1, 8, 1)
    assert int(tables.entries[chosen, at.E_SEQNO]) == 3


def test_due_keys_are_found_in_portions() -> None:
    index = Index()
    tables = index.tables
    tables.vbuckets[0, at.V_STATE] = 1
    tables.vbuckets[1, at.V_STATE] = 2
    for number in range(6):
        index.add(number % 2, b"%d" % number, number, deleted=number == 4)
        tables.entries[index.find(number % 2, b"%d" % number), at.E_FLAGS] = 100 * (number > 0)
    index.add(0, b"later", 9)
    tables.entries[index.find(0, b"later"), at.E_FLAGS] = 101
    rows = np.zeros(9, np.int64)
    count, following = rows_due(tables.entries, tables.vbuckets, tables.state, 100, 1, 0, rows)
    assert (count, following) == (1, 7), "active, alive, with an expiry that has come: only 2"
    assert int(tables.entries[rows[0], at.E_SEQNO]) == 2
