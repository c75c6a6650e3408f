"""Plots: what is drawn is where it belongs, and can be heard as well as seen."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from headrace.demo.plots import BADGE, Box, Flag, Line, Plot, nice_ticks, short, svg, thinned

SVG = "{http://www.w3.org/2000/svg}"


def drawn(plot: Plot) -> ET.Element:
    text = svg(plot).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return ET.fromstring(text)  # noqa: S314 - our own text


def plot(**more: object) -> Plot:
    words: dict[str, object] = {
        "name": "p",
        "title": "A <title>",
        "description": "What & why",
        "unit": "things",
        "lines": [Line(name="l", colour="node", points=[(0, 0), (5, 50), (10, 100)])],
    }
    return Plot(**(words | more))  # type: ignore[arg-type] # each test names what it changes


def test_a_plot_has_a_title_and_a_description_for_those_who_hear() -> None:
    root = drawn(plot())
    assert root.get("role") == "img"
    names = (root.get("aria-labelledby") or "").split()
    texts = {one.get("id"): one.text for one in root if one.tag in (f"{SVG}title", f"{SVG}desc")}
    assert [texts[name] for name in names] == ["A <title>", "What & why"]


def test_a_line_ends_at_its_axes() -> None:
    root = drawn(plot())
    (path,) = [one for one in root.iter(f"{SVG}path") if one.get("class") == "line"]
    points = [point.split(",") for point in (path.get("d") or "")[1:].split("L")]
    assert [float(x) for x, _ in points] == [64.0, 465.0, 866.0]
    heights = [float(y) for _, y in points]
    assert heights[0] == 220.0
    assert heights[2] == 46.0
    assert heights[1] == pytest.approx(133.0)


def test_a_step_keeps_its_value_until_the_next() -> None:
    line = Line(name="l", colour="node", points=[(0, 0), (10, 10)], step=True)
    root = drawn(plot(lines=[line]))
    (path,) = [one for one in root.iter(f"{SVG}path") if one.get("class") == "line"]
    assert "H" in (path.get("d") or "")
    assert "L" not in (path.get("d") or "")


def test_a_logarithmic_axis_counts_in_tens() -> None:
    root = drawn(
        plot(logarithmic=True, lines=[Line(name="l", colour="x", points=[(0, 0), (1, 900)])])
    )
    ticks = [one.text for one in root.iter(f"{SVG}text") if one.get("text-anchor") == "end"]
    assert ticks == ["1", "10", "100", "1,000"]


def test_flags_outside_the_span_are_left_out() -> None:
    flags = [Flag(1, "A", "bad", "inside"), Flag(99, "B", "bad", "outside")]
    root = drawn(plot(flags=flags))
    letters = [one.text for one in root.iter(f"{SVG}text") if one.get("class") == "letter"]
    assert letters == ["A"]


def test_badges_of_moments_close_together_do_not_cover_each_other() -> None:
    flags = [Flag(5.1, "B", "bad", "later"), Flag(5, "A", "bad", "first"), Flag(9, "C", "x", "far")]
    root = drawn(plot(flags=flags))
    badges = [float(one.get("cx") or 0) for one in root.iter(f"{SVG}circle")]
    assert badges[0] == 465.0
    assert badges[1] - badges[0] > 2 * BADGE
    lines = [one for one in root.iter(f"{SVG}line") if one.get("class") == "flag"]
    assert [one.get("x1") for one in lines] == ["465.0", "473.0", "785.8"], "lines stay in place"
    assert badges[2] == 785.8


def test_a_box_says_what_it_is() -> None:
    box = Box(left=0, right=1, low=0, high=10, colour="bad", text="turn 1", hatched=True)
    root = drawn(plot(boxes=[box]))
    (found,) = root.iter(f"{SVG}rect")
    assert found.get("class") == "box hatched"
    assert [one.text for one in found] == ["turn 1"]


def test_an_empty_plot_is_still_a_plot() -> None:
    assert drawn(plot(lines=[])).tag == f"{SVG}svg"


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (0.0, 0.0), (3.0, 97.0), (-5.0, 5.0), (0.0, 119_781.0)]
)
def test_ticks_cover_their_range(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 2 <= len(ticks) <= 8


def test_numbers_on_an_axis_are_short() -> None:
    assert [short(x) for x in (0, 5000, 10_000, 250_000, 2e6, 3e9, 0.25)] == [
        "0",
        "5,000",
        "10k",
        "250k",
        "2M",
        "3G",
        "0.25",
    ]


def test_thinning_keeps_peaks() -> None:
    points = [(float(x), 0.0) for x in range(1_000)]
    points[617] = (617.0, 9.0)
    found = thinned(points, 100)
    assert len(found) <= 100
    assert (617.0, 9.0) in found
