"""Python in the docs that needs tables or Spark, and the notebook's last part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.spark.client_feed import ClientFactory
from headrace.spark.jobs import LocalRunner
from headrace.spark.sync import Sync
from headrace.testing import running_node
from tests.spark.conftest import spark
from tests.test_docs_python import fill, run, run_notebook, runnable

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["spark"]

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("name", runnable("tables"))
def test_what_needs_tables_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with running_node(vbuckets=4) as node:
        url = f"{node.connection_string}/default"
        fill(url)
        sync = Sync(ClientFactory(url), "tables", LocalRunner())
        list(sync.once())
        sync.close()
    run(name, "tables")


@pytest.mark.parametrize("name", runnable("spark"))
def test_what_needs_spark_runs(
    name: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run(name, "spark")
    assert spark.version


def test_the_notebook_runs_with_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    space = run_notebook({"__name__": "notebook"})
    assert space["spark"] is not None
    assert spark.version
