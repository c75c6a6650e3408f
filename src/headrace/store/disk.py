"""The only door to files: three tables of bytes, atomic durable batches, consistent reads.

A disk holds three tables, each ordered by key. A batch of puts and deletes is applied whole or not
at all, and is durable when `Disk.commit` returns. A read sees one state of all three tables; the
buffers it hands out are valid only inside it, so reads are short: a long one would pin pages.

`LmdbDisk` is one LMDB environment in a directory, guarded by an OS file lock; its map grows by
doubling up to a limit. `MemoryDisk` keeps the same promises, except durability, in memory. Tests
put a third one in their place that fails and crashes on demand.

After a sync that failed nobody knows what the file holds: the disk then refuses every later
batch, and the owner must open the store again.

Imports: errors.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from bisect import bisect_left
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import lmdb

from headrace.errors import CorruptRecord, StoreError, StoreFull, StoreLocked, StoreVersion
from headrace.store.lmdb_check import check_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

Buffer: TypeAlias = "bytes | memoryview | NDArray[np.uint8]"

LOCK_NAME: Final = "headrace.lock"
MAP_BYTES_FIRST: Final = 64 * 1024 * 1024
KEY_BYTES_MAX: Final = 511
"""LMDB's limit for a key."""


class Table(Enum):
    """The tables of a store."""

    JOURNAL = b"journal"
    BLOCKS = b"blocks"
    META = b"meta"


class Batch:
    """Puts and deletes that become durable together."""

    def __init__(self) -> None:
        self.operations: list[tuple[Table, bytes, Buffer | None]] = []
        self.bytes_put = 0

    def put(self, table: Table, key: bytes, value: Buffer) -> None:
        """Set a key; the value must not change until the batch is committed."""
        self.operations.append((table, key, value))
        self.bytes_put += len(key) + len(value)

    def delete(self, table: Table, key: bytes) -> None:
        """Remove a key; one that is missing is no error."""
        self.operations.append((table, key, None))

    def __len__(self) -> int:
        """Number of operations."""
        return len(self.operations)


class Reader(Protocol):
    """One state of the tables; its buffers live as long as the read does."""

    def get(self, table: Table, key: bytes) -> memoryview | None:
        """The value of a key, or None."""

    def scan(
        self, table: Table, start: bytes = b"", stop: bytes | None = None
    ) -> Iterator[tuple[bytes, memoryview]]:
        """Keys from ``start`` up to, not including, ``stop``, in order, with their values."""


class Disk(Protocol):
    """What a store needs of the world."""

    path: str
    """For messages."""
    durable: bool

    def read(self) -> AbstractContextManager[Reader]:
        """A consistent read."""

    def commit(self, batch: Batch) -> None:
        """Apply the batch, whole and durable; StoreFull: nothing was applied and it may be
        retried."""

    def bytes_used(self) -> int:
        """Bytes the tables take."""

    def close(self) -> None:
        """Let go of the files; idempotent."""


class _LmdbReader:
    def __init__(self, transaction: lmdb.Transaction, tables: dict[Table, Any]) -> None:
        self._transaction = transaction
        self._tables = tables

    def get(self, table: Table, key: bytes) -> memoryview | None:
        value = self._transaction.get(key, db=self._tables[table])
        return None if value is None else memoryview(value)

    def scan(
        self, table: Table, start: bytes = b"", stop: bytes | None = None
    ) -> Iterator[tuple[bytes, memoryview]]:
        with self._transaction.cursor(db=self._tables[table]) as cursor:
            found = cursor.set_range(start) if start else cursor.first()
            while found:
                key = bytes(cursor.key())
                if stop is not None and key >= stop:
                    return
                yield key, memoryview(cursor.value())
                found = cursor.next()


