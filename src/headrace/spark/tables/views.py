"""How to read the tables: whole snapshots only, withdrawals obeyed, one instant per view.

Every view names the files of one version of one table, so it shows one committed turn, and a turn
holds whole snapshots only. `CHANGES_SQL` and `STATE_SQL` are the rules as SQL that Spark, DuckDB
and others understand; the functions put them on the right files for Spark, DuckDB, Polars and
Arrow.

    changes   every living change, in no order; add ``withdrawn=True`` for dead ones and rollbacks
    state     the latest living version of each key

A view is a moment's: ask for another one to see later turns. A `state` view stands on the turn of
`changes` that `StateTable.turn` tells.

Imports: errors, spark.tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.errors import StoreError
from headrace.spark.rows import ROLLBACK, sql_schema
from headrace.spark.tables.changes import ChangesTable, Published
from headrace.spark.tables.delta import PART
from headrace.spark.tables.state import StateTable, latest, living_rows

if TYPE_CHECKING:
    import duckdb
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

CHANGES: Final = "changes"
STATE: Final = "state"

CHANGES_SQL: Final = """
select c.* from {rows} c
where c.event <> 'rollback' and not exists (
  select 1 from {rows} r
  where r.event = 'rollback' and r.vbucket = c.vbucket and r.epoch > c.epoch and r.seqno < c.seqno)
"""
STATE_SQL: Final = """
select {columns} from (
  select *, row_number() over (
    partition by vbucket, collection_id, key order by epoch desc, seqno desc) as newest
  from {rows})
where newest = 1{living}
"""


def published(directory: Path | str) -> Published:
    """The vector of the last committed turn: vbucket -> branch, seqno, epoch."""
    return open_changes(directory).published()


def changes_files(directory: Path | str) -> list[str]:
    """The files of `changes` at its newest version, without those of positions."""
    table = open_changes(directory)
    return [str((table.path / file.path).resolve()) for file in table.row_files()]


def state_files(directory: Path | str) -> list[str]:
    """The files of `state` at its newest version, base and tails."""
    table = open_state(directory)
    return [str((table.path / file.path).resolve()) for file in table.table.files()]


def open_changes(directory: Path | str) -> ChangesTable:
    """The `changes` table of a directory; StoreError if there is none."""
    table = ChangesTable(Path(directory) / CHANGES)
    if not table.table.exists:
        raise StoreError(f"{directory} has no changes table; `headrace sync` makes one")
    return table


def open_state(directory: Path | str) -> StateTable:
    """The `state` table of a directory; StoreError if there is none."""
    table = StateTable(Path(directory) / STATE)
    if not table.exists:
        raise StoreError(f"{directory} has no state table; `headrace sync` makes one")
    return table


# -- Arrow -----------------------------------------------------------------------------------------


def arrow_changes(directory: Path | str, *, withdrawn: bool = False) -> pa.Table:
    """The living changes in memory."""
    table = open_changes(directory)
    rows = _read(changes_files(directory), _without_part(table.table.schema))
    if withdrawn:
        return rows
    found = _without_rolled_back(rows)
    return found.filter(pc.not_equal(found["event"], ROLLBACK))


def _without_rolled_back(rows: pa.Table) -> pa.Table:
    """Rows no rollback covers; drops of collections end no change, they are changes."""
    hidden = rows.set_column(
        rows.schema.get_field_index("system_event"),
        rows.schema.field("system_event"),
        pa.nulls(rows.num_rows, pa.int32()),
    )
    kept = living_rows(hidden.append_column("place", pa.array(range(rows.num_rows))))
    return rows.take(kept["place"])


def arrow_state(directory: Path | str, *, deleted: bool = False) -> pa.Table:
    """The living documents in memory."""
    table = open_state(directory).table
    rows = latest(_read(state_files(directory), _without_part(table.schema)))
    return rows if deleted else rows.filter(pc.invert(rows["deleted"]))


def _without_part(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if field.name != PART])


def _read(files: list[str], schema: pa.Schema) -> pa.Table:
    tables = [pq.read_table(path, schema=schema, partitioning=None) for path in files]
    return pa.concat_tables(tables) if tables else schema.empty_table()


# -- Spark -----------------------------------------------------------------------------------------


def spark_changes(
    spark: SparkSession, directory: Path | str, *, withdrawn: bool = False
) -> DataFrame:
    """The living changes as a DataFrame."""
    from pyspark.sql import functions as f

    files = changes_files(directory)
    if not files:
        return spark.createDataFrame([], f"turn bigint, {sql_schema()}")
    rows = spark.read.parquet(*files)
    if withdrawn:
        return rows
    ends = f.broadcast(
        rows.where(f.col("event") == ROLLBACK).select(
            f.col("vbucket").alias("end_vbucket"),
            f.col("epoch").alias("end_epoch"),
            f.col("seqno").alias("end_seqno"),
        )
    )
    covered = (
        (f.col("vbucket") == f.col("end_vbucket"))
        & (f.col("epoch") < f.col("end_epoch"))
        & (f.col("seqno") > f.col("end_seqno"))
    )
    return rows.where(f.col("event") != ROLLBACK).join(ends, covered, "left_anti")


def spark_state(spark: SparkSession, directory: Path | str, *, deleted: bool = False) -> DataFrame:
    """The living documents as a DataFrame."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    files = state_files(directory)
    if not files:
        return spark.createDataFrame([], _spark_schema(open_state(directory).table.schema))
    rows = spark.read.parquet(*files)
    newest = Window.partitionBy("vbucket", "collection_id", "key").orderBy(
        f.col("epoch").desc(), f.col("seqno").desc()
    )
    rows = rows.withColumn("newest", f.row_number().over(newest)).where("newest = 1")
    return (rows if deleted else rows.where("not deleted")).drop("newest")


