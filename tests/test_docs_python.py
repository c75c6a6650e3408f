"""Python in the docs compiles, and what is marked as runnable runs; so does the notebook.

A block with the line `<!-- run -->` above it is run, all of a page in one namespace and in order.
`<!-- run: tables -->` and `<!-- run: spark -->` need more than the bare package, and are run by
`tests/test_docs_spark.py`. A page that names port 11210 gets a node, on whatever
port is free.
"""

from __future__ import annotations

import json
import re
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from headrace.client.bucket import connect
from headrace.client.changes import Rollback
from headrace.client.writer import Document
from headrace.testing import running_node
from tests.test_docs import ROOT, pages

if TYPE_CHECKING:
    from pathlib import Path

BLOCK: Final = re.compile(
    r"(?:^<!-- run(?:: (\w+))? -->\n)?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL
)
MARK: Final = re.compile(r"^<!-- run(?:: (\w+))? -->$", re.MULTILINE)
PORT: Final = ":11210/"
NOTEBOOK: Final = ROOT / "examples" / "tour.ipynb"
KINDS: Final = ("", "tables", "spark")


class Block(NamedTuple):
    """One block of Python: what it needs (None: it is not run), and its text."""

    needs: str | None
    text: str


def blocks_of(page: str) -> list[Block]:
    found = []
    for match in BLOCK.finditer(page):
        marked = match[0].startswith("<!-- run")
        found.append(Block((match[1] or "") if marked else None, match[2]))
    return found


def names() -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in pages()]


def runnable(*needs: str) -> list[str]:
    """The pages that have a block that needs one of these."""
    return [name for name in names() if any(one.needs in needs for one in blocks_of(read(name)))]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def run(name: str, *needs: str) -> dict[str, object]:
    """Run the blocks of a page that need one of these."""
    blocks = [one.text for one in blocks_of(read(name)) if one.needs in needs]
    assert blocks
    space: dict[str, object] = {"__name__": "page"}
    with ExitStack() as stack:
        port = PORT
        if any(PORT in text for text in blocks):
            node = stack.enter_context(running_node(vbuckets=4))
            port = f":{node.port}/"
            fill(f"{node.connection_string}/default")
        for text in blocks:
            exec(compile(text.replace(PORT, port), name, "exec"), space)  # noqa: S102 - our own text
    return space


def fill(url: str) -> None:
    """Documents for pages that read some."""
    with connect(url) as bucket, bucket.writer() as writer:
        for number in range(100):
            kind = b"even" if number % 2 == 0 else b"odd"
            value = b'{"kind": "%s", "total": %d.5}' % (kind, number)
            writer.put(Document(b"order-%d" % number, value, is_json=True))


@pytest.mark.parametrize("name", [name for name in names() if blocks_of(read(name))])
def test_every_block_of_python_compiles(name: str) -> None:
    for block in blocks_of(read(name)):
        compile(block.text, name, "exec")


@pytest.mark.parametrize("name", runnable(""))
def test_what_is_marked_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(name, "")


def test_every_mark_stands_above_a_block_and_says_what_it_needs() -> None:
    for name in names():
        text = read(name)
        marked = [one.needs for one in blocks_of(text) if one.needs is not None]
        assert len(marked) == len(MARK.findall(text)), name
        assert set(marked) <= set(KINDS), name


def test_a_block_that_is_wrong_is_found() -> None:
    text = "<!-- run -->\n```python\nassert 1 == 2\n```\n\n```python\nx = 1\n```\n"
    assert blocks_of(text) == [Block("", "assert 1 == 2\n"), Block(None, "x = 1\n")]
    assert blocks_of("<!-- run: spark -->\n```python\nx\n```\n") == [Block("spark", "x\n")]


# -- the notebook ----------------------------------------------------------------------------------


def cells() -> list[str]:
    """The code of the notebook, cell by cell."""
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert book["nbformat"] == 4
    return ["".join(one["source"]) for one in book["cells"] if one["cell_type"] == "code"]


def run_notebook(space: dict[str, object]) -> dict[str, object]:
    """Run every cell in one namespace, as a kernel does."""
    for number, text in enumerate(cells(), 1):
        exec(compile(text, f"tour.ipynb, cell {number}", "exec"), space)  # noqa: S102 - our own text
    return space


def test_the_notebook_runs_without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    space = run_notebook({"__name__": "notebook"})
    assert isinstance(space["rollback"], Rollback)
    assert space["spark"] is None


def test_the_notebook_is_kept_without_results() -> None:
    """They would change with every run, and tell of the machine they ran on."""
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    for one in book["cells"]:
        assert not one.get("outputs")
        assert one.get("execution_count") is None
