"""Certificates: given, made, and refused; documents and logins inside TLS."""

from __future__ import annotations

import ssl
import stat
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headrace.errors import ConfigError
from headrace.node.config import NodeConfig, TlsFiles
from headrace.node.tls import common_name, make_certificate, server_context
from headrace.wire import kv
from headrace.wire.opcodes import Status
from tests.node.client import Client
from tests.node.running import SMALL, running

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("cryptography", reason="the extra `tls` is not installed")


def test_documents_travel_inside_tls(tmp_path: Path) -> None:
    files = make_certificate(tmp_path)
    trust = ssl.create_default_context(cafile=files.certificate)
    config = NodeConfig(buckets=(SMALL,), port=None, tls=files)
    with running(config) as node:
        assert node.node.ports.tls is not None
        with Client(node.node.ports.tls, tls=trust) as client:
            client.set(b"k", b"v" * 100_000)
            assert client.get(b"k").value == b"v" * 100_000
            assert client.status(kv.Get(key=b"none")) == Status.KEY_ENOENT


def test_the_key_is_the_owners_alone(tmp_path: Path) -> None:
    files = make_certificate(tmp_path / "deep" / "tls")
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    again = make_certificate(tmp_path / "deep" / "tls")
    assert again == files


def test_a_client_that_does_not_trust_it_is_not_served(tmp_path: Path) -> None:
    config = NodeConfig(buckets=(SMALL,), tls=make_certificate(tmp_path))
    with running(config) as node:
        port = node.node.ports.tls
        assert port is not None
        with pytest.raises(ssl.SSLError):
            Client(port, tls=ssl.create_default_context())
        with Client(node.port) as client:
            assert client.status(kv.Get(key=b"none")) == Status.KEY_ENOENT


def test_files_that_are_no_certificate_are_refused(tmp_path: Path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    with pytest.raises(ConfigError, match="cannot be used"):
        server_context(TlsFiles(certificate=junk, key=junk))
    with pytest.raises(ConfigError, match="cannot be used"):
        server_context(TlsFiles(certificate=tmp_path / "no", key=tmp_path / "no"))


def test_an_authority_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    files = replace(make_certificate(tmp_path), client_authority=tmp_path / "none.pem")
    with pytest.raises(ConfigError, match=r"authority for client certificates.*none\.pem"):
        server_context(files)


def test_the_common_name_is_found_among_other_parts() -> None:
    subject = ((("countryName", "CH"),), (("commonName", "alice"),))
    assert common_name({"subject": subject}) == "alice"
    assert common_name({"subject": ()}) is None
    assert common_name(None) is None
