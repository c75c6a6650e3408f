"""headrace completion: the script that teaches a shell to complete `headrace`.

The script asks `headrace` itself, with a variable in the environment that click understands; what
it answers comes from the tables of the commands, without loading what they do. Names of files are
completed by the shell.

Imports: cli.
"""

from __future__ import annotations

from typing import Final

import click

SHELLS: Final = ("bash", "zsh", "fish")
PROGRAM: Final = "headrace"
VARIABLE: Final = "_HEADRACE_COMPLETE"


def script_of(shell: str, command: click.Command) -> str:
    """The script for a shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, f"click knows {shell}"
    # click's own check of the version of bash starts a bash and may complain on standard error;
    # `source` alone makes the text.
    completion = kind(command, {}, PROGRAM, VARIABLE)
    return completion.source_template % completion.source_vars()


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL; see the examples for where it goes."""
    click.echo(script_of(shell, context.find_root().command))
