"""Build the documentation as a site: Markdown under docs/ to HTML in build/docs, without a network.

``python -m tools.docs [OUT]``. markdown-it-py and Pygments, which rich brings along for the command
line, do the parsing and the colours; the frame around a page is here, style and search are the
files of tools/docs_site. What is built needs no server (it works from a file) and asks nobody for
anything.

Rules.
- A page is where its Markdown is: docs/guide/serve.md becomes guide/serve.html.
- `SECTIONS` gives the order; a Markdown file below docs/ that no section takes is an error.
- A link to a page becomes a link to its HTML, one to another file of the project brings a copy of
  that file along. A link that leads nowhere, in file or heading, is an error with its page.
- The same input gives the same bytes.

Imports: nothing of ours.
"""

from __future__ import annotations

import html
import json
import os
import posixpath
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markdown_it.token import Token

ROOT: Final = Path(__file__).resolve().parent.parent
ASSETS: Final = Path(__file__).resolve().parent / "docs_site"
OUT: Final = ROOT / "build" / "docs"
SECTIONS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("Start", ("docs/index.md", "docs/tutorial.md")),
    ("How to", ("docs/howto/*.md",)),
    ("Guides", ("docs/guide/cli.md", "docs/guide/*.md")),
    (
        "Why it works",
        (
            "docs/explanation/history.md",
            "docs/explanation/snapshots.md",
            "docs/explanation/rollback.md",
            "docs/explanation/exactly-once.md",
            "docs/explanation/*.md",
            "docs/comparison.md",
            "docs/figures.md",
        ),
    ),
    (
        "Reference",
        ("docs/reference/cli.md", "docs/reference/*.md", "docs/protocol.md", "docs/GLOSSARY.md"),
    ),
    (
        "Project",
        (
            "docs/ARCHITECTURE.md",
            "docs/storage.md",
            "docs/decisions/README.md",
            "docs/decisions/*.md",
            "CONTRIBUTING.md",
            "CHANGELOG.md",
            "benchmarks/README.md",
            "docs/*.md",
        ),
    ),
)
STYLES: Final = (("light", "default"), ("dark", "github-dark"))
_REMOTE: Final = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


class BadPage(Exception):
    """A page cannot be built; the text says which, and what is wrong."""


@dataclass
class Page:
    """One page: where it comes from, where it goes, and what it says."""

    source: Path
    name: str
    """Its path in the project."""
    section: str
    tokens: Sequence[Token] = ()
    title: str = ""
    headings: list[tuple[int, str, str]] = field(default_factory=list)
    """Level, text and anchor of every heading."""

    @property
    def place(self) -> str:
        """Where it goes."""
        return place_of(self.name)

    @property
    def up(self) -> str:
        """From the page to the top of the site."""
        return "../" * self.place.count("/")


def place_of(name: str) -> str:
    """Where the page of a Markdown file goes."""
    parts = PurePosixPath(name).with_suffix(".html").parts
    parts = parts[1:] if parts[0] == "docs" else ("project", "-".join(parts).lower())
    return "/".join("index.html" if part == "README.html" else part for part in parts)


def anchor_of(text: str, taken: set[str]) -> str:
    """The anchor of a heading, as forges make it."""
    plain = re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
    anchor, number = plain, 0
    while anchor in taken:
        number += 1
        anchor = f"{plain}-{number}"
    taken.add(anchor)
    return anchor


def plain_text(token: Token) -> str:
    """What a reader reads of an inline token."""
    return "".join(
        " " if child.type in ("softbreak", "hardbreak") else child.content
        for child in token.children or ()
        if child.type in ("text", "code_inline", "softbreak", "hardbreak")
    )


