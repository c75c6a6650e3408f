"""Merging into a user's own table: the statements, and the rows they are given.

Plain Spark has no table that knows MERGE INTO; what the statements mean is tried in DuckDB, which
has one and is strict about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
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

if TYPE_CHECKING:
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
