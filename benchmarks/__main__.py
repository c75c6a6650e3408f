"""`python -m benchmarks [--only PREFIX] [--quick] [--runs N] [--list]`: what `make bench` calls."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from benchmarks.harness import (
    RUNS_DEFAULT,
    RUNS_QUICK,
    Run,
    commit_of,
    discover,
    measure_all,
    table_of,
    write_lines,
)

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent


def main(arguments: list[str] | None = None) -> int:
    """Measure the chosen figures and return the exit status: 1 when a benchmark raised."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default="", metavar="PREFIX", help="figures that start so")
    parser.add_argument("--quick", action="store_true", help="tiny inputs: does it run at all")
    parser.add_argument("--runs", type=int, help=f"samples per figure (default {RUNS_DEFAULT})")
    parser.add_argument("--list", action="store_true", help="name the figures and stop")
    parser.add_argument("--directory", type=Path, default=HERE, help="where benchmark files are")
    parser.add_argument("--output", type=Path, help="default: build/bench.jsonl")
    options = parser.parse_args(arguments)
    runs = options.runs or (RUNS_QUICK if options.quick else RUNS_DEFAULT)
    if runs < 1:
        parser.error(f"--runs is {runs}, the least is 1")

    console = Console()
    figures = discover(options.directory, options.only)
    if not figures:
        console.print(f"no figure has a name that starts with {options.only!r}")
        return 1
    if options.list:
        for one in figures:
            console.print(one.name)
        return 0
    run = Run(runs=runs, quick=options.quick)
    # Numbers of tiny inputs must never be taken for figures.
    output = options.output or ROOT / "build" / ("quick.jsonl" if run.quick else "bench.jsonl")
    outcomes = []
    for outcome in write_lines(measure_all(figures, run), output, commit_of(ROOT)):
        console.print(f"[dim]{outcome.figure.name} done[/]")
        outcomes.append(outcome)
    console.print(table_of(outcomes, quick=run.quick))
    console.print(f"lines: {output}", soft_wrap=True)
    return 1 if any(outcome.failed for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
