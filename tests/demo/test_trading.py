"""Trading: the shop is opened, things happen when they may, and the shop is closed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from headrace.client.bucket import connect
from headrace.demo.shop import COLLECTIONS, Shop
from headrace.demo.trading import Trading, make_collections
from headrace.errors import HeadraceError
from headrace.testing import running_node

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_SECONDS_MAX = 30.0


@pytest.fixture
def url() -> Iterator[str]:
    with running_node(vbuckets=4) as node:
        found = f"{node.connection_string}/default"
        make_collections(found)
        yield found


def seqnos(url: str) -> int:
    with connect(url) as bucket:
        return sum(bucket.seqnos().values())


def test_the_collections_are_there(url: str) -> None:
    with connect(url) as bucket:
        names = {f"shop.{name}": number for name, number in COLLECTIONS.items()}
        assert {name: bucket.manifest().collection_id(name) for name in names} == names


def test_nothing_happens_between_opening_and_begin(url: str) -> None:
    trading = Trading(url, Shop(1), documents=300, rate=1_000)
    trading.start()
    assert trading.opened.wait(WAIT_SECONDS_MAX)
    assert trading.written == 300
    before = seqnos(url)
    trading.begin()
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while trading.written == 300 and time.monotonic() < deadline:
        time.sleep(0.01)
    trading.stop()
    assert not trading.is_alive()
    assert trading.failure is None
    assert trading.written > 300
    assert seqnos(url) > before


def test_a_closed_shop_has_no_carts(url: str) -> None:
    trading = Trading(url, Shop(2), documents=100, rate=2_000)
    trading.start()
    trading.begin()
    while trading.written < 600:
        assert trading.is_alive()
        time.sleep(0.01)
    trading.stop()
    with connect(url) as bucket:
        kinds = {
            row["key"]: row["event"]
            for batch in bucket.changes(until="now", collections=["shop.carts"])
            for row in batch.to_pylist()
        }
    assert kinds
    assert 1 not in kinds.values(), "no mutation is the last word about a cart"


def test_an_abandoned_shop_is_left_as_it_is(url: str) -> None:
    trading = Trading(url, Shop(3), documents=100, rate=1_000)
    trading.start()
    assert trading.opened.wait(WAIT_SECONDS_MAX)
    trading.abandon()
    assert not trading.is_alive()
    assert trading.written >= 100


def test_a_failure_is_kept_for_the_owner() -> None:
    trading = Trading("couchbase://127.0.0.1:1/default", Shop(4), documents=10, rate=10)
    trading.start()
    trading.join(WAIT_SECONDS_MAX)
    assert isinstance(trading.failure, HeadraceError)
    assert trading.opened.is_set(), "who waits for the opening is not left waiting"
