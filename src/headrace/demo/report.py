"""The demo's report: one HTML file that needs nothing else, with plots, numbers and their source.

Rules.
- No script, no font, no image and no address of another file: the page opens from a disk, offline,
  in ten years.
- Every plot has a title, a description and a legend in words; every number in a plot that matters
  is in a table as well.

Imports: demo.
"""

from __future__ import annotations

import time
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.demo.losing import snapshots
from headrace.demo.plots import Box, Flag, Line, Plot, svg
from headrace.demo.record import Sample, rates
from headrace.demo.summary import told

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.demo.losing import SnapshotSeen
    from headrace.demo.record import Record
    from headrace.demo.summary import Failover, Summary

STYLE: Final = Path(__file__).with_name("report.css")
SMOOTHED_SAMPLES: Final = 4
BEFORE_SECONDS, AFTER_SECONDS = 8.0, 12.0
"""How much of a vbucket's life around its failover is drawn."""
SNAPSHOT_WIDTH_SECONDS: Final = 0.14
TURNS_LISTED: Final = 500
FLAGS: Final = {
    "open": ("O", "soft"),
    "spark": ("S", "soft"),
    "failover": ("F", "bad"),
    "rollback": ("R", "tables"),
    "close": ("C", "soft"),
    "drained": ("D", "good"),
}
"""Kind of a mark -> its letter and colour."""


def page(summary: Summary, record: Record, *, tables: Path, commands: Sequence[str]) -> str:
    """The whole page."""
    flags = flags_of(record)
    parts = [
        _section("Throughput", _throughput(record, flags), _flag_legend(flags)),
        _section("Lag", _lag(record, flags), ""),
        *_rollback(summary, record, tables),
        _section("Turns", _turns(record, flags), ""),
        _numbers(summary),
        _turn_table(record),
        _next(commands),
    ]
    verdict = (
        ("", f"Tables and source agree: {summary.verified_keys:,} keys compared, 0 differences")
        if summary.agrees
        else (" bad", f"{summary.differences:,} differences, {summary.newer:,} not judged")
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>headrace demo</title>\n<style>\n{STYLE.read_text(encoding='utf-8')}</style>\n"
        "</head>\n<body>\n<header>\n<h1>From a bucket to tables, through a failover</h1>\n"
        f'<p class="verdict{verdict[0]}">{escape(verdict[1])}</p>\n{_figures(summary)}\n</header>\n'
        f"<main>\n{''.join(parts)}</main>\n{_footer(summary)}\n</body>\n</html>\n"
    )


def flags_of(record: Record) -> list[Flag]:
    """The marks of a record, as flags; of each kind at most the first two."""
    found: list[Flag] = []
    for kind, (letter, colour) in FLAGS.items():
        marks = [mark for mark in record.marks if mark.kind == kind]
        found += [Flag(mark.time, letter, colour, mark.text) for mark in marks[:2]]
    return sorted(found, key=lambda flag: flag.time)


# -- plots -----------------------------------------------------------------------------------------


def _throughput(record: Record, flags: list[Flag]) -> str:
    coarse = record.samples[::SMOOTHED_SAMPLES]
    lines = (
        Line(
            name="written per second",
            colour="node",
            points=means(coarse),
            step=True,
            area=True,
        ),
        Line(
            name="rows landed per second",
            colour="tables",
            points=_landed(record),
            step=True,
            dash="7 3",
        ),
    )
    peak = max((value for _, value in lines[1].points), default=0.0)
    plot = Plot(
        name="throughput",
        title="Changes per second",
        description=(
            "Writes of the shop and rows landed in the tables over time. The tables start when "
            f"Spark is ready, catch up at up to {peak:,.0f} rows a second, then follow the shop."
        ),
        unit="changes per second",
        lines=lines,
        flags=flags,
        span=_span(record),
    )
    return _figure(
        plot, "Writes: two-second means. Rows: of each turn, over the time it took.", lines
    )


