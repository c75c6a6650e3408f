"""`python -m tools.screenshots`: the demo's report in docs/demo and the pictures of docs/images.

The live page: a node, a writer, two consumers that keep up and one that does not; a vbucket that
fails over twice and loses something each time. The report: `headrace demo` as `make demo` runs it.
Everything shown is what really happened in those minutes; nothing is drawn in or taken out.
`make screenshots` calls it; a name behind it (``page``, ``report``) makes that part alone.

Imports: tools.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.browser import NoBrowser, chromium
from tools.live import ROOT, environment, loading, serving

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, Page

    from tools.live import Served

IMAGES: Final = ROOT / "docs" / "images"
REPORT: Final = ROOT / "docs" / "demo" / "report.html"
DEMO_OUT: Final = Path("build") / "demo"
"""Relative, as `make demo` has it: the report tells commands with this path."""
DEMO_SECONDS_MAX: Final = 300
SIZE_MAX: Final = 300 * 1024
VBUCKET: Final = 42
VBUCKETS: Final = 256
RATE: Final = 600
WARM_MILLISECONDS: Final = 45_000
BETWEEN_MILLISECONDS: Final = 9_000


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture: its file, the screen, and what of the page is shown."""

    name: str
    width: int
    height: int
    scheme: str = "light"
    scale: float = 1
    phone: bool = False
    part: str = ""
    margin: int = 0
    """Of the page, around that part."""


PAGE_SHOTS: Final = (
    Shot("page-light", 1360, 1290),
    Shot("page-dark", 1360, 1290, scheme="dark"),
    Shot("page-phone", 390, 844, scale=2, phone=True),
    Shot("vbucket", 1360, 1010, scale=1.5, part="#detail"),
)
REPORT_SHOTS: Final = (
    Shot("report-light", 1040, 1180),
    Shot("report-dark", 1040, 1180, scheme="dark"),
    Shot("report-phone", 390, 844, scale=2, phone=True),
    Shot("rollback", 1040, 900, part="#failover", margin=20),
)


def take(page: Page, shot: Shot) -> Path:
    """One picture of what is open now."""
    path = IMAGES / f"{shot.name}.png"
    if shot.part:
        box = page.locator(shot.part).bounding_box()
        assert box is not None, f"{shot.part} is on the page"
        clip = {
            "x": max(0.0, box["x"] - shot.margin),
            "y": max(0.0, box["y"] - shot.margin),
            "width": box["width"] + 2 * shot.margin,
            "height": box["height"] + 2 * shot.margin,
        }
        page.screenshot(path=path, clip=clip, full_page=True)
    else:
        page.screenshot(path=path)
    return path


def take_page(browser: Browser, served: Served, shot: Shot) -> Path:
    """One picture of the live page as it is now."""
    page, context = _open_page(browser, served, shot)
    page.wait_for_timeout(4_000)
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    path = take(page, shot)
    context.close()
    return path


def take_report(browser: Browser, shot: Shot) -> Path:
    """One picture of the report."""
    context = _context(browser, shot)
    page = context.new_page()
    page.goto(REPORT.as_uri())
    path = take(page, shot)
    context.close()
    return path


def _context(browser: Browser, shot: Shot) -> Any:  # noqa: ANN401 - Playwright's, untyped here
    return browser.new_context(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme=shot.scheme,
        device_scale_factor=shot.scale,
        is_mobile=shot.phone,
        has_touch=shot.phone,
    )


def _open_page(browser: Browser, served: Served, shot: Shot) -> tuple[Page, Any]:
    context = _context(browser, shot)
    page = context.new_page()
    page.goto(served.page)
    page.wait_for_selector("#live[data-state=live]")
    if not shot.phone:
        page.get_by_label("Open vbucket").fill(str(VBUCKET))
        page.get_by_label("Open vbucket").press("Enter")
        page.locator("#detail-close").wait_for()
    return page, context


def make_history(browser: Browser, served: Served) -> None:
    """Let some time pass, and fail a vbucket over twice."""
    page, context = _open_page(browser, served, PAGE_SHOTS[0])
    page.wait_for_timeout(WARM_MILLISECONDS)
    page.get_by_role("button", name="Log in").click()
    page.get_by_label("User").fill(served.user)
    page.get_by_label("Password").fill(served.password)
    page.locator("#login button[type=submit]").click()
    page.locator("#levers").wait_for()
    for lose in (30, 6):
        page.get_by_role("button", name="Fail over…").click()
        page.locator("#lever-lose").fill(str(lose))
        page.get_by_role("button", name="Pull…").click()
        page.locator("#confirm-yes").click()
        page.locator("#outcome", has_text="Done").wait_for()
        page.wait_for_timeout(BETWEEN_MILLISECONDS)
    context.close()


def picture_page(browser: Browser) -> list[Path]:
    """Every picture of the live page."""
    with (
        serving("--memory", "--vbuckets", str(VBUCKETS), "--bucket", "default") as served,
        loading(
            served.url, rate=RATE, consumers=("orders-sync:1", "search:7"), slow=("reports:2",)
        ),
    ):
        make_history(browser, served)
        return [take_page(browser, served, shot) for shot in PAGE_SHOTS]


def picture_report(browser: Browser) -> list[Path]:
    """The report of a demo that runs now, and every picture of it."""
    subprocess.run(  # noqa: S603 - our own interpreter and our own words
        [sys.executable, "-m", "headrace", "demo", "--out", str(DEMO_OUT)],
        cwd=ROOT,
        env=environment(),
        timeout=DEMO_SECONDS_MAX,
        check=True,
    )
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(ROOT / DEMO_OUT / REPORT.name, REPORT)
    return [REPORT, *(take_report(browser, shot) for shot in REPORT_SHOTS)]


PARTS: Final[dict[str, Callable[[Browser], list[Path]]]] = {
    "page": picture_page,
    "report": picture_report,
}


def main() -> int:
    """Make them; 1 when there is no browser or a file is too large to ship."""
    parser = argparse.ArgumentParser(prog="python -m tools.screenshots", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="page|report", help="only this; else all")
    chosen = parser.parse_args().parts or list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}; allowed: {', '.join(PARTS)}")
    IMAGES.mkdir(parents=True, exist_ok=True)
    large = False
    try:
        for name in chosen:
            with chromium() as browser:
                made = PARTS[name](browser)
            for path in made:
                size = path.stat().st_size
                large = large or size > SIZE_MAX
                sys.stdout.write(f"{path.relative_to(ROOT)}: {size:,} bytes\n")
    except NoBrowser as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return int(large)


if __name__ == "__main__":
    sys.exit(main())
