"""`python -m tests.fuzz [--seconds S] [--seed N] [--only TARGET]`: what `make fuzz` calls."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import time
import traceback
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

HERE: Final = Path(__file__).resolve().parent
SECONDS_DEFAULT: Final = 60.0
# Attempts between two looks at the clock, so that the targets take turns.
TURN: Final = 50
SEED_BITS: Final = 32


def say(text: str) -> None:
    """Write one line at once: a fuzz run may be killed at any time."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def targets_of(directory: Path, only: str = "") -> dict[str, Callable[[Random], None]]:
    """Return name -> attempt of the targets whose name starts with `only`."""
    targets = {}
    for path in sorted(directory.glob("target_*.py")):
        name = path.stem.removeprefix("target_")
        if not name.startswith(only):
            continue
        spec = importlib.util.spec_from_file_location(f"tests.fuzz.{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        targets[name] = module.attempt
    return targets


def found_fault(name: str, attempt: Callable[[Random], None], seed: int) -> bool:
    """Make one attempt; show what it raised and how to see it again."""
    try:
        attempt(Random(seed))
    except Exception:  # noqa: BLE001 - any exception that escapes a target is a fault it found
        say(traceback.format_exc())
        say(f"fault: target {name}, seed {seed}; again with: make fuzz SEED={seed} ONLY={name}")
        return True
    return False


def main(arguments: list[str] | None = None) -> int:
    """Attempt until the time is over or a fault is found; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS_DEFAULT)
    parser.add_argument("--seed", type=int, help="make this one attempt per target and stop")
    parser.add_argument("--only", default="", metavar="TARGET", help="targets that start so")
    parser.add_argument("--directory", type=Path, default=HERE, help="where targets are")
    options = parser.parse_args(arguments)
    targets = targets_of(options.directory, options.only)
    if not targets:
        parser.error(f"no target has a name that starts with {options.only!r}")
    if options.seed is not None:
        faults = [name for name, one in targets.items() if found_fault(name, one, options.seed)]
        say(f"seed {options.seed}: {len(faults)} of {len(targets)} targets found a fault")
        return 1 if faults else 0

    # Each run explores elsewhere; the seed it starts from is printed with every fault.
    seed = int.from_bytes(os.urandom(SEED_BITS // 8))
    say(f"fuzzing {', '.join(targets)} for {options.seconds:g} s, first seed {seed}")
    attempts = dict.fromkeys(targets, 0)
    ends = time.monotonic() + options.seconds
    while time.monotonic() < ends:
        for name, attempt in targets.items():
            for number in range(TURN):
                if found_fault(name, attempt, seed + number):
                    return 1
            attempts[name] += TURN
        seed += TURN
    say(
        "no fault: " + ", ".join(f"{name} {number:,} attempts" for name, number in attempts.items())
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
