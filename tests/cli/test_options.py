"""Every option of every command is exercised: the tables leave none out, and the rules they share.

The tables are in test_options_*.py, one file per family.
"""

from __future__ import annotations

import ast
import shlex
from importlib import import_module
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner

from headrace.cli import COMMANDS, SECTIONS, main, replay, tokens
from headrace.cli.examples import EXAMPLES
from headrace.cli.exits import MEANINGS, Exit
from tests.cli.option_kit import Table, Value, bad_values, commands, names_of

FAMILIES: Final = ("node", "source", "tables", "files", "cluster")
CLI: Final = Path(__file__).resolve().parents[2] / "src" / "headrace" / "cli"


def tables() -> dict[str, Table]:
    found: dict[str, Table] = {}
    for family in FAMILIES:
        module = import_module(f"tests.cli.test_options_{family}")
        found |= module.TABLES
    return found


def test_every_option_of_every_command_is_in_a_table() -> None:
    known, said = commands(), tables()
    missing = [
        f"{path} {name}"
        for path, command in known.items()
        for name in names_of(command)
        if path not in said or name not in said[path].values
    ]
    assert missing == [], "give each a good and a bad value in a table of test_options_*.py"


def test_no_table_names_what_is_not_there() -> None:
    known = commands()
    strange = [
        f"{path} {name}"
        for path, table in tables().items()
        for name in table.values
        if path not in known or name not in names_of(known[path])
    ]
    assert strange == []


def test_a_bad_value_comes_from_the_type_where_that_says_it() -> None:
    option = click.Option(["--n"], type=click.IntRange(1, 5))
    assert bad_values(option, None) == ["many", "0", "6"]
    assert bad_values(option, "x") == ["x"]
    assert bad_values(click.Option(["--f"], is_flag=True), None) == ["=nonsense"]
    with pytest.raises(AssertionError, match="say it in the table"):
        bad_values(click.Option(["--s"]), None)
    assert Value().bad is None


@pytest.mark.parametrize("path", sorted(commands()))
def test_every_command_has_help_with_examples(path: str) -> None:
    done = CliRunner().invoke(main, [*path.split(), "--help"])
    assert done.exit_code == 0
    assert "Examples:" in done.output
    for example in EXAMPLES[path]:
        assert example.line in done.output.replace("\n", " ") or example.line in done.output


LINES: Final = [one.line for some in EXAMPLES.values() for one in some if "eval" not in one.line]


@pytest.mark.parametrize("line", LINES)
def test_every_example_is_a_command_line_that_can_be_read(line: str) -> None:
    words = shlex.split(line.partition(" > ")[0].partition(" | ")[0])
    assert words[0] == "headrace"
    context = click.Context(main)
    name, rest = words[1], words[2:]
    command = main.get_command(context, name)
    assert command is not None
    while True:
        made = command.make_context(name, list(rest), parent=context, resilient_parsing=True)
        assert not made.args or isinstance(command, click.Group), f"{made.args} is too much"
        if not isinstance(command, click.Group):
            parser = command.make_parser(made)
            parser.parse_args(list(rest))  # an option nobody knows is an error here
            return
        left = [*made._protected_args, *made.args]
        name, rest = left[0], left[1:]
        inner = command.get_command(made, name)
        assert inner is not None, f"{line}: no {name}"
        command = inner


def test_every_option_has_a_help_or_a_default_that_tells() -> None:
    silent = [
        f"{path} {name}"
        for path, command in commands().items()
        for name, parameter in names_of(command).items()
        if isinstance(parameter, click.Option)
        and not parameter.hidden
        and not parameter.help
        and not parameter.show_default
    ]
    assert silent == []


@pytest.mark.parametrize("name", ["--user", "--password-file", "--bucket", "--json"])
def test_an_option_means_the_same_everywhere(name: str) -> None:
    """One vocabulary: a name that several commands have is of one kind in all of them."""
    kinds = {
        (type(parameter.type).__name__, getattr(parameter, "is_flag", False))
        for path, command in commands().items()
        if path not in ("serve", "decode")
        for option, parameter in names_of(command).items()
        if option == name
    }
    assert len(kinds) == 1, kinds


# -- exit codes ------------------------------------------------------------------------------------


def test_every_exit_code_has_its_meaning_in_the_help() -> None:
    told = " ".join(CliRunner().invoke(main, ["--help"]).output.split())
    for code, meaning in MEANINGS.items():
        assert f"{code.value} {meaning}" in told
    assert set(MEANINGS) == set(Exit)


def test_commands_exit_only_with_codes_of_the_table() -> None:
    """Numbers written in the code, and the names that stand for them."""
    allowed = {code.value for code in Exit}
    assert {replay.DIFFERENT, tokens.ROLLED_BACK} == {Exit.CHANGED.value}
    for path in sorted(CLI.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _name(node.func) in ("exit", "SystemExit", "_exit"):
                for word in node.args:
                    if isinstance(word, ast.Constant):
                        assert word.value in allowed, f"{path.name}:{node.lineno}"


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_a_command_nobody_has_is_a_usage_error() -> None:
    done = CliRunner().invoke(main, ["no-such-command"])
    assert done.exit_code == Exit.USAGE
    assert "no-such-command" in done.stderr
    assert "Did you mean" not in done.stderr


def test_a_command_mistyped_is_named() -> None:
    done = CliRunner().invoke(main, ["tial"])
    assert done.exit_code == Exit.USAGE
    assert "No such command 'tial'. Did you mean 'tail'?" in done.stderr


def test_an_interrupt_is_said_and_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.cli.completion.script_of", interrupted)
    done = CliRunner().invoke(main, ["completion", "bash"])
    assert done.exit_code == Exit.INTERRUPTED
    assert done.stderr == "headrace: interrupted\n"


def test_a_file_that_cannot_be_written_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "out.parquet")

    monkeypatch.setattr("headrace.cli.completion.script_of", full)
    done = CliRunner().invoke(main, ["completion", "bash"])
    assert done.exit_code == Exit.FAILED
    assert done.stderr == "headrace: out.parquet: No space left on device\n"


def test_every_name_in_the_table_of_commands_is_a_module() -> None:
    for name in COMMANDS:
        assert (CLI / f"{name.replace('-', '_')}.py").is_file()


def test_every_command_stands_in_one_section_of_the_help() -> None:
    assert [name for names in SECTIONS.values() for name in names] == list(COMMANDS)
    said = CliRunner().invoke(main, ["--help"]).stdout
    assert all(text.split(":")[0] in " ".join(said.split()) for text in COMMANDS.values())
    assert all(f"{title}:\n" in said for title in SECTIONS)


def test_every_option_says_what_it_is_for() -> None:
    silent = [
        f"{path} {option.opts[0]}"
        for path, command in commands().items()
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden and not option.help
    ]
    assert silent == []
