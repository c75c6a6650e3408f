"""Who speaks to whom in a capture, and the bytes they say.

A source (pcap, hex text, raw frames) is read once, from front to back, and becomes a run of pieces:
some bytes of one direction of one connection, in the order of that direction, each with the time it
was seen. Nothing is kept that was already handed on, so a capture may be larger than memory.

Rules
- `Piece.offset` counts the bytes of its direction, those that were lost included: an offset names
  the same byte whether or not something before it is missing.
- `Piece.missing` bytes were lost directly before `Piece.offset`.
- `Piece.whole` says that the source itself drew the boundary: the data is one message from its
  first to its last byte, whatever the lengths in its header claim.
- The client is the end that opened the TCP connection, not the consumer: a node that asks another
  node for changes is a client too.

Imports: nothing of ours.
"""

from dataclasses import dataclass
from enum import Enum


class Direction(Enum):
    """Which end sent the bytes; UNKNOWN for files that do not say."""

    CLIENT_TO_SERVER = "client"
    SERVER_TO_CLIENT = "server"
    UNKNOWN = "unknown"

    @property
    def reverse(self) -> "Direction":
        """The other way round; what is unknown stays so."""
        return _REVERSE[self]


_REVERSE = {
    Direction.CLIENT_TO_SERVER: Direction.SERVER_TO_CLIENT,
    Direction.SERVER_TO_CLIENT: Direction.CLIENT_TO_SERVER,
    Direction.UNKNOWN: Direction.UNKNOWN,
}


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """One end of a TCP connection."""

    address: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{host}:{self.port}"


class RoleEvidence(Enum):
    """How the client was told from the server, strongest first."""

    CHOSEN_PORT = "the chosen server port"
    HANDSHAKE = "the TCP handshake"
    FIRST_MESSAGE = "the first message"
    PORT_NUMBERS = "the port numbers"
    NONE = "nothing: the file has no connections"


@dataclass(frozen=True, slots=True)
class Connection:
    """One TCP connection, or a whole file that knows of none.

    `complete_start` is true when the first byte of both directions is the first that was sent.
    """

    number: int
    client: Endpoint | None
    server: Endpoint | None
    evidence: RoleEvidence
    complete_start: bool
    name: str = ""

    def __str__(self) -> str:
        if self.client is None or self.server is None:
            return self.name
        return f"{self.client} > {self.server}"


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of one direction, directly after the piece before it and what is missing."""

    connection: Connection
    direction: Direction
    offset: int
    data: bytes
    timestamp_ns: int | None = None
    missing: int = 0
    whole: bool = False
    line: int | None = None
