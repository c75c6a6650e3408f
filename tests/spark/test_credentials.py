"""Who we are to the source."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.errors import ConfigError
from headrace.spark.credentials import Credentials, find_credentials

if TYPE_CHECKING:
    from pathlib import Path


def test_without_anything_we_are_nobody() -> None:
    assert find_credentials(environment={}) == Credentials()


def test_the_environment_is_asked_and_a_given_user_wins() -> None:
    environment = {"HEADRACE_USER": "u", "HEADRACE_PASSWORD": "p"}
    assert find_credentials(environment=environment) == Credentials("u", "p")
    assert find_credentials(user="other", environment=environment) == Credentials("other", "p")


def test_a_user_without_a_password_is_refused() -> None:
    with pytest.raises(ConfigError, match="set HEADRACE_PASSWORD"):
        find_credentials(user="u", environment={})


@pytest.mark.parametrize(
    ("text", "user", "found"),
    [
        ("u\np\n", None, Credentials("u", "p")),
        ("u\np", "u", Credentials("u", "p")),
        ("p\n", "u", Credentials("u", "p")),
    ],
)
def test_a_file_has_the_user_and_the_password(
    tmp_path: Path, text: str, user: str | None, found: Credentials
) -> None:
    path = tmp_path / "credentials"
    path.write_text(text)
    assert find_credentials(user=user, file=path, environment={}) == found


@pytest.mark.parametrize("text", ["", "p\n", "\np\n", "u\n" * 3000])
def test_a_file_that_does_not_fit_is_refused_without_its_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "credentials"
    path.write_text(text)
    with pytest.raises(ConfigError, match="credentials file"):
        find_credentials(file=path)


def test_a_file_for_another_user_is_refused_and_nothing_is_echoed(tmp_path: Path) -> None:
    path = tmp_path / "credentials"
    path.write_text("u\nsecret\n")
    with pytest.raises(ConfigError) as raised:
        find_credentials(user="other", file=path)
    assert "secret" not in str(raised.value)
    assert "secret" not in repr(find_credentials(file=path))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        find_credentials(file=tmp_path / "nothing")
