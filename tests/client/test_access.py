"""Who gets in, and inside which encryption."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.client.access import Access, Tls, access_of
from headrace.client.address import parse_address
from headrace.errors import ConfigError
from headrace.wire.dialect import Dialect

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "hunter2"  # noqa: S105 - of nobody


def test_the_caller_wins_over_the_connection_string() -> None:
    address = parse_address("couchbase://h?kv_connect_timeout=3&dialect=dcp-3&compression=1")
    access = access_of(address, user="u", password=SECRET, dialect="dcp-5")
    assert (access.connect_seconds, access.dialect) == (3.0, Dialect.DCP_5)
    assert access.compression
    assert access.tls is None
    assert SECRET not in repr(access), "a password is in no text"


def test_a_password_without_a_user_is_refused() -> None:
    with pytest.raises(ConfigError, match="password is given without a user"):
        access_of(parse_address("couchbase://h"), user=None, password=SECRET)


def test_certificates_without_encryption_are_refused() -> None:
    with pytest.raises(ConfigError, match="write couchbases://"):
        access_of(parse_address("couchbase://h"), user=None, password=None, tls=Tls(verify=False))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trust_certificate .*absent\.pem is no file"):
        Tls(trust=str(tmp_path / "absent.pem")).context()
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    with pytest.raises(ConfigError, match="is no PEM file"):
        Tls(trust=str(junk)).context()
    with pytest.raises(ConfigError, match="do not fit together or are no PEM files"):
        Tls(certificate=str(junk), key=str(junk)).context()
    with pytest.raises(ConfigError, match="client_key is given without client_certificate"):
        Tls(key=str(junk)).context()


def test_times_are_more_than_nothing() -> None:
    with pytest.raises(ConfigError, match="connect_seconds is 0"):
        Access(connect_seconds=0)
