"""The examples do what they say, on a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from examples.bucket_copy import copy
from examples.slowly_changing_dimension import dimension
from examples.windowed_analytics import changes_per_minute
from headrace.client.bucket import connect
from headrace.testing import running_node
from tests.spark.conftest import spark, url_of, write

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["spark"]

pytestmark = pytest.mark.timeout(180)


def test_changes_are_counted_per_window_and_once(spark: SparkSession, tmp_path: Path) -> None:
    with running_node(vbuckets=4) as node:
        documents = [
            (f"k{number}", b'{"kind": "%s"}' % (b"odd" if number % 2 else b"even"))
            for number in range(31)
        ]
        write(node, documents)
        found = changes_per_minute(spark, url_of(node), str(tmp_path / "checkpoint"))
    assert dict(found) == {"even": 16, "odd": 15}


def test_every_version_has_its_time(spark: SparkSession, tmp_path: Path) -> None:
    with running_node(vbuckets=4) as node:
        for value in (b"one", b"two"):
            write(node, [("a", value), ("b", value)])
            dimension(spark, url_of(node), str(tmp_path))
        write(node, [("b", None)])
        rows = dimension(spark, url_of(node), str(tmp_path)).orderBy("key", "version").collect()
    assert [(row.key, row.version, row.value) for row in rows] == [
        ("a", 1, "one"),
        ("a", 2, "two"),
        ("b", 1, "one"),
        ("b", 2, "two"),
    ]
    assert rows[0].valid_to == rows[1].valid_from
    assert rows[1].valid_to is None
    assert rows[3].valid_to is not None, "the deletion ended it"


def test_a_bucket_is_copied_and_kept_so(spark: SparkSession, tmp_path: Path) -> None:
    with running_node(vbuckets=4) as source, running_node(vbuckets=8) as target:
        write(source, [(f"k{number}", b"v%d" % number) for number in range(40)])
        copy(spark, url_of(source), url_of(target), str(tmp_path / "checkpoint"))
        write(source, [("k1", None), ("k2", b"changed")])
        copy(spark, url_of(source), url_of(target), str(tmp_path / "checkpoint"))
        assert documents_of(url_of(target)) == documents_of(url_of(source))
        assert len(documents_of(url_of(target))) == 39


def documents_of(url: str) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    with connect(url) as bucket:
        for batch in bucket.changes(until="now"):
            for row in batch.to_pylist():
                if row["event"] == 1:
                    found[row["key"]] = row["value"]
    return found
