"""What a replica negotiates with its producer before its first stream request: a list, in order.

The order and the pauses are those of released nodes: the window first, then a question that only
tells generations apart (GET_ERROR_MAP), then everything else; whoever knows the consumer's name
waits for the answer to enable_sync_writes before it tells it. Two controls of newer servers follow.
A refusal is an answer: the replica goes on without. A dialect is asked only for what it has.

Spec: docs/protocol.md, "CONTROL"; tests/captures, 17a to 17d.

Imports: protocol.flow, wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.wire.admin import GetErrorMap
from headrace.wire.dialect import Dialect, since
from headrace.wire.messages import Control

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.wire.message import Request

WINDOW: Final = 10 * 1024 * 1024
NOOP_INTERVAL_SECONDS: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the two ends are and want."""

    dialect: Dialect
    collections: bool
    consumer_name: str
    window: int = WINDOW


@dataclass(frozen=True, slots=True)
class Step:
    """One request: a control, or GET_ERROR_MAP when it has no key.

    ``waits``: nothing is sent before this one is answered. ``when`` says for whom it is.
    """

    key: str
    value: Callable[[Terms], str]
    dialects: frozenset[Dialect]
    waits: bool = False
    when: Callable[[Terms], bool] = lambda _: True


def _true(_: Terms) -> str:
    return "true"


def _text(text: str) -> Callable[[Terms], str]:
    return lambda _: text


def _has_name(terms: Terms) -> bool:
    return bool(terms.consumer_name)


_SINCE_2014: Final = since(Dialect.UPR_2014)
_SINCE_3: Final = since(Dialect.DCP_3)
_SINCE_5: Final = since(Dialect.DCP_5)
_SINCE_7: Final = since(Dialect.DCP_7)

STEPS: Final = (
    Step("connection_buffer_size", lambda terms: str(terms.window), _SINCE_2014),
    Step("", _true, _SINCE_5, waits=True),
    Step("enable_noop", _true, _SINCE_2014),
    Step("set_noop_interval", _text(str(NOOP_INTERVAL_SECONDS)), _SINCE_2014),
    Step("set_priority", _text("high"), _SINCE_3),
    Step("enable_ext_metadata", _true, _SINCE_3),
    Step("supports_cursor_dropping", _true, frozenset({Dialect.DCP_3})),
    Step("supports_cursor_dropping_vulcan", _true, _SINCE_5),
    Step("supports_hifi_MFU", _true, _SINCE_5),
    Step("send_stream_end_on_client_close_stream", _true, _SINCE_5),
    Step("enable_expiry_opcode", _true, _SINCE_7),
    Step("enable_sync_writes", _true, _SINCE_7, waits=True, when=_has_name),
    Step("consumer_name", lambda terms: terms.consumer_name, _SINCE_7, when=_has_name),
    Step("include_deleted_user_xattrs", _true, _SINCE_7),
    Step("v7_dcp_status_codes", _true, _SINCE_7),
    Step("max_marker_version", _text("2.2"), _SINCE_7, when=lambda terms: terms.collections),
)


class Talk:
    """The negotiation of one connection; it makes requests and takes their answers."""

    def __init__(self, terms: Terms, next_opaque: Callable[[], int]) -> None:
        """Nothing is asked yet."""
        self._terms = terms
        self._next_opaque = next_opaque
        self._left: list[Step] = []
        self._asked: dict[int, Step] = {}
        self._begun = False
        self.granted: set[str] = set()
        """Keys of the controls that were accepted."""

    @property
    def is_done(self) -> bool:
        """Whether everything was asked and answered."""
        return self._begun and not self._left and not self._asked

    @property
    def has_begun(self) -> bool:
        """Whether anything was asked."""
        return self._begun

    @property
    def replicates_sync_writes(self) -> bool:
        """Whether the producer counts our acknowledgements of prepares."""
        return {"enable_sync_writes", "consumer_name"} <= self.granted

    def begin(self) -> Iterator[Request]:
        """The first requests."""
        terms = self._terms
        self._begun = True
        self._left = [step for step in STEPS if terms.dialect in step.dialects and step.when(terms)]
        return self._go_on()

    def _go_on(self) -> Iterator[Request]:
        while self._left and not any(step.waits for step in self._asked.values()):
            step = self._left.pop(0)
            opaque = self._next_opaque()
            self._asked[opaque] = step
            if step.key:
                value = step.value(self._terms)
                yield Control(key=step.key.encode(), value=value.encode(), opaque=opaque)
            else:
                yield GetErrorMap(version=0, opaque=opaque)

    def answered(self, opaque: int, *, accepted: bool) -> Iterator[Request] | None:
        """Take an answer: what to ask next; None if this was no question of ours."""
        step = self._asked.pop(opaque, None)
        if step is None:
            return None
        if accepted and step.key:
            self.granted.add(step.key)
        return self._go_on()
