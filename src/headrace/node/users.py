"""Who may log in, and what they may do.

A users file is TOML, one table per user::

    [users.alice]
    password = "correct horse"      # or password_file = "alice.secret", beside this file
    role = "write"                  # read, write or admin; write when left out
    buckets = ["default", "orders"] # all buckets when left out

Rules. Passwords are salted when a mechanism is first used and forgotten text-wise as far as Python
allows: what is kept is a `Credential` per mechanism. An unknown user looks like a wrong password. A
file that others may read is refused: it holds secrets.

Imports: errors, protocol.scram.
"""

from __future__ import annotations

import os
import stat
import tomllib
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError
from headrace.protocol.scram import HASHES, SALT_SIZE, Credential, impostor

if TYPE_CHECKING:
    from collections.abc import Callable

USERS_FILE_SIZE_MAX: Final = 1024 * 1024
USERS_MAX: Final = 10_000
PASSWORD_SIZE_MAX: Final = 1_024
PLAIN_MECHANISM: Final = "SCRAM-SHA512"
"""Whose credential a PLAIN password is checked against."""
_KEYS: Final = frozenset({"password", "password_file", "role", "buckets"})


class Role(IntEnum):
    """What a user may do; each role may do what the ones below it may."""

    NONE = 0
    READ = 1
    WRITE = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user, known by a password; ``buckets`` None means all of them."""

    name: str
    password: str = field(repr=False)
    role: Role = Role.WRITE
    buckets: frozenset[str] | None = None

    def may_use(self, bucket: str) -> bool:
        """Whether the user may select that bucket."""
        return self.buckets is None or bucket in self.buckets


class Users:
    """The users of a node and their salted passwords."""

    def __init__(
        self, users: tuple[User, ...] = (), *, entropy: Callable[[int], bytes] = os.urandom
    ) -> None:
        """``entropy(n)`` gives n random bytes for salts, nonces and the secret of unknown users."""
        if len(users) > USERS_MAX:
            raise ConfigError(f"{len(users)} users, limit {USERS_MAX}")
        self._users = {user.name: user for user in users}
        self._entropy = entropy
        self._secret = entropy(32)
        self._credentials: dict[tuple[str, str], Credential] = {}

    def __len__(self) -> int:
        """Number of users."""
        return len(self._users)

    def find(self, name: str) -> User | None:
        """The user of that name, or None."""
        return self._users.get(name)

    def credential(self, mechanism: str, name: str) -> Credential:
        """What proves the user by this mechanism; of an unknown user one that no password fits."""
        if mechanism not in HASHES:
            raise KeyError(mechanism)
        user = self._users.get(name)
        if user is None:
            return impostor(mechanism, name, secret=self._secret)
        known = self._credentials.get((mechanism, name))
        if known is None:
            salt = self._entropy(SALT_SIZE)
            known = Credential.of(mechanism, user.password, salt=salt)
            self._credentials[mechanism, name] = known
        return known

    def admits(self, name: str, password: str) -> bool:
        """Whether this is the user's password; takes the same time for an unknown user."""
        return self.credential(PLAIN_MECHANISM, name).admits(password)

    def nonce(self) -> str:
        """A fresh nonce: hex digits."""
        return self._entropy(16).hex()


def read_users(path: Path) -> Users:
    """The users of a file; ConfigError says what is wrong with it."""
    try:
        information = path.stat()
        if information.st_size > USERS_FILE_SIZE_MAX:
            raise ConfigError(
                f"users file {path} has {information.st_size} bytes, limit {USERS_FILE_SIZE_MAX}"
            )
        _check_private(path, information.st_mode)
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"users file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"users file {path} is not TOML: {error}") from error
    users = table.get("users")
    if set(table) != {"users"} or not isinstance(users, dict) or not users:
        raise ConfigError(f"users file {path} must hold tables [users.NAME] and nothing else")
    return Users(tuple(_user(path, name, entry) for name, entry in users.items()))


def _check_private(path: Path, mode: int) -> None:
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"{path} has mode {stat.S_IMODE(mode):o}; it holds passwords, allowed 600 or less"
        )


def _user(path: Path, name: str, entry: object) -> User:
    where = f"user {name!r} in {path}"
    if not isinstance(entry, dict) or not set(entry) <= _KEYS:
        raise ConfigError(f"{where} may have {', '.join(sorted(_KEYS))} and nothing else")
    role = str(entry.get("role", "write"))
    if role.upper() not in Role.__members__ or role.upper() == Role.NONE.name:
        raise ConfigError(f"{where} has role {role!r}; allowed: read, write, admin")
    buckets = entry.get("buckets")
    if buckets is not None and not (
        isinstance(buckets, list) and all(isinstance(bucket, str) for bucket in buckets)
    ):
        raise ConfigError(f"{where} has buckets {buckets!r}; allowed: a list of names")
    return User(
        name=name,
        password=_password(path, where, entry),
        role=Role[role.upper()],
        buckets=None if buckets is None else frozenset(buckets),
    )


def _password(path: Path, where: str, entry: dict[str, object]) -> str:
    text, file = entry.get("password"), entry.get("password_file")
    if (text is None) == (file is None):
        raise ConfigError(f"{where} needs either password or password_file")
    if file is not None:
        secret = path.parent / Path(str(file))
        try:
            _check_private(secret, secret.stat().st_mode)
            text = secret.read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            raise ConfigError(f"{where}: {secret} cannot be read: {error.strerror}") from error
    if not isinstance(text, str) or not 0 < len(text.encode("utf-8")) <= PASSWORD_SIZE_MAX:
        raise ConfigError(f"{where} needs a password of 1..{PASSWORD_SIZE_MAX} bytes")
    return text
