"""`python -m tools.screenshots`: the pictures of the live page in docs/images, taken anew.

A node, a writer, two consumers that keep up and one that does not; a vbucket that fails over twice
and loses something each time. Everything shown is what really happened in that minute; nothing is
drawn in. `make screenshots` calls it.

Imports: tools.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.browser import NoBrowser, chromium
from tools.live import loading, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from tools.live import Served

IMAGES: Final = Path(__file__).resolve().parent.parent / "docs" / "images"
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


SHOTS: Final = (
    Shot("page-light", 1360, 1290),
    Shot("page-dark", 1360, 1290, scheme="dark"),
    Shot("page-phone", 390, 844, scale=2, phone=True),
    Shot("vbucket", 1360, 1010, scale=1.5, part="#detail"),
)


def take(browser: Browser, served: Served, shot: Shot) -> Path:
    """One picture of the page as it is now."""
    page, context = _open(browser, served, shot)
    page.wait_for_timeout(4_000)
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    path = IMAGES / f"{shot.name}.png"
    if shot.part:
        page.locator(shot.part).screenshot(path=path)
    else:
        page.screenshot(path=path)
    context.close()
    return path


def _open(browser: Browser, served: Served, shot: Shot) -> tuple[Page, Any]:
    context = browser.new_context(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme=shot.scheme,
        device_scale_factor=shot.scale,
        is_mobile=shot.phone,
        has_touch=shot.phone,
    )
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
    shot = SHOTS[0]
    page, context = _open(browser, served, shot)
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


def main() -> int:
    """Take them all; 1 when there is no browser or a picture is too large to ship."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    large = False
    try:
        with (
            chromium() as browser,
            serving("--memory", "--vbuckets", str(VBUCKETS), "--bucket", "default") as served,
            loading(
                served.url, rate=RATE, consumers=("orders-sync:1", "search:7"), slow=("reports:2",)
            ),
        ):
            make_history(browser, served)
            for shot in SHOTS:
                path = take(browser, served, shot)
                size = path.stat().st_size
                large = large or size > SIZE_MAX
                sys.stdout.write(f"{path.name}: {size:,} bytes\n")
    except NoBrowser as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return int(large)


if __name__ == "__main__":
    sys.exit(main())
