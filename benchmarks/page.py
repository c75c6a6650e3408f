"""What the live page costs: the browser that shows it, and the node that is shown.

Method. Browser: a Chromium without a window (software drawing: a container has no GPU), 1,024
vbuckets at 10,000 changes per second, one vbucket open, CPU seconds of all renderer, GPU and
network processes over wall seconds, from /proc; memory is the largest renderer's proportional set
size. The source is made up (`benchmarks/_page_source.py`), so the rate is what it says however busy
the machine is. Node: CPU of one look at a real node's bucket and of the events made of it (change
and whole), times two per second, with one consumer's 1,024 streams; half of the vbuckets change
between two looks. Failover: wall seconds from the answer to the lever, pulled at another port, to
the sentence on the page.

The figures of page.real are the whole road in one run (`benchmarks/_page_real.py`): a node process,
a writer that asks for the same rate, a consumer of every vbucket and the browser, all on this
machine. The rate is counted at the node; what serving the page costs the node is its CPU with a
page open less its CPU before.

Left out: the browser's own process, which is there whatever it shows; TLS.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.harness import Run, Skip, Value, figure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks._page_real import Real
    from tools.browser import Cost

VBUCKETS: Final = 1024
RATE: Final = 10_000
LOOKS_PER_SECOND: Final = 2
ROOT: Final = Path(__file__).resolve().parent.parent


@contextmanager
def made_up(rate: int, vbuckets: int) -> Iterator[str]:
    """The address of a page over a made-up source, in a process of its own."""
    from tools.live import environment

    command = [sys.executable, "-m", "benchmarks._page_source", str(rate), str(vbuckets)]
    process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own words
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


@cache
def browser_cost(run: Run) -> tuple[float, Cost]:
    """The share of a core the page took, and its cost at the end."""
    from tools.browser import NoBrowser, chromium, cost_of

    seconds = run.pick(full=30.0, quick=1.0)
    try:
        with made_up(RATE, VBUCKETS) as address, chromium() as browser:
            page = browser.new_page(viewport={"width": 1440, "height": 1000})
            page.goto(address)
            page.wait_for_selector("#live[data-state=live]")
            page.get_by_label("Open vbucket").fill("3")
            page.get_by_label("Open vbucket").press("Enter")
            # What starting costs is over.
            page.wait_for_timeout(run.pick(full=5_000, quick=100))
            before, began = cost_of(browser, page), time.monotonic()
            page.wait_for_timeout(seconds * 1000)
            after, passed = cost_of(browser, page), time.monotonic() - began
    except NoBrowser as error:
        raise Skip(str(error)) from error
    spent = after.renderer_seconds + after.other_seconds
    spent -= before.renderer_seconds + before.other_seconds
    return spent / passed, after


@figure("page.browser_core_share", unit="share of a core", goal=0.05, better="lower")
def core_share(run: Run) -> Value:
    """CPU of the browser's processes that show the page."""
    return Value(browser_cost(run)[0], 1)


@figure("page.browser_memory", unit="MB", goal=150, better="lower")
def memory(run: Run) -> Value:
    """Memory of the process that holds the page."""
    return Value(browser_cost(run)[1].memory / 1e6, 1)


@figure("page.node_core_share", unit="share of a core", goal=0.05, better="lower")
def look_share(run: Run) -> Value:
    """CPU of the node's thread for looking and telling, with one page open."""
    return asyncio.run(_looks(run))


async def _looks(run: Run) -> Value:
    from headrace.node.config import BucketConfig, NodeConfig
    from headrace.node.server import Node
    from headrace.store import BucketSettings
    from headrace.web.hub import Hub
    from headrace.web.node_source import NodeSource

    size = run.pick(full=VBUCKETS, quick=16)
    config = NodeConfig(buckets=(BucketConfig(settings=BucketSettings(vbuckets=size)),))
    async with Node(config) as node:
        address = f"couchbase://127.0.0.1:{node.port}/default"
        consuming, stop = await asyncio.to_thread(_consume, address)
        source = NodeSource(node)
        hub = Hub(source, "default")
        while (await source.look("default")).columns["streams"] != [1] * size:
            await asyncio.sleep(0.1)
        bucket = node.hosts["default"].bucket
        samples = []
        for _ in range(run.pick(full=40, quick=3)):
            for number in range(0, size, 2):
                bucket.vbucket(number).store(b"\0k", b"v")
            await asyncio.sleep(0.05)
            began = time.thread_time()
            await hub.look()
            hub.whole()
            samples.append(time.thread_time() - began)
        await asyncio.to_thread(stop)
        await asyncio.to_thread(consuming.join)
    return Value(statistics.median(samples) * LOOKS_PER_SECOND, len(samples))


def _consume(address: str) -> tuple[threading.Thread, Callable[[], None]]:
    """A consumer of every vbucket on a thread, and what ends it."""
    from headrace.client.bucket import connect

    bucket = connect(address)
    reader = bucket.changes(since="now", whole=False, on_rollback=lambda _: None)

    def read() -> None:
        for _ in reader:
            pass

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread, bucket.close


@figure("page.failover_seconds", unit="s", goal=1.0, better="lower")
def failover(run: Run) -> Value:
    """From the lever's answer to the sentence on the page, a node and a browser in between."""
    from benchmarks._page_real import failover_seconds
    from tools.browser import NoBrowser, chromium
    from tools.live import serving

    vbuckets = str(run.pick(full=VBUCKETS, quick=4))
    try:
        with tempfile.TemporaryDirectory() as directory, chromium() as browser:
            file = Path(directory) / "admin.json"
            options = ("--memory", "--vbuckets", vbuckets, "--admin-file", str(file))
            with serving(*options) as served:
                admin = json.loads(file.read_text(encoding="utf-8"))
                page = browser.new_page()
                page.goto(served.page)
                page.wait_for_selector("#live[data-state=live]")
                samples = failover_seconds(page, admin, run.runs)
    except NoBrowser as error:
        raise Skip(str(error)) from error
    return Value(statistics.median(samples), len(samples))


# -- the whole road --------------------------------------------------------------------------------


@figure("page.real.changes_per_second", unit="changes/s", goal=10_000, better="higher")
def real_rate(run: Run) -> Value:
    """Changes a real node takes while it is shown: what the other figures of the road stand on."""
    return Value(_real(run).rate, 1)


@figure("page.real.browser_core_share", unit="share of a core", goal=0.05, better="lower")
def real_core_share(run: Run) -> Value:
    """CPU of the browser's processes that show a real node under that load."""
    return Value(_real(run).browser_share, 1)


@figure("page.real.browser_memory", unit="MB", goal=150, better="lower")
def real_memory(run: Run) -> Value:
    """Memory of the process that holds the page of a real node."""
    return Value(_real(run).memory / 1e6, 1)


@figure("page.real.node_core_share", unit="share of a core", goal=0.05, better="lower")
def real_node_share(run: Run) -> Value:
    """CPU of the node with a page open, less what it took before."""
    seen = _real(run)
    return Value(max(0.0, seen.node_share - seen.node_share_alone), 1)


@figure("page.real.failover_seconds", unit="s", goal=1.0, better="lower")
def real_failover(run: Run) -> Value:
    """From the lever's answer to the sentence on the page, under load."""
    seen = _real(run)
    return Value(seen.failover_seconds, seen.failovers)


def _real(run: Run) -> Real:
    from benchmarks._page_real import real

    return real(run)
