"""Following: turns are told, draining ends with the proof, and no JVM is left."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from headrace.demo.following import Following, cancel_jobs, end_java_children, stop_java
from headrace.errors import HeadraceError
from headrace.spark.tables.views import arrow_state
from tests.demo.tables import pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.spark.sync import Turn

WAIT_SECONDS_MAX = 60.0


class Heard:
    """Turns as they were told."""

    def __init__(self) -> None:
        self.turns: list[tuple[Turn, dict[int, int]]] = []
        self.any = threading.Event()

    def __call__(self, turn: Turn, positions: dict[int, int]) -> None:
        self.turns.append((turn, positions))
        self.any.set()


def test_it_follows_drains_and_compares(tmp_path: Path) -> None:
    heard = Heard()
    with pipeline(tmp_path / "unused") as found:
        found.put(*((f"k{number}", b"{}") for number in range(30)))
        following = Following(found.url, tmp_path / "tables", master="none", told=heard)
        following.start()
        assert heard.any.wait(WAIT_SECONDS_MAX)
        found.put(*((f"more{number}", b"{}") for number in range(5)))
        following.finish()
        following.join(WAIT_SECONDS_MAX)
    assert following.failure is None
    assert following.report is not None
    assert (following.report.documents, following.report.count) == (35, 0)
    assert sum(turn.rows for turn, _ in heard.turns) == 35
    assert heard.turns[-1][1] == {0: 35}
    assert arrow_state(tmp_path / "tables").num_rows == 35


def test_halting_skips_the_proof(tmp_path: Path) -> None:
    heard = Heard()
    with pipeline(tmp_path / "unused") as found:
        found.put(("k", b"{}"))
        following = Following(found.url, tmp_path / "tables", master="none", told=heard)
        following.start()
        assert heard.any.wait(WAIT_SECONDS_MAX)
        following.halt()
        assert not following.is_alive()
    assert following.report is None
    assert following.failure is None


def test_a_failure_is_kept_for_the_owner_who_is_not_left_waiting(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    tables.write_text("in the way", encoding="utf-8")
    with pipeline(tmp_path / "unused") as found:
        found.put(("k", b"{}"))
        following = Following(found.url, tables, master="none", told=Heard())
        following.start()
        following.join(WAIT_SECONDS_MAX)
    assert isinstance(following.failure, HeadraceError)
    assert following.ready.is_set()
    assert following.drained.is_set()


def test_only_a_jvm_of_ours_is_ended() -> None:
    """A child that is none stays, and one whose command line is Spark's goes."""
    code = "import time; time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", code])
    java = subprocess.Popen([sys.executable, "-c", code, "org.apache.spark.deploy.SparkSubmit"])
    try:
        end_java_children()
        assert java.wait(WAIT_SECONDS_MAX) == -9
        assert other.poll() is None
    finally:
        for process in (other, java):
            process.kill()
            process.wait()


def test_without_spark_there_is_nothing_to_cancel_or_stop() -> None:
    code = (
        "from headrace.demo.following import cancel_jobs, stop_java\n"
        "cancel_jobs(); stop_java(); stop_java(); print('fine')"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, 'src')\n{code}"],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
    )
    assert done.stdout.strip() == "fine", done.stderr
    assert callable(cancel_jobs)
    assert callable(stop_java)
