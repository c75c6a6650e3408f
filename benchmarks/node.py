"""What the node costs: streams from disk, live changes, documents, its store.

The figures are defined, and their methods told, in the files this one gathers them from:
`_node_backfill.py` (change streams), `_node_kv.py` (documents), `_node_store.py` (its store).
"""

from __future__ import annotations

from benchmarks._node_backfill import (
    backfill_64,
    backfill_256,
    backfill_1024,
    live_median,
    live_tail,
)
from benchmarks._node_kv import get_against_memcached, set_against_memcached
from benchmarks._node_store import (
    durable_1,
    durable_100,
    durable_1000,
    durable_10000,
    handed_over,
    memory_10_4,
    memory_10_5,
    memory_10_6,
    start_10_4,
    start_10_5,
    start_10_6,
    write_amplification,
)

__all__ = [
    "backfill_64",
    "backfill_256",
    "backfill_1024",
    "durable_1",
    "durable_100",
    "durable_1000",
    "durable_10000",
    "get_against_memcached",
    "handed_over",
    "live_median",
    "live_tail",
    "memory_10_4",
    "memory_10_5",
    "memory_10_6",
    "set_against_memcached",
    "start_10_4",
    "start_10_5",
    "start_10_6",
    "write_amplification",
]
