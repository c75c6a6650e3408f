"""Options: what cannot be is refused by name before anything is opened."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.client.access import Access
from headrace.client.options import PATIENCE_SECONDS, ReadOptions
from headrace.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"since": "yesterday"}, "since is 'yesterday', allowed: 'beginning', 'now', a TokenSet"),
        ({"until": "then"}, "until is 'then', allowed: 'now', None, a TokenSet"),
        ({"since": datetime(2026, 1, 1)}, "a time without a zone"),
        ({"collections": ("a",), "scope": "b"}, "one of them narrows a stream"),
        ({"window": 5}, "window is 5, allowed: 0 or from 4096"),
        ({"backfills_max": 0}, "backfills_max is 0"),
        ({"vbuckets": ()}, "vbuckets is empty"),
        ({"on_rollback": "ignore"}, "allowed: 'raise', 'yield' or a function"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        ReadOptions(**options)


def test_a_read_with_an_end_has_patience_and_an_endless_one_has_no_limit() -> None:
    assert ReadOptions(until="now").patience == PATIENCE_SECONDS
    assert ReadOptions().patience is None
    assert ReadOptions(until="now", patience_seconds=None).patience is None
    assert ReadOptions(patience_seconds=3.0).patience == 3.0


def test_options_become_what_a_connection_is_asked_for() -> None:
    options = ReadOptions(
        since=datetime(2026, 1, 1, tzinfo=UTC), xattrs=True, compression=True, history=True
    )
    settings = options.settings(Access(user="u"), "default")
    assert (settings.bucket, settings.user, settings.xattrs) == ("default", "u", True)
    assert (settings.snappy, settings.change_streams) == (True, True)
    assert ("backfill_order", "sequential") in settings.controls
    assert settings.name.startswith("headrace:")
    plain = ReadOptions(whole=False, name="mine").settings(Access(compression=True), "b")
    assert (plain.controls, plain.name, plain.snappy) == ((), "mine", True)
