"""The docs say what the code does: sections, paths, commands and words are checked, not trusted."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

import headrace
from headrace.testing import running_node

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "benchmarks/README.md",
    "docs/**/*.md",
)

# The opcodes the protocol is made of have a section each; the others, which any key-value
# connection has, may share a table.
DCP_OPCODES: Final = range(0x50, 0x68)

HEADING: Final = re.compile(r"^#{2,6} +(.*)$", re.MULTILINE)
FENCE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PYTHON: Final = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE: Final = re.compile(r"`([^`\n]+)`")
LINK: Final = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
# A path has a slash inside or a suffix we use; spaces, braces and arguments make it something else.
PATH: Final = re.compile(r"^\.?[\w-][\w.-]*(?:/[\w.-]+)+/?$|^[\w-]+\.(?:py|md|toml|lock|jsonl?)$")
MAKE: Final = re.compile(r"\bmake ([a-z]+)\b")
HEADRACE: Final = re.compile(r"(?:^|[\s`/(])headrace ([a-z][a-z-]*)")
TARGET: Final = re.compile(r"^([a-z]+):", re.MULTILINE)


def words_of(text: str) -> list[str]:
    """Return the words of a heading, a name in any case style, or a sentence; lower case."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text)
    return [word.lower() for word in re.findall(r"[A-Za-z0-9]+", spaced)]


def holds(words: list[str], part: list[str]) -> bool:
    """Tell whether `part` stands in `words`, side by side; a plural s at the end is the same."""
    size = len(part)
    ends = (part[-1], part[-1] + "s")
    return any(
        words[at : at + size - 1] == part[:-1] and words[at + size - 1] in ends
        for at in range(len(words) - size + 1)
    )


def section_problems(opcodes: Iterable[tuple[str, int]], page: str) -> list[str]:
    """Return one sentence per opcode that has no section (or row, outside DCP) in the page."""
    text = FENCE.sub("", page)
    headings = [words_of(heading) for heading in HEADING.findall(text)]
    rows = [words_of(line) for line in text.splitlines() if line.startswith("|")]
    problems = []
    for name, code in opcodes:
        places = headings if code in DCP_OPCODES else headings + rows
        if not any(holds(place, words_of(name)) for place in places):
            problems.append(f"{name} (0x{code:02x}) has no section")
    return problems


def paths_in(page: str) -> Iterator[str]:
    """Yield what a page names as a path of the project in `backticks`."""
    for code in CODE.findall(FENCE.sub("", page)):
        if PATH.match(code):
            yield code


def is_there(path: Path) -> bool:
    """Tell whether a clone has it: git knows no empty directories."""
    return path.is_file() or any(file.is_file() for file in path.rglob("*"))


def link_problems(page: Path, root: Path) -> list[str]:
    """Return one sentence per link of a page to a file that is not there."""
    place = page.relative_to(root)
    return [
        f"{place}: links to {target}, which is not there"
        for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
        if "://" not in target and not is_there(page.parent / target)
    ]


def commands_in(page: str, pattern: re.Pattern[str]) -> set[str]:
    """Return the commands a page tells its reader to type: in backticks or in a fence."""
    typed = [*FENCE.findall(page), *CODE.findall(FENCE.sub("", page))]
    return {
        command
        for text in typed
        if not text.startswith("```python")
        for command in pattern.findall(text)
    }


class Twin(NamedTuple):
    """A word that must not be used, the one to use, and the layers where it is something else."""

    word: str
    instead: str
    except_in: frozenset[str]


def twins_of(glossary: str) -> list[Twin]:
    """Return the `marked` words of the glossary's column "never"."""
    twins = []
    for line in glossary.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 4:
            layers = frozenset(cells[3].partition("(")[0].replace(",", " ").split())
            twins += [Twin(word, cells[0], layers) for word in CODE.findall(cells[2])]
    return twins


