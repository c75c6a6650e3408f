"""A seed's run and what came of it."""

from __future__ import annotations

import logging
import multiprocessing
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.sim.world.bugs import planted
from tests.sim.world.core import Violation
from tests.sim.world.scenario import Scenario

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Iterator

    from tests.sim.world.core import Situation

CHUNK = 20
"""Seeds handed to a process at a time."""


@dataclass(frozen=True)
class Outcome:
    """One run; ``failure`` is empty when everything held."""

    seed: int
    events: int
    failure: str
    trace: tuple[str, ...]
    counts: Counter[Situation]
    """How often the situations came about that bugs hide in."""


def run_seed(seed: int, *, whole: bool = False) -> Outcome:
    """Run one seed, with its ``whole`` trace or, if it holds, none.

    Whatever goes wrong is an outcome: a simulation that stops hides the rest.
    """
    logging.getLogger("headrace").setLevel(logging.CRITICAL + 1)
    scenario = Scenario(seed)
    failure = ""
    try:
        scenario.run()
    except Violation as violation:
        failure = str(violation)
    except Exception as error:  # noqa: BLE001 - a bug of the product or of the world, with its seed
        where = traceback.extract_tb(error.__traceback__)[-1]
        failure = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        scenario.world.lines += traceback.format_exc().splitlines()
    world = scenario.world
    trace = tuple(world.lines) if whole else ()
    return Outcome(seed, world.events, failure, trace, world.counts)


def outcomes(seeds: Iterable[int], workers: int, bug: str) -> Iterator[Outcome]:
    """Run seeds on a few processes; order does not matter."""
    jobs = [(seed, bug) for seed in seeds]
    if workers == 1:
        yield from (_job(job) for job in jobs)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(_job, jobs, CHUNK)


def _job(job: tuple[int, str]) -> Outcome:
    seed, bug = job
    with planted(bug):
        return run_seed(seed)
