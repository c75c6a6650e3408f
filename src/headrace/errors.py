"""Every error headrace raises, on one page.

Expected turns of a stream (rollback, stream end, not-my-vbucket) are events and never errors.
A message gives what was found and what is allowed, in one sentence. A layer translates the errors
of the layer below at its door, ``from error``.

Imports: nothing of ours.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """Anything headrace can say went wrong; the text is a sentence for a person."""


class ConfigError(HeadraceError):
    """An option has a value that cannot be used; names the option, the value and what is right."""


class ProtocolError(HeadraceError):
    """One end broke the protocol; never raised itself."""


class LocalProtocolError(ProtocolError):
    """We asked for something illegal: nothing was sent and no state changed."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something illegal.

    ``offset`` is the place of the first wrong byte: in the stream of bytes when a `FrameBuffer`
    raises it, in the frame when `decode` does. ``status`` is what to answer a request with, and
    ``fatal`` says that the bytes that follow can no longer be trusted.
    """

    def __init__(
        self, message: str, *, offset: int | None = None, status: int = 0x04, fatal: bool = False
    ) -> None:
        """Keep the place and the answer beside the sentence."""
        super().__init__(message)
        self.offset = offset
        self.status = status
        self.fatal = fatal


class StatusError(HeadraceError):
    """A peer refused a request."""

    def __init__(
        self, message: str, *, status: int, opcode: int, vbucket: int | None = None
    ) -> None:
        """Keep the refusal's numbers beside the sentence."""
        super().__init__(message)
        self.status = status
        self.opcode = opcode
        self.vbucket = vbucket


class ConnectionLost(HeadraceError):
    """The link went; resume tokens stay good."""


class CannotConnect(ConnectionLost):
    """No link could be made; the sentence names the cause and what to try."""


class RollbackError(HeadraceError):
    """Rows already handed out are withdrawn, and nobody said what is to be done about it.

    ``rollback`` has the numbers (`headrace.client.changes.Rollback`). Whoever catches this and has
    withdrawn the rows may go on iterating.
    """

    def __init__(self, message: str, *, rollback: object) -> None:
        """Keep the numbers beside the sentence."""
        super().__init__(message)
        self.rollback = rollback


class ClusterError(HeadraceError):
    """The nodes of a cluster do not stand as an operation needs them; nothing was changed."""


class CaptureError(HeadraceError):
    """A recorded conversation cannot be read; ``offset`` is a place in the file when known."""

    def __init__(self, message: str, *, offset: int | None = None) -> None:
        """Keep the place beside the sentence."""
        super().__init__(message)
        self.offset = offset


class StoreError(HeadraceError):
    """The durable store cannot do what was asked; nothing was changed."""


class CorruptRecord(StoreError):
    """Stored bytes are not what was written."""

    def __init__(self, message: str, *, path: str = "", offset: int | None = None) -> None:
        """Keep the place beside the sentence."""
        super().__init__(message)
        self.path = path
        self.offset = offset


class StoreLocked(StoreError):
    """Another process holds the store."""


class StoreFull(StoreError):
    """No room is left for the write."""


class StoreVersion(StoreError):
    """The store was written by a newer headrace."""