def defined_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of what a module itself names: not what it calls of others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the docstrings of a module, its classes and functions."""
    holders = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, holders) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text


def twin_problems(package: Path, twins: list[Twin]) -> list[str]:
    """Return one sentence per forbidden twin in a name or a docstring of the source."""
    problems = []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = [*defined_names(tree), *docstrings(tree)]
        for twin in twins:
            if place.parts[0].removesuffix(".py") in twin.except_in:
                continue
            problems += [
                f"{place}:{line}: {twin.word!r}, the glossary says {twin.instead!r}"
                for line, text in texts
                if holds(words_of(text), words_of(twin.word))
            ]
    return problems


def pages() -> list[Path]:
    return [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def run_headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n"
    code += "from headrace.cli import main; sys.argv[0] = 'headrace'; main()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_every_opcode_has_its_section() -> None:
    from headrace.wire.opcodes import Opcode

    opcodes = [(opcode.name, opcode.value) for opcode in Opcode]
    assert section_problems(opcodes, read("docs/protocol.md")) == []


def test_every_path_named_in_the_architecture_exists() -> None:
    paths = list(paths_in(read("docs/ARCHITECTURE.md")))
    assert len(paths) > 10, "the page names paths, and they are found"
    # `x/y.py` stands for any module in the rule of the mirror.
    missing = [path for path in paths if not path.startswith("x/") and not is_there(ROOT / path)]
    assert missing == []


def test_every_link_leads_somewhere() -> None:
    assert [problem for page in pages() for problem in link_problems(page, ROOT)] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "benchmarks/README.md"])
def test_every_make_command_named_is_a_target(page: str) -> None:
    named = commands_in(read(page), MAKE)
    assert named, "the page names make commands, and they are found"
    assert named - set(TARGET.findall(read("Makefile"))) == set()


def test_every_headrace_command_named_in_the_readme_exists() -> None:
    named = commands_in(read("README.md"), HEADRACE)
    assert "decode" in named
    for command in sorted(named):
        done = run_headrace(command, "--help")
        assert done.returncode == 0, f"headrace {command} --help: {done.stderr}"


def test_a_headrace_command_that_does_not_exist_is_refused() -> None:
    """Else the test above could not fail; 2 is the status of a usage error."""
    done = run_headrace("no-such-command", "--help")
    assert done.returncode == 2
    assert "no-such-command" in done.stderr


def test_the_python_in_the_readme_runs() -> None:
    """As written, but for the port: the node of a test listens wherever it is free."""
    (snippet,) = PYTHON.findall(read("README.md"))
    with running_node(vbuckets=2) as node:
        assert ":11210/" in snippet
        names: dict[str, object] = {}
        with headrace.connect(f"couchbase://127.0.0.1:{node.port}/default") as bucket:
            assert bucket.name == "default"
        exec(snippet.replace(":11210/", f":{node.port}/"), names)  # noqa: S102 - our own text
        assert "bucket" in names


def test_every_decision_is_listed_and_has_its_four_parts() -> None:
    listed = read("docs/decisions/README.md")
    for page in sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")):
        text = page.read_text(encoding="utf-8")
        headings = HEADING.findall(text)
        assert headings == ["Context", "Choice", "Cost", "What would change our mind"], page.name
        assert f"({page.name})" in listed, f"{page.name} is not in docs/decisions/README.md"
        assert text.startswith(f"# {page.name[:4]}: "), page.name


def test_every_glossary_twin_stays_out_of_the_source() -> None:
    twins = twins_of(read("docs/GLOSSARY.md"))
    assert {"packet", "vbid", "bookmark"} <= {twin.word for twin in twins}
    assert twin_problems(ROOT / "src" / "headrace", twins) == []


def test_a_missing_section_is_found() -> None:
    page = (
        "# Protocol\n## Open (0x50)\n### STREAM_REQ and its answer\n| HELLO | 1f |\n| NOOP | 5c |\n"
        "```\n## MUTATION\n```\n"
    )
    opcodes = [("OPEN", 0x50), ("STREAM_REQ", 0x53), ("HELLO", 0x1F), ("NOOP", 0x5C)]
    opcodes += [("MUTATION", 0x57), ("GET", 0x00)]
    assert section_problems(opcodes, page) == [
        "NOOP (0x5c) has no section",
        "MUTATION (0x57) has no section",
        "GET (0x00) has no section",
    ]


def test_paths_are_told_from_other_code() -> None:
    page = "`src/headrace/wire` `tests/test_docs.py` `Makefile` `a / b` `headrace -h` `x.py` `i/o?`"
    assert list(paths_in(page)) == ["src/headrace/wire", "tests/test_docs.py", "x.py"]


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[a](page.md#top) [b](gone.md) [c](https://example.org/x)", encoding="utf-8")
    assert link_problems(page, tmp_path) == ["page.md: links to gone.md, which is not there"]


def test_an_empty_directory_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    assert not is_there(tmp_path / "empty")
    (tmp_path / "empty" / "inner" / "file").write_text("", encoding="utf-8")
    assert is_there(tmp_path / "empty")


def test_commands_are_found_where_a_reader_would_type_them() -> None:
    page = (
        "We make progress with headrace today. `make fly` or\n```\nmake demo   # soon\n"
        ".venv/bin/headrace decode a.pcap\n```\n```python\nimport headrace as make\n```\n"
    )
    assert commands_in(page, MAKE) == {"fly", "demo"}
    assert commands_in(page, HEADRACE) == {"decode"}


def test_planted_twins_are_found_in_names_and_docstrings(tmp_path: Path) -> None:
    twins = twins_of(
        "| word | means | never | except in |\n|---|---|---|---|\n"
        "| frame | one unit | `packet`, chunk | capture (theirs) |\n"
        "| branch | b | `history id` | |\n"
    )
    assert [twin.word for twin in twins] == ["packet", "history id"]
    (tmp_path / "wire").mkdir()
    (tmp_path / "capture").mkdir()
    text = (
        '"""Cuts packets."""\nclass PacketReader:\n    history_id = 1\n'
        "def read(chunk, packets):\n    return chunk.packet.partition(b'')\n"
    )
    (tmp_path / "wire" / "a.py").write_text(text, encoding="utf-8")
    (tmp_path / "capture" / "a.py").write_text(text.replace("history_id", "x"), encoding="utf-8")
    assert twin_problems(tmp_path, twins) == [
        "wire/a.py:2: 'packet', the glossary says 'frame'",
        "wire/a.py:4: 'packet', the glossary says 'frame'",
        "wire/a.py:1: 'packet', the glossary says 'frame'",
        "wire/a.py:3: 'history id', the glossary says 'branch'",
    ]
