"""What a node refuses before it listens."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.node.config import BucketConfig, NodeConfig, TlsFiles, is_loopback
from headrace.node.users import User, Users

USERS = Users((User(name="a", password="x"),))  # noqa: S106 - of this test


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.com"])  # noqa: S104
def test_a_node_without_users_listens_on_loopback_alone(host: str) -> None:
    with pytest.raises(ConfigError, match="no users file"):
        NodeConfig(host=host)
    assert NodeConfig(host=host, users=USERS).host == host


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("::", False)],
)
def test_loopback_is_told_from_the_rest(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize("name", ["", "a b", "../up", ".hidden", "a/b", "x" * 101])
def test_a_bucket_needs_a_name_that_is_a_file_name(name: str) -> None:
    with pytest.raises(ConfigError, match="bucket name"):
        BucketConfig(name=name)


def test_numbers_out_of_range_are_refused() -> None:
    for wrong in ({"port": -1}, {"port": 65536}, {"tls_port": 70000}, {"metrics_port": -2}):
        with pytest.raises(ConfigError, match=r"allowed 0\.\.65535"):
            NodeConfig(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_ttl"):
        BucketConfig(max_ttl=-1)


def test_a_node_needs_some_way_in_and_different_buckets() -> None:
    with pytest.raises(ConfigError, match="needs TLS"):
        NodeConfig(port=None)
    files = TlsFiles(certificate=Path("c"), key=Path("k"))
    assert NodeConfig(port=None, tls=files).port is None
    with pytest.raises(ConfigError, match="all different"):
        NodeConfig(buckets=(BucketConfig(), BucketConfig()))
