"""Every version of every document with the time it was valid (a dimension of type 2).

    python examples/slowly_changing_dimension.py couchbase://127.0.0.1:11210/default TABLE_DIR

The tables are brought up to date first; then the `changes` table, which holds every version that
was streamed, becomes one row per version with ``valid_from`` and ``valid_to``. Versions that a
rollback withdrew are not in it. The result is written as Parquet to TABLE_DIR/dimension.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from headrace.spark.client_feed import ClientFactory
from headrace.spark.jobs import SparkRunner
from headrace.spark.session import session
from headrace.spark.sync import Sync
from headrace.spark.tables.views import spark_changes


def dimension(spark: SparkSession, url: str, directory: str) -> DataFrame:
    """One row per version; the one that is current has no ``valid_to``."""
    sync = Sync(ClientFactory(url), directory, SparkRunner(spark))
    for turn in sync.once():
        sys.stderr.write(f"turn {turn.number}: {turn.rows} rows, lag {turn.lag}\n")
    sync.close()
    versions = Window.partitionBy("vbucket", "collection_id", "key").orderBy("epoch", "seqno")
    return (
        spark_changes(spark, directory)
        .where("event in ('mutation', 'deletion', 'expiration')")
        .withColumn("valid_from", f.col("event_time"))
        .withColumn("valid_to", f.lead("event_time").over(versions))
        .withColumn("version", f.row_number().over(versions))
        # A deletion ends the version before it and is none itself.
        .where("event = 'mutation'")
        .select("key", "version", "valid_from", "valid_to", f.col("value").cast("string"))
    )


if __name__ == "__main__":
    table = dimension(session("slowly changing dimension"), *sys.argv[1:3])
    target = str(Path(sys.argv[2]) / "dimension")
    table.write.mode("overwrite").parquet(target)
    sys.stdout.write(f"{target}\n")
