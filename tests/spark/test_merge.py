"""Merging into a user's own table: the statements, and the rows they are given.

Plain Spark has no table that knows MERGE INTO; what the statements mean is tried in DuckDB, which
has one and is strict about it. Where there is a Delta for this Spark (`DELTA`), the whole adapter
is tried on a Delta table, with jars that Maven fetches by name: `make older`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import duckdb
import pyspark
import pytest

from headrace.errors import ConfigError
from headrace.spark.merge import (
    VIEW,
    MergeInto,
    delete_statement,
    latest_rows,
    merge_statement,
    unique_rows,
)
from headrace.spark.rows import sql_schema
from tests.spark.conftest import SOURCE

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ["vbucket", "collection_id", "key", "epoch", "seqno", "branch", "value", "deleted"]


def frame(spark: SparkSession, *rows: tuple[int, int, int, str, str, str]) -> DataFrame:
    """A batch from (vbucket, epoch, seqno, event, key, value)."""
    found: list[dict[str, Any]] = [
        {
            "vbucket": vb,
            "epoch": epoch,
            "seqno": seqno,
            "branch": 7 + epoch,
            "event": event,
            "key": key,
            "value": value.encode(),
        }
        for vb, epoch, seqno, event, key, value in rows
    ]
    return spark.createDataFrame(found, sql_schema())


def test_the_last_version_of_each_key_is_merged_and_deletions_are_marked(
    spark: SparkSession,
) -> None:
    batch = frame(
        spark,
        (0, 0, 9, "mutation", "a", "dead"),
        (0, 1, 4, "rollback", "", ""),
        (0, 1, 5, "mutation", "a", "alive"),
        (1, 0, 2, "mutation", "b", "x"),
        (1, 0, 3, "deletion", "b", ""),
    )
    rows = {row.key: (bytes(row.value), row.deleted) for row in latest_rows(batch).collect()}
    assert rows == {"a": (b"alive", False), "b": (b"", True)}


def test_a_repeated_tail_is_known_by_its_branch(spark: SparkSession) -> None:
    batch = frame(spark, (0, 0, 5, "mutation", "a", "x"), (0, 0, 5, "mutation", "a", "x"))
    assert unique_rows(batch).count() == 1


def test_newer_rows_win_older_ones_do_not_and_again_changes_nothing() -> None:
    target = duckdb.connect()
    target.execute(
        "create table t (vbucket int, collection_id bigint, key text, epoch bigint, seqno bigint, "
        "branch bigint, value text, deleted boolean)"
    )

    def merge(*rows: tuple[object, ...]) -> None:
        target.execute("create or replace temp table s as select * from t limit 0")
        target.executemany("insert into s values (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        # DuckDB writes Spark's null-safe equality in words, and sets without the alias.
        text = (
            merge_statement("t", COLUMNS)
            .replace("<=>", "IS NOT DISTINCT FROM")
            .replace(f"{VIEW} s", "s")
        )
        target.execute(text.replace("UPDATE SET t.", "UPDATE SET ").replace(", t.", ", "))

    merge((0, None, "a", 0, 5, 1, "five", False), (0, 8, "a", 0, 6, 1, "other", False))
    merge((0, None, "a", 0, 4, 1, "late", False))
    for _ in range(2):
        merge((0, None, "a", 0, 7, 1, "seven", False))
    rows = target.execute("select collection_id, value from t order by seqno").fetchall()
    assert rows == [(8, "other"), (None, "seven")]
    merge((0, None, "a", 1, 2, 2, "new epoch", False))
    target.execute(delete_statement("t", 0, 1, 5))
    rows = target.execute("select value from t").fetchall()
    assert rows == [("new epoch",)], "what the rollback withdrew is gone"


def test_a_rollback_without_history_stops_before_the_target_is_touched(
    spark: SparkSession,
) -> None:
    batch = frame(spark, (3, 1, 4, "rollback", "", ""))
    with pytest.raises(ConfigError, match=r"vbuckets \[3\] were rolled back"):
        MergeInto("nowhere.t")(batch, 0)


@pytest.mark.parametrize("name", ["", "t; drop table u", "t where 1=1", "a b"])
def test_a_name_that_is_more_than_a_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="expected a name"):
        MergeInto(name)


DELTA = {"4.2": ("io.delta:delta-spark_4.2_2.13:4.4.0", "io.delta:delta-storage:4.4.0")}
"""Spark -> the jars of Delta for it, by their names in Maven's repository."""
FETCHES_MAX = 3

REAL_MERGE = """
import sys
from headrace.spark.merge import MergeInto
from headrace.spark.rows import sql_schema
from headrace.spark.session import session
place, jars = sys.argv[1:]
spark = session(master="local[1]", settings={
    "spark.jars": jars,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.warehouse.dir": place,
})
spark.sql(f"create table t ({sql_schema()}, deleted boolean) using delta")

def frame(*rows):
    names = ("vbucket", "epoch", "seqno", "event", "key", "value")
    found = [{**dict(zip(names, row)), "branch": 7, "value": row[5].encode()} for row in rows]
    return spark.createDataFrame(found, sql_schema())

history = frame((0, 0, 1, "mutation", "a", "one"), (0, 0, 2, "mutation", "b", "kept"))
into = MergeInto("t", history=lambda vbuckets: history)
first = [(0, 0, 1, "mutation", "a", "one"), (0, 0, 2, "mutation", "b", "kept"),
         (0, 0, 5, "mutation", "b", "dead"), (1, 0, 1, "mutation", "c", "gone")]
for _ in range(2):
    into(frame(*first), 0)
into(frame((1, 0, 2, "deletion", "c", "")), 1)
for _ in range(2):
    into(frame((0, 1, 4, "rollback", "", ""), (0, 1, 5, "mutation", "a", "new")), 2)
rows = spark.sql("select key, cast(value as string) v, deleted from t order by key").collect()
print("RESULT", [(row.key, row.v, row.deleted) for row in rows])
spark.stop()
"""


def fetched(name: str, directory: Path) -> Path:
    """A jar by its name; skips where Maven or its repository is not to be had."""
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip("Maven is not installed: no jars of Delta")
    words = [f"-Dartifact={name}", f"-DoutputDirectory={directory}"]
    command = [maven, "-q", "-B", "dependency:copy", *words]
    _, artifact, version = name.split(":")
    jar = directory / f"{artifact}-{version}.jar"
    for _ in range(FETCHES_MAX):
        told = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if jar.exists():
            return jar
    pytest.skip(f"{name} cannot be fetched here: {told.stdout[-500:]}")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_adapter_keeps_a_real_delta_table_right_through_a_rollback(tmp_path: Path) -> None:
    names = DELTA.get(".".join(pyspark.__version__.split(".")[:2]))
    if names is None:
        pytest.skip(f"no Delta is known for Spark {pyspark.__version__}; known: {sorted(DELTA)}")
    jars = ",".join(str(fetched(name, tmp_path)) for name in names)
    done = subprocess.run(
        [sys.executable, "-c", REAL_MERGE, str(tmp_path / "lake"), jars],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
    )
    expected = [("a", "new", False), ("b", "kept", False), ("c", "", True)]
    assert f"RESULT {expected}" in done.stdout, done.stderr[-4000:]
