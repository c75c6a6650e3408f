"""Spark, DuckDB, Polars and Arrow read the tables and agree."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from headrace.errors import StoreError
from headrace.spark.jobs import LocalRunner
from headrace.spark.sync import Sync, SyncOptions
from headrace.spark.tables import views
from tests.spark.producer import InMemory, Producer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession


def grown(path: Path) -> Producer:
    producer = Producer.with_vbuckets(4)
    sync = Sync(InMemory(producer), path, LocalRunner(), SyncOptions(parts=2))
    draw = random.Random(11)
    for turn in range(6):
        for _ in range(30):
            vb = draw.randrange(4)
            if draw.random() < 0.25:
                producer.delete(vb, draw.choice("abcdefgh"))
            else:
                producer.put(vb, draw.choice("abcdefgh"), f"{draw.random()}")
        list(sync.once())
        if turn in (2, 4):
            producer.fail_over(turn - 1, producer.histories[turn - 1].high - 5)
    list(sync.once())
    return producer


def documents(rows: Iterable[dict[str, Any]]) -> dict[tuple[int, str], str]:
    return {(row["vbucket"], row["key"]): bytes(row["value"]).decode() for row in rows}


def places(rows: Iterable[dict[str, Any]]) -> list[tuple[int, int, int]]:
    return sorted((row["vbucket"], row["epoch"], row["seqno"]) for row in rows)


def rows_of(connection: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    found = connection.execute(query)
    names = [column[0] for column in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def test_every_engine_sees_the_same(spark: SparkSession, tmp_path: Path) -> None:
    producer = grown(tmp_path)
    connection = duckdb.connect()
    views.duckdb_views(connection, tmp_path)
    states = {
        "arrow": views.arrow_state(tmp_path).to_pylist(),
        "duckdb": rows_of(connection, "select vbucket, key, value from state"),
        "polars": views.polars_state(tmp_path).collect().to_dicts(),
        "spark": [row.asDict() for row in views.spark_state(spark, tmp_path).collect()],
    }
    for engine, rows in states.items():
        assert documents(rows) == producer.state(), engine
        assert len(rows) == len(producer.state()), engine
    place = "vbucket, epoch, seqno"
    changes = {
        "duckdb": rows_of(connection, f"select {place} from changes"),  # noqa: S608 - a constant
        "polars": views.polars_changes(tmp_path).collect().to_dicts(),
        "spark": [row.asDict() for row in views.spark_changes(spark, tmp_path).collect()],
    }
    expected = places(views.arrow_changes(tmp_path).to_pylist())
    for engine, rows in changes.items():
        assert places(rows) == expected, engine
    everything = len(views.arrow_changes(tmp_path, withdrawn=True))
    assert everything > len(expected)
    assert views.spark_changes(spark, tmp_path, withdrawn=True).count() == everything
    assert views.polars_changes(tmp_path, withdrawn=True).collect().height == everything


def test_tables_without_rows_have_their_columns(spark: SparkSession, tmp_path: Path) -> None:
    producer = Producer.with_vbuckets(2)
    sync = Sync(InMemory(producer), tmp_path, LocalRunner(), SyncOptions(parts=2))
    list(sync.once())
    sync.state.create(SyncOptions().state)  # type: ignore[arg-type]
    connection = duckdb.connect()
    views.duckdb_views(connection, tmp_path)
    assert rows_of(connection, "select key, value from state") == []
    assert rows_of(connection, "select key from changes") == []
    assert "key" in views.spark_state(spark, tmp_path).columns
    assert "key" in views.spark_changes(spark, tmp_path).columns
    assert views.polars_state(tmp_path).collect().height == 0
    assert views.polars_changes(tmp_path).collect().height == 0
    assert views.arrow_state(tmp_path).num_rows == 0


def test_the_published_vector_is_that_of_the_rows(tmp_path: Path) -> None:
    producer = grown(tmp_path)
    published = views.published(tmp_path)
    assert {vb: one.seqno for vb, one in published.vector.items()} == {
        vb: history.high for vb, history in producer.histories.items()
    }
    assert {vb: one.branch for vb, one in published.vector.items()} == {
        vb: history.log.newest.uuid for vb, history in producer.histories.items()
    }


def test_a_directory_without_tables_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="`headrace sync` makes one"):
        views.arrow_changes(tmp_path)
    with pytest.raises(StoreError, match="no state table"):
        views.arrow_state(tmp_path)
