"""headrace fault: make a running node fail, on demand.

    headrace fault list
    headrace fault failover --vbucket 3 --lose 20
    headrace fault cut --connection 'sync:*' --when 'after 2s'
    headrace fault line 'at vbucket 3 seqno 500: fail over losing 20'
    headrace fault show connections

The node is named by ``--admin`` (its admin URL, or the file `headrace serve --admin-file` wrote) or
by HEADRACE_ADMIN; the token comes from that file, from ``--token-file`` or from
HEADRACE_ADMIN_TOKEN, never from the command line. The levers are the rows of
`headrace.node.fault_table`.

Imports: errors, node.fault_table.
"""

from __future__ import annotations

import http.client
import json
import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

from headrace.errors import CannotConnect, ConfigError, HeadraceError
from headrace.node.fault_table import LEVERS, TRIGGERS, Lever
from headrace.node.fault_words import FLAG

SECONDS_MAX: Final = 75.0
ANSWER_SIZE_MAX: Final = 16 * 1024 * 1024
FILE_SIZE_MAX: Final = 64 * 1024
TOKEN_VARIABLE: Final = "HEADRACE_ADMIN_TOKEN"  # noqa: S105 - the name of a variable
CRASH: Final = "crash"
PAGES: Final = ("scenario", "vbuckets", "connections")

Json = dict[str, object]


class WentAway(CannotConnect):
    """The node took the request and is gone."""


