"""The shop: who buys what, as writes to three collections.

    shop.customers   made at the opening, updated by every order
    shop.carts       made with an expiry; filled; turned into an order, or left to expire
    shop.orders      placed, paid, packed, shipped, delivered; the delivered ones are archived

Rules.
- The same seed makes the same shop. Time comes in as an argument; only expiries depend on it.
- A cart that may have expired is not touched again: its end belongs to the node.
- `closing` removes every cart that may still be there, so that nothing changes afterwards.
- What the shop remembers is limited: the oldest order is archived, expired carts are forgotten.

Imports: client.writer.
"""

from __future__ import annotations

import json
import random
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.client.writer import Document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SCOPE: Final = "shop"
SCOPE_ID: Final = 8
CUSTOMERS, CARTS, ORDERS = "customers", "carts", "orders"
COLLECTIONS: Final = {CUSTOMERS: 8, CARTS: 9, ORDERS: 10}
MANIFEST_UID: Final = 1

STATUSES: Final = ("placed", "paid", "packed", "shipped", "delivered")
CART_SECONDS: Final = (3, 9)
CART_MARGIN_SECONDS: Final = 2.0
"""A cart this near to its expiry is left alone: the node's clock may be ahead of ours."""
CUSTOMERS_SHARE: Final = 0.1
ORDERS_OPEN_MAX: Final = 200_000
CARTS_OPEN_MAX: Final = 50_000
LINES_MAX: Final = 4

NAMES: Final = ("Ada", "Alan", "Barbara", "Edsger", "Frances", "Grace", "Ken", "Leslie", "Radia")
CITIES: Final = ("Bergen", "Brno", "Cadiz", "Delft", "Ghent", "Graz", "Lyon", "Porto", "Turku")
GOODS: Final = (
    ("kettle", 39.0),
    ("lamp", 24.5),
    ("chair", 89.0),
    ("clock", 31.9),
    ("rug", 120.0),
    ("teapot", 18.75),
    ("mirror", 64.0),
    ("vase", 12.4),
)


def manifest() -> bytes:
    """The shop's collections, as a node takes a manifest."""
    collections = [{"name": name, "uid": f"{uid:x}"} for name, uid in COLLECTIONS.items()]
    default = {"name": "_default", "uid": "0", "collections": [{"name": "_default", "uid": "0"}]}
    shop = {"name": SCOPE, "uid": f"{SCOPE_ID:x}", "collections": collections}
    return json.dumps({"uid": f"{MANIFEST_UID:x}", "scopes": [default, shop]}).encode()


@dataclass(slots=True)
class _Cart:
    number: int
    customer: int
    ends_at: float
    lines: list[dict[str, object]]


@dataclass(slots=True)
class _Order:
    number: int
    customer: int
    lines: list[dict[str, object]]
    status: int = 0


