"""--field: documents by the values of their fields."""

from __future__ import annotations

import pytest

from headrace.cli.fields import field_test
from headrace.errors import ConfigError

DOCUMENT = b'{"a": {"b": [1, "two"]}, "n": 7, "name": "Ada", "yes": true}'


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("n=7", True),
        ("n=8", False),
        ("n!=8", True),
        ("n>6", True),
        ("n>=7", True),
        ("n<7", False),
        ("n<=7", True),
        ("a.b.0=1", True),
        ("a.b.1=two", True),
        ("a.b.9=1", False),
        ("name=Ada", True),
        ("name>A", True),
        ("name~^A", True),
        ("name~z", False),
        ("n~7", False),
        ("yes=true", True),
        ("yes>0", False),
        ("absent=1", False),
        ("absent!=1", True),
        ("name>5", False),
    ],
)
def test_comparisons(text: str, passes: bool) -> None:
    assert field_test((text,))({"value": DOCUMENT}) is passes


def test_all_must_pass_and_no_json_passes_only_unequal() -> None:
    assert field_test(("n=7", "name=Ada"))({"value": DOCUMENT})
    assert not field_test(("n=7", "name=Bob"))({"value": DOCUMENT})
    assert not field_test(("n=7",))({"value": b"\xff"})
    assert field_test(("n!=7",))({"value": b"\xff"})


@pytest.mark.parametrize("text", ["n", "", "=3", "n~("])
def test_what_is_no_test_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="--field"):
        field_test((text,))
