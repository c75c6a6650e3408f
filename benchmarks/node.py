"""What the node costs: streams from disk, live changes, documents.

The figures are defined, and their methods told, in the files this one gathers them from:
`_node_backfill.py` (change streams), `_node_kv.py` (documents).
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

__all__ = [
    "backfill_64",
    "backfill_256",
    "backfill_1024",
    "get_against_memcached",
    "live_median",
    "live_tail",
    "set_against_memcached",
]
