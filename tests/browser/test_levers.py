"""Logging in and pulling levers, in a real browser."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.browser.steps import fail_over, log_in, open_vbucket, write
from tools.live import serving

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from tools.live import Served

pytestmark = pytest.mark.browser


def test_without_a_login_there_are_no_levers(page: Page) -> None:
    open_vbucket(page, 1)
    assert page.locator("#levers").is_hidden()
    assert page.get_by_role("button", name="Fail over…").count() == 0


def test_a_wrong_password_is_said_and_nothing_opens(
    page: Page, served: Served, trouble: list[str]
) -> None:
    log_in(page, served, password="wrong")  # noqa: S106 - it is
    page.get_by_text("wrong user or password.").wait_for()
    assert page.locator("#levers").is_hidden()
    # The browser itself reports a 401 on its console.
    assert all("401" in text for text in trouble)
    trouble.clear()


def test_a_failover_by_lever_appears_everywhere(page: Page, served: Served) -> None:
    write(served, 7, 40)
    log_in(page, served)
    fail_over(page, 7, 15)
    page.locator("#outcome", has_text="Done: failover.").wait_for()
    sentence = "vbucket 7 failed over at seqno 25: 15 seqnos lost"
    page.locator("#happenings", has_text=sentence).wait_for()
    assert sentence in (page.locator("#announce").text_content() or "")
    page.get_by_role("img", name="Branches: 2 branches; rollback points at seqno 25").wait_for()
    rows = page.locator("#detail .part", has_text="Branches").locator("tbody tr")
    assert [cell.strip() for cell in rows.nth(1).locator("td").all_text_contents()] == [
        "0",
        "25",
        "15",
    ]
    label = page.locator(".cursor[tabindex='0']").get_attribute("aria-label") or ""
    assert label.startswith("vbucket 7,")
    assert "failed over within a minute" in label


def test_a_lever_that_is_not_confirmed_does_nothing(page: Page, served: Served) -> None:
    write(served, 8, 10)
    log_in(page, served)
    open_vbucket(page, 8)
    page.get_by_role("button", name="Fail over…").click()
    page.get_by_role("button", name="Pull…").click()
    assert page.evaluate("document.activeElement.id") == "confirm-no"
    page.keyboard.press("Enter")
    page.locator("#confirm").wait_for(state="hidden")
    page.get_by_role("button", name="Pull…").click()
    page.keyboard.press("Escape")
    page.locator("#confirm").wait_for(state="hidden")
    assert page.locator("#outcome").text_content() == ""
    assert page.get_by_role("img", name="Branches: one branch").is_visible()


def test_a_lever_that_cannot_be_pulled_says_why(
    page: Page, served: Served, trouble: list[str]
) -> None:
    log_in(page, served)
    page.get_by_label("Lever", exact=True).select_option("pause")
    page.locator("#lever-connection").fill("nobody")
    page.get_by_role("button", name="Pull…").click()
    page.locator("#confirm-yes").click()
    page.locator("#outcome", has_text="Not done: no connection is 'nobody'").wait_for()
    assert all("400" in text for text in trouble)
    trouble.clear()


def test_every_lever_of_the_node_has_its_form(page: Page, served: Served) -> None:
    log_in(page, served)
    choose = page.get_by_label("Lever", exact=True)
    choose.wait_for()
    names = choose.locator("option").all_text_contents()
    assert {"failover", "rollback", "purge", "drop-cursor", "pause", "slow", "cut"} <= set(names)
    for name in names:
        choose.select_option(name)
        page.locator(".does").wait_for()
        assert page.locator("#levers form").get_by_role("button", name="Pull…").is_visible()


def test_logging_out_takes_the_levers_away(page: Page, served: Served) -> None:
    log_in(page, served)
    page.locator("#levers").wait_for()
    page.get_by_role("button", name="Log out Administrator").click()
    page.locator("#levers").wait_for(state="hidden")
    page.reload()
    page.wait_for_selector("#live[data-state=live]")
    assert page.get_by_role("button", name="Log in").is_visible()


def test_a_login_lasts_over_a_reload(page: Page, served: Served) -> None:
    log_in(page, served)
    page.locator("#levers").wait_for()
    page.reload()
    page.locator("#levers").wait_for()


def test_a_failover_from_elsewhere_appears_by_itself(browser: Browser, admin_file: Path) -> None:
    """How long it takes is printed, not asserted: the machine has other things to do."""
    with serving("--memory", "--vbuckets", "64", "--admin-file", str(admin_file)) as served:
        write(served, 3, 30)
        admin = json.loads(admin_file.read_text(encoding="utf-8"))
        context = browser.new_context()
        page = context.new_page()
        page.goto(served.page)
        page.wait_for_selector("#live[data-state=live]")
        seconds = []
        for number in range(5):
            body = {"lever": "failover", "vbucket": 3, "seqno": 20 - number}
            request = urllib.request.Request(  # noqa: S310 - our own node
                f"{admin['url']}/faults",
                json.dumps(body).encode(),
                {"Authorization": f"Bearer {admin['token']}"},
            )
            page.wait_for_timeout(137 * number)
            began = time.monotonic()
            urllib.request.urlopen(request).close()  # noqa: S310 - our own node
            page.locator("#happenings", has_text=f"failed over at seqno {20 - number}:").wait_for()
            seconds.append(time.monotonic() - began)
        context.close()
    print(f"\na failover is on the page after {', '.join(f'{one:.2f}' for one in seconds)} s")  # noqa: T201
