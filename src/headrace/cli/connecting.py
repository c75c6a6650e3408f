"""What every command that talks to a node shares: its URL, the login, certificates, where to start.

Passwords come from HEADRACE_PASSWORD, from a file (`--password-file`) or from a prompt, never from
the command line, which everyone on a machine can read.

Imports: errors; client when a command connects.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.client.bucket import Bucket
    from headrace.client.options import Since, Until
    from headrace.client.tokens import TokenSet

Function = TypeVar("Function", bound="Callable[..., object]")

PASSWORD_VARIABLE: Final = "HEADRACE_PASSWORD"  # noqa: S105 - the name of a variable
USER_VARIABLE: Final = "HEADRACE_USER"


def source_options(function: Function, *, url_required: bool = True) -> Function:
    """Add URL and the options of `connected`; they arrive as keyword arguments named so."""
    decorators = (
        click.argument("url", required=url_required),
        click.option("--user", envvar=USER_VARIABLE, metavar="NAME", help="Who logs in."),
        click.option(
            "--password-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help=f"File with the password (else ${PASSWORD_VARIABLE}, else a prompt).",
        ),
        click.option("--bucket", metavar="NAME", help="Bucket, if the URL names none."),
        click.option("--trust", metavar="FILE", help="Authority to trust, PEM (couchbases://)."),
        click.option("--certificate", metavar="FILE", help="Client certificate, PEM."),
        click.option("--key", metavar="FILE", help="Its private key, PEM."),
        click.option("--no-verify", is_flag=True, help="Trust any certificate."),
        click.option(
            "--connect-seconds", type=float, metavar="S", help="How long connecting may take."
        ),
        click.option("--dialect", metavar="NAME", help="Speak this dialect, do not search."),
    )
    for decorate in reversed(decorators):
        function = decorate(function)
    return function


@contextmanager
def connected(**said: Any) -> Iterator[Bucket]:  # noqa: ANN401 - click's own words, checked below
    """Connect as the options of `source_options` say."""
    from headrace.client.bucket import connect

    with connect(said["url"], bucket=said["bucket"], **access_words(said)) as bucket:
        yield bucket


def access_words(said: dict[str, Any]) -> dict[str, Any]:
    """What the options of `source_options` say about getting in, as the client takes it."""
    from headrace.client.access import Tls

    tls = Tls(
        trust=said["trust"],
        certificate=said["certificate"],
        key=said["key"],
        verify=not said["no_verify"],
    )
    return {
        "user": said["user"],
        "password": _password(said["user"], said["password_file"]),
        "tls": tls if tls != Tls() else None,
        "connect_seconds": said["connect_seconds"],
        "dialect": said["dialect"],
    }


SOURCE_NAMES: Final = (
    "url",
    "user",
    "password_file",
    "bucket",
    "trust",
    "certificate",
    "key",
    "no_verify",
    "connect_seconds",
    "dialect",
)


def take_source(options: dict[str, Any]) -> dict[str, Any]:
    """Take the options of `source_options` out of all a command got."""
    return {name: options.pop(name) for name in SOURCE_NAMES}


def _password(user: str | None, file: Path | None) -> str | None:
    if user is None:
        return None
    if file is not None:
        return file.read_text(encoding="utf-8").rstrip("\r\n")
    if PASSWORD_VARIABLE in os.environ:
        return os.environ[PASSWORD_VARIABLE]
    return str(click.prompt(f"password of {user}", hide_input=True, err=True))


def parse_since(text: str) -> Since:
    """``beginning``, ``now``, a time, or a file of tokens."""
    if text in ("beginning", "now"):
        return text  # type: ignore[return-value] # checked in the line above
    if Path(text).is_file():
        return _tokens(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"--since {text}; allowed: beginning, now, a time such as 2026-01-31T12:00:00, or a "
            "file of tokens"
        ) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def parse_until(text: str | None) -> Until:
    """``now`` or a file of tokens; None never ends."""
    if text is None:
        return None
    if text == "now":
        return "now"
    if Path(text).is_file():
        return _tokens(text)
    raise ConfigError(f"--until {text}; allowed: now, or a file of tokens")


def _tokens(path: str) -> TokenSet:
    from headrace.client.tokens import TokenFile

    found = TokenFile(path).load()
    if found is None:
        raise ConfigError(f"{path} went away while it was read")
    return found
