"""A thread that commits soon after a change, so that the owner need not.

Imports: errors.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

RETRY_SECONDS: Final = 0.5
"""Pause after a commit that failed: a full disk may get room again."""
IDLE_SECONDS: Final = 0.5
"""How long a stop may go unnoticed by a thread that waits for a change."""


class Committer:
    """Commits on a thread of its own while it is started."""

    def __init__(
        self, commit: Callable[[], object], wake: threading.Event, is_busy: Callable[[], bool]
    ) -> None:
        self._commit = commit
        self._wake = wake
        self._is_busy = is_busy
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: HeadraceError | None = None
        """Why the last commit failed; None when it did not."""

    def start(self, delay_seconds: float) -> None:
        """Start the thread, once."""
        if self._thread is None:
            self._stop.clear()
            self._thread = threading.Thread(
                target=self._run, args=(delay_seconds,), name="headrace-committer", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it; idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            self._wake.set()
            if thread is not threading.current_thread():
                thread.join()

    def _run(self, delay_seconds: float) -> None:
        while not self._stop.is_set():
            if not self._is_busy() and not self._wake.wait(IDLE_SECONDS):
                continue
            if self._stop.wait(delay_seconds):
                return
            try:
                self._commit()
                self.failure = None
            except HeadraceError as error:
                self.failure = error
                self._stop.wait(RETRY_SECONDS)
            except Exception as error:  # noqa: BLE001 - a thread that dies unheard ends durability
                self.failure = StoreError(f"a commit failed for a reason of our own: {error!r}")
                self._stop.wait(RETRY_SECONDS)
