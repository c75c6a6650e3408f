"""Plots as inline SVG: axes, lines, areas, bars and marks over time, with words for those who hear.

A plot is drawn into a fixed view box and scales with the page. Colours are names of CSS variables,
so that the page decides them for light and dark; every series also differs by dash or shape, and a
plot carries a title and a description that say what it shows.

Imports: nothing of ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH: Final = 880
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 46, 30
TICKS: Final = 5
POINTS_MAX: Final = 600
BADGE: Final = 9
"""Radius of the circle around a flag's letter."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Values over time; a step keeps its value until the next, an area is filled below."""

    name: str
    colour: str
    points: Sequence[Point]
    step: bool = False
    area: bool = False
    dash: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle in the units of the axes, with a text for who points at it."""

    left: float
    right: float
    low: float
    high: float
    colour: str
    text: str
    hatched: bool = False


@dataclass(frozen=True, slots=True)
class Flag:
    """A moment, with a letter that a legend explains."""

    time: float
    letter: str
    colour: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One drawing."""

    name: str
    title: str
    description: str
    unit: str
    lines: Sequence[Line] = ()
    boxes: Sequence[Box] = ()
    flags: Sequence[Flag] = ()
    logarithmic: bool = False
    height: int = 250
    span: tuple[float, float] | None = None
    values: tuple[float, float] | None = field(default=None)


def nice_ticks(low: float, high: float, count: int = TICKS) -> list[float]:
    """Round values that cover a range."""
    if high <= low:
        high = low + 1
    raw = (high - low) / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    first = math.floor(low / step) * step
    found = [first]
    while found[-1] < high - step * 1e-9:
        found.append(found[-1] + step)
    return found


def short(value: float) -> str:
    """A number as an axis shows it."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            unit = {"G": 1e9, "M": 1e6, "k": 1e3}[suffix]
            return f"{value / unit:g}{suffix}"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


def thinned(points: Sequence[Point], limit: int = POINTS_MAX) -> list[Point]:
    """At most so many points; of each group the highest stays, so that peaks do."""
    if len(points) <= limit:
        return list(points)
    size = math.ceil(len(points) / limit)
    groups = (points[at : at + size] for at in range(0, len(points), size))
    return [max(group, key=lambda point: point[1]) for group in groups]


class _Scale:
    """Places of values in the drawing."""

    def __init__(self, plot: Plot) -> None:
        points = [point for line in plot.lines for point in line.points]
        times = [time for time, _ in points] + [
            edge for b in plot.boxes for edge in (b.left, b.right)
        ]
        values = [value for _, value in points]
        values += [edge for b in plot.boxes for edge in (b.low, b.high)]
        self.start, self.end = plot.span or (min(times, default=0.0), max(times, default=1.0))
        if self.end <= self.start:
            self.end = self.start + 1
        self.bottom = plot.height - BOTTOM
        self.logarithmic = plot.logarithmic
        if plot.logarithmic:
            top = max(10.0, *values) if values else 10.0
            decades = math.ceil(math.log10(top))
            self.ticks = [10.0**power for power in range(decades + 1)]
        else:
            low, high = plot.values or (0.0, max(values, default=1.0))
            self.ticks = nice_ticks(low, high)
        self.low, self.high = self.ticks[0], self.ticks[-1]

    def x(self, time: float) -> float:
        share = (time - self.start) / (self.end - self.start)
        return LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        if self.logarithmic:
            share = math.log10(max(1.0, value)) / math.log10(self.high)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.bottom - min(1.0, max(0.0, share)) * (self.bottom - TOP)


def svg(plot: Plot) -> str:
    """The drawing."""
    scale = _Scale(plot)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {plot.height}" role="img" '
        f'aria-labelledby="{plot.name}-title {plot.name}-desc">',
        f'<title id="{plot.name}-title">{escape(plot.title)}</title>',
        f'<desc id="{plot.name}-desc">{escape(plot.description)}</desc>',
        *_axes(plot, scale),
        *(_box(box, scale) for box in plot.boxes),
        *(_line(line, scale) for line in plot.lines),
        *_flags(plot, scale),
        "</svg>",
    ]
    return "\n".join(parts)


def _axes(plot: Plot, scale: _Scale) -> list[str]:
    parts = []
    for tick in scale.ticks:
        at = scale.y(tick)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
        parts.append(
            f'<text class="tick" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">'
            f"{short(tick)}</text>"
        )
    parts += [
        f'<text class="tick" x="{scale.x(tick):.1f}" y="{scale.bottom + 18}" '
        f'text-anchor="middle">{short(tick)} s</text>'
        for tick in nice_ticks(scale.start, scale.end, 9)
        if scale.start <= tick <= scale.end
    ]
    parts.append(f'<text class="unit" x="{LEFT}" y="13">{escape(plot.unit)}</text>')
    return parts


def _line(line: Line, scale: _Scale) -> str:
    inside = [point for point in line.points if scale.start <= point[0] <= scale.end]
    places = [(scale.x(time), scale.y(value)) for time, value in thinned(inside)]
    if not places:
        return ""
    path = f"M{places[0][0]:.1f},{places[0][1]:.1f}"
    for x, y in places[1:]:
        path += f"H{x:.1f}V{y:.1f}" if line.step else f"L{x:.1f},{y:.1f}"
    dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
    drawn = f'<path class="line" style="stroke:var(--{line.colour})"{dash} d="{path}"/>'
    if line.area:
        foot = f"L{places[-1][0]:.1f},{scale.bottom}L{places[0][0]:.1f},{scale.bottom}Z"
        drawn = f'<path class="area" style="fill:var(--{line.colour})" d="{path}{foot}"/>{drawn}'
    return drawn


def _box(box: Box, scale: _Scale) -> str:
    left, right = scale.x(box.left), scale.x(box.right)
    top, foot = scale.y(box.high), scale.y(box.low)
    kind = "box hatched" if box.hatched else "box"
    return (
        f'<rect class="{kind}" style="--c:var(--{box.colour})" x="{left:.1f}" y="{top:.1f}" '
        f'width="{max(1.0, right - left - 0.6):.1f}" height="{max(1.0, foot - top):.1f}">'
        f"<title>{escape(box.text)}</title></rect>"
    )


def _flags(plot: Plot, scale: _Scale) -> list[str]:
    parts = []
    right = -math.inf
    for flag in sorted(plot.flags, key=lambda one: one.time):
        if not scale.start <= flag.time <= scale.end:
            continue
        x = scale.x(flag.time)
        # Two moments close together: the later one's badge steps aside, its line does not.
        badge = max(x, right + 2 * BADGE + 1)
        right = badge
        parts.append(
            f'<g style="--c:var(--{flag.colour})"><title>{escape(flag.text)}</title>'
            f'<line class="flag" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{scale.bottom}"/>'
            f'<circle class="flag" cx="{badge:.1f}" cy="{TOP - 12}" r="{BADGE}"/>'
            f'<text class="letter" x="{badge:.1f}" y="{TOP - 8}" text-anchor="middle">'
            f"{flag.letter}</text></g>"
        )
    return parts
