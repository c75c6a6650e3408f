"""The shop: repeatable, lively, limited, and quiet after closing."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from headrace.demo import shop as module
from headrace.demo.shop import CARTS, COLLECTIONS, ORDERS, Shop, manifest

if TYPE_CHECKING:
    import pytest

    from headrace.client.writer import Document


def lived(seed: int, *, steps: int = 2_000, documents: int = 100) -> tuple[Shop, list[Document]]:
    shop = Shop(seed)
    writes = list(shop.opening(documents))
    for number in range(steps):
        writes += shop.step(number / 100)
    return shop, writes


def test_the_same_seed_makes_the_same_shop() -> None:
    assert lived(7)[1] == lived(7)[1]
    assert lived(7)[1] != lived(8)[1]


def test_a_shop_opens_with_as_many_documents_as_it_was_told() -> None:
    writes = list(Shop(1).opening(250))
    assert len(writes) == 250
    assert len({one.key for one in writes}) == 250
    assert all(one.value is not None and json.loads(one.value) for one in writes)


def test_it_inserts_updates_deletes_and_lets_carts_expire() -> None:
    shop, writes = lived(1)
    kinds = Counter(
        "delete" if one.value is None else "expiring" if one.expiry else "kept" for one in writes
    )
    assert min(kinds["delete"], kinds["expiring"], kinds["kept"]) > 100
    assert shop.counts["insert"] + shop.counts["update"] + shop.counts["delete"] == len(writes)
    assert {one.collection_id for one in writes} == set(COLLECTIONS.values())


def test_only_carts_expire() -> None:
    _, writes = lived(2)
    assert {one.collection_id for one in writes if one.expiry} == {COLLECTIONS[CARTS]}


def test_nothing_that_may_still_expire_is_left_after_closing() -> None:
    """A cart is gone when it was deleted last, or when its time was up before the closing."""
    shop, steps = Shop(3), 2_000
    list(shop.opening(100))
    ends: dict[bytes, float] = {}
    for number in range(steps):
        for one in shop.step(number / 100):
            if one.value is None:
                ends.pop(one.key, None)
            elif one.expiry:
                ends[one.key] = number / 100 + one.expiry
    assert any(end > steps / 100 for end in ends.values()), "there is something to close"
    for one in shop.closing():
        ends.pop(one.key, None)
    assert all(end < steps / 100 for end in ends.values())


def test_a_cart_that_may_have_expired_is_not_touched() -> None:
    shop = Shop(4)
    list(shop.opening(10))
    first = shop._open_cart(0.0)[0]
    touched = [one for number in range(200) for one in shop._fill_cart(100.0 + number)]
    assert first.key not in {one.key for one in touched}


def test_what_the_shop_remembers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CARTS_OPEN_MAX", 20)
    shop, _ = lived(5)
    assert len(shop._carts) <= 21


def test_an_order_moves_forward_only() -> None:
    _, writes = lived(6)
    statuses: dict[bytes, int] = {}
    for one in writes:
        if one.collection_id == COLLECTIONS[ORDERS] and one.value is not None:
            now = module.STATUSES.index(json.loads(one.value)["status"])
            assert now >= statuses.get(one.key, 0)
            statuses[one.key] = now


def test_the_manifest_names_the_collections() -> None:
    said = json.loads(manifest())
    names = {one["name"] for scope in said["scopes"] for one in scope["collections"]}
    assert names == {"_default", *COLLECTIONS}
