"""Everyone can use it: names, contrast, themes, motion; and nobody else can script it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.browser.steps import log_in, open_vbucket, write
from tools.live import loading

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

    from tools.live import Served

pytestmark = pytest.mark.browser

CONTRAST_MIN: Final = 4.5
SHIFT_MAX: Final = 0.05
NAMED: Final = frozenset(
    {
        "button",
        "checkbox",
        "combobox",
        "dialog",
        "grid",
        "gridcell",
        "image",
        "link",
        "meter",
        "radio",
        "radiogroup",
        "region",
        "spinbutton",
        "table",
        "textbox",
    }
)

# Every visible text against what lies behind it, by the formula of WCAG 2.
CONTRASTS: Final = """() => {
  const canvas = document.createElement('canvas');
  canvas.width = canvas.height = 1;
  const pen = canvas.getContext('2d', { willReadFrequently: true });
  const rgba = (text) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = text;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return { c: [r, g, b], a: a / 255 };
  };
  const light = (c) => {
    const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = c.map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const found = rgba(getComputedStyle(one).backgroundColor);
      if (found.a > 0.99) return found.c;
    }
    return rgba(getComputedStyle(document.body).backgroundColor).c;
  };
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some((one) => one.nodeType === 3 && one.textContent.trim());
    const hidden = element.closest('.unseen, .skip, dialog:not([open])');
    if (!own || hidden || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const svg = element.namespaceURI.endsWith('svg');
    const [a, b] = [light(rgba(svg ? style.fill : style.color).c), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found.push([element.textContent.trim().slice(0, 40), ratio]);
  }
  return found;
}"""


def tree(page: Page) -> list[dict[str, Any]]:
    """The accessibility tree as Chromium hands it to a screen reader."""
    session = page.context.new_cdp_session(page)
    nodes: list[dict[str, Any]] = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    return [node for node in nodes if not node.get("ignored")]


def word(node: dict[str, Any], key: str) -> str:
    return str(node.get(key, {}).get("value", ""))


@pytest.fixture
def busy(page: Page, served: Served) -> Page:
    """A page with something of everything on it."""
    write(served, 5, 30)
    log_in(page, served)
    open_vbucket(page, 5)
    return page


def test_every_control_has_a_name(busy: Page, served: Served) -> None:
    with loading(served.url, rate=200, consumers=("named:1",)):
        busy.locator("#connections tr", has_text="named:1").wait_for(timeout=90_000)
        nodes = tree(busy)
    nameless = [word(node, "role") for node in nodes if not word(node, "name")]
    assert [role for role in nameless if role in NAMED] == []
    roles = {word(node, "role") for node in nodes}
    assert {"banner", "main", "contentinfo", "grid", "gridcell", "meter", "radio"} <= roles


def test_headings_go_down_by_one(busy: Page) -> None:
    levels = busy.evaluate(
        "[...document.querySelectorAll('h1, h2, h3, h4')]"
        ".filter(one => one.checkVisibility()).map(one => Number(one.tagName[1]))"
    )
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read_on_what_is_behind_it(busy: Page, scheme: str) -> None:
    busy.emulate_media(color_scheme=scheme)
    contrasts = busy.evaluate(CONTRASTS)
    assert len(contrasts) > 60, "texts are found"
    assert [one for one in contrasts if one[1] < CONTRAST_MIN] == []


def test_the_open_dialogs_can_be_read_too(page: Page) -> None:
    page.get_by_role("button", name="Log in").click()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        contrasts = page.evaluate(CONTRASTS)
        assert [one for one in contrasts if one[1] < CONTRAST_MIN] == []


@pytest.mark.parametrize("goes_on", [False, True])
def test_an_answer_takes_the_focus_only_from_who_waited_for_it(
    goes_on: bool, page: Page, served: Served
) -> None:
    write(served, 5, 3)
    held: list[Route] = []
    page.route("**/api/vbucket?*", lambda route: held.append(route))
    open_vbucket(page, 5)
    page.wait_for_function("() => document.activeElement.id === 'goto-number'")
    if goes_on:
        page.locator(".skip").focus()
    for route in held:
        route.continue_()
    page.unroute("**/api/vbucket?*")
    page.locator("#detail-state", has_text="active").wait_for()
    page.wait_for_timeout(100)
    focused = page.evaluate("document.activeElement.id || document.activeElement.className")
    assert focused == ("skip" if goes_on else "detail")


def test_the_focus_is_seen_on_everything_it_stops_at(busy: Page) -> None:
    # The link before everything, which is seen when it has the focus.
    busy.locator(".skip").focus()
    seen: list[str] = []
    for _ in range(60):
        found = busy.evaluate(
            "() => { const one = document.activeElement;"
            "if (one === document.body) return null;"
            "const shown = one.matches('.modes input') ? one.nextElementSibling : one;"
            "const style = getComputedStyle(shown);"
            "const name = one.id || one.className || one.tagName;"
            "return [name, style.outlineStyle, style.outlineWidth]; }"
        )
        if found is None:
            break
        seen.append(found[0])
        assert found[1] != "none", found
        assert float(found[2].removesuffix("px")) >= 1, found
        busy.keyboard.press("Tab")
    assert {"theme", "cursor", "goto-number", "lever"} <= set(seen)
    assert seen[0] == "skip"


def background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


def test_it_is_dark_when_the_system_is_and_a_choice_wins_and_stays(
    browser: Browser, served: Served
) -> None:
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto(served.page)
    page.wait_for_selector("#live[data-state=live]")
    dark = background(page)
    page.emulate_media(color_scheme="light")
    light = background(page)
    assert dark != light
    page.get_by_role("button", name="Theme: automatic").click()
    page.get_by_role("button", name="Theme: light").click()
    assert page.get_by_role("button", name="Theme: dark").is_visible()
    assert background(page) == dark
    page.reload()
    page.wait_for_selector("#live[data-state=live]")
    assert background(page) == dark
    context.close()


def test_nothing_moves_for_who_asked_for_that(browser: Browser, served: Served) -> None:
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(served.page)
    page.wait_for_selector("#live[data-state=live]")
    assert page.evaluate(
        "[...document.querySelectorAll('*')]"
        ".every(one => getComputedStyle(one).transitionDuration.split(', ').every(t => t === '0s')"
        " && getComputedStyle(one).animationName === 'none')"
    )
    context.close()


def test_nothing_jumps_while_it_loads_and_lives(browser: Browser, served: Served) -> None:
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    page = context.new_page()
    page.add_init_script(
        "window.shift = 0; new PerformanceObserver(list => { for (const one of list.getEntries())"
        " if (!one.hadRecentInput) window.shift += one.value; })"
        ".observe({ type: 'layout-shift', buffered: true });"
    )
    page.goto(served.page)
    page.wait_for_selector("#live[data-state=live]")
    with loading(served.url, rate=500):
        page.wait_for_timeout(3000)
    shift = page.evaluate("window.shift")
    context.close()
    assert shift < SHIFT_MAX


def test_an_inline_script_does_not_run(page: Page, trouble: list[str]) -> None:
    page.evaluate(
        "() => { window.ran = false; window.violated = [];"
        "document.addEventListener('securitypolicyviolation',"
        " event => window.violated.push(event.violatedDirective));"
        "const script = document.createElement('script');"
        "try { script.text = 'window.ran = true'; } catch { window.violated.push('types'); }"
        "document.body.append(script);"
        "const image = document.createElement('img');"
        "image.src = 'http://127.0.0.2:9/pixel.png'; document.body.append(image); }"
    )
    page.wait_for_function("window.violated.length >= 2")
    assert page.evaluate("window.ran") is False
    assert "img-src" in page.evaluate("window.violated.join()")
    trouble.clear()


def test_a_source_with_an_odd_name_is_text_and_nothing_else(page: Page, served: Served) -> None:
    name = "<img src=x onerror=alert(1)>:1"
    with loading(served.url, rate=100, consumers=(name,)):
        page.locator("#connections .who", has_text=name).wait_for(timeout=90_000)
        assert page.locator("#connections img").count() == 0
