"""The error map clients ask for."""

from __future__ import annotations

import json

from headrace.node.error_map import error_map
from headrace.wire.opcodes import Status


def test_every_status_is_explained_under_its_hexadecimal_number() -> None:
    errors = json.loads(error_map(2))["errors"]
    assert set(errors) == {f"{status:x}" for status in Status}
    for status in Status:
        entry = errors[f"{status:x}"]
        assert entry["name"] == status.name
        assert entry["desc"]
        assert entry["attrs"]


def test_the_first_version_lacks_what_the_second_added() -> None:
    locked = f"{Status.LOCKED:x}"
    assert "item-locked" not in json.loads(error_map(1))["errors"][locked]["attrs"]
    assert "item-locked" in json.loads(error_map(2))["errors"][locked]["attrs"]
