"""`format("dcp")` in Spark, against a node."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from headrace.errors import ConfigError
from headrace.spark.options import SourceOptions
from headrace.spark.source import DcpSource, factory_of
from tests.spark.conftest import numbered, url_of, write
from tests.spark.worlds import state_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from headrace.testing import RunningNode

BATCHES_SECONDS_MAX = 60


def read(spark: SparkSession, node: RunningNode, **options: str) -> DataFrame:
    return spark.read.format("dcp").option("url", url_of(node)).options(**options).load()


def test_a_batch_read_has_every_document_in_every_form(
    spark: SparkSession, node: RunningNode
) -> None:
    write(node, [*numbered(300), ("text", b"not json"), ("gone", b"x")])
    write(node, [("gone", None)])
    rows = read(spark, node).collect()
    assert len(rows) == 302
    assert {row.event for row in rows} == {"mutation", "deletion"}
    texts = read(spark, node, values="string").where("key = 'text'").collect()
    assert texts[0].value == "not json"
    parsed = read(spark, node, values="json", columns="n:bigint,version:bigint")
    assert parsed.selectExpr("sum(value.n)").first()[0] == sum(range(300))  # type: ignore[index]
    (bad,) = parsed.where("bad_record is not null").collect()
    assert bad.key == "text"
    keys = read(spark, node, values="none", keyPrefix="doc-", partitions="3")
    assert "value" not in keys.columns
    assert keys.count() == 300


def test_an_empty_bucket_is_an_empty_frame(spark: SparkSession, node: RunningNode) -> None:
    assert read(spark, node).count() == 0


def test_a_stream_runs_to_what_there_is_and_goes_on_from_its_checkpoint(
    spark: SparkSession, node: RunningNode, tmp_path: Path
) -> None:
    write(node, numbered(200))
    rows: list[dict] = []  # type: ignore[type-arg]

    def take(batch: DataFrame, number: int) -> None:
        del number
        rows.extend(row.asDict() for row in batch.collect())

    def run() -> None:
        query = (
            spark.readStream.format("dcp")
            .option("url", url_of(node))
            .option("pollSeconds", "0.05")
            .load()
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(BATCHES_SECONDS_MAX)
        assert query.exception() is None
        assert not query.isActive

    run()
    assert len(rows) == 200
    write(node, numbered(30, version=1))
    node.faults.failover(vbucket=2, lose=12)
    run()
    assert len([row for row in rows if row["event"] == "rollback"]) == 1
    expected = {row.key: bytes(row.value) for row in read(spark, node).collect()}
    assert {key: value.encode() for (_, key), value in state_of(rows).items()} == expected


def test_a_running_stream_sees_what_happens_and_its_lag(
    spark: SparkSession, node: RunningNode, tmp_path: Path
) -> None:
    rows: list[str] = []

    def take(batch: DataFrame, number: int) -> None:
        del number
        rows.extend(row.key for row in batch.collect())

    query = (
        spark.readStream.format("dcp")
        .option("url", url_of(node))
        .option("start", "now")
        .option("pollSeconds", "0.1")
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        deadline = time.monotonic() + BATCHES_SECONDS_MAX
        while not query.recentProgress and time.monotonic() < deadline:
            time.sleep(0.1)
        write(node, numbered(20))
        while len(rows) < 20 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert sorted(rows) == sorted(key for key, _ in numbered(20))
        latest = query.recentProgress[-1].sources[0].latestOffset
        assert "lag" in str(latest)
    finally:
        query.stop()


def test_a_wrong_option_is_a_sentence_in_sparks_error(spark: SparkSession) -> None:
    with pytest.raises(Exception, match="option colour is unknown"):
        spark.read.format("dcp").option("url", "x").option("colour", "red").load()


def test_the_factory_has_what_the_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_PASSWORD", "secret")
    given = {"url": "u", "user": "me", "events": "system,mutation", "values": "none"}
    factory = factory_of(SourceOptions.of(given))
    assert (factory.user, factory.password) == ("me", "secret")
    assert factory.kinds == ("mutation", "system_event")
    assert factory.no_value


def test_the_source_knows_its_name_and_its_columns() -> None:
    assert DcpSource.name() == "dcp"
    assert (
        "bad_record string"
        in DcpSource({"url": "u", "values": "json", "columns": "a:bigint"}).schema()
    )
    with pytest.raises(ConfigError):
        DcpSource({}).schema()
