"""What the demo shows while it runs: a panel that lives on a terminal, lines elsewhere.

On a terminal the panel has one row per part of the pipeline, with its rate and a spark line of the
last half minute; what happens once (`say`) is printed above it and stays. Elsewhere a line with the
same numbers comes every few seconds.

Imports: demo.record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.demo.record import rates

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rich.console import Console
    from rich.panel import Panel

    from headrace.demo.record import Record

BLOCKS: Final = "▁▂▃▄▅▆▇█"
SPARK_WIDTH: Final = 30
WORST_SHOWN: Final = 4
LINE_EVERY_SECONDS: Final = 2.0
REFRESH_PER_SECOND: Final = 4
WIDTH_MAX: Final = 110
RATE_SAMPLES: Final = 6
"""Samples over which a shown rate is taken: a single one jumps with every turn."""


def spark_line(values: Sequence[float], width: int = SPARK_WIDTH) -> str:
    """The last values as blocks, the greatest full."""
    shown = list(values[-width:])
    top = max(shown, default=0.0)
    if top <= 0:
        return BLOCKS[0] * len(shown)
    return "".join(BLOCKS[min(7, int(max(0.0, value) / top * 7.999))] for value in shown)


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def recent_rate(record: Record, name: str) -> float:
    """A counter's change per second over the last samples."""
    last = record.samples[-RATE_SAMPLES:]
    if len(last) < 2 or last[-1].time <= last[0].time:
        return 0.0
    change = getattr(last[-1], name) - getattr(last[0], name)
    return float(max(0.0, change / (last[-1].time - last[0].time)))


def worst_text(record: Record) -> str:
    """The vbuckets that are furthest behind."""
    if not record.samples:
        return ""
    worst = [one for one in record.samples[-1].worst(WORST_SHOWN) if one[1]]
    if not worst:
        return "level with the node"
    return "worst " + ", ".join(f"vb {vbucket}: {lag:,}" for vbucket, lag in worst)


def progress_line(record: Record, seconds: float) -> str:
    """Everything that moves, in one line."""
    last = record.samples[-1] if record.samples else None
    turn = record.turns[-1].number if record.turns else 0
    written, landed = (last.written, last.landed) if last else (0, 0)
    return (
        f"{clock(seconds)}  written {written:,} ({recent_rate(record, 'written'):,.0f}/s)  "
        f"tables {landed:,} rows ({recent_rate(record, 'landed'):,.0f}/s) in {turn} turns  "
        f"lag {last.lag if last else 0:,} ({worst_text(record)})"
    )


class Screen:
    """Shows a record; use it as a context manager."""

    def __init__(self, console: Console, record: Record) -> None:
        """Show nothing yet."""
        from rich.live import Live

        self._console = console
        self._record = record
        self._line_at = -LINE_EVERY_SECONDS
        self._doing = ""
        self._live = (
            Live(console=console, refresh_per_second=REFRESH_PER_SECOND, transient=True)
            if console.is_terminal
            else None
        )

    def __enter__(self) -> Screen:
        """Show the panel where there is a terminal."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the panel away; what was said stays."""
        del kind, error, trace
        if self._live is not None:
            self._live.stop()

    def say(self, seconds: float, text: str, *, style: str = "") -> None:
        """Tell something that happened once."""
        self._console.print(
            f"{clock(seconds)}  {text}", style=style or None, highlight=False, soft_wrap=True
        )

    def doing(self, text: str) -> None:
        """What is being waited for."""
        self._doing = text

    def show(self, seconds: float) -> None:
        """Show where everything stands."""
        if self._live is not None:
            self._live.update(self._panel(seconds))
        elif self._record.samples and seconds - self._line_at >= LINE_EVERY_SECONDS:
            self._line_at = seconds
            self._console.print(
                progress_line(self._record, seconds), highlight=False, soft_wrap=True
            )

    def _panel(self, seconds: float) -> Panel:
        from rich.panel import Panel
        from rich.table import Table

        record = self._record
        rows = Table.grid(padding=(0, 2))
        for justify in ("left", "right", "right", "left"):
            rows.add_column(justify=justify, no_wrap=True)
        last = record.samples[-1] if record.samples else None
        for name, label, unit in (("written", "shop", "writes"), ("landed", "tables", "rows")):
            line = spark_line([value for _, value in rates(record.samples, name)])
            count = getattr(last, name) if last else 0
            rate = f"{recent_rate(record, name):,.0f}/s"
            rows.add_row(label, f"{count:,} {unit}", rate, f"[cyan]{line}[/]")
        lags = spark_line([float(sample.lag) for sample in record.samples[-SPARK_WIDTH:]])
        rows.add_row("lag", f"{last.lag if last else 0:,} seqnos", "", f"[yellow]{lags}[/]")
        turn = record.turns[-1] if record.turns else None
        if turn is not None:
            took = f"{turn.seconds:.1f} s"
            rows.add_row("turn", f"{turn.number}", took, f"[dim]{worst_text(record)}[/]")
        return Panel(
            rows,
            title=f"headrace demo  {clock(seconds)}",
            title_align="left",
            subtitle=f"[dim]{self._doing}[/]",
            subtitle_align="left",
            width=min(WIDTH_MAX, self._console.width),
        )
