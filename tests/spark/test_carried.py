"""The source that brings its package along, in a process that has none."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from pyspark import cloudpickle

from headrace.spark.carried import carrying
from headrace.spark.offsets import INITIAL
from headrace.spark.session import packed
from headrace.spark.source import DcpSource

if TYPE_CHECKING:
    from pathlib import Path

URL = "couchbase://127.0.0.1/default"

PLANNER = """
import importlib.util, sys
from pathlib import Path
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
sys.path[:] = [place for place in sys.path if not place.endswith("/src")]
from pyspark import cloudpickle
assert importlib.util.find_spec("headrace") is None
source = cloudpickle.loads(Path(sys.argv[1]).read_bytes())({"url": "couchbase://127.0.0.1/default"})
source = cloudpickle.loads(cloudpickle.dumps(source))
print(source.name(), source.schema())
readers = source.streamReader(None), source.reader(None)
Path(sys.argv[2]).write_bytes(cloudpickle.dumps([*readers, type(readers[0])]))
import headrace
print(headrace.__file__)
"""

TASK = """
import importlib.util, sys
from pathlib import Path
from pyspark import cloudpickle
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
sys.path[:] = [place for place in sys.path if not place.endswith("/src")]
assert importlib.util.find_spec("headrace") is None
stream, batch, kind = cloudpickle.loads(Path(sys.argv[1]).read_bytes())
assert isinstance(stream, kind)
print(type(stream.inner).__name__, type(batch.inner).__name__, stream.initialOffset())
"""


def run(script: str, *arguments: str) -> str:
    """Run a script where the package is not to be found."""
    # -I leaves out this directory and PYTHONPATH; the script leaves out an editable install.
    done = subprocess.run(
        [sys.executable, "-I", "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_process_without_the_package_unpacks_the_one_it_was_sent(tmp_path: Path) -> None:
    source = carrying(packed(tmp_path).read_bytes())
    sent, passed_on = tmp_path / "source.pickle", tmp_path / "readers.pickle"
    sent.write_bytes(cloudpickle.dumps(source))  # type: ignore[no-untyped-call]
    said, place = run(PLANNER, str(sent), str(passed_on)).splitlines()
    assert said == f"dcp {DcpSource({'url': URL}).schema()}"
    assert "headrace.zip" in place
    # What the planner sends on finds its package in a task that has none either.
    (said,) = run(TASK, str(passed_on)).splitlines()
    assert said == f"StreamReader BatchReader {INITIAL.to_json()}"


def test_a_process_that_has_the_package_uses_its_own() -> None:
    source = carrying(b"this is no zip")({"url": URL})
    assert source.schema() == DcpSource({"url": URL}).schema()
