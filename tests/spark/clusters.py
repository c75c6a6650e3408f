"""Spark clusters on the loopback, started from the pip package and stopped by their owner."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.spark.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator

START_SECONDS_MAX: Final = 120.0
MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+)")
WORKER: Final = re.compile(r"Successfully registered with master")
CONNECT: Final = re.compile(r"Spark Connect server started at: \S*?:(\d+)")


def environment() -> dict[str, str]:
    """What Spark's own processes need; our package is not on their path."""
    import pyspark

    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {
        **kept,
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }


class Service:
    """A Spark process with its log."""

    def __init__(self, log: Path, arguments: list[str]) -> None:
        """Start it through `spark-class`."""
        settings = environment()
        program = Path(settings["SPARK_HOME"]) / "bin" / "spark-class"
        self.log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(program), *arguments], env=settings, stdout=output, stderr=output
            )

    def wait_for(self, words: re.Pattern[str]) -> re.Match[str]:
        """Until the log has these words."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and self._process.poll() is None:
            found = words.search(self.log.read_text(errors="replace"))
            if found is not None:
                return found
            time.sleep(0.1)
        raise AssertionError(
            f"Spark did not start:\n{self.log.read_text(errors='replace')[-4000:]}"
        )

    def stop(self) -> None:
        """End it; idempotent."""
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def standalone(directory: Path, *, workers: int = 2) -> Iterator[str]:
    """A master and its workers; yields the master's address."""
    with ExitStack() as stack:
        common = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = Service(
            directory / "master.log", ["org.apache.spark.deploy.master.Master", *common]
        )
        stack.callback(master.stop)
        url = master.wait_for(MASTER).group(1)
        for number in range(workers):
            place = directory / f"worker-{number}"
            place.mkdir()
            words = ["org.apache.spark.deploy.worker.Worker", *common, "--cores", "1"]
            words += ["--memory", "1g", "--work-dir", str(place), url]
            worker = Service(directory / f"worker-{number}.log", words)
            stack.callback(worker.stop)
            worker.wait_for(WORKER)
        yield url


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """A Spark Connect server on ``local[2]``; yields its address."""
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
    }
    words = ["org.apache.spark.deploy.SparkSubmit", "--master", "local[2]"]
    for name, value in settings.items():
        words += ["--conf", f"{name}={value}"]
    words += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    server = Service(directory / "connect.log", [*words, "spark-internal"])
    try:
        port = server.wait_for(CONNECT).group(1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.stop()
