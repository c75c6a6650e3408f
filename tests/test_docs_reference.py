"""The generated pages of docs say what the code says; `make reference` brings them up to date."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

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


def test_the_figures_say_where_and_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = {
        "name": "decode.x", "value": 0.8125, "unit": "ratio", "goal": 0.6, "better": "higher",
        "runs": 9, "commit": "abcdef0123456789",
    }  # fmt: skip
    data = docs_figures.collected(json.dumps(line) + "\n", "2026-01-31")
    assert set(data) == set(docs_figures.KEYS)
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    monkeypatch.setattr(docs_figures, "DATA", path)
    page = docs_figures.figures_page()
    assert "Measured on 2026-01-31 with `make bench`, commit abcdef012345." in page
    assert "cores" in page
    assert "| `decode.x` | 0.812 | at least 0.6 | 9 | no longer measured |" in page


def test_a_line_that_is_no_figure_is_refused() -> None:
    with pytest.raises(SystemExit, match="keys name"):
        docs_figures.collected('{"name": "x"}\n', "2026-01-31")
