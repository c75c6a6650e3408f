"""Settings have ranges, and survive releases."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.store import BucketSettings


def test_the_defaults_are_allowed() -> None:
    assert BucketSettings().vbuckets == 64
    assert not BucketSettings().keeps_history
    assert BucketSettings(history_seconds=1).keeps_history
    assert BucketSettings(history_bytes=1).keeps_history


@pytest.mark.parametrize(
    ("name", "value"),
    [("vbuckets", 0), ("vbuckets", 1025), ("memory_quota", 1), ("block_bytes", 1)],
)
def test_a_number_outside_its_range_is_named(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"bucket setting {name} is {value}, allowed \d+\.\.\d+"):
        BucketSettings(**{name: value})


def test_a_number_must_be_one() -> None:
    with pytest.raises(ConfigError, match="vbuckets is '64'"):
        BucketSettings(vbuckets="64")  # type: ignore[arg-type]


def test_settings_go_there_and_back_and_unknown_names_are_left_out() -> None:
    settings = BucketSettings(vbuckets=7, history_bytes=8)
    assert BucketSettings.from_json({**settings.to_json(), "from the future": 1}) == settings
