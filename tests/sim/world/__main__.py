"""`python -m tests.sim.world [--seeds N] [--first N] [--seed N] [--bug NAME|all] [--workers N]`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter

from tests.sim.world.bugs import BUGS, planted
from tests.sim.world.core import Situation
from tests.sim.world.runs import outcomes, run_seed


def say(text: str) -> None:
    """Write one line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run_clean(first: int, count: int, workers: int) -> int:
    """Run seeds that must hold; the number of those that did not."""
    begun, failed, events = time.monotonic(), 0, 0
    counts: Counter[Situation] = Counter()
    for number, outcome in enumerate(outcomes(range(first, first + count), workers, ""), 1):
        events += outcome.events
        counts.update(outcome.counts)
        if outcome.failure:
            failed += 1
            say(f"sim: seed {outcome.seed} fails: {outcome.failure}")
            say(f"sim: the whole story: make sim SEED={outcome.seed}")
        if number % 1000 == 0:
            say(f"sim: {number:,} seeds, {events:,} events, {time.monotonic() - begun:.0f} s")
    seconds = time.monotonic() - begun
    say(f"sim: {count:,} seeds from {first}, {events:,} events, {failed} failed, {seconds:.0f} s")
    for situation in Situation:
        say(f"sim: {counts[situation]:>9,} {situation.value}")
    return failed


def run_bug(name: str, first: int, count: int, workers: int) -> bool:
    """Whether a planted bug is found within so many seeds."""
    for number, outcome in enumerate(outcomes(range(first, first + count), workers, name), 1):
        if outcome.failure:
            say(f"sim: bug {name!r} is found by seed {outcome.seed}, {number} seeds in")
            say(f"     {outcome.failure}")
            return True
    say(f"sim: bug {name!r} ({BUGS[name].text}) is not found within {count} seeds")
    return False


def main() -> int:
    """Run what was asked for; 1 when something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.world", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, help="run one seed and print its trace")
    parser.add_argument("--bug", choices=[*BUGS, "all"], help="plant a bug and look for it")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    if options.seed is not None:
        with planted(options.bug or ""):
            outcome = run_seed(options.seed, whole=True)
        say("\n".join(outcome.trace))
        say(f"sim: seed {options.seed}: {outcome.failure or 'everything held'}")
        return int(bool(outcome.failure))
    if options.bug is None:
        return int(run_clean(options.first, options.seeds, options.workers) > 0)
    names = BUGS if options.bug == "all" else [options.bug]
    found = [run_bug(name, options.first, options.seeds, options.workers) for name in names]
    return int(not all(found))


if __name__ == "__main__":
    sys.exit(main())
