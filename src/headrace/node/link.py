"""What a session may ask of the connection that carries it: time, threads and the socket's end.

A session has no socket, so that it can be driven by a test, and so that its producer's author
needs to know nothing of asyncio.

Imports: nothing of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Timer(Protocol):
    """Something that will happen unless it is cancelled."""

    def cancel(self) -> None:
        """Let it not happen; idempotent."""


class Link(Protocol):
    """The connection under a session."""

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call on the event loop's thread, soon; may be asked from any thread."""

    def call_later(self, seconds: float, function: Callable[[], None]) -> Timer:
        """Call on the event loop's thread after so many seconds."""

    def off_loop(self, function: Callable[[], object], then: Callable[[object], None]) -> None:
        """Call ``function`` on a worker thread, then ``then(result)`` on the event loop's."""

    def wake(self) -> None:
        """The session's producer has something to pull; may be asked from any thread."""

    def send(self, data: bytes) -> None:
        """Send whole frames that answer nothing, between replies."""

    def end(self, reason: str) -> None:
        """Close the connection at once; the reason goes to the log."""