class Target:
    """The admin API of one node, and how to show its answers."""

    def __init__(self, admin: str | None, token_file: Path | None, *, as_json: bool) -> None:
        """Nothing is asked yet."""
        self._admin, self._token_file, self.as_json = admin, token_file, as_json

    def call(self, method: str, path: str, body: Json | None = None) -> Json:
        """The answer; HeadraceError with the node's sentence when it refuses."""
        url, token = self._found()
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or not parts.port:
            raise ConfigError(f"admin URL {url!r}; allowed: http://127.0.0.1:PORT")
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=SECONDS_MAX)
        content = b"" if body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, content, {"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            status, data = answer.status, answer.read(ANSWER_SIZE_MAX)
        except (http.client.RemoteDisconnected, ConnectionResetError) as error:
            raise WentAway(f"the node at {url} went away without an answer") from error
        except (OSError, http.client.HTTPException) as error:
            raise CannotConnect(
                f"the admin API at {url} cannot be reached: {error}; "
                "was the node started with --admin-port?"
            ) from error
        finally:
            connection.close()
        return _decoded(status, data)

    def _found(self) -> tuple[str, str]:
        admin = self._admin
        if admin is None:
            raise ConfigError("which node? give --admin URL or FILE, or set HEADRACE_ADMIN")
        token = os.environ.get(TOKEN_VARIABLE, "")
        if "://" not in admin:
            said = _read_json(Path(admin))
            admin, token = str(said.get("url", "")), str(said.get("token", ""))
        if self._token_file is not None:
            token = _read(self._token_file).strip()
        if not token:
            raise ConfigError(f"which token? set {TOKEN_VARIABLE} or give --token-file FILE")
        return admin, token


def _read(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(FILE_SIZE_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _read_json(path: Path) -> Json:
    try:
        value = json.loads(_read(path))
    except ValueError as error:
        raise ConfigError(f"{path} is not what --admin-file writes: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is not what --admin-file writes: no JSON object")
    return value


def _decoded(status: int, data: bytes) -> Json:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise HeadraceError(f"the admin API answered {status} without JSON") from error
    if not isinstance(value, dict):
        raise HeadraceError(f"the admin API answered {status} with {type(value).__name__}")
    if status != 200:
        raise HeadraceError(str(value.get("error", f"the admin API answered {status}")))
    return value


# -- showing -------------------------------------------------------------------------------------


def show(target: Target, answer: Json) -> None:
    """Write an answer: as JSON, or as a line per fact."""
    if target.as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    for key, value in answer.items():
        _show(key, value, "")


def _show(key: str, value: object, indent: str) -> None:
    if isinstance(value, dict) and value:
        click.echo(f"{indent}{key}")
        for name, inner in value.items():
            _show(str(name), inner, indent + "  ")
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        click.echo(f"{indent}{key}")
        for row in value:
            click.echo(indent + "  " + "  ".join(f"{k}={_plain(v)}" for k, v in row.items()))
    else:
        click.echo(f"{indent}{key}  {_plain(value)}")


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# -- commands ------------------------------------------------------------------------------------


@click.group("fault")
@click.option("--admin", envvar="HEADRACE_ADMIN", metavar="URL|FILE", help="The node's admin API.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"File with the token; else {TOKEN_VARIABLE}.",
)
@click.option("--json", "as_json", is_flag=True, help="Write answers as JSON.")
@click.pass_context
def command(
    context: click.Context, admin: str | None, token_file: Path | None, as_json: bool
) -> None:
    """Make a running node fail: failover, rollback, purge, cut, crash ..."""
    context.obj = Target(admin, token_file, as_json=as_json)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Write it as JSON.")
@click.pass_obj
def list_(target: Target, as_json: bool) -> None:
    """Show every lever and trigger; no node is needed."""
    if as_json or target.as_json:
        rows = {
            lever.name: [parameter.name for parameter in lever.parameters]
            for lever in LEVERS.values()
        }
        whens = {trigger.name: str(trigger.phrase) for trigger in TRIGGERS.values()}
        click.echo(json.dumps({"levers": rows, "triggers": whens}, indent=2))
        return
    click.echo("levers")
    for lever in LEVERS.values():
        click.echo(f"  {lever.name:<18}{lever.does}")
        click.echo(f"  {'':<18}{lever.phrase}")
    click.echo("triggers, for --when and for lines")
    for trigger in TRIGGERS.values():
        click.echo(f"  {trigger.phrase!s:<55}  {trigger.when}")


@command.command("line", short_help="Say a step as a scenario does.")
@click.argument("text")
@click.option("--json", "as_json", is_flag=True, help="Write the answer as JSON.")
@click.pass_obj
def line(target: Target, text: str, as_json: bool) -> None:
    """Say a step as a scenario does: 'after 2s: cut connection "sync:*"'."""
    target.as_json |= as_json
    show(target, target.call("POST", "/faults", {"line": text}))


@command.command("show")
@click.argument("page", type=click.Choice(PAGES))
@click.option("--json", "as_json", is_flag=True, help="Write the answer as JSON.")
@click.pass_obj
def show_(target: Target, page: str, as_json: bool) -> None:
    """Show the node's scenario, vbuckets or connections."""
    target.as_json |= as_json
    show(target, target.call("GET", f"/{page}"))


def _command_of(lever: Lever) -> click.Command:
    """The subcommand of one row of the table."""

    @click.pass_obj
    def pull(target: Target, /, as_json: bool, when: str | None, **said: object) -> None:
        target.as_json |= as_json
        body: Json = {"lever": lever.name}
        body |= {key: value for key, value in said.items() if value is not None}
        if when is not None:
            body["when"] = when
        try:
            answer = target.call("POST", "/faults", body)
        except WentAway:
            if lever.name != CRASH:
                raise
            # It was asked to die, and a dead node answers nobody.
            answer = {"crash": "the node is gone"}
        show(target, answer)

    options: list[click.Parameter] = [
        click.Option(
            [f"--{parameter.name}"],
            help=f"{parameter.help} ({parameter.kind.allowed})",
            is_flag=parameter.kind is FLAG,
            default=None,
        )
        for parameter in lever.parameters
    ]
    options.append(click.Option(["--when"], help="A trigger, such as 'after 2s'; else now."))
    options.append(
        click.Option(["--json", "as_json"], is_flag=True, help="Write the answer as JSON.")
    )
    text = f"{lever.does}\n\nAllowed {lever.allowed}."
    return click.Command(
        lever.name, params=options, callback=pull, help=text, short_help=lever.does
    )


for _lever in LEVERS.values():
    command.add_command(_command_of(_lever))
