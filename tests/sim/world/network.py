"""The network: byte pipes with delays, cut anywhere, paused, broken.

Bytes of one direction arrive in order, in pieces cut anywhere; between connections and directions
there is no order. A break loses what is on its way; the two ends learn of it at different times.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tests.sim.world.core import World


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

    def send(self, side: int, data: bytes) -> None:
        """Put bytes on their way to the other end."""
        if self.is_broken or not data:
            return
        self._waiting[side] += data
        if not self._scheduled[side]:
            self._schedule(side)

    def _schedule(self, side: int) -> None:
        self._scheduled[side] = True
        delay = max(self.world.delay(), self._held_until - self.world.now)
        self.world.at(delay, lambda: self._arrive(side))

    def _arrive(self, side: int) -> None:
        self._scheduled[side] = False
        if self.is_broken:
            return
        waiting = self._waiting[side]
        size = len(waiting)
        if size > 1 and self.world.chance(0.2):
            size = self.world.random.randrange(1, size)
        data = bytes(waiting[:size])
        del waiting[:size]
        if waiting:
            if self.world.chance(0.25):
                self.pause(self.world.random.uniform(0.05, 0.6))
            self._schedule(side)
        owner = self.ends[1 - side].owner
        if owner is not None:
            owner.on_bytes(data)

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

    def open_connections(self) -> list[Connection]:
        return [one for one in self._connections if not one.is_broken]
