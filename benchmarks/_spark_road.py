"""One road of the Spark benchmark in a process, and so in a JVM, of its own.

`python -m benchmarks._spark_road ROAD URL PATH CORES`: says 0 when it is ready, then goes the road
once for every line it reads and answers with the seconds it took; for the line ``tidy`` it removes
what it left. A JVM compiles what it has seen: one that
has read columns of Parquet and columns of Arrow pays for both with every row, and nobody's job
reads both.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def main(road: str, url: str, path: str, cores: str) -> None:
    """Go the road as often as asked."""
    from benchmarks import spark as b
    from headrace.spark.client_feed import ClientFactory

    factory, spark = ClientFactory(url), b.session_on(int(cores))
    roads: dict[str, Callable[[], object]] = {
        "landing": lambda: b.land(factory, spark),
        "rowpath": lambda: b.row_path(spark, factory).write.mode("overwrite").parquet(path),
        "rows": lambda: b.to_nowhere(b.row_path(spark, factory)),
        "parquet": lambda: b.to_nowhere(spark.read.parquet(path)),
    }
    answer(0.0)
    for line in sys.stdin:
        began = time.perf_counter()
        if line.strip() == "tidy":
            b.tidy()
        else:
            roads[road]()
        answer(time.perf_counter() - began)


def answer(seconds: float) -> None:
    """Tell whoever asked."""
    sys.stdout.write(f"{seconds}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
