"""The tree stays readable: small files, a test per module, no loose ends, no one's machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT: Final = Path(__file__).resolve().parent.parent
LINES_MAX: Final = 600

OURS: Final = ("src", "tests", "benchmarks", "docs", "tools", ".ci")
TEXT: Final = frozenset(
    {"", ".py", ".md", ".toml", ".lock", ".txt", ".json", ".jsonl", ".cfg", ".html"}
)
PASSED_OVER: Final = frozenset({"__pycache__", "captures"})

# Names of files that hold no behaviour of their own: a docstring, or one call.
PACKAGE_DOORS: Final = frozenset({"__init__.py", "__main__.py"})
# A module without a test file of its own, and why.
UNMIRRORED: Final = {
    "errors.py": "classes without behaviour; raised, hence tested, everywhere else",
    "wire/message.py": "what all messages share; wire/test_codec.py takes each through its row",
    "wire/messages.py": "data without behaviour; wire/test_codec.py takes each through its row",
    "wire/kv.py": "data without behaviour; wire/test_codec.py takes each through its row",
    "wire/admin.py": "data without behaviour; wire/test_codec.py takes each through its row",
    "wire/layout.py": "the form of the rows that wire/test_layouts.py checks byte by byte",
    "web/source.py": "a protocol and an exception; both sources are tested by themselves",
    "cluster/steps.py": "words without behaviour; cluster/test_mover.py says all of them",
    "wire/kv_layouts.py": "rows; wire/test_layouts.py checks these and the others byte by byte",
}
# A test file beside a package that stands for no single module, and why.
ABOUT_A_LAYER: Final = {
    "wire/test_vectors.py": "bytes with their source named, through the whole layer",
    "cli/test_options.py": "every command: no option without a good and a bad value",
    "cli/test_options_cluster.py": "values of the options of commands that manage nodes",
    "cli/test_options_files.py": "values of the options of commands that need no node",
    "cli/test_options_node.py": "values of the options of serve and fault",
    "cli/test_options_source.py": "values of the options of commands that talk to a bucket",
    "cli/test_options_tables.py": "values of the options of commands that keep tables",
    "node/test_crash.py": "a node process killed under load; a slice of `make soak`",
    "spark/test_campaign.py": "parts of a sync killed at random; a slice of the whole campaign",
    "spark/test_clusters.py": "the same sync on clusters, Spark Connect and the Java from PyPI",
    "cluster/test_encrypted.py": "the commands of a manager between nodes with TLS and users",
    "cluster/test_kills.py": "processes killed at every step of a move; run by `make moves`",
    "node/test_pair.py": "two nodes and a manager's link between them",
    "node/test_crowd.py": "many connections and one that never reads; a slice of `make soak`",
}
# Directories of tests that stand for no package of src, and why.
NOT_MIRRORS: Final = {
    "browser": "the live page in Chromium; run by `make browser`",
    "interop": "foreign tools against the whole",
    "fuzz": "broken bytes against several layers; run by `make fuzz`",
    "sim": "nodes, links and consumers together, by seed",
}

# Written in halves, so that this file does not find itself.
LOOSE_ENDS: Final = re.compile(r"\b(FIX" r"ME|TO" r"DO|XX" r"X)\b")
MACHINE_PATHS: Final = re.compile(r"(?<![\w.])/(wor" r"k|tm" r"p|roo" r"t|hom" r"e|User" r"s)/\w")


def text_files(root: Path) -> Iterator[Path]:
    """Yield the files people wrote."""
    yield from (path for path in sorted(root.iterdir()) if path.is_file() and path.suffix in TEXT)
    for directory in OURS:
        for path in sorted((root / directory).rglob("*")):
            if path.is_file() and path.suffix in TEXT and not PASSED_OVER & set(path.parts):
                yield path


def size_problems(root: Path) -> list[str]:
    """Return one sentence per Python file that is too long to read in a sitting."""
    problems = []
    for path in text_files(root):
        lines = path.read_bytes().count(b"\n") if path.suffix == ".py" else 0
        if lines > LINES_MAX:
            problems.append(f"{path.relative_to(root)}: {lines} lines, limit {LINES_MAX}")
    return problems


def mirror_problems(root: Path) -> list[str]:
    """Return one sentence per module without its test, and per test without its module."""
    package, tests = root / "src" / "headrace", root / "tests"
    problems = []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package)
        if path.name in PACKAGE_DOORS or str(place) in UNMIRRORED:
            continue
        twin = tests / place.parent / f"test_{place.name}"
        if not twin.is_file():
            problems.append(f"src/headrace/{place}: has no {twin.relative_to(root)}")
    for path in sorted(tests.rglob("test_*.py")):
        place = path.relative_to(tests)
        # Tests of the whole tree live at the top: their subject is no single module.
        top = len(place.parts) == 1
        if top or place.parts[0] in NOT_MIRRORS or place.as_posix() in ABOUT_A_LAYER:
            continue
        twin = package / place.parent / place.name.removeprefix("test_")
        if not twin.is_file():
            problems.append(
                f"tests/{place}: stands for {twin.relative_to(root)}, which is not there"
            )
    return problems


def pattern_problems(root: Path, pattern: re.Pattern[str], name: str) -> list[str]:
    """Return one sentence per line that holds the pattern."""
    return [
        f"{path.relative_to(root)}:{number}: {name} {found.group()!r}"
        for path in text_files(root)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (found := pattern.search(line))
    ]


def loose_end_problems(root: Path) -> list[str]:
    """Return one sentence per note that something is left to do: that belongs in an issue."""
    return pattern_problems(root, LOOSE_ENDS, "loose end")


def machine_path_problems(root: Path) -> list[str]:
    """Return one sentence per path that exists on one machine only."""
    return pattern_problems(root, MACHINE_PATHS, "machine path")


CHECKS: Final[dict[str, Callable[[Path], list[str]]]] = {
    "size": size_problems,
    "mirror": mirror_problems,
    "loose ends": loose_end_problems,
    "machine paths": machine_path_problems,
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_tree_is_tidy(check: Callable[[Path], list[str]]) -> None:
    assert check(ROOT) == []


@pytest.mark.parametrize("place", UNMIRRORED)
def test_a_module_without_its_test_is_still_an_exception(place: str) -> None:
    path = ROOT / "src" / "headrace" / place
    assert path.is_file()
    assert not (ROOT / "tests" / Path(place).parent / f"test_{path.name}").is_file()


@pytest.mark.parametrize("place", ABOUT_A_LAYER)
def test_a_test_without_its_module_is_still_an_exception(place: str) -> None:
    path = ROOT / "tests" / place
    assert path.is_file()
    twin = ROOT / "src" / "headrace" / Path(place).parent / path.name.removeprefix("test_")
    assert not twin.is_file()


PLANTED: Final = {
    "too long": ("size", "src/headrace/wire/long.py", "x = 1\n" * (LINES_MAX + 1), "601 lines"),
    "module without test": ("mirror", "src/headrace/wire/lone.py", "", "tests/wire/test_lone.py"),
    "top module without test": ("mirror", "src/headrace/lone.py", "", "tests/test_lone.py"),
    "test without module": ("mirror", "tests/wire/test_ghost.py", "", "wire/ghost.py"),
    "loose end": ("loose ends", "docs/page.md", "later, " + "FIX" + "ME", "page.md:1"),
    "loose end in code": ("loose ends", "src/headrace/a.py", "x = 1\n# TO" + "DO: y", "a.py:2"),
    "machine path": ("machine paths", ".ci/run", "cd /hom" + "e/someone", ".ci/run:1"),
    "machine path at the top": ("machine paths", "Makefile", "A := /tm" + "p/x", "Makefile:1"),
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_a_planted_mess_is_found(plant: tuple[str, str, str, str], tmp_path: Path) -> None:
    check, name, text, expected = plant
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    (problem,) = CHECKS[check](tmp_path)
    assert expected in problem


def test_a_file_of_exactly_the_limit_is_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "src" / "headrace" / "wire" / "full.py"
    path.parent.mkdir(parents=True)
    path.write_text("x = 1\n" * LINES_MAX, encoding="utf-8")
    assert size_problems(tmp_path) == []


def test_a_module_with_its_test_is_no_problem(tmp_path: Path) -> None:
    for name in ("src/headrace/wire/frame.py", "tests/wire/test_frame.py", "tests/test_docs.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
    assert mirror_problems(tmp_path) == []
