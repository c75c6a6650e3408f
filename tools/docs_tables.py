"""Markdown tables, for pages that are generated.

Imports: nothing of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def cell(text: str) -> str:
    """The text on one line, with nothing that would end a cell or begin a tag."""
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|").replace("<", "&lt;")


def code(text: str) -> str:
    """The text as code in a cell."""
    return f"`{text}`".replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a column that is empty in every row is left out."""
    lines = [list(row) for row in rows]
    kept = [place for place in range(len(head)) if any(row[place] for row in lines)]
    shown = [[row[place] for place in kept] for row in ([*head], *lines)]
    drawn = [f"| {' | '.join(row)} |" for row in shown]
    return "\n".join([drawn[0], "|---" * len(kept) + "|", *drawn[1:]]) + "\n"