class Shop:
    """One shop; ask it for writes."""

    def __init__(self, seed: int) -> None:
        """Nothing is written yet."""
        self.counts: Counter[str] = Counter()
        self._random = random.Random(seed)  # noqa: S311 - made-up orders, not secrets
        self._customers: list[int] = []
        self._carts: list[_Cart] = []
        self._orders: deque[_Order] = deque()
        self._last_cart = self._last_order = 0
        self._forget_at = 0.0
        self._acts: tuple[tuple[Callable[[float], list[Document]], int], ...] = (
            (self._open_cart, 25),
            (self._fill_cart, 20),
            (self._check_out, 20),
            (self._move_order, 30),
            (self._archive, 5),
        )

    # -- what happens ----------------------------------------------------------------------------

    def opening(self, documents: int) -> Iterator[Document]:
        """So many documents: customers, and the orders they have already made."""
        customers = max(1, int(documents * CUSTOMERS_SHARE))
        for number in range(1, customers + 1):
            self._customers.append(number)
            yield self._customer(number, "insert")
        for _ in range(documents - customers):
            order = self._new_order(self._random.choice(self._customers), self._some_lines())
            order.status = self._random.randrange(len(STATUSES))
            yield self._order(order, "insert")

    def step(self, now: float) -> list[Document]:
        """The writes of the next thing that happens."""
        acts, weights = zip(*self._acts, strict=True)
        (act,) = self._random.choices(acts, weights)
        return act(now) or self._open_cart(now)

    def closing(self) -> Iterator[Document]:
        """Remove the carts that are left: nothing expires afterwards."""
        while self._carts:
            yield self._removed(CARTS, f"cart::{self._carts.pop().number:08d}")

    def _open_cart(self, now: float) -> list[Document]:
        self._last_cart += 1
        seconds = self._random.randint(*CART_SECONDS)
        customer = self._random.choice(self._customers)
        cart = _Cart(self._last_cart, customer, now + seconds, self._some_lines(1))
        self._carts.append(cart)
        if len(self._carts) > CARTS_OPEN_MAX:
            self._forget_expired(now)
        return [self._cart(cart, "insert", seconds)]

    def _fill_cart(self, now: float) -> list[Document]:
        cart = self._living_cart(now)
        if cart is None:
            return []
        cart.lines += self._some_lines(1)
        del cart.lines[:-LINES_MAX]
        seconds = self._random.randint(*CART_SECONDS)
        cart.ends_at = now + seconds
        return [self._cart(cart, "update", seconds)]

    def _check_out(self, now: float) -> list[Document]:
        cart = self._living_cart(now)
        if cart is None:
            return []
        self._carts.remove(cart)
        order = self._new_order(cart.customer, cart.lines)
        return [
            self._removed(CARTS, f"cart::{cart.number:08d}"),
            self._order(order, "insert"),
            self._customer(cart.customer, "update"),
        ]

    def _move_order(self, now: float) -> list[Document]:
        del now
        for _ in range(len(STATUSES)):
            if not self._orders:
                return []
            order = self._orders[self._random.randrange(len(self._orders))]
            if order.status < len(STATUSES) - 1:
                order.status += 1
                return [self._order(order, "update")]
        return []

    def _archive(self, now: float) -> list[Document]:
        del now
        if not self._orders:
            return []
        order = self._orders.popleft()
        if order.status < len(STATUSES) - 1 and len(self._orders) < ORDERS_OPEN_MAX:
            order.status += 1
            self._orders.append(order)
            return [self._order(order, "update")]
        return [self._removed(ORDERS, f"order::{order.number:08d}")]

    # -- what is written -------------------------------------------------------------------------

    def _living_cart(self, now: float) -> _Cart | None:
        if now >= self._forget_at:
            self._forget_expired(now)
        if not self._carts:
            return None
        cart = self._carts[self._random.randrange(len(self._carts))]
        return cart if cart.ends_at - CART_MARGIN_SECONDS > now else None

    def _forget_expired(self, now: float) -> None:
        self._forget_at = now + 1
        living = [one for one in self._carts if one.ends_at + CART_MARGIN_SECONDS > now]
        self._carts = living[-CARTS_OPEN_MAX:]

    def _new_order(self, customer: int, lines: list[dict[str, object]]) -> _Order:
        self._last_order += 1
        order = _Order(self._last_order, customer, lines)
        self._orders.append(order)
        return order

    def _some_lines(self, count: int | None = None) -> list[dict[str, object]]:
        number = self._random.randint(1, LINES_MAX) if count is None else count
        chosen = self._random.choices(GOODS, k=number)
        return [
            {"good": name, "price": price, "count": self._random.randint(1, 3)}
            for name, price in chosen
        ]

    def _cart(self, cart: _Cart, kind: str, seconds: int) -> Document:
        said = {"customer": f"customer::{cart.customer:06d}", "lines": cart.lines}
        return self._written(CARTS, f"cart::{cart.number:08d}", said, kind, seconds)

    def _customer(self, number: int, kind: str) -> Document:
        said = {
            "name": f"{NAMES[number % len(NAMES)]} {number}",
            "city": CITIES[number // len(NAMES) % len(CITIES)],
            "last_order": self._last_order,
        }
        return self._written(CUSTOMERS, f"customer::{number:06d}", said, kind)

    def _order(self, order: _Order, kind: str) -> Document:
        total = sum(float(str(one["price"])) * int(str(one["count"])) for one in order.lines)
        said = {
            "customer": f"customer::{order.customer:06d}",
            "status": STATUSES[order.status],
            "total": round(total, 2),
            "lines": order.lines,
        }
        return self._written(ORDERS, f"order::{order.number:08d}", said, kind)

    def _written(
        self, collection: str, key: str, said: Mapping[str, object], kind: str, expiry: int = 0
    ) -> Document:
        self.counts[kind] += 1
        value = json.dumps(said, separators=(",", ":")).encode()
        return Document(
            key.encode(),
            value,
            expiry=expiry,
            collection_id=COLLECTIONS[collection],
            is_json=True,
        )

    def _removed(self, collection: str, key: str) -> Document:
        self.counts["delete"] += 1
        return Document(key.encode(), None, collection_id=COLLECTIONS[collection])
