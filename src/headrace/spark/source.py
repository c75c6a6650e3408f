"""`format("dcp")`: change streams as DataFrames, and DataFrames as documents.

    spark.read.format("dcp").option("url", "couchbase://127.0.0.1/default").load()
    spark.readStream.format("dcp").option("url", ...).option("start", "now").load()
    df.write.format("dcp").option("url", ...).mode("append").save()

Options: `headrace.spark.options.OPTIONS`. Columns: `headrace.spark.rows.ROW_COLUMNS`.

Spark imports this module in processes that have ten seconds to start: what is heavy is imported
where it is used.

Imports: spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from headrace.spark.client_feed import ClientFactory
    from headrace.spark.options import SourceOptions


class DcpSource(DataSource):
    """A bucket as a source and a sink."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "dcp"

    def schema(self) -> str:
        """The columns of the rows, as the options want the values."""
        from headrace.spark.value_columns import query_schema

        options = self._options()
        return query_schema(options.values, options.flattening)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of everything there is."""
        from headrace.spark.readers import BatchReader

        del schema
        options = self._options()
        return BatchReader(options, factory_of(options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """A reader of changes as they happen."""
        from headrace.spark.readers import StreamReader

        del schema
        options = self._options()
        return StreamReader(options, factory_of(options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer of documents."""
        from headrace.spark.sink import BatchWriter, sink_of

        return BatchWriter(sink_of(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """A writer of documents, batch after batch."""
        from headrace.spark.sink import StreamWriter, sink_of

        return StreamWriter(sink_of(self.options, schema, overwrite=overwrite))

    def _options(self) -> SourceOptions:
        from headrace.spark.options import SourceOptions

        return SourceOptions.of(self.options)


def factory_of(options: SourceOptions) -> ClientFactory:
    """How tasks open the source."""
    from headrace.spark.client_feed import ClientFactory
    from headrace.spark.credentials import find_credentials
    from headrace.spark.options import Values

    found = find_credentials(user=options.user, file=options.credentials_file)
    kinds = {"system": "system_event"}
    return ClientFactory(
        options.url,
        options.bucket,
        found.user,
        found.password,
        collections=options.collections,
        scope=options.scope,
        key_prefix=options.key_prefix,
        kinds=tuple(sorted(kinds.get(event, event) for event in options.events)),
        no_value=options.values is Values.NONE,
        patience_seconds=options.patience_seconds,
    )
