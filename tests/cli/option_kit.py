"""Every option of every command with a good and a bad value: the form of the tables, the runner.

A table names, for one command, the words that make it run and end by itself, and for each option a
value that works and one that does not. A bad value may be left out where the option's type says
what is bad (a number, a choice, a file that must exist, a flag). Words in braces stand for things
of a `World`: the URL of a node, a file, an empty directory.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from unittest import mock

import click
from click.testing import CliRunner, Result

from headrace.cli import COMMANDS, main

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

SENTENCES: Final = ("headrace: ", "Error: ")
"""How the line that says what is wrong begins."""


@dataclass(frozen=True, slots=True)
class Value:
    """A good and a bad value of one option.

    ``bad`` None: taken from the option's type. ``base`` replaces the command's words, ``url`` what
    ``{url}`` stands for in them. ``code``: the exit code a good value ends with.
    """

    good: str = ""
    bad: str | None = None
    base: str | None = None
    url: str | None = None
    code: int = 0


@dataclass(frozen=True)
class Table:
    """The options of one command."""

    base: str
    values: Mapping[str, Value]
    around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext
    environment: Mapping[str, str] = field(default_factory=dict)


World = dict[str, str]

ANY_TEXT: Final = ""
"""The bad value of an option that takes every text: none at all."""


@dataclass(frozen=True)
class Case:
    """One call of the command line."""

    command: str
    option: str
    words: str
    value: Value
    table: Table

    def __str__(self) -> str:
        return f"{self.command} {self.option} {self.words}".strip()


def commands() -> dict[str, click.Command]:
    """Every command, by the words that call it."""
    context = click.Context(main)
    found: dict[str, click.Command] = {}
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        _add(found, name, command)
    return found


def _add(found: dict[str, click.Command], path: str, command: click.Command) -> None:
    found[path] = command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            _add(found, f"{path} {name}", inner)


def names_of(command: click.Command) -> dict[str, click.Parameter]:
    """Every option under its first name (both names of a switch), every argument as NAME."""
    found: dict[str, click.Parameter] = {}
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            found[(parameter.name or "").upper()] = parameter
        else:
            found[parameter.opts[0]] = parameter
            if parameter.secondary_opts:
                found[parameter.secondary_opts[0]] = parameter
    return found


def bad_values(parameter: click.Parameter, said: str | None) -> list[str]:
    """What an option does not take: what the table says, else what its type says."""
    if said is not None:
        return [said]
    kind = parameter.type
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return ["=nonsense"]
    if isinstance(kind, click.IntRange | click.FloatRange):
        found = ["many"]
        if kind.min is not None:
            found.append(str(kind.min - 1))
        if kind.max is not None:
            found.append(str(kind.max + 1))
        return found
    if isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        return ["many"]
    if isinstance(kind, click.Choice):
        return ["no-such-choice"]
    if isinstance(kind, click.Path) and kind.exists:
        return ["{tmp}/missing"]
    if isinstance(kind, click.Path) and not kind.dir_okay:
        return ["{tmp}"]
    if isinstance(kind, click.Path) and not kind.file_okay:
        return ["{file}"]
    raise AssertionError(f"{parameter.name}: its type does not tell; say it in the table")


def good_cases(tables: Mapping[str, Table]) -> list[Case]:
    """A call per option, with its good value."""
    return [
        Case(command, option, value.good, value, table)
        for command, table in tables.items()
        for option, value in table.values.items()
    ]


def bad_cases(tables: Mapping[str, Table]) -> list[Case]:
    """A call per option and bad value."""
    known = commands()
    return [
        Case(command, option, words, value, table)
        for command, table in tables.items()
        for option, value in table.values.items()
        for words in bad_values(names_of(known[command])[option], value.bad)
    ]


def run(case: Case, world: World) -> Result:
    """Call the command line as the case says."""
    base = case.table.base if case.value.base is None else case.value.base
    if case.value.url is not None:
        base = base.replace("{url}", case.value.url)
    if case.option.startswith("--"):
        gap = "" if case.words.startswith("=") else " "
        said = f"{case.option}{gap}{case.words}"
        # Options of a group stand before the name of the command inside it.
        line = base.replace("{OPTIONS}", said) if "{OPTIONS}" in base else f"{base} {said}"
    else:
        line = base.replace("{" + case.option + "}", case.words)
    words = shlex.split(f"{case.command} {line}".format_map(world))
    environment = {name: text.format_map(world) for name, text in case.table.environment.items()}
    with case.table.around(), mock.patch.dict(os.environ, environment):
        return CliRunner().invoke(main, words)


def check_good(case: Case, world: World) -> Result:
    """The command does it."""
    done = run(case, world)
    told = f"{case}: exit {done.exit_code}\n{done.output}\n{done.exception!r}"
    assert done.exit_code == case.value.code, told
    return done


def check_bad(case: Case, world: World) -> None:
    """The command refuses it: non-zero, one sentence, no trace of Python."""
    done = run(case, world)
    told = f"{case}: exit {done.exit_code}\n{done.output}\n{done.exception!r}"
    assert done.exit_code in (1, 2), told
    assert done.exception is None or isinstance(done.exception, SystemExit), told
    assert "Traceback" not in done.output, told
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    sentences = [line for line in lines if line.startswith(SENTENCES)]
    assert len(sentences) == 1, f"one sentence: {told}"
    assert sentences[0] == lines[-1], f"and nothing behind it: {told}"
    assert len(sentences[0]) > len("headrace: ") + 10, told


def secrets(directory: Path) -> dict[str, str]:
    """Files every world has: an ordinary one, a password, one that is no JSON."""
    made = {"file": "plain text\n", "secret": "correct horse\n", "broken": "{"}
    for name, text in made.items():
        (directory / name).write_text(text, encoding="utf-8")
        (directory / name).chmod(0o600)
    return {name: str(directory / name) for name in made}
