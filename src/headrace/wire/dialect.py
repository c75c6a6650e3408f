"""Dialects: five generations of one protocol, oldest first.

A dialect is a property of the connection's configuration and never guessed from one frame: a
20-byte marker whose last word is 1 says "disk" in upr-2014 and "memory" ever after. Layout rows
(`headrace.wire.layouts`) name the dialects that speak and understand them; no other place asks.

Imports: errors.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from headrace.errors import ConfigError


class Dialect(Enum):
    """One generation of the protocol; the value is its name."""

    # By identity: members are singletons, and tables are asked for every frame.
    __hash__ = object.__hash__

    UPR_DRAFT = "upr-draft"
    UPR_2014 = "upr-2014"
    DCP_3 = "dcp-3"
    DCP_5 = "dcp-5"
    DCP_7 = "dcp-7"

    @property
    def era(self) -> str:
        """When it was spoken, for people."""
        return _ERAS[self]

    @classmethod
    def named(cls, name: str) -> Dialect:
        """Return the dialect called ``name``, or say which names there are."""
        try:
            return cls(name)
        except ValueError:
            known = ", ".join(dialect.value for dialect in cls)
            raise ConfigError(f"dialect {name!r} is unknown; allowed: {known}") from None


_ERAS: Final = {
    Dialect.UPR_DRAFT: "2013-12 to 2014-04, the transport draft",
    Dialect.UPR_2014: "2014-04 to 2014-07, markers with an enumerated type",
    Dialect.DCP_3: "3.0 to 4.x, markers with flags",
    Dialect.DCP_5: "5.0 to 6.0, xattrs, delete times",
    Dialect.DCP_7: "6.5 to 8.x, collections, sync writes, markers V2",
}

ALL: Final = frozenset(Dialect)
"""Every dialect."""


def since(first: Dialect) -> frozenset[Dialect]:
    """Return ``first`` and every later dialect."""
    order = list(Dialect)
    return frozenset(order[order.index(first) :])


def until(last: Dialect) -> frozenset[Dialect]:
    """Return every dialect up to and including ``last``."""
    order = list(Dialect)
    return frozenset(order[: order.index(last) + 1])