class Site:
    """Every page, and how they are tied together."""

    def __init__(self, out: Path, root: Path = ROOT) -> None:
        """Read and parse the pages of a project."""
        self.out = out
        self.root = root
        self._markdown = MarkdownIt("commonmark").enable(["table", "strikethrough"])
        self._markdown.options["highlight"] = _coloured
        self.pages = list(self._read())
        self._by_source = {page.source: page for page in self.pages}
        self._files: dict[Path, str] = {}

    def _read(self) -> Iterator[Page]:
        seen: set[Path] = set()
        for section, patterns in SECTIONS:
            for pattern in patterns:
                for source in sorted(self.root.glob(pattern)):
                    if source not in seen:
                        seen.add(source)
                        name = source.relative_to(self.root).as_posix()
                        yield self._parsed(Page(source, name, section))
        forgotten = set((self.root / "docs").rglob("*.md")) - seen
        if forgotten:
            names = ", ".join(sorted(path.name for path in forgotten))
            raise BadPage(f"no section of tools/docs.py takes {names}")

    def _parsed(self, page: Page) -> Page:
        page.tokens = self._markdown.parse(page.source.read_text(encoding="utf-8"))
        taken: set[str] = set()
        for place, token in enumerate(page.tokens):
            if token.type == "heading_open":
                text = plain_text(page.tokens[place + 1])
                anchor = anchor_of(text, taken)
                token.attrSet("id", anchor)
                page.headings.append((int(token.tag[1]), text, anchor))
        if not page.headings or page.headings[0][0] != 1:
            raise BadPage(f"{page.name} does not begin with a heading of level 1")
        page.title = page.headings[0][1]
        return page

    # -- links -----------------------------------------------------------------------------------

    def _tie(self, page: Page) -> None:
        """Turn the links of a page into those of the site."""
        for token in page.tokens:
            for child in token.children or ():
                if child.type == "link_open":
                    child.attrSet("href", self._link(page, str(child.attrGet("href"))))
                elif child.type == "image":
                    child.attrSet("src", self._link(page, str(child.attrGet("src"))))
                    child.attrSet("loading", "lazy")

    def _link(self, page: Page, link: str) -> str:
        if _REMOTE.match(link):
            return link
        path, _, anchor = link.partition("#")
        source = (page.source.parent / path).resolve() if path else page.source
        target = self._by_source.get(source)
        if target is None and source.is_dir():
            target = self._by_source.get(source / "README.md")
        if target is None:
            return self._file(page, source, link)
        if anchor and anchor not in {one for _, _, one in target.headings}:
            raise BadPage(f"{page.name} links to {link}, and no heading there has that anchor")
        there = posixpath.relpath(target.place, posixpath.dirname(page.place) or ".")
        return f"{there}#{anchor}" if anchor else there

    def _file(self, page: Page, source: Path, link: str) -> str:
        if not source.is_file() or not source.is_relative_to(self.root):
            raise BadPage(f"{page.name} links to {link}, which is no page and no file")
        name = source.relative_to(self.root).as_posix()
        place = name.removeprefix("docs/") if name.startswith("docs/") else f"files/{name}"
        self._files[source] = place
        return posixpath.relpath(place, posixpath.dirname(page.place) or ".")

    # -- building --------------------------------------------------------------------------------

    def build(self) -> None:
        """Write everything; what an earlier build left is removed."""
        for page in self.pages:
            self._tie(page)
        if self.out.is_dir():
            shutil.rmtree(self.out)
        for place, page in enumerate(self.pages):
            before = self.pages[place - 1] if place else None
            after = self.pages[place + 1] if place + 1 < len(self.pages) else None
            self._write(page.place, self._html(page, before, after))
        for source, place_there in sorted(self._files.items()):
            self._write_bytes(place_there, source.read_bytes())
        for asset in sorted(ASSETS.iterdir()):
            self._write_bytes(f"assets/{asset.name}", asset.read_bytes())
        self._write("assets/code.css", _code_style())
        sections = [list(section) for page in self.pages for section in sections_of(page)]
        index = json.dumps(sections, ensure_ascii=False, separators=(",", ":"))
        self._write("assets/search-index.js", f"window.HEADRACE_SECTIONS = {index};\n")

    def _write(self, place: str, text: str) -> None:
        self._write_bytes(place, text.encode())

    def _write_bytes(self, place: str, data: bytes) -> None:
        path = self.out / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def _html(self, page: Page, before: Page | None, after: Page | None) -> str:
        body = self._markdown.renderer.render(list(page.tokens), self._markdown.options, {})
        body = body.replace("<table>", '<div class="wide" tabindex="0"><table>')
        body = body.replace("</table>", "</table></div>")
        body = re.sub(
            r'<(h[2-4]) id="([^"]+)">(.*?)</\1>',
            r'<\1 id="\2">\3<a class="to" href="#\2" aria-label="link to this section">#</a></\1>',
            body,
            flags=re.DOTALL,
        )
        return FRAME.format(
            title=html.escape(page.title),
            up=page.up,
            pages=self._menu(page),
            here=_contents(page),
            body=body,
            before=_neighbour(page, before, "Before: "),
            after=_neighbour(page, after, "Next: "),
        )

    def _menu(self, current: Page) -> str:
        lines = []
        section = ""
        for page in self.pages:
            if page.section != section:
                lines += ["</ul>"] if section else []
                section = page.section
                lines.append(f"<p>{html.escape(section)}</p>\n<ul>")
            mark = ' aria-current="page"' if page is current else ""
            href = posixpath.relpath(page.place, posixpath.dirname(current.place) or ".")
            lines.append(f'<li><a href="{href}"{mark}>{html.escape(page.title)}</a></li>')
        return "\n".join([*lines, "</ul>"])


