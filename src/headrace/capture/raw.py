"""A file of frames, one behind the other, and nothing else.

Rules
- A file of up to `WHOLE_SIZE_MAX` bytes is one piece whose boundary is known, so a tolerant reader
  may let the file's end overrule a header; a longer one is read in chunks and the headers are the
  truth.

Imports: capture.conversation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final

from headrace.capture.conversation import Connection, Direction, Piece, RoleEvidence

if TYPE_CHECKING:
    from collections.abc import Iterator

WHOLE_SIZE_MAX: Final = 1 << 20
CHUNK_SIZE: Final = 256 << 10


def file_connection(name: str) -> Connection:
    """The one connection of a file that knows of none."""
    return Connection(1, None, None, RoleEvidence.NONE, complete_start=True, name=name)


def read_raw(stream: BinaryIO, name: str) -> Iterator[Piece]:
    """Yield the bytes of the file."""
    connection = file_connection(name)
    head = stream.read(WHOLE_SIZE_MAX + 1)
    whole = len(head) <= WHOLE_SIZE_MAX
    if head:
        yield Piece(connection, Direction.UNKNOWN, 0, head, whole=whole)
    offset = len(head)
    while not whole and (chunk := stream.read(CHUNK_SIZE)):
        yield Piece(connection, Direction.UNKNOWN, offset, chunk)
        offset += len(chunk)
