"""A Spark session with settings that suit change streams, for one machine or a cluster.

Rules.
- What the caller sets wins over every default here; what is already set in the environment
  (PYSPARK_PYTHON) is kept.
- With a local master the driver binds to the loopback: nothing of it is reachable from outside.
- Workers run the interpreter that runs us, so that they find this package and pyarrow.
- A master ``sc://host:port`` is a Spark Connect server: Java and workers are the server's matter.
- The package reaches a cluster's executors as one zip added with ``addPyFile`` (`ship`); pyarrow,
  numpy, numba and cramjam must be installed there, as for every Python job on Spark.

Imports: errors, spark.carried, spark.java, spark.jobs.
"""

from __future__ import annotations

import atexit
import os
import re
import tempfile
import zipfile
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError
from headrace.spark.java import python_for_workers, use_java
from headrace.spark.jobs import is_remote

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from pyspark.sql import SparkSession

DEFAULT_MASTER: Final = "local[*]"
TASK_FAILURES_MAX: Final = 4
_LOCAL: Final = re.compile(r"local(?:\[(\d+|\*)\])?")

DEFAULTS: Final[dict[str, str]] = {
    # A change stream's batches are small: two hundred shuffle partitions would cost more than work.
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    # Our own Arrow batches arrive as they are; this bounds those Spark makes.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    # Renames instead of checksummed copies: halves the floor of a micro-batch on local disks.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
    "spark.python.worker.reuse": "true",
    "spark.driver.memory": "2g",
}
LOCAL_DEFAULTS: Final[dict[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def settings_for(master: str, given: Mapping[str, str]) -> dict[str, str]:
    """Every setting of a session on this master, the caller's on top."""
    local = LOCAL_DEFAULTS if master.startswith("local") else {}
    return {**DEFAULTS, **local, **given}


def is_one_process(master: str) -> bool:
    """Whether executors are the driver's own process, with its paths."""
    return master == "local" or master.startswith("local[")


def with_retries(master: str) -> str:
    """A local master that tries a task again, as every other master does."""
    found = _LOCAL.fullmatch(master)
    if found is None:
        return master
    return f"local[{found.group(1) or '1'},{TASK_FAILURES_MAX}]"


def session(
    name: str = "headrace",
    *,
    master: str = DEFAULT_MASTER,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A running session with the data source ``dcp`` registered; ConfigError if Spark is missing.

    A session that runs already in this process is returned as Spark returns it, with what of the
    settings can still be changed.
    """
    try:
        sql = import_module("pyspark.sql")
    except ImportError as error:
        raise ConfigError(
            "pyspark is not installed; pip install 'headrace[spark]' brings it"
        ) from error
    if is_connect(master):
        return _connected(sql, name, master, settings or {})
    use_java()
    os.environ.setdefault("PYSPARK_PYTHON", python_for_workers())
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python_for_workers())
    if master.startswith("local"):
        # Else Spark asks the machine for its name and warns when that is the loopback's.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = sql.SparkSession.builder.appName(name).master(with_retries(master))
    for key, value in settings_for(master, settings or {}).items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    register(spark)
    return spark


def is_connect(master: str) -> bool:
    """Whether a master is the address of a Spark Connect server."""
    return master.startswith("sc://")


def _connected(
    sql: ModuleType, name: str, master: str, settings: Mapping[str, str]
) -> SparkSession:
    """A session of a Connect server; what its driver and executors are made of is the server's."""
    try:
        builder = sql.SparkSession.builder.appName(name).remote(master)
        for key, value in {"spark.sql.session.timeZone": "UTC", **settings}.items():
            builder = builder.config(key, value)
        spark: SparkSession = builder.getOrCreate()
    except ImportError as error:
        raise ConfigError(
            f"{master} needs Spark Connect's client; pip install 'pyspark[connect]' brings it"
        ) from error
    # The package first: the server makes the data source in a process of its own.
    ship(spark)
    register(spark)
    return spark


def register(spark: SparkSession) -> None:
    """Make ``format("dcp")`` known to a session."""
    if is_remote(spark):
        with tempfile.TemporaryDirectory(prefix="headrace-") as directory:
            package = packed(Path(directory)).read_bytes()
        source = import_module("headrace.spark.carried").carrying(package)
    else:
        source = import_module("headrace.spark.source").DcpSource
    spark.dataSource.register(source)


def packed(directory: Path) -> Path:
    """This package as a zip in ``directory``, as executors import it."""
    package = Path(__file__).resolve().parent.parent
    target = directory / "headrace.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(package.rglob("*.py")):
            archive.write(path, Path("headrace") / path.relative_to(package))
    return target


def ship(spark: SparkSession) -> None:
    """Send this package to the executors of a cluster; once per session is enough."""
    # Executors fetch the file when their first task comes: it stays as long as this process.
    directory = tempfile.TemporaryDirectory(prefix="headrace-")
    atexit.register(directory.cleanup)
    spark.addArtifacts(str(packed(Path(directory.name))), pyfile=True)