def _neighbour(page: Page, other: Page | None, words: str) -> str:
    if other is None:
        return "<span></span>"
    href = posixpath.relpath(other.place, posixpath.dirname(page.place) or ".")
    return f'<a href="{href}">{words}{html.escape(other.title)}</a>'


def _contents(page: Page) -> str:
    found = [one for one in page.headings if one[0] in (2, 3)]
    if len(found) < 2:
        return ""
    lines = ["<p>On this page</p>", "<ul>"]
    # A page of many commands or messages is told by its chapters alone.
    levels = (2,) if len(found) > 40 else (2, 3)
    for level, text, anchor in found:
        if level in levels:
            deep = ' class="deep"' if level == 3 else ""
            lines.append(f'<li><a{deep} href="#{anchor}">{html.escape(text)}</a></li>')
    return "\n".join([*lines, "</ul>"])


def sections_of(page: Page) -> Iterator[tuple[str, str, str, str]]:
    """What the search finds: place, title, anchor and text of every section of a page."""
    heads = iter(page.headings)
    _, title, anchor = next(heads)
    words: list[str] = []
    inside = False
    first = True
    for token in page.tokens:
        if token.type == "heading_open":
            inside = True
            if not first:
                yield _section(page, title, anchor, words)
                _, title, anchor = next(heads)
                words = []
            first = False
        elif token.type == "heading_close":
            inside = False
        elif token.type == "inline" and not inside:
            words.append(plain_text(token))
        elif token.type == "fence":
            words.append(token.content)
    yield _section(page, title, anchor, words)


def _section(page: Page, title: str, anchor: str, words: list[str]) -> tuple[str, str, str, str]:
    text = " ".join(" ".join(words).split())
    if title == page.title:
        return page.place, title, "", text
    return page.place, f"{page.title}: {title}", anchor, text


def _coloured(text: str, language: str, _attributes: str) -> str:
    try:
        lexer = get_lexer_by_name(language or "text")
    except ClassNotFound as error:
        raise BadPage(f"a block of code is in {language!r}, which nobody can colour") from error
    inner: str = highlight(text, lexer, HtmlFormatter(nowrap=True))
    return f'<pre class="code" tabindex="0"><code>{inner}</code></pre>'


def _code_style() -> str:
    parts = []
    for theme, style in STYLES:
        formatter: Any = HtmlFormatter(style=style)
        rules = formatter.get_style_defs([f':root[data-theme="{theme}"] .code'])
        system = formatter.get_style_defs([":root:not([data-theme]) .code"])
        parts += [rules, f"@media (prefers-color-scheme: {theme}) {{\n{system}\n}}"]
    # The frame's own colours stay in charge of what is behind the text.
    parts.append(".code, :root .code { background: var(--raised) !important; }")
    parts.append(".code .err { border: 0 !important; }")
    return "\n".join(parts) + "\n"


FRAME: Final = """<!doctype html>
<html lang="en" data-up="{up}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - headrace</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{up}assets/style.css">
<link rel="stylesheet" href="{up}assets/code.css">
<script src="{up}assets/theme.js"></script>
</head>
<body>
<a class="skip" href="#content">Skip to the text</a>
<header class="top">
<button id="menu" class="menu" type="button" aria-expanded="false" aria-controls="pages">
Pages</button>
<a class="name" href="{up}index.html">headrace</a>
<div class="search" role="search">
<input id="search" type="search" placeholder="Search (/)" autocomplete="off"
aria-label="Search the documentation">
<ul id="found" class="found" aria-label="Found" aria-live="polite"></ul>
</div>
<button id="theme" type="button" aria-label="Change the theme">Theme</button>
</header>
<div class="frame">
<nav id="pages" class="pages" aria-label="Pages">
{pages}
</nav>
<main id="content">
{body}
<footer>{before}{after}</footer>
</main>
<nav class="here" aria-label="On this page">
{here}
</nav>
</div>
<script src="{up}assets/search.js"></script>
</body>
</html>
"""


def main(arguments: Sequence[str] = ()) -> None:
    """Build the site."""
    out = Path(arguments[0]).resolve() if arguments else OUT
    try:
        site = Site(out)
        site.build()
    except BadPage as error:
        raise SystemExit(str(error)) from error
    shown = os.path.relpath(out / "index.html")
    sys.stdout.write(f"{len(site.pages)} pages; open {shown}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
