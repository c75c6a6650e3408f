"""The screen: a panel on a terminal, lines elsewhere, the same numbers on both."""

from __future__ import annotations

import io

from rich.console import Console

from headrace.demo.record import Record, Sample, TurnSeen
from headrace.demo.screen import Screen, clock, progress_line, recent_rate, spark_line, worst_text


def record() -> Record:
    found = Record()
    for number in range(10):
        found.add_sample(
            Sample(
                time=number / 2,
                written=number * 500,
                landed=number * 400,
                highs={0: number * 250, 7: number * 250},
                positions={0: number * 250, 7: number * 200},
            )
        )
    found.add_turn(TurnSeen(time=4, number=9, rows=400, bytes=1, files=1, seconds=0.5, rollbacks=0))
    return found


def shown(*, terminal: bool) -> str:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=110)
    with Screen(console, record()) as screen:
        screen.doing("trading")
        screen.show(5.0)
        screen.say(5.0, "failover  vbucket 7")
        screen.show(5.5)
    return output.getvalue()


def test_elsewhere_there_are_lines() -> None:
    lines = shown(terminal=False).splitlines()
    assert lines[0] == (
        "0:05  written 4,500 (1,000/s)  tables 3,600 rows (800/s) in 9 turns  "
        "lag 450 (worst vb 7: 450)"
    )
    assert lines[1:] == ["0:05  failover  vbucket 7"], "the next line comes some seconds later"


def test_on_a_terminal_there_is_a_panel_with_the_same_numbers() -> None:
    text = shown(terminal=True)
    assert "headrace demo  0:05" in text
    assert "4,500 writes" in text
    assert "450 seqnos" in text
    assert "worst vb 7: 450" in text
    assert "failover  vbucket 7" in text


def test_a_spark_line_is_as_high_as_its_values() -> None:
    assert spark_line([0, 1, 2, 4]) == "▁▂▄█"
    assert spark_line([]) == ""
    assert spark_line([0, 0]) == "▁▁"
    assert len(spark_line(list(range(100)), 30)) == 30


def test_times_are_minutes_and_seconds() -> None:
    assert [clock(one) for one in (0, 9.9, 61, 600)] == ["0:00", "0:09", "1:01", "10:00"]


def test_nothing_seen_yet_is_no_mistake() -> None:
    empty = Record()
    assert recent_rate(empty, "written") == 0
    assert worst_text(empty) == ""
    assert "written 0" in progress_line(empty, 0)


def test_tables_that_have_everything_are_said_to() -> None:
    found = Record()
    found.add_sample(Sample(time=0, written=1, landed=1, highs={0: 3}, positions={0: 3}))
    assert worst_text(found) == "level with the node"