class LmdbDisk:
    """Three tables in one LMDB environment, in a directory that only this process may use."""

    durable = True

    def __init__(self, path: Path, *, map_bytes_max: int) -> None:
        """Open or create the environment; StoreLocked when another owner has it."""
        self.path = str(path)
        self._map_bytes_max = map_bytes_max
        self._gate = _Gate()
        self._write = threading.Lock()
        self._broken = ""
        self._environment: lmdb.Environment | None = None
        self._lock = _take_lock(path)
        try:
            self._environment = self._open(path)
            self._tables = {table: self._environment.open_db(table.value) for table in Table}
        except lmdb.Error as error:
            self.close()
            raise _translated(error, self.path) from error
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path) -> lmdb.Environment:
        data = path / "data.mdb"
        size = data.stat().st_size if data.exists() else 0
        if data.exists():
            check_file(data)
        self._map_bytes = min(self._map_bytes_max, max(MAP_BYTES_FIRST, 2 * size))
        if size > self._map_bytes:
            raise StoreFull(
                f"{data} has {size} bytes, more than its map limit of {self._map_bytes_max}"
            )
        return lmdb.open(
            str(path), map_size=self._map_bytes, max_dbs=len(Table), subdir=True, readahead=True
        )

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """A consistent read."""
        with self._gate.entered():
            environment = self._alive()
            try:
                with environment.begin(buffers=True) as transaction:
                    yield _LmdbReader(transaction, self._tables)
            except lmdb.Error as error:
                raise _translated(error, self.path) from error

    def commit(self, batch: Batch) -> None:
        """Apply the batch, whole and durable."""
        with self._write:
            while True:
                environment = self._alive()
                if self._broken:
                    raise StoreError(self._broken)
                try:
                    with environment.begin(write=True) as transaction:
                        self._apply(transaction, batch)
                except lmdb.MapFullError as error:
                    self._grow(error)
                except lmdb.Error as error:
                    raise self._failed(error) from error
                else:
                    return

    def _apply(self, transaction: lmdb.Transaction, batch: Batch) -> None:
        for table, key, value in batch.operations:
            if value is None:
                transaction.delete(key, db=self._tables[table])
            else:
                transaction.put(key, value, db=self._tables[table])  # type: ignore[arg-type]

    def _failed(self, error: lmdb.Error) -> StoreError:
        translated = _translated(error, self.path)
        if not isinstance(translated, StoreFull):
            self._broken = f"{self.path} failed before ({error}) and must be opened again"
        return translated

    def _grow(self, error: lmdb.MapFullError) -> None:
        if self._map_bytes >= self._map_bytes_max:
            raise StoreFull(
                f"{self.path} needs more than its map limit of {self._map_bytes_max} bytes"
            ) from error
        with self._gate.alone():
            self._map_bytes = min(2 * self._map_bytes, self._map_bytes_max)
            self._alive().set_mapsize(self._map_bytes)

    def _alive(self) -> lmdb.Environment:
        if self._environment is None:
            raise StoreError(f"{self.path} is closed")
        return self._environment

    def bytes_used(self) -> int:
        """Bytes of the data file."""
        return os.stat(os.path.join(self.path, "data.mdb")).st_size

    def close(self) -> None:
        """Let go of the files; idempotent."""
        with self._gate.alone():
            if self._environment is not None:
                self._environment.close()
                self._environment = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class _Gate:
    """Many readers or one stranger: a map may only be resized or closed while nobody reads it."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        with self._condition:
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                if not self._readers:
                    self._condition.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._condition:
            while self._readers:
                self._condition.wait()
            yield


def _take_lock(path: Path) -> int:
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise StoreLocked(f"{path} is in use by another process") from error
        raise StoreError(f"{path} cannot be locked: {error.strerror}") from error
    return descriptor


def _translated(error: lmdb.Error, path: str) -> StoreError:
    """Our error for one of LMDB's."""
    if isinstance(error, lmdb.DiskError):
        return StoreFull(f"the disk that holds {path} is full")
    if isinstance(error, lmdb.VersionMismatchError):
        return StoreVersion(f"{path} was written by another release of LMDB")
    if isinstance(
        error, (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.PanicError)
    ):
        return CorruptRecord(f"{path} is damaged: {error}", path=path)
    return StoreError(f"{path} failed: {error}")


class MemoryDisk:
    """The same tables in memory; nothing survives the process."""

    durable = False

    def __init__(self) -> None:
        self.path = "memory"
        self._lock = threading.RLock()
        self._tables: dict[Table, dict[bytes, bytes]] = {table: {} for table in Table}
        self._sorted: dict[Table, list[bytes] | None] = dict.fromkeys(Table)
        self._bytes = 0

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """A consistent read: nobody commits meanwhile."""
        with self._lock:
            yield self

    def get(self, table: Table, key: bytes) -> memoryview | None:
        """The value of a key, or None."""
        value = self._tables[table].get(key)
        return None if value is None else memoryview(value)

    def scan(
        self, table: Table, start: bytes = b"", stop: bytes | None = None
    ) -> Iterator[tuple[bytes, memoryview]]:
        """Keys from ``start`` up to, not including, ``stop``, in order, with their values."""
        values, keys = self._tables[table], self._sorted[table]
        if keys is None:
            keys = self._sorted[table] = sorted(values)
        for place in range(bisect_left(keys, start), len(keys)):
            key = keys[place]
            if stop is not None and key >= stop:
                return
            yield key, memoryview(values[key])

    def commit(self, batch: Batch) -> None:
        """Apply the batch."""
        with self._lock:
            for table, key, value in batch.operations:
                values = self._tables[table]
                old = values.pop(key, None)
                self._bytes -= 0 if old is None else len(old)
                if value is not None:
                    values[key] = bytes(value)
                    self._bytes += len(value)
                if (old is None) != (value is None):
                    self._sorted[table] = None

    def bytes_used(self) -> int:
        """Bytes of all values."""
        return self._bytes

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            for table in Table:
                self._tables[table].clear()
                self._sorted[table] = None
