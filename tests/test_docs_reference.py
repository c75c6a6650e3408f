"""The generated pages of docs say what the code says; `make reference` brings them up to date."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import click
import pytest

from headrace.cli import COMMANDS, main
from headrace.node.commands.stats import GROUPS
from headrace.spark.options import OPTIONS
from headrace.wire.opcodes import Status
from tools import docs_figures, docs_reference
from tools.docs_tables import cell, table

if TYPE_CHECKING:
    from pathlib import Path


def read(name: str) -> str:
    return (docs_reference.DOCS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", docs_reference.PAGES)
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    assert read(name) == docs_reference.page_text(name)


def test_no_page_of_the_reference_is_written_by_hand() -> None:
    found = {f"reference/{path.name}" for path in (docs_reference.DOCS / "reference").glob("*")}
    assert found == {name for name in docs_reference.PAGES if name.startswith("reference/")}


def test_every_command_and_every_option_has_its_place() -> None:
    page = read("reference/cli.md")
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        section = page.split(f"\n## headrace {name}\n")[1].split("\n## ")[0]
        for option in command.params:
            if isinstance(option, click.Option):
                for spelling in (*option.opts, *option.secondary_opts):
                    assert f"`{spelling}`" in section, f"{name} {spelling}"


def test_statuses_options_and_groups_are_all_there() -> None:
    statuses, spark, statistics = (
        read(f"reference/{name}.md") for name in ("statuses", "spark", "statistics")
    )
    assert all(f"| {one:02x} | `{one.name}` |" in statuses for one in Status)
    assert all(f"| `{name}` |" in spark for name in OPTIONS)
    assert all(f"\n## {group or 'without a key'}\n" in statistics for group in GROUPS)


def test_statistics_name_no_moment() -> None:
    """Numbers of the node that was asked would make the page different each time."""
    assert not re.search(r"docs:|vb_\d|stream_\d|127\.0\.0\.1", read("reference/statistics.md"))


def test_a_name_without_words_stops_the_generator() -> None:
    with pytest.raises(SystemExit, match=r"control keys: no words for \['new'\]"):
        docs_reference._same({"old"}, {"old", "new"}, "control keys")
    with pytest.raises(SystemExit, match=r"no longer there \['old'\]"):
        docs_reference._same({"old"}, (), "control keys")


def test_cells_cannot_break_their_table() -> None:
    assert cell("a | b\n <c> ``d``") == "a \\| b &lt;c> `d`"
    assert table(("x", "y"), [("1", ""), ("2", "")]) == "| x |\n|---|\n| 1 |\n| 2 |\n"


# -- figures ---------------------------------------------------------------------------------------


def a_run(date: str, **values: float) -> dict[str, Any]:
    lines = [
        {
            "name": f"decode.{name}", "value": value, "unit": "ratio", "goal": 0.6,
            "better": "higher", "runs": 9, "commit": "abcdef0123456789",
        }
        for name, value in values.items()
    ]  # fmt: skip
    return docs_figures.collected("".join(json.dumps(line) + "\n" for line in lines), date)


def test_the_figures_say_where_and_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = a_run("2026-01-31", x=0.8125)
    assert set(data) == set(docs_figures.KEYS)
    path = tmp_path / "figures.json"
    path.write_text(json.dumps([a_run("2026-02-01", y=1.0), data]), encoding="utf-8")
    monkeypatch.setattr(docs_figures, "DATA", path)
    page = docs_figures.figures_page()
    assert "\n2. 2026-01-31, commit abcdef012345; processor " in page
    assert "cores" in page
    assert "| `decode.x` | 0.812 | at least 0.6 | 9 | 2 | no longer measured |" in page
    assert "| `decode.y` | 1 | at least 0.6 | 9 | 1 | no longer measured |" in page


def test_a_new_run_replaces_its_figures_and_leaves_the_others_with_their_run() -> None:
    old, older = a_run("2026-02-01", x=1.0, y=2.0), a_run("2026-01-01", z=3.0)
    new = a_run("2026-03-01", z=4.0, y=5.0)
    runs = docs_figures.merged([old, older], new)
    found = [(run["date"], [(f["name"], f["value"]) for f in run["figures"]]) for run in runs]
    assert found == [
        ("2026-03-01", [("decode.y", 5.0), ("decode.z", 4.0)]),
        ("2026-02-01", [("decode.x", 1.0)]),
    ]


def test_a_run_of_the_same_day_and_machine_is_part_of_the_same_one() -> None:
    first, second = a_run("2026-02-01", x=1.0, y=2.0), a_run("2026-02-01", y=3.0, a=4.0)
    (run,) = docs_figures.merged([first], second)
    assert [figure["name"] for figure in run["figures"]] == ["decode.a", "decode.x", "decode.y"]
    assert [figure["value"] for figure in run["figures"]] == [4.0, 1.0, 3.0]


def test_a_line_that_is_no_figure_is_refused() -> None:
    with pytest.raises(SystemExit, match="keys name"):
        docs_figures.collected('{"name": "x"}\n', "2026-01-31")
