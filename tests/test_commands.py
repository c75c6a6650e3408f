"""Every command in README and docs is run, or there is a reason not to.

`tests/doc_commands.py` types them. A page may need files or documents first (`PREPARED`); a command
may not be run here (`NOT_RUN`, with the reason). A command without either fails when it does.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

import click
import pytest

from headrace.cli import main
from headrace.cli.exits import MEANINGS
from tests.doc_commands import FENCE, ROOT, Command, Reader, commands_of, files_of, words_of
from tests.test_docs import CODE, pages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUILDING: Final = "builds an environment of its own; .ci/run runs it from a fresh clone"
NOT_RUN: Final[dict[str, str]] = {
    "make demo": f"{BUILDING}; tests/cli/test_demo.py runs what it runs",
    "make test": BUILDING,
    "make check": BUILDING,
    ".ci/run": "is everything, these tests too",
}
"""A command -> why it is not typed here."""

# Written before the page is read: what its author has in his directory.
FILES: Final[dict[str, dict[str, str]]] = {
    "docs/guide/faults.md": {
        "worst-day.txt": "at vbucket 3 seqno 500: fail over losing 20\n",
        "bad.txt": "after 1s: clear\nthen: fail over losing few\n",
    },
    "docs/howto/secure.md": {"reader.secret": "open sesame\n"},
}
# Typed behind a node that has started: documents that the page's next commands need.
PREPARED: Final[dict[str, tuple[str, ...]]] = {
    "docs/guide/faults.md": (
        "headrace load couchbase://127.0.0.1/default --generate 5000 --size 32",
    ),
}
# What a page writes for a reader's machine -> what it is in a test's directory.
EXCHANGED: Final[dict[str, tuple[str, str]]] = {
    "docs/guide/faults.md": ("/var/lib/headrace", "data"),
}
FAILS: Final = ("headrace: ",)
"""A command shown with such an answer is meant to fail with exactly it."""


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def page_names() -> list[str]:
    names = [path.relative_to(ROOT).as_posix() for path in pages()]
    return [name for name in names if commands_of(name, text_of(name))]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    found = Reader(tmp_path)
    try:
        yield found
    finally:
        found.stop()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", page_names())
def test_every_command_of_a_page_works_in_its_order(page: str, reader: Reader) -> None:
    reader.files = files_of(text_of(page)) | FILES.get(page, {})
    for command in commands_of(page, text_of(page)):
        if command.line not in NOT_RUN:
            check(command, reader)


def check(command: Command, reader: Reader) -> None:
    """Type a command: it works, or it fails as the page shows."""
    before, after = EXCHANGED.get(command.page, ("", ""))
    line = command.line.replace(before, after) if before else command.line
    done = reader.type(line)
    if done is not None and command.shown.startswith(FAILS):
        assert done.returncode != 0, f"{command} is shown to fail"
        assert done.stderr.splitlines()[-1] == command.shown, str(command)
    elif done is not None:
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    if words_of(line)[1] == "serve" and done is None:
        for more in PREPARED.get(command.page, ()):
            prepared = reader.type(more)
            assert prepared is not None
            assert prepared.returncode == 0, prepared.stderr


def test_no_reason_is_left_over() -> None:
    typed = {command.line for page in page_names() for command in commands_of(page, text_of(page))}
    assert set(NOT_RUN) <= typed
    for table in (FILES, PREPARED, EXCHANGED):
        assert set(table) <= set(page_names())


# -- commands inside sentences -------------------------------------------------------------------

LEFT_OPEN: Final = re.compile(r"\.\.\.|[A-Z]{2,}|\[|\||'|\"|\$")
"""What stands for something else, in a command that is talked about and not meant to be typed."""


def talked_about() -> list[tuple[str, str]]:
    found = []
    for page in pages():
        name = page.relative_to(ROOT).as_posix()
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        found += [
            (name, code)
            for code in CODE.findall(text)
            if code.startswith("headrace ") and not LEFT_OPEN.search(code)
        ]
    return found


@pytest.mark.parametrize(("page", "code"), talked_about())
def test_a_command_in_a_sentence_can_be_typed(page: str, code: str) -> None:
    words = shlex.split(code)[1:]
    command: click.Command = main
    context = click.Context(main)
    while words and not words[0].startswith("-") and isinstance(command, click.Group):
        inner = command.get_command(context, words[0])
        assert inner is not None, f"{page}: `{code}` names no command"
        command, words = inner, words[1:]
    known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    known |= {"-h", "--help", "--version"}
    strange = [word for word in words if word.startswith("--") and word.split("=")[0] not in known]
    assert strange == [], f"{page}: `{code}`"


def test_the_exit_codes_in_the_docs_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", text_of("docs/guide/cli.md"), re.MULTILINE)
    assert rows == [(str(code.value), text) for code, text in MEANINGS.items()]


# -- the kit -------------------------------------------------------------------------------------


def test_commands_are_found_in_blocks_a_reader_would_type_from() -> None:
    text = (
        "```console\n$ headrace serve --memory\nheadrace serves\n$ headrace tail x\n```\n"
        "```\nmake demo     # soon\n.venv/bin/headrace load x &   # go\nnot a command\n```\n"
        "```toml\nheadrace = 1\n```\n```text\nheadrace tail\n```\n"
    )
    assert commands_of("p", text) == [
        Command("p", "headrace serve --memory", "headrace serves"),
        Command("p", "headrace tail x", ""),
        Command("p", "make demo", ""),
        Command("p", ".venv/bin/headrace load x &", ""),
    ]
    assert words_of(".venv/bin/headrace load x &") == ["headrace", "load", "x"]


def test_files_are_found_in_blocks_that_begin_with_their_names() -> None:
    text = (
        "```toml\n# a.toml\nx = 1\n```\n```toml\n# users.toml, mode 600\ny = 2\n```\n"
        "```toml\n# node.toml: headrace serve --config node.toml\n```\n```toml\nz = 3\n```\n"
    )
    assert files_of(text) == {"a.toml": "x = 1\n", "users.toml": "y = 2\n"}


def test_ports_of_the_text_are_those_of_the_nodes(tmp_path: Path) -> None:
    reader = Reader(tmp_path, ports={11210: 5, 11310: 6}, newest=6)
    reader.files = {"c.toml": 'url = "couchbase://127.0.0.1:11310"\n'}
    done = reader.type("headrace --version")
    assert done is not None
    assert (tmp_path / "c.toml").read_text(encoding="utf-8") == 'url = "couchbase://127.0.0.1:6"\n'
    assert reader.placed("couchbase://127.0.0.1/default") == "couchbase://127.0.0.1:6/default"
    assert reader.placed("couchbase://127.0.0.1:4711/b") == "couchbase://127.0.0.1:6/b"


def test_a_command_that_does_not_work_is_found(reader: Reader) -> None:
    with pytest.raises(AssertionError, match="no-such-command"):
        check(Command("p", "headrace no-such-command", ""), reader)
    with pytest.raises(AssertionError, match="shown to fail"):
        check(Command("p", "headrace --version", "headrace: no"), reader)
    with pytest.raises(AssertionError, match="give a reason"):
        check(Command("p", "make coffee", ""), reader)
