"""The data source for a Spark Connect server: classes that bring the package along.

What a client sends with ``addArtifacts`` is found by the tasks of its own queries, but neither by
the process that plans a stream nor by that stream's tasks: they are started outside of the session
whose artifacts they are. So what is registered there holds the package as bytes, and what it sends
on, readers and partitions, travels inside of objects that do the same.

Rules.
- The classes are made inside a function: cloudpickle sends such a class by value, with the bytes.
- Nothing of ours is named in them but in an import inside a function, after `found`. A reader or a
  partition of ours is bytes within the pickle, which are read after `found` as well.
- Where the package can be imported already, that one is used.
- The bytes are unpacked into a directory that is the process's own and goes with it: a name
  that others can guess, in a directory that others can write to, would run their code.

Imports: nothing of ours before a class is used, then spark.source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType


def carrying(package: bytes) -> type[DataSource]:
    """`headrace.spark.source.DcpSource` with the zip of the package inside."""

    def found() -> None:
        """Put the package on the path if it is not there."""
        import importlib.util

        if importlib.util.find_spec("headrace") is not None:
            return
        import atexit
        import sys
        import tempfile
        from pathlib import Path

        directory = tempfile.TemporaryDirectory(prefix="headrace-")
        atexit.register(directory.cleanup)
        archive = Path(directory.name) / "headrace.zip"
        archive.write_bytes(package)
        sys.path.insert(0, str(archive))
        importlib.invalidate_caches()

    class Carried:
        """Something of ours that is pickled within a pickle."""

        def __init__(self, inner: object) -> None:
            self.inner = inner

        def __getstate__(self) -> bytes:
            return bytes(cloudpickle.dumps(self.inner))  # type: ignore[no-untyped-call]

        def __setstate__(self, state: bytes) -> None:
            found()
            self.inner = cloudpickle.loads(state)

    class CarriedPartition(Carried, InputPartition):
        """What one task reads."""

    class CarriedReader(Carried, DataSourceReader):
        """A reader of everything there is."""

        inner: DataSourceReader

        def partitions(self) -> Sequence[InputPartition]:
            return [CarriedPartition(part) for part in self.inner.partitions()]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            return self.inner.read(partition.inner)  # type: ignore[attr-defined]

    class CarriedStreamReader(Carried, DataSourceStreamReader, SupportsTriggerAvailableNow):
        """A reader of changes as they happen."""

        inner: DataSourceStreamReader

        def initialOffset(self) -> dict[str, object]:
            return self.inner.initialOffset()

        def getDefaultReadLimit(self) -> ReadLimit:
            return self.inner.getDefaultReadLimit()

        def prepareForTriggerAvailableNow(self) -> None:
            self.inner.prepareForTriggerAvailableNow()  # type: ignore[attr-defined]

        def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:
            return self.inner.latestOffset(start, limit)

        def reportLatestOffset(self) -> dict[str, object] | None:
            return self.inner.reportLatestOffset()

        def partitions(
            self, start: dict[str, object], end: dict[str, object]
        ) -> Sequence[InputPartition]:
            return [CarriedPartition(part) for part in self.inner.partitions(start, end)]

        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            return self.inner.read(partition.inner)  # type: ignore[attr-defined]

        def commit(self, end: dict[str, object]) -> None:
            self.inner.commit(end)

        def stop(self) -> None:
            self.inner.stop()

    class CarriedSource(DataSource):
        """A bucket as a source and a sink, wherever this lands."""

        @classmethod
        def name(cls) -> str:
            return "dcp"

        def schema(self) -> StructType | str:
            return self._source().schema()

        def reader(self, schema: StructType) -> DataSourceReader:
            return CarriedReader(self._source().reader(schema))

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return CarriedStreamReader(self._source().streamReader(schema))

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            return self._source().writer(schema, overwrite)

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
            return self._source().streamWriter(schema, overwrite)

        def _source(self) -> DataSource:
            found()
            from headrace.spark.source import DcpSource

            return DcpSource(self.options)

    return CarriedSource
