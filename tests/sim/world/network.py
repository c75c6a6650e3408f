"""The network: byte pipes with delays, cut anywhere, slow, paused, broken.

Bytes of one direction arrive in order, in pieces cut anywhere; between connections and directions
there is no order. A break loses what is on its way; the two ends learn of it at different times.
A pipe holds `WINDOW_BYTES` for those who ask before they send, as a socket does: behind a slow pipe
a producer falls back, and what it sends then are snapshots of many items.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.world.core import World

WINDOW_BYTES = 160
"""Bytes on their way in one direction at which a sender that asks waits: about two items."""

TRANSIT_SECONDS_MAX = 0.01
PAUSED = 0.05
"""Share of cuts behind which the rest is long in coming."""


@dataclass(frozen=True)
class Pace:
    """How a slow connection carries bytes."""

    bytes_max: int
    gap_seconds_max: float


PACES = (Pace(20, 0.04), Pace(40, 0.15), Pace(100, 0.4))


class Owner(Protocol):
    """Who sits at an end of a connection."""

    def on_bytes(self, data: bytes) -> None:
        """The next bytes came."""

    def on_lost(self, reason: str) -> None:
        """The connection is gone; told once, and not to the one who closed it."""


class End:
    """One end of a connection."""

    def __init__(self, connection: Connection, side: int) -> None:
        self._connection = connection
        self._side = side
        self.owner: Owner | None = None

    @property
    def is_open(self) -> bool:
        return not self._connection.is_broken

    @property
    def has_room(self) -> bool:
        """Whether less is on its way than the window holds."""
        return self._connection.on_its_way(self._side) < WINDOW_BYTES

    def when_room(self, function: Callable[[], None]) -> None:
        """Call once, when there is room again."""
        self._connection.waiting_for_room[self._side] = function

    def pause(self, seconds: float) -> None:
        """Let nothing arrive for so long, both ways."""
        self._connection.pause(seconds)

    def slow_down(self) -> None:
        """Let this connection be slow from now on, both ways."""
        self._connection.slow_down()

    def send(self, data: bytes) -> None:
        self._connection.send(self._side, data)

    def close(self) -> None:
        """Close from this side: the other end learns of it."""
        self.owner = None
        self._connection.break_off("the other end closed it")


class Connection:
    """Two pipes."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.ends = (End(self, 0), End(self, 1))
        self.is_broken = False
        self._waiting = [bytearray(), bytearray()]
        self._scheduled = [False, False]
        self._held_until = 0.0
        self.pace: Pace | None = None
        self.waiting_for_room: list[Callable[[], None] | None] = [None, None]

    def on_its_way(self, side: int) -> int:
        """Bytes that an end sent and the other has not got."""
        return len(self._waiting[side])

    def send(self, side: int, data: bytes) -> None:
        """Put bytes on their way to the other end."""
        if self.is_broken or not data:
            return
        self._waiting[side] += data
        if not self._scheduled[side]:
            self._schedule(side)

    def _schedule(self, side: int) -> None:
        self._scheduled[side] = True
        gap = TRANSIT_SECONDS_MAX if self.pace is None else self.pace.gap_seconds_max
        delay = max(self.world.delay(most=gap), self._held_until - self.world.now)
        self.world.at(delay, lambda: self._arrive(side))

    def _arrive(self, side: int) -> None:
        self._scheduled[side] = False
        if self.is_broken:
            return
        waiting = self._waiting[side]
        size = len(waiting)
        if size > 1 and self.world.chance(0.2):
            size = self.world.random.randrange(1, size)
        if self.pace is not None:
            size = min(size, self.world.random.randint(1, self.pace.bytes_max))
        data = bytes(waiting[:size])
        del waiting[:size]
        if waiting:
            if self.pace is None and self.world.chance(PAUSED):
                self.pause(self.world.random.uniform(0.05, 0.6))
            self._schedule(side)
        self._tell_room(side)
        owner = self.ends[1 - side].owner
        if owner is not None:
            owner.on_bytes(data)

    def _tell_room(self, side: int) -> None:
        told = self.waiting_for_room[side]
        if told is not None and self.on_its_way(side) < WINDOW_BYTES:
            self.waiting_for_room[side] = None
            self.world.at(0.0, told)

    def slow_down(self) -> None:
        """Be slow from now on, in one of several ways."""
        if self.pace is None:
            self.pace = self.world.random.choice(PACES)
            self.world.say("network", f"{self.name} is slow: {self.pace}")

    def pause(self, seconds: float) -> None:
        """Let nothing arrive for so long."""
        self._held_until = self.world.now + seconds

    def break_off(self, reason: str) -> None:
        """End it: what is on its way is lost."""
        if self.is_broken:
            return
        self.is_broken = True
        for end in self.ends:
            if end.owner is not None:
                self.world.at(self.world.delay(), partial(self._tell, end, reason))

    @staticmethod
    def _tell(end: End, reason: str) -> None:
        owner, end.owner = end.owner, None
        if owner is not None:
            owner.on_lost(reason)


class Network:
    """Every connection there is."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._connections: list[Connection] = []

    def connect(self, name: str) -> Connection:
        self._connections = [one for one in self._connections if not one.is_broken]
        made = Connection(self.world, name)
        self._connections.append(made)
        return made

    def heal(self) -> None:
        """Let no connection be slow any more."""
        for one in self._connections:
            one.pace = None

    def open_connections(self) -> list[Connection]:
        return [one for one in self._connections if not one.is_broken]
