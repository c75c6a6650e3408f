"""docs/figures.json: the figures of a measured run, with date, machine and commit; and their page.

``python -m tools.docs_figures [build/bench.jsonl]`` takes what `make bench` wrote over into
docs/figures.json. The page is written from that file alone, so that it says what was measured,
where and when, and not what this machine would measure now.

Imports: benchmarks.harness.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import discover
from tools.docs_tables import cell, code, table

ROOT: Final = Path(__file__).parent.parent
DATA: Final = ROOT / "docs" / "figures.json"
LINES: Final = ROOT / "build" / "bench.jsonl"
KEYS: Final = ("date", "machine", "figures")
FIGURE_KEYS: Final = ("name", "value", "unit", "goal", "better", "runs", "commit")


def machine() -> dict[str, str]:
    """What this machine is, as far as a figure depends on it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count() or 1),
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def collected(lines: str, date: str) -> dict[str, Any]:
    """The data file of a run's lines; what is no figure is refused."""
    figures = []
    for line in lines.splitlines():
        figure = json.loads(line)
        if tuple(figure) != FIGURE_KEYS:
            raise SystemExit(f"a figure has the keys {', '.join(figure)}; expected {FIGURE_KEYS}")
        figures.append(figure)
    return {
        "date": date,
        "machine": machine(),
        "figures": sorted(figures, key=lambda figure: str(figure["name"])),
    }


def figures_page() -> str:
    """Return the page of the data file."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    questions = {
        figure.name: cell((figure.measure.__doc__ or "").strip().split("\n\n")[0])
        for figure in discover(ROOT / "benchmarks")
    }
    told = ", ".join(f"{name} {text}" for name, text in data["machine"].items())
    commits = sorted({str(figure["commit"])[:12] for figure in data["figures"]})
    parts = [
        f"Measured on {data['date']} with `make bench`, commit {', '.join(commits) or 'none'}. "
        f"Machine: {told}.\n",
        "Each figure is the median of its runs. A ratio compares with a baseline that does the "
        "unavoidable part of the same work, in turns with it in one process; a rate depends on the "
        "machine. A goal is what we want, not a promise. The rules are in "
        "[benchmarks](../benchmarks/README.md); `make bench` measures them where you are.\n",
    ]
    topics: dict[str, list[dict[str, Any]]] = {}
    for figure in data["figures"]:
        topics.setdefault(str(figure["name"]).partition(".")[0], []).append(figure)
    for topic, figures in topics.items():
        parts.append(f"## {topic}\n")
        rows = [
            (
                code(str(one["name"])),
                f"{_number(one['value'])} {'' if one['unit'] == 'ratio' else one['unit']}".strip(),
                "" if one["goal"] is None else f"{_sign(one)} {_number(one['goal'])}",
                str(one["runs"]),
                questions.get(str(one["name"]), "no longer measured"),
            )
            for one in figures
        ]
        parts.append(table(("figure", "value", "goal", "runs", "what"), rows))
    return "\n".join(parts)


def _sign(figure: dict[str, Any]) -> str:
    return "at least" if figure["better"] == "higher" else "at most"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def main(arguments: list[str]) -> None:
    """Take a run over."""
    lines = Path(arguments[0]) if arguments else LINES
    if not lines.is_file():
        raise SystemExit(f"{lines} is not there; `make bench` writes it")
    measured = datetime.fromtimestamp(lines.stat().st_mtime, tz=UTC).date()
    data = collected(lines.read_text(encoding="utf-8"), measured.isoformat())
    DATA.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"docs/figures.json: {len(data['figures'])} figures\n")


if __name__ == "__main__":
    main(sys.argv[1:])
