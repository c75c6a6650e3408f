"""Bytes that stay: what a commit names is on the disk before the commit, and so is the commit.

A file that was written and renamed is in the memory of the machine that wrote it. When that machine
loses its power, a table whose log survived could name files that did not. So tasks sync what they
wrote, on the machine that wrote it, before they report it; the driver syncs a commit before
anything is built on it: before `state` follows `changes`, and before a turn is told.

What is left is the moment between delta-rs linking a commit into the log and our sync of it. A
commit that was torn there was never told to anyone: `torn_commit` finds it, and it is put aside.

Imports: nothing of ours.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

LOG: Final = "_delta_log"
TORN: Final = ".torn"
_COMMIT: Final = re.compile(r"\d{20}\.json")


def sync_path(path: Path) -> None:
    """Put a file, or a directory's list of names, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path, table: Path) -> None:
    """Put a new file of a table on the disk: its bytes, its name, and the name of its directory."""
    sync_path(path)
    sync_path(path.parent)
    sync_path(table)


def sync_commit(table: Path, version: int) -> None:
    """Put a commit on the disk, and the Delta checkpoint that delta-rs may have made with it."""
    log = table / LOG
    for name in (f"{version:020d}.json", f"{version:020d}.checkpoint.parquet", "_last_checkpoint"):
        if (log / name).exists():
            sync_path(log / name)
    sync_path(log)


def torn_commit(table: Path) -> Path | None:
    """The newest commit if its last line is not whole; None if all is well."""
    commits = sorted(path for path in (table / LOG).glob("*.json") if _COMMIT.fullmatch(path.name))
    if not commits:
        return None
    lines = commits[-1].read_bytes().splitlines()
    try:
        whole = bool(lines) and all(isinstance(json.loads(line), dict) for line in lines)
    except ValueError:
        whole = False
    return None if whole else commits[-1]


def put_aside(commit: Path) -> None:
    """Take a torn commit out of the log, for someone to look at."""
    commit.rename(commit.with_name(commit.name + TORN))
    sync_path(commit.parent)
