"""Collections by name."""

from __future__ import annotations

import pytest

from headrace.client.manifest import read_manifest
from headrace.errors import ConfigError, RemoteProtocolError
from tests.client.producer import MANIFEST


def test_names_and_ids() -> None:
    manifest = read_manifest(MANIFEST)
    assert manifest.uid == 2
    assert manifest.collection_id("beer") == 8
    assert manifest.collection_id("shop.orders") == 10
    assert manifest.collection_id(77) == 77
    assert manifest.scope_id("shop") == 9
    assert manifest.name_of(10) == "shop.orders"
    assert manifest.name_of(99) is None


def test_an_unknown_name_lists_the_known_ones() -> None:
    manifest = read_manifest(MANIFEST)
    with pytest.raises(
        ConfigError, match=r"'orders' does not exist; there are: _default\._default"
    ):
        manifest.collection_id("orders")
    with pytest.raises(ConfigError, match="scope 'x' does not exist; there are: _default, shop"):
        manifest.scope_id("x")


@pytest.mark.parametrize("data", [b"", b"[]", b'{"uid":"x","scopes":[]}', b'{"uid":"1"}'])
def test_what_is_no_manifest_is_an_error(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="manifest that cannot be read"):
        read_manifest(data)
