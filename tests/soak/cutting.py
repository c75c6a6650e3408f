"""A socket that breaks at a chosen place of what it receives: for `Access.tap`.

It walks the frames as they pass, so that a cut can fall exactly behind a marker, inside a snapshot,
behind its last item or in the middle of a frame. A cut shuts the real socket down.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from enum import Enum
from typing import Final, cast

from headrace.wire.frame import HEADER_SIZE
from headrace.wire.opcodes import Magic, Opcode

HEAD_SIZE: Final = HEADER_SIZE + 24
"""Bytes of a frame that are looked at: all of a marker's range, every item's seqno."""
ITEMS: Final = frozenset(
    {int(Opcode.MUTATION), int(Opcode.DELETION), int(Opcode.EXPIRATION), int(Opcode.SYSTEM_EVENT)}
)


class Place(Enum):
    """Where a link is cut; each is counted from the link's first byte."""

    BYTES = "after so many bytes"
    MARKER = "between a marker and its first item"
    INSIDE = "between two items of a snapshot"
    END = "behind the last item of a snapshot"
    HALF = "in the middle of an item"


@dataclass(frozen=True, slots=True)
class Cut:
    """One place: the ``count``-th of its kind."""

    place: Place
    count: int


class Cutter:
    """Cuts for the links of one reader: each link takes the next one, later links are spared."""

    def __init__(self, *cuts: Cut) -> None:
        """Nothing is cut yet."""
        self.cuts = list(cuts)
        self.done: list[Cut] = []

    def tap(self, link: socket.socket) -> socket.socket:
        """Stand between a consumer and its socket."""
        if not self.cuts:
            return link
        return cast("socket.socket", CuttingSocket(link, self.cuts.pop(0), self.done))


class CuttingSocket:
    """A socket with one cut ahead."""

    def __init__(self, link: socket.socket, cut: Cut, done: list[Cut]) -> None:
        """``done`` gets the cut when it is made."""
        self._link, self._cut, self._done = link, cut, done
        self._left = cut.count
        self._is_cut = False
        self._head = bytearray()
        self._body = 0
        self._ends: dict[int, int] = {}

    def recv_into(self, buffer: memoryview) -> int:
        """Receive up to the cut; nothing ever comes after it."""
        if self._is_cut:
            return 0
        size = self._link.recv_into(buffer)
        passed = self._pass(memoryview(buffer)[:size])
        if passed < size or (passed == size and self._is_cut):
            self._is_cut = True
            self._done.append(self._cut)
            with contextlib.suppress(OSError):
                self._link.shutdown(socket.SHUT_RDWR)
        return passed

    def __getattr__(self, name: str) -> object:
        """Everything else is the socket's."""
        return getattr(self._link, name)

    def _pass(self, data: memoryview) -> int:
        """How many of the bytes come before the cut."""
        if self._cut.place is Place.BYTES:
            passed = min(len(data), self._left)
            self._left -= passed
            self._is_cut = self._left == 0
            return passed
        at, size = 0, len(data)
        while at < size and not self._is_cut:
            at = self._step(data, at)
        return at

    def _step(self, data: memoryview, at: int) -> int:
        """Pass the rest of one frame, or of the data; ``_body`` is what the frame still lacks."""
        if len(self._head) < HEADER_SIZE:
            taken = bytes(data[at : at + HEADER_SIZE - len(self._head)])
            self._head += taken
            if len(self._head) < HEADER_SIZE:
                return at + len(taken)
            at += len(taken)
            self._body = int.from_bytes(self._head[8:12])
            if self._cut.place is Place.HALF and self._is_item and self._count():
                self._is_cut = True
                return min(len(data), at + self._body // 2)
        passed = min(self._body, len(data) - at)
        if len(self._head) < HEAD_SIZE:
            self._head += data[at : at + min(passed, HEAD_SIZE - len(self._head))]
        self._body -= passed
        if self._body == 0:
            self._frame()
            self._head.clear()
        return at + passed

    @property
    def _is_item(self) -> bool:
        return self._head[0] == Magic.REQUEST and self._head[1] in ITEMS

    def _count(self) -> bool:
        self._left -= 1
        return self._left <= 0

    def _frame(self) -> None:
        """A whole frame has passed."""
        head, place = self._head, self._cut.place
        vbucket = int.from_bytes(head[6:8])
        if head[0] != Magic.REQUEST:
            return
        if head[1] == Opcode.SNAPSHOT_MARKER:
            # Version 1 has its range in the extras, version 2 in the value behind one byte.
            start = HEADER_SIZE + (1 if head[4] == 1 else 0)
            self._ends[vbucket] = int.from_bytes(head[start + 8 : start + 16])
            self._is_cut = place is Place.MARKER and self._count()
        elif self._is_item and place in (Place.INSIDE, Place.END):
            seqno = int.from_bytes(head[HEADER_SIZE : HEADER_SIZE + 8])
            is_end = seqno >= self._ends.get(vbucket, 0)
            self._is_cut = is_end == (place is Place.END) and self._count()
