"""Connection strings: what the SDKs write is read, what is wrong is named."""

from __future__ import annotations

import pytest

from headrace.client.address import NodeAddress, parse_address
from headrace.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "nodes", "tls", "bucket"),
    [
        ("couchbase://localhost", [("localhost", 11210)], False, None),
        ("couchbases://localhost", [("localhost", 11207)], True, None),
        ("couchbase://a,b:9000/default", [("a", 11210), ("b", 9000)], False, "default"),
        ("couchbase://[::1]:9000,[fe80::2]/b", [("::1", 9000), ("fe80::2", 11210)], False, "b"),
        ("127.0.0.1:12000/x", [("127.0.0.1", 12000)], False, "x"),
        ("COUCHBASE://h/travel-sample/", [("h", 11210)], False, "travel-sample"),
        ("couchbase://a,a:11210,a", [("a", 11210)], False, None),
    ],
)
def test_what_the_sdks_write_is_read(
    text: str, nodes: list[tuple[str, int]], tls: bool, bucket: str | None
) -> None:
    address = parse_address(text)
    assert address.nodes == tuple(NodeAddress(*node) for node in nodes)
    assert (address.tls, address.bucket) == (tls, bucket)


def test_options_are_settled_and_synonyms_are_the_same_option() -> None:
    address = parse_address("couchbases://h/b?connect_timeout=2500ms&ssl=no_verify&compression=on")
    assert address.options == {
        "kv_connect_timeout": "2.5",
        "tls_verify": "none",
        "compression": "true",
    }


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "connection string is empty"),
        ("http://h", "scheme 'http'; allowed: couchbase, couchbases"),
        ("couchbase://", "host ''"),
        ("couchbase://h:0", "port '0' of host 'h'; allowed: 1..65535"),
        ("couchbase://h:70000", "port '70000'"),
        ("couchbase://h:x", "port 'x'"),
        ("couchbase://::1", "IPv6 address stands in brackets"),
        ("couchbase://[::1", "IPv6 address stands in brackets"),
        ("couchbase://user:secret@h", "holds a user"),
        ("couchbase://h/a/b", "bucket 'a/b'"),
        ("couchbase://h?nework=auto", "option 'nework' is unknown; allowed: network"),
        ("couchbase://h?network=moon", "option network=moon; allowed: auto, default, external"),
        ("couchbase://h?network", "option 'network' has no value"),
        ("couchbase://h?kv_connect_timeout=soon", "a time such as 2.5, 2500ms, 10s, 1m"),
        ("couchbase://h?ssl=on&tls_verify=none", "option 'tls_verify' stands twice"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_allowed(text: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_address(text)
    assert part in str(caught.value)


def test_a_password_in_the_string_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_address("couchbase://user:hunter2@h")
    assert "hunter2" not in str(caught.value)


def test_an_address_is_written_as_it_is_read() -> None:
    text = "couchbases://a:11207,[::1]:1/b"
    assert str(parse_address(text)) == text
    assert parse_address(str(parse_address(text))) == parse_address(text)
