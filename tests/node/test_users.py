"""The users file, and what a login is checked against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.errors import ConfigError
from headrace.node.users import Role, User, Users, read_users
from headrace.protocol.scram import HASHES

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def test_a_users_file_names_roles_buckets_and_passwords(tmp_path: Path) -> None:
    write(tmp_path / "bob.secret", "from a file\n")
    path = write(
        tmp_path / "users.toml",
        '[users.alice]\npassword = "in the file"\nrole = "admin"\n'
        '[users.bob]\npassword_file = "bob.secret"\nbuckets = ["orders"]\n',
    )
    users = read_users(path)
    alice, bob = users.find("alice"), users.find("bob")
    assert alice is not None
    assert bob is not None
    assert (alice.role, alice.may_use("anything")) == (Role.ADMIN, True)
    assert (bob.role, bob.may_use("orders"), bob.may_use("default")) == (Role.WRITE, True, False)
    assert users.admits("bob", "from a file")
    assert "in the file" not in repr(alice), "a password is not printed by accident"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must hold tables"),
        ("not toml [", "is not TOML"),
        ("[users.a]\n", "needs either"),
        ('[users.a]\npassword = ""\n', "1..1024"),
        ('[users.a]\npassword = "x"\nrole = "king"\n', "role 'king'"),
        ('[users.a]\npassword = "x"\nrole = "none"\n', "role 'none'"),
        ('[users.a]\npassword = "x"\nbuckets = "all"\n', "a list of names"),
        ('[users.a]\npassword = "x"\nshoe = 42\n', "nothing else"),
        ('[users.a]\npassword_file = "missing"\n', "cannot be read"),
        ('[users.a]\npassword = "x"\n[other]\n', "must hold tables"),
    ],
)
def test_a_wrong_users_file_says_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path / "users.toml", text)
    with pytest.raises(ConfigError, match=said):
        read_users(path)


def test_a_users_file_others_may_read_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "users.toml", '[users.a]\npassword = "x"\n', 0o644)
    with pytest.raises(ConfigError, match="mode 644"):
        read_users(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_users(tmp_path / "missing.toml")


@pytest.mark.parametrize("mechanism", HASHES)
def test_an_unknown_user_has_a_credential_that_never_changes(mechanism: str) -> None:
    users = Users((User(name="a", password="x"),))  # noqa: S106 - of this test
    assert users.credential(mechanism, "b") == users.credential(mechanism, "b")
    assert users.credential(mechanism, "a") == users.credential(mechanism, "a")
    assert not users.admits("b", "x")
    with pytest.raises(KeyError):
        users.credential("PLAIN", "a")
