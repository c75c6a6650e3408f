"""The live page in a real browser: what it shows, how it is moved through, what it survives."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.browser.steps import open_vbucket, write
from tools.live import loading, serving

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page, Route

    from tools.live import Served

pytestmark = pytest.mark.browser

PHONE = {"width": 390, "height": 844}


def focused_label(page: Page) -> str:
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    return str(label)


def test_it_shows_the_bucket_and_goes_live(page: Page, served: Served) -> None:
    assert page.title() == "default · headrace"
    assert page.locator("#live-text").text_content() == "live"
    assert page.locator("#grid-count").text_content() == "64 in bucket default"
    before = page.locator("[data-tile=items]").text_content()
    write(served, 5, 30)
    page.wait_for_function(
        "before => document.querySelector('[data-tile=items]').textContent !== before", arg=before
    )


def test_the_keyboard_walks_the_grid_and_opens_a_vbucket(page: Page) -> None:
    page.locator(".cursor[tabindex='0']").focus()
    assert focused_label(page).startswith("vbucket 0, active")
    columns = int(page.locator("#grid").get_attribute("aria-colcount") or 0)
    steps = [
        ("ArrowRight", 1),
        ("ArrowDown", 1 + columns),
        ("ArrowLeft", columns),
        ("ArrowUp", 0),
        ("ArrowUp", 0),
        ("ArrowLeft", 0),
        ("End", columns - 1),
        ("Control+End", 63),
        ("ArrowRight", 63),
        ("Home", 64 - columns),
        ("Control+Home", 0),
    ]
    for key, vbucket in steps:
        page.keyboard.press(key)
        assert focused_label(page).startswith(f"vbucket {vbucket},"), key
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Vbucket 1", exact=True).wait_for()
    assert focused_label(page).startswith("vbucket 1,"), "the focus stays where it was"


def test_a_click_opens_the_vbucket_under_it(page: Page) -> None:
    cell = page.evaluate(
        "() => { const b = document.querySelector('#grid .ring');"
        "const c = document.querySelector('#grid canvas').getBoundingClientRect();"
        "const n = Number(document.querySelector('#grid').getAttribute('aria-colcount'));"
        "return { x: c.x + 38, y: c.y, size: (c.width - 38) / n, ringHidden: b.hidden }; }"
    )
    assert cell["ringHidden"]
    page.mouse.click(cell["x"] + 2.5 * cell["size"], cell["y"] + 0.5 * cell["size"])
    page.get_by_role("heading", name="Vbucket 2", exact=True).wait_for()
    assert page.locator("#grid .ring").is_visible()
    page.get_by_role("button", name="Close").click()
    assert page.locator("#grid .ring").is_hidden()
    page.get_by_text("Choose a vbucket to see").wait_for()


def test_a_vbucket_shows_its_numbers_and_its_one_branch(page: Page, served: Served) -> None:
    write(served, 9, 12)
    open_vbucket(page, 9)
    facts = page.locator("#detail .facts")
    facts.get_by_text("12", exact=True).first.wait_for()
    assert page.get_by_role("img", name="Branches: one branch, up to seqno 12").is_visible()
    assert page.locator("#detail table .uuid").count() == 1
    page.get_by_text("Nobody reads this vbucket.").wait_for()


def test_a_number_that_is_no_vbucket_opens_nothing(page: Page) -> None:
    page.get_by_label("Open vbucket").fill("64")
    page.get_by_label("Open vbucket").press("Enter")
    assert page.get_by_role("heading", name="Vbucket", exact=True).is_visible()


def test_consumers_are_listed_and_the_slow_one_says_why(page: Page, served: Served) -> None:
    with loading(served.url, rate=4000, consumers=("quick:1",), slow=("dawdler:1",)):
        slow = page.locator("#connections tr", has_text="dawdler:1")
        slow.get_by_text("window full, does not acknowledge").wait_for(timeout=90_000)
        assert slow.get_attribute("data-slow") == "true"
        meter = slow.get_by_role("meter", name="Flow-control window in use")
        assert int(meter.get_attribute("aria-valuenow") or 0) > 0
        assert page.locator("#connections tr", has_text="quick:1").count() == 1
        slow.get_by_role("button", name="Streams of dawdler:1").click()
        page.get_by_text("16 streams; the furthest behind").wait_for()
        page.locator(".streams button").first.click()
        page.locator("#detail-close").wait_for()
        page.wait_for_function("document.querySelector('.line.written').getAttribute('d').length")
        label = page.locator("#plot-rate").get_attribute("aria-label") or ""
        assert label.startswith("Throughput in changes per second: written now")
    page.locator("#happenings", has_text="dawdler:1 left").wait_for()


def test_cells_are_coloured_by_state_too_and_the_legend_follows(page: Page) -> None:
    assert "nobody reads it" in (page.locator("#legend").text_content() or "")
    page.get_by_role("radio", name="State").check(force=True)
    legend = page.locator("#legend").text_content() or ""
    assert [word for word in ("active", "replica", "pending", "dead") if word not in legend] == []
    painted = page.evaluate(
        "() => { const c = document.querySelector('#grid canvas');"
        "const r = window.devicePixelRatio;"
        "return [...c.getContext('2d').getImageData(45 * r, 8 * r, 1, 1).data]; }"
    )
    assert painted == [0, 0x72, 0xB2, 255], "an active vbucket's colour in the light theme"


def test_everything_comes_from_this_one_place(browser: Browser, served: Served) -> None:
    context = browser.new_context()
    page = context.new_page()
    asked: set[str] = set()
    page.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
    page.goto(served.page)
    page.wait_for_selector("#live[data-state=live]")
    page.wait_for_timeout(1000)
    context.close()
    assert asked == {urlsplit(served.page).netloc}


def test_a_phone_gets_one_column_and_no_sideways_scrolling(
    browser: Browser, served: Served
) -> None:
    context = browser.new_context(viewport=PHONE, is_mobile=True, has_touch=True)
    page = context.new_page()
    page.goto(served.page)
    page.wait_for_selector("#live[data-state=live]")
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= PHONE["width"]
    lefts = page.evaluate(
        "[...document.querySelectorAll('main .card:not([hidden])')]"
        ".map(one => Math.round(one.getBoundingClientRect().left))"
    )
    assert len(set(lefts)) == 1
    tops = page.evaluate(
        "['vbuckets', 'detail', 'plots', 'connections', 'happened', 'tables']"
        ".map(id => document.getElementById(id).getBoundingClientRect().top)"
    )
    assert tops == sorted(tops)
    page.locator("#grid canvas").tap(position={"x": 50, "y": 6})
    page.get_by_role("heading", name="Vbucket 0", exact=True).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    context.close()


def test_tables_are_shown_with_their_vectors(page: Page, served: Served) -> None:
    vector = [0] * 64
    vector[3] = 7
    told = {
        "given": True,
        "tables": [
            {
                "name": "lake",
                "path": "lake",
                "turn": 4,
                "version": 5,
                "rows": 12345,
                "vbuckets": 64,
                "vector": vector,
            },
            {"name": "new", "path": "new", "error": "no table is here yet"},
        ],
    }

    def with_tables(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"tables": True})

    page.route("**/api/session", with_tables)
    page.route("**/api/tables", lambda route: route.fulfill(body=json.dumps(told)))
    page.goto(served.page)
    lake = page.locator("#tables article", has_text="lake")
    lake.get_by_text("12,345").wait_for()
    lake.get_by_text("Published vector").click()
    assert "3: 7" in (lake.locator(".vector").text_content() or "")
    page.get_by_text("no table is here yet").wait_for()


def test_a_page_that_lost_its_node_says_so_and_finds_it_again(browser: Browser) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    context = browser.new_context()
    page = context.new_page()
    with serving("--memory", "--vbuckets", "2", web=port) as first:
        page.goto(first.page)
        page.wait_for_selector("#live[data-state=live]")
    page.get_by_text("The page lost its connection").wait_for(timeout=30_000)
    assert page.locator("#live-text").text_content() == "lost"
    with serving("--memory", "--vbuckets", "4", web=port):
        page.wait_for_selector("#live[data-state=live]", timeout=90_000)
        page.get_by_text("4 in bucket default").wait_for()
        assert page.locator("#banner").is_hidden()
    context.close()


def test_watching_from_outside_needs_no_page_at_the_node(
    browser: Browser, served: Served, tmp_path: Path
) -> None:
    from tools.live import watching

    with watching(served.url, tmp_path / "url") as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("#live[data-state=live]")
        page.get_by_text("64 in bucket default").wait_for()
        page.locator("#connections tr", has_text="headrace-watch:").wait_for(timeout=90_000)
        assert page.get_by_role("button", name="Log in").is_hidden()
        open_vbucket(page, 3)
        page.get_by_text("This page's consumer").wait_for(timeout=90_000)
        context.close()
