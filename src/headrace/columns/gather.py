"""Receiving and walking by turns: a piece of a socket's bytes at a time, while it is in the cache.

Three megabytes that are received first and walked afterwards are gone from the processor's second
cache by then, and so is everything else of the process. A piece of `PIECE` bytes is walked where
the system has just put it; and when every frame of it became a row, the next piece goes to the same
place. What is left to the caches is the batch that is being written.

    begin            CONSUMED         SOURCE_SIZE
      | frames walked    | part of a frame | the next piece ...
      `- moved here -----------------------'   unless a frame among them was handed back

Rules
- Frames that are handed back stay where they are: their places are told to the owner.
- The bytes walked for one batch are at most those its block was made for: the owner's limit.
- The socket must not block. What it gives besides bytes (nothing yet, an end, an error) stops the
  gathering and is told by its number; a system tells an error once.

Imports: columns.frames, columns.kernel, columns.machine, columns.table.
"""

from __future__ import annotations

from typing import Final

from headrace.columns.frames import get, put
from headrace.columns.kernel import finish, walk
from headrace.columns.machine import compiled, copy, error_number, receive
from headrace.columns.table import Context, Stop

PIECE: Final = 128 * 1024
"""Bytes received at once: with the rows made of them far less than a processor's second cache."""
DRAINED: Final = int(Stop.DRAINED)
DRY: Final = int(Stop.DRY)


@compiled
def _gather(context: int) -> int:
    """Walk what is there, then receive and walk until the limit is reached."""
    source, function = get(context, Context.SOURCE), get(context, Context.RECEIVE)
    while True:
        begin, others = get(context, Context.CONSUMED), get(context, Context.OTHERS)
        stop = walk(context)
        if stop != DRAINED:
            return stop
        at, filled = get(context, Context.CONSUMED), get(context, Context.SOURCE_SIZE)
        if filled - at <= at - begin and get(context, Context.OTHERS) == others:
            copy(source + begin, source + at, filled - at)
            filled -= at - begin
            put(context, Context.CONSUMED, begin)
            put(context, Context.SOURCE_SIZE, filled)
        received = get(context, Context.RECEIVED)
        room = get(context, Context.ROOM) - filled
        size = min(PIECE, min(room, get(context, Context.LIMIT) - received))
        if size <= 0:
            return DRAINED
        came = receive(function, get(context, Context.SOCKET), source + filled, size)
        if came <= 0:
            failure = error_number(get(context, Context.ERRNO)) if came < 0 else 0
            put(context, Context.FAILURE, failure)
            return DRY
        put(context, Context.SOURCE_SIZE, filled + came)
        put(context, Context.RECEIVED, received + came)


def scan_frames(context: int) -> int:
    """Walk the frames that the context at this address names, on from where it stopped last.

    Returns why it stopped, a number of `Stop`. With a function to receive by, more bytes are
    fetched as long as there are any; without one, everything walked so far becomes a batch.
    """
    if get(context, Context.RECEIVE) != 0:
        return _gather(context)
    stop = walk(context)
    finish(context)
    return stop
