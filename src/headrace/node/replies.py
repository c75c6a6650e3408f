"""What a command's function may return, and how replies become bytes.

A function returns a reply message without opaque (the request's is used), several of them, raw
frames (`bytes`), nothing (`None`: a quiet success), or a `Later`: an answer that is not known yet.
Requests of one connection stay in order, so a `Later` holds back everything behind it.

Imports: wire.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.node.refusal import BARE_STATUSES, Refusal
from headrace.wire.codec import to_frame
from headrace.wire.frame import CLASSIC
from headrace.wire.opcodes import Datatype, Magic

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.wire.dialect import Dialect
    from headrace.wire.frame import Frame
    from headrace.wire.message import Reply

_REPLY: Final = int(Magic.REPLY)


class Later:
    """An answer that is to come: `resolve` it once, from the event loop's thread.

    The first of several resolutions counts. ``abandon`` is called when nobody waits any more.
    """

    __slots__ = ("_answer", "_done", "_then", "abandon")

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._done = False
        self._answer: Answer = None
        self._then: Callable[[Answer], None] | None = None
        self.abandon: Callable[[], None] | None = None

    def resolve(self, answer: Answer) -> None:
        """Say the answer: what a command's function may return, or a `Refusal`."""
        if self._done:
            return
        self._done = True
        self._answer = answer
        if self._then is not None:
            self._then(answer)

    def then(self, callback: Callable[[Answer], None]) -> None:
        """Call back with the answer, at once if it is known."""
        self._then = callback
        if self._done:
            callback(self._answer)

    def forget(self) -> None:
        """Nobody waits any more."""
        self._then = None
        if not self._done and self.abandon is not None:
            self.abandon()
        self._done = True


Answer: TypeAlias = "Reply | list[Reply] | bytes | Refusal | None"
Outcome: TypeAlias = "Answer | Later"


def pack_reply(reply: Reply, request: Frame, dialect: Dialect) -> bytes:
    """The reply as it travels: under the opcode and opaque of the request it answers."""
    made = to_frame(reply, dialect)
    header = CLASSIC.pack(
        _REPLY,
        request.opcode,
        len(made.key),
        len(made.extras),
        made.datatype,
        made.vbucket,
        made.body_size,
        request.opaque,
        made.cas,
    )
    return b"".join((header, made.extras, made.key, made.value))


def pack_refusal(refusal: Refusal, request: Frame, *, json_datatype: bool) -> bytes:
    """The refusal as it travels; a context becomes the JSON error body."""
    value = refusal.value
    datatype = 0
    if value is None:
        value = _context(refusal)
        datatype = Datatype.JSON if value and json_datatype else 0
    header = CLASSIC.pack(
        _REPLY,
        request.opcode,
        0,
        0,
        datatype,
        refusal.status,
        len(value),
        request.opaque,
        0,
    )
    return header + value


def _context(refusal: Refusal) -> bytes:
    if refusal.status in BARE_STATUSES or not (refusal.context or refusal.manifest_uid is not None):
        return b""
    body: dict[str, object] = {}
    if refusal.context:
        body["error"] = {"context": refusal.context}
    if refusal.manifest_uid is not None:
        body["manifest_uid"] = f"{refusal.manifest_uid:x}"
    return json.dumps(body, separators=(",", ":")).encode()
