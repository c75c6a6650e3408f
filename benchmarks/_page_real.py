"""The page of a real node under load: node, writer, consumer and browser, a process each.

One run gives every figure of the real road, because its parts share the machine and belong
together: first the node works without a page, then a browser opens it, then vbuckets fail over
while the load goes on. The rate is counted at the node (the sum of its high seqnos), not taken from
who claims to write it; CPU is each process's own, from /proc.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.harness import Run, Skip

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tools.live import Served

VBUCKETS: Final = 1024
RATE: Final = 10_500
"""Writes asked for, so that more than 10,000 changes come: deleting what is not there is none, and
a writer that shares two cores with all the others misses some turns."""
OPENED: Final = "3"
"""The vbucket that is open on the page, and that fails over."""
CONSUMER: Final = "reader:1"
QUOTA_MB: Final = "1024"
"""A node in memory keeps what its streams may still ask for: a minute of this load is a lot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Real:
    """What one run saw."""

    rate: float
    browser_share: float
    memory: int
    node_share: float
    node_share_alone: float
    """Of the same node under the same load, before a page was open."""
    failover_seconds: float
    failovers: int


@cache
def real(run: Run) -> Real:
    """Measure; Skip says that there is no browser."""
    from tools.browser import NoBrowser, chromium
    from tools.live import loading, serving

    vbuckets = str(run.pick(full=VBUCKETS, quick=8))
    try:
        with tempfile.TemporaryDirectory() as directory, chromium() as browser:
            file = Path(directory) / "admin.json"
            options = ("--memory", "--vbuckets", vbuckets, "--admin-file", str(file))
            with (
                serving(*options, "--memory-quota-mb", QUOTA_MB) as served,
                loading(served.url, rate=run.pick(full=RATE, quick=100), consumers=(CONSUMER,)),
            ):
                admin = json.loads(file.read_text(encoding="utf-8"))
                return _measured(run, browser, served, admin)
    except NoBrowser as error:
        raise Skip(str(error)) from error


def _measured(run: Run, browser: Browser, served: Served, admin: dict[str, str]) -> Real:
    from tools.browser import cost_of, cpu_seconds

    time.sleep(run.pick(full=5.0, quick=0.1))
    alone = _node_share(served, run.pick(full=10.0, quick=0.2))
    page = _opened(browser, served)
    # What starting costs is over.
    page.wait_for_timeout(run.pick(full=5_000, quick=100))
    before, written, began = cost_of(browser, page), _written(served), time.monotonic()
    spent = cpu_seconds(served.pid)
    page.wait_for_timeout(run.pick(full=20_000, quick=500))
    passed = time.monotonic() - began
    node = (cpu_seconds(served.pid) - spent) / passed
    after, more = cost_of(browser, page), _written(served) - written
    shown = after.renderer_seconds + after.other_seconds
    shown -= before.renderer_seconds + before.other_seconds
    failovers = failover_seconds(page, admin, run.runs)
    return Real(
        rate=more / passed,
        browser_share=shown / passed,
        memory=after.memory,
        node_share=node,
        node_share_alone=alone,
        failover_seconds=statistics.median(failovers),
        failovers=len(failovers),
    )


def _opened(browser: Browser, served: Served) -> Page:
    page = browser.new_page(viewport={"width": 1440, "height": 1000})
    page.goto(served.page)
    page.wait_for_selector("#live[data-state=live]")
    page.get_by_label("Open vbucket").fill(OPENED)
    page.get_by_label("Open vbucket").press("Enter")
    page.locator("#connections tr", has_text=CONSUMER).wait_for()
    return page


def _node_share(served: Served, seconds: float) -> float:
    from tools.browser import cpu_seconds

    spent, began = cpu_seconds(served.pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_seconds(served.pid) - spent) / (time.monotonic() - began)


def _written(served: Served) -> int:
    """Changes the node has taken so far."""
    from headrace.client.bucket import connect

    with connect(served.url) as bucket:
        tokens = bucket.tokens_now()
        return sum(tokens.seqno(vbucket) for vbucket in range(bucket.vbuckets))


def failover_seconds(page: Page, admin: dict[str, str], count: int) -> list[float]:
    """From the lever's answer to the sentence on the page, several times."""
    samples = []
    for number in range(count):
        # Looks come every half second: every phase of that is tried.
        page.wait_for_timeout(1_000 + 137 * number)
        fail_over(admin)
        began = time.monotonic()
        page.wait_for_function(
            "count => document.querySelectorAll('#happenings [data-kind=failover]')"
            ".length === count",
            arg=number + 1,
        )
        samples.append(time.monotonic() - began)
    return samples


def fail_over(admin: dict[str, str]) -> None:
    """Pull the lever at the node's own port."""
    request = urllib.request.Request(  # noqa: S310 - our own node
        f"{admin['url']}/faults",
        json.dumps({"lever": "failover", "vbucket": int(OPENED), "seqno": 0}).encode(),
        {"Authorization": f"Bearer {admin['token']}"},
    )
    urllib.request.urlopen(request).close()  # noqa: S310 - our own node
