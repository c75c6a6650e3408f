"""A browser for the session, and a node with its page for each test that asks for one.

Without Playwright or a Chromium these tests skip, visibly; where CI=true they fail instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools.browser import NoBrowser, chromium
from tools.live import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from tools.live import Served


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The one browser."""
    try:
        with chromium() as started:
            yield started
    except NoBrowser as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A node of 64 vbuckets with its page, for the tests of one file."""
    with serving("--memory", "--vbuckets", "64") as node:
        yield node


@pytest.fixture
def trouble() -> list[str]:
    """What a page complained about; a test that opens one wants this to stay empty."""
    return []


@pytest.fixture
def page(browser: Browser, served: Served, trouble: list[str]) -> Iterator[Page]:
    """A page that has heard its first state; at the end it must have complained about nothing."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    shown = context.new_page()
    shown.on("console", lambda said: trouble.extend([said.text] * (said.type == "error")))
    shown.on("pageerror", lambda error: trouble.append(str(error)))
    shown.goto(served.page)
    shown.wait_for_selector("#live[data-state=live]")
    yield shown
    context.close()
    assert trouble == []


@pytest.fixture
def admin_file(tmp_path: Path) -> Path:
    """Where a node may write the address of its levers."""
    return tmp_path / "admin.json"
