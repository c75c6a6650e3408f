"""Python's collector of cycles, left alone while a task works.

A task makes some tens of thousands of small objects that live as long as it does (streams, tokens,
positions), and few cycles. The collector counts objects, not cycles: by its own numbers it looks at
all of them again and again, for a twentieth of a task's CPU. Reference counts free everything that
is large: batches and buffers are in no cycle.

Rules.
- Only where the process is a task's own: in a worker of Spark's, never in an application's process
  before it has asked us to read.
- What was set before is set again at the end, also when the task fails.

Imports: nothing of ours.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

OBJECTS_MAX: Final = 100_000
"""Objects that may be made, and not be freed, between two looks."""


@contextmanager
def calm_collector() -> Iterator[None]:
    """Look for cycles seldom while the block runs."""
    before = gc.get_threshold()
    gc.set_threshold(max(OBJECTS_MAX, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
