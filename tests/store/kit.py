"""What the tests build on: a bucket on a disk that outlives it, with time and chance fixed."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from headrace.store import AT_REST, Bucket, BucketSettings
from headrace.wire.opcodes import VBucketState
from tests.store.crash_disk import CrashDisk
from tests.store.frames import check_chunk
from tests.store.walk import Clock

if TYPE_CHECKING:
    from headrace.store import Backfill, Cursor, Transform
    from headrace.wire.message import Message

SMALL = BucketSettings(
    vbuckets=4,
    memory_quota=2 * 1024 * 1024,
    segment_bytes=64 * 1024,
    journal_bytes_max=4 * 1024 * 1024,
    block_bytes=4 * 1024,
)


def make_bucket(
    disk: CrashDisk | None = None,
    settings: BucketSettings = SMALL,
    *,
    clock: Clock | None = None,
    state: VBucketState = VBucketState.ACTIVE,
    **changes: int,
) -> Bucket:
    """A bucket with all its vbuckets in one state."""
    if changes:
        settings = BucketSettings(**{**settings.to_json(), **changes})
    bucket = Bucket.open(
        None,
        settings,
        disk=disk or CrashDisk(),
        clock=clock or Clock(),
        entropy=random.Random(1).randbytes,
    )
    bucket.create_vbuckets(state)
    return bucket


def reopened(bucket: Bucket, *, clean: bool = True) -> Bucket:
    """The same store with a new owner."""
    disk: Any = bucket.core.disk
    if clean:
        bucket.close()
    else:
        bucket.abandon()
    return Bucket.open(
        None, disk=disk.reborn(), clock=bucket.core.clock, entropy=random.Random(2).randbytes
    )


def read_disk(backfill: Backfill, limit: int = 1 << 20) -> list[Message]:
    """Everything a backfill yields."""
    found: list[Message] = []
    while (chunk := backfill.read(limit)) is not None:
        found += check_chunk(chunk)
    return found


def read_memory(
    cursor: Cursor, transform: Transform = AT_REST, limit: int = 1 << 20
) -> list[Message]:
    """Everything a cursor can read now."""
    found: list[Message] = []
    while cursor.snapshot(transform) is not None:
        while (chunk := cursor.take(limit, transform)) is not None:
            found += check_chunk(chunk)
    return found


def keys(messages: list[Message]) -> list[bytes]:
    """The keys of messages, in order."""
    return [message.key for message in messages]  # type: ignore[attr-defined]


def seqnos(messages: list[Message]) -> list[int]:
    """The seqnos of messages, in order."""
    return [message.by_seqno for message in messages]  # type: ignore[attr-defined]
