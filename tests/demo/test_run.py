"""The whole story, without Spark: what it tells is true, and it leaves nothing running."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest
from rich.console import Console

from headrace.demo.run import Demo, Plan, prepared
from headrace.demo.screen import Screen
from headrace.errors import ConfigError, HeadraceError
from headrace.spark.tables.views import arrow_changes, arrow_state

SOURCE = Path(__file__).resolve().parents[2] / "src"
SMALL = {"seconds": 3.0, "documents": 400, "rate": 400, "vbuckets": 4, "seed": 1}


def plan(directory: Path, **more: object) -> Plan:
    words: dict[str, object] = {
        "directory": directory,
        "master": "none",
        "port": 0,
        "keep": False,
        **SMALL,
    }
    return Plan(**(words | more))  # type: ignore[arg-type] # each test names what it changes


def demo(directory: Path, **more: object) -> tuple[Demo, io.StringIO]:
    output = io.StringIO()
    console = Console(file=output, width=200)
    made = Demo(
        plan(directory, **more), lambda record: Screen(console, record), clock=time.monotonic
    )
    return made, output


@pytest.fixture(autouse=True)
def _tree_for_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))


def children() -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if int(words[1]) == os.getpid() and words[0] != "Z":
            found.add(int(path.parent.name))
    return found


def test_the_story_is_true_from_start_to_end(tmp_path: Path) -> None:
    before = children()
    made, output = demo(tmp_path / "out")
    summary = made.run()
    text = output.getvalue()
    assert summary.agrees
    assert summary.writes["all"] > 400
    assert {"mutation", "deletion", "rollback", "system"} <= set(summary.events)
    failover = summary.failover
    assert failover is not None
    assert failover.withdrawn.rows > 0
    assert failover.withdrawn.visible == 0
    assert f"failover  vbucket {failover.loss.vbucket} loses seqnos" in text
    assert f"{failover.withdrawn.rows} rows of" in text
    kinds = [mark.kind for mark in made.record.marks]
    assert kinds == ["open", "spark", "failover", "rollback", "close", "drained"]
    assert sum(summary.documents.values()) == arrow_state(made.tables).num_rows
    every, living = arrow_changes(made.tables, withdrawn=True), arrow_changes(made.tables)
    assert every.num_rows - living.num_rows == failover.withdrawn.rows + 1
    assert children() == before


def test_an_interrupt_stops_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()
    made, _ = demo(tmp_path / "out")

    def interrupted(self: Demo) -> None:
        del self
        raise KeyboardInterrupt

    monkeypatch.setattr(Demo, "_fail_over", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert children() == before
    assert made._trading is not None
    assert not made._trading.is_alive()
    assert made._following is not None
    assert not made._following.is_alive()


def test_what_fails_in_a_thread_ends_the_demo_with_its_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = demo(tmp_path / "out")

    def broken(self: Demo) -> None:
        assert self._trading is not None
        self._trading.failure = HeadraceError("the shop burnt down")

    monkeypatch.setattr(Demo, "_fail_over", broken)
    with pytest.raises(HeadraceError, match="burnt down"):
        made.run()


def test_kept_on_it_ends_with_the_first_interrupt_and_still_proves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, output = demo(tmp_path / "out", keep=True, seconds=2.0)
    pause = Demo._pause
    said: list[float] = []

    def short(self: Demo, seconds: float) -> None:
        pause(self, seconds)
        if "keep      going on" in output.getvalue():
            said.append(seconds)
            if len(said) == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(Demo, "_pause", short)
    assert made.run().agrees
    assert "--admin" in output.getvalue()


def test_an_earlier_demo_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "tables").mkdir(parents=True)
    (out / "tables" / "old").write_text("", encoding="utf-8")
    (out / "summary.json").write_text("", encoding="utf-8")
    assert list(prepared(out).iterdir()) == []
    (out / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"thesis\.txt"):
        prepared(out)
    assert (out / "thesis.txt").read_text(encoding="utf-8") == "years of work"


def test_a_place_that_cannot_be_used_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be used"):
        prepared(tmp_path / "file" / "inner")
