"""What people do at the page, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.client.bucket import connect
from headrace.client.writer import Document
from headrace.wire.values import vbucket_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tools.live import Served


def log_in(page: Page, served: Served, password: str | None = None) -> None:
    """Log in with the login that was printed, or with another password."""
    page.get_by_role("button", name="Log in").click()
    page.get_by_label("User").fill(served.user)
    page.get_by_label("Password").fill(served.password if password is None else password)
    page.locator("#login button[type=submit]").click()
    if password is None:
        page.locator("#login").wait_for(state="hidden")


def open_vbucket(page: Page, vbucket: int) -> None:
    """Open a vbucket by its number."""
    page.get_by_label("Open vbucket").fill(str(vbucket))
    page.get_by_label("Open vbucket").press("Enter")
    page.get_by_role("heading", name=f"Vbucket {vbucket}", exact=True).wait_for()


def write(served: Served, vbucket: int, count: int, *, vbuckets: int = 64) -> None:
    """Write so many documents into one vbucket."""
    found, number = 0, 0
    with connect(served.url) as bucket, bucket.writer() as writer:
        while found < count:
            key = b"k%d" % number
            number += 1
            if vbucket_of(key, vbuckets) == vbucket:
                writer.put(Document(key, b"1"))
                found += 1


def fail_over(page: Page, vbucket: int, lose: int) -> None:
    """Pull the lever and confirm; the page must be logged in."""
    open_vbucket(page, vbucket)
    page.get_by_role("button", name="Fail over…").click()
    page.locator("#lever-lose").fill(str(lose))
    page.get_by_role("button", name="Pull…").click()
    page.locator("#confirm-yes").click()
