"""The session: defaults that suit change streams, and the caller's word over them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from headrace.spark.session import (
    is_connect,
    is_one_process,
    packed,
    settings_for,
    with_retries,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_a_local_session_binds_to_the_loopback_and_a_cluster_does_not() -> None:
    assert settings_for("local[2]", {})["spark.driver.host"] == "127.0.0.1"
    assert "spark.driver.host" not in settings_for("spark://host:7077", {})


def test_the_callers_settings_win() -> None:
    assert settings_for("local", {"spark.ui.enabled": "true"})["spark.ui.enabled"] == "true"


@pytest.mark.parametrize(
    ("master", "used"),
    [
        ("local", "local[1,4]"),
        ("local[*]", "local[*,4]"),
        ("local[2]", "local[2,4]"),
        ("local[2,1]", "local[2,1]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_a_task_that_fails_is_tried_again_on_one_machine_too(master: str, used: str) -> None:
    assert with_retries(master) == used


def test_executors_of_their_own_need_the_package_sent() -> None:
    masters = ["local", "local[2]", "local-cluster[2,1,1024]", "spark://host:7077", "yarn"]
    assert [is_one_process(master) for master in masters] == [True, True, False, False, False]


def test_an_address_of_spark_connect_is_known_by_its_scheme() -> None:
    masters = ["sc://127.0.0.1:15002", "local[2]", "spark://host:7077"]
    assert [is_connect(master) for master in masters] == [True, False, False]


def test_the_format_is_known_and_workers_run_our_interpreter(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    (program,) = spark.sparkContext.parallelize([0], 1).map(_interpreter).collect()
    assert program == sys.executable
    schema = spark.read.format("dcp").option("url", "couchbase://nowhere/b").load().schema
    assert schema.names[:3] == ["vbucket", "epoch", "seqno"]


def _interpreter(_: int) -> str:
    return sys.executable


def test_the_package_travels_as_a_zip_that_can_be_imported(tmp_path: Path) -> None:
    archive = packed(tmp_path)
    names = zipfile.ZipFile(archive).namelist()
    assert "headrace/spark/landing.py" in names
    script = "import headrace.spark.positions as p; print(p.__file__)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(archive)!r}); {script}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert str(archive) in done.stdout, done.stderr