def _spark_schema(schema: pa.Schema) -> str:
    names = {
        pa.int32(): "int",
        pa.int64(): "bigint",
        pa.string(): "string",
        pa.binary(): "binary",
        pa.bool_(): "boolean",
        pa.float64(): "double",
        pa.timestamp("us", tz="UTC"): "timestamp",
    }
    return ", ".join(f"{field.name} {names[field.type]}" for field in _without_part(schema))


# -- DuckDB and Polars -----------------------------------------------------------------------------


def duckdb_views(connection: duckdb.DuckDBPyConnection, directory: Path | str) -> None:
    """Make the views ``changes``, ``changes_withdrawn`` and, if it is kept, ``state``."""
    files = changes_files(directory)
    rows = _duckdb_rows(
        connection, "changes_withdrawn", files, open_changes(directory).table.schema
    )
    connection.execute(f"create or replace view changes as {CHANGES_SQL.format(rows=rows)}")
    if StateTable(Path(directory) / STATE).exists:
        schema = _without_part(open_state(directory).table.schema)
        rows = _duckdb_rows(connection, "state_rows", state_files(directory), schema)
        query = STATE_SQL.format(
            rows=rows, columns=", ".join(schema.names), living=" and not deleted"
        )
        connection.execute(f"create or replace view state as {query}")


def _duckdb_rows(
    connection: duckdb.DuckDBPyConnection, name: str, files: list[str], schema: pa.Schema
) -> str:
    if files:
        listed = ", ".join("'" + path.replace("'", "''") + "'" for path in files)
        source = f"select * from read_parquet([{listed}], hive_partitioning = false)"  # noqa: S608 - quoted above
    else:
        columns = ", ".join(f"null::{_duckdb_type(f.type)} as {f.name}" for f in schema)
        source = f"select {columns} where false"
    connection.execute(f"create or replace view {name} as {source}")
    return name


def _duckdb_type(kind: pa.DataType) -> str:
    names = {pa.string(): "varchar", pa.binary(): "blob", pa.float64(): "double"}
    if pa.types.is_timestamp(kind):
        return "timestamptz"
    return names.get(kind, {pa.int32(): "integer", pa.bool_(): "boolean"}.get(kind, "bigint"))


def polars_changes(directory: Path | str, *, withdrawn: bool = False) -> pl.LazyFrame:
    """The living changes as a LazyFrame."""
    import polars as pl

    files = changes_files(directory)
    schema = _without_part(open_changes(directory).table.schema)
    rows = _polars_rows(files, schema)
    if withdrawn:
        return rows
    ends = rows.filter(pl.col("event") == ROLLBACK).select(
        "vbucket", end_epoch=pl.col("epoch"), end_seqno=pl.col("seqno")
    )
    alive = rows.filter(pl.col("event") != ROLLBACK)
    place = ["vbucket", "epoch", "seqno"]
    dead = (
        alive.select(place)
        .join(ends, on="vbucket")
        .filter((pl.col("epoch") < pl.col("end_epoch")) & (pl.col("seqno") > pl.col("end_seqno")))
    )
    return alive.join(dead, on=place, how="anti")


def polars_state(directory: Path | str, *, deleted: bool = False) -> pl.LazyFrame:
    """The living documents as a LazyFrame."""
    import polars as pl

    schema = _without_part(open_state(directory).table.schema)
    rows = (
        _polars_rows(state_files(directory), schema)
        .sort("epoch", "seqno")
        .unique(["vbucket", "collection_id", "key"], keep="last", maintain_order=True)
    )
    return rows if deleted else rows.filter(~pl.col("deleted"))


def _polars_rows(files: list[str], schema: pa.Schema) -> pl.LazyFrame:
    import polars as pl

    if files:
        return pl.scan_parquet(files, hive_partitioning=False)
    empty = pl.from_arrow(schema.empty_table())
    assert isinstance(empty, pl.DataFrame)
    return empty.lazy()
