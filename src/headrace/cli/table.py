"""The default view: one line per frame, for reading from top to bottom.

           time conn     opcode               vb     opaque  what
       0.000000    1 ->  HELLO                          0x1  cap-driver asks for xattr xerror
       0.000313    1 <-  HELLO                          0x1  ok  grants xattr xerror

`->` is what the client sends, `<-` what the server sends. A file without times and connections has
a column for the place in the file instead. Lines that start with `#` tell about connections. A line
is cut to the width of the terminal; where there is none it stays whole.

Imports: wire, capture, cli.follow, cli.texts, cli.words.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from headrace.capture.conversation import Direction, RoleEvidence
from headrace.cli.words import Setting, words
from headrace.wire.codec import row_of
from headrace.wire.message import ErrorReply
from headrace.wire.opcodes import Opcode, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.capture.conversation import Connection
    from headrace.capture.walk import Item
    from headrace.cli.follow import Follower
    from headrace.wire.dialect import Dialect

ARROWS: Final = {
    Direction.CLIENT_TO_SERVER: "->",
    Direction.SERVER_TO_CLIENT: "<-",
    Direction.UNKNOWN: "??",
}
# Statuses that are steps of a conversation, not failures.
_TURNS: Final = frozenset({int(Status.ROLLBACK), int(Status.AUTH_CONTINUE)})
_ITEM_OPCODES: Final = frozenset(
    int(opcode)
    for opcode in (
        Opcode.MUTATION,
        Opcode.DELETION,
        Opcode.EXPIRATION,
        Opcode.SYSTEM_EVENT,
        Opcode.PREPARE,
        Opcode.COMMIT,
        Opcode.ABORT,
        Opcode.SEQNO_ADVANCED,
        Opcode.CACHE_TRANSFER,
    )
)
NARROW: Final = 100
"""Columns below which the table leaves out the opaque."""
_NANOSECONDS_PER_SECOND: Final = 1_000_000_000


class Table:
    """Writes the lines; remembers whom it has introduced and when the capture began."""

    def __init__(
        self, follower: Follower, dialect: Dialect, *, timed: bool, width: int | None
    ) -> None:
        """Lay out for a source with times and connections, or for one without."""
        self._follower = follower
        self._dialect = dialect
        self._timed = timed
        self._width = width
        self._introduced: set[int] = set()
        self._headed = False

    def lines(self, item: Item) -> Iterator[str]:
        """Yield the line of an item, after what has to be said before it."""
        start_ns = self._follower.start_ns
        if self._timed and not self._headed and start_ns is not None:
            yield _dim(f"# time 0 is {_clock(start_ns)} UTC")
        if self._timed and item.connection.number not in self._introduced:
            self._introduced.add(item.connection.number)
            yield _dim(introduction(item.connection))
        if not self._headed:
            self._headed = True
            yield click.style(self._cut(self._heading()), bold=True)
        yield self._line(item)

    def _heading(self) -> str:
        place = f"{'time':>11} {'conn':>4}" if self._timed else f"{'byte':>9}"
        return f"{place}     {'opcode':<18}{'vb':>5}{self._opaque('opaque')}  what"

    def _opaque(self, text: str) -> str:
        """The opaque's column; a narrow terminal keeps its room for words."""
        narrow = self._width is not None and self._width < NARROW
        return "" if narrow else f"{text:>11}"

    def _line(self, item: Item) -> str:
        if self._timed:
            place = f"{self._time(item):>11} {item.connection.number:>4}"
        else:
            place = f"{item.offset:>9}"
        frame = item.frame
        name = frame.name if frame else "(no frame)"
        vbucket = self._follower.vbucket(item)
        opaque = f"{frame.opaque:#x}" if frame else ""
        head = (
            f"{place} {ARROWS[item.direction]}  {name:<18}"
            f"{'' if vbucket is None else vbucket:>5}{self._opaque(opaque)}  "
        )
        text = self._cut(head + self.said(item)).rstrip()
        return _coloured(text, item)

    def _time(self, item: Item) -> str:
        """Seconds since the first frame."""
        start_ns = self._follower.start_ns
        if item.timestamp_ns is None or start_ns is None:
            return "-"
        return f"{(item.timestamp_ns - start_ns) / _NANOSECONDS_PER_SECOND:.6f}"

    def said(self, item: Item) -> str:
        """The message in words, or why there is none."""
        if item.message is None or item.frame is None:
            return f"!! {item.error}"
        row = row_of(item.frame, self._dialect)
        collections = self._follower.collections(item.connection)
        return words(item.message, Setting(collections=collections, row=row))

    def _cut(self, text: str) -> str:
        if self._width is None or len(text) <= self._width:
            return text
        return text[: self._width - 3] + "..."


def introduction(connection: Connection) -> str:
    """Who the ends of a connection are, and how sure that is."""
    sure = connection.evidence in (RoleEvidence.HANDSHAKE, RoleEvidence.CHOSEN_PORT)
    doubt = "" if sure else f" (client and server told by {connection.evidence.value})"
    return f"# connection {connection.number}: {connection}{doubt}"


def _clock(timestamp_ns: int) -> str:
    seconds, rest = divmod(timestamp_ns, _NANOSECONDS_PER_SECOND)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{rest // 1000:06d}"


def _dim(text: str) -> str:
    return click.style(text, dim=True)


def _coloured(text: str, item: Item) -> str:
    """Colour a whole line by what matters: trouble red, turns yellow, documents plain, rest dim."""
    if item.error is not None:
        return click.style(text, fg="red", bold=True)
    if isinstance(item.message, ErrorReply):
        return click.style(text, fg="red")
    frame = item.frame
    assert frame is not None
    if frame.status in _TURNS or frame.opcode == Opcode.STREAM_END:
        return click.style(text, fg="yellow")
    if frame.opcode == Opcode.SNAPSHOT_MARKER:
        return click.style(text, fg="cyan")
    return text if frame.opcode in _ITEM_OPCODES else click.style(text, dim=True)
