"""cli: the `headrace` command, one file per subcommand.

A command is loaded when it is called: `headrace --help` reads only the table below. A mistake of
the user or of the input is one sentence on standard error and an exit code of `headrace.cli.exits`;
a reader that goes away (`| head`) ends the command quietly.

Imports: errors; the commands import every layer they need.
"""

from __future__ import annotations

import errno
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Final

import click

from headrace import __version__
from headrace.cli.examples import with_examples
from headrace.cli.exits import MEANINGS, Exit
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS: Final[dict[str, str]] = {
    "demo": "Run a whole pipeline on this machine, with a failover in the middle.",
    "doctor": "Check this installation, and a bucket: what works and what to do.",
    "serve": "Run a node: documents in, change streams out.",
    "fault": "Make a running node fail: failover, rollback, purge, cut, crash.",
    "load": "Write documents: from a file, or made up.",
    "tail": "Follow the changes of a bucket.",
    "status": "Show where vbuckets and consumers stand.",
    "watch": "Show a live page of a bucket: vbuckets, lag, connections, failovers.",
    "tokens": "Show, compare, check and edit resume tokens.",
    "decode": "Show the frames of a capture, a hex dump or a file.",
    "capture": "Record a conversation with a node.",
    "replay": "Play a recorded conversation back.",
    "sync": "Keep tables of a bucket up to date.",
    "verify": "Compare tables with their source, item by item.",
    "history": "Print the life of one key, with branches and rollbacks.",
    "tables": "Look at the tables of a sync, and keep them small.",
    "replicate": "Keep replicas of vbuckets on other nodes.",
    "move": "Move vbuckets from node to node; nothing is lost.",
    "rebalance": "Spread vbuckets evenly over the nodes of a cluster file.",
    "failover": "Promote the replicas of a node that is gone.",
    "completion": "Print the completion script of a shell.",
}
"""Name -> what it does; the command `a-b` is `command` in headrace/cli/a_b.py."""

SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "Begin": ("demo", "doctor"),
    "A node": ("serve", "fault", "load"),
    "Follow and look": ("tail", "status", "watch", "tokens"),
    "On the wire": ("decode", "capture", "replay"),
    "Tables": ("sync", "verify", "history", "tables"),
    "Several nodes": ("replicate", "move", "rebalance", "failover"),
    "The shell": ("completion",),
}
"""The commands as the help shows them: what one wants -> what one calls."""


class Failure(click.ClickException):
    """A HeadraceError on its way to the terminal: one sentence, exit code 1."""

    exit_code = Exit.FAILED

    def show(self, file: object = None) -> None:  # noqa: ARG002 - the sentence always goes to stderr
        """Say it on standard error."""
        click.echo(f"headrace: {self.format_message()}", err=True)


class Commands(click.Group):
    """The commands of the table, loaded on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return every name, loading none."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Load one command, or return None for a name nobody has."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"headrace.cli.{cmd_name.replace('-', '_')}")
        command = module.command
        assert isinstance(command, click.Command)
        return with_examples(command, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; a name that is nearly one is told so."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = get_close_matches(args[0], COMMANDS, 1)
            # Newer releases of click may say it by themselves.
            if not close or close[0] in error.message:
                raise
            text = f"{error.message} Did you mean {close[0]!r}?"
            raise click.UsageError(text, error.ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the table, by sections, without loading what it names."""
        width = max(map(len, COMMANDS))
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", COMMANDS[name]) for name in names])
        formatter.write_paragraph()
        formatter.write_text("headrace COMMAND -h shows its options, with examples.")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the exit codes."""
        with formatter.section("Exit codes, of every command"):
            formatter.write_dl([(str(code.value), text) for code, text in MEANINGS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a name from the table, without loading what it names."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=text)
            for name, text in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; what headrace can say went wrong becomes its sentence."""
        try:
            return super().invoke(ctx)
        except HeadraceError as error:
            raise Failure(str(error)) from error
        except KeyboardInterrupt:
            click.echo("headrace: interrupted", err=True)
            ctx.exit(Exit.INTERRUPTED)
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # a reader that went away: click ends quietly
            where = f"{error.filename}: " if error.filename else ""
            raise Failure(f"{where}{error.strerror or error}") from error


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="headrace")
def main() -> None:
    """Read, follow and serve change streams: Couchbase's DCP, and the UPR it grew from."""
