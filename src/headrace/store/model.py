"""The values a store hands out: what was written, what was found, what is ready to be sent.

Every key here carries its collection id (unsigned LEB128) in front, as frames at rest do. Seqnos
are plain integers in 1..2**63-1; 0 means "nothing". A CAS and a rev are unsigned 64-bit numbers.

Imports: nothing of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

SEQNO_LIMIT: Final = 2**63 - 1
"""Largest seqno the store accepts: seqnos live in signed 64-bit arrays."""
KEY_SIZE_MAX: Final = 255
"""Bytes of a key with its collection prefix; the key heap counts lengths in one byte."""
VALUE_SIZE_MAX: Final = 21 * 1024 * 1024


class Change(NamedTuple):
    """What an accepted change was given."""

    seqno: int
    cas: int
    rev: int


class Meta(NamedTuple):
    """What the key index knows of a key, without touching the disk.

    ``expiry`` is in absolute seconds (0: never); of a tombstone it is the time of the delete.
    """

    seqno: int
    rev: int
    cas: int
    flags: int
    expiry: int
    datatype: int
    deleted: bool
    value_size: int


class Item(NamedTuple):
    """A key's newest version, value included; of a tombstone the value is its xattrs or empty."""

    key: bytes
    value: bytes
    seqno: int
    rev: int
    cas: int
    flags: int
    expiry: int
    datatype: int
    deleted: bool


class Pending(NamedTuple):
    """A prepare that was neither committed nor aborted."""

    key: bytes
    value: bytes
    seqno: int
    cas: int
    rev: int
    flags: int
    expiry: int
    datatype: int
    deleted: bool
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Whole frames, ready for a socket.

    ``data`` is a buffer of its own: nothing in the store changes it later. ``read_seqno`` is the
    last seqno the reader has passed, sent or filtered out; ``last_seqno`` the last one sent (0 when
    everything was filtered out). ``prepares`` counts the PREPARE frames inside: flow control adds
    two bytes for each.
    """

    data: memoryview
    count: int
    first_seqno: int
    last_seqno: int
    read_seqno: int
    prepares: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySnapshot:
    """One snapshot a cursor can read from memory; all of it lies in one checkpoint.

    ``first`` is the seqno of the first item to come, sent or not; ``end`` the seqno at which the
    reader is consistent. ``visible_end`` is the last seqno inside that passes the transform, 0 if
    none does (then no marker is needed for a reader that cannot be told SEQNO_ADVANCED).
    ``checkpoint_start`` is the start of the checkpoint's own range. On an active vbucket every item
    up to ``end`` is in memory now; on a replica ``end`` is the end of the snapshot being received,
    and ``Cursor.take`` returns None with ``Cursor.at_end`` false until the rest has come.
    """

    first: int
    end: int
    visible_end: int
    checkpoint_id: int
    checkpoint_start: int
    new_checkpoint: bool
    from_disk: bool
    high_completed_seqno: int
    max_visible_seqno: int


class BackfillOutcome(Enum):
    """Where a backfill stands, or why it ended."""

    RUNNING = auto()
    COMPLETE = auto()
    PURGED = auto()
    """Compaction removed tombstones that this reader has not seen: it must start again at 0."""
    ROLLED_BACK = auto()
    """The vbucket was truncated, deleted or flushed while it was read."""
    CLOSED = auto()


class SystemEventView(NamedTuple):
    """A system event on its way out, for the owner to keep, rewrite or drop.

    ``subject`` is the collection id of events 0, 1 and 5, the scope id of events 3 and 4.
    """

    seqno: int
    event: int
    version: int
    subject: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitReport:
    """What one group commit made durable."""

    frames: int
    bytes_journalled: int
    bytes_sealed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """What a compaction did to one vbucket."""

    vbucket: int
    frames_before: int
    frames_after: int
    bytes_before: int
    bytes_after: int
    tombstones_purged: int
    purge_seqno: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """One checkpoint of a vbucket, for statistics."""

    id: int
    start: int
    end: int
    items: int
    open: bool
    from_disk: bool
