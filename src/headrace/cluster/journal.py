"""The journal: which moves are under way, in a small file beside the cluster file.

    {"format": 1, "moves": [{"bucket": ..., "vbucket": ..., "kind": ..., "step": ..., ...}]}

Rules
- Written whole, to a new file that is synced and then takes the old one's name: after a crash there
  is the journal before or the journal after, never half of one. An empty journal is no file.
- The step it names is for people: a move is resumed from what the nodes say.
- One manager at a time: whoever opens the journal holds a lock on the file beside it. Inside a
  manager any thread may write.

Imports: errors, cluster.planning, cluster.steps.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from headrace.cluster.planning import Kind, Move
from headrace.cluster.steps import Step
from headrace.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from pathlib import Path

FORMAT: Final = 1
MOVES_MAX: Final = 1 << 20
LOCK_SECONDS: Final = 3.0
"""How long a command waits for another manager to let go of the journal."""
LOCK_POLL_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One move that is under way."""

    bucket: str
    move: Move
    step: Step = Step.WRITING


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file in one step that survives a crash."""
    draft = path.with_name(path.name + ".new")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _sync_directory(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def _sync_directory(path: Path) -> None:
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_entries(path: Path) -> tuple[Entry, ...]:
    """The moves that are under way; none when there is no journal."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ConfigError(f"journal {path} cannot be read: {error.strerror}") from error
    try:
        said = json.loads(data)
        if said["format"] != FORMAT:
            raise ConfigError(f"journal {path} has format {said['format']}, this one is {FORMAT}")
        return tuple(_entry(row) for row in said["moves"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"journal {path} cannot be understood: {error!r}") from error


def _entry(row: dict[str, object]) -> Entry:
    before, after = row["before"], row["after"]
    if not isinstance(before, list) or not isinstance(after, list):
        raise ValueError(f"chains {before!r} and {after!r} where lists belong")
    source = row["source"]
    return Entry(
        bucket=str(row["bucket"]),
        step=Step(row["step"]),
        move=Move(
            vbucket=int(str(row["vbucket"])),
            kind=Kind(row["kind"]),
            source=None if source is None else str(source),
            target=str(row["target"]),
            before=tuple(before),
            after=tuple(after),
        ),
    )


def _taken(lock: IO[str], until: float) -> bool:
    """Whether the lock could be had before a time; it is tried once at least."""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= until:
                return False
            time.sleep(LOCK_POLL_SECONDS)
        else:
            return True


class Journal:
    """The open journal: read, changed, and written with every change."""

    def __init__(self, path: Path, *, patience_seconds: float = LOCK_SECONDS) -> None:
        """Take the lock and read what an earlier manager left; ClusterError if one runs.

        Replication holds the lock for moments only, to publish a map: those are waited for.
        """
        self.path = path
        self._guard = threading.Lock()
        self._lock = path.with_name(path.name + ".lock").open("a")
        if not _taken(self._lock, time.monotonic() + patience_seconds):
            self._lock.close()
            raise ClusterError(f"another manager holds {path}; wait for it to end, or stop it")
        try:
            self._entries = {
                (entry.bucket, entry.move.vbucket): entry for entry in read_entries(path)
            }
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> Journal:
        """Hold it for the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let go; the moves that are still in it stay in the file."""
        self._lock.close()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The moves that are under way."""
        return tuple(self._entries.values())

    def note(self, *entries: Entry) -> None:
        """Write down where moves stand, unless it stands there already."""
        with self._guard:
            changed = [one for one in entries if self._entries.get(_place(one)) != one]
            if len(self._entries) + len(changed) > MOVES_MAX:
                raise ClusterError(f"more than {MOVES_MAX} moves at once")
            if changed:
                self._entries.update({_place(one): one for one in changed})
                self._write()

    def forget(self, bucket: str, vbucket: int) -> None:
        """Take a move out."""
        with self._guard:
            if self._entries.pop((bucket, vbucket), None) is not None:
                self._write()

    def _write(self) -> None:
        if not self._entries:
            self.path.unlink(missing_ok=True)
            _sync_directory(self.path)
            return
        rows = [_row(entry) for entry in self._entries.values()]
        data = json.dumps({"format": FORMAT, "moves": rows}, indent=1).encode() + b"\n"
        write_durably(self.path, data)


def _place(entry: Entry) -> tuple[str, int]:
    return entry.bucket, entry.move.vbucket


def _row(entry: Entry) -> dict[str, object]:
    move = entry.move
    return {
        "bucket": entry.bucket,
        "vbucket": move.vbucket,
        "kind": move.kind.value,
        "source": move.source,
        "target": move.target,
        "before": list(move.before),
        "after": list(move.after),
        "step": entry.step.value,
    }
