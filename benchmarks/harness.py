"""The measuring rules every benchmark shares, and the road from a file to a figure.

A benchmark is one file in this directory, `benchmarks/<topic>.py`, that answers one question. Its
module docstring states the method: what is measured, against what, on which input, and what is
left out. It holds one function per figure, marked with `@figure(...)`:

    @figure("decode.columns.speed_of_memcpy", unit="ratio", goal=0.6, better="higher")
    def columns_against_memcpy(run: Run) -> Value:
        \"\"\"Frames into Arrow columns, against copying the same bytes.\"\"\"
        frames = sample_frames(run.pick(full=64 << 20, quick=1 << 20))
        return run.compare(lambda: scan(frames), lambda: bytearray(frames)).speed

    @figure("decode.columns.rows_per_second", unit="rows/s", goal=None, better="higher")
    def columns_rate(run: Run) -> Value:
        \"\"\"The same scan as a plain rate; depends on the machine, hence no goal.\"\"\"
        frames = sample_frames(run.pick(full=64 << 20, quick=1 << 20))
        return run.time(lambda: scan(frames)).per_second(ROWS)

Rules:
- A figure's name starts with its file's name and a dot, so a prefix is enough to know which files
  to load and which functions to call; nothing else is imported or run. Importing a benchmark file
  must therefore be cheap: input is made inside the functions (share it with `functools.cache`).
- A comparison is interleaved: subject and baseline take turns in one process, the order flips
  every round, and the value is the median of the ratios of the rounds. Noise of the machine that
  lasts longer than a round hits both sides alike.
- CPU time by default, because the machine is shared; wall time where waiting is the point.
- The garbage collector stays on (the code under measure lives with it) and is run before each
  sample.
- A goal is a wish, never an assertion: `make bench` fails only when a benchmark raises.
- `raise Skip("reason")` when the machine lacks something: the table shows it, no line is written.

Output: a table for people, and one JSON line per figure in `build/bench.jsonl` with exactly the
keys name, value, unit, goal, better, runs, commit. The file holds the figures of the last command;
a quick run writes `build/quick.jsonl` instead, because its numbers mean nothing.

Imports: nothing of headrace.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from types import ModuleType

    from rich.table import Table

T = TypeVar("T")
Better = Literal["higher", "lower"]

RUNS_DEFAULT: Final = 9
RUNS_QUICK: Final = 3
# A sample shorter than this is repeated inside one reading of the clock: below it, the cost of
# reading the clock and a single interrupt are visible in the result.
SAMPLE_SECONDS_MIN: Final = 0.05
SAMPLE_SECONDS_MIN_QUICK: Final = 0.002
REPEATS_MAX: Final = 1 << 20
# Files of this directory that are not benchmarks.
NOT_BENCHMARKS: Final = frozenset({"harness"})


class Skip(Exception):
    """This figure cannot be measured here; the text says what is missing."""


class BadBenchmark(Exception):
    """A benchmark file breaks the contract of this module; the text says which rule."""


class Clock(Enum):
    """What a second is."""

    CPU = "process_time"  # all threads of this process
    THREAD = "thread_time"  # the calling thread alone
    WALL = "perf_counter"

    def now(self) -> float:
        """Return the reading of this clock in seconds."""
        reading: float = getattr(time, self.value)()
        return reading


@dataclass(frozen=True, slots=True)
class Value:
    """A measured number and how many runs it is the median of."""

    value: float
    runs: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call: one sample per run."""

    samples: tuple[float, ...]

    @property
    def seconds(self) -> Value:
        """Return the median seconds of one call."""
        return Value(statistics.median(self.samples), len(self.samples))

    def per_second(self, units: float) -> Value:
        """Return the rate, when one call handles `units` of something."""
        return Value(units / self.seconds.value, len(self.samples))

    def nanoseconds_per(self, units: float) -> Value:
        """Return the cost of one unit, when one call handles `units` of something."""
        return Value(self.seconds.value * 1e9 / units, len(self.samples))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Subject and baseline, sampled in turns: sample i of both belongs to the same round."""

    subject: Timing
    baseline: Timing

    @property
    def speed(self) -> Value:
        """Return how fast the subject is as a multiple of the baseline: 2.0 is twice as fast."""
        return self._median_of(lambda subject, baseline: baseline / subject)

    @property
    def cost(self) -> Value:
        """Return how much the subject costs as a multiple of the baseline: 2.0 is twice as slow."""
        return self._median_of(lambda subject, baseline: subject / baseline)

    def _median_of(self, ratio: Callable[[float, float], float]) -> Value:
        pairs = zip(self.subject.samples, self.baseline.samples, strict=True)
        ratios = [ratio(subject, baseline) for subject, baseline in pairs]
        return Value(statistics.median(ratios), len(ratios))


@dataclass(frozen=True, slots=True)
class Run:
    """How thoroughly this command measures; handed to every figure."""

    runs: int = RUNS_DEFAULT
    quick: bool = False

    def pick(self, *, full: T, quick: T) -> T:
        """Return the size to use: `quick` only proves that the benchmark runs."""
        return quick if self.quick else full

    def time(self, call: Callable[[], object], *, clock: Clock = Clock.CPU) -> Timing:
        """Sample `call` alone, `runs` times, after one call to warm it."""
        repeats = self._repeats(call, clock)
        return Timing(tuple(_sample(call, clock, repeats) for _ in range(self.runs)))

    def compare(
        self,
        subject: Callable[[], object],
        baseline: Callable[[], object],
        *,
        clock: Clock = Clock.CPU,
    ) -> Comparison:
        """Sample both in turns, `runs` rounds; who goes first flips every round."""
        sides = [
            (subject, self._repeats(subject, clock)),
            (baseline, self._repeats(baseline, clock)),
        ]
        samples: tuple[list[float], list[float]] = ([], [])
        for number in range(self.runs):
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                call, repeats = sides[side]
                samples[side].append(_sample(call, clock, repeats))
        return Comparison(Timing(tuple(samples[0])), Timing(tuple(samples[1])))

    def _repeats(self, call: Callable[[], object], clock: Clock) -> int:
        """Return how many calls make one sample long enough; calls it, which also warms it."""
        wanted = SAMPLE_SECONDS_MIN_QUICK if self.quick else SAMPLE_SECONDS_MIN
        call()
        repeats = 1
        while repeats < REPEATS_MAX and _sample(call, clock, repeats) * repeats < wanted:
            repeats *= 2
        return repeats


def _sample(call: Callable[[], object], clock: Clock, repeats: int) -> float:
    """Return the seconds of one call, as the mean of `repeats` calls in one reading."""
    gc.collect()
    began = clock.now()
    for _ in range(repeats):
        call()
    return (clock.now() - began) / repeats


@dataclass(frozen=True, slots=True)
class Figure:
    """One number we publish: what it is called, what it should be, how to get it."""

    name: str
    unit: str
    goal: float | None
    better: Better
    measure: Callable[[Run], Value]

    def reached(self, value: float) -> bool | None:
        """Tell whether `value` is as good as the goal; None without a goal."""
        if self.goal is None:
            return None
        return value >= self.goal if self.better == "higher" else value <= self.goal


def figure(
    name: str, *, unit: str, goal: float | None, better: Better
) -> Callable[[Callable[[Run], Value]], Figure]:
    """Turn a function of a Run into a Figure that `discover` finds in its module."""
    if better not in ("higher", "lower"):
        raise BadBenchmark(f"{name}: better is {better!r}, allowed are 'higher' and 'lower'")

    def turn(measure: Callable[[Run], Value]) -> Figure:
        return Figure(name, unit, goal, better, measure)

    return turn


def discover(directory: Path, only: str = "") -> list[Figure]:
    """Return the figures whose name starts with `only`, loading no file that cannot hold one."""
    found: dict[str, Figure] = {}
    for path in sorted(directory.glob("*.py")):
        topic = path.stem
        if topic.startswith("_") or topic in NOT_BENCHMARKS:
            continue
        if not (f"{topic}.".startswith(only) or only.startswith(f"{topic}.")):
            continue
        for one in _figures_of(_load(path), path):
            if one.name in found:
                raise BadBenchmark(f"{path.name}: the figure {one.name} exists twice")
            found[one.name] = one
    return [one for one in found.values() if one.name.startswith(only)]


def _load(path: Path) -> ModuleType:
    name = f"{path.parent.name}.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise BadBenchmark(f"{path.name}: cannot be loaded as a Python module")
    module = importlib.util.module_from_spec(spec)
    # numba's cache and pickle look a function's module up by name.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _figures_of(module: ModuleType, path: Path) -> Iterator[Figure]:
    if not (module.__doc__ or "").strip():
        raise BadBenchmark(f"{path.name}: has no docstring, where its method belongs")
    figures = [thing for thing in vars(module).values() if isinstance(thing, Figure)]
    if not figures:
        raise BadBenchmark(f"{path.name}: holds no figure, one per benchmark file is the least")
    for one in figures:
        if not one.name.startswith(f"{path.stem}."):
            raise BadBenchmark(
                f"{path.name}: the figure {one.name} must have a name that starts with {path.stem}."
            )
        yield one


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one figure: a value, or the reason why there is none."""

    figure: Figure
    value: Value | None
    reason: str = ""
    failed: bool = False

    def line(self, commit: str) -> str:
        """Return the JSON line of a measured figure; the keys are the contract."""
        assert self.value is not None
        return json.dumps(
            {
                "name": self.figure.name,
                "value": self.value.value,
                "unit": self.figure.unit,
                "goal": self.figure.goal,
                "better": self.figure.better,
                "runs": self.value.runs,
                "commit": commit,
            }
        )


