"""The thread that writes what happens in the shop, at a steady rate.

Rules.
- The opening is written as fast as the node takes it; what happens afterwards begins when the owner
  says so (`begin`) and goes at ``rate`` writes per second, or as fast as the node takes it.
- `stop` ends trading after the batch being written and closes the shop; `abandon` closes nothing.
- What goes wrong is kept in ``failure`` for the owner to raise: a thread has nobody to tell.

Imports: client, errors, wire, demo.shop.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from headrace.client.bucket import connect
from headrace.demo.shop import manifest
from headrace.errors import HeadraceError
from headrace.wire import admin

if TYPE_CHECKING:
    from headrace.demo.shop import Shop

BEAT_SECONDS: Final = 0.05
OPENING_BATCH: Final = 500
CLOSE_SECONDS_MAX: Final = 60.0


def make_collections(url: str) -> None:
    """Give a new bucket the shop's collections."""
    with connect(url) as bucket:
        node = bucket.cluster_map.nodes[0]
        with bucket.kv(node) as link:
            request = admin.SetCollectionsManifest(value=manifest())
            link.ask(request, admin.SetCollectionsManifestReply)


class Trading(threading.Thread):
    """Writes until it is stopped."""

    def __init__(self, url: str, shop: Shop, *, documents: int, rate: int) -> None:
        """Nothing is written before `start`."""
        super().__init__(name="headrace-demo-trading", daemon=True)
        self.shop = shop
        self.written = 0
        self.opened = threading.Event()
        self.failure: HeadraceError | None = None
        self._url, self._documents, self._rate = url, documents, rate
        self._begun = threading.Event()
        self._stopping = threading.Event()
        self._abandoned = False

    def run(self) -> None:
        """Open the shop, trade, and close it."""
        try:
            self._trade()
        except HeadraceError as error:
            self.failure = error
        finally:
            self.opened.set()

    def begin(self) -> None:
        """Let things happen."""
        self._begun.set()

    def stop(self) -> None:
        """Close the shop and wait until everything is written."""
        self._stopping.set()
        self._begun.set()
        self.join(CLOSE_SECONDS_MAX)

    def abandon(self) -> None:
        """Stop where it is."""
        self._abandoned = True
        self.stop()

    def _trade(self) -> None:
        with connect(self._url) as bucket, bucket.writer() as writer:
            for document in self.shop.opening(self._documents):
                writer.put(document)
                if writer.written - self.written >= OPENING_BATCH:
                    self.written = writer.written
                    if self._stopping.is_set():
                        break
            writer.flush()
            self.written = writer.written
            self.opened.set()
            self._begun.wait()
            owed, before = 0.0, time.monotonic()
            while not self._stopping.wait(BEAT_SECONDS):
                now = time.monotonic()
                # A pause of the machine is not made up for: at most a second's writes at once.
                owed = min(owed + (now - before) * self._rate, float(self._rate))
                before = now
                while owed >= 1:
                    for document in self.shop.step(now):
                        writer.put(document)
                        owed -= 1
                writer.flush()
                self.written = writer.written
            if not self._abandoned:
                for document in self.shop.closing():
                    writer.put(document)
                writer.flush()
                self.written = writer.written
