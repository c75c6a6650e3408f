"""Durable vbuckets: frames at rest, a key index in memory, cursors and backfills.

The front door is `Bucket.open`. A change is accepted in memory, readable and streamable at once,
durable at the next ``bucket.commit()`` (or within milliseconds after ``bucket.start_committer()``).
The store keeps no conflict rules (CAS checks, locks, add/replace): its owner does. Every method may
be called from any thread; callbacks run on the thread that caused them.

Keys carry their collection id in front everywhere in this package
(`headrace.wire.values.join_collection`).

Imports: errors, history, wire.
"""

from headrace.store.backfill import Backfill
from headrace.store.bucket import Bucket
from headrace.store.cursor import Cursor
from headrace.store.disk import Disk, LmdbDisk, MemoryDisk
from headrace.store.model import (
    BackfillOutcome,
    Change,
    CheckpointView,
    Chunk,
    CommitReport,
    CompactionReport,
    Item,
    MemorySnapshot,
    Meta,
    Pending,
    SystemEventView,
)
from headrace.store.settings import BucketSettings
from headrace.store.transform import AT_REST, Compression, Transform
from headrace.store.vbucket import VBucket

__all__ = [
    "AT_REST",
    "Backfill",
    "BackfillOutcome",
    "Bucket",
    "BucketSettings",
    "Change",
    "CheckpointView",
    "Chunk",
    "CommitReport",
    "CompactionReport",
    "Compression",
    "Cursor",
    "Disk",
    "Item",
    "LmdbDisk",
    "MemoryDisk",
    "MemorySnapshot",
    "Meta",
    "Pending",
    "SystemEventView",
    "Transform",
    "VBucket",
]
