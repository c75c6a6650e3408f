"""docs/figures.json: the figures of measured runs, with date, machine and commit; and their page.

``python -m tools.docs_figures [build/bench.jsonl]`` takes what `make bench` wrote over into
docs/figures.json: a figure takes the place of the older one of its name, and what the run did not
measure stays, with the run it is of. The page is written from that file alone, so that it says what
was measured, where and when, and not what this machine would measure now.

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
        "figures": _sorted(figures),
    }


def _sorted(figures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(figures, key=lambda figure: str(figure["name"]))


def merged(runs: list[dict[str, Any]], run: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs with a new one: each figure once, where it was measured last."""
    new = {figure["name"] for figure in run["figures"]}
    same = {key: run[key] for key in ("date", "machine")}
    kept = []
    for old in runs:
        figures = [figure for figure in old["figures"] if figure["name"] not in new]
        if {key: old[key] for key in same} == same:  # the same day on the same machine
            run = {**run, "figures": _sorted(run["figures"] + figures)}
        elif figures:
            kept.append({**old, "figures": figures})
    return [run, *kept]


def figures_page() -> str:
    """Return the page of the data file."""
    runs = json.loads(DATA.read_text(encoding="utf-8"))
    questions = {
        figure.name: cell((figure.measure.__doc__ or "").strip().split("\n\n")[0])
        for figure in discover(ROOT / "benchmarks")
    }
    parts = [
        "Each figure is the median of its runs. A ratio compares with a baseline that does the "
        "unavoidable part of the same work, in turns with it in one process; a rate depends on the "
        "machine. A goal is what we want, not a promise. The rules are in "
        "[benchmarks](../benchmarks/README.md); `make bench` measures them where you are.\n",
        "Where and when, by the number in a figure's row:\n",
        "\n".join(f"{number}. {_told(run)}" for number, run in enumerate(runs, 1)) + "\n",
    ]
    topics: dict[str, list[dict[str, Any]]] = {}
    numbered = [
        {**figure, "where": str(number)}
        for number, run in enumerate(runs, 1)
        for figure in run["figures"]
    ]
    for figure in _sorted(numbered):
        topics.setdefault(str(figure["name"]).partition(".")[0], []).append(figure)
    for topic, figures in topics.items():
        parts.append(f"## {topic}\n")
        rows = [
            (
                code(str(one["name"])),
                f"{_number(one['value'])} {'' if one['unit'] == 'ratio' else one['unit']}".strip(),
                "" if one["goal"] is None else f"{_sign(one)} {_number(one['goal'])}",
                str(one["runs"]),
                one["where"],
                questions.get(str(one["name"]), "no longer measured"),
            )
            for one in figures
        ]
        parts.append(table(("figure", "value", "goal", "runs", "where", "what"), rows))
    return "\n".join(parts)


def _told(run: dict[str, Any]) -> str:
    machine = ", ".join(f"{name} {text}" for name, text in run["machine"].items())
    commits = sorted({str(figure["commit"])[:12] for figure in run["figures"]})
    return f"{run['date']}, commit {', '.join(commits) or 'none'}; {machine}"


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
    run = collected(lines.read_text(encoding="utf-8"), measured.isoformat())
    runs = merged(json.loads(DATA.read_text(encoding="utf-8")), run)
    DATA.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"docs/figures.json: {len(run['figures'])} figures taken over\n")


if __name__ == "__main__":
    main(sys.argv[1:])
