"""One bucket into another, and kept so.

    python examples/bucket_copy.py couchbase://a/default couchbase://b/default CHECKPOINT_DIR

Changes are read as a stream and written as they come: mutations with their flags and expiry,
deletions as deletions. Run it again with the same directory and only what changed since is copied.
A failover of the source that loses changes leaves those in the target: where the target must follow
rollbacks, keep tables with `headrace sync` and copy from those.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from headrace.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def copy(spark: SparkSession, source: str, target: str, checkpoint: str) -> None:
    """Bring the target to where the source is now."""
    query = (
        spark.readStream.format("dcp")
        .option("url", source)
        .load()
        .writeStream.format("dcp")
        .option("url", target)
        .option("mode", "change")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    copy(session("bucket copy"), *sys.argv[1:4])
