"""How a command says no: raised by the function that answers it, turned into a reply by the
session.

A refusal is an answer, not a failure of the node, and never leaves this package; hence it is no
`HeadraceError`. `Blocked` says "not yet": the request is tried again when its vbucket changes.

Imports: wire.opcodes.
"""

from __future__ import annotations

from typing import Final

from headrace.wire.opcodes import Status

BARE_STATUSES: Final = frozenset(
    {
        Status.KEY_ENOENT,
        Status.KEY_EEXISTS,
        Status.NOT_STORED,
        Status.DELTA_BADVAL,
        Status.LOCKED,
        Status.NOT_LOCKED,
    }
)
"""Everyday refusals: plain memcached clients expect no body, and there is nothing to explain."""


class Refusal(Exception):
    """A status to answer with, and why.

    ``context`` is the sentence of the JSON error body; ``manifest_uid`` stands beside it for
    unknown collections and scopes; ``value`` replaces the JSON (the map of NOT_MY_VBUCKET, a
    multi-path result). ``close`` ends the connection after the answer.
    """

    def __init__(
        self,
        status: Status,
        context: str = "",
        *,
        manifest_uid: int | None = None,
        value: bytes | None = None,
        close: bool = False,
    ) -> None:
        """Keep the parts of the answer."""
        super().__init__(f"{status.name}: {context}" if context else status.name)
        self.status = status
        self.context = context
        self.manifest_uid = manifest_uid
        self.value = value
        self.close = close


class Blocked(Exception):
    """The vbucket is pending: the request waits until its state changes."""

    def __init__(self, vbucket: int) -> None:
        """Keep which vbucket to wait for."""
        super().__init__(f"vbucket {vbucket} is pending")
        self.vbucket = vbucket
