"""A process that drains a bucket with our consumer, as the programs in tests/interop/foreign do.

    python -m benchmarks._consumer_drain arrow|objects|raw ROUNDS URL

One JSON line per round: items, cpu_seconds, wall_seconds, memory_mb of this process. The login
comes from DRAIN_USER and DRAIN_PASSWORD.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.client.bucket import connect

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.client.bucket import Bucket


def as_batches(bucket: Bucket) -> int:
    """Everything as Arrow batches; how many rows that were."""
    return sum(batch.num_rows for batch in bucket.changes(until="now"))


def as_objects(bucket: Bucket) -> int:
    """Everything as objects; how many that were."""
    return sum(1 for _ in bucket.follow(since="beginning", until="now"))


def as_bytes(bucket: Bucket) -> int:
    """Everything as bytes that nobody looks at; how many items they tell.

    Every document was written once, so that the seqnos count them.
    """
    # Loaded here: the other readers' memory must not hold what a benchmark needs.
    from benchmarks.consumer import read_streams, stream_size

    read_streams(bucket, stream_size(os.environ["DRAIN_URL"]))
    return sum(bucket.seqnos().values())


READERS: Final[dict[str, Callable[[Bucket], int]]] = {
    "arrow": as_batches,
    "objects": as_objects,
    "raw": as_bytes,
}


def memory_mb() -> float:
    """Highest resident size of this process.

    Not from getrusage: Linux keeps that number over exec, so it may be that of whoever started us.
    """
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) / 1024


def main(reader: str, rounds: str, url: str) -> None:
    """Drain so often and print what each time cost, connecting included."""
    os.environ["DRAIN_URL"] = url
    for _ in range(int(rounds)):
        cpu, wall = time.process_time(), time.perf_counter()
        user, password = os.environ["DRAIN_USER"], os.environ["DRAIN_PASSWORD"]
        with connect(url, user=user, password=password) as bucket:
            items = READERS[reader](bucket)
        told = {
            "items": items,
            "cpu_seconds": time.process_time() - cpu,
            "wall_seconds": time.perf_counter() - wall,
            "memory_mb": memory_mb(),
        }
        sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
