"""The page of every command and option, from the command line's own tables.

Imports: cli.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Final

import click

from headrace.cli import COMMANDS, main
from headrace.cli.examples import EXAMPLES
from headrace.cli.exits import MEANINGS
from tools.docs_tables import cell, code, table

if TYPE_CHECKING:
    from collections.abc import Iterator

# What click says where nothing was given differs from release to release; its text does not.
_UNSET: Final = frozenset({"Sentinel.UNSET", "None", "False", "()"})


def cli_page() -> str:
    """Return the page."""
    context = click.Context(main, info_name="headrace")
    parts = [
        "Every command takes `-h` and `--help`. Words that mean the same everywhere are in "
        "[the guide](../guide/cli.md).\n",
        table(
            ("command", "does"),
            [(f"[{code(name)}](#{_anchor(name)})", text) for name, text in COMMANDS.items()],
        ),
        "## Exit codes\n",
        table(("code", "meaning"), [(str(one.value), text) for one, text in MEANINGS.items()]),
    ]
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        parts += _sections(command, name, 2)
    return "\n".join(parts)


def _anchor(name: str) -> str:
    return f"headrace-{name.replace(' ', '-')}"


def _sections(command: click.Command, name: str, level: int) -> Iterator[str]:
    yield f"{'#' * level} headrace {name}\n"
    yield f"{_help(command)}\n"
    usage = " ".join(_usage(command))
    yield f"```text\nheadrace {name}{' ' if usage else ''}{usage}\n```\n"
    rows = [_row(one) for one in command.params if isinstance(one, click.Option)]
    if rows:
        yield table(("option", "meaning", "allowed", "default"), rows)
    for example in EXAMPLES.get(name, ()):
        yield f"- {code(example.line)}: {cell(example.does)}"
    yield ""
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from _sections(found, f"{name} {inner}", level + 1)


def _help(command: click.Command) -> str:
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(cell(one) for one in paragraphs)


def _usage(command: click.Command) -> Iterator[str]:
    if any(isinstance(one, click.Option) for one in command.params):
        yield "[OPTIONS]"
    context = click.Context(command)
    for one in command.params:
        if isinstance(one, click.Argument):
            yield one.make_metavar(context)
    if isinstance(command, click.Group):
        yield "COMMAND"


def _row(option: click.Option) -> tuple[str, ...]:
    names = " ".join(code(name) for name in (*option.opts, *option.secondary_opts))
    text, default = _told(option.help or "")
    if option.multiple and "repeat" not in text:
        text = f"{text} May be repeated.".strip()
    return names, cell(text), cell(_allowed(option)), default or _default(option)


def _told(text: str) -> tuple[str, str]:
    """The help without the default it tells in brackets, and that default."""
    found = re.search(r"\s*\[(?:default: )?([^\]]+)\]\s*$", text)
    return (text[: found.start()], cell(found[1])) if found else (text, "")


def _default(option: click.Option) -> str:
    if str(option.default) in _UNSET:
        return ""
    if option.is_flag and option.secondary_opts:
        return code(option.opts[0] if option.default else option.secondary_opts[0])
    return code(str(option.default))


def _allowed(option: click.Option) -> str:
    kind = option.type
    if option.is_flag:
        return ""
    if isinstance(kind, click.Choice):
        return ", ".join(str(getattr(one, "value", one)) for one in kind.choices)
    if isinstance(kind, click.IntRange | click.FloatRange):
        low = "" if kind.min is None else f"{kind.min:g}"
        high = "" if kind.max is None else f"{kind.max:.15g}"
        return f"{low}..{high}" if high else f"from {low}"
    if option.metavar:
        return option.metavar.strip("[]")
    if isinstance(kind, click.Path):
        return "directory" if not kind.file_okay else "path"
    return {"integer": "number", "float": "number"}.get(kind.name, "text")
