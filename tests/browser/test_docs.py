"""The documentation's site in Chromium: from a file, without a server, asking nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools import docs

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    docs.Site(out).build()
    return out


def test_a_reader_searches_and_arrives(browser: Browser, site: Path, trouble: list[str]) -> None:
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda said: trouble.extend([said.text] * (said.type == "error")))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("no boundary to go to")
    page.wait_for_selector("#found a")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/explanation/rollback.html#when-there-is-no-boundary-to-go-to")
    assert page.text_content("h1") == "Rollback"
    assert trouble == []
    assert all(url.startswith((site.as_uri(), "data:,")) for url in asked)
    context.close()


def test_the_theme_is_the_systems_until_one_is_chosen(browser: Browser, site: Path) -> None:
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto((site / "index.html").as_uri())
    back = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(back)
    page.click("#theme")
    light = page.evaluate(back)
    assert dark != light
    page.reload()
    assert page.evaluate(back) == light, "the choice is kept"
    context.close()


@pytest.mark.parametrize("place", ["index.html", "reference/cli.html", "comparison.html"])
def test_a_phone_needs_no_scrolling_sideways(place: str, browser: Browser, site: Path) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844})
    page = context.new_page()
    page.goto((site / place).as_uri())
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    assert not page.is_visible("nav.pages")
    page.click("#menu")
    assert page.is_visible("nav.pages")
    context.close()