def measure_all(figures: Iterable[Figure], run: Run) -> Iterator[Outcome]:
    """Measure one figure after the other; one that raises does not stop the rest."""
    for one in figures:
        try:
            yield Outcome(one, one.measure(run))
        except Skip as skip:
            yield Outcome(one, None, reason=f"skipped: {skip}")
        except Exception as error:  # noqa: BLE001 - any failure belongs to that figure alone
            yield Outcome(one, None, reason=f"{type(error).__name__}: {error}", failed=True)


def write_lines(outcomes: Iterable[Outcome], output: Path, commit: str) -> Iterator[Outcome]:
    """Pass outcomes on, each written to `output` as soon as it is known."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("w", encoding="utf-8") as lines:
        for outcome in outcomes:
            if outcome.value is not None:
                lines.write(outcome.line(commit) + "\n")
                lines.flush()
            yield outcome


def table_of(outcomes: Iterable[Outcome], *, quick: bool = False) -> Table:
    """Return the table people read; a quick run has no verdicts, its numbers mean nothing."""
    from rich.table import Column, Table

    title = "quick run: the numbers mean nothing" if quick else None
    table = Table(
        Column("figure", overflow="fold"), "value", "unit", "goal", "runs", "", title=title
    )
    verdicts = {True: "[green]reached[/]", False: "[yellow]missed[/]", None: ""}
    for outcome in outcomes:
        one = outcome.figure
        sign = "≥" if one.better == "higher" else "≤"
        goal = "" if one.goal is None else f"{sign} {one.goal:,.4g}"
        if outcome.value is None:
            colour = "red" if outcome.failed else "yellow"
            table.add_row(one.name, "-", one.unit, goal, "-", f"[{colour}]{outcome.reason}[/]")
            continue
        measured = outcome.value
        verdict = "" if quick else verdicts[one.reached(measured.value)]
        shown = f"{measured.value:,.4g}" if measured.value < 1e5 else f"{measured.value:,.0f}"
        table.add_row(one.name, shown, one.unit, goal, str(measured.runs), verdict)
    return table


def commit_of(directory: Path) -> str:
    """Return the commit checked out in `directory`, with -dirty when tracked files differ."""
    head = _git(directory, "rev-parse", "HEAD")
    if head is None:
        return "unknown"
    return f"{head}-dirty" if _git(directory, "status", "--porcelain", "-uno") else head


def _git(directory: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(directory), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)  # noqa: S603 - fixed words
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
