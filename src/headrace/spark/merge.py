"""Into a table of the user's own: one `foreachBatch` function that merges changes and rollbacks.

For tables of a Delta- or Iceberg-enabled Spark, which know MERGE INTO. The target needs the columns
``vbucket``, ``collection_id``, ``key``, ``epoch``, ``seqno``, ``branch`` and ``deleted``, and any
others of the rows. It holds the latest living version of each key; deleted keys stay as rows with
``deleted`` true, since a row that is gone could not tell a late older version from a new one.

Rules.
- Of each key the row with the greatest (epoch, seqno) is merged, and only over a smaller one: a
  batch that is read again changes nothing.
- A rollback deletes what it withdraws from the target first. The version before it is not in the
  target; the rows of the living history that follow bring every key that changed above the
  boundary, and a key that lived on below it comes from ``history``: a function that gives the
  living changes of the vbuckets rolled back (for example
  `headrace.spark.tables.views.spark_changes`), or, without one, by streaming those vbuckets again
  from the beginning, which is for the caller to do: `MergeInto` then raises before it touches the
  target.

Imports: errors, spark.rows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError
from headrace.spark.rows import DELETION, EXPIRATION, MUTATION, ROLLBACK

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

NAME: Final = re.compile(r"[\w.`-]+")
KEY: Final = ("vbucket", "collection_id", "key")
PLACE: Final = ("epoch", "seqno")
VIEW: Final = "headrace_changes"


def latest_rows(batch: DataFrame) -> DataFrame:
    """The last version of each document in a batch, with ``deleted``."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    newest = Window.partitionBy(*KEY).orderBy(*(f.col(name).desc() for name in PLACE))
    return (
        batch.where(f.col("event").isin(MUTATION, DELETION, EXPIRATION))
        .withColumn("newest", f.row_number().over(newest))
        .where("newest = 1")
        .drop("newest")
        .withColumn("deleted", f.col("event") != MUTATION)
    )


def unique_rows(batch: DataFrame) -> DataFrame:
    """A batch without the tail it may repeat: (vbucket, branch, seqno) names a change for ever."""
    return batch.dropDuplicates(["vbucket", "branch", "seqno", "event"])


@dataclass(frozen=True)
class MergeInto:
    """A function for ``foreachBatch``.

    ``table`` is the target's name. ``history`` gives the living changes of some vbuckets.
    """

    table: str
    history: Callable[[list[int]], DataFrame] | None = None

    def __post_init__(self) -> None:
        """Refuse a name that is more than a name: it becomes part of a statement."""
        if not NAME.fullmatch(self.table):
            raise ConfigError(f"table is {self.table!r}, expected a name such as lake.db.documents")

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Merge one micro-batch."""
        from pyspark.sql import functions as f

        del number
        spark = batch.sparkSession
        batch = batch.persist()
        try:
            ends = batch.where(f.col("event") == ROLLBACK).select("vbucket", *PLACE).collect()
            rows = batch
            if ends:
                rows = self._with_history(batch, sorted({int(end.vbucket) for end in ends}))
            for end in ends:
                spark.sql(delete_statement(self.table, end.vbucket, end.epoch, end.seqno))
            merged = latest_rows(rows)
            merged.createOrReplaceTempView(VIEW)
            spark.sql(merge_statement(self.table, merged.columns))
        finally:
            batch.unpersist()

    def _with_history(self, batch: DataFrame, vbuckets: list[int]) -> DataFrame:
        if self.history is None:
            raise ConfigError(
                f"vbuckets {vbuckets} were rolled back and MergeInto has no history to put back "
                "what lived before; give one, or stream these vbuckets again from the beginning"
            )
        return batch.unionByName(self.history(vbuckets), allowMissingColumns=True)


def delete_statement(table: str, vbucket: int, epoch: int, seqno: int) -> str:
    """What a rollback withdraws."""
    withdrawn = f"vbucket = {int(vbucket)} AND epoch < {int(epoch)} AND seqno > {int(seqno)}"
    return f"DELETE FROM {table} WHERE {withdrawn}"  # noqa: S608 - a checked name and numbers


def merge_statement(table: str, columns: list[str]) -> str:
    """The merge of the newest rows over older ones."""
    same = " AND ".join(f"t.{name} <=> s.{name}" for name in KEY)
    newer = "(s.epoch > t.epoch OR (s.epoch = t.epoch AND s.seqno > t.seqno))"
    sets = ", ".join(f"t.{name} = s.{name}" for name in columns)
    names, values = ", ".join(columns), ", ".join(f"s.{name}" for name in columns)
    update = f"WHEN MATCHED AND {newer} THEN UPDATE SET {sets}"
    insert = f"WHEN NOT MATCHED THEN INSERT ({names}) VALUES ({values})"  # noqa: S608 - columns
    return f"MERGE INTO {table} t USING {VIEW} s ON {same} {update} {insert}"
