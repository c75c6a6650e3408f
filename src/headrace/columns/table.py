"""What the kernel and Python share besides the block: the context of a scan, and the streams.

The context is a line of 64-bit numbers at a fixed address: Python writes what to scan and where to
put it, the kernel writes how far it came. A stream is a line of `STREAM_NUMBERS` numbers that lives
as long as the scanner: the snapshot in force, what its marker told, the last seqno, the bytes
counted. Streams without a stream id stand at the number of their vbucket; streams with one stand in
a hash table (open addressing, a line's ``NAME`` is 0 when it is free).

Imports: nothing of ours.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

VBUCKETS: Final = 1 << 16
STREAM_NUMBERS: Final = 16
STEP_NUMBERS: Final = 10
MARKS_MAX: Final = 4096
"""Markers of one scan that are told as steps; more are handed back."""


class Context(IntEnum):
    """Numbers of the context."""

    # What to scan, by which rules.
    SOURCE = 0
    SOURCE_SIZE = 1
    FORMS = 2
    INDEX = 3
    COMMON = 4
    COLLECTIONS = 5
    UNCOUNTED_FRAMING = 6
    MARKS = 7
    """Where markers are noted for the steps."""
    BODY_SIZE_MAX = 8
    ROWS_LIMIT = 9
    OTHERS_LIMIT = 10
    # Where to put it.
    BLOCK = 11
    KEYS = 12
    VALUES = 13
    STREAMS = 14
    NAMED = 15
    NAMED_CAPACITY = 16
    NAMED_MAX = 17
    NAMED_COUNT = 18
    STEPS = 19
    """0 when nobody asks for steps."""
    # Where more comes from.
    RECEIVE = 20
    """Address of the function that receives; 0: there is no more than the source."""
    ERRNO = 21
    """Address of the function that tells where ``errno`` is."""
    SOCKET = 22
    ROOM = 23
    """Bytes that the source's memory holds."""
    LIMIT = 24
    """Bytes to receive at most for one batch."""
    # How far it came.
    CONSUMED = 25
    ROWS = 26
    OTHERS = 27
    KEY_SIZE = 28
    VALUE_SIZE = 29
    COUNTED = 30
    STEP_COUNT = 31
    BROKEN_AT = 32
    """1 + the first row whose seqno breaks a rule, 0 for none."""
    RECEIVED = 33
    FAILURE = 34
    """What the socket said instead of bytes: the number of an error, 0 for its end."""
    MARK_COUNT = 35
    MARK_SIZE = 36
    """Bytes of the markers told as steps."""
    SEEN_ANY = 37
    SEEN_ALL = 38
    FIRST_NULLS = 39


class Step(IntEnum):
    """Numbers of a step: a run of rows, or a marker, which has no rows.

    A run is consecutive rows of one stream with no other frame between them.
    """

    OTHERS = 0
    """Frames handed back that came before it."""
    START = 1
    STOP = 2
    OPAQUE = 3
    VBUCKET = 4
    FIRST = 5
    """The least seqno; of rows in a marked snapshot it is that of the first. Of a marker, where
    its snapshot starts."""
    LAST = 6
    SAID = 7
    """The CAS of a run's last row; the flags of a marker."""
    PURGE = 8
    """The purge seqno that a marker told."""
    IS_PURGE_TOLD = 9


class Stop(IntEnum):
    """Why a scan ended."""

    DRAINED = 0
    """No whole frame is left."""
    FULL = 1
    """The batch is full; whole frames may be left."""
    GROW = 2
    """The table of named streams must grow before the next frame is taken."""
    MAGIC = 3
    BODY = 4
    LENGTHS = 5
    """The last three: a header that nothing behind can be found after."""
    DRY = 6
    """The socket gave nothing: `Context.FAILURE` says why."""


class Reason(IntEnum):
    """Why a frame is handed back."""

    OTHER = 0
    """It makes no row: a reply, a request of the connection, the end of a stream."""
    MALFORMED = 1
    """It should make a row or a snapshot, but no layout fits: `decode` says what is wrong."""
    PREFIX = 2
    """Its key does not start with a collection id."""
    MARKER = 3
    """A marker, already in force: it wants an answer, or is not told as a step to an owner who
    asked for steps."""
    STREAMS = 4
    """It belongs to a stream id beyond the limit of streams."""


class Stream(IntEnum):
    """Numbers of a stream; the first eight are one cache line, touched for every row."""

    START = 0
    END = 1
    FLAGS = 2
    PRESENCE = 3
    SEQNO = 4
    COUNTED = 5
    NAME = 6
    MAX_VISIBLE = 8
    HIGH_COMPLETED = 9
    PURGE = 10
    HIGH_PREPARED = 11
    TIMESTAMP = 12
    KNOWN = 13
    """Bits of the five before it that the last marker told, lowest for MAX_VISIBLE."""


def stream_name(vbucket: int, stream_id: int) -> int:
    """Return the name of a stream with a stream id; never 0."""
    return (1 << 32) | (vbucket << 16) | stream_id


def named_place(name: int, capacity: int) -> int:
    """Return where a named stream belongs in a table of ``capacity`` lines."""
    # Fibonacci hashing: the high bits of the product depend on every bit of the name.
    return ((((name & 0xFFFF_FFFF) * 2_654_435_769) & 0xFFFF_FFFF) * capacity) >> 32
