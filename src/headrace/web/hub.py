"""Hub: looks at one bucket while anybody watches, and tells every watcher what changed.

Rules
- A look is taken twice a second with a watcher and every other second without one (so that the
  last minutes are there when a page opens), and never takes more than a twentieth of the time.
- Nothing is queued for a watcher. Who has seen the picture before gets the difference; who was too
  slow for that, or is new, gets the newest picture whole.
- A look that fails is told as a sentence and tried again; the next good one is told whole.

Imports: errors, web.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError
from headrace.web.happenings import Chronicle
from headrace.web.picture import (
    CONDITIONS,
    STATES,
    Rates,
    difference,
    rates_between,
    summary,
    whole,
)
from headrace.web.source import Unknown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from headrace.web.happenings import Happening
    from headrace.web.picture import Json, Picture
    from headrace.web.source import Source

LOOK_SECONDS: Final = 0.5
IDLE_SECONDS: Final = 2.0
COST_FACTOR: Final = 20
"""A look that takes long is followed by a pause this many times as long."""
SAMPLE_SECONDS: Final = 1.0
HISTORY_SECONDS: Final = 300
WATCHERS_MAX: Final = 64
RETRY_MILLISECONDS: Final = 1_000
"""How long a browser waits before it connects again."""


class TooMany(Exception):
    """No more watchers are let in."""


class Hub:
    """One bucket of a source, and who watches it."""

    def __init__(self, source: Source, bucket: str, *, look_seconds: float = LOOK_SECONDS) -> None:
        """Nothing is looked at before `run`."""
        self.source, self.bucket = source, bucket
        self.chronicle = Chronicle()
        self.looks = 0
        self._look_seconds = look_seconds
        self._picture: Picture | None = None
        self._rates = Rates()
        self._sampled: Picture | None = None
        self._history: deque[list[float]] = deque(maxlen=HISTORY_SECONDS)
        self._version = 0
        self._change: bytes | None = None
        """From the version before to this one; None: who wants this one gets it whole."""
        self._whole: bytes | None = None
        self._lost = ""
        self._news: list[Happening] = []
        self._watchers = 0
        self._told = asyncio.Event()
        self._poked = asyncio.Event()
        self._closed = False

    # -- looking ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look until closed; cancel to end."""
        try:
            while not self._closed:
                began = time.monotonic()
                await self.look()
                cost = time.monotonic() - began
                usual = self._look_seconds if self._watchers else IDLE_SECONDS
                await self._pause(max(usual - cost, cost * COST_FACTOR))
        finally:
            self.close()

    async def _pause(self, seconds: float) -> None:
        # Not wait_for: before Python 3.12 it can swallow a cancellation.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._poked.wait()
        self._poked.clear()

    def poke(self) -> None:
        """Look now: something was done, or somebody came."""
        self._poked.set()

    def close(self) -> None:
        """Tell watchers that this is the end."""
        self._closed = True
        self._told.set()

    def note(self, kind: str, text: str, vbucket: int | None = None) -> None:
        """Add a happening of our own to what the next look tells."""
        self._news.append(self.chronicle.add(time.time(), kind, text, vbucket))

    async def look(self) -> None:
        """Take a picture and tell everyone."""
        try:
            new = await self.source.look(self.bucket)
        except (HeadraceError, Unknown) as error:
            self._tell_lost(str(error))
            return
        self.looks += 1
        old, self._picture = self._picture, new
        found = self._lost
        self._lost = ""
        if old is None or found:
            self._change = None
            if found:
                self.note("found", f"{self.source.title} answers again")
            if old is not None:
                self.chronicle.compare(old, new)
            self._rates = Rates()
            self._sampled = new
        else:
            self._tell_change(old, new)
        self._news = []
        self._publish()

    def _tell_change(self, old: Picture, new: Picture) -> None:
        rates = rates_between(old, new)
        told = summary(new, rates)
        before = summary(old, self._rates)
        self._rates = rates
        message: Json = {"columns": difference(old, new)}
        message |= {name: value for name, value in told.items() if before[name] != value}
        happenings = [*self._news, *self.chronicle.compare(old, new)]
        if happenings:
            message["happenings"] = [one.to_json() for one in happenings]
        sample = self._sample(new)
        if sample is not None:
            message["sample"] = sample
        self._change = _event("change", message | {"version": self._version + 1})

    def _sample(self, new: Picture) -> list[float] | None:
        assert self._sampled is not None
        if new.taken - self._sampled.taken < SAMPLE_SECONDS * 0.9:
            return None
        rates = rates_between(self._sampled, new)
        sample = [round(new.time, 1), round(rates.written, 1), round(rates.sent, 1), new.lag]
        self._sampled = new
        self._history.append(sample)
        return sample

    def _tell_lost(self, sentence: str) -> None:
        if not self._lost:
            self.note("lost", sentence)
        self._lost = sentence
        self._change = _event("lost", {"error": sentence, "version": self._version + 1})
        self._publish()

    def _publish(self) -> None:
        self._version += 1
        self._whole = None
        told, self._told = self._told, asyncio.Event()
        told.set()

    # -- watching --------------------------------------------------------------------------------

    async def watch(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events for one watcher, until the hub closes."""
        if self._watchers >= WATCHERS_MAX:
            raise TooMany(f"{self._watchers} pages watch already, limit {WATCHERS_MAX}")
        self._watchers += 1
        try:
            yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
            seen = -1
            self.poke()
            while not self._closed:
                told = self._told
                if self._version == seen or self._version == 0:
                    await told.wait()
                    continue
                follows = seen == self._version - 1
                seen = self._version
                yield self._change if follows and self._change is not None else self.whole()
        finally:
            self._watchers -= 1

    def whole(self) -> bytes:
        """The newest state as an event."""
        if self._whole is None:
            if self._picture is None:
                return _event("lost", {"error": self._lost, "version": self._version})
            message = summary(self._picture, self._rates) | {
                "version": self._version,
                "source": {
                    "title": self.source.title,
                    "kind": self.source.kind,
                    "bucket": self.bucket,
                    "buckets": self.source.buckets(),
                    "states": STATES,
                    "conditions": CONDITIONS,
                },
                "columns": whole(self._picture),
                "history": list(self._history),
                "happenings": [one.to_json() for one in self.chronicle.all()],
                "lost": self._lost,
            }
            self._whole = _event("state", message)
        return self._whole


def _event(name: str, message: Json) -> bytes:
    return f"event: {name}\ndata: {json.dumps(message, separators=(',', ':'))}\n\n".encode()
