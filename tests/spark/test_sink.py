"""Frames into a bucket: upserts, deletes, changes; the same again changes nothing."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from headrace.errors import ConfigError
from headrace.spark.client_feed import ClientFactory
from headrace.spark.credentials import Credentials
from headrace.spark.feed import Rows, Span
from headrace.spark.positions import START
from headrace.spark.sink import Sink, sink_of
from headrace.testing import running_node
from tests.spark.conftest import numbered, url_of, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from headrace.testing import RunningNode


def contents(node: RunningNode) -> dict[str, bytes]:
    feed = ClientFactory(url_of(node))()
    spans = [Span(vb, START, high) for vb, high in feed.high_seqnos().items() if high]
    batches = [news.batch for news in feed.drain(spans) if isinstance(news, Rows)]
    feed.close()
    rows = [row for batch in batches for row in batch.to_pylist()]
    return {row["key"].decode(): row["value"] for row in rows if row["event"] == 1}


def test_rows_become_documents_and_keys_are_deleted(spark: SparkSession, node: RunningNode) -> None:
    frame = spark.sql("select concat('k', id) as key, id, id * 2 as twice from range(50)")
    for _ in range(2):
        frame.write.format("dcp").option("url", url_of(node)).mode("append").save()
    found = contents(node)
    assert len(found) == 50
    assert json.loads(found["k7"]) == {"id": 7, "twice": 14}
    gone = spark.sql("select concat('k', id) as name from range(10)")
    gone.write.format("dcp").option("url", url_of(node)).option("mode", "delete").option(
        "keyColumn", "name"
    ).mode("append").save()
    assert len(contents(node)) == 40


def test_a_bucket_is_copied_through_a_stream(
    spark: SparkSession, node: RunningNode, tmp_path: Path
) -> None:
    write(node, numbered(100))
    write(node, [(key, None) for key, _ in numbered(20)])
    write(node, numbered(30, prefix="more"))
    with running_node(vbuckets=4) as other:
        write(other, numbered(5))
        query = (
            spark.readStream.format("dcp")
            .option("url", url_of(node))
            .load()
            .writeStream.format("dcp")
            .option("url", url_of(other))
            .option("mode", "change")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
        assert query.exception() is None
        assert contents(other) == contents(node)


def sink(**fields: object) -> Sink:
    base: dict[str, object] = {
        "url": "u",
        "bucket": None,
        "credentials": Credentials(),
        "mode": "upsert",
        "key_column": "key",
        "value_column": None,
        "collection": None,
    }
    return Sink(**{**base, **fields})  # type: ignore[arg-type]


def test_what_json_has_no_form_for_is_text() -> None:
    row = {
        "key": "k",
        "time": datetime(2026, 1, 31, tzinfo=UTC),
        "amount": Decimal("1.50"),
        "raw": b"\x00\x01",
    }
    (document,) = sink().documents([pa.RecordBatch.from_pylist([row])], 0)
    assert json.loads(document.value or b"") == {
        "time": "2026-01-31T00:00:00+00:00",
        "amount": "1.50",
        "raw": "AAE=",
    }
    assert document.is_json


def test_of_changes_the_last_version_of_each_key_is_written() -> None:
    rows = [
        {
            "event": "mutation",
            "key": "a",
            "value": b"2",
            "epoch": 0,
            "seqno": 9,
            "expiry": 5,
            "flags": 3,
        },
        {
            "event": "mutation",
            "key": "a",
            "value": b"1",
            "epoch": 0,
            "seqno": 8,
            "expiry": 0,
            "flags": 0,
        },
        {
            "event": "deletion",
            "key": "b",
            "value": None,
            "epoch": 1,
            "seqno": 2,
            "expiry": None,
            "flags": None,
        },
        {
            "event": "mutation",
            "key": "b",
            "value": b"x",
            "epoch": 0,
            "seqno": 7,
            "expiry": 0,
            "flags": 0,
        },
        {
            "event": "rollback",
            "key": "",
            "value": b"{}",
            "epoch": 1,
            "seqno": 1,
            "expiry": None,
            "flags": None,
        },
    ]
    found = list(sink(mode="change").documents([pa.RecordBatch.from_pylist(rows)], 4))
    assert [(one.key, one.value, one.expiry, one.flags) for one in found] == [
        (b"a", b"2", 5, 3),
        (b"b", None, 0, 0),
    ]
    assert {one.collection_id for one in found} == {4}


def test_a_key_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="a key is None"):
        list(sink().documents([pa.RecordBatch.from_pylist([{"key": None, "a": 1}])], 0))


@pytest.mark.parametrize(
    ("options", "overwrite", "complaint"),
    [
        ({"url": "u"}, True, "cannot be overwritten"),
        ({}, False, "option url is missing"),
        ({"url": "u", "mode": "merge"}, False, "allowed: upsert, delete, change"),
        ({"url": "u", "keyColumn": "id"}, False, "no column id"),
        ({"url": "u", "mode": "change"}, False, "no column event"),
        ({"url": "u", "valueColumn": "body"}, False, "no column body"),
    ],
)
def test_what_does_not_fit_is_refused(
    options: dict[str, str], overwrite: bool, complaint: str
) -> None:
    schema = StructType().add("key", "string").add("value", "string")
    with pytest.raises(ConfigError, match=complaint):
        sink_of(options, schema, overwrite=overwrite)
