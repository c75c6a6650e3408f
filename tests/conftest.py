"""Rules for every test: repeatable property tests, and no silent skip where everything must run.

With CI=true property tests draw the same examples every time, and a test with
one of `MARKERS` that would skip because something is missing fails instead: a check that did not
run has not passed. Those tests have targets of their own, which install what they need.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Generator

MARKERS: Final = {"interop": "an interop", "browser": "a browser", "slow": "a slow"}
"""Who must run in CI, and how a sentence calls it."""
IN_CI: Final = os.environ.get("CI", "").lower() == "true"

# No deadline: how long one example takes says more about the machine than about the code.
settings.register_profile("anywhere", deadline=None, print_blob=True, derandomize=False)
settings.register_profile("ci", settings.get_profile("anywhere"), derandomize=True)
settings.load_profile("ci" if IN_CI else "anywhere")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip of one of these tests into a failure where everything must run."""
    report = yield
    name = next((one for one in MARKERS if item.get_closest_marker(one)), None)
    if IN_CI and report.skipped and name is not None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{MARKERS[name]} test may not skip where CI=true: {reason}"
    return report
