"""Compile, or load from numba's cache, what a bucket's life needs, before anyone waits for it.

A kernel is compiled when it is first called: seconds on a machine that has never run it. `warm`
takes a small bucket of its own through one life (writes one by one and in bulk, reads, deletions,
commits, cursors, sealing, backfills, compaction, failover) so that this happens at a moment of the
owner's choice. Every call after that is a call.

Imports: history, store.bucket, store.settings, store.transform, wire.
"""

from __future__ import annotations

import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Final

from headrace.history import Seqno, SnapshotRange
from headrace.store.bucket import Bucket
from headrace.store.settings import BucketSettings
from headrace.store.transform import AT_REST, Transform
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.kv import Get, Set
from headrace.wire.opcodes import VBucketState

ITEMS: Final = 40
SETTINGS: Final = BucketSettings(vbuckets=2, segment_bytes=64 * 1024, block_bytes=4 * 1024)
LEGACY: Final = Transform(collections=False, mutation_extras=30, deletion_extras=18)
READERS: Final = (AT_REST, LEGACY, Transform(stream_id=1, only_collections=frozenset({0})))
CHUNK: Final = 1 << 20
REPLICATION: Final = Transform(opaque=1)


@cache
def warm() -> None:
    """Make every kernel of the store ready, once per process.

    A fraction of a second when they are cached, up to a minute where they have never run.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-warm-") as directory:
        path = Path(directory) / "bucket"
        with Bucket.open(path, SETTINGS) as bucket:
            bucket.create_vbuckets(VBucketState.ACTIVE)
            _live(bucket)
            _receive(bucket)
            _persist(bucket)
            _lose(bucket)
        with Bucket.open(path) as bucket:
            bucket.vbucket(0).get(b"\0k3")


def _live(bucket: Bucket) -> None:
    """Write and read in memory, one by one and in bulk."""
    vbucket, now = bucket.vbucket(0), int(time.time())
    cursors = [vbucket.open_cursor(f"warm{number}", after=0) for number in range(len(READERS))]
    for number in range(ITEMS):
        vbucket.store(b"\0k%d" % (number % 10), b"{}", expiry=now - 1 if number == 5 else 0)
    vbucket.delete(b"\0k1")
    requests = [Set(key=b"b%d" % number, value=b"{}", vbucket=1) for number in range(3)]
    run = b"".join(encode(one, Dialect.DCP_7) for one in (*requests, Get(key=b"b0", vbucket=1)))
    for tokens in (False, True):
        bucket.serve_requests(run, now=now, mutation_tokens=tokens, datatypes=tokens)
    for cursor, transform in zip(cursors, READERS, strict=True):
        while cursor.snapshot(transform) is not None:
            while not cursor.at_end and cursor.take(CHUNK, transform) is not None:
                pass
        cursor.close()
    vbucket.get(b"\0k2")
    vbucket.random_key(1)
    vbucket.collection_high_seqno([0])
    vbucket.collection_item_count(0)
    bucket.expire_due(now)


def _receive(bucket: Bucket) -> None:
    """Follow another node's vbucket."""
    source, replica = bucket.vbucket(0), bucket.vbucket(1)
    run = source.open_cursor("warm", after=0)
    snapshot = run.snapshot(REPLICATION)
    chunk = run.take(CHUNK, REPLICATION)
    run.close()
    replica.set_state(VBucketState.REPLICA)
    replica.rollback(0)
    if snapshot is not None and chunk is not None:
        told = SnapshotRange(Seqno(snapshot.first), Seqno(snapshot.end))
        replica.receive_snapshot(told, new_checkpoint=True, from_disk=False)
        frames = renumbered(chunk.data, replica.id)
        replica.receive_run(frames, opaque=REPLICATION.opaque, snapshot=told, collections=True)
    replica.set_state(VBucketState.ACTIVE)


def renumbered(frames: memoryview, vbucket: int) -> memoryview:
    """The same frames as if they were of another vbucket."""
    changed, at = bytearray(frames), 0
    while at < len(changed):
        changed[at + 6 : at + 8] = vbucket.to_bytes(2, "big")
        at += 24 + int.from_bytes(changed[at + 8 : at + 12], "big")
    return memoryview(changed)


def _persist(bucket: Bucket) -> None:
    """Commit, seal, read from blocks, compact."""
    for turn in range(2):
        bucket.commit()
        bucket.seal()
        bucket.vbucket(0).get(b"\0k3")
        for transform in READERS:
            view = bucket.vbucket(0).backfill(after=0, transform=transform)
            while view.read(CHUNK) is not None:
                pass
        for number in range(ITEMS):
            bucket.vbucket(0).store(b"\0k%d" % (number % 10), b"%d" % turn)
    bucket.commit()
    bucket.compact(drop_deletes=True)
    bucket.maintain()


def _lose(bucket: Bucket) -> None:
    """Go back in history."""
    vbucket = bucket.vbucket(0)
    vbucket.failover(max(vbucket.high_seqno - 5, vbucket.rewind_seqno))
    vbucket.store(b"\0after", b"1")
    bucket.commit()