def means(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    """Writes per second, each mean from where its time begins to where it ends."""
    found = []
    for before, (end, rate) in zip(samples, rates(samples, "written"), strict=False):
        found += [(before.time, rate), (end, rate)]
    return found


def _span(record: Record) -> tuple[float, float]:
    """The time every plot of the whole run covers."""
    times = [sample.time for sample in record.samples] + [mark.time for mark in record.marks]
    return 0.0, max(times, default=1.0)


def _landed(record: Record) -> list[tuple[float, float]]:
    """Rows per second of each turn, nothing between turns."""
    found: list[tuple[float, float]] = []
    for turn in record.turns:
        began = turn.time - turn.seconds
        if found and began > found[-1][0]:
            found.append((found[-1][0], 0.0))
        rate = turn.rows / turn.seconds if turn.seconds else 0.0
        found += [(began, rate), (turn.time, rate)]
    return found


def _lag(record: Record, flags: list[Flag]) -> str:
    total = [(sample.time, float(sample.lag)) for sample in record.samples]
    worst = [(sample.time, _worst(sample)) for sample in record.samples]
    lines = (
        Line(name="all vbuckets together", colour="lag", points=total, area=True),
        Line(name="the worst vbucket", colour="tables", points=worst, dash="7 3"),
    )
    plot = Plot(
        name="lag",
        title="Lag of the tables behind the node",
        description=(
            f"Seqnos the node has and the tables do not, on a logarithmic axis. Highest "
            f"{record.lag_peak():,} while Spark starts, 0 at the end."
        ),
        unit="seqnos behind (logarithmic)",
        lines=lines,
        flags=flags,
        logarithmic=True,
        span=_span(record),
    )
    text = "What the node has and the last published turn does not."
    return _figure(plot, text, lines)


def _worst(sample: Sample) -> float:
    found = sample.worst(1)
    return float(found[0][1]) if found else 0.0


def _turns(record: Record, flags: list[Flag]) -> str:
    boxes = [
        Box(
            left=turn.time - turn.seconds,
            right=turn.time,
            low=0,
            high=max(1, turn.rows),
            colour="bad" if turn.rollbacks else "node",
            text=f"turn {turn.number}: {turn.rows:,} rows in {turn.seconds:.2f} s",
        )
        for turn in record.turns[:TURNS_LISTED]
    ]
    plot = Plot(
        name="turns",
        title="Turns of the pipeline",
        description=(
            f"{len(record.turns)} turns; each box is one, as wide as it took and as high as the "
            "rows it published, on a logarithmic axis."
        ),
        unit="rows in a turn (logarithmic)",
        boxes=boxes,
        flags=flags,
        logarithmic=True,
        span=_span(record),
        height=220,
    )
    legend = _swatch("boxed", "node", "a turn") + _swatch("boxed", "bad", "a turn with a rollback")
    text = "A box is a turn: as wide as it took, as high as it published. A turn is all or nothing."
    return (
        f'<figure><div class="scroll" tabindex="0">{svg(plot)}</div>{_legend(legend)}'
        f"<figcaption>{text}</figcaption></figure>"
    )


def _rollback(summary: Summary, record: Record, tables: Path) -> list[str]:
    """The vbucket that was failed over, drawn around that moment."""
    failover = summary.failover
    if failover is None:
        return []
    loss, taken = failover.loss, failover.withdrawn
    span = (failover.at - BEFORE_SECONDS, failover.at + failover.seconds + AFTER_SECONDS)
    near = [sample for sample in record.samples if span[0] - 1 <= sample.time <= span[1] + 1]
    published = {turn.number: turn.time for turn in record.turns}
    seen = [
        (published[one.turn], one)
        for one in snapshots(tables, loss.vbucket)
        if one.turn in published and span[0] <= published[one.turn] <= span[1]
    ]
    lines = (
        Line(
            name="the node",
            colour="node",
            points=highs_around(near, failover),
        ),
        Line(
            name="the tables",
            colour="tables",
            points=positions_around(near, seen, record, failover),
            step=True,
            dash="7 3",
        ),
    )
    values = [value for line in lines for _, value in line.points]
    plot = Plot(
        name="rollback",
        title=f"Vbucket {loss.vbucket} around its failover",
        description=(
            f"The node's high seqno falls from {loss.high_seqno} to {loss.seqno}. The tables, at "
            f"{taken.from_seqno}, go back to {taken.to_seqno}, a boundary of theirs, and follow "
            f"the new branch. {taken.rows} rows are withdrawn."
        ),
        unit=f"seqno of vbucket {loss.vbucket}",
        lines=lines,
        boxes=[_snapshot(at, one) for at, one in seen],
        flags=[
            Flag(failover.at, "F", "bad", "the failover"),
            Flag(failover.at + failover.seconds, "R", "tables", "the rollback is in the tables"),
        ],
        span=span,
        values=(min(values, default=0.0), max(values, default=1.0)),
        height=290,
    )
    legend = (
        _swatches(lines)
        + _swatch("boxed", "tables", "a snapshot, when it was published")
        + _swatch("hollow", "bad", "a snapshot withdrawn")
    )
    figure = (
        f'<figure><div class="scroll" tabindex="0">{svg(plot)}</div>{_legend(legend)}'
        f"<figcaption>Branch <code>{taken.dead_branch}</code> ended, <code>{taken.branch}</code> "
        "lives on. Tables go back to the end of a whole snapshot, never into the middle of one."
        "</figcaption></figure>"
    )
    words = (
        f"At {failover.at:.1f} s vbucket {loss.vbucket} lost seqnos {loss.seqno + 1} to "
        f"{loss.high_seqno}; the tables had already published up to {taken.from_seqno}. "
        f"{failover.seconds:.1f} s later they had withdrawn {taken.rows} rows of "
        f"{taken.documents} documents, and {taken.visible} of those versions were still in "
        "<code>state</code>."
    )
    if taken.example is not None:
        one = taken.example
        words += (
            f" One of them: <code>{escape(one.key)}</code> was {escape(one.before)}, "
            f"and is {escape(one.after)}."
        )
    return [
        f'<section id="failover"><h2>The failover and its rollback</h2><p>{words}</p>{figure}'
        "</section>\n"
    ]


def highs_around(samples: Sequence[Sample], failover: Failover) -> list[tuple[float, float]]:
    """The node's high seqno; at the failover it is known exactly, before and after."""
    loss = failover.loss
    points = [(one.time, float(one.highs.get(loss.vbucket, 0))) for one in samples]
    fall = [(failover.at, float(loss.high_seqno)), (failover.at, float(loss.seqno))]
    return [
        *(point for point in points if point[0] < failover.at),
        *fall,
        *(point for point in points if point[0] > failover.at),
    ]


def positions_around(
    samples: Sequence[Sample],
    seen: Sequence[tuple[float, SnapshotSeen]],
    record: Record,
    failover: Failover,
) -> list[tuple[float, float]]:
    """Where the tables stood: they move when a turn is published, and then to a snapshot's end."""
    vbucket, back = failover.loss.vbucket, float(failover.withdrawn.to_seqno)
    begun = [(one.time, float(one.positions.get(vbucket, 0))) for one in samples[:1]]
    # The turn of the rollback both went back and read on.
    rolled = [turn.time for turn in record.turns if turn.rollbacks and turn.time >= failover.at]
    turned = rolled[0] if rolled else failover.at + failover.seconds
    moves = [(at, float(one.end)) for at, one in sorted(seen, key=lambda pair: pair[0])]
    ends = [one.time for one in samples[-1:]]
    points = [
        *begun,
        *(move for move in moves if move[0] < turned),
        (turned, back),
        *(move for move in moves if move[0] >= turned),
    ]
    return [*points, *((end, points[-1][1]) for end in ends if end > points[-1][0])]


def _snapshot(at: float, one: SnapshotSeen) -> Box:
    return Box(
        left=at - SNAPSHOT_WIDTH_SECONDS,
        right=at + SNAPSHOT_WIDTH_SECONDS,
        low=one.start,
        high=one.end,
        colour="bad" if one.dead else "tables",
        hatched=one.dead,
        text=f"snapshot {one.start}..{one.end}, {one.rows} rows, turn {one.turn}",
    )


# -- parts of the page -----------------------------------------------------------------------------


def _section(title: str, figure: str, more: str) -> str:
    return f"<section><h2>{title}</h2>{figure}{more}</section>\n"


def _figure(plot: Plot, text: str, lines: Sequence[Line]) -> str:
    return (
        f'<figure><div class="scroll" tabindex="0">{svg(plot)}</div>{_legend(_swatches(lines))}'
        f"<figcaption>{text}</figcaption></figure>"
    )


def _legend(items: str) -> str:
    return f'<ul class="legend">{items}</ul>'


def _swatches(lines: Sequence[Line]) -> str:
    return "".join(_swatch("dashed" if one.dash else "", one.colour, one.name) for one in lines)


def _swatch(kind: str, colour: str, text: str) -> str:
    return f'<li><span class="swatch {kind}" style="--c:var(--{colour})"></span>{escape(text)}</li>'


def _flag_legend(flags: Sequence[Flag]) -> str:
    items = "".join(
        f'<li><span class="badge" style="--c:var(--{flag.colour})">{flag.letter}</span>'
        f"{flag.time:.1f} s: {escape(flag.text)}</li>"
        for flag in flags
    )
    return _legend(items)


def _figures(summary: Summary) -> str:
    failover = summary.failover
    shown = [
        ("changes landed", f"{summary.rows:,}", "rows"),
        ("write to table", f"{summary.fresh_median_seconds:.1f}", "seconds, median"),
        ("turns", f"{summary.turns:,}", f"{summary.turn_seconds_median:.1f} s each"),
        ("differences", f"{summary.differences:,}", f"in {summary.verified_keys:,} keys"),
    ]
    if failover is not None:
        shown.insert(2, ("rollback in tables", f"{failover.seconds:.1f}", "seconds"))
    items = "".join(
        f"<div><dt>{name}</dt><dd>{value} <small>{unit}</small></dd></div>"
        for name, value, unit in shown
    )
    return f'<dl class="figures">{items}</dl>'


def _numbers(summary: Summary) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>'
        for name, text in told(summary)
    )
    return (
        f'<section><h2>In numbers</h2><div class="scroll" tabindex="0"><table>'
        "<caption>Counted in the tables, at the node and by the clock of this machine.</caption>"
        f"<tbody>{rows}</tbody></table></div></section>\n"
    )


def _turn_table(record: Record) -> str:
    names = ("turn", "published at", "rows", "files", "took", "rollbacks")
    head = "".join(f'<th class="number" scope="col">{name}</th>' for name in names)
    rows = []
    for turn in record.turns[:TURNS_LISTED]:
        cells = (
            f"{turn.number}",
            f"{turn.time:.1f} s",
            f"{turn.rows:,}",
            f"{turn.files}",
            f"{turn.seconds:.2f} s",
            f"{turn.rollbacks}",
        )
        kind = ' class="rollback"' if turn.rollbacks else ""
        shown = "".join(f'<td class="number">{cell}</td>' for cell in cells)
        rows.append(f"<tr{kind}>{shown}</tr>")
    return (
        f"<details><summary>Every turn ({len(record.turns)})</summary>"
        f'<div class="scroll" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        "</details>\n"
    )


def _next(commands: Sequence[str]) -> str:
    lines = escape("\n".join(commands))
    return f"<section><h2>Try next</h2><pre><code>{lines}</code></pre></section>\n"


def _footer(summary: Summary) -> str:
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    parts = ", ".join(f"{name} {value}" for name, value in summary.machine.items())
    return f"<footer>Made {made} by <code>headrace demo</code>. {escape(parts)}.</footer>"
