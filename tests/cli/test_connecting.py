"""What commands share: URLs, logins, starts and ends."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from headrace.cli.connecting import PASSWORD_VARIABLE, parse_since, parse_until
from headrace.client.tokens import TokenFile, TokenSet
from headrace.errors import ConfigError
from tests.cli.node_for_commands import call

if TYPE_CHECKING:
    from pathlib import Path


def test_starts_and_ends(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    tokens = TokenSet(bucket="b", vbuckets=1)
    TokenFile(file).save(tokens)
    assert parse_since("beginning") == "beginning"
    assert parse_since(str(file)) == tokens
    assert parse_since("2026-01-31T12:00:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert parse_until(None) is None
    assert parse_until("now") == "now"
    assert parse_until(str(file)) == tokens
    with pytest.raises(ConfigError, match="--since soon"):
        parse_since("soon")


def test_the_password_comes_from_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "secret")
    url = "couchbase://127.0.0.1:1/b"
    assert "nothing listens" in call("tail", url, "--user", "u", code=1).stderr
    secret = tmp_path / "secret"
    secret.write_text("x\n", encoding="utf-8")
    words = ["tail", url, "--user", "u", "--password-file", str(secret)]
    assert "nothing listens" in call(*words, code=1).stderr


def test_certificates_need_an_encrypted_url() -> None:
    refused = call("tail", "couchbase://127.0.0.1:1/b", "--no-verify", code=1)
    assert "write couchbases://" in refused.stderr
