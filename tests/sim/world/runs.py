"""A seed's run and what came of it."""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass

from tests.sim.world.core import Violation
from tests.sim.world.scenario import Scenario


@dataclass(frozen=True)
class Outcome:
    """One run; ``failure`` is empty when everything held."""

    seed: int
    events: int
    failure: str
    trace: tuple[str, ...]


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
    return Outcome(seed, world.events, failure, tuple(world.lines) if whole else ())
