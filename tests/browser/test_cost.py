"""What the page costs a browser, and its node, under load: measured and printed.

Twice: over a real node, whose writer and consumer share the machine with the browser and reach the
rate they reach, and over a made-up source that has the rate however busy the machine is. Nothing is
asserted by time: how fast a shared machine is says nothing about the page.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import pytest

from benchmarks.page import made_up
from tools.browser import cost_of, cpu_seconds
from tools.live import loading, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

VBUCKETS: Final = 1024
RATE: Final = 10_000
WARM_MILLISECONDS: Final = 3_000
SECONDS: Final = 12.0


def opened(browser: Browser, address: str) -> Page:
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("#live[data-state=live]")
    return page


def measure(browser: Browser, page: Page, what: str) -> None:
    """Let the page live for a while and print what that took."""
    page.wait_for_timeout(WARM_MILLISECONDS)
    before, began = cost_of(browser, page), time.monotonic()
    page.wait_for_timeout(SECONDS * 1000)
    after, passed = cost_of(browser, page), time.monotonic() - began
    written = page.locator("[data-tile=written]").text_content()
    renderer = (after.renderer_seconds - before.renderer_seconds) / passed
    other = (after.other_seconds - before.other_seconds) / passed
    print(  # noqa: T201 - this test is a measurement
        f"\n{what}, {VBUCKETS} vbuckets, {written} changes/s at the end, over {passed:.0f} s: "
        f"renderer {renderer:.1%} of a core, GPU and network processes {other:.1%}, memory "
        f"{after.memory / 1e6:.0f} MB (heap {after.heap / 1e6:.1f} MB)"
    )
    assert after.renderer_seconds > before.renderer_seconds, "something was measured"


def test_the_page_of_a_node_under_load(browser: Browser) -> None:
    with serving("--memory", "--vbuckets", str(VBUCKETS)) as served:
        page = opened(browser, served.page)
        with loading(served.url, rate=RATE, consumers=("reader:1",)):
            page.locator("#connections tr", has_text="reader:1").wait_for(timeout=90_000)
            before, began = cpu_seconds(served.pid), time.monotonic()
            measure(browser, page, "a node")
            share = (cpu_seconds(served.pid) - before) / (time.monotonic() - began)
            print(f"the node itself: {share:.0%} of a core")  # noqa: T201 - as above
        page.context.close()


def test_the_page_of_a_source_that_always_has_the_rate(browser: Browser) -> None:
    with made_up(RATE, VBUCKETS) as address:
        page = opened(browser, address)
        measure(browser, page, "a made-up source")
        page.context.close()
