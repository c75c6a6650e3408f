"""A page over a source that is made up: so many changes a second over so many vbuckets, exactly.

What a page costs a browser depends on what its events say, not on who makes the changes. A node,
its writer and its consumers share the cores with the browser and may not reach the rate; this
source always has it. Every vbucket moves between two looks, consumers fall behind and catch up.
`python -m benchmarks._page_source RATE VBUCKETS` prints its address; it ends with its input.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from typing import TYPE_CHECKING

from headrace.web.picture import ConnectionView, Picture, empty_columns
from headrace.web.server import WebServer

if TYPE_CHECKING:
    from headrace.web.picture import Json


class MadeUp:
    """Changes at a rate, by the clock."""

    kind = "node"
    title = "made up"

    def __init__(self, rate: int, vbuckets: int) -> None:
        """Nothing has changed yet."""
        self._rate = rate
        self._began = self._last = time.monotonic()
        self._highs = [0] * vbuckets
        self._branches = [f"{number:016x}" for number in range(vbuckets)]
        self._owed = 0.0
        self._chance = random.Random(1)

    def buckets(self) -> list[str]:
        """One."""
        return ["default"]

    async def look(self, bucket: str) -> Picture:
        """The bucket now; its changes are spread evenly."""
        del bucket
        now = time.monotonic()
        self._owed += (now - self._last) * self._rate
        self._last = now
        each, rest = divmod(int(self._owed), len(self._highs))
        self._owed -= int(self._owed)
        columns = empty_columns(len(self._highs))
        for place in range(len(self._highs)):
            self._highs[place] += each + (place < rest)
            columns["lag"][place] = int(self._chance.expovariate(0.1))
        columns["state"] = [1] * len(self._highs)
        columns["high"] = list(self._highs)
        columns["streams"] = [3] * len(self._highs)
        total = sum(self._highs)
        views = tuple(self._view(number, total) for number in range(3))
        return Picture(
            taken=now,
            time=time.time(),
            columns=columns,
            branches=self._branches,
            connections=views,
            items=total,
            memory=100 << 20,
            quota=256 << 20,
        )

    def _view(self, number: int, total: int) -> ConnectionView:
        return ConnectionView(
            key=str(number),
            name=f"consumer:{number}",
            streams=len(self._highs),
            lag=self._chance.randrange(10_000),
            outstanding=self._chance.randrange(10 << 20),
            window=10 << 20,
            bytes_sent=total * 200,
            items_sent=total,
            condition="sending",
        )

    async def vbucket(self, bucket: str, vbucket: int) -> Json:
        """A history with one failover."""
        del bucket
        log = [{"branch": "00000000000000bb", "seqno": 1}, {"branch": "aa", "seqno": 0}]
        return {
            "vbucket": vbucket,
            "state": "active",
            "high": self._highs[vbucket],
            "persisted": None,
            "purge": 0,
            "rewind": 0,
            "items": self._highs[vbucket],
            "tombstones": 0,
            "log": log,
            "streams": [],
            "stream_count": 0,
        }

    async def connection(self, bucket: str, key: str) -> Json:
        """No streams are told."""
        del bucket, key
        return {"streams": [], "stream_count": 0}


async def serve(rate: int, vbuckets: int) -> None:
    """Print the address, serve until standard input ends."""
    async with WebServer(MadeUp(rate, vbuckets)) as page:
        sys.stdout.write(page.url + "\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
