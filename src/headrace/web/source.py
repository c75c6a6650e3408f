"""Source: whom a page asks, and how it is told that there is no answer.

Imports: errors, web.picture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headrace.web.picture import Json, Picture


class Unknown(Exception):
    """There is no such bucket, vbucket or connection; the text says which there are."""


class Source(Protocol):
    """Where pictures come from. Everything is called on one event loop."""

    @property
    def title(self) -> str:
        """What is watched, for the head of the page."""

    @property
    def kind(self) -> str:
        """``node`` or ``source``: what the page can promise."""

    def buckets(self) -> list[str]:
        """The names of the buckets there are, the first one to show first."""

    async def look(self, bucket: str) -> Picture:
        """The bucket now; HeadraceError when it cannot be reached, Unknown when there is none."""

    async def vbucket(self, bucket: str, vbucket: int) -> Json:
        """All about one vbucket: numbers, failover log newest first, streams, checkpoints."""

    async def connection(self, bucket: str, key: str) -> Json:
        """The streams of one connection, furthest behind first."""
