"""Exit codes: one table for every command, in the help of `headrace` and in the docs.

Imports: nothing of ours.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Exit(IntEnum):
    """How a command ended."""

    OK = 0
    FAILED = 1
    USAGE = 2
    PENDING = 3
    CHANGED = 3
    INTERRUPTED = 130


MEANINGS: Final[dict[Exit, str]] = {
    Exit.OK: "done; compared and equal; nothing wrong was found",
    Exit.FAILED: "failed, or options do not fit together, or something differs; standard error "
    "says which",
    Exit.USAGE: "an unknown command or option, or a bad value; nothing was done",
    Exit.PENDING: "not finished and not undone (move, rebalance, failover): go on with move "
    "--resume; or what was recorded or kept no longer holds (replay --to, tokens check)",
    Exit.INTERRUPTED: "interrupted by Ctrl-C before it was done",
}
"""Code -> what it means, for every command alike."""
