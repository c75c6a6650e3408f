"""The report: one file that needs nothing else, with every figure in words as well."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING

from headrace.demo.losing import SnapshotSeen
from headrace.demo.record import Record, Sample
from headrace.demo.report import FLAGS, flags_of, highs_around, means, page, positions_around
from tests.demo.test_summary import seen, summary_of
from tests.doc_commands import ROOT

if TYPE_CHECKING:
    from pathlib import Path

VOID = {"meta", "line", "circle", "rect", "path"}


class Page(HTMLParser):
    """Tags that are open, ids, and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID or (tag == "rect" and self.get_starttag_text() != "/>"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        while self.open[-1] in VOID and self.open[-1] != tag:
            self.open.pop()
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def made(directory: Path) -> str:
    summary = summary_of(directory)
    record = Record()
    for number in range(20):
        record.add_sample(
            Sample(
                time=number / 4,
                written=number * 10,
                landed=number * 9,
                highs={0: number * 3},
                positions={0: number * 2},
            )
        )
    record.add_turn(seen(1, 1.0))
    record.add_turn(replace(seen(3, 3.0), rollbacks=1))
    for kind in FLAGS:
        record.mark(1.0, kind, f"this is <{kind}>")
    return page(summary, record, tables=directory, commands=["headrace history t 'a<b'"])


def parsed(text: str) -> Page:
    found = Page()
    found.feed(text)
    found.close()
    return found


def test_the_page_is_whole_and_needs_nothing_else(tmp_path: Path) -> None:
    text = made(tmp_path)
    found = parsed(text)
    assert [tag for tag in found.open if tag not in VOID] == []
    tags = {tag for tag, _ in found.tags}
    assert not tags & {"script", "link", "img", "iframe", "object"}
    assert not re.search(r"https?:|@import|url\(|src=|href=", text)


def test_every_plot_can_be_heard(tmp_path: Path) -> None:
    found = parsed(made(tmp_path))
    plots = [attributes for tag, attributes in found.tags if tag == "svg"]
    assert len(plots) == 4
    for attributes in plots:
        assert attributes["role"] == "img"
        assert set((attributes["aria-labelledby"] or "").split()) <= set(found.ids)
    assert len(found.ids) == len(set(found.ids))


def test_it_is_a_page_for_light_and_dark_and_in_a_language(tmp_path: Path) -> None:
    text = made(tmp_path)
    assert "prefers-color-scheme: dark" in text
    assert '<html lang="en">' in text
    assert 'name="viewport"' in text


def test_numbers_are_in_a_table_and_texts_are_escaped(tmp_path: Path) -> None:
    text = made(tmp_path)
    found = parsed(text)
    assert "51 writes: 41 inserts" in found.text
    assert "0 differences" in found.text
    assert "this is &lt;failover&gt;" in text
    assert "'a<b'" in found.text


def samples_of(vbucket: int, *points: tuple[float, int, int]) -> list[Sample]:
    """Samples from time, high seqno and position."""
    return [
        Sample(time=at, written=high, landed=0, highs={vbucket: high}, positions={vbucket: stood})
        for at, high, stood in points
    ]


def test_the_node_falls_at_its_failover_and_not_between_two_looks(tmp_path: Path) -> None:
    failover = summary_of(tmp_path).failover
    assert failover is not None
    loss, at = failover.loss, failover.at
    samples = samples_of(loss.vbucket, (at - 1, 3, 0), (at + 1, 4, 0))
    assert highs_around(samples, failover) == [
        (at - 1, 3.0),
        (at, loss.high_seqno),
        (at, loss.seqno),
        (at + 1, 4.0),
    ]


def test_the_tables_move_when_a_turn_is_published(tmp_path: Path) -> None:
    failover = summary_of(tmp_path).failover
    assert failover is not None
    vbucket, at = failover.loss.vbucket, failover.at
    record = Record()
    record.add_turn(seen(1, at - 1))
    record.add_turn(replace(seen(2, at + 1), rollbacks=1))
    shown = [
        (at + 1, SnapshotSeen(2, 4, 6, 3, dead=False)),
        (at - 1, SnapshotSeen(1, 3, 9, 7, dead=True)),
    ]
    samples = samples_of(vbucket, (at - 2, 9, 2), (at + 3, 9, 6))
    assert positions_around(samples, shown, record, failover) == [
        (at - 2, 2.0),
        (at - 1, 9.0),
        (at + 1, float(failover.withdrawn.to_seqno)),
        (at + 1, 6.0),
        (at + 3, 6.0),
    ]


def test_a_mean_is_drawn_over_the_time_it_is_of() -> None:
    samples = samples_of(0, (1, 0, 0), (3, 20, 0), (4, 20, 0))
    assert means(samples) == [(1, 10.0), (3, 10.0), (3, 0.0), (4, 0.0)]


def test_a_difference_is_the_first_thing_said(tmp_path: Path) -> None:
    summary = replace(summary_of(tmp_path), differences=3)
    text = page(summary, Record(), tables=tmp_path, commands=[])
    assert '<p class="verdict bad">3 differences' in text


def test_colours_can_be_told_from_the_paper() -> None:
    """Contrast of every colour that carries text or a line, light and dark: 4.5 to 1 or more."""
    from headrace.demo.report import STYLE

    for block in re.findall(r":root \{(.*?)\}", STYLE.read_text(encoding="utf-8"), re.DOTALL):
        colours = dict(re.findall(r"--(\w+): (#\w{6})", block))
        for name in ("ink", "soft", "node", "tables", "lag", "bad", "good"):
            for paper in ("paper", "card"):
                assert contrast(colours[name], colours[paper]) >= 4.5, (name, paper)


def contrast(one: str, other: str) -> float:
    low, high = sorted(luminance(colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_of_each_kind_two_flags_are_enough() -> None:
    record = Record()
    for number in range(5):
        record.mark(float(number), "rollback", "back")
    assert [flag.time for flag in flags_of(record)] == [0.0, 1.0]


def test_the_report_in_the_docs_is_one_that_this_code_writes() -> None:
    """It is not edited and not left behind: `make screenshots` writes it anew."""
    from headrace.demo.report import STYLE

    text = (ROOT / "docs" / "demo" / "report.html").read_text(encoding="utf-8")
    found = parsed(text)
    assert [tag for tag in found.open if tag not in VOID] == []
    assert STYLE.read_text(encoding="utf-8") in text, "its style is another one; make screenshots"
    assert '<section id="failover">' in text
    assert "Tables and source agree" in found.text
    assert not re.search(r"https?:|@import|url\(|src=|href=", text)
