"""Who we are to the source: from a file, from the environment, or as given; never echoed.

A credentials file has the user on its first line and the password on its second, or only the
password when the user is given otherwise. Without a file the environment is asked: HEADRACE_USER
and HEADRACE_PASSWORD. Without any of these the source is asked to let us in as nobody.

Imports: errors.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

USER_VARIABLE: Final = "HEADRACE_USER"
PASSWORD_VARIABLE: Final = "HEADRACE_PASSWORD"  # noqa: S105 - the name of a variable, not a password
FILE_SIZE_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and a password, or nobody."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)


def find_credentials(
    *,
    user: str | None = None,
    file: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Credentials:
    """The credentials to use; ConfigError when a file cannot be read or a half is missing."""
    environment = os.environ if environment is None else environment
    if file is not None:
        return _from_file(Path(file), user)
    user = user or environment.get(USER_VARIABLE) or None
    password = environment.get(PASSWORD_VARIABLE) or None
    if user is None:
        return Credentials()
    if password is None:
        raise ConfigError(
            f"user {user} is given without a password; set {PASSWORD_VARIABLE} or name a file"
        )
    return Credentials(user, password)


def _from_file(path: Path, user: str | None) -> Credentials:
    try:
        if path.stat().st_size > FILE_SIZE_MAX:
            raise ConfigError(f"credentials file {path} is over {FILE_SIZE_MAX} bytes")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"credentials file {path} cannot be read: {reason}") from error
    if len(lines) == 1 and user is not None:
        return Credentials(user, lines[0])
    if len(lines) >= 2 and lines[0] and user in (None, lines[0]):
        return Credentials(lines[0], lines[1])
    raise ConfigError(
        f"credentials file {path} has {len(lines)} lines, expected the user and then the password"
    )
