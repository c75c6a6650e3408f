"""How many documents of each kind change per minute, from a change stream.

    python examples/windowed_analytics.py couchbase://127.0.0.1:11210/default CHECKPOINT_DIR

Documents are JSON with a field ``kind``. The stream runs to what there is now and stops; run it
again with the same directory and it goes on from there. Leave out ``availableNow`` to let it run.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from headrace.spark.session import session


def changes_per_minute(spark: SparkSession, url: str, checkpoint: str) -> list[tuple[str, int]]:
    """The number of changes of each kind, over all windows, as (kind, count)."""
    changes = (
        spark.readStream.format("dcp")
        .option("url", url)
        .option("values", "json")
        .option("columns", "kind:string")
        .load()
    )
    counted = (
        changes.where("event = 'mutation'")
        # A tail may be read twice after a crash; branch and seqno name a change for ever.
        .withWatermark("event_time", "10 minutes")
        .dropDuplicatesWithinWatermark(["vbucket", "branch", "seqno"])
        .groupBy(f.window("event_time", "1 minute"), f.col("value.kind").alias("kind"))
        .count()
    )
    query = (
        counted.writeStream.format("memory")
        .queryName("changes_per_minute")
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    # A window appears once for every batch that moved it; its last number is its greatest.
    rows = spark.sql(
        "select kind, sum(n) as n from (select kind, window, max(count) as n "
        "from changes_per_minute group by kind, window) group by kind order by kind"
    )
    return [(row["kind"], row["n"]) for row in rows.collect()]


if __name__ == "__main__":
    for kind, count in changes_per_minute(session("windowed analytics"), *sys.argv[1:3]):
        sys.stdout.write(f"{kind}: {count}\n")
