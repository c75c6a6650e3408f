"""`python -m tests.soak [--crashes N] [--connections N] [--megabytes N] [--cuts N] [--seed N]`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.crash import Soak
from tests.soak.crowd import Report, many_readers, never_reading
from tests.soak.resume import Campaign, Harm, Plan

SLOWED_MAX = 2.0
"""How much longer others may take for one that does not read."""


def say(text: str) -> None:
    """Write one line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def crash(rounds: int, seed: int, data: Path) -> None:
    """Kill a node so often."""
    say(f"crash: {rounds} rounds, seed {seed}; again with --seed {seed}")
    soak, begun = Soak(data, seed), time.monotonic()
    for number in range(1, rounds + 1):
        soak.round()
        if number % 10 == 0 or number == rounds:
            say(
                f"crash: {number} rounds, {len(soak.ledger.changes):,} changes seen, "
                f"{len(soak.ledger.promised):,} keys promised, {soak.durable_writes:,} durable "
                f"writes, consumers rolled back after {soak.saw_more} rounds, "
                f"{time.monotonic() - begun:.0f} s"
            )


def show(name: str, report: Report) -> None:
    """One line about a crowd."""
    grown = (report.peak_bytes - report.start_bytes) / 1024
    say(
        f"{name}: {report.connections} connections, {report.mutations:,} mutations in "
        f"{report.seconds:.1f} s ({report.cpu_seconds:.1f} s of CPU), "
        f"memory grew by {grown / 1024:.0f} MiB "
        f"({grown / report.connections:.0f} KiB per connection)"
    )


def starve(megabytes: int, directory: Path) -> None:
    """The same writes and readers without and with one that never reads."""
    alone = never_reading(directory / "alone", megabytes=megabytes, quota_mb=64, sleepers=0)
    show("all reading", alone)
    made = never_reading(directory / "sleeper", megabytes=megabytes, quota_mb=64)
    show("one never reading", made)
    slowed = made.seconds / alone.seconds
    cost = made.cpu_seconds / alone.cpu_seconds
    say(f"one never reading: others took {slowed:.2f} times as long, {cost:.2f} times the CPU")
    assert slowed <= SLOWED_MAX, f"others are slowed {slowed:.2f} times, limit {SLOWED_MAX}"


def resume(cuts: int, documents: int, seed: int, directory: Path) -> None:
    """Disconnect a consumer so often, for each kind of harm, over few vbuckets and over all."""
    for harm in Harm:
        for vbuckets in (64, 1024):
            plan = Plan(documents=documents, vbuckets=vbuckets, cuts=cuts, seed=seed, harm=harm)
            Campaign(directory / f"{harm.value}-{vbuckets}", plan).run(say)


def main() -> int:
    """Run what was asked for; a failure is a traceback."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--crashes", type=int, default=200)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int)
    options = parser.parse_args()
    seed = int.from_bytes(os.urandom(4)) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory(prefix="headrace-soak-") as name:
        directory = Path(name)
        if options.crashes:
            crash(options.crashes, seed, directory / "crash")
        if options.connections:
            made = many_readers(directory / "crowd", connections=options.connections, documents=10)
            show("crowd", made)
        if options.megabytes:
            starve(options.megabytes, directory)
        if options.cuts:
            resume(options.cuts, options.documents, seed, directory)
    say("soak: everything held")
    return 0


if __name__ == "__main__":
    sys.exit(main())
