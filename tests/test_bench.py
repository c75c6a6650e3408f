"""The benchmark harness: discovery by prefix, interleaving, medians, and the lines it writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest

from benchmarks.__main__ import main
from benchmarks.harness import (
    BadBenchmark,
    Clock,
    Comparison,
    Figure,
    Run,
    Timing,
    Value,
    commit_of,
    discover,
)

if TYPE_CHECKING:
    from pathlib import Path

KEYS: Final = ["name", "value", "unit", "goal", "better", "runs", "commit"]

COUNTING: Final = '''"""Counts to a number. Method: none, the number is known."""
from benchmarks.harness import Figure, Run, Skip, Value, figure

@figure("counting.three", unit="things", goal=2.0, better="higher")
def three(run: Run) -> Value:
    return Value(3.0, run.runs)

@figure("counting.size", unit="bytes", goal=None, better="lower")
def size(run: Run) -> Value:
    return Value(run.pick(full=1000, quick=1), run.runs)
'''
TRIPWIRE: Final = '"""Must not be loaded."""\nraise RuntimeError("loaded")\n'
FAILING: Final = '''"""One raises, one skips, one is fine."""
from benchmarks.harness import Run, Skip, Value, figure

@figure("failing.raises", unit="s", goal=1.0, better="lower")
def raises(run: Run) -> Value:
    raise ZeroDivisionError("by design")

@figure("failing.skips", unit="s", goal=1.0, better="lower")
def skips(run: Run) -> Value:
    raise Skip("no such tool")

@figure("failing.fine", unit="s", goal=1.0, better="lower")
def fine(run: Run) -> Value:
    return Value(0.5, run.runs)
'''


def directory_of(tmp_path: Path, **files: str) -> Path:
    directory = tmp_path / "fake_benchmarks"
    directory.mkdir()
    for name, text in files.items():
        (directory / f"{name}.py").write_text(text, encoding="utf-8")
    return directory


def lines_of(directory: Path, *options: str) -> tuple[int, list[dict[str, object]]]:
    output = directory.parent / "out" / "bench.jsonl"
    status = main(["--directory", str(directory), "--output", str(output), *options])
    return status, [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


def test_every_figure_becomes_one_line_with_exactly_the_agreed_keys(tmp_path: Path) -> None:
    status, lines = lines_of(directory_of(tmp_path, counting=COUNTING), "--runs", "5")
    assert status == 0
    assert [list(line) for line in lines] == [KEYS, KEYS]
    assert [line["name"] for line in lines] == ["counting.three", "counting.size"]
    assert lines[0] | {"commit": ""} == {
        "name": "counting.three",
        "value": 3.0,
        "unit": "things",
        "goal": 2.0,
        "better": "higher",
        "runs": 5,
        "commit": "",
    }
    assert lines[1]["goal"] is None
    assert lines[1]["value"] == 1000


def test_a_prefix_runs_only_its_figures_and_loads_only_its_files(tmp_path: Path) -> None:
    directory = directory_of(tmp_path, counting=COUNTING, tripwire=TRIPWIRE)
    status, lines = lines_of(directory, "--only", "counting.s", "--quick")
    assert status == 0
    assert [(line["name"], line["value"]) for line in lines] == [("counting.size", 1)]
    with pytest.raises(RuntimeError, match="loaded"):
        discover(directory, "trip")


def test_a_benchmark_that_raises_fails_the_command_and_spares_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, lines = lines_of(directory_of(tmp_path, failing=FAILING))
    assert status == 1
    assert [line["name"] for line in lines] == ["failing.fine"]
    shown = " ".join(capsys.readouterr().out.split())
    assert "ZeroDivisionError" in shown
    assert "no such tool" in shown


def test_a_missed_goal_does_not_fail_the_command(tmp_path: Path) -> None:
    missing = COUNTING.replace("goal=2.0", "goal=4.0")
    status, lines = lines_of(directory_of(tmp_path, counting=missing))
    assert status == 0
    assert lines[0]["goal"] == 4.0


def test_a_quick_run_never_passes_for_a_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("benchmarks.__main__.ROOT", tmp_path)
    directory = directory_of(tmp_path, counting=COUNTING)
    assert main(["--directory", str(directory), "--quick"]) == 0
    assert [path.name for path in (tmp_path / "build").iterdir()] == ["quick.jsonl"]
    shown = capsys.readouterr().out
    assert "the numbers mean nothing" in shown
    assert "reached" not in shown
    assert main(["--directory", str(directory)]) == 0
    assert (tmp_path / "build" / "bench.jsonl").is_file()
    assert "reached" in capsys.readouterr().out


def test_a_prefix_that_fits_nothing_fails_the_command(tmp_path: Path) -> None:
    directory = directory_of(tmp_path, counting=COUNTING)
    assert main(["--directory", str(directory), "--only", "nowhere"]) == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (COUNTING.partition("\n")[2], "no docstring"),
        ('"""Nothing to see."""\n', "no figure"),
        (COUNTING.replace("counting.three", "other.three"), "starts with counting."),
        (COUNTING.replace("counting.three", "counting.size"), "exists twice"),
        (COUNTING.replace('better="higher"', 'better="faster"'), "'faster', allowed are"),
    ],
)
def test_a_file_that_breaks_the_contract_is_refused(
    text: str, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(BadBenchmark, match=complaint):
        discover(directory_of(tmp_path, counting=text))


def test_our_own_benchmarks_keep_the_contract() -> None:
    """`--list` loads every file of the directory and measures nothing."""
    from benchmarks.__main__ import HERE

    names = [figure.name for figure in discover(HERE)]
    assert len(names) == len(set(names))


def test_a_comparison_takes_turns_and_flips_who_goes_first() -> None:
    calls: list[str] = []
    Run(runs=3, quick=True).compare(
        lambda: _spin(calls, "subject"), lambda: _spin(calls, "baseline"), clock=Clock.WALL
    )
    order = [name for at, name in enumerate(calls) if at == 0 or calls[at - 1] != name]
    # Warming both, then rounds: subject baseline, baseline subject, subject baseline.
    assert order == ["subject", "baseline", "subject", "baseline", "subject", "baseline"]


def _spin(calls: list[str], name: str) -> None:
    calls.append(name)
    began = Clock.WALL.now()
    while Clock.WALL.now() - began < 0.003:
        pass


def test_a_comparison_is_the_median_of_the_ratios_of_the_rounds() -> None:
    """The median of ratios is 3 here; the ratio of medians would be 2."""
    comparison = Comparison(Timing((1.0, 2.0, 10.0)), Timing((4.0, 6.0, 4.0)))
    assert comparison.speed == Value(3.0, 3)
    assert comparison.cost.value == pytest.approx(1 / 3)


def test_a_timing_gives_rates_and_costs_of_its_median() -> None:
    timing = Timing((0.1, 0.5, 0.2))
    assert timing.seconds == Value(0.2, 3)
    assert timing.per_second(100).value == pytest.approx(500)
    assert timing.nanoseconds_per(100).value == pytest.approx(2e6)


@pytest.mark.parametrize("clock", Clock)
def test_every_clock_reads_forward(clock: Clock) -> None:
    assert clock.now() <= clock.now()


def test_a_goal_is_reached_from_the_better_side() -> None:
    def unused(run: Run) -> Value:
        return Value(0.0, run.runs)

    more = Figure("a.b", "ratio", 0.5, "higher", unused)
    less = Figure("a.c", "s", 0.5, "lower", unused)
    free = Figure("a.d", "s", None, "lower", unused)
    assert [more.reached(value) for value in (0.4, 0.5, 0.6)] == [False, True, True]
    assert [less.reached(value) for value in (0.4, 0.5, 0.6)] == [True, True, False]
    assert free.reached(1.0) is None


def test_a_directory_without_git_has_an_unknown_commit(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == "unknown"
