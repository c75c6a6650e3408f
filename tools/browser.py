"""A Chromium for the tests of the live page, for its benchmark and for its screenshots.

Playwright drives it. The browser is the first of: the one HEADRACE_CHROMIUM names, the one that
`playwright install chromium` fetched, a Chromium or Chrome on the path (apt's, for one).
`python -m tools.browser` says which; with ``--install`` it tries to fetch one first.

Imports: nothing of ours.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page, Playwright

VARIABLE: Final = "HEADRACE_CHROMIUM"
NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSTALL_SECONDS_MAX: Final = 600
HINT: Final = "`make browser` installs both where it can"


class NoBrowser(Exception):
    """Playwright or a browser is missing; the text says which, and what to do."""


def find(playwright: Playwright) -> str:
    """The path of a browser."""
    named = os.environ.get(VARIABLE, "")
    if named:
        if not Path(named).is_file():
            raise NoBrowser(f"{VARIABLE} names {named}, which is not there")
        return named
    own: str = playwright.chromium.executable_path
    if own and Path(own).is_file():
        return own
    for name in NAMES:
        if found := shutil.which(name):
            return found
    raise NoBrowser(f"no Chromium: looked for {', '.join(NAMES)} and Playwright's own; {HINT}")


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser without a window, until the block ends; NoBrowser says what is missing."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise NoBrowser(f"the package playwright is missing; {HINT}") from error
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find(playwright),
            # A container has neither a user namespace for the sandbox nor room in /dev/shm; what is
            # shown is our own page.
            args=["--no-sandbox", "--disable-dev-shm-usage"],
        )
        try:
            yield browser
        finally:
            browser.close()


@dataclass(frozen=True, slots=True)
class Cost:
    """What a page's processes have taken so far: CPU seconds, and memory now."""

    renderer_seconds: float
    other_seconds: float
    """Of the processes that draw and fetch for every page: GPU and network."""
    memory: int
    """Bytes of the renderer that are its own, and its share of what is common (PSS)."""
    heap: int
    """Bytes of JavaScript objects."""


def cost_of(browser: Browser, page: Page) -> Cost:
    """The cost of a page that is the only one of its browser."""
    session = browser.new_browser_cdp_session()
    try:
        told = session.send("SystemInfo.getProcessInfo")["processInfo"]
    finally:
        session.detach()
    # A browser keeps a renderer in reserve: its share is counted, and small.
    renderers = [int(one["id"]) for one in told if one["type"] == "renderer"]
    others = [int(one["id"]) for one in told if one["type"] not in ("renderer", "browser")]
    client = page.context.new_cdp_session(page)
    try:
        client.send("Performance.enable")
        metrics = client.send("Performance.getMetrics")["metrics"]
    finally:
        client.detach()
    heap = next(one["value"] for one in metrics if one["name"] == "JSHeapUsedSize")
    return Cost(
        renderer_seconds=sum(map(cpu_seconds, renderers)),
        other_seconds=sum(map(cpu_seconds, others)),
        memory=max(map(_memory, renderers)),
        heap=int(heap),
    )


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far; 0 where the kernel does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> int:
    """The proportional set size of a process, in bytes; 0 where the kernel does not tell."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    line = next(line for line in text.splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) * 1024


def install() -> None:
    """Fetch Playwright's Chromium; whether it worked is seen by looking for a browser."""
    command = [sys.executable, "-m", "playwright", "install", "chromium"]
    subprocess.run(  # noqa: S603 - our own interpreter
        command, capture_output=True, timeout=INSTALL_SECONDS_MAX, check=False
    )


def main() -> int:
    """Say which browser there is; 1 when there is none."""
    parser = argparse.ArgumentParser(prog="python -m tools.browser", description=__doc__)
    parser.add_argument("--install", action="store_true", help="fetch one if there is none")
    options = parser.parse_args()
    for last in (not options.install, True):
        try:
            with chromium() as browser:
                sys.stdout.write(f"Chromium {browser.version}\n")
                return 0
        except NoBrowser as error:
            if last:
                sys.stderr.write(f"{error}\n")
                return 1
            install()
    return 1


if __name__ == "__main__":
    sys.exit(main())
