"""The site is built from the docs as they are, whole, the same each time, and asks nobody."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Final

import click
import pytest

from headrace.cli import main as command_line
from tests.doc_commands import FENCE as LANGUAGE_FENCE
from tests.test_docs import FENCE, ROOT, is_there, pages, paths_in
from tools import docs

if TYPE_CHECKING:
    from pathlib import Path

# Attributes that make a browser fetch something; a link (`a`) waits for a click.
FETCHING: Final = frozenset({"src", "srcset", "poster", "data", "action"})
REMOTE_STYLE: Final = re.compile(r"@import|url\(\s*['\"]?(?!data:)", re.IGNORECASE)
REMOTE_SCRIPT: Final = re.compile(r"https?://|//[a-z]+\.[a-z]", re.IGNORECASE)


class Seen(HTMLParser):
    """What a page fetches, where it leads, and the anchors it has."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in FETCHING or (tag == "link" and name == "href"):
                self.fetched.append(value or "")
            elif tag == "a" and name == "href":
                self.links.append(value or "")


def seen(path: Path) -> Seen:
    found = Seen()
    found.feed(path.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    docs.Site(out).build()
    return out


def test_every_page_is_built(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        place = docs.place_of(page.relative_to(ROOT).as_posix())
        assert (site / place).is_file(), place
    assert (site / "index.html").is_file()


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page in sorted(site.rglob("*.html")):
        for address in seen(page).fetched:
            assert address.startswith("data:,") or (page.parent / address).is_file(), (
                f"{page.relative_to(site)} fetches {address}"
            )
    for style in site.rglob("*.css"):
        assert not REMOTE_STYLE.search(style.read_text(encoding="utf-8")), style.name
    for script in ("theme.js", "search.js"):
        assert not REMOTE_SCRIPT.search((site / "assets" / script).read_text(encoding="utf-8"))


def test_every_link_leads_to_a_page_and_an_anchor_that_is_there(site: Path) -> None:
    every = {page.resolve(): seen(page) for page in site.rglob("*.html")}
    for page, found in every.items():
        for link in found.links:
            if re.match(r"https?:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert target.is_file(), f"{page.name}: {link}"
            assert not anchor or target not in every or anchor in every[target].anchors, link


def test_the_search_finds_sections_that_are_there(site: Path) -> None:
    text = (site / "assets" / "search-index.js").read_text(encoding="utf-8")
    sections = json.loads(text.partition(" = ")[2].removesuffix(";\n"))
    assert len(sections) > 200
    every = {page.relative_to(site).as_posix(): seen(page).anchors for page in site.rglob("*.html")}
    for place, title, anchor, _ in sections:
        assert title
        assert not anchor or anchor in every[place], f"{place}#{anchor}"
    rollback = [one for one in sections if one[0] == "explanation/rollback.html"]
    assert any("failover log" in one[3] for one in rollback)


def test_the_same_docs_make_the_same_bytes(site: Path, tmp_path: Path) -> None:
    docs.Site(tmp_path).build()
    first = {path.relative_to(site): path.read_bytes() for path in site.rglob("*.*")}
    second = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.*")}
    assert first == second


# -- planted mistakes ------------------------------------------------------------------------------


def planted(root: Path, text: str, name: str = "docs/index.md") -> docs.Site:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return docs.Site(root / "out", root)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("# A\n\n[b](gone.md)\n", "links to gone.md, which is no page and no file"),
        ("# A\n\n[b](#gone)\n", "links to #gone, and no heading there has that anchor"),
        ("no heading\n", "does not begin with a heading of level 1"),
        ("# A\n\n```nolanguage\nx\n```\n", "'nolanguage', which nobody can colour"),
        ("# A\n\n[b](../../secret)\n", "links to ../../secret, which is no page and no file"),
    ],
)
def test_a_mistake_is_said_with_its_page(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path.parent / "secret").write_text("", encoding="utf-8")
    with pytest.raises(docs.BadPage, match=re.escape(complaint)):
        planted(tmp_path, text).build()


def test_a_page_that_no_section_takes_is_found(tmp_path: Path) -> None:
    with pytest.raises(docs.BadPage, match=r"no section of tools/docs\.py takes lost\.md"):
        planted(tmp_path, "# Lost\n", "docs/new/lost.md")


def test_what_a_page_says_cannot_become_a_script(tmp_path: Path) -> None:
    planted(tmp_path, "# <b>A</b> & B\n\n`<script>` and a [link](https://x.org)\n").build()
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "<code>&lt;script&gt;</code>" in page
    assert "<title>A &amp; B - headrace</title>" in page or "&lt;b&gt;" in page


def test_anchors_are_those_of_forges() -> None:
    taken: set[str] = set()
    assert docs.anchor_of("`headrace serve --config FILE`", taken) == "headrace-serve---config-file"
    assert docs.anchor_of("OPEN (0x50)", taken) == "open-0x50"
    assert docs.anchor_of("OPEN (0x50)", taken) == "open-0x50-1"


# -- what the pages say ----------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["howto", "explanation", "reference"])
def test_every_path_named_is_there(folder: str) -> None:
    for page in sorted((ROOT / "docs" / folder).glob("*.md")):
        for path in paths_in(page.read_text(encoding="utf-8")):
            # A reader's own files have no directory of ours in front.
            if path.split("/")[0] in {"src", "tests", "docs", "examples", "tools", "benchmarks"}:
                assert is_there(ROOT / path), f"{page.name} names {path}"


def shown_commands() -> list[tuple[str, str]]:
    """Commands in blocks that are only shown: of clusters and servers a test does not have."""
    found = []
    for page in pages():
        for language, block in LANGUAGE_FENCE.findall(page.read_text(encoding="utf-8")):
            if language not in ("", "text"):
                continue
            found += [
                (page.relative_to(ROOT).as_posix(), line.partition(" #")[0].strip())
                for line in block.splitlines()
                if re.match(r"headrace [a-z]", line) and "[OPTIONS]" not in line
            ]
    return found


@pytest.mark.parametrize(("page", "line"), shown_commands())
def test_a_command_that_is_shown_exists_with_its_options(page: str, line: str) -> None:
    words = line.split()[1:]
    command: click.Command = command_line
    context = click.Context(command_line)
    while words and isinstance(command, click.Group):
        while words and words[0].startswith("-"):
            words = words[2:]
        inner = command.get_command(context, words[0])
        if inner is None:
            break
        command, words = inner, words[1:]
    assert command is not command_line, f"{page}: {line} names no command"
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    strange = [word for word in words if word.startswith("--") and word.split("=")[0] not in known]
    assert strange == [], f"{page}: {line}"


def test_fences_are_closed() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        assert "```" not in FENCE.sub("", text), page.name
